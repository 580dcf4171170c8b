"""What the report says of the study on masks, from its records. Knows nothing of its runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gflowout.studies import images_sections as shown
from gflowout.studies.framework import compare
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import (
    PAPER,
    Bars,
    Block,
    Cell,
    Claim,
    Column,
    Heat,
    Points,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.study import Record
from gflowout.studies.images import TITLES

OURS, CONTROL = "gflowout", "control"
LEAST, LEVEL = 0.4, 0.05
"""The paper's figures: correlation at least, p-value at most."""
SEEDS = 2
"""Without which no claim is judged."""

DISTANCES = {
    "same": "one point twice",
    "within": "points of one class",
    "between": "points of two classes",
    "rotated": "a point and itself rotated",
    "noise": "a point and itself with noise",
}


def section(records: Sequence[Record]) -> Section:
    """Tables, plots, findings and claims from the records that there are."""
    data = shown.present(records, TITLES)
    findings: list[str] = []
    blocks: list[Block] = [Text(_PREFACE)] if data else []
    for name in data:
        findings += _findings(records, name)
        blocks.append(Text([f"{shown.setting(records, name)}; {shown.seeds_of(records, name)}."]))
        blocks += [_correlations(records, name), *_scatters(records, name)]
        blocks += [_distances(records, name), _information(records, name)]
        blocks += [_keep_rates(records, name), *_heats(records, name)]
        blocks += compare.pair_by_pair(_comparisons(records, name))
    return Section(findings, blocks, _claims(records, data), tuple(data))


_PREFACE = (
    "Masks are drawn from the posterior q(z | x, y) of test points with their labels, without "
    "exploration, and scored: log q, the reward log R = log p(y | x, z) + log p(z | x), and its "
    "two parts. Correlations are taken over the masks of one point and then averaged, since every "
    "point has a normalising constant of its own. ID-GFlowOut has one mask for all points: its "
    "reward is that of the training set, estimated on some of its points.",
    "The learned prior p(z | x) follows the posterior, and it is a part of the reward. So log q "
    "and log R may rise and fall together although the likelihood of the label plays no part. "
    "Whether masks that explain the label better are likelier shows in the other correlation, of "
    "log q - log p with log p(y | x, z): if masks were drawn exactly in proportion to the reward, "
    "it would be 1. The control is GFlowOut with a reward without likelihood.",
)


def _values(records: Sequence[Record], data: str, arm: str, metric: str) -> list[float]:
    found = compare.by_seed(records, data, arm, metric).values()
    return [value for value in found if not math.isnan(value)]


def _mean(records: Sequence[Record], data: str, arm: str, metric: str) -> float | None:
    values = _values(records, data, arm, metric)
    return math.fsum(values) / len(values) if values else None


def _cell(records: Sequence[Record], data: str, arm: str, metric: str) -> Cell:
    return shown.cell(dict(enumerate(_values(records, data, arm, metric))))


def _rows(records: Sequence[Record], data: str, metrics: Sequence[str]) -> list[Row]:
    """A row for each arm that has any of the figures; ``p`` metrics as their largest value."""
    made = []
    for label, arm in ARMS.items():
        cells = [
            _largest(_values(records, data, label, name))
            if name.endswith("/p")
            else _cell(records, data, label, name)
            for name in metrics
        ]
        if any(each.runs for each in cells):
            made.append(Row(arm.title, cells))
    return made


def _largest(p: Sequence[float]) -> Cell:
    """The largest p-value of all seeds."""
    if not p:
        return Cell(text="-")
    return Cell(text="< 0.001" if max(p) < 0.001 else f"{max(p):.3f}", runs=len(p))


def _correlations(records: Sequence[Record], data: str) -> Table:
    metrics = [
        "reward/pearson", "reward/spearman", "reward/significant", "reward/p",
        "evidence/pearson", "evidence/significant", "evidence/p", "log_likelihood/sd",
    ]  # fmt: skip
    columns = [
        Column("log q, log R: Pearson", digits=2),
        Column("Spearman", digits=2),
        Column("points with p ≤ 0.05", digits=0, percent=True),
        Column("p"),
        Column("log q - log p, log likelihood: Pearson", digits=2),
        Column("points with p ≤ 0.05", digits=0, percent=True),
        Column("p"),
        Column("sd of log likelihood"),
    ]
    rows = _rows(records, data, metrics)
    if rows:
        none = [Cell(text="-")] * 4
        cells = [Cell(text=f"≥ {LEAST}"), *none[:2], Cell(text=f"≤ {LEVEL}"), *none]
        rows.append(Row(ARMS[OURS].title, cells, PAPER))
    return Table(
        f"{TITLES[data]}: are likelier masks better?",
        "method",
        columns,
        rows,
        "Over the masks of one point, then averaged over points and seeds. The column p is that of "
        "all masks together, each point's mean taken off, the largest over seeds; the share of "
        "points counts positive correlations. The last column is how much the log likelihood of a "
        "label varies over masks: where it hardly does, there is little to learn.",
    )


def _distances(records: Sequence[Record], data: str) -> Bars:
    series = []
    for label, arm in ARMS.items():
        cells = [_cell(records, data, label, f"distance/{name}") for name in DISTANCES]
        if any(each.runs for each in cells):
            series.append((arm.title, cells))
    return Bars(
        f"{TITLES[data]}: how far apart mean masks are",
        "Manhattan distance per unit",
        list(DISTANCES.values()),
        series,
        "Mean mask of the draws of a prediction (20 in the paper). Two predictions of one point "
        "differ by chance; distances above that are real. ID-GFlowOut draws one mask for all.",
    )


def _information(records: Sequence[Record], data: str) -> Table:
    metrics = [
        f"information/{name}{part}"
        for name in ("prediction", "posterior")
        for part in ("", "_most", "_above")
    ]
    columns = [
        Column(f"{name}{part}", digits=digits, percent=percent)
        for name in ("prediction: ", "posterior: ")
        for part, digits, percent in (
            ("mean bits", 4, False),
            ("most", 3, False),
            ("units above chance", 1, True),
        )
    ]
    return Table(
        f"{TITLES[data]}: what masks know about the label",
        "method",
        columns,
        _rows(records, data, metrics),
        "Mutual information between a unit's bit and the class, estimated from shares, with the "
        "mean over 99 shufflings of the labels taken off (1 bit is the most there is). Above "
        "chance: more than with any shuffling, which 1 % of units that know nothing are. The "
        "posterior is shown the label, a prediction is not.",
    )


def _keep_rates(records: Sequence[Record], data: str) -> Table:
    sites = list(
        dict.fromkeys(
            name.removeprefix("site/")
            for record in records
            if record["data"] == data
            for name in record["metrics"]
            if name.startswith("site/")
        )
    )
    metrics = ["keep/prediction", "keep/posterior", "keep/sd_units"]
    columns = [Column(title) for title in ("prediction", "posterior", "sd over units", *sites)]
    return Table(
        f"{TITLES[data]}: share of units that are kept",
        "method",
        columns,
        _rows(records, data, [*metrics, *(f"site/{name}" for name in sites)]),
        "Over all points and draws; sites in the order in which they are run, in a prediction.",
    )


def _first(records: Sequence[Record], data: str, arm: str, metric: str) -> Any:
    """A figure that is no number, of the first record that has it."""
    for record in records:
        if record["data"] == data and record["method"] == arm and metric in record["metrics"]:
            return record["metrics"][metric]
    return None


_SCATTERS = {
    "reward": ("log q against log R", "log q", "log R"),
    "evidence": (
        "log q - log p against the log likelihood",
        "log q - log p",
        "log p(y | x, z)",
    ),
}


def _scatters(records: Sequence[Record], data: str) -> list[Points]:
    made = []
    for name, (title, x, y) in _SCATTERS.items():
        kept = _first(records, data, OURS, f"scatter/{name}")
        if kept:
            series = [Series(each["title"], each["x"], each["y"]) for each in kept]
            made.append(
                Points(
                    f"{TITLES[data]}, {ARMS[OURS].title}: {title}",
                    x,
                    y,
                    series,
                    "Masks of some test points, seed 0; each point's mean is taken off.",
                )
            )
    return made


def _heats(records: Sequence[Record], data: str) -> list[Heat]:
    made = []
    for name, words in (("prediction", "in a prediction"), ("posterior", "in the posterior")):
        kept: Mapping[str, Any] | None = _first(records, data, OURS, f"heat/{name}")
        if kept:
            made.append(
                Heat(
                    f"{TITLES[data]}, {ARMS[OURS].title}: share kept by class, {words}",
                    "unit",
                    "class",
                    kept["values"],
                    kept["columns"],
                    kept["rows"],
                    0.0,
                    1.0,
                    "Those units that tell most about the class, seed 0.",
                )
            )
    return made


def _comparisons(records: Sequence[Record], data: str) -> list[str]:
    """Paired comparisons over seeds: correlation against the control, distances against chance."""
    made = []
    for metric, words in (
        ("reward/pearson", "correlation of log q with log R"),
        ("evidence/pearson", "correlation of log q - log p with the log likelihood"),
    ):
        found = compare.compare_all(records, data, metric, "high", OURS)
        made += [
            compare.sentence(
                each, ARMS[OURS].title, ARMS[label].title, f"{words} on {TITLES[data]}"
            )
            for label, each in found.items()
        ]
    return made


def _apart(records: Sequence[Record], data: str, name: str) -> compare.Comparison:
    """A distance of GFlowOut's masks against that of two predictions of one point."""
    far = compare.by_seed(records, data, OURS, f"distance/{name}")
    same = compare.by_seed(records, data, OURS, "distance/same")
    common = [seed for seed in far if seed in same]
    return compare.paired([far[seed] for seed in common], [same[seed] for seed in common], "high")


def _findings(records: Sequence[Record], data: str) -> list[str]:
    title, made = TITLES[data], []
    reward = _mean(records, data, OURS, "reward/pearson")
    evidence = _mean(records, data, OURS, "evidence/pearson")
    if reward is not None and evidence is not None:
        control = _mean(records, data, CONTROL, "reward/pearson")
        beside = "" if control is None else f" and {control:.2f} in the control"
        made.append(
            f"{title}: log q and log R of GFlowOut's masks correlate with r = {reward:.2f} (paper: "
            f"at least {LEAST}){beside}; log q - log p and the log likelihood of the label, what "
            f"the posterior has to learn, with r = {evidence:.2f}."
        )
    same, between = (_mean(records, data, OURS, f"distance/{name}") for name in ("same", "between"))
    if same is not None and between is not None:
        verdict = _apart(records, data, "between").verdict
        words = {
            "better": "so masks do depend on the input",
            "no difference seen": "so no dependence on the input is seen",
            "worse": "so no dependence on the input is seen",
        }.get(verdict, "one seed alone tells nothing")
        made.append(
            f"{title}: mean masks of points of two classes are {between:.3f} apart per unit, those "
            f"of one point drawn twice {same:.3f}: {words}."
        )
    bits = {label: _mean(records, data, label, "information/prediction") for label in (OURS, "mc")}
    if bits[OURS] is not None:
        beside = "" if bits["mc"] is None else f" (MC dropout: {bits['mc']:.4f})"
        made.append(
            f"{title}: a bit of GFlowOut's masks tells {bits[OURS]:.4f} bits about the class in a "
            f"prediction{beside}."
        )
    return made


def _claims(records: Sequence[Record], data: Sequence[str]) -> list[Claim]:
    rewarded: dict[str, bool | None] = {}
    diverse: dict[str, bool | None] = {}
    for name in data or ("mnist", "cifar10"):
        r = _mean(records, name, OURS, "reward/pearson")
        p = _values(records, name, OURS, "reward/p")
        rewarded[TITLES[name]] = (
            None if r is None or len(p) < SEEDS else r >= LEAST and max(p) <= LEVEL
        )
        far = _apart(records, name, "between")
        diverse[TITLES[name]] = None if far.verdict == "not comparable" else far.verdict == "better"
    claim = shown.verdict(
        "GFlowOut generates masks with a probability that correlates with their reward: "
        f"correlation ≥ {LEAST}, p ≤ {LEVEL}.",
        rewarded,
        len(rewarded),
        f"the mean Pearson correlation of log q with log R over the masks of a point is at least "
        f"{LEAST}, and p ≤ {LEVEL} with every seed",
    )
    control = [
        f"{value:.2f} on {TITLES[name]}"
        for name in data
        if (value := _mean(records, name, CONTROL, "reward/pearson")) is not None
    ]
    if control:
        claim = dataclasses.replace(
            claim,
            why=f"{claim.why} The control, whose reward has no likelihood, has "
            f"{' and '.join(control)}: the figure alone does not show that the likelihood is "
            "learned.",
        )
    return [
        claim,
        shown.verdict(
            "GFlowOut generates masks that differ among data points (a figure of distances, "
            "without numbers).",
            diverse,
            len(diverse),
            "mean masks of points of two classes are farther apart than those of one point drawn "
            "twice, by the 95 % interval of the difference over seeds",
        ),
    ]
