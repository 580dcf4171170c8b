"""Builders of report sections: tables of arms, curves, and findings on one arm against the others.

All of them read records and leave out what is not there yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gflowout.core.text import counted
from gflowout.studies.framework import statistics
from gflowout.studies.framework.arms import ARMS, CONTROLS
from gflowout.studies.framework.content import (
    PAPER,
    Better,
    Block,
    Cell,
    Column,
    Row,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.keep_rates import KEEP
from gflowout.studies.framework.statistics import Metric, Record, by_seed, mean_error

Key = TypeVar("Key")
NONE = "-"
"""In a table, where there is no number."""
MANY = 3
"""Up to so many arms are named in a sentence, if all or all the others are alike."""
ELBO_CAPTION = (
    "Nats: mean log-likelihood of the label given masks from the posterior, minus KL divergence "
    "from the prior; methods without a posterior draw from their prior. -NLL is its upper bound."
)
SAME_RATE = 0.02
"""Keep rates that differ by no more are taken for the same."""
TITLES = {label: arm.title for label, arm in ARMS.items()}
NAMES = {label: ARMS[arm.variant_of or label].title for label, arm in ARMS.items()}
"""What the paper calls the methods of the arms."""


def present(records: Iterable[Record], order: Iterable[str]) -> list[str]:
    """Names of data among the records, in the order given."""
    names = {record["data"] for record in records}
    return [name for name in order if name in names]


def seeds_done(records: Iterable[Record], data: str) -> str:
    """How many seeds the arms have, in words, such as "1 seed"."""
    seeds: dict[str, set[int]] = {}
    for record in records:
        if record["data"] == data:
            seeds.setdefault(record["method"], set()).add(record["seed"])
    counts = sorted({len(own) for own in seeds.values()})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds (not all runs are done)"
    return counted(counts[0], "seed") if counts else "no seeds yet"


# Tables and curves


def cell(values: Collection[float]) -> Cell:
    """Mean and standard error over runs.

    Examples:
        >>> cell([1.0, 3.0])
        Cell(mean=2.0, error=1.0, runs=2, text='', interval=None)
        >>> cell([])
        Cell(mean=None, error=None, runs=0, text='-', interval=None)
    """
    mean, error = mean_error([*values])
    if math.isnan(mean):
        return Cell(text=NONE)
    return Cell(mean, None if math.isnan(error) else error, len(values))


def rows(
    titles: Mapping[str, str], columns: Sequence[Key], of: Callable[[str, Key], Cell]
) -> list[Row]:
    """A row for each arm that has a number in some column."""
    all_rows = [Row(title, [of(arm, key) for key in columns]) for arm, title in titles.items()]
    return [row for row in all_rows if any(cell.runs for cell in row.cells)]


def arm_rows(
    records: Sequence[Record],
    data: str,
    metrics: Sequence[Metric],
    titles: Mapping[str, str] = TITLES,
) -> list[Row]:
    """A row for each arm with mean and error of some metrics."""
    own = [record for record in records if record["data"] == data]
    return rows(titles, metrics, lambda arm, name: cell(by_seed(own, data, arm, name).values()))


def paper_rows(
    numbers: Mapping[str, Sequence[float | Cell | None]], titles: Mapping[str, str] = NAMES
) -> list[Row]:
    """The paper's rows; ``None`` where it has no number."""
    return [
        Row(titles[arm], [v if isinstance(v, Cell) else Cell(v) for v in values], PAPER)
        for arm, values in numbers.items()
    ]


def share(title: str, better: Better = "high", digits: int = 2) -> Column:
    """A column of percentages."""
    return Column(title, better, digits, percent=True)


def line(title: str, points: Iterable[tuple[float, Collection[float]]]) -> Series:
    """A curve of means over seeds, with errors if every point has one; skips empty points."""
    there = [(float(x), *mean_error([*values])) for x, values in points if values]
    x, y, errors = ([point[part] for point in there] for part in range(3))
    return Series(title, x, y, None if any(map(math.isnan, errors)) else errors)


def lines(
    records: Sequence[Record], data: str, metrics: Mapping[int, Metric] | Mapping[float, Metric]
) -> list[Series]:
    """A curve for each arm that has any of the metrics, which are given by their x."""
    own = [record for record in records if record["data"] == data]
    curves = [
        line(title, [(x, by_seed(own, data, arm, name).values()) for x, name in metrics.items()])
        for arm, title in TITLES.items()
    ]
    return [curve for curve in curves if curve.x]


def choices(
    records: Sequence[Record],
    columns: Mapping[str, str],
    title: str,
    titles: Mapping[str, str] = TITLES,
) -> Table:
    """What every arm has chosen on validation data, and for how many of its seeds.

    The option ``tuned`` of a record is what was chosen. Columns are titles by name of the data,
    ``titles`` those of the arms, in order.
    """

    def chosen(arm: str, data: str) -> Cell:
        own = [
            ", ".join(
                f"{key.rpartition('.')[2]} {_shown(value)}"
                for key, value in sorted(record["options"].get("tuned", {}).items())
            )
            for record in records
            if (record["data"], record["method"]) == (data, arm)
        ]
        counts = sorted(Counter(own).items(), key=lambda pair: (-pair[1], pair[0]))
        words = [
            (text or "defaults") + ("" if len(counts) == 1 else f" ({count} of {len(own)})")
            for text, count in counts
        ]
        return Cell(text="; ".join(words) or NONE)

    rows = [Row(titles[arm], [chosen(arm, data) for data in columns]) for arm in titles]
    rows = [row for row in rows if any(cell.text != NONE for cell in row.cells)]
    return Table(title, "Method", [Column(head) for head in columns.values()], rows)


def _shown(value: Any) -> str:
    """An option as text, such as widths: ``32-32``."""
    if isinstance(value, int | float):
        return f"{value:g}"
    return value if isinstance(value, str) else "-".join(map(str, value))


# One arm against the others


class Compared(NamedTuple):
    """A metric in which our arm is compared with the others, and what sentences call it."""

    data: str
    metric: Metric
    what: str
    better: Better = "high"
    percent: bool = False


def against_others(
    records: Sequence[Record],
    metrics: Iterable[Compared],
    titles: Mapping[str, str] = TITLES,
    ours: str = "gflowout",
) -> tuple[list[str], list[str]]:
    """A finding for each metric, and a sentence for each comparison."""
    findings, details = [], []
    for data, metric, what, better, percent in metrics:
        comparisons = statistics.compare_all(records, data, metric, better, ours, titles)
        findings += overview(comparisons, what, titles, titles[ours])
        details += [
            statistics.sentence(comparison, titles[ours], titles[label], what, percent=percent)
            + _other_rate(records, data, ours, label, comparison)
            for label, comparison in comparisons.items()
        ]
    return findings, details


def _other_rate(
    records: Sequence[Record], data: str, ours: str, other: str, comparison: statistics.Comparison
) -> str:
    """A warning where a difference may come from how many units the two keep; else nothing."""
    if comparison.verdict not in ("better", "worse"):
        return ""
    first, second = (cell(by_seed(records, data, arm, KEEP).values()).mean for arm in (ours, other))
    if first is None or second is None or abs(first - second) <= SAME_RATE:
        return ""
    return f" They keep {first:.2f} and {second:.2f} of their units: see equal keep rates."


def _elbo(records: Sequence[Record], data: str, arm: str) -> list[float]:
    """ELBO over seeds, of clean test data."""
    values = (by_seed(records, data, arm, f"{part}/elbo") for part in ("clean", "test"))
    return [value for own in values for value in own.values()]


def at_equal_rates(records: Sequence[Record], metrics: Iterable[Compared]) -> list[Block]:
    """Learned masks against random ones that keep as many units, and against their controls.

    Tables of keep rates and of the ELBO come first. Nothing where none of this was run.
    """
    metrics, data = list(metrics), list(dict.fromkeys(record["data"] for record in records))
    kept = rows(TITLES, data, lambda arm, name: cell(by_seed(records, name, arm, KEEP).values()))
    blocks: list[Block] = []
    if kept:
        columns = [Column(name, digits=2) for name in data]
        caption = "Share of units that are kept in predictions on validation data."
        blocks.append(Table("Keep rates", "Method", columns, kept, caption))
    bounds = rows(TITLES, data, lambda arm, name: cell(_elbo(records, name, arm)))
    if bounds:
        columns = [Column(name, "high") for name in data]
        blocks.append(Table("ELBO per test example", "Method", columns, bounds, ELBO_CAPTION))
    findings: list[str] = []
    details: list[str] = []
    for learned, controls in CONTROLS.items():
        titles = {learned: TITLES[learned], **{label: TITLES[label] for label in controls}}
        there = {record["method"] for record in records}
        if there.isdisjoint(arm for arm in controls if ARMS[arm].rate_of):
            continue
        more, pairs = against_others(records, metrics, titles, learned)
        findings += more
        details += pairs
    if findings:
        blocks.append(Text(["At equal keep rates, and without the likelihood:", *findings]))
        count = counted(len(details), "comparison")
        blocks.append(Text(details, f"At equal keep rates, pair by pair: {count}"))
    return blocks


def overview(
    comparisons: Mapping[str, statistics.Comparison],
    what: str,
    titles: Mapping[str, str] = TITLES,
    ours: str = TITLES["gflowout"],
) -> list[str]:
    """One sentence over all comparisons of an arm, by label of the other; none without any.

    ``what`` was measured; ``titles`` are those of the labels, ``ours`` that of our arm.

    Examples:
        >>> from gflowout.studies.framework.statistics import holm, paired
        >>> overview(holm({"mc": paired([5, 6, 7.5], [1, 2, 3], "high")}), "accuracy")
        ['Accuracy: GFlowOut is better than MC dropout (3 paired seeds, 95 %, Holm).']
    """
    names: dict[str, list[str]] = {}
    for label, comparison in comparisons.items():
        names.setdefault(comparison.firm, []).append(titles.get(label, label))
    if len(names) == 1 and len(comparisons) > MANY:
        names = {verdict: ["any other method"] for verdict in names}
    elif len(names.get("no difference seen", [])) > MANY and "not comparable" not in names:
        names["no difference seen"] = ["the other methods"]
    words = {
        "better": "better than",
        "worse": "worse than",
        "no difference seen": "not significantly different from",
    }
    parts = []
    for verdict, text in words.items():
        if verdict in names:
            *others, last = names[verdict]
            parts.append(f"{text} {', '.join(others)}{' and ' if others else ''}{last}")
    if not parts:
        return []
    interval = f"({statistics.seeds_of(comparisons.values())} paired seeds, 95 %, Holm)"
    return [f"{what[0].upper()}{what[1:]}: {ours} is {', '.join(parts)} {interval}."]


def pair_by_pair(sentences: Sequence[str]) -> list[Text]:
    """All comparisons of a section, one sentence each, to be folded away; nothing without any."""
    count = counted(len(sentences), "comparison")
    title = f"GFlowOut against each method, pair by pair: {count}"
    return [Text(sentences, title)] if sentences else []
