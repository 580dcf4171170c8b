"""Rivals on tables, as they come: runs, scores and what the report says of them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from gflowout.core import metrics
from gflowout.runs import Result, Run
from gflowout.studies.features_data import Flags, Floats, Ints, auroc, prediction
from gflowout.studies.features_rivals import RIVALS, Answer
from gflowout.studies.features_tables import ORIGINS, load
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import columns, entry
from gflowout.studies.framework.content import Block, Cell, Column, Table, Text
from gflowout.studies.framework.statistics import Record, by_arm, prefixed

TABLES = {
    "smoke": ("ring-64", "diabetes"),
    "cpu": tuple(n for n in ORIGINS if not n.endswith(("-64", "-128", "-512"))),
    "paper": tuple(ORIGINS),
}
QUANTILE = 1.6449
"""Standard deviations on both sides of the mean in which 90 % of a normal distribution lie."""
BINS = 10
"""Of the calibration of inclusion, equally wide."""
TITLES = {label: rival.title for label, rival in RIVALS.items()}
_SMALL = {"rows": 100, "test": 50}


def runs(preset: str, seeds: int) -> list[Run]:
    """Every rival on every table that it can be fitted to; only a few at ``smoke``."""
    options = _SMALL if preset == "smoke" else {}
    return [
        Run("features", label, name, seed, dict(options))
        for seed in range(seeds)
        for name in TABLES[preset]
        for label, rival in RIVALS.items()
        if (rival.several or ORIGINS[name].classes <= 2)
        and not (preset == "smoke" and rival.package)
    ]


def lacks(run: Run) -> str:
    """The package that a run needs and that is not installed; empty if there is none."""
    if run.data not in ORIGINS:
        return ""
    needed = (RIVALS[run.method].package, ORIGINS[run.data].package)
    return next((name for name in needed if name and find_spec(name) is None), "")


def seconds(run: Run) -> float:
    """What a run takes on one core."""
    return 2.0 if run.options else RIVALS[run.method].seconds * ORIGINS[run.data].scale


def work(run: Run) -> Result:
    """Fit a rival to the training rows of a table, and score it on its test rows, once."""
    split = load(run.data, run.seed)
    if run.options:
        split = split.some(run.options["rows"], run.options["test"])
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that we do not answer for
        answer = RIVALS[run.method].fit(split, run.seed, bool(run.options))
        seconds = time.process_time() - began
        predicted = answer.predict(split.x_test)
    score = of_classes if split.classes else of_numbers
    metrics = prefixed("test", score(predicted, split.y_test)) | {"cost/cpu": seconds}
    if split.relevant is not None and answer.score is not None:
        metrics |= prefixed("select", of_columns(answer, split.relevant))
    return {"metrics": metrics}


# Scores


def of_classes(probabilities: Floats, y: Ints) -> dict[str, float]:
    """NLL, accuracy, AUROC and expected calibration error of probabilities [rows, classes]."""
    pair = torch.from_numpy(probabilities), torch.from_numpy(y)
    return {**prediction(probabilities, y), "ece": float(metrics.calibration_error(*pair))}


def of_numbers(normal: Floats, y: Floats) -> dict[str, float]:
    """RMSE, NLL and coverage of normal predictions, mean and standard deviation, [rows, 2].

    Examples:
        >>> scores = of_numbers(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0.0, 3.0]))
        >>> round(scores["nll"], 3), scores["coverage"]
        (3.169, 0.5)
    """
    mean, deviation = normal[:, 0], np.maximum(normal[:, 1], 1e-9)
    error = (y - mean) / deviation
    return {
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "nll": float(np.mean(0.5 * error**2 + np.log(deviation * np.sqrt(2 * np.pi)))),
        "coverage": float((np.abs(error) <= QUANTILE).mean()),
    }


def of_columns(answer: Answer, relevant: Flags) -> dict[str, Any]:
    """What a rival makes of columns, where it is known which matter.

    ``"top"``: share of the relevant ones among as many of the highest scores; ``"power"`` and
    ``"fdp"``: share of the relevant ones that are found, and of those found that are not relevant.
    """
    assert answer.score is not None
    scores: dict[str, Any] = {
        "top": share_of_top(answer.score, relevant),
        "auroc": auroc(answer.score, relevant),
    }
    if answer.selected is not None:
        selected = answer.selected
        scores["power"] = float(selected[relevant].mean())
        scores["fdp"] = float((selected & ~relevant).sum() / max(1, selected.sum()))
    if answer.inclusion is not None:
        scores["inclusion"] = [round(float(value), 4) for value in answer.inclusion]
        scores["relevant"] = np.flatnonzero(relevant).tolist()
        scores["ece"] = calibration(answer.inclusion, relevant)
    return scores


def share_of_top(score: Floats, relevant: Flags) -> float:
    """Share of the k relevant columns among the k highest scores; ties as if in random order.

    Examples:
        >>> share_of_top(np.array([0.9, 0.0, 0.0, 0.0]), np.array([True, True, False, False]))
        0.6666666666666666
    """
    count = int(relevant.sum())
    cut = np.sort(score)[-count]
    above, level = score > cut, score == cut
    expected = (count - above.sum()) * relevant[level].mean()
    return float(((relevant & above).sum() + expected) / count)


def calibration(probability: Floats, right: Flags) -> float:
    """Expected calibration error of probabilities, in equal bins.

    Examples:
        >>> calibration(np.array([0.0, 0.5, 0.5]), np.array([False, True, True]))
        0.3333333333333333
    """
    place = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [
        abs(probability[place == bin].mean() - right[place == bin].mean()) * (place == bin).mean()
        for bin in np.unique(place)
    ]
    return float(sum(gaps))


# What the report says

_COLUMNS = columns("features")
_TEXTS = entry("features.texts")


def blocks(records: Sequence[Record]) -> list[Block]:
    """A table for each problem that was done, calibration of inclusion, ranks on real tables."""
    names = sections.present(records, ORIGINS)
    if not names:
        return []
    shown: list[Block] = [Text([_TEXTS["rivals"]])]
    for name in names:
        origin = ORIGINS[name]
        wanted = {**_COLUMNS["classes" if origin.classes else "numbers"]}
        if origin.known:
            wanted = {**_COLUMNS["columns"], **wanted}
        wanted |= _COLUMNS["seconds"]
        rows = sections.arm_rows(records, name, list(wanted), TITLES)
        order = list(wanted)
        for label, numbers in origin.published.items():
            cells = dict(zip(("select/top", "test/auroc"), numbers, strict=True))
            published = {TITLES[label]: [cells.get(metric) for metric in order]}
            rows += sections.paper_rows(published, {TITLES[label]: f"{TITLES[label]}, published"})
        title = f"{origin.title}: rivals as they come"
        shown.append(Table(title, "Method", list(wanted.values()), rows, f"{origin.about}."))
    return [*shown, *_inclusion(records, names), *_ranks(records, names)]


def inclusion_error(records: Sequence[Record], arm: str, names: Sequence[str]) -> tuple[float, int]:
    """Calibration error of an arm's inclusion on some tables, and of how many runs."""
    said = [
        record["metrics"]
        for record in records
        if record["method"] == arm and record["data"] in names
    ]
    said = [metrics for metrics in said if "select/inclusion" in metrics]
    if not said:
        return math.nan, 0
    likely = [np.array(metrics["select/inclusion"]) for metrics in said]
    right = [
        np.isin(np.arange(len(values)), metrics["select/relevant"])
        for values, metrics in zip(likely, said, strict=True)
    ]
    return calibration(np.concatenate(likely), np.concatenate(right)), len(said)


def _inclusion(records: Sequence[Record], names: Sequence[str]) -> list[Block]:
    """Calibration of inclusion probabilities, by problem over its seeds, and of all together."""
    solved = [name for name in names if ORIGINS[name].known]

    def error(arm: str, names: Sequence[str]) -> Cell:
        value, runs = inclusion_error(records, arm, names)
        return Cell(value, runs=runs) if runs else Cell(text=sections.NONE)

    parts = [*([name] for name in solved), solved]
    heads = [Column(ORIGINS[name].title, "low") for name in solved] + [Column("all", "low")]
    rows = sections.rows(TITLES, range(len(parts)), lambda arm, part: error(arm, parts[part]))
    title = "Expected calibration error of inclusion probabilities"
    return [Table(title, "Method", heads, rows, _TEXTS["inclusion-error"])] if rows else []


def ranks(records: Sequence[Record], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Rank of every arm by mean NLL on some tables, 1 is the lowest; by table and arm."""
    result = {}
    for name in names:
        mean = {
            label: float(np.mean(values))
            for label, values in by_arm(records, name, "test/nll").items()
        }
        order = sorted(mean, key=mean.__getitem__)
        result[name] = {label: place for place, label in enumerate(order, start=1)}
    return result


def _ranks(records: Sequence[Record], names: Sequence[str]) -> list[Block]:
    """Rank in NLL on every real table, among the rivals that were fitted to it."""
    places = ranks(records, [name for name in names if not ORIGINS[name].known])
    if not places:
        return []
    cells: dict[str, list[Cell]] = {}
    for label in TITLES:
        own = [table.get(label) for table in places.values()]
        cells[label] = [Cell(rank, runs=1) if rank else Cell(text=sections.NONE) for rank in own]
        present = [rank for rank in own if rank]
        cells[label].append(Cell(float(np.median(present)), runs=1) if present else Cell())
    heads = [Column(ORIGINS[name].title, "low", digits=0) for name in places]
    heads.append(Column("median", "low", digits=1))
    rows = sections.rows(TITLES, range(len(heads)), lambda arm, place: cells[arm][place])
    return [Table("Real tables: rank in NLL", "Method", heads, rows)]
