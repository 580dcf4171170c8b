"""Counts: ``Poisson``, and ``NegativeBinomial`` for counts that vary more."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import special, uncertainty
from gflowout.core.likelihoods.base import Likelihood, by_draw, per_example, same_shape
from gflowout.core.likelihoods.values import Spread, Values, start_of


class Poisson(Values):
    r"""Counts. Output [batch, ..., dim] of log-rates, label alike; [batch] if dim is 1.

    .. math:: p(y) = \lambda^y e^{-\lambda} / y!

    Args:
        dim: Number of counts per example.

    Examples:
        >>> Poisson().log_prob(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]])).exp()
        tensor([0.3679, 0.1839])
    """

    arguments = ("dim",)

    def __init__(self, dim: int = 1) -> None:
        super().__init__(dim)

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are 0, 1, 2, ..., of any dtype."""
        return _counts(self, self._columns(y), values)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the counts."""
        log_rate = self._outputs(output)
        same_shape(self, log_rate.shape, target)
        target = target.to(log_rate.dtype)
        return per_example(target * log_rate - log_rate.exp() - torch.lgamma(target + 1))

    def encode(self, target: Tensor) -> Tensor:
        """Logs of the counts plus one, averaged over any further axes."""
        return super().encode(torch.log1p(target))

    def samples(self, output: Tensor) -> Tensor:
        """Rates: the expected counts."""
        return self._outputs(output).exp()

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the counts: the rates."""
        return self.samples(output)

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Smallest count whose mixture CDF reaches a probability."""
        rates = by_draw(self.samples, outputs)
        return uncertainty.mixture_quantile(
            lambda count: torch.special.gammaincc(count + 1, rates),
            torch.full_like(rates[0], -1),
            rates.amax(0).ceil() + 1,
            probability,
            whole=True,
        )


class NegativeBinomial(Spread):
    r"""Counts that vary more than Poisson's. Output [batch, ..., dim] of log-means, label alike.

    With mean :math:`\mu` and dispersion :math:`\alpha`, :math:`r = 1 / \alpha`:

    .. math:: p(y) = \frac{\Gamma(y + r)}{\Gamma(r) \, y!}
              \Big(\frac{r}{r + \mu}\Big)^r \Big(\frac{\mu}{r + \mu}\Big)^y,
              \qquad \operatorname{Var}[y] = \mu + \alpha \mu^2

    Without dispersion, :math:`\alpha \to 0`, it is :class:`Poisson`.

    Args:
        dim: Number of counts per example.
        dispersion: The dispersion to start from.
        learn_dispersion: Whether it is learned, one per count, or stays as it starts.
        heteroscedastic: Whether the backbone gives it: an output [batch, ..., 2 * dim], log-means
            first, logs of the dispersion after.

    Examples:
        >>> likelihood = NegativeBinomial(dispersion=0.5)
        >>> likelihood.variance(torch.zeros(1, 1)).item()  # at a mean of 1
        1.5
    """

    arguments = ("dim", "dispersion", "learn_dispersion", "heteroscedastic")
    free = ("dispersion", "learn_dispersion", "heteroscedastic")
    parameter = "log_dispersion"
    log_dispersion: Tensor

    def __init__(
        self,
        dim: int = 1,
        dispersion: float = 1.0,
        learn_dispersion: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        dispersion, learn = start_of("dispersion", dispersion, learn_dispersion)
        super().__init__(dim, math.log(dispersion), learn, heteroscedastic)
        self.dispersion, self.learn_dispersion = dispersion, learn

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are 0, 1, 2, ..., of any dtype."""
        return _counts(self, self._columns(y), values)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the counts."""
        log_mean, log_dispersion = self._split(output)
        same_shape(self, log_mean.shape, target)
        # In double precision: for a small dispersion, two large log-gammas nearly cancel.
        count, log_least = target.double(), log_dispersion.double().clamp(min=_LEAST)
        log_odds, size = log_mean.double() + log_least, torch.exp(-log_least)
        choices = torch.lgamma(count + size) - torch.lgamma(size) - torch.lgamma(count + 1)
        scores = choices + size * F.logsigmoid(-log_odds) + count * F.logsigmoid(log_odds)
        return per_example(scores).to(log_mean.dtype)

    def encode(self, target: Tensor) -> Tensor:
        """Logs of the counts plus one, averaged over any further axes."""
        return super().encode(torch.log1p(target))

    def samples(self, output: Tensor) -> Tensor:
        """Means: the expected counts."""
        return self._split(output)[0].exp()

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the counts."""
        log_mean, log_dispersion = self._split(output)
        return log_mean.exp() + (2 * log_mean + log_dispersion).exp()

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Smallest count whose mixture CDF reaches a probability."""
        log_mean, log_dispersion = (part.double() for part in self._split_draws(outputs))
        log_dispersion = log_dispersion.clamp(min=_LEAST)
        size = torch.exp(-log_dispersion)
        stopped = torch.sigmoid(-log_mean - log_dispersion)
        count = uncertainty.mixture_quantile(
            lambda value: special.betainc(size, value + 1, stopped),
            torch.full_like(stopped[0], -1),
            log_mean.exp().amax(0).ceil() + 1,
            probability,
            whole=True,
        )
        return count.to(outputs.dtype)


_LEAST = -16.0
"""Log of a dispersion below which double precision would not distinguish it from none."""


def _counts(likelihood: Likelihood, y: Tensor, values: bool) -> Tensor:
    """Return counts as floating-point numbers if they are whole and not negative, or raise."""
    if y.dtype == torch.bool:
        raise TypeError(f"y must hold counts for {likelihood}, got {y.dtype}")
    y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    wrong = (y < 0) | (y != y.floor()) | y.isinf() if values else None
    if wrong is not None and bool(wrong.any()):
        raise ValueError(
            f"y must hold counts 0, 1, 2, ... for {likelihood}, got {y[wrong][0].item():g}"
        )
    return y
