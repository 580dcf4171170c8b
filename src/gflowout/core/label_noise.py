"""Label noise: labels of which some are wrong, as a step between true classes and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import checks

Fixed = float | tuple[tuple[float, ...], ...]
"""A rate, or a matrix as rows."""

LEARNED = "learned"
START = 0.1
"""Rate of wrong labels from which learning starts."""

TOLERANCE = 1e-5
"""By which a row of a transition matrix may miss a sum of 1."""


class LabelNoise(nn.Module):
    r"""The distribution of labels, given that of the true class.

    With a rate :math:`\pi`, a label is the true class, or, with probability :math:`\pi`, any of the
    C classes; with a matrix T, the label of class i is j with probability :math:`T_{ij}`:

    .. math:: \tilde p(j \mid x) = (1 - \pi) \, p(j \mid x) + \pi / C
              \qquad \text{or} \qquad \tilde p(j \mid x) = \sum_i p(i \mid x) \, T_{ij}.

    Args:
        given: A rate, a matrix, or ``"learned"`` for a rate that is a parameter.
        classes: Number of classes C.

    Attributes:
        given: The argument, a matrix as a tuple of rows.

    Examples:
        >>> LabelNoise(0.3, 2)(torch.tensor([0.9, 0.1]).log()).exp()
        tensor([0.7800, 0.2200])
        >>> LabelNoise("learned", 2).rate
        tensor(0.1000, grad_fn=<SigmoidBackward0>)
    """

    given: str | Fixed
    log_odds: Tensor | None  # of a wrong label
    log_matrix: Tensor | None  # [true classes, labels]

    def __init__(self, given: Any, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.given = _checked(given, classes)
        # Not in the state: the configuration has what is not learned.
        self.register_buffer("log_matrix", None, persistent=False)
        if self.given == LEARNED:
            self.log_odds = nn.Parameter(torch.tensor(math.log(START / (1 - START))))
        elif isinstance(self.given, tuple):
            self.register_buffer("log_matrix", torch.tensor(self.given).log(), persistent=False)
            self.log_odds = None
        else:
            odds = torch.tensor(self.given).logit()
            self.register_buffer("log_odds", odds, persistent=False)

    @property
    def rate(self) -> Tensor:
        """Probability that a label is drawn from all classes, whatever the true one."""
        if self.log_odds is None:
            raise TypeError("label_noise is a matrix, which has no single rate")
        return self.log_odds.sigmoid()

    def fixed(self) -> Fixed:
        """The rate that was learned so far, or what was given."""
        if isinstance(self.given, str):
            return self.rate.item()
        return self.given

    def forward(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities of labels from those of the true class, [..., classes] each."""
        if self.log_matrix is not None:
            return (log_probs.unsqueeze(-1) + self.log_matrix.to(log_probs.dtype)).logsumexp(-2)
        assert self.log_odds is not None
        log_odds = self.log_odds.to(log_probs.dtype)
        wrong = F.logsigmoid(log_odds) - math.log(self.classes)
        return torch.logaddexp(log_probs + F.logsigmoid(-log_odds), wrong)


def _checked(given: Any, classes: int) -> str | Fixed:
    """Return a name or a rate as it is, and a matrix as a tuple of rows, or raise."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if given == LEARNED:
        return LEARNED
    if isinstance(given, str) or not isinstance(given, Sequence):
        if isinstance(given, bool) or not isinstance(given, int | float):
            error = ValueError if isinstance(given, str) else TypeError
            raise error(
                f"label_noise must be {LEARNED!r}, a rate in [0, 1), a matrix of {classes} rows or "
                f"None, got {given!r}"
            )
        return checks.number("label_noise", given, low=0, high=1, open_high=True)
    square = all(isinstance(row, Sequence) and len(row) == classes for row in given)
    if len(given) != classes or not square:
        raise ValueError(
            f"label_noise must be a matrix of {classes} rows of {classes} numbers, one row for "
            f"each true class, got {len(given)} rows"
        )
    matrix = tuple(
        tuple(checks.number("label_noise", value, low=0, high=1) for value in row) for row in given
    )
    for true, row in enumerate(matrix):
        if abs(sum(row) - 1) > TOLERANCE:
            raise ValueError(
                "rows of label_noise must sum to 1, the probabilities of the labels of one true "
                f"class, got {sum(row):g} in row {true}"
            )
    for label, column in enumerate(zip(*matrix, strict=True)):
        if not any(column):
            raise ValueError(
                f"label_noise must give every label to some class, got zeros in column {label}: an "
                "example with this label would be impossible; put a small number there"
            )
    return matrix
