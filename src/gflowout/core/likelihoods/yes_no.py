"""Yes-or-no labels: ``Binary`` for one, ``MultiLabel`` for several."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.label_noise import LabelNoise
from gflowout.core.likelihoods.base import (
    Likelihood,
    label_tensor,
    last_axis,
    per_example,
    precise,
    same_shape,
    squeeze,
)


class _YesNo(Likelihood):
    """Base of likelihoods whose outputs are log-odds; soft labels are allowed."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels of an example; the expected one for soft labels."""
        log_odds = self._log_odds(output)
        same_shape(self, log_odds.shape, target)
        log_odds = precise(log_odds)
        target = target.to(log_odds.dtype)
        return per_example(-F.binary_cross_entropy_with_logits(log_odds, target, reduction="none"))

    def encode(self, target: Tensor) -> Tensor:
        """Labels as -1 and 1, averaged over any further axes."""
        return (2 * target - 1).reshape(len(target), -1, self.label_size).mean(1)

    def samples(self, output: Tensor) -> Tensor:
        """Probability of a yes, per label."""
        return precise(self._log_odds(output)).sigmoid()

    def class_logits(self, output: Tensor) -> Tensor:
        """Logits of no and yes, half of the log-odds each way, per label."""
        half = precise(self._log_odds(output)) / 2
        return torch.stack((-half, half), -1)

    @abstractmethod
    def _log_odds(self, output: Tensor) -> Tensor:
        """Check the shape of an output and return it in the shape of the labels."""


class Binary(_YesNo):
    """Yes or no. Output [batch] or [batch, 1] of logits, label of the same shape in [0, 1].

    Args:
        label_noise: How labels are wrong, as for :class:`Categorical`; class 1 is a yes.

    Examples:
        >>> Binary().log_prob(torch.zeros(1, 1), torch.ones(1)).exp()
        tensor([0.5000])
    """

    label_size = 1
    arguments = ("label_noise",)

    def __init__(self, label_noise: Any = None) -> None:
        super().__init__()
        self.label_noise = None if label_noise is None else LabelNoise(label_noise, 2)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels; the expected one for soft labels."""
        if self.label_noise is None:
            return super().log_prob(output, target)
        no, yes = self.label_noise(F.log_softmax(self.class_logits(output), -1)).unbind(-1)
        same_shape(self, yes.shape, target)
        target = target.to(yes.dtype)
        return per_example(target * yes + (1 - target) * no)

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are in [0, 1]; soft labels are allowed."""
        squeezed = squeeze(label_tensor(y))
        if squeezed.dim() != 1:
            raise ValueError(f"y must have shape [{len(y)}] for {self}, got {list(y.shape)}")
        return _unit_interval(self, squeezed, values)

    def _log_odds(self, output: Tensor) -> Tensor:
        squeezed = squeeze(output)
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
        last_axis(self, label_tensor(y), self.labels, label=True)
        return _unit_interval(self, y, values)

    def _log_odds(self, output: Tensor) -> Tensor:
        last_axis(self, output, self.labels)
        return output


def _unit_interval(likelihood: Likelihood, y: Tensor, values: bool) -> Tensor:
    y = y.float()
    if values and y.numel():
        low, high = (float(bound) for bound in y.aminmax())
        if not (low >= 0 and high <= 1):
            raise ValueError(f"y must be in [0, 1] for {likelihood}, got {low:g} to {high:g}")
    return y
