"""Scores of predictions whose labels are known, and of uncertainty as a detector.

Whatever is unlike the training data is the positive class of a detector, and uncertainty is its
score. Needs the extra ``train``.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from gflowout.core.optional import require

BINS = 15
"""Of the calibration error, equally wide."""


def accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Fraction of labels that got the largest probability.

    Args:
        probabilities: [batch, classes].
        labels: [batch].

    Examples:
        >>> accuracy(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    return (probabilities.argmax(-1) == labels).float().mean()


def brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance between probabilities and the one-hot label, summed over classes.

    Args:
        probabilities: [batch, classes].
        labels: [batch].

    Examples:
        >>> brier(torch.tensor([[0.8, 0.2]]), torch.tensor([0]))
        tensor(0.0800)
    """
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities - truth).square().sum(-1).mean()


def calibration_error(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Expected calibration error: ``|accuracy - confidence|``, averaged over bins of confidence.

    Args:
        probabilities: [batch, classes].
        labels: [batch].

    Examples:
        >>> calibration_error(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        tensor(0.2500)
    """
    error: Tensor = _torchmetrics().multiclass_calibration_error(
        probabilities, labels, probabilities.shape[-1], n_bins=BINS
    )
    return error


def classification(probabilities: Tensor, labels: Tensor, log_prob: Tensor) -> dict[str, float]:
    """Scores of class probabilities.

    Args:
        probabilities: [batch, classes].
        labels: int64 [batch].
        log_prob: Log of the average likelihood of the labels, [batch].

    Examples:
        >>> probabilities = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
        >>> labels = torch.tensor([0, 1])
        >>> log_prob = probabilities.log().gather(1, labels[:, None])[:, 0]
        >>> {name: round(score, 2) for name, score in
        ...     classification(probabilities, labels, log_prob).items()}
        {'accuracy': 0.5, 'nll': 0.57, 'brier': 0.4, 'ece': 0.4}
    """
    return {
        "accuracy": accuracy(probabilities, labels).item(),
        "nll": -log_prob.mean().item(),
        "brier": brier(probabilities, labels).item(),
        "ece": calibration_error(probabilities, labels).item(),
    }


def regression(
    mean: Tensor, values: Tensor, log_prob: Tensor, interval: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Scores of predicted numbers.

    Args:
        mean: [batch].
        values: The true ones, [batch].
        log_prob: Log-density of the values, [batch].
        interval: Lower and upper end of the predicted 90 % interval, [batch] each.

    Examples:
        >>> mean, truth = torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])
        >>> scores = regression(mean, truth, mean, (mean - 3.5, mean + 3.5))
        >>> scores["mae"], scores["coverage90"]
        (3.5, 0.5)
    """
    error = mean - values
    low, high = interval
    return {
        "rmse": error.square().mean().sqrt().item(),
        "mae": error.abs().mean().item(),
        "nll": -log_prob.mean().item(),
        "coverage90": ((values >= low) & (values <= high)).float().mean().item(),
    }


def detection(known: Tensor, unknown: Tensor) -> dict[str, float]:
    """How well a score detects unknown inputs, which should have more of it, among known ones.

    ``auroc``; ``aupr``, the average precision for unknown inputs; ``fpr95``, the share of known
    inputs that are taken for unknown when 95 % of the unknown ones are found. NaN if the score
    never varies.

    Args:
        known: Scores of known inputs, [inputs], any real numbers.
        unknown: Scores of unknown ones.

    Examples:
        >>> detection(torch.tensor([0.1, 0.2]), torch.tensor([3.0, 4.0]))
        {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    scores = torch.cat([known, unknown])
    if not bool((scores != scores[0]).any()):
        return dict.fromkeys(("auroc", "aupr", "fpr95"), math.nan)
    # torchmetrics squashes scores outside [0, 1], which can make different ones equal.
    places = torch.unique(scores, return_inverse=True)[1].double()
    ranks = places / places.max()
    target = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))]).long()
    functions = _torchmetrics()
    specificity, _ = functions.binary_specificity_at_sensitivity(ranks, target, 0.95)
    return {
        "auroc": functions.binary_auroc(ranks, target).item(),
        "aupr": functions.binary_average_precision(ranks, target).item(),
        "fpr95": 1 - specificity.item(),
    }


def _torchmetrics() -> ModuleType:
    return require(
        "torchmetrics.functional.classification", extra="train", purpose="gflowout.metrics"
    )
