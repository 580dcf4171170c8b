"""Telling unknown inputs from known ones by uncertainty: Table 3.

A model of CIFAR-10 or CIFAR-100 against SVHN and against the other CIFAR, one of MNIST against
notMNIST. Models are those of :mod:`gflowout.studies.robustness`. The paper
has SVHN alone, and one score; the other pairs, scores and FPR95 are additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflowout.app import evaluation
from gflowout.app.sources import Part
from gflowout.core import metrics
from gflowout.runs import Context, Run
from gflowout.studies import images
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import sections
from gflowout.studies.framework.content import Better, Cell, Claim, Column, Section, Table
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import CIFAR, DATA, TITLES, Fitted

NAME = "ood"
UNKNOWN = images.PRESETS[NAME]
"""By preset and data what a model is tested against."""
SCORES = {
    "dempster_shafer": "Dempster-Shafer",
    "entropy": "entropy",
    "mutual_information": "mutual information",
}
PAPER = judged.paper(NAME)
"""AUROC, its error, AUPR, its error against SVHN: Table 3 of the paper."""
_OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}
_MEASURES: dict[str, Better] = {"auroc": "high", "aupr": "high", "fpr95": "low"}


@images.after_training
def work(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """How well each uncertainty score tells test images from those of other data.

    Options: ``against``, names of other data; ``test``, images of each side at most.
    """
    count = run.options["test"]
    known = images.answer(fitted, images.subset(fitted.task.part("test"), 0, count), run)
    numbers: dict[str, Any] = images.scored(known, fitted, "clean")
    for other in run.options["against"]:
        x = evaluation.other_data(fitted.problem, other, fitted.configs[0].data.directory)
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
        labels = torch.zeros(len(rows), dtype=torch.int64)
        unknown = images.answer(fitted, Part(x[rows], labels), run)
        for score in SCORES:
            measured = metrics.detection(known[score], unknown[score])
            numbers |= {f"{other}/{score}/{name}": value for name, value in measured.items()}
    return numbers


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set."""
    data = UNKNOWN[preset]
    options = {}
    for name, others in data.items():
        count = 30000 if preset == "paper" else images.sizes(preset, name)["test"]
        options[name] = {"against": list(others), "test": count}
    return images.runs(NAME, preset, chosen, data, options, 1 if preset == "smoke" else 5)


def section(records: Sequence[Record]) -> Section:
    """A table for each pair, comparisons and claims."""

    def describe(data: str) -> tuple[list[Table], list[Compared]]:
        others = _others(records, data)
        # Where SVHN was not run, the rows of the paper are shown on their own.
        shown = others if data not in PAPER or "svhn" in others else ["svhn", *others]
        return [_table(records, data, other) for other in shown], [
            Compared(data, _auroc(other), f"AUROC of {_pair(data, other)}") for other in others
        ]

    return images.by_data(records, DATA, NAME, describe, claims(records))


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of detection, and what became of it."""
    # SVHN where it was run, else the other CIFAR.
    used = {d: "svhn" if "svhn" in _others(records, d) else _OTHER[d] for d in CIFAR}
    svhn, stand_in = "svhn" in used.values(), " Tested with the other CIFAR in SVHN's place."
    scale = images.scale(records)
    absent = "" if svhn else " SVHN is not among the data that were run."
    cifar10 = {"cifar10": used["cifar10"]}
    return [
        _judge("svhn", records, dict.fromkeys(CIFAR, "svhn"), absent + scale),
        _judge("other", records, _OTHER, scale),
        _judge("ensembles", records, used, ("" if svhn else stand_in) + scale),
        _judge("id", records, cifar10, ("" if "svhn" in cifar10.values() else stand_in) + scale),
    ]


def _judge(name: str, records: Sequence[Record], unknown: dict[str, str], note: str) -> Claim:
    """A claim on some pairs of data; the paper has margins for SVHN alone."""
    ours = judged.entry(f"ood.{name}").get("ours", "gflowout")
    margins = {
        _pair(data, other): {
            arm: PAPER[data][ours][0] - numbers[0] for arm, numbers in PAPER[data].items()
        }
        for data, other in unknown.items()
        if other == "svhn"
    }
    pairs = {_pair(data, other): (data, _auroc(other)) for data, other in unknown.items()}
    return judged.judge(f"ood.{name}", records, pairs, margins, note)


def _pair(data: str, other: str) -> str:
    return f"{TITLES[data]} against {TITLES[other]}"


def _auroc(other: str) -> str:
    return f"{other}/dempster_shafer/auroc"


def _others(records: Sequence[Record], data: str) -> list[str]:
    """What these data were tested against, SVHN first."""
    names = {
        key.split("/")[0]
        for record in records
        if record["data"] == data
        for key in record["metrics"]
        if key.endswith("/auroc") and key.count("/") == 2
    }
    return sorted(names, key=lambda name: (name != "svhn", name))


def _table(records: Sequence[Record], data: str, other: str) -> Table:
    columns = {
        f"{other}/{score}/{name}": Column(f"{name.upper()}, {title}", better)
        for score, title in SCORES.items()
        for name, better in _MEASURES.items()
    }
    count = next(record["options"]["test"] for record in records if record["data"] == data)
    caption = f"Up to {count:,} images of each."
    if other not in _others(records, data):
        columns = dict(list(columns.items())[:2])  # what the paper has
        caption = f"Numbers of the paper; {TITLES[other]} is not among the data that were run."
    rows = sections.arm_rows(records, data, list(columns))
    if other == "svhn":
        none = [None] * (len(columns) - 2)
        paper = {
            arm: [Cell(auroc, first), Cell(aupr, second), *none]
            for arm, (auroc, first, aupr, second) in PAPER[data].items()
        }
        rows += sections.paper_rows(paper)
    return Table(_pair(data, other), "Method", list(columns.values()), rows, caption)


STUDY = Study(
    name=NAME,
    **judged.entry(f"{NAME}.study"),
    work="gflowout.studies.ood:work",
    runs=runs,
    section=section,
    tuning=lambda preset: images.tuning(preset, UNKNOWN[preset]),
)
