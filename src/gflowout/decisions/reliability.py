"""Reliability diagrams: confidence against accuracy, as numbers and as a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.core.predictive import Predictive
from gflowout.decisions._shared import IGNORED, check_count, class_labels, mean_probabilities

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy of predictions in bins of confidence.

    Attributes:
        confidence: Mean of the largest probability, [bins]; NaN in an empty bin.
        accuracy: Share of right predictions, [bins]; NaN in an empty bin.
        count: Predictions, [bins].
        error: Expected calibration error: ``|accuracy - confidence|``, averaged over predictions.

    Examples:
        >>> from gflowout import Categorical
        >>> pred = Predictive(torch.tensor([[[0.75, 0.25]]]).log(), Categorical(2))
        >>> round(reliability(pred, torch.tensor([0])).error, 4)
        0.25
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    error: float


def reliability(pred: Predictive, y: Tensor, bins: int = 15) -> Reliability:
    """Compare confidence with accuracy, in equally wide bins of confidence.

    Labels with several parts (tags, several yes-or-no labels) count one by one.

    Args:
        pred: A prediction of classes.
        y: Labels.
        bins: Number of bins.

    Examples:
        >>> from gflowout import Categorical
        >>> sure = Predictive(torch.tensor([[4.0, 0.0]]).repeat(1, 4, 1), Categorical(2))
        >>> result = reliability(sure, torch.tensor([0, 0, 0, 1]), bins=10)
        >>> result.accuracy[-1], result.confidence[-1], result.count[-1]
        (tensor(0.7500, dtype=torch.float64), tensor(0.9820, dtype=torch.float64), tensor(4))
    """
    checks.integer("bins", bins, low=1)
    probabilities = mean_probabilities(pred)
    labels = class_labels(pred, y)
    counted = labels != IGNORED
    check_count(labels[counted])
    confidence, best = probabilities[counted].max(-1)
    right = (best == labels[counted]).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins)
    in_bin = [torch.bincount(place, weights=part, minlength=bins) for part in (confidence, right)]
    error = float((in_bin[0] - in_bin[1]).abs().sum() / count.sum())
    return Reliability(in_bin[0] / count, in_bin[1] / count, count, error)


def plot_reliability(pred: Predictive, y: Tensor, bins: int = 15, ax: Axes | None = None) -> Axes:
    """Draw accuracy against confidence; on the diagonal, predictions are calibrated.

    Args:
        pred: A prediction of classes.
        y: Labels.
        bins: Number of bins.
        ax: Where to draw; a new figure if not given.

    Examples:
        >>> from gflowout import Categorical
        >>> y = torch.randint(3, (50,))
        >>> ax = plot_reliability(Predictive(torch.randn(4, 50, 3), Categorical(3)), y)
        >>> ax.get_xlabel()
        'confidence'
    """
    pyplot = require("matplotlib.pyplot", extra="sklearn", purpose="plot_reliability")
    bars = reliability(pred, y, bins)
    if ax is None:
        _, ax = pyplot.subplots(figsize=(4, 4), layout="constrained")
    assert ax is not None
    full = (bars.count > 0).cpu()
    confidence, accuracy = bars.confidence.cpu()[full], bars.accuracy.cpu()[full]
    sizes = 20 + 180 * bars.count.cpu()[full] / int(bars.count.max())
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
    ax.plot(confidence.tolist(), accuracy.tolist(), color="#7fa7c9", linewidth=1.5)
    ax.scatter(confidence.tolist(), accuracy.tolist(), s=sizes.tolist(), color="#1f4e79", zorder=3)
    ax.set(
        xlabel="confidence", ylabel="accuracy", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02),
        aspect="equal",
    )  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"expected calibration error {bars.error:.3f}", fontsize=10)
    return ax
