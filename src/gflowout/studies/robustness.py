"""Robustness to shifted images: Table 1, the top of Figure 2 and the curves of the appendix.

MNIST with an MLP, CIFAR-10 and CIFAR-100 with ResNet-18; clean, rotated by any angle, and with
snow, frost and Gaussian noise at severities 1 to 5. The paper corrupts CIFAR alone and gives
accuracy alone: corrupted MNIST, NLL and calibration are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gflowout.runs import Context, Result, Run
from gflowout.studies import images
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import LEAST_SEEDS
from gflowout.studies.framework.content import (
    Block,
    Claim,
    Column,
    Curves,
    Picture,
    Pictures,
    Section,
    Table,
    Text,
)
from gflowout.studies.framework.sections import Compared, share
from gflowout.studies.framework.statistics import by_seed
from gflowout.studies.framework.study import Chosen, Record, Study
from gflowout.studies.images import CIFAR, DATA, SAME, SEVERITIES, SHIFTS, TITLES

NAME = "robustness"
TEXTS = judged.entry(f"{NAME}.texts")
PAPER = judged.paper(NAME)
"""Accuracy on clean and rotated images, Table 1 of the paper."""
_DATA = {"smoke": DATA[:2], "cpu": DATA, "paper": DATA}
METRICS = {
    "accuracy": ("accuracy", True), "nll": ("NLL", False), "ece": ("calibration error", True)
}  # fmt: skip
"""Titles, and whether they are shares."""


def work(run: Run, context: Context) -> Result:
    """A trial, or one network scored on clean, rotated and corrupted images."""
    return images.trial_or(images.curves, run, context)


def tuning(preset: str) -> list[Run]:
    """Trials of every arm on every data set."""
    return images.tuning(preset, DATA)


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set; CIFAR-100 of "smoke" is in the study of unknown inputs."""
    data = _DATA[preset]
    return images.runs(NAME, preset, chosen, data, images.scored_images(preset, data))


def section(records: Sequence[Record]) -> Section:
    """Tables beside the paper's, curves, comparisons and claims."""
    there = sections.present(records, DATA)
    blocks: list[Block] = []
    if there:
        blocks.append(Text([*(images.setting(records, data) for data in there), *TEXTS["about"]]))
    compared = []
    for data in there:
        blocks += [table(records, data), *shown_pictures(records, data)]
        blocks += severity_curves(records, data)
        title = TITLES[data]
        compared += [
            Compared(data, "rotated/accuracy", f"accuracy on rotated {title}", percent=True),
            Compared(data, corrupted("accuracy"), f"accuracy on corrupted {title}", percent=True),
            Compared(data, corrupted("nll"), f"NLL on corrupted {title}", "low"),
            Compared(data, "clean/accuracy", f"accuracy on clean {title}", percent=True),
        ]
    if there:
        columns = {data: TITLES[data] for data in there}
        blocks.append(sections.choices(records, columns, "Chosen on validation data"))
    findings, details = sections.against_others(records, compared)
    blocks += sections.pair_by_pair(details)
    return Section(findings, blocks, claims(records), tuple(there))


def corrupted(metric: str, shift: str | None = None) -> list[str]:
    """Names of a metric at severities 1 to 5 of a corruption, or of all of them."""
    kinds = SHIFTS if shift is None else (shift,)
    return [f"{kind}-{severity}/{metric}" for kind in kinds for severity in SEVERITIES]


def table(records: Sequence[Record], data: str, paper: bool = True) -> Table:
    """Clean, rotated and corrupted scores of every arm, with the paper's."""
    columns = [
        share("Accuracy"), Column("NLL", "low"), share("ECE", "low"),
        share("Accuracy, rotated"), Column("NLL, rotated", "low"),
        share("Accuracy, corrupted"), Column("NLL, corrupted", "low"),
        share("ECE, corrupted", "low"),
    ]  # fmt: skip
    clean = [f"clean/{name}" for name in METRICS]
    metrics = [*clean, "rotated/accuracy", "rotated/nll", *map(corrupted, METRICS)]
    rows = sections.arm_rows(records, data, metrics)
    if paper:
        none = [None] * 4
        rows += sections.paper_rows(
            {arm: [clean, *none[:2], turned, *none] for arm, (clean, turned) in PAPER[data].items()}
        )
    caption = "Corrupted: mean over snow, frost and Gaussian noise at severities 1 to 5."
    return Table(TITLES[data], "Method", columns, rows, caption)


def severity_curves(records: Sequence[Record], data: str) -> list[Curves]:
    """A plot for each corruption and metric: the metric against the severity, a curve per arm."""
    made = []
    for shift, name in SHIFTS.items():
        for metric, (title, percent) in METRICS.items():
            names = [f"{SAME}/{metric}", *corrupted(metric, shift)]
            lines = sections.lines(records, data, dict(enumerate(names)))
            about = f"{TITLES[data]}, {name}: {title}"
            made.append(Curves(about, "severity", title, lines, percent=percent))
    return [plot for plot in made if plot.series]


def shown_pictures(records: Iterable[Record], data: str) -> list[Pictures]:
    """Pictures of the first record of these data that has some."""
    for record in records:
        if record["data"] == data and record["metrics"].get("pictures"):
            kept: list[Mapping[str, Any]] = record["metrics"]["pictures"]
            caption = (
                "Upright and rotated test images, sorted by the entropy of what "
                f"{sections.TITLES[record['method']]} (seed {record['seed']}) says; bars are class "
                "probabilities, with their standard deviation over the draws."
            )
            title = f"{TITLES[data]}: from certain to uncertain"
            shown = [Picture(**fields) for fields in kept]
            return [Pictures(title, record["metrics"]["classes"], shown, caption)]
    return []


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of robustness, and what became of it."""
    rotated = {TITLES[data]: (data, "rotated/accuracy") for data in DATA}
    margins = {
        TITLES[data]: {arm: PAPER[data]["gflowout"][1] - turned for arm, (_, turned) in own.items()}
        for data, own in PAPER.items()
    }
    note = images.scale(records) + _reach(records)
    made = [
        judged.judge("robustness.rotations", records, rotated, margins, note),
        matching("robustness.corruptions", records, CIFAR),
    ]
    learned, random = (_mean(records, arm, "clean") for arm in ("gflowout", "mc"))
    held = None if learned is None or random is None else learned - random >= 5
    made.append(judged.template("robustness.random_dropout", held, learned=learned, random=random))
    mean = _mean(records, "gflowout", "rotated")
    most, best = max(
        (_mean(records, arm, "rotated", 1) or 0.0, title) for arm, title in sections.TITLES.items()
    )
    held = None if mean is None else abs(mean / 100 - PAPER["mnist"]["gflowout"][1]) <= 0.05
    made.append(judged.template("robustness.digits", held, mean=mean, best=best, most=most))
    return made


def matching(name: str, records: Sequence[Record], data: Sequence[str]) -> Claim:
    """The claim that we match all baselines under nearly every corruption."""
    experiments = {
        f"{TITLES[source]} {title}": (source, corrupted("accuracy", shift))
        for source in data
        for shift, title in SHIFTS.items()
    }
    note = images.scale(records) + _reach(records)
    return judged.judge(name, records, experiments, note=note)


def _mean(
    records: Sequence[Record], arm: str, images: str, least: int = LEAST_SEEDS
) -> float | None:
    """Mean accuracy on MNIST in %, over enough seeds."""
    values = by_seed(records, "mnist", arm, f"{images}/accuracy").values()
    return 100 * sum(values) / len(values) if len(values) >= least else None


def _reach(records: Sequence[Record]) -> str:
    """How well the networks on CIFAR were trained: without shifts, beside the paper's."""
    parts = []
    for data in CIFAR:
        mean = sections.cell(by_seed(records, data, "mc", "clean/accuracy").values()).mean
        if mean is not None:
            theirs = PAPER[data]["mc"][0]
            parts.append(f"{TITLES[data]} {100 * mean:.0f} % (the paper's: {100 * theirs:.0f} %)")
    return f" Clean accuracy of MC dropout: {', '.join(parts)}." if parts else ""


STUDY = Study(
    name=NAME,
    title="Robustness to shifted images",
    question="How well do predictions hold when test images are turned or spoiled by weather and "
    "noise?",
    paper="Table 1, Figure 2 (top), appendix",
    work="gflowout.studies.robustness:work",
    runs=runs,
    section=section,
    tuning=tuning,
    needs=images.with_frost,
)
