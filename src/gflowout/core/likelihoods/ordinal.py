"""Classes with an order, such as grades: ``Ordinal``."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.likelihoods.base import (
    Likelihood,
    class_labels,
    label_tensor,
    last_axis,
    per_example,
    precise,
    same_shape,
)
from gflowout.core.likelihoods.classes import Categorical


class Ordinal(Likelihood):
    r"""Classes with an order: proportional odds. Output [batch, ..., 1] or [batch], label of int.

    The output is a score f, and learned thresholds :math:`\theta_0 < \theta_1 < \dots` divide it
    into the classes 0 to C - 1 (McCullagh 1980):

    .. math:: p(y \le k) = \operatorname{sigmoid}(\theta_k - f)

    A prediction is one of classes: ``pred.mean`` has their probabilities, [batch, ..., classes].
    Logits of the classes are log-probabilities, which say nothing about evidence:
    ``dempster_shafer()`` is the same for all inputs.

    Args:
        classes: Number of classes C.

    Examples:
        >>> likelihood = Ordinal(4)
        >>> likelihood.samples(torch.tensor([0.0, 1.0])).detach()  # classes start equally probable
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.1092, 0.1597, 0.2557, 0.4754]])
        >>> likelihood.thresholds.detach()
        tensor([-1.0986,  0.0000,  1.0986])
    """

    arguments = ("classes",)

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = checks.integer("classes", classes, low=2)
        # In Python: arithmetic on the meta device, where files are checked, is slow to import.
        start = [math.log(below / (classes - below)) for below in range(1, classes)]
        gaps = [math.log(high - low) for low, high in pairwise(start)]
        self.first = nn.Parameter(torch.tensor(start[:1]))
        self.log_gaps = nn.Parameter(torch.tensor(gaps))
        self.label_size = classes - 1

    @property
    def thresholds(self) -> Tensor:
        """Thresholds between neighbouring classes, [classes - 1], increasing."""
        return torch.cat([self.first, self.first + self.log_gaps.exp().cumsum(0)])

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are integers in [0, classes)."""
        return class_labels(self, label_tensor(y), self.classes, values)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of the labels."""
        scores = self.class_logits(output)
        same_shape(self, scores.shape[:-1], target)
        return per_example(scores.gather(-1, target.unsqueeze(-1)).squeeze(-1))

    def encode(self, target: Tensor) -> Tensor:
        """1 for every threshold that a label is above, else -1, averaged over any further axes."""
        above = target.unsqueeze(-1) > torch.arange(self.classes - 1, device=target.device)
        return super().encode(2 * above.float() - 1)

    def samples(self, output: Tensor) -> Tensor:
        """Class probabilities, [batch, ..., classes]."""
        return self.class_logits(output).exp()

    def class_logits(self, output: Tensor) -> Tensor:
        """Log-probabilities of the classes, [batch, ..., classes]."""
        score = precise(output.unsqueeze(-1) if output.dim() == 1 else output)
        last_axis(self, score, 1)
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), without cancellation.
        below = self.thresholds.to(score.dtype) - score
        gaps = torch.log(-torch.expm1(-self.log_gaps.to(score.dtype).exp()))
        middle = F.logsigmoid(below[..., 1:]) + F.logsigmoid(-below[..., :-1]) + gaps
        ends = F.logsigmoid(below[..., :1]), F.logsigmoid(-below[..., -1:])
        return torch.cat([ends[0], middle, ends[1]], -1)

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Write the learned thresholds into the output: logits of classes."""
        return self.class_logits(output), Categorical(self.classes).eval()
