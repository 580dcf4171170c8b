"""Two arms on the same seeds: is one better, worse, or is no difference seen?

Figures are paired by seed, which has the same data, order and starting weights for both where
that is possible. Knows records by their fields only, and nothing of what the metrics mean.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.studies.framework.content import Better, Text
from gflowout.studies.framework.summary import numbers

Verdict = Literal["better", "worse", "no difference seen", "not comparable"]
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Comparison:
    """Ours against another, paired by seed.

    Attributes:
        difference: Mean of ours minus the other; NaN without common seeds.
        low: Lower end of the 95 % t interval of that mean; NaN if there is none.
        high: Its upper end.
        seeds: Common seeds.
        better: Whether high or low figures are good.
        verdict: ``"better"`` or ``"worse"`` if the interval leaves out 0, ``"no difference seen"``
            if it does not, ``"not comparable"`` with fewer than two common seeds or with figures
            that are not finite.
        p: Of the paired t test, two-sided; NaN if there is none.
        adjusted: The same after Holm's correction for all comparisons made together.
        together: How many those are.
        why: Of ``"not comparable"``, the reason.
    """

    difference: float
    low: float
    high: float
    seeds: int
    better: Better
    verdict: Verdict
    p: float = math.nan
    adjusted: float = math.nan
    together: int = 1
    why: str = ""

    @property
    def firm(self) -> Verdict:
        """The verdict that also stands after Holm's correction."""
        if self.verdict in ("better", "worse") and not self.adjusted <= 1 - LEVEL:
            return "no difference seen"
        return self.verdict


def paired(ours: Sequence[float], other: Sequence[float], better: Better) -> Comparison:
    """Compare figures of the same seeds, in the same order.

    With d the differences, their mean is known to within t(n-1) * sd(d) / sqrt(n). Equal
    differences give an interval of no width: figures that are counted, such as the accuracy on
    few points, do so by chance, and then two seeds prove little.

    Args:
        ours: Figures of one arm.
        other: Figures of the other.
        better: Whether high or low figures are good.

    Examples:
        >>> found = paired([0.91, 0.93, 0.92], [0.88, 0.91, 0.89], "high")
        >>> found.verdict, round(found.low, 4), round(found.high, 4)
        ('better', 0.0123, 0.041)
        >>> paired([0.91], [0.88], "high").verdict
        'not comparable'
    """
    checks.choice("better", better, ("high", "low"))
    if len(ours) != len(other):
        raise ValueError(
            f"ours and other must be of the same seeds, got {len(ours)} and {len(other)} figures"
        )
    gaps = [float(a) - float(b) for a, b in zip(ours, other, strict=True)]
    count = len(gaps)
    finite = all(map(math.isfinite, gaps))
    mean = math.fsum(gaps) / count if gaps and finite else math.nan
    if count < 2 or not finite:
        common = "no common seed" if count == 0 else "1 common seed only"
        why = common if count < 2 else "some figures are not finite"
        return Comparison(mean, math.nan, math.nan, count, better, "not comparable", why=why)
    error = statistics.stdev(gaps) / math.sqrt(count)
    student = require("scipy.stats", extra="studies", purpose="a comparison").t(count - 1)
    reach = float(student.ppf((1 + LEVEL) / 2)) * error
    p = 0.0 if mean else 1.0
    if error:
        p = float(2 * student.sf(abs(mean) / error))
    low, high = mean - reach, mean + reach
    verdict: Verdict = "no difference seen"
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) == (better == "high") else "worse"
    return Comparison(mean, low, high, count, better, verdict, p, p)


def holm(found: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """The same comparisons with p-values corrected for their number, by Holm's steps.

    The chance that any of them calls a difference where there is none is then at most 5 %.
    Those that are not comparable do not count.

    Examples:
        >>> far = paired([5, 6, 7.5], [1, 2, 3], "high")
        >>> near = paired([1, 2, 3], [0, 1.5, 2.5], "low")
        >>> made = holm({"far": far, "near": near})
        >>> made["far"].adjusted == 2 * far.p, made["near"].adjusted == near.p
        (True, True)
    """
    counted = sorted(
        (name for name, each in found.items() if not math.isnan(each.p)),
        key=lambda name: found[name].p,
    )
    adjusted, before = dict[str, float](), 0.0
    for place, name in enumerate(counted):
        before = max(before, min(1.0, (len(counted) - place) * found[name].p))
        adjusted[name] = before
    return {
        name: dataclasses.replace(
            each, adjusted=adjusted.get(name, math.nan), together=max(1, len(counted))
        )
        for name, each in found.items()
    }


def by_seed(
    records: Iterable[Mapping[str, Any]], data: str, arm: str, metric: str
) -> dict[int, float]:
    """Values of a metric by seed, in the order of seeds.

    Args:
        records: Of runs that are done. If a seed has several, the one that was started last counts.
        data: ``Run.data``.
        arm: ``Run.method``.
        metric: Its name; dotted if it is nested.

    Examples:
        >>> records = [{"data": "mnist", "method": "mc", "seed": s, "started": "",
        ...             "metrics": {"clean/accuracy": 0.9 + s / 100}} for s in (1, 0)]
        >>> by_seed(records, "mnist", "mc", "clean/accuracy")
        {0: 0.9, 1: 0.91}
    """
    found: dict[int, tuple[str, float]] = {}
    for record in records:
        if record["data"] != data or record["method"] != arm:
            continue
        value = record["metrics"].get(metric)
        if not isinstance(value, int | float):
            value = numbers(record["metrics"]).get(metric)
        if value is None:
            continue
        started, seed = str(record.get("started", "")), int(record["seed"])
        if seed not in found or started >= found[seed][0]:
            found[seed] = (started, float(value))
    return {seed: found[seed][1] for seed in sorted(found)}


def by_arm(records: Iterable[Mapping[str, Any]], data: str, metric: str) -> dict[str, list[float]]:
    """Values of a metric over seeds, by arm, in the order in which arms are seen."""
    records = list(records)
    arms = dict.fromkeys(record["method"] for record in records if record["data"] == data)
    found = {arm: list(by_seed(records, data, arm, metric).values()) for arm in arms}
    return {arm: values for arm, values in found.items() if values}


def compare_all(
    records: Iterable[Mapping[str, Any]],
    data: str,
    metric: str,
    better: Better,
    ours: str = "gflowout",
) -> dict[str, Comparison]:
    """Our arm against every other one that has the metric, with Holm's correction.

    Args:
        records: Of runs that are done.
        data: ``Run.data``.
        metric: Its name.
        better: Whether high or low figures are good.
        ours: Label of our arm.

    Returns:
        Comparisons by label of the other arm, in the order in which arms are seen; none if our arm
        has no such figure.
    """
    records = list(records)
    mine = by_seed(records, data, ours, metric)
    if not mine:
        return {}
    found = {}
    for arm in dict.fromkeys(record["method"] for record in records if record["data"] == data):
        other = by_seed(records, data, arm, metric)
        if arm != ours and other:
            common = [seed for seed in mine if seed in other]
            found[arm] = paired(
                [mine[seed] for seed in common], [other[seed] for seed in common], better
            )
    return holm(found)


def sentence(
    comparison: Comparison,
    ours: str,
    other: str,
    metric: str,
    *,
    percent: bool = False,
    digits: int | None = None,
) -> str:
    """What follows from a comparison, in plain words.

    Args:
        comparison: From :func:`paired` or :func:`compare_all`.
        ours: Title of our arm.
        other: Title of the other.
        metric: What was measured, as in "accuracy on rotated MNIST".
        percent: Show differences of fractions in points of a percentage.
        digits: After the point. Default: 2 for points, 3 else.

    Examples:
        >>> found = paired([0.91, 0.93, 0.92], [0.88, 0.91, 0.89], "high")
        >>> sentence(found, "GFlowOut", "MC dropout", "accuracy", percent=True)
        'GFlowOut is better than MC dropout in accuracy: by +2.67 points (95 % interval +1.23 to
        +4.10, 3 paired seeds).'
    """
    digits = (2 if percent else 3) if digits is None else digits
    scale, unit = (100.0, " points") if percent else (1.0, "")
    if comparison.verdict == "not comparable":
        return f"{ours} and {other} cannot be compared in {metric}: {comparison.why}."
    mean, low, high = (
        f"{scale * value:+.{digits}f}"
        for value in (comparison.difference, comparison.low, comparison.high)
    )
    figures = f"{mean}{unit} (95 % interval {low} to {high}, {comparison.seeds} paired seeds)"
    if comparison.verdict == "no difference seen":
        return f"No difference seen between {ours} and {other} in {metric}: {figures}."
    text = f"{ours} is {comparison.verdict} than {other} in {metric}: by {figures}"
    if comparison.firm != comparison.verdict:
        text += (
            f"; among {comparison.together} comparisons that may be chance "
            f"(Holm's p = {comparison.adjusted:.2g})"
        )
    return f"{text}."


def pair_by_pair(sentences: Sequence[str]) -> list[Text]:
    """All comparisons of a section, one sentence each, to be folded away; nothing without any.

    Examples:
        >>> pair_by_pair(["No difference seen."])[0].title
        'GFlowOut against each method, pair by pair: 1 comparison'
    """
    count = f"{len(sentences)} comparison{'' if len(sentences) == 1 else 's'}"
    title = f"GFlowOut against each method, pair by pair: {count}"
    return [Text(sentences, title)] if sentences else []
