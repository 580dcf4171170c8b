"""Base of the likelihoods, and the checks of outputs and labels that they share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from reprlib import repr as short
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gflowout.core.label_noise import LabelNoise


class Likelihood(nn.Module, ABC):
    """Base of the likelihoods, and of your own. Shapes: output [batch, ...], label [batch, ...].

    A likelihood of your own defines ``log_prob`` and ``samples``; everything else has a default.
    Define ``target`` to check labels, ``encode`` and ``label_size`` for labels of more than one
    number, ``variance`` or ``class_logits`` for the scores of :class:`Predictive`, and ``settle``
    if something is learned here. :func:`gflowout.testing.check_likelihood` checks all of it. To
    save and load models, enter the class in ``gflowout.core.likelihoods.LIKELIHOODS`` by its name,
    and list the constructor's arguments in ``arguments``.

    Attributes:
        label_size: Size of an encoded label.
        arguments: Names of the constructor's arguments, which are attributes, too.
        defaults: Values of arguments at which :meth:`config` leaves them out.
        comparable: Whether ``samples`` of numbers are expected labels, so that a label minus a
            sample is an error. Those of :class:`Quantile` and :class:`Cox` are something else.
        free: Names of arguments in which members of an ensemble may differ, because ``settle``
            writes what they stand for into the output.

    Examples:
        >>> class Exponential(Likelihood):  # waiting times; outputs are log-rates, [batch, 1]
        ...     def log_prob(self, output, target):
        ...         return output[:, 0] - target * output[:, 0].exp()
        ...     def samples(self, output):
        ...         return (-output[:, 0]).exp()
        >>> likelihood = Exponential()
        >>> target = likelihood.target(torch.tensor([2.0, 0.5]))  # labels are checked here
        >>> likelihood.log_prob(torch.zeros(2, 1), target)
        tensor([-2.0000, -0.5000])
    """

    label_size: int = 1
    arguments: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    comparable: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ("label_noise",)

    def __init__(self) -> None:
        super().__init__()
        self.label_noise: LabelNoise | None = None

    @abstractmethod
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-likelihood per example, [batch], summed over any further axes of the label.

        That of an example must not depend on other examples: methods score several draws of a
        batch at once. It is that of labels as they are, with the label noise if there is any.

        Args:
            output: Of the backbone, [batch, ...].
            target: Labels, as :meth:`target` returns them.
        """

    @abstractmethod
    def samples(self, output: Tensor) -> Tensor:
        """What users read off an output: probabilities, or means, [batch, ...]."""

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check labels and return them in the form that the other methods take.

        By default any labels that are finite.

        Args:
            y: Labels as the user has them.
            values: Also look at the values (range, NaN), not only at type and shape.
        """
        label_tensor(y)
        if values:
            finite(self, y)
        return y

    def encode(self, target: Tensor) -> Tensor:
        """Labels as input of a mask posterior, [batch, label_size].

        By default the labels themselves, averaged over any further axes.
        """
        return target.float().reshape(len(target), -1, self.label_size).mean(1)

    def class_logits(self, output: Tensor) -> Tensor:
        """Logits over mutually exclusive classes, [..., classes]."""
        raise TypeError(f"{type(self).__name__} has no classes")

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the label around ``samples``, in the same shape: the noise in the data."""
        raise TypeError(
            f"{type(self).__name__} gives no variance of labels; use epistemic_variance(), that of "
            "the samples between draws"
        )

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Quantile of the mixture of all draws.

        Args:
            outputs: [draws, batch, ...].
            probability: Between 0 and 1, both excluded.
        """
        raise TypeError(f"{type(self).__name__} gives no quantiles")

    @property
    def has_classes(self) -> bool:
        """Whether there are classes, and so entropies: :meth:`class_logits` is defined."""
        return type(self).class_logits is not Likelihood.class_logits

    @property
    def has_variance(self) -> bool:
        """Whether :meth:`variance` is defined, and finite."""
        return type(self).variance is not Likelihood.variance

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Return output and likelihood in a form that later training cannot change.

        What is learned here belongs into the output; by default it stays in a copy, so that
        predictions of several members of an ensemble cannot be pooled. Label noise is left out: a
        prediction is of the true class.
        """
        plain = self if self.label_noise is None else self._with(label_noise=None)
        if any(True for _ in plain.parameters()):
            plain = copy.deepcopy(plain).requires_grad_(False).eval()
        return output, plain

    def of_labels(self) -> Likelihood:
        """The likelihood with its label noise as it is now, which training does not change."""
        if self.label_noise is None:
            return self
        return self._with(label_noise=self.label_noise.fixed())

    def _with(self, **arguments: Any) -> Likelihood:
        """The same likelihood with other arguments."""
        return type(self)(**{**self.config(), **arguments}).train(self.training)

    def config(self) -> dict[str, Any]:
        """Arguments that build this likelihood again; those that are ``None`` are left out."""
        values = {name: getattr(self, name) for name in self.arguments}
        if self.label_noise is not None:
            values["label_noise"] = self.label_noise.given
        return {
            name: value
            for name, value in values.items()
            if value is not None and value != self.defaults.get(name)
        }

    def __repr__(self) -> str:
        """Show the arguments, in one line."""
        arguments = ", ".join(f"{name}={short(value)}" for name, value in self.config().items())
        return f"{type(self).__name__}({arguments})"


def label_tensor(y: Any) -> Tensor:
    """Return labels if they are a tensor of real numbers with a batch axis, or raise."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}")
    if y.is_complex():
        raise TypeError(f"y must hold real numbers, got {y.dtype}")
    if y.dim() == 0:
        raise ValueError("y must have a batch axis, got a scalar tensor")
    return y


def finite(likelihood: Likelihood, y: Tensor) -> None:
    """Raise if labels hold NaN or infinity."""
    if y.is_floating_point() and not bool(y.isfinite().all()):
        raise ValueError(f"y must hold finite numbers for {likelihood}, got NaN or infinity")


def last_axis(likelihood: Likelihood, value: Tensor, size: int, label: bool = False) -> None:
    """Check the last axis of an output, or of a label."""
    if value.dim() < 2 or value.shape[-1] != size:
        shape = f"shape [batch, ..., {size}]"
        raise ValueError(
            f"y must have {shape} for {likelihood}, got {list(value.shape)}"
            if label
            else f"{likelihood} takes an output of {shape}, the backbone gives {list(value.shape)}"
        )


def same_shape(likelihood: Likelihood, expected: torch.Size, target: Tensor) -> None:
    """Raise unless a label has the shape that goes with the output."""
    if target.shape != expected:
        raise ValueError(
            f"y must have shape {list(expected)} for {likelihood} with this output, got "
            f"{list(target.shape)}"
        )


def class_labels(
    likelihood: Likelihood, y: Tensor, classes: int, values: bool, ignored: int | None = None
) -> Tensor:
    """Return labels as long integers if they are in [0, classes), or ``ignored``, or raise."""
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"y must be an integer tensor for {likelihood}, got {y.dtype}")
    y = y.long()
    if values and y.numel():
        low, high = (int(bound) for bound in without_ignored(y, ignored).aminmax())
        if low < 0 or high >= classes:
            raise ValueError(
                f"y must be in [0, {classes - 1}] for {likelihood}, got labels from {low} to {high}"
            )
    return y


def without_ignored(y: Tensor, ignored: int | None) -> Tensor:
    """Labels with class 0 in place of those to be ignored."""
    return y if ignored is None else torch.where(y == ignored, torch.zeros_like(y), y)


def by_draw(function: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """Apply what takes an output, [batch, ...], to those of all draws, [draws, batch, ...]."""
    values = function(outputs.flatten(0, 1))
    return values.reshape(*outputs.shape[:2], *values.shape[1:])


def per_example(scores: Tensor) -> Tensor:
    """Sum over all axes but the first."""
    return scores.flatten(1).sum(-1) if scores.dim() > 1 else scores


def precise(value: Tensor) -> Tensor:
    """Single precision at least: log-likelihoods need it."""
    return value if value.dtype == torch.float64 else value.float()


def squeeze(value: Tensor) -> Tensor:
    """Drop a last axis of size 1, unless it is the only one."""
    return value.squeeze(-1) if value.dim() > 1 and value.shape[-1] == 1 else value
