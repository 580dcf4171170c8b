"""Numbers of records: means over seeds, and paired comparisons with Holm correction.

Comparisons are paired by seed: a seed has the same data, order and starting weights for both arms
where that is possible.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.studies.framework.content import Better

Record = Mapping[str, Any]
Metric = str | Sequence[str]
"""Name of a metric; several names stand for the mean of these metrics."""
Verdict = Literal["better", "worse", "no difference seen", "not comparable"]
Key = TypeVar("Key", bound=Hashable)
"""By which comparisons are named."""
LEVEL = 0.95
"""Of the intervals."""


# Numbers of records


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers among metrics, by dotted name.

    Examples:
        >>> numbers({"nll": 0.5, "by": {"snow": 1}, "name": "x", "good": True})
        {'nll': 0.5, 'by.snow': 1.0}
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            values |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values[f"{prefix}{name}"] = float(value)
    return values


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under the name of what was scored.

    Examples:
        >>> prefixed("test", {"nll": 0.5})
        {'test/nll': 0.5}
    """
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def mean_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard error of the mean; NaN where there are too few values.

    Examples:
        >>> mean_error([1.0, 3.0])
        (2.0, 1.0)
    """
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def by_seed(records: Iterable[Record], data: str, arm: str, metric: Metric) -> dict[int, float]:
    """Values of a metric by seed, in the order of seeds, of the runs of an arm on some data.

    If a seed has several records, the one that was started last counts. The name of a nested metric
    is dotted. Of several names the mean is taken, for seeds that have all of them.

    Examples:
        >>> records = [{"data": "mnist", "method": "mc", "seed": s, "started": "",
        ...             "metrics": {"clean/accuracy": 0.9 + s / 100}} for s in (1, 0)]
        >>> by_seed(records, "mnist", "mc", "clean/accuracy")
        {0: 0.9, 1: 0.91}
    """
    names = (metric,) if isinstance(metric, str) else metric
    own = [record for record in records if (record["data"], record["method"]) == (data, arm)]
    values: dict[int, float] = {}
    for record in sorted(own, key=lambda record: str(record.get("started", ""))):
        parts = [_value(record["metrics"], name) for name in names]
        if None not in parts:
            values[int(record["seed"])] = statistics.fmean(parts)
    return dict(sorted(values.items()))


def _value(metrics: Mapping[str, Any], name: str) -> Any:
    value = metrics.get(name)
    return value if isinstance(value, int | float) else numbers(metrics).get(name)


def by_arm(records: Iterable[Record], data: str, metric: Metric) -> dict[str, list[float]]:
    """Values of a metric over seeds, by arm, in the order in which arms are seen."""
    records = list(records)
    arms = dict.fromkeys(record["method"] for record in records if record["data"] == data)
    values = {arm: list(by_seed(records, data, arm, metric).values()) for arm in arms}
    return {arm: own for arm, own in values.items() if own}


# Paired comparisons


@dataclass(frozen=True)
class Comparison:
    """Ours against another, paired by seed.

    The verdict is "better" or "worse" if the interval leaves out 0, "no difference seen" if it does
    not, "not comparable" with fewer than two common seeds or with values that are not finite.
    """

    difference: float  # mean of ours minus the other; NaN without common seeds
    low: float  # ends of the 95 % t interval of that mean; NaN if there is none
    high: float
    seeds: int  # common ones
    better: Better  # whether high or low values are good
    verdict: Verdict
    p: float = math.nan  # of the paired t test, two-sided; NaN if there is none
    adjusted: float = math.nan  # the same after Holm correction for all comparisons made together
    together: int = 1  # how many those are
    why: str = ""  # the reason of "not comparable"

    @property
    def firm(self) -> Verdict:
        """The verdict that remains after Holm correction."""
        if self.verdict in ("better", "worse") and not self.adjusted <= 1 - LEVEL:
            return "no difference seen"
        return self.verdict

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval, turned so that above 0 ours is better."""
        return (self.low, self.high) if self.better == "high" else (-self.high, -self.low)

    def shown(self, scale: float, digits: int) -> tuple[str, ...]:
        """Difference and ends of the interval as text, times the scale."""
        values = (self.difference, self.low, self.high)
        return tuple(f"{scale * value:+.{digits}f}" for value in values)


def paired(ours: Sequence[float], other: Sequence[float], better: Better) -> Comparison:
    """Compare values of the same seeds, in the same order, by a paired t test.

    Equal differences give an interval of no width: values that are counted, such as the accuracy on
    few points, do so by chance, and then two seeds prove little.

    Examples:
        >>> comparison = paired([0.91, 0.93, 0.92], [0.88, 0.91, 0.89], "high")
        >>> comparison.verdict, round(comparison.low, 4), round(comparison.high, 4)
        ('better', 0.0123, 0.041)
        >>> paired([0.91], [0.88], "high").verdict
        'not comparable'
    """
    checks.choice("better", better, ("high", "low"))
    if len(ours) != len(other):
        raise ValueError(
            f"ours and other must be of the same seeds, got {len(ours)} and {len(other)} values"
        )
    gaps = [float(a) - float(b) for a, b in zip(ours, other, strict=True)]
    count, finite = len(gaps), all(map(math.isfinite, gaps))
    mean = statistics.fmean(gaps) if gaps and finite else math.nan
    if count < 2 or not finite:
        common = "no common seed" if count == 0 else "1 common seed only"
        why = common if count < 2 else "some values are not finite"
        return Comparison(mean, math.nan, math.nan, count, better, "not comparable", why=why)
    low, high, p = mean, mean, 0.0 if mean else 1.0
    if max(gaps) > min(gaps):
        stats = require("scipy.stats", extra="studies", purpose="a comparison")
        with warnings.catch_warnings():  # differences that agree to rounding
            warnings.simplefilter("ignore", RuntimeWarning)
            test = stats.ttest_rel(ours, other)
            low, high = map(float, test.confidence_interval(LEVEL))
        p = float(test.pvalue)
    return Comparison(mean, low, high, count, better, _verdict(low, high, better), p, p)


def crossed(
    ours: Mapping[int, Sequence[float]], other: Mapping[int, Sequence[float]], better: Better
) -> Comparison:
    """Compare values by seed and block of test data, on the seeds that both have.

    A value is the mean over one of some equal blocks of test data, the same for all seeds. Seeds
    and blocks are both random samples: the variance of the mean difference is that of a two-way
    layout, MS(seeds) / n + max(0, MS(blocks) - MS(rest)) / n with n values, and the degrees of
    freedom are Satterthwaite's. So the interval includes the error of the test sample, which that
    of :func:`paired` leaves out where all seeds have the same test data.

    Examples:
        >>> ours = {0: [0.91, 0.93, 0.90], 1: [0.92, 0.95, 0.91], 2: [0.93, 0.94, 0.90]}
        >>> other = {seed: [0.88, 0.91, 0.88] for seed in ours}
        >>> comparison = crossed(ours, other, "high")
        >>> comparison.verdict, round(comparison.low, 3), round(comparison.high, 3)
        ('better', 0.015, 0.047)
    """
    seeds = [seed for seed in ours if seed in other]
    gaps = [[a - b for a, b in zip(ours[s], other[s], strict=True)] for s in seeds]
    rows = [statistics.fmean(row) for row in gaps]
    values = [value for row in gaps for value in row]
    if len(seeds) < 2 or len(gaps[0]) < 2 or not all(map(math.isfinite, values)):
        return paired([*rows], [0.0] * len(rows), better)
    columns, blocks = [statistics.fmean(column) for column in zip(*gaps, strict=True)], len(gaps[0])
    mean, count = statistics.fmean(rows), len(values)
    of_seeds = blocks * statistics.variance(rows)
    of_blocks = len(seeds) * statistics.variance(columns)
    whole = sum((value - mean) ** 2 for value in values)
    rest = whole - of_seeds * (len(seeds) - 1) - of_blocks * (blocks - 1)
    rest = max(rest, 0.0) / ((len(seeds) - 1) * (blocks - 1))
    parts = of_seeds / count, max(of_blocks - rest, 0.0) / count
    low, high, p = mean, mean, 0.0 if mean else 1.0
    if sum(parts) > 0:
        stats = require("scipy.stats", extra="studies", purpose="a comparison")
        squares = parts[0] ** 2 / (len(seeds) - 1) + parts[1] ** 2 / (blocks - 1)
        error, law = math.sqrt(sum(parts)), stats.t(sum(parts) ** 2 / squares)
        half = error * float(law.ppf((1 + LEVEL) / 2))
        low, high, p = mean - half, mean + half, 2 * float(law.sf(abs(mean) / error))
    return Comparison(mean, low, high, len(seeds), better, _verdict(low, high, better), p, p)


def _verdict(low: float, high: float, better: Better) -> Verdict:
    if low > 0 or high < 0:
        return "better" if (low > 0) == (better == "high") else "worse"
    return "no difference seen"


def pair(ours: Mapping[int, float], other: Mapping[int, float], better: Better) -> Comparison:
    """Compare values by seed on the seeds that both have."""
    common = [seed for seed in ours if seed in other]
    return paired([ours[seed] for seed in common], [other[seed] for seed in common], better)


def holm(comparisons: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """The same comparisons with p-values corrected for their number by Holm's method.

    The probability that any of them reports a difference where there is none is then at most 5 %.
    Those that are not comparable do not count.

    Examples:
        >>> far = paired([5, 6, 7.5], [1, 2, 3], "high")
        >>> near = paired([1, 2, 3], [0, 1.5, 2.5], "low")
        >>> corrected = holm({"far": far, "near": near})
        >>> corrected["far"].adjusted == 2 * far.p, corrected["near"].adjusted == near.p
        (True, True)
    """
    p = {name: test.p for name, test in comparisons.items() if not math.isnan(test.p)}
    adjusted, before = dict[Key, float](), 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        before = max(before, min(1.0, (len(p) - place) * p[name]))
        adjusted[name] = before
    together = max(1, len(p))
    return {
        name: dataclasses.replace(test, adjusted=adjusted.get(name, math.nan), together=together)
        for name, test in comparisons.items()
    }


def compare_all(
    records: Iterable[Record],
    data: str,
    metric: Metric,
    better: Better,
    ours: str = "gflowout",
    others: Iterable[str] | None = None,
) -> dict[str, Comparison]:
    """Our arm against every other one that has the metric, with Holm correction, by label.

    The others are, by default, all arms in the order in which they are seen. There is no comparison
    if our arm does not have the metric.
    """
    records = [record for record in records if record["data"] == data]
    mine = by_seed(records, data, ours, metric)
    labels = dict.fromkeys(record["method"] for record in records) if others is None else others
    values = {arm: by_seed(records, data, arm, metric) for arm in labels if mine and arm != ours}
    return holm({arm: pair(mine, other, better) for arm, other in values.items() if other})


def sentence(
    comparison: Comparison,
    ours: str,
    other: str,
    metric: str,
    *,
    percent: bool = False,
    digits: int | None = None,
) -> str:
    """What follows from a comparison of two arms, given by title, in plain words.

    With ``percent``, differences of fractions are shown in points of a percentage, with 2 digits
    after the point by default, else 3.

    Examples:
        >>> comparison = paired([0.91, 0.93, 0.92], [0.88, 0.91, 0.89], "high")
        >>> sentence(comparison, "GFlowOut", "MC dropout", "accuracy", percent=True)
        'GFlowOut is better than MC dropout in accuracy: by +2.67 points (95 % interval +1.23 to
        +4.10, 3 paired seeds).'
    """
    verdict = comparison.verdict
    if verdict == "not comparable":
        return f"{ours} and {other} cannot be compared in {metric}: {comparison.why}."
    digits = (2 if percent else 3) if digits is None else digits
    scale, unit = (100.0, " points") if percent else (1.0, "")
    mean, low, high = comparison.shown(scale, digits)
    interval = f"{mean}{unit} (95 % interval {low} to {high}, {comparison.seeds} paired seeds)"
    if verdict == "no difference seen":
        return f"No difference seen between {ours} and {other} in {metric}: {interval}."
    if comparison.firm != verdict:
        interval += (
            f"; not significant after Holm correction for {comparison.together} comparisons "
            f"(p = {comparison.adjusted:.2g})"
        )
    return f"{ours} is {verdict} than {other} in {metric}: by {interval}."


def seeds_of(comparisons: Iterable[Comparison]) -> str:
    """How many paired seeds comparisons have: one number, or from the least to the most."""
    counts = sorted({comparison.seeds for comparison in comparisons})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
