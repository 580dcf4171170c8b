"""Telling unknown inputs from known ones by uncertainty: Table 3.

A model of CIFAR-10 or CIFAR-100 against SVHN and against the other CIFAR, one of MNIST against
notMNIST. Models are those of :mod:`gflowout.studies.robustness`. The paper
has SVHN alone, and one score; the other pairs, scores and FPR95 are additions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gflowout.app import evaluation, metrics
from gflowout.app.tasks import Part
from gflowout.runs import Context, Result, Run
from gflowout.studies import images, images_presets
from gflowout.studies import images_sections as say
from gflowout.studies.framework import verdicts
from gflowout.studies.framework.compare import pair_by_pair
from gflowout.studies.framework.content import Block, Cell, Claim, Column, Section, Table, Text
from gflowout.studies.framework.study import TUNING, Chosen, Record, Study
from gflowout.studies.images import TITLES
from gflowout.studies.images_presets import CIFAR

NAME = "ood"
UNKNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "smoke": {"mnist": ("notmnist",), "cifar100": ("cifar10",)},
    "cpu": {"mnist": ("notmnist",), "cifar10": ("cifar100",), "cifar100": ("cifar10",)},
    "paper": {
        "mnist": ("notmnist",),
        "cifar10": ("svhn", "cifar100"),
        "cifar100": ("svhn", "cifar10"),
    },
}
"""By preset and data what a model is tested against. SVHN is not in "cpu": it is not on every disk,
and the runs of a preset are fixed."""
SCORES = {
    "dempster_shafer": "Dempster-Shafer",
    "entropy": "entropy",
    "mutual_information": "mutual information",
}
_SEEDS = {
    "smoke": {"mnist": 1, "cifar100": 1},
    "cpu": {"mnist": 5, "cifar10": 5, "cifar100": 5},
    "paper": {"mnist": 5, "cifar10": 5, "cifar100": 5},
}
_SIZES = {
    "smoke": {"mnist": 40, "cifar10": 20, "cifar100": 20},
    "cpu": {"mnist": 10000, "cifar10": 1000, "cifar100": 1000},
    "paper": dict.fromkeys(images_presets.DATA, 30000),
}
"""Images of each side at most."""
PAPER: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "cifar10": {
        "concrete": (0.909, 0.021, 0.872, 0.017), "contextual": (0.915, 0.011, 0.874, 0.014),
        "mc": (0.882, 0.009, 0.869, 0.010), "ensemble": (0.935, 0.007, 0.912, 0.006),
        "id-gflowout": (0.781, 0.021, 0.843, 0.018), "gflowout": (0.955, 0.013, 0.924, 0.019),
    },
    "cifar100": {
        "concrete": (0.795, 0.017, 0.691, 0.021), "contextual": (0.812, 0.013, 0.728, 0.014),
        "mc": (0.783, 0.011, 0.715, 0.021), "ensemble": (0.842, 0.008, 0.731, 0.017),
        "id-gflowout": (0.819, 0.008, 0.707, 0.012), "gflowout": (0.839, 0.010, 0.741, 0.012),
    },
}  # fmt: skip
"""AUROC, its error, AUPR, its error against SVHN: Table 3 of the paper."""
_OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}
_MARGIN = f"the paper's margin ({verdicts.SLACK:g} where it has none)"


def work(run: Run, context: Context) -> Result:
    """A trial, or one network whose uncertainty is to find inputs of other data.

    Options: ``against``, names of other data; ``test``, images of each side at most.
    """
    if run.study == TUNING:
        return images.trial(run, context)
    found = images.trained(run, context)
    count = run.options["test"]
    known = images.answer(found, images.subset(found.task.part("test"), 0, count), run)
    numbers: dict[str, Any] = {**found.facts, **images.scored(known, found, "clean")}
    directory = found.configs[0].data.directory
    for other in run.options["against"]:
        x = evaluation.other_data(found.problem, other, directory)
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
        labels = torch.zeros(len(rows), dtype=torch.int64)
        unknown = images.answer(found, Part(x[rows], labels), run)
        for score in SCORES:
            measured = metrics.detection(known[score], unknown[score])
            numbers |= {f"{other}/{score}/{name}": value for name, value in measured.items()}
    return {"metrics": numbers, "epochs": found.epochs, "data": found.task.fingerprints}


def tuning(preset: str) -> list[Run]:
    """The trials of robustness on the same data."""
    return images.tuning(preset, UNKNOWN[preset])


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set."""
    data = UNKNOWN[preset]
    options = {name: {"against": list(data[name]), "test": _SIZES[preset][name]} for name in data}
    return images.runs(NAME, preset, chosen, data, options, _SEEDS[preset])


def section(records: Sequence[Record]) -> Section:
    """A table for each pair, comparisons and claims."""
    blocks: list[Block] = []
    findings, details = [], []
    there = say.present(records, images_presets.DATA)
    for data in there:
        blocks.append(Text([f"{say.setting(records, data)}, {say.seeds_of(records, data)}."]))
        others = _others(records, data)
        if data in PAPER and "svhn" not in others:
            blocks.append(_table(records, data, "svhn"))  # the paper's rows alone
        for other in others:
            blocks.append(_table(records, data, other))
            what = f"AUROC of {TITLES[data]} against {TITLES[other]}"
            found = say.comparisons(records, data, _auroc(other), "high")
            findings += say.overview(found, what)
            details += say.sentences(found, what, percent=False)
    if there:
        how = (
            "Unknown inputs are the positive class and uncertainty is its score: Dempster-Shafer "
            "from the mean logits of all draws, entropy of the mean probabilities, mutual "
            "information between draws and class. A network without draws has no mutual "
            "information. CIFAR-10 and CIFAR-100 have pictures of like things, which makes them "
            "harder to tell apart than SVHN is."
        )
        blocks += [Text([how]), *pair_by_pair(details)]
    return Section(findings, blocks, claims(records), tuple(there))


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of detection, and what became of it."""
    made = []
    for pairs, where in (
        (dict.fromkeys(CIFAR, "svhn"), "against SVHN (Table 3)"),
        (_OTHER, "with the other CIFAR in the place of SVHN, which is our stand-in"),
    ):
        outcomes = {
            f"{TITLES[data]} against {TITLES[other]}": verdicts.beats(
                say.comparisons(records, data, _auroc(other), "high", others=say.BASELINES),
                say.BASELINES,
                {arm: _margin(data, other, "gflowout", arm) for arm in say.BASELINES},
            )
            for data, other in pairs.items()
        }
        claim = (
            "GFlowOut detects unknown inputs better than MC, concrete and contextual dropout, with "
            f"CIFAR-10 and with CIFAR-100, {where}."
        )
        rule = (
            "AUROC of the Dempster-Shafer score is better than that of each of the three, by the "
            f"paired 95 % interval; it is not if another interval is below {_MARGIN}"
        )
        made.append(_without_svhn(say.verdict(claim, outcomes, 2, rule), outcomes))
    made += [_ensembles(records), _poor_id(records)]
    return [say.noting(each, say.scale(records)) for each in made]


def _ensembles(records: Sequence[Record]) -> Claim:
    claim = "GFlowOut keeps up with deep ensembles in detection (Table 3)."
    rule = (
        "the paired 95 % interval of the AUROC of the Dempster-Shafer score, less that of the "
        f"ensemble, is above -{verdicts.SLACK:g}; it does not hold if it is not, and below 0"
    )
    outcomes, used = dict[str, bool | None](), set[str]()
    for data in CIFAR:
        other = _unknown(records, data)
        used.add(other)
        found = say.comparisons(records, data, _auroc(other), "high", others=("ensemble",))
        pair = f"{TITLES[data]} against {TITLES[other]}"
        outcomes[pair] = verdicts.holds_up(found, ("ensemble",))
    return _noting(say.verdict(claim, outcomes, 2, rule), used)


def _poor_id(records: Sequence[Record]) -> Claim:
    claim = "ID-GFlowOut detects poorly with CIFAR-10: worse than every other method (Table 3)."
    rule = (
        "every other dropout method has a better AUROC, by the paired 95 % interval; it has not if "
        f"another interval is below {_MARGIN}"
    )
    other, ours = _unknown(records, "cifar10"), "id-gflowout"
    found = []
    for arm in (*say.BASELINES, "gflowout"):
        pair = say.comparisons(records, "cifar10", _auroc(other), "high", ours=arm, others=(ours,))
        found.append(verdicts.beats(pair, (ours,), {ours: _margin("cifar10", other, arm, ours)}))
    bad = verdicts.every(found)
    outcome = say.verdict(claim, {f"CIFAR-10 against {TITLES[other]}": bad}, 1, rule)
    return _noting(outcome, {other})


def _unknown(records: Sequence[Record], data: str) -> str:
    """SVHN where it was run, else the other CIFAR."""
    return "svhn" if "svhn" in _others(records, data) else _OTHER[data]


def _without_svhn(claim: Claim, outcomes: Mapping[str, bool | None]) -> Claim:
    if any("SVHN" in name for name in outcomes) and all(v is None for v in outcomes.values()):
        return say.noting(claim, " SVHN is not among the data that were run.")
    return claim


def _noting(claim: Claim, used: set[str]) -> Claim:
    note = "" if "svhn" in used else " Tested with the other CIFAR in SVHN's place."
    return say.noting(claim, note)


def _margin(data: str, unknown: str, ours: str, other: str) -> float:
    """By how much the paper has one method ahead of another; it has figures for SVHN alone."""
    return PAPER[data][ours][0] - PAPER[data][other][0] if unknown == "svhn" else verdicts.SLACK


def _auroc(other: str) -> say.Measure:
    return say.metric(f"{other}/dempster_shafer/auroc")


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
    columns, measures = [], []
    for score, title in SCORES.items():
        for what, better in (("auroc", "high"), ("aupr", "high"), ("fpr95", "low")):
            columns.append(Column(f"{what.upper()}, {title}", better))  # type: ignore[arg-type]
            measures.append(say.metric(f"{other}/{score}/{what}"))
    count = next(record["options"]["test"] for record in records if record["data"] == data)
    caption = f"Up to {count:,} images of each."
    if other not in _others(records, data):
        columns, measures = columns[:2], measures[:2]  # what the paper has
        caption = f"Figures of the paper; {TITLES[other]} is not among the data that were run."
    paper: dict[str, list[float | Cell | None]] = {}
    if other == "svhn":
        paper = {
            arm: [Cell(auroc, first), Cell(aupr, second), *[None] * (len(columns) - 2)]
            for arm, (auroc, first, aupr, second) in PAPER[data].items()
        }
    title = f"{TITLES[data]} against {TITLES[other]}"
    return Table(title, "Method", columns, say.rows(records, data, measures, paper), caption)


STUDY = Study(
    name=NAME,
    title="Finding unknown inputs",
    question="Does a model's uncertainty tell pictures that are unlike its training data?",
    paper="Table 3",
    work="gflowout.studies.ood:work",
    runs=runs,
    section=section,
    tuning=tuning,
)
assert tuple(SCORES) == evaluation.UNCERTAINTIES
