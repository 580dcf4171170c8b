"""Likelihoods: what the backbone's output says about a label, p(y | output)."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import checks


class Likelihood(nn.Module, ABC):
    """Base of the likelihoods. Shapes: output [batch, ...], label [batch, ...].

    Examples:
        >>> likelihood: Likelihood = Categorical(3)
        >>> target = likelihood.target(torch.tensor([2, 0]))  # labels are checked here
        >>> likelihood.log_prob(torch.zeros(2, 3), target).exp()
        tensor([0.3333, 0.3333])
        >>> likelihood.samples(torch.zeros(1, 3))
        tensor([[0.3333, 0.3333, 0.3333]])
    """

    label_size: int
    """Size of an encoded label."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Names of the constructor's arguments, which are attributes, too."""

    @abstractmethod
    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check labels and return them in the form that the other methods take.

        Args:
            y: Labels as the user has them.
            values: Also look at the values (range, NaN), not only at type and shape.
        """

    @abstractmethod
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-likelihood per example, [batch], summed over any further axes of the label."""

    @abstractmethod
    def encode(self, target: Tensor) -> Tensor:
        """Labels as input of a mask posterior, [batch, label_size]."""

    @abstractmethod
    def samples(self, output: Tensor) -> Tensor:
        """What users read off an output: probabilities, or means."""

    def class_logits(self, output: Tensor) -> Tensor:
        """Logits over mutually exclusive classes, [..., classes]."""
        raise TypeError(f"{type(self).__name__} has no classes")

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Return output and likelihood in a form that later training cannot change."""
        return output, self

    def config(self) -> dict[str, Any]:
        """Arguments that build this likelihood again; those that are ``None`` are left out."""
        values = {name: getattr(self, name) for name in self.arguments}
        return {name: value for name, value in values.items() if value is not None}

    def extra_repr(self) -> str:
        """Show the arguments."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())


class Categorical(Likelihood):
    """One of several classes. Output [batch, ..., classes] of logits, label [batch, ...] of int.

    Args:
        classes: Number of classes.
        ignore_index: A label that counts for nothing, for padded positions of sequences. An example
            without any other label has a log-likelihood of 0, and means over examples, such as
            ``Losses.nll``, still count it.

    Examples:
        >>> likelihood = Categorical(3)
        >>> likelihood.log_prob(torch.zeros(1, 3), torch.tensor([2])).exp()
        tensor([0.3333])
    """

    arguments = ("classes", "ignore_index")

    def __init__(self, classes: int, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes = checks.integer("classes", classes, low=2)
        if ignore_index is not None and type(ignore_index) is not int:
            raise TypeError(f"ignore_index must be an integer or None, got {ignore_index!r}")
        self.ignore_index = ignore_index
        self.label_size = classes

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are integers in [0, classes)."""
        _tensor(y)
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"y must be an integer tensor for {self}, got {y.dtype}")
        y = y.long()
        if values and y.numel():
            low, high = (int(bound) for bound in self._classes(y).aminmax())
            if low < 0 or high >= self.classes:
                allowed = f"[0, {self.classes - 1}]"
                raise ValueError(
                    f"y must be in {allowed} for {self}, got labels from {low} to {high}"
                )
        return y

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels."""
        _last_axis(self, output, self.classes)
        _shapes(self, output.shape[:-1], target)
        index = self._classes(target).unsqueeze(-1)
        scores = F.log_softmax(_precise(output), -1).gather(-1, index).squeeze(-1)
        if self.ignore_index is not None:
            scores = scores * (target != self.ignore_index)
        return _per_example(scores)

    def encode(self, target: Tensor) -> Tensor:
        """One-hot labels, averaged over any further axes, those to be ignored left out."""
        one_hot = F.one_hot(self._classes(target), self.classes).float()
        if self.ignore_index is None:
            return one_hot.reshape(len(target), -1, self.classes).mean(1)
        counted = (target != self.ignore_index).unsqueeze(-1)
        sums = (one_hot * counted).reshape(len(target), -1, self.classes).sum(1)
        # A row without any label says nothing: zeros, however many positions it has.
        return sums / counted.reshape(len(target), -1).sum(1, keepdim=True).clamp(min=1)

    def samples(self, output: Tensor) -> Tensor:
        """Class probabilities."""
        _last_axis(self, output, self.classes)
        output = _precise(output)
        if output.numel() <= _AT_A_TIME or output.requires_grad:
            return _softmax(output).movedim(0, -1)
        # Part after part: what the kernel needs beside the result does not grow with it.
        flat = output.flatten(0, -2)
        result = output.new_empty(self.classes, len(flat))
        rows = max(_LANES, _AT_A_TIME // self.classes // _LANES * _LANES)
        for start in range(0, len(flat), rows):
            part = slice(start, start + rows)
            result[:, part] = _softmax(flat[part])
        return result.reshape(-1, *output.shape[:-1]).movedim(0, -1)

    def class_logits(self, output: Tensor) -> Tensor:
        """The output itself."""
        return _precise(output)

    def _classes(self, y: Tensor) -> Tensor:
        """Labels with class 0 in place of those to be ignored."""
        if self.ignore_index is None:
            return y
        return torch.where(y == self.ignore_index, torch.zeros_like(y), y)


class _YesNo(Likelihood):
    """Base of likelihoods whose outputs are log-odds; soft labels are allowed."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels of an example; the expected one for soft labels."""
        log_odds = self._log_odds(output)
        _shapes(self, log_odds.shape, target)
        log_odds = _precise(log_odds)
        target = target.to(log_odds.dtype)
        return _per_example(-F.binary_cross_entropy_with_logits(log_odds, target, reduction="none"))

    def encode(self, target: Tensor) -> Tensor:
        """Labels as -1 and 1, averaged over any further axes."""
        return (2 * target - 1).reshape(len(target), -1, self.label_size).mean(1)

    def samples(self, output: Tensor) -> Tensor:
        """Probability of a yes, per label."""
        return _precise(self._log_odds(output)).sigmoid()

    def class_logits(self, output: Tensor) -> Tensor:
        """Logits of no and yes, half of the log-odds each way, per label."""
        half = _precise(self._log_odds(output)) / 2
        return torch.stack((-half, half), -1)

    @abstractmethod
    def _log_odds(self, output: Tensor) -> Tensor:
        """Check the shape of an output and return it in the shape of the labels."""


class Binary(_YesNo):
    """Yes or no. Output [batch] or [batch, 1] of logits, label of the same shape in [0, 1].

    Examples:
        >>> Binary().log_prob(torch.zeros(1, 1), torch.ones(1)).exp()
        tensor([0.5000])
    """

    label_size = 1

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are in [0, 1]; soft labels are allowed."""
        squeezed = _squeeze(_tensor(y))
        if squeezed.dim() != 1:
            raise ValueError(f"y must have shape [{len(y)}] for {self}, got {list(y.shape)}")
        return _unit_interval(self, squeezed, values)

    def _log_odds(self, output: Tensor) -> Tensor:
        squeezed = _squeeze(output)
        if squeezed.dim() != 1:
            raise ValueError(
                f"{self} takes an output of shape [batch] or [batch, 1], the backbone gives "
                f"{list(output.shape)}; for two logits use Categorical(2), for several yes-or-no "
                "labels MultiLabel"
            )
        return squeezed


class MultiLabel(_YesNo):
    """Several yes-or-no labels. Output [batch, ..., labels] of logits, label alike in [0, 1].

    Args:
        labels: Number of labels.

    Examples:
        >>> MultiLabel(2).log_prob(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).exp()
        tensor([0.2500])
    """

    arguments = ("labels",)

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = checks.integer("labels", labels, low=1)
        self.label_size = labels

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are in [0, 1]; soft labels are allowed."""
        _last_axis(self, _tensor(y), self.labels, label=True)
        return _unit_interval(self, y, values)

    def _log_odds(self, output: Tensor) -> Tensor:
        _last_axis(self, output, self.labels)
        return output


class Gaussian(Likelihood):
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

    def __init__(
        self,
        dim: int = 1,
        noise: float = 1.0,
        learn_noise: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        super().__init__()
        self.dim = checks.integer("dim", dim, low=1)
        self.noise = checks.number("noise", noise, low=0, open_low=True)
        self.learn_noise = checks.boolean("learn_noise", learn_noise)
        self.heteroscedastic = checks.boolean("heteroscedastic", heteroscedastic)
        self.label_size = dim
        self._warned = False
        if not heteroscedastic:
            start = torch.full((dim,), 2 * math.log(noise))
            self.log_variance = nn.Parameter(start, requires_grad=learn_noise)

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are finite floating-point numbers."""
        _tensor(y)
        if not y.is_floating_point():
            raise TypeError(f"y must be a floating-point tensor for {self}, got {y.dtype}")
        if self.dim == 1 and y.dim() == 1:
            y = y.unsqueeze(-1)
        _last_axis(self, y, self.dim, label=True)
        if values and y.numel():
            largest = float(y.abs().amax())
            if not math.isfinite(largest):
                raise ValueError(f"y must hold finite numbers for {self}, got NaN or infinity")
            if self.training and not self._warned and largest >= _UNSCALED * self._start:
                self._warn_of_scale(y)
        return y

    @property
    def _start(self) -> float:
        return 1.0 if self.heteroscedastic else self.noise

    def _warn_of_scale(self, y: Tensor) -> None:
        """Warn, once, of labels whose mean or standard deviation is far from the noise."""
        values = y.detach().double().reshape(-1, self.dim)
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

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of the labels."""
        mean, log_variance = self.moments(output)
        _shapes(self, mean.shape, target)
        squared = (target - mean).square() * torch.exp(-log_variance)
        return _per_example(-0.5 * (squared + log_variance + math.log(2 * math.pi)))

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, [..., dim] each."""
        if self.dim == 1 and not self.heteroscedastic and output.dim() == 1:
            output = output.unsqueeze(-1)
        _last_axis(self, output, self.dim * (2 if self.heteroscedastic else 1))
        if self.heteroscedastic:
            mean, log_variance = _precise(output).chunk(2, -1)
            return mean, log_variance
        return _precise(output), _precise(self.log_variance).expand_as(output)

    def encode(self, target: Tensor) -> Tensor:
        """The labels themselves, averaged over any further axes."""
        return target.float().reshape(len(target), -1, self.dim).mean(1)

    def samples(self, output: Tensor) -> Tensor:
        """Means."""
        return self.moments(output)[0]

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Write the learned noise into the output."""
        settled = Gaussian(self.dim, heteroscedastic=True).eval()  # trained no more
        return torch.cat(self.moments(output), -1), settled


LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.__name__: kind for kind in (Categorical, Binary, MultiLabel, Gaussian)
}

_UNSCALED = 1e3
"""Labels that are this many times larger than the noise at the start are warned of."""

_AT_A_TIME = 2**17
"""Elements that :meth:`Categorical.samples` takes at a time."""

_LANES = 64
"""Parts are multiples of this, so that the kernel's vectors see what they see in the whole."""


def _softmax(output: Tensor) -> Tensor:
    """Probabilities over the last axis, which becomes the first."""
    # Over the first axis: for few classes, PyTorch's kernel for the last takes 8 times as long.
    return output.movedim(-1, 0).contiguous().softmax(0)


def _tensor(y: Any) -> Tensor:
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}")
    if y.is_complex():
        raise TypeError(f"y must hold real numbers, got {y.dtype}")
    if y.dim() == 0:
        raise ValueError("y must have a batch axis, got a scalar tensor")
    return y


def _unit_interval(likelihood: Likelihood, y: Tensor, values: bool) -> Tensor:
    y = y.float()
    if values and y.numel():
        low, high = (float(bound) for bound in y.aminmax())
        if not (low >= 0 and high <= 1):
            raise ValueError(f"y must be in [0, 1] for {likelihood}, got {low:g} to {high:g}")
    return y


def _last_axis(likelihood: Likelihood, value: Tensor, size: int, label: bool = False) -> None:
    """Check the last axis of an output, or of a label."""
    if value.dim() < 2 or value.shape[-1] != size:
        shape = f"shape [batch, ..., {size}]"
        raise ValueError(
            f"y must have {shape} for {likelihood}, got {list(value.shape)}"
            if label
            else f"{likelihood} takes an output of {shape}, the backbone gives {list(value.shape)}"
        )


def _shapes(likelihood: Likelihood, expected: torch.Size, target: Tensor) -> None:
    if target.shape != expected:
        raise ValueError(
            f"y must have shape {list(expected)} for {likelihood} with this output, got "
            f"{list(target.shape)}"
        )


def _per_example(scores: Tensor) -> Tensor:
    return scores.flatten(1).sum(-1) if scores.dim() > 1 else scores


def _precise(value: Tensor) -> Tensor:
    """Single precision at least: log-likelihoods need it."""
    return value if value.dtype == torch.float64 else value.float()


def _squeeze(value: Tensor) -> Tensor:
    return value.squeeze(-1) if value.dim() > 1 and value.shape[-1] == 1 else value
