"""What the masks are like: the analysis of masks in the paper's appendix.

On trained networks (those of the robustness study) it asks whether likelier masks have a higher
reward, how masks differ between data points, classes and shifted inputs, how many units they keep,
and how much they tell about the label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gflowout.runs import Run
from gflowout.studies import images, images_section
from gflowout.studies.framework import content, sections
from gflowout.studies.framework.claims import columns, counted, entry, out_of_reach, paper
from gflowout.studies.framework.content import PAPER, Cell, Column, Row, Section, Table
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Comparison, Record, by_seed, pair
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import TITLES
from gflowout.studies.mask_statistics import work

__all__ = ["STUDY", "runs", "section", "work"]

NAME = "masks"
DATA = ("mnist", "cifar10")
ARMS = (
    "mc", "contextual", "contextual-paper", "id-gflowout", "id-gflowout-paper", "gflowout",
    "combined", "control",
)  # fmt: skip
OURS, CONTROL = "gflowout", "control"
LEAST, LEVEL = 0.4, 0.05
"""The paper's numbers: correlation at least, p-value at most."""
TEXTS = entry(f"{NAME}.texts")
_COLUMNS = columns(NAME)
_CORRELATED, _DISTANCES = entry(f"{NAME}.correlated"), entry(f"{NAME}.distances")
_PUBLISHED = {"reward/pearson": f"≥ {LEAST}", "reward/p": f"≤ {LEVEL}"}
_HEATS = {"prediction": "in a prediction", "posterior": "in the posterior"}
LEAST_SEEDS = 2
"""Without which no claim is judged."""


def tuning(preset: str) -> list[Run]:
    """The trials of the robustness study, of the arms that have masks."""
    return [run for run in images.tuning(preset, DATA) if run.method in ARMS]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """A run of each arm and seed, on the models of the robustness study."""
    data = DATA[:1] if preset == "smoke" else DATA  # what the robustness study has, too
    sizes = dict.fromkeys(data, images.PRESETS[NAME][preset])
    every_arm = images.runs(NAME, preset, chosen, data, sizes)
    return [run for run in every_arm if run.method in ARMS]


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, plots, findings and claims from the records that there are."""
    there = sections.present(records, TITLES)
    findings: list[str] = []
    blocks: list[content.Block] = [content.Text(TEXTS["about"])] if there else []
    for data in there:
        own = [record for record in records if record["data"] == data]
        findings += _findings(own, data)
        blocks.append(
            content.Text([images_section.setting(own, data).replace(" draws, ", " draws; ")])
        )
        correlations, information = (_table(own, data, *item) for item in _COLUMNS.items())
        blocks += [correlations, *_scatters(own, data), _distances(own, data), information]
        blocks += [_table(own, data, "keep_rates", _keep_rates(own)), *_heats(own, data)]
        compared = [
            Compared(data, f"{name}/pearson", f"correlation of {x} with {y} on {TITLES[data]}")
            for name, (x, y, _) in _CORRELATED.items()
        ]
        blocks += sections.pair_by_pair(sections.against_others(own, compared)[1])
    return Section(findings, blocks, _claims(records, there), tuple(there))


def _values(own: Sequence[Record], data: str, arm: str, metric: str) -> list[float]:
    values = by_seed(own, data, arm, metric).values()
    return [value for value in values if not math.isnan(value)]


def _mean(own: Sequence[Record], data: str, arm: str, metric: str) -> float | None:
    return sections.cell(_values(own, data, arm, metric)).mean


def _rows(own: Sequence[Record], data: str, metrics: Sequence[str]) -> list[Row]:
    """A row for each arm that has any of the metrics; of p-values the largest."""

    def of(arm: str, metric: str) -> Cell:
        values = _values(own, data, arm, metric)
        if metric.endswith("/p") and values:
            most = "< 0.001" if max(values) < 0.001 else f"{max(values):.3f}"
            return Cell(text=most, runs=len(values))
        return sections.cell(values)

    return sections.rows(sections.TITLES, metrics, of)


def _table(own: Sequence[Record], data: str, name: str, columns: Mapping[str, Column]) -> Table:
    """A table of metrics, with what the paper says of them."""
    title, caption = TEXTS[name]
    rows = _rows(own, data, list(columns))
    if rows and not _PUBLISHED.keys().isdisjoint(columns):
        cells = [Cell(text=_PUBLISHED.get(metric, sections.NONE)) for metric in columns]
        rows.append(Row(sections.TITLES[OURS], cells, PAPER))
    return Table(f"{TITLES[data]}: {title}", "method", list(columns.values()), rows, caption)


def _distances(own: Sequence[Record], data: str) -> content.Bars:
    rows = _rows(own, data, [f"distance/{name}" for name in _DISTANCES])
    return content.Bars(
        f"{TITLES[data]}: how far apart mean masks are",
        "Manhattan distance per unit",
        list(_DISTANCES.values()),
        [(row.title, row.cells) for row in rows],
        TEXTS["distances"],
    )


def _keep_rates(own: Sequence[Record]) -> dict[str, Column]:
    """Columns of the keep rates: sites are those of the records."""
    names = dict.fromkeys(name for record in own for name in record["metrics"])
    return {
        "keep/prediction": Column("prediction"),
        "keep/posterior": Column("posterior"),
        "keep/sd_units": Column("sd over units"),
        **{name: Column(name[len("site/") :]) for name in names if name.startswith("site/")},
    }


def _first(own: Sequence[Record], metric: str) -> Any:
    """A metric of GFlowOut that is no number, of the first record that has it."""
    kept = (record["metrics"].get(metric) for record in own if record["method"] == OURS)
    return next(filter(None, kept), None)


def _scatters(own: Sequence[Record], data: str) -> list[content.Points]:
    plots = []
    for name, (x, y, axis) in _CORRELATED.items():
        series = [content.Series(**points) for points in _first(own, f"scatter/{name}") or ()]
        title = f"{TITLES[data]}, {sections.TITLES[OURS]}: {x} against {y}"
        plots.append(content.Points(title, x, axis, series, TEXTS["scatters"]))
    return [plot for plot in plots if plot.series]


def _heats(own: Sequence[Record], data: str) -> list[content.Heat]:
    plots = []
    for name, words in _HEATS.items():
        rates = _first(own, f"heat/{name}")
        if rates:
            title = f"{TITLES[data]}, {sections.TITLES[OURS]}: share kept by class, {words}"
            rates = {**rates, "low": 0.0, "high": 1.0, "caption": TEXTS["heats"]}
            plots.append(content.Heat(title, "unit", "class", **rates))
    return plots


def _apart(own: Sequence[Record], data: str) -> Comparison:
    """Distance of GFlowOut's masks between classes against two predictions of one point."""
    between, same = (by_seed(own, data, OURS, f"distance/{n}") for n in ("between", "same"))
    return pair(between, same, "high")


def _findings(own: Sequence[Record], data: str) -> list[str]:
    title, lines = TITLES[data], []
    reward, evidence, same, between, bits = (
        _mean(own, data, OURS, metric)
        for metric in (
            "reward/pearson", "evidence/pearson", "distance/same", "distance/between",
            "information/prediction",
        )
    )  # fmt: skip
    if reward is not None and evidence is not None:
        control = _mean(own, data, CONTROL, "reward/pearson")
        beside = "" if control is None else f" and {control:.2f} in the control"
        lines.append(
            f"{title}: log q and log R of GFlowOut's masks correlate with r = {reward:.2f} (paper: "
            f"at least {LEAST}){beside}; log q - log p and the log likelihood of the label, what "
            f"the posterior has to learn, with r = {evidence:.2f}."
        )
    if same is not None and between is not None:
        words = {
            "better": "so masks do depend on the input",
            "not comparable": "one seed alone tells nothing",
        }.get(_apart(own, data).verdict, "so no dependence on the input is seen")
        lines.append(
            f"{title}: mean masks of points of two classes are {between:.3f} apart per unit, those "
            f"of one point drawn twice {same:.3f}: {words}."
        )
    if bits is not None:
        random = _mean(own, data, "mc", "information/prediction")
        beside = "" if random is None else f" (MC dropout: {random:z.4f})"
        lines.append(
            f"{title}: a bit of GFlowOut's masks carries {bits:z.4f} bits about the class in a "
            f"prediction{beside}."
        )
    return lines


def _claims(records: Sequence[Record], there: Sequence[str]) -> list[content.Claim]:
    rewarded, diverse = dict[str, bool | None](), dict[str, bool | None]()
    control, weak = [], dict[str, str]()
    for data in there or DATA:
        title, r = TITLES[data], _mean(records, data, OURS, "reward/pearson")
        p = _values(records, data, OURS, "reward/p")
        few = r is None or len(p) < LEAST_SEEDS
        rewarded[title] = None if few else (r or 0.0) >= LEAST and max(p) <= LEVEL
        verdict = _apart(records, data).verdict
        diverse[title] = None if verdict == "not comparable" else verdict == "better"
        beside = _mean(records, data, CONTROL, "reward/pearson")
        control += [] if beside is None else [f"{beside:.2f} on {title}"]
        published = paper("robustness")[data][OURS][0]
        if reason := out_of_reach(_accuracy(records, data), published, title):
            weak[title] = f" {reason}"
    # The paper does not say which data it took: those that decide nothing are left out.
    for outcomes in (rewarded, diverse):
        for title in weak:
            outcomes[title] = None
            if len(outcomes) > 1:
                del outcomes[title]
    note = entry("masks.reward")["note"].format(control=" and ".join(control)) if control else ""
    reasons = "".join(weak.values())
    return [
        counted("masks.reward", rewarded, note + reasons),
        counted("masks.differ", diverse, reasons),
    ]


def _accuracy(records: Sequence[Record], data: str) -> float | None:
    """Mean validation accuracy of our networks at their best epoch."""
    own = [record for record in records if (record["data"], record["method"]) == (data, OURS)]
    best = [
        float(epoch["valid/accuracy"])
        for record in own
        for epoch in record.get("epochs") or ()
        if epoch["epoch"] == record["metrics"]["best_epoch"]
    ]
    return sections.cell(best).mean


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.masks:work",
    runs=runs,
    section=section,
    tuning=tuning,
)
