"""Real numbers: ``Gaussian``, ``StudentT`` for outliers, and ``Quantile`` for intervals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from gflowout.core import checks, special, uncertainty
from gflowout.core.likelihoods.base import by_draw, finite, label_tensor, per_example, same_shape
from gflowout.core.likelihoods.values import Spread, start_of


class _Real(Spread):
    """Base of likelihoods of real numbers, whose noise starts at ``noise``."""

    noise: float
    learn_noise: bool
    _warned = False

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are finite floating-point numbers."""
        label_tensor(y)
        if not y.is_floating_point():
            raise TypeError(f"y must be a floating-point tensor for {self}, got {y.dtype}")
        y = self._columns(y)
        if values and y.numel():
            largest = float(y.abs().amax())
            if not math.isfinite(largest):
                finite(self, y)
            if self.training and not self._warned and largest >= _UNSCALED * self._start:
                self._warn_of_scale(y)
        return y

    @property
    def _start(self) -> float:
        return 1.0 if self.heteroscedastic else self.noise

    def _warn_of_scale(self, y: Tensor) -> None:
        """Warn, once, of labels whose mean or standard deviation is far from the noise."""
        values = y.detach().double().reshape(-1, self.label_size)
        mean = float(values.mean(0).abs().max())
        deviation = float(values.std(0, correction=0).max())
        if max(mean, deviation) >= _UNSCALED * self._start:
            self._warned = True
            warnings.warn(
                f"y has a mean of up to {mean:.3g} and a standard deviation of up to "
                f"{deviation:.3g} for {self}, whose noise starts at {self._start:g}: training will "
                "hardly move from there, and what it learns is not to be trusted. Standardise y, "
                "(y - y.mean(0)) / y.std(0) of the training set, and scale predictions back; or "
                "centre y and set noise= to its standard deviation",
                stacklevel=2,
            )


class Gaussian(_Real):
    """Real values with normal noise. Output and label [batch, ..., dim]; [batch] if dim is 1.

    The noise is one learned variance per dimension, or, with ``heteroscedastic``, an output of the
    backbone: it then gives [batch, ..., 2 * dim], means first, log-variances after.

    Labels should be scaled to about unit variance: the noise starts there, and so does what the
    mask posterior sees of a label. Training warns of labels that are a thousand times larger.

    Args:
        dim: Number of values per example.
        noise: Standard deviation of the noise to start from.
        learn_noise: Whether the noise is learned or stays as it starts.
        heteroscedastic: Whether the backbone gives the noise.

    Examples:
        >>> Gaussian(1).log_prob(torch.zeros(2, 1), torch.zeros(2, 1))
        tensor([-0.9189, -0.9189], grad_fn=<SumBackward1>)
    """

    arguments = ("dim", "noise", "learn_noise", "heteroscedastic")
    parameter = "log_variance"
    log_variance: Tensor

    def __init__(
        self,
        dim: int = 1,
        noise: float = 1.0,
        learn_noise: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        noise, learn_noise = start_of("noise", noise, learn_noise)
        super().__init__(dim, 2 * math.log(noise), learn_noise, heteroscedastic)
        self.noise, self.learn_noise = noise, learn_noise

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of the labels."""
        mean, log_variance = self.moments(output)
        same_shape(self, mean.shape, target)
        squared = (target - mean).square() * torch.exp(-log_variance)
        return per_example(-0.5 * (squared + log_variance + math.log(2 * math.pi)))

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, [..., dim] each."""
        return self._split(output)

    def samples(self, output: Tensor) -> Tensor:
        """Means."""
        return self.moments(output)[0]

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the noise."""
        return self.moments(output)[1].exp()

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Quantile of the mixture of the normal distributions of all draws."""
        means, log_variances = self._split_draws(outputs)
        return uncertainty.gaussian_mixture_quantile(means, log_variances.exp(), probability)


class StudentT(_Real):
    r"""Real values with outliers: Student's t. Output and label [batch, ..., dim], as Gaussian.

    .. math:: p(y) = \frac{\Gamma(\frac{\nu + 1}{2})}{\Gamma(\frac{\nu}{2}) \sqrt{\nu \pi} \, s}
              \Big(1 + \frac{(y - m)^2}{\nu s^2}\Big)^{-(\nu + 1) / 2}

    The output is the location m, the centre of the distribution; the scale s is learned as the
    noise of :class:`Gaussian` is. The variance, :math:`s^2 \nu / (\nu - 2)`, is infinite for
    :math:`\nu \le 2`. Labels should be scaled to about unit variance.

    Args:
        dim: Number of values per example.
        df: Degrees of freedom :math:`\nu`: few have heavy tails, infinitely many are normal.
        noise: Scale s to start from.
        learn_noise: Whether the scale is learned or stays as it starts.
        heteroscedastic: Whether the backbone gives the scale: an output [batch, ..., 2 * dim],
            locations first, log-scales after.

    Examples:
        >>> y = torch.tensor([[100.0]])
        >>> Gaussian().log_prob(torch.zeros(1, 1), y).item()
        -5000.9...
        >>> StudentT().log_prob(torch.zeros(1, 1), y).item()
        -20.5...
    """

    arguments = ("dim", "df", "noise", "learn_noise", "heteroscedastic")
    parameter = "log_scale"
    log_scale: Tensor

    def __init__(
        self,
        dim: int = 1,
        df: float = 4.0,
        noise: float = 1.0,
        learn_noise: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        noise, learn_noise = start_of("noise", noise, learn_noise)
        super().__init__(dim, math.log(noise), learn_noise, heteroscedastic)
        self.df = checks.number("df", df, low=0, open_low=True)
        self.noise, self.learn_noise = noise, learn_noise

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of the labels."""
        location, log_scale = self._split(output)
        same_shape(self, location.shape, target)
        squared = ((target - location) * torch.exp(-log_scale)).square()
        tails = (self.df + 1) / 2 * torch.log1p(squared / self.df)
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2)
        constant -= math.log(self.df * math.pi) / 2
        return per_example(constant - log_scale - tails)

    def samples(self, output: Tensor) -> Tensor:
        """Locations."""
        return self._split(output)[0]

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the noise; infinite for two degrees of freedom or fewer."""
        factor = self.df / (self.df - 2) if self.df > 2 else math.inf
        return factor * (2 * self._split(output)[1]).exp()

    @property
    def has_variance(self) -> bool:
        """Whether the variance is finite."""
        return self.df > 2

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Quantile of the mixture of the t distributions of all draws."""
        location, log_scale = self._split_draws(outputs)
        scale = log_scale.exp()
        return uncertainty.mixture_quantile(
            lambda value: special.student_t_cdf((value - location) / scale, self.df),
            (location - scale).amin(0),
            (location + scale).amax(0),
            probability,
        )


class Quantile(_Real):
    r"""Quantiles of a real value. Output [batch, ..., levels], label [batch, ...] or [..., 1].

    The density of a label is the geometric mean over the levels :math:`\tau` of asymmetric Laplace
    densities, whose logarithm is the pinball loss:

    .. math:: \log p(y) = \frac1K \sum_k \Big[ \log \frac{\tau_k (1 - \tau_k)}{s_k}
              - \frac{\max(\tau_k u_k, (\tau_k - 1) u_k)}{s_k} \Big], \qquad u_k = y - q_k

    Its maximum is at the quantiles, whatever the distribution of labels. It is a working
    likelihood: with one level it is a density, with several it integrates to less than 1, so
    ``log_prob`` compares models with the same levels only. Labels should be scaled to about unit
    variance.

    ``pred.mean`` is the average over draws of the quantile at each level, [batch, ..., levels],
    ``pred.quantile(level)`` one of them. There is no variance of labels.

    Args:
        levels: Probabilities :math:`\tau`, increasing.
        noise: Scales s to start from.
        learn_noise: Whether the scales are learned, one per level, or stay as they start.
        heteroscedastic: Whether the backbone gives the scales: an output [batch, ..., 2 * levels],
            quantiles first, log-scales after.

    Examples:
        >>> likelihood = Quantile([0.1, 0.9], learn_noise=False)
        >>> likelihood.log_prob(torch.tensor([[-1.0, 1.0]]), torch.tensor([3.0]))
        tensor([-3.5079])
        >>> likelihood.samples(torch.tensor([[1.0, -1.0]]))  # quantiles do not cross
        tensor([[-1., 1.]])
    """

    arguments = ("levels", "noise", "learn_noise", "heteroscedastic")
    comparable = False
    parameter = "log_scale"
    log_scale: Tensor

    def __init__(
        self,
        levels: Sequence[float] = (0.05, 0.5, 0.95),
        noise: float = 1.0,
        learn_noise: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        if not isinstance(levels, list | tuple) or not levels:
            raise TypeError(f"levels must be a list or tuple of numbers in (0, 1), got {levels!r}")
        noise, learn_noise = start_of("noise", noise, learn_noise)
        super().__init__(len(levels), math.log(noise), learn_noise, heteroscedastic)
        self.levels = tuple(checks.probability("levels", level) for level in levels)
        if list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels must increase, got {self.levels}")
        self.noise, self.learn_noise = noise, learn_noise
        self.label_size = 1

    def _columns(self, y: Tensor) -> Tensor:
        return y  # an axis of the label is no axis of the levels

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of the labels."""
        quantiles, log_scale = self._split(output)
        shape = quantiles.shape[:-1]
        target = target.squeeze(-1) if target.shape == (*shape, 1) else target
        same_shape(self, shape, target)
        levels = quantiles.new_tensor(self.levels)
        above = target.unsqueeze(-1) - quantiles
        pinball = torch.maximum(levels * above, (levels - 1) * above)
        scores = torch.log(levels * (1 - levels)) - log_scale - pinball * torch.exp(-log_scale)
        return per_example(scores.mean(-1))

    def samples(self, output: Tensor) -> Tensor:
        """Quantiles, sorted, so that those of higher levels are never below others."""
        return self._split(output)[0].sort(-1).values

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Average over draws of the quantile at one of the levels, [batch, ...]."""
        # Not exactly: 1 - 0.95 is not the number 0.05.
        gaps = [abs(level - probability) for level in self.levels]
        level = gaps.index(min(gaps))
        if gaps[level] > 1e-9:
            raise ValueError(
                f"probability must be one of the levels of {self}, got {probability:g}"
            )
        return by_draw(self.samples, outputs)[..., level].mean(0)


_UNSCALED = 1e3
"""Labels that are this many times larger than the noise at the start are warned of."""
