"""Scores of one run, and what can be said of them over several seeds.

All scores come from the average of the draws' probabilities. Whatever is not a digit is the
positive class of AUROC and AUPR, and uncertainty is its score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtr
from torch import Tensor

from gflowout import Predictive
from gflowout.app import metrics
from gflowout.app.metrics import BINS, accuracy, brier

__all__ = ["BINS", "METRICS", "Metric", "accuracy", "brier", "findings", "inside", "outside"]


@dataclass(frozen=True)
class Metric:
    """A column of the table.

    Attributes:
        key: Name in a run's scores.
        data: What it is measured on.
        name: Short name.
        higher: Whether more is better.
        percent: Whether to show it times 100.
    """

    key: str
    data: str
    name: str
    higher: bool
    percent: bool = False

    def show(self, value: float) -> str:
        """Format a value, or a standard error, as the table shows it."""
        if math.isnan(value):
            return "-"
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"


METRICS = (
    Metric("accuracy", "test", "acc. %", higher=True, percent=True),
    Metric("nll", "test", "NLL", higher=False),
    Metric("ece", "test", "ECE", higher=False),
    Metric("brier", "test", "Brier", higher=False),
    Metric("rotated_accuracy", "rotated", "acc. %", higher=True, percent=True),
    Metric("rotated_nll", "rotated", "NLL", higher=False),
    Metric("auroc", "photos", "AUROC", higher=True),
    Metric("aupr", "photos", "AUPR", higher=True),
    Metric("auroc_mi", "photos", "AUROC MI", higher=True),
)


def inside(pred: Predictive, labels: Tensor) -> dict[str, float]:
    """Scores of a prediction whose labels are known."""
    return metrics.classification(pred.mean, labels, pred.log_prob(labels))


def outside(known: Predictive, unknown: Predictive) -> dict[str, float]:
    """How well uncertainty tells unknown inputs from known ones.

    The mutual information's AUROC is NaN for a method whose draws are all the same.
    """
    entropy = metrics.detection(known.entropy(), unknown.entropy())
    disagreement = metrics.detection(known.mutual_information(), unknown.mutual_information())
    draws_differ = bool((known.samples != known.samples[:1]).any())
    return {
        "auroc": entropy["auroc"],
        "aupr": entropy["aupr"],
        "auroc_mi": disagreement["auroc"] if draws_differ else math.nan,
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; the error of a single value is NaN.

    Examples:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    tensor = torch.tensor(values, dtype=torch.float64)
    error = tensor.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return tensor.mean().item(), error


Table = Mapping[str, Mapping[str, Sequence[float]]]
"""``table[method][metric key]``: one value per seed, seeds in the same order for all."""


@dataclass(frozen=True)
class Difference:
    """A method against the baseline in one metric, seed by seed.

    Attributes:
        method: Which method.
        metric: Which metric.
        mean: Mean over seeds of method minus baseline.
        error: Standard error of that mean.
    """

    method: str
    metric: Metric
    mean: float
    error: float

    @property
    def clear(self) -> bool:
        """Whether it is more than two standard errors from 0."""
        return abs(self.mean) > 2 * self.error

    @property
    def better(self) -> bool:
        """Whether the method is better than the baseline."""
        return (self.mean > 0) == self.metric.higher

    def __str__(self) -> str:
        """One plain phrase."""
        what = f"{self.metric.data} {self.metric.name}"
        verdict = "better" if self.better else "worse"
        sign = "+" if self.mean > 0 else "-"
        size, error = self.metric.show(abs(self.mean)), self.metric.show(self.error)
        if not float(size):
            return f"{what} {verdict} (by too little to show)"
        return f"{what} {verdict} ({sign}{size} ± {error})"


def differences(table: Table, baseline: str) -> list[Difference]:
    """Compare every method with the baseline on the same seeds; needs two seeds."""
    found = []
    for method, scores in table.items():
        for metric in METRICS:
            pairs = zip(scores[metric.key], table[baseline][metric.key], strict=True)
            mean, error = mean_and_error([own - other for own, other in pairs])
            if method != baseline and not math.isnan(error):
                found.append(Difference(method, metric, mean, error))
    return found


def findings(table: Table, baseline: str, seeds: int) -> list[str]:
    """Say which differences from the baseline are outside two standard errors.

    Args:
        table: Scores by method and metric.
        baseline: The method to compare with.
        seeds: Number of seeds.

    Returns:
        One plain sentence each, the last one on how much to trust them.
    """
    if seeds == 1:
        return [
            f"One seed has no standard error: nothing can be said of differences to {baseline}."
        ]
    compared = differences(table, baseline)
    sentences = []
    for method in table:
        if method == baseline:
            continue
        clear = [str(one) for one in compared if one.method == method and one.clear]
        sentences.append(
            f"{method} against {baseline}, outside two standard errors: "
            + ("; ".join(clear) or "nothing")
            + "."
        )
    chance = 2 * float(stdtr(seeds - 1, -2))
    sentences.append(
        f"Compared seed by seed. Of {len(compared)} comparisons with {seeds} seeds, about "
        f"{chance * len(compared):.0f} would fall outside two standard errors by chance alone."
    )
    return sentences
