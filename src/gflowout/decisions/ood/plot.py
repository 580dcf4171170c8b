"""Scores of known and unknown inputs as histograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1f4e79", "#c0504d", "#7f7f7f", "#e0a030", "#4f8f5b")


def plot_ood(
    scores: Mapping[str, Tensor],
    threshold: float | None = None,
    bins: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw how scores of several sets of inputs are distributed; needs matplotlib.

    Args:
        scores: Scores, [inputs], by name of the set, the known ones first. Titles of the others
            have the area under the ROC curve, against the first.
        threshold: From ``detector.threshold``: a line, and the share of each set above it.
        bins: Number of bars, equally wide for all sets.
        ax: Where to draw; a new figure if not given.

    Examples:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> from gflowout.ood import plot_ood
        >>> ax = plot_ood({"MNIST": torch.randn(99), "notMNIST": 3 + torch.randn(99)}, threshold=2)
        >>> ax.get_xlabel()
        'score, higher is stranger'
    """
    if not isinstance(scores, Mapping) or not scores:
        raise TypeError(f"scores must be a mapping from names to tensors, got {scores!r}")
    checks.integer("bins", bins, low=1)
    values = {name: torch.as_tensor(own).detach().double().cpu() for name, own in scores.items()}
    for name, own in values.items():
        if own.dim() != 1 or not len(own) or bool(own.isnan().any()):
            raise ValueError(
                f"scores of {name!r} must be a tensor of shape [inputs] without NaN, got shape "
                f"{list(own.shape)}"
            )
    pyplot = require("matplotlib.pyplot", extra="sklearn", purpose="plots of scores")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    assert ax is not None
    finite = torch.cat([own[own.isfinite()] for own in values.values()])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    edges = torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=torch.float64)
    known = next(iter(values.values()))
    for number, (name, own) in enumerate(values.items()):
        label = name if number == 0 else f"{name}: AUROC {_auroc(known, own):.3f}"
        if threshold is not None:
            label += f", {float((own > threshold).double().mean()):.1%} alarms"
        shares = torch.histogram(own.clamp(low, high), edges).hist / len(own)
        colour = _COLOURS[number % len(_COLOURS)]
        ax.stairs(shares.tolist(), edges.tolist(), fill=True, alpha=0.45, color=colour, label=label)
    if threshold is not None:
        ax.axvline(float(threshold), color="#333333", linewidth=1, linestyle="--")
    ax.set(xlabel="score, higher is stranger", ylabel="share of inputs")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1))  # above the bars
    return ax


def _auroc(known: Tensor, unknown: Tensor) -> float:
    """Probability that an unknown input scores higher than a known one, ties by half."""
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown)
    up_to = torch.searchsorted(ordered, unknown, right=True)
    return float((below + up_to).double().mean()) / (2 * len(known))
