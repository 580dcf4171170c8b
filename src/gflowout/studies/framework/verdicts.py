"""What becomes of a claim, by rules that are stated; and sentences over many comparisons.

Used by the studies that hold a margin of the paper against paired figures of their own. Knows
records by their fields only, and nothing of what the metrics mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gflowout.studies.framework.compare import Comparison, by_seed, holm, paired
from gflowout.studies.framework.content import Better, Cell, Column, Row, Table, Verdict
from gflowout.studies.framework.summary import mean_error

NONE = "-"
"""In a table, where there is no figure."""
LEAST_SEEDS = 3
"""With fewer no claim is judged."""
SLACK = 0.01
"""A difference in a share or an AUROC that is taken for none: a point."""
MANY = 3
"""Up to so many arms are named in a sentence, if all or all the others are alike."""

SUPERIOR = (
    "A claim that one method beats another is reproduced if it is better in every metric, paired "
    "by seed, after Holm's correction; not reproduced if in a metric in which it is not, the 95 % "
    "interval of the difference lies below the paper's margin; else the intervals are too wide to "
    "tell, and it is not testable here."
)
MATCHES = (
    "A claim that one method is at least as good is reproduced if the 95 % interval of the "
    "difference, paired by seed, is above -{slack}; not reproduced if it is below 0; else it is "
    "not testable here."
)


@dataclass(frozen=True)
class Margin:
    """A difference that the paper reports.

    Attributes:
        metric: Name of ours.
        title: In sentences.
        margin: The paper's figure of the one method minus that of the other.
        better: Whether high or low figures are good.
    """

    metric: str
    title: str
    margin: float
    better: Better = "high"


def cell(values: Sequence[float]) -> Cell:
    """Mean and standard error over runs, as a table has it.

    Examples:
        >>> cell([1.0, 3.0])
        Cell(mean=2.0, error=1.0, runs=2, text='', interval=None)
        >>> cell([])
        Cell(mean=None, error=None, runs=0, text='-', interval=None)
    """
    if not values:
        return Cell(text=NONE)
    mean, error = mean_error(list(values))
    if math.isnan(mean):
        return Cell(text=NONE)
    return Cell(mean, None if math.isnan(error) else error, len(values))


def differences(
    records: Sequence[Mapping[str, Any]],
    data: str,
    ours: str,
    other: str,
    margins: Sequence[Margin],
) -> dict[str, Comparison]:
    """Comparisons by metric of two arms, corrected for their number.

    Args:
        records: Of runs that are done.
        data: ``Run.data``.
        ours: Label of one arm.
        other: Label of the other.
        margins: What is compared.
    """
    found = {}
    for each in margins:
        mine = by_seed(records, data, ours, each.metric)
        theirs = by_seed(records, data, other, each.metric)
        common = [seed for seed in mine if seed in theirs]
        found[each.metric] = paired(
            [mine[seed] for seed in common], [theirs[seed] for seed in common], each.better
        )
    return holm(found)


def superior(
    found: Mapping[str, Comparison], margins: Sequence[Margin], *, scale: float = 1.0
) -> tuple[Verdict, str]:
    """Whether a claim that ours is better by the paper's margins holds; see :data:`SUPERIOR`.

    Args:
        found: From :func:`differences`.
        margins: Of the paper.
        scale: Of figures in the sentence: 100 shows points of a percentage.

    Returns:
        The verdict, and why.

    Examples:
        >>> margins = [Margin("f1", "macro F1", 0.05)]
        >>> far = paired([0.60, 0.61, 0.62], [0.50, 0.52, 0.51], "high")
        >>> superior({"f1": far}, margins)[0]
        'reproduced'
        >>> level = paired([0.50, 0.51, 0.50], [0.51, 0.50, 0.50], "high")
        >>> superior({"f1": level}, margins)[0]
        'not reproduced'
        >>> noisy = paired([0.50, 0.70, 0.40], [0.51, 0.50, 0.50], "high")
        >>> superior({"f1": noisy}, margins)[0]
        'not testable here'
    """
    barred = _barred(found)
    if barred:
        return "not testable here", barred
    lines = [_line(found[each.metric], each, scale) for each in margins]
    why = "; ".join(lines) + f" ({_seeds(found)} paired seeds)."
    held = every(
        True if found[each.metric].firm == "better" else _left_out(found[each.metric], each)
        for each in margins
    )
    if held:
        return "reproduced", f"Better in all of them. {why}"
    if held is False:
        return "not reproduced", why
    return "not testable here", f"The intervals are too wide to tell. {why}"


def matches(comparison: Comparison, each: Margin, slack: float, *, scale: float = 1.0) -> tuple[
    Verdict, str
]:  # fmt: skip
    """Whether a claim that ours is at least as good holds; see :data:`MATCHES`.

    Args:
        comparison: Of ours with another.
        each: The paper's difference.
        slack: What is still as good.
        scale: As in :func:`superior`.

    Examples:
        >>> close = paired([0.50, 0.51, 0.50], [0.50, 0.50, 0.50], "high")
        >>> matches(close, Margin("all", "accuracy", 0.0), 0.02)[0]
        'reproduced'
    """
    barred = _barred({each.metric: comparison})
    if barred:
        return "not testable here", barred
    why = f"{_line(comparison, each, scale)} ({comparison.seeds} paired seeds)."
    held = _as_good(*_ends(comparison), slack)
    if held is None:
        return "not testable here", f"The interval is too wide to tell. {why}"
    return "reproduced" if held else "not reproduced", why


def every(outcomes: Iterable[bool | None]) -> bool | None:
    """Whether all of some tests come out well; ``None`` if none fails but some cannot tell.

    Examples:
        >>> every([True, True]), every([True, None]), every([None, False])
        (True, None, False)
    """
    found = list(outcomes)
    if False in found:
        return False
    return None if None in found or not found else True


def beats(
    found: Mapping[str, Comparison],
    others: Iterable[str],
    margins: Mapping[str, float] | None = None,
) -> bool | None:
    """Whether ours is better than every one of some arms.

    Args:
        found: Comparisons by arm.
        others: Labels of the arms.
        margins: By how much, as the paper has it; :data:`SLACK` where it says nothing.

    Returns:
        True if every interval is above 0; else False if one that is not is below its margin;
        ``None`` if some arm cannot be compared, or the intervals are too wide to tell.

    Examples:
        >>> wide = paired([0.3, 0.5, 0.4], [0.4, 0.3, 0.4], "high")
        >>> beats({"mc": wide}, ["mc"]) is None
        True
    """
    wanted = {} if margins is None else margins
    return every(
        _judged(found.get(label), partial(_ahead, margin=wanted.get(label, SLACK)))
        for label in others
    )


def holds_up(found: Mapping[str, Comparison], others: Iterable[str]) -> bool | None:
    """Whether ours is as good as every one of some arms.

    Returns:
        True if every interval is above minus :data:`SLACK`; else False if one that is not is below
        0; ``None`` if some arm cannot be compared, or the intervals are too wide to tell.
    """
    return every(_judged(found.get(label), _as_good) for label in others)


def level(found: Mapping[str, Comparison], other: str) -> bool | None:
    """Whether ours and another arm are within :data:`SLACK`; ``None`` if that cannot be told."""

    def within(low: float, high: float) -> bool | None:
        if low > SLACK or high < -SLACK:
            return False
        return True if low > -SLACK and high < SLACK else None

    return _judged(found.get(other), within)


def overview(
    found: Mapping[str, Comparison], titles: Mapping[str, str], ours: str, metric: str
) -> str:
    """One sentence over all comparisons of an arm.

    Args:
        found: By label of the other arm, from ``compare.compare_all``.
        titles: Of the labels.
        ours: Title of our arm.
        metric: What was measured.

    Examples:
        >>> found = holm({"mc": paired([5, 6, 7.5], [1, 2, 3], "high")})
        >>> overview(found, {"mc": "MC dropout"}, "GFlowOut", "accuracy")
        'Accuracy: GFlowOut is better than MC dropout (3 paired seeds, 95 %, Holm).'
    """
    names: dict[str, list[str]] = {}
    for label, each in found.items():
        names.setdefault(each.firm, []).append(titles.get(label, label))
    if len(names) == 1 and len(found) > MANY:
        names = {verdict: ["any other method"] for verdict in names}
    elif len(names.get("no difference seen", [])) > MANY and "not comparable" not in names:
        names["no difference seen"] = ["the other methods"]
    parts = [
        f"{words} {_listed(names[verdict])}"
        for verdict, words in (
            ("better", "better than"),
            ("worse", "worse than"),
            ("no difference seen", "not told apart from"),
        )
        if verdict in names
    ]
    what = f"{metric[0].upper()}{metric[1:]}: {ours}"
    if not parts:
        return f"{what} cannot be compared yet, too few seeds are done."
    return f"{what} is {', '.join(parts)} ({_seeds(found)} paired seeds, 95 %, Holm)."


def choices(
    records: Sequence[Mapping[str, Any]], data: str, title: str, arms: Mapping[str, str]
) -> Table:
    """What every arm has chosen on validation data, and for how many of its seeds.

    Args:
        records: Of runs that are done; their option ``tuned`` is what was chosen.
        data: ``Run.data``.
        title: Of the data.
        arms: Titles of the arms, in order.
    """
    rows = []
    for arm, named in arms.items():
        own = [record for record in records if (record["data"], record["method"]) == (data, arm)]
        counts = Counter(
            ", ".join(
                f"{key.rpartition('.')[2]} {value:g}"
                for key, value in sorted(record.get("options", {}).get("tuned", {}).items())
            )
            for record in own
        )
        if not own:
            continue
        words = [
            text if len(counts) == 1 else f"{text} ({count} of {len(own)})"
            for text, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ]
        rows.append(Row(named, [Cell(text="; ".join(words) or NONE)]))
    return Table(f"{title}: chosen on validation data", "Method", [Column("Options")], rows)


def _barred(found: Mapping[str, Comparison]) -> str:
    """Why nothing can be judged, if so."""
    if not found:
        return "No figures."
    for each in found.values():
        if each.verdict == "not comparable":
            return f"Cannot be compared: {each.why}."
    least = min(each.seeds for each in found.values())
    if least < LEAST_SEEDS:
        return f"Only {least} paired seeds, {LEAST_SEEDS} are the least."
    return ""


def _left_out(comparison: Comparison, each: Margin) -> bool | None:
    """False if the interval says that ours is behind what the paper reports; else it is open."""
    margin = each.margin if each.better == "high" else -each.margin
    return False if _ends(comparison)[1] < margin else None


def _judged(
    comparison: Comparison | None, rule: Callable[[float, float], bool | None]
) -> bool | None:
    """What a rule says of an interval; ``None`` if there is none over enough seeds."""
    if comparison is None or _barred({"": comparison}):
        return None
    return rule(*_ends(comparison))


def _ends(comparison: Comparison) -> tuple[float, float]:
    """The interval of the difference, turned so that above 0 ours is better."""
    if comparison.better == "high":
        return comparison.low, comparison.high
    return -comparison.high, -comparison.low


def _ahead(low: float, high: float, margin: float) -> bool | None:
    return True if low > 0 else False if high < margin else None


def _as_good(low: float, high: float, slack: float = SLACK) -> bool | None:
    return True if low > -slack else False if high < 0 else None


def _line(comparison: Comparison, each: Margin, scale: float) -> str:
    digits = 3 if scale == 1 else 2
    low, mean, high, margin = (
        f"{scale * value:+.{digits}f}"
        for value in (comparison.low, comparison.difference, comparison.high, each.margin)
    )
    return f"{each.title} {mean} ({low} to {high}; paper {margin})"


def _seeds(found: Mapping[str, Comparison]) -> str:
    counts = sorted({each.seeds for each in found.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
