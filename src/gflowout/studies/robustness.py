"""Robustness to shifted images: Table 1, the top of Figure 2 and the curves of the appendix.

MNIST with an MLP, CIFAR-10 and CIFAR-100 with ResNet-18; clean, rotated by any angle, and with
snow, frost and Gaussian noise at severities 1 to 5. The paper corrupts CIFAR alone and gives
accuracy alone: corrupted MNIST, NLL and calibration are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gflowout.runs import Context, Result, Run
from gflowout.studies import images, images_presets
from gflowout.studies import images_sections as say
from gflowout.studies.framework import verdicts
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.compare import pair_by_pair
from gflowout.studies.framework.content import Block, Cell, Claim, Column, Row, Section, Table, Text
from gflowout.studies.framework.study import TUNING, Chosen, Record, Study
from gflowout.studies.images import SHIFTS, TITLES

NAME = "robustness"
DATA = images_presets.DATA
_FEW = ("mnist", "cifar10")
"""Data of "smoke"; CIFAR-100 is there in the study of unknown inputs."""
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "cifar10": {
        "mc": (0.9147, 0.2704), "concrete": (0.9013, 0.3068), "contextual": (0.9012, 0.2911),
        "id-gflowout": (0.9185, 0.3057), "gflowout": (0.9152, 0.3100),
    },
    "cifar100": {
        "mc": (0.6719, 0.1570), "concrete": (0.6249, 0.1643), "contextual": (0.6230, 0.1593),
        "id-gflowout": (0.6999, 0.1629), "gflowout": (0.6980, 0.1701),
    },
    "mnist": {
        "mc": (0.8738, 0.4396), "concrete": (0.9736, 0.6610), "contextual": (0.9815, 0.6620),
        "id-gflowout": (0.9705, 0.7019), "gflowout": (0.9675, 0.6641),
    },
}  # fmt: skip
"""Accuracy on clean and rotated images, Table 1 of the paper."""

_SIX = (
    "GFlowOut outperforms or matches the baselines in five of six experiments with corrupted "
    "images (Figure 2, top)."
)
_TOO_FEW = f"Fewer than {verdicts.LEAST_SEEDS} seeds of MNIST have been run."
_ROTATED = say.metric("rotated/accuracy")
_CLEAN = say.metric("clean/accuracy")


def work(run: Run, context: Context) -> Result:
    """A trial, or one network scored on clean, rotated and corrupted images."""
    return images.trial(run, context) if run.study == TUNING else images.curves(run, context)


def tuning(preset: str) -> list[Run]:
    """Trials of every arm on every data set."""
    return images.tuning(preset, DATA)


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set."""
    data = _FEW if preset == "smoke" else DATA
    return images.runs(NAME, preset, chosen, data, images_presets.scored(preset, data))


def section(records: Sequence[Record]) -> Section:
    """Tables beside the paper's, curves, comparisons and claims."""
    there = say.present(records, DATA)
    blocks: list[Block] = [Text(_how(records, there))] if there else []
    findings, details = [], []
    for data in there:
        blocks += [table(records, data), *say.shown_pictures(records, data)]
        blocks += say.severity_curves(records, data)
        for what, measure, better, percent in (
            (f"accuracy on rotated {TITLES[data]}", _ROTATED, "high", True),
            (f"accuracy on corrupted {TITLES[data]}", say.corrupted("accuracy"), "high", True),
            (f"NLL on corrupted {TITLES[data]}", say.corrupted("nll"), "low", False),
            (f"accuracy on clean {TITLES[data]}", _CLEAN, "high", True),
        ):
            found = say.comparisons(records, data, measure, better)  # type: ignore[arg-type]
            findings += say.overview(found, what)
            details += say.sentences(found, what, percent=percent)
    if there:
        blocks.append(tuned(records, there))
    blocks += pair_by_pair(details)
    return Section(findings, blocks, claims(records), tuple(there))


def table(records: Sequence[Record], data: str, paper: bool = True) -> Table:
    """Clean, rotated and corrupted scores of every arm, with the paper's."""
    columns = [
        say.share("Accuracy", digits=2), Column("NLL", "low"), say.share("ECE", "low", 2),
        say.share("Accuracy, rotated", digits=2), Column("NLL, rotated", "low"),
        say.share("Accuracy, corrupted", digits=2), Column("NLL, corrupted", "low"),
        say.share("ECE, corrupted", "low", 2),
    ]  # fmt: skip
    measures = [
        _CLEAN, say.metric("clean/nll"), say.metric("clean/ece"),
        _ROTATED, say.metric("rotated/nll"),
        *(say.corrupted(what) for what in say.METRICS),
    ]  # fmt: skip
    published = {
        arm: [clean, None, None, rotated, None, None, None, None]
        for arm, (clean, rotated) in PAPER[data].items()
    }
    caption = "Corrupted: mean over snow, frost and Gaussian noise at severities 1 to 5."
    found = say.rows(records, data, measures, published if paper else None)
    return Table(TITLES[data], "Method", columns, found, caption)


def tuned(records: Sequence[Record], there: Sequence[str]) -> Table:
    """What every arm has chosen on validation data."""
    chosen = {(each["data"], each["method"]): each["options"].get("tuned", {}) for each in records}
    rows = []
    for label, arm in ARMS.items():
        cells = []
        for data in there:
            options = chosen.get((data, label), {})
            parts = [f"{key.split('.')[-1]} {value:g}" for key, value in options.items()]
            cells.append(Cell(text=", ".join(parts) or "defaults"))
        if any((data, label) in chosen for data in there):
            rows.append(Row(arm.title, cells))
    columns = [Column(TITLES[data]) for data in there]
    return Table("Chosen on validation data", "Method", columns, rows)


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of robustness, and what became of it."""
    better = {
        TITLES[data]: verdicts.beats(
            say.comparisons(records, data, _ROTATED, "high", others=say.BASELINES),
            say.BASELINES,
            {arm: PAPER[data]["gflowout"][1] - PAPER[data][arm][1] for arm in say.BASELINES},
        )
        for data in DATA
    }
    rotations = say.verdict(
        "Models trained with GFlowOut are in general more robust to random rotations than random, "
        "concrete and contextual dropout (Table 1).",
        better,
        2,
        "on a data set, accuracy on rotated images is better than that of each of the three, by "
        "the paired 95 % interval; it is not if another interval is below the paper's margin",
    )
    return [
        say.noting(rotations, say.scale(records) + _reach(records)),
        matching(records, images_presets.CIFAR, _SIX),
        _random_dropout(records),
        _level(records),
    ]


def matching(records: Sequence[Record], data: Sequence[str], claim: str) -> Claim:
    """The claim that we match all baselines under nearly every corruption."""
    outcomes, reach = dict[str, bool | None](), list[float]()
    for name in data:
        for shift, title in SHIFTS.items():
            measure = say.corrupted("accuracy", shift)
            found = say.comparisons(records, name, measure, "high", others=say.BASELINES)
            outcomes[f"{TITLES[name]} {title}"] = verdicts.holds_up(found, say.BASELINES)
            reach += [e.high - e.low for e in found.values() if e.verdict != "not comparable"]
    made = say.verdict(
        claim,
        outcomes,
        max(1, len(outcomes) - 1),
        "in an experiment, the paired 95 % interval of mean accuracy over severities 1 to 5, less "
        "that of random, concrete or contextual dropout, is above "
        f"-{100 * verdicts.SLACK:g} point; it does not hold if one is not, and below 0",
    )
    width = f" Intervals are ±{50 * fmean(reach):.1f} points on average." if reach else ""
    return say.noting(made, width + say.scale(records) + _reach(records))


def _reach(records: Sequence[Record]) -> str:
    """How well the networks on CIFAR were trained: without shifts, beside the paper's."""
    parts = []
    for data in images_presets.CIFAR:
        found = say.cell(_CLEAN(records, data, "mc")).mean
        if found is not None:
            theirs = PAPER[data]["mc"][0]
            parts.append(f"{TITLES[data]} {100 * found:.0f} % (the paper's: {100 * theirs:.0f} %)")
    return f" Clean accuracy of MC dropout: {', '.join(parts)}." if parts else ""


def _random_dropout(records: Sequence[Record]) -> Claim:
    claim = (
        "On clean MNIST random dropout falls far behind learned masks (87.4 against 96.8 % and "
        "more, Table 1)."
    )
    rule = "Rule: GFlowOut's mean accuracy is at least 5 points above that of MC dropout."
    learned, random = (say.cell(_CLEAN(records, "mnist", arm)) for arm in ("gflowout", "mc"))
    least = min(learned.runs, random.runs)
    if learned.mean is None or random.mean is None or least < verdicts.LEAST_SEEDS:
        return Claim(claim, "not testable here", f"{rule} {_TOO_FEW}")
    why = f"{rule} Here: {100 * learned.mean:.2f} and {100 * random.mean:.2f} %."
    good = learned.mean - random.mean >= 0.05
    return Claim(claim, "reproduced" if good else "not reproduced", why)


def _level(records: Sequence[Record]) -> Claim:
    claim = "Two thirds of the digits of rotated MNIST are read rightly (66.4 % with GFlowOut)."
    rule = "Rule: GFlowOut's mean accuracy is within 5 points of the paper's."
    found = say.cell(_ROTATED(records, "mnist", "gflowout"))
    if found.mean is None or found.runs < verdicts.LEAST_SEEDS:
        return Claim(claim, "not testable here", f"{rule} {_TOO_FEW}")
    best = max(
        (say.cell(_ROTATED(records, "mnist", arm)).mean or 0.0, ARMS[arm].title) for arm in ARMS
    )
    why = (
        f"{rule} Here: {100 * found.mean:.2f} %; the best arm, {best[1]}, has "
        f"{100 * best[0]:.2f} %. Angles are uniform from 0 to 360 degrees, as the paper says."
    )
    good = abs(found.mean - PAPER["mnist"]["gflowout"][1]) <= 0.05
    return Claim(claim, "reproduced" if good else "not reproduced", why)


def _how(records: Sequence[Record], there: Sequence[str]) -> list[str]:
    lines = [f"{say.setting(records, data)}, {say.seeds_of(records, data)}." for data in there]
    return [
        *lines,
        "Every arm had the same number of trials (learning rate and one option of its own), scored "
        "by NLL on validation data; trials may use fewer images and epochs than the runs. All arms "
        "and seeds see the same test images with the same angles, flakes and noise.",
        "The paper corrupts CIFAR alone and reports accuracy; corrupted MNIST, NLL, ECE, the "
        "network without dropout, the ensemble, GFlowOut + ID and the control with β = 0 are "
        "additions. Its corruption curves are pictures without numbers, so none stand beside ours.",
    ]


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
