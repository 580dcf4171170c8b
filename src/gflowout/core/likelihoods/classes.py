"""One of several classes per label: ``Categorical``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.label_noise import LabelNoise
from gflowout.core.likelihoods.base import (
    Likelihood,
    class_labels,
    label_tensor,
    last_axis,
    per_example,
    precise,
    same_shape,
    without_ignored,
)


class Categorical(Likelihood):
    r"""One of several classes. Output [batch, ..., classes] of logits, label [batch, ...] of int.

    Labels may also be soft: probabilities [batch, ..., classes], whose log-likelihood is the
    expected one. Smoothing, weights and label noise are of training passes only: predictions, and
    ``Predictive.log_prob``, are plain :math:`\log p(y \mid x)`. A training pass has, per label,

    .. math:: \sum_c t_c \, w_c \log p(c \mid x),
              \qquad t_c = (1 - \varepsilon) \, y_c + \varepsilon / C

    as ``nn.CrossEntropyLoss``, summed over the labels of an example and averaged over examples
    (never divided by the sum of the weights).

    Args:
        classes: Number of classes C.
        ignore_index: A label that counts for nothing, for padded positions of sequences and pixels
            without a class. An example without any other label has a log-likelihood of 0, and means
            over examples, such as ``Losses.nll``, still count it.
        label_noise: How labels are wrong. A number is the share of labels that are drawn from all
            classes at random, instead of being the true class; ``"learned"`` learns this share;
            rows of a matrix, [classes, classes], are the probabilities of all labels of one true
            class. Training takes it into account, and predictions are of the true class.
        positions: How many labels every example has, if always the same number, such as ten tags: a
            mask posterior then sees each of them. ``None``: it sees how frequent the classes are
            among the labels of an example.
        label_smoothing: Share :math:`\varepsilon` of a label that goes to all classes alike.
        weight: Weights w of the classes. Training then fits probabilities proportional to
            :math:`w_y \, p(y \mid x)`: those of a population in which class c is :math:`w_c` times
            as frequent as in the training data. Predictions are of that population; divide
            ``pred.mean`` by the weights, and by its sum over classes, for one like the data.
        axis: Axis of the classes in the output: the last, or 1 as convolutional networks and
            ``nn.CrossEntropyLoss`` have it, [batch, classes, height, width]. Predictions and soft
            labels always have classes last.
        buckets: How many numbers a mask posterior sees of a label, fewer than classes: a fixed hash
            gives each class one of them. For vocabularies, whose encoding would need networks
            larger than the adapters that are masked. ``None``: one number for each class.

    Attributes:
        label_noise: ``None``, or a module with the learned ``rate``.

    Examples:
        >>> likelihood = Categorical(3)
        >>> likelihood.log_prob(torch.zeros(1, 3), torch.tensor([2])).exp()
        tensor([0.3333])
        >>> noisy = Categorical(3, label_noise=0.3)
        >>> noisy.log_prob(torch.tensor([[99.0, 0.0, 0.0]]), torch.tensor([2])).exp()
        tensor([0.1000])
        >>> pixels = Categorical(3, axis=1, ignore_index=255)  # one log-likelihood per picture
        >>> pixels.log_prob(torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)).shape
        torch.Size([2])
    """

    arguments = (
        "classes",
        "ignore_index",
        "label_noise",
        "positions",
        "label_smoothing",
        "weight",
        "axis",
        "buckets",
    )
    defaults = {"label_smoothing": 0.0, "axis": -1}
    free = ("label_noise", "label_smoothing", "axis")
    class_weight: Tensor | None

    def __init__(
        self,
        classes: int,
        ignore_index: int | None = None,
        label_noise: Any = None,
        positions: int | None = None,
        label_smoothing: float = 0.0,
        weight: Sequence[float] | Tensor | None = None,
        axis: int = -1,
        buckets: int | None = None,
    ) -> None:
        super().__init__()
        self.classes = checks.integer("classes", classes, low=2)
        if ignore_index is not None and type(ignore_index) is not int:
            raise TypeError(f"ignore_index must be an integer or None, got {ignore_index!r}")
        if axis not in (-1, 1) or isinstance(axis, bool):
            raise ValueError(f"axis must be -1 or 1, got {axis!r}")
        self.ignore_index = ignore_index
        self.label_noise = None if label_noise is None else LabelNoise(label_noise, classes)
        self.positions, self.buckets = positions, buckets
        self.label_size = classes
        if buckets is not None:
            self.label_size = checks.integer("buckets", buckets, low=1)
        if positions is not None:
            self.label_size *= checks.integer("positions", positions, low=1)
        self.label_smoothing = checks.number(
            "label_smoothing", label_smoothing, low=0, high=1, open_high=True
        )
        self.weight = None if weight is None else _weights(weight, classes)
        self.axis = int(axis)
        # Not in the state: the configuration has it.
        factors = None if self.weight is None else torch.tensor(self.weight)
        self.register_buffer("class_weight", factors, persistent=False)

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are integers in [0, classes), or probabilities of the classes."""
        label_tensor(y)
        soft = y.is_floating_point()
        if soft and (y.dim() < 2 or y.shape[-1] != self.classes):
            raise TypeError(
                f"y must be an integer tensor for {self}, or probabilities of shape [batch, ..., "
                f"{self.classes}], got {y.dtype} of shape {list(y.shape)}"
            )
        count = y[:1].numel() // (self.classes if soft else 1)
        if self.positions is not None and count not in (0, self.positions):
            raise ValueError(
                f"y must have {self.positions} labels per example for {self}, got shape "
                f"{tuple(y.shape)}"
            )
        if soft:
            return self._distributions(y, values)
        return class_labels(self, y, self.classes, values, self.ignore_index)

    def _distributions(self, y: Tensor, values: bool) -> Tensor:
        """Check that soft labels are probabilities."""
        y = precise(y)
        if values and y.numel():
            low, sums = float(y.amin()), y.sum(-1)
            worst = sums.flatten()[(sums - 1).abs().argmax()].item()
            if not (low >= 0 and abs(worst - 1) <= _TOLERANCE):
                raise ValueError(
                    f"y must hold probabilities that sum to 1 over the last axis for {self}, got "
                    f"values from {low:g} and a sum of {worst:g}; labels that are no probabilities "
                    "must be integers"
                )
        return y

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels; the expected one for soft labels."""
        logits, soft = self._logits(output), target.is_floating_point()
        same_shape(self, logits.shape if soft else logits.shape[:-1], target)
        scores = F.log_softmax(precise(logits), -1)
        if self.label_noise is not None:
            scores = self.label_noise(scores)
        if self.class_weight is not None:
            scores = scores * self.class_weight.to(scores.dtype)
        if soft:  # a class that a label excludes may have a probability of 0
            picked = (target * scores.masked_fill(target == 0, 0)).sum(-1)
        else:
            picked = scores.gather(
                -1, without_ignored(target, self.ignore_index).unsqueeze(-1)
            ).squeeze(-1)
        if self.label_smoothing:
            picked = torch.lerp(picked, scores.mean(-1), self.label_smoothing)
        if self.ignore_index is not None and not soft:
            picked = picked * (target != self.ignore_index)
        return per_example(picked)

    def encode(self, target: Tensor) -> Tensor:
        """Shares of the classes among the labels of an example, those to be ignored left out.

        With ``positions``, those of all positions side by side; with ``buckets``, classes of one
        bucket are added up.
        """
        rows, width = len(target), self.buckets or self.classes
        if target.is_floating_point():
            shares = target.reshape(rows, -1, self.classes)
            if self.buckets is not None:
                bucket = self._bucket(torch.arange(self.classes, device=target.device))
                shares = shares.new_zeros(*shares.shape[:2], width).index_add(2, bucket, shares)
            return shares.mean(1) if self.positions is None else shares.flatten(1)
        labels = target.reshape(rows, -1)
        ignored = self.ignore_index
        counted = torch.ones_like(labels) if ignored is None else labels != ignored
        counted, bucket = counted.float(), self._bucket(without_ignored(labels, ignored))
        if self.positions is not None:
            return (F.one_hot(bucket, width) * counted.unsqueeze(-1)).flatten(1)
        # Not by one-hot labels: of the tokens of a batch and a vocabulary they take gigabytes.
        sums = counted.new_zeros(rows, width).scatter_add(1, bucket, counted)
        # A row without any label says nothing: zeros, however many positions it has.
        return sums / counted.sum(1, keepdim=True).clamp(min=1)

    def _bucket(self, labels: Tensor) -> Tensor:
        """Which number of an encoded label stands for a class: multiplicative hashing."""
        if self.buckets is None:
            return labels
        return (labels * _MULTIPLIER % 2**32 * self.buckets) >> 32

    def samples(self, output: Tensor) -> Tensor:
        """Class probabilities, [batch, ..., classes]."""
        output = precise(self._logits(output))
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
        """The output itself, classes last."""
        return precise(output if self.axis == -1 else output.movedim(self.axis, -1))

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Leave out what is of training only, and move the classes to the last axis."""
        trained = self.label_noise, self.weight, self.label_smoothing or None
        if self.axis == -1 and all(part is None for part in trained):
            return output, self
        return self._logits(output), self._with(label_noise=None, **_PLAIN)

    def of_labels(self) -> Likelihood:
        """The likelihood of a settled output with its label noise, which training cannot change."""
        if self.label_noise is None:
            return self
        return self._with(label_noise=self.label_noise.fixed(), **_PLAIN)

    def _logits(self, output: Tensor) -> Tensor:
        """Check the shape of an output and return it with the classes last."""
        if self.axis == -1:
            last_axis(self, output, self.classes)
            return output
        if output.dim() < 2 or output.shape[1] != self.classes:
            raise ValueError(
                f"{self} takes an output of shape [batch, {self.classes}, ...], the backbone gives "
                f"{list(output.shape)}"
            )
        return output.movedim(1, -1)


_PLAIN = {"weight": None, "label_smoothing": 0.0, "axis": -1}
"""Arguments of a likelihood of predictions."""

_MULTIPLIER = 2654435761
"""2**32 divided by the golden ratio: neighbouring classes get buckets far from each other."""

_TOLERANCE = 1e-3
"""By which probabilities of a soft label, perhaps in half precision, may miss a sum of 1."""

_AT_A_TIME = 2**17
"""Elements that :meth:`Categorical.samples` takes at a time."""

_LANES = 64
"""Parts are multiples of this, so that the kernel's vectors see what they see in the whole."""


def _softmax(output: Tensor) -> Tensor:
    """Probabilities over the last axis, which becomes the first."""
    # Over the first axis: for few classes, PyTorch's kernel for the last takes 8 times as long.
    return output.movedim(-1, 0).contiguous().softmax(0)


def _weights(weight: Any, classes: int) -> tuple[float, ...]:
    weight = weight.tolist() if hasattr(weight, "tolist") else weight
    if not isinstance(weight, Sequence) or isinstance(weight, str) or len(weight) != classes:
        raise ValueError(f"weight must hold {classes} numbers, one per class, got {weight!r}")
    return tuple(checks.number("weight", value, low=0, open_low=True) for value in weight)
