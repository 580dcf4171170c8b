"""Figures of the studies on images for the report: cells, curves, comparisons, verdicts.

Reads records; knows nothing of models and nothing of how a page looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gflowout.studies.framework import compare, verdicts
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import (
    PAPER,
    Better,
    Cell,
    Claim,
    Column,
    Curves,
    Picture,
    Pictures,
    Row,
    Series,
)
from gflowout.studies.framework.study import Record
from gflowout.studies.framework.summary import mean_error
from gflowout.studies.images import SAME, SEVERITIES, SHIFTS, TITLES
from gflowout.studies.images_presets import CIFAR

METRICS: dict[str, tuple[str, Better, bool]] = {
    "accuracy": ("accuracy", "high", True), "nll": ("NLL", "low", False),
    "ece": ("calibration error", "low", True),
}  # fmt: skip
"""Title, which way is good, and whether it is a share."""
_NONE = "-"
BASELINES = ("mc", "concrete", "contextual")
"""Dropout methods that the paper compares with."""

Values = Mapping[int, float]
"""A figure by seed."""
Measure = Callable[[Sequence[Record], str, str], Values]
"""Figures of (records, data, arm)."""


def present(records: Iterable[Record], order: Iterable[str]) -> list[str]:
    """Names of data among the records, in the order given."""
    there = {record["data"] for record in records}
    return [name for name in order if name in there]


def metric(name: str) -> Measure:
    """The measure that is one metric of the records."""
    return lambda records, data, arm: compare.by_seed(records, data, arm, name)


def average(names: Sequence[str]) -> Measure:
    """The measure that is the mean of some metrics, for seeds that have all of them."""

    def measure(records: Sequence[Record], data: str, arm: str) -> Values:
        parts = [compare.by_seed(records, data, arm, name) for name in names]
        common = [seed for seed in parts[0] if all(seed in part for part in parts)]
        return {seed: math.fsum(part[seed] for part in parts) / len(parts) for seed in common}

    return measure


def corrupted(what: str, shift: str | None = None) -> Measure:
    """The mean of a metric over severities 1 to 5 of a corruption, or of all of them."""
    kinds = SHIFTS if shift is None else (shift,)
    return average([f"{kind}-{severity}/{what}" for kind in kinds for severity in SEVERITIES])


def cell(values: Values) -> Cell:
    """Mean, standard error and number of a figure over seeds."""
    mean, error = mean_error(list(values.values())) if values else (math.nan, math.nan)
    if math.isnan(mean):
        return Cell(text=_NONE)
    return Cell(mean, None if math.isnan(error) else error, len(values))


def rows(
    records: Sequence[Record],
    data: str,
    measures: Sequence[Measure],
    paper: Mapping[str, Sequence[float | Cell | None]] | None = None,
) -> list[Row]:
    """A row for each arm that has figures, then the paper's.

    Args:
        records: Of the study.
        data: Name of the data.
        measures: One for each column.
        paper: Figures of the paper by arm; ``None`` where it has none.
    """
    made = []
    for label, arm in ARMS.items():
        cells = [cell(measure(records, data, label)) for measure in measures]
        if any(each.runs for each in cells):
            made.append(Row(arm.title, cells))
    for label, figures in (paper or {}).items():
        cells = [
            each if isinstance(each, Cell) else Cell(text=_NONE) if each is None else Cell(each)
            for each in figures
        ]
        made.append(Row(ARMS[label].title, cells, PAPER))
    return made


def share(title: str, better: Better = "high", digits: int = 1) -> Column:
    """A column of percentages."""
    return Column(title, better, digits, percent=True)


def severity_curves(records: Sequence[Record], data: str) -> list[Curves]:
    """A plot for each corruption and metric: the metric against the severity, a curve per arm."""
    made = []
    for shift, name in SHIFTS.items():
        for what, (title, _, percent) in METRICS.items():
            names = [f"{SAME}/{what}", *(f"{shift}-{severity}/{what}" for severity in SEVERITIES)]
            made.append(
                Curves(
                    f"{TITLES[data]}, {name}: {title}",
                    "severity",
                    title,
                    series(records, data, dict(enumerate(names))),
                    percent=percent,
                )
            )
    return [each for each in made if each.series]


def series(records: Sequence[Record], data: str, names: Mapping[int, str]) -> list[Series]:
    """A curve for each arm: means over seeds of the metric at each x."""
    made = []
    for label, arm in ARMS.items():
        x, y, errors = [], [], []
        for place, name in names.items():
            values = compare.by_seed(records, data, label, name)
            if values:
                mean, error = mean_error(list(values.values()))
                x.append(float(place))
                y.append(mean)
                errors.append(error)
        if x:
            known = not any(map(math.isnan, errors))
            made.append(Series(arm.title, x, y, errors if known else None))
    return made


def comparisons(
    records: Sequence[Record],
    data: str,
    measure: Measure,
    better: Better,
    ours: str = "gflowout",
    others: Iterable[str] | None = None,
) -> dict[str, compare.Comparison]:
    """Our arm against others on the same seeds, with Holm's correction.

    Args:
        records: Of the study.
        data: Name of the data.
        measure: What is compared.
        better: Which way is good.
        ours: Label of our arm.
        others: Labels of the others; all that have figures if ``None``.
    """
    mine = measure(records, data, ours)
    found = {}
    for label in ARMS if others is None else others:
        theirs = measure(records, data, label)
        if label != ours and theirs and mine:
            common = [seed for seed in mine if seed in theirs]
            pairs = [mine[seed] for seed in common], [theirs[seed] for seed in common]
            found[label] = compare.paired(*pairs, better)
    return compare.holm(found)


def overview(found: Mapping[str, compare.Comparison], what: str) -> list[str]:
    """A sentence on how GFlowOut compares with all others in a figure, if there are seeds enough.

    Args:
        found: Comparisons by arm, corrected for their number.
        what: The figure.
    """
    if all(each.verdict == "not comparable" for each in found.values()):
        return []
    titles = {label: arm.title for label, arm in ARMS.items()}
    return [verdicts.overview(found, titles, titles["gflowout"], what)]


def sentences(
    found: Mapping[str, compare.Comparison], what: str, *, percent: bool, ours: str = "gflowout"
) -> list[str]:
    """A sentence for each comparison that could be made."""
    return [
        compare.sentence(each, ARMS[ours].title, ARMS[label].title, what, percent=percent)
        for label, each in found.items()
        if each.verdict != "not comparable"
    ]


def verdict(claim: str, outcomes: Mapping[str, bool | None], needed: int, rule: str) -> Claim:
    """A claim that holds if enough of some tests come out well.

    Args:
        claim: What the paper says.
        outcomes: What came of each test; ``None`` where it could not be made or cannot tell.
        needed: How many must come out well.
        rule: When a test comes out well.
    """
    made = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    good = [name for name, outcome in made.items() if outcome]
    missing = len(outcomes) - len(made)
    where = f": {', '.join(good)}" if good and len(made) > 1 else ""
    enough = "1 is needed" if needed == 1 else f"{needed} are needed"
    why = f"Rule: {rule}. Holds in {len(good)} of {len(made)}{where}; {enough}."
    if missing:
        why += f" {missing} more cannot be told from what has been run."
    if len(good) >= needed:
        return Claim(claim, "reproduced", why)
    return Claim(
        claim, "not testable here" if len(good) + missing >= needed else "not reproduced", why
    )


def shown_pictures(records: Iterable[Record], data: str) -> list[Pictures]:
    """Pictures of the first record of these data that has some."""
    for record in records:
        if record["data"] == data and record["metrics"].get("pictures"):
            kept: list[Mapping[str, Any]] = record["metrics"]["pictures"]
            title = f"{TITLES[data]}: from certain to uncertain"
            caption = (
                "Upright and rotated test images, sorted by the entropy of what "
                f"{ARMS[record['method']].title} (seed {record['seed']}) says; bars are class "
                "probabilities, with their standard deviation over the draws."
            )
            made = [Picture(**each) for each in kept]
            return [Pictures(title, record["metrics"]["classes"], made, caption)]
    return []


def seeds_of(records: Iterable[Record], data: str) -> str:
    """How many seeds the arms have, in words.

    Examples:
        >>> seeds_of([{"data": "mnist", "method": "mc", "seed": 0}], "mnist")
        '1 seed'
    """
    by_arm: dict[str, set[int]] = {}
    for record in records:
        if record["data"] == data:
            by_arm.setdefault(record["method"], set()).add(record["seed"])
    counts = sorted({len(each) for each in by_arm.values()})
    if not counts:
        return "no seeds yet"
    if len(counts) == 1:
        return f"{counts[0]} seed{'s' if counts[0] > 1 else ''}"
    return f"{counts[0]} to {counts[-1]} seeds (not all runs are done)"


def scale(records: Iterable[Record]) -> str:
    """What to bear in mind where networks are smaller than the paper's; else nothing."""
    for record in records:
        options = record["options"]
        width, limit = options.get("backbone.width", 64), options.get("data.limit")
        if record["data"] in CIFAR and (width < 64 or limit is not None):
            images = "" if limit is None else f" and {limit:,} images to train and validate"
            return f" CIFAR here: a ResNet-18 of width {width} (the paper's: 64){images}."
    return ""


def noting(claim: Claim, note: str) -> Claim:
    """A claim with more said on why."""
    return Claim(claim.claim, claim.verdict, f"{claim.why}{note}")


def setting(records: Iterable[Record], data: str) -> str:
    """What was trained on, from the options of a record."""
    options = next(record["options"] for record in records if record["data"] == data)
    epochs = options["fit.epochs"]
    limit, width = options.get("data.limit"), options.get("backbone.width", 64)
    network = "an MLP 784-300-100-10"
    if data != "mnist":
        network = f"a ResNet-18 of width {width}" + ("" if width == 64 else " (the paper's: 64)")
    amount = "all training images there are" if limit is None else f"{limit:,} training images"
    return (
        f"{TITLES[data]}: {network}, {amount} (validation included), "
        f"{epochs} epoch{'s' if epochs > 1 else ''} at most, {options['samples']} draws"
    )
