"""Death in intensive care, in hospitals that were not trained on: Table 4.

The first 48 hours' drugs of a stay, an MLP of three hidden layers, all methods and a logistic
regression. ``cpu`` takes the open demo of eICU, where each seed draws other test hospitals, and
tunes anew for each draw: else a patient on whom an option was chosen could be in another seed's
test. ``paper`` takes the full database and the hospital that the paper's appendix names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gflowout.app import config as configs
from gflowout.app import evaluation as scores
from gflowout.app import sources
from gflowout.app.preprocess import Target
from gflowout.app.tasks import Part, Task
from gflowout.core.text import counted
from gflowout.runs import Context, Result, Run
from gflowout.studies import clinical_scores, models
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import sections
from gflowout.studies.framework.content import (
    Better,
    Block,
    Claim,
    Column,
    Curves,
    Section,
    Table,
    Text,
)
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import by_seed, holm, pair
from gflowout.studies.framework.study import (
    ARMS,
    TUNING,
    Arm,
    Chosen,
    Options,
    Record,
    Study,
    prefixed,
    trials,
)

LOGISTIC = Arm("logistic", "logistic", "Logistic regression", own=("penalty", (30.0, 10.0, 100.0)))
"""Not of the paper: what a hospital would try first."""
ALL = {**ARMS, LOGISTIC.label: LOGISTIC}

BATCH = 500
_BASE: Options = {
    "data.valid": 0.3, "data.batch_size": 100, "backbone.name": "mlp",
    "backbone.hidden": [128, 128, 128], "fit.valid_samples": 5,
}  # fmt: skip
_DEMO: Options = {**_BASE, "data.source": "eicu-demo", "data.options.test_hospital": 0.3}
_SIZES: dict[str, Options] = {
    "smoke": {
        **_DEMO, "data.limit": 300, "data.batch_size": 30, "backbone.hidden": [16, 16, 16],
        "fit.epochs": 2, "fit.valid_samples": 2,
    },
    "cpu": {**_DEMO, "fit.epochs": 40, "fit.patience": 8},
    "paper": {
        **_BASE, "data.source": "eicu", "data.options.test_hospital": 167, "fit.epochs": 100,
        "fit.patience": 10, "fit.log_z_lr": 0.1,
    },
}  # fmt: skip
_RATES = {"smoke": (3e-3,), "cpu": (1e-3,), "paper": (3e-4, 1e-3, 3e-3)}
_OWN = {"smoke": 1, "cpu": 3, "paper": 3}
SEEDS = {"smoke": 1, "cpu": 10, "paper": 9}
SAMPLES = {"smoke": 5, "cpu": 20, "paper": 20}

TITLES = {label: arm.title for label, arm in ALL.items()}
DATA = {"eicu-demo": "eICU demo", "eicu": "eICU"}
PUBLISHED = judged.paper("clinical")
"""Table 4 of the paper: macro F1, precision, recall. Its "Random" is MC dropout here."""
_MACRO = {"f1": "macro F1", "precision": "macro precision", "recall": "macro recall"}
_PROPER: dict[str, tuple[str, Better]] = {
    "test/auroc": ("AUROC", "high"),
    "test/aupr": ("AUPRC", "high"),
    "test/brier": ("Brier score", "low"),
    "test/nll": ("NLL", "low"),
    "test/ece": ("ECE", "low"),
    "risk/error": ("error, area", "low"),
    "risk/brier": ("Brier, area", "low"),
}
_COMPARED: dict[str, tuple[str, Better]] = {
    "chosen/f1": ("macro F1", "high"),
    "test/auroc": ("AUROC", "high"),
    "test/nll": ("NLL", "low"),
    "risk/brier": ("the area under the Brier score against coverage", "low"),
}


def place(preset: str, seed: int) -> str:
    """What the trials for a seed are called: one set of trials for each draw of test hospitals.

    Examples:
        >>> place("cpu", 3), place("paper", 3)
        ('eicu-demo draw 3', 'eicu')
    """
    source: str = _SIZES[preset]["data.source"]
    return source if preset == "paper" else f"{source} draw {seed}"


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation data of the hospitals that are trained on."""
    seeds = range(1) if preset == "paper" else range(SEEDS[preset])
    return [
        Run(TUNING, arm.label, place(preset, seed), seed, {**_options(preset, arm), "tuned": tuned})
        for seed in seeds
        for arm in ALL.values()
        for tuned in _trials(preset, arm)
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every draw of hospitals, seed by seed."""
    return [
        Run(
            "clinical",
            arm.label,
            _SIZES[preset]["data.source"],
            seed,
            {
                **_options(preset, arm),
                "tuned": chosen.get((place(preset, seed), arm.label), _trials(preset, arm)[0]),
            },
        )
        for seed in range(SEEDS[preset])
        for arm in ALL.values()
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: train and score on validation data. A run: train, then score the test hospitals."""
    trial = run.study == TUNING
    arm = ALL[run.method]
    if arm is LOGISTIC:
        metrics: dict[str, Any] = {}
        task, answer = _linear(run)
        epochs: list[Mapping[str, Any]] = []
    else:
        # Of an ensemble one member is tuned: what is good for it is good for all.
        wanted = dataclasses.replace(arm, members=1) if trial else arm
        # Members differ in their seed, not in their hospitals.
        base = {**models.dotted(run), "data.seed": run.seed}
        fitted = models.fitted(wanted, base, run.options["tuned"], run.seed, context)
        task, epochs, metrics = fitted.task, fitted.epochs, dict(fitted.facts)

        def answer(part: Part) -> scores.Answers:
            batches = part.batches(fitted.problem, BATCH)
            samples = run.options["samples"]
            return scores.collect(fitted.model, task.target, batches, samples, run.seed)

    valid = answer(task.part("valid"))
    metrics |= prefixed("valid", _proper(task.target, valid))
    if trial:
        used = {name: task.fingerprints[name] for name in ("train", "valid")}
        return {"metrics": metrics, "epochs": epochs, "data": used}
    metrics |= in_test_hospitals(task, valid, answer(task.part("test")))
    return {"metrics": metrics, "epochs": epochs, "data": task.fingerprints}


def in_test_hospitals(task: Task, valid: scores.Answers, test: scores.Answers) -> dict[str, Any]:
    """All that is reported of the test hospitals, from answers on validation and on test data.

    ``chosen/f1`` and so on are at the threshold with the best macro F1 on validation data.
    ``share/f1`` and so on are at the share of deaths in training: who is above it is more likely to
    die than a patient of whom nothing is known, and it is what one half is after training on
    classes made equally frequent. ``half/f1`` and so on are at one half. ``risk/...`` are areas
    under the curves of deferral by entropy, ``risk-mi/...`` by mutual information.
    """
    risk, died = test["probabilities"][:, 1].double(), test["labels"].long()
    share = float(task.train.y.double().mean())
    threshold = clinical_scores.best_threshold(
        valid["probabilities"][:, 1].double(), valid["labels"].long()
    )
    metrics: dict[str, Any] = prefixed("test", _proper(task.target, test))
    for name, value in (("share", share), ("chosen", threshold), ("half", 0.5)):
        metrics |= prefixed(name, clinical_scores.macro(risk, died, value))
    metrics |= {"threshold/share": share, "threshold/chosen": threshold}
    wrong = ((risk >= 0.5).long() != died).double()
    losses = {"error": wrong, "brier": (risk - died).square()}
    for name, doubt in (("risk", "entropy"), ("risk-mi", "mutual_information")):
        if doubt not in test or not bool(test[doubt].any()):
            continue  # nothing that draws could disagree on
        for kind, loss in losses.items():
            curve = clinical_scores.risk_coverage(test[doubt], loss)
            metrics[f"{name}/{kind}"] = float(curve.mean())
            metrics[f"curve/{name}/{kind}"] = clinical_scores.at_coverages(curve)
    metrics["curve/coverage"] = list(clinical_scores.COVERAGES)
    for part in ("train", "valid", "test"):
        metrics[f"stays/{part}"] = len(task.part(part))
        metrics[f"deaths/{part}"] = int(task.part(part).y.sum())
    return metrics


def _proper(target: Target, answers: scores.Answers) -> dict[str, float]:
    """NLL, Brier score of the risk, calibration error, AUROC and AUPRC."""
    risk = answers["probabilities"][:, 1].double()
    brier = float((risk - answers["labels"].double()).square().mean())
    return {**scores.measure(target, answers), "brier": brier}


def _linear(run: Run) -> tuple[Task, Any]:
    """The logistic regression of a run, and what it says of a part."""
    settings = configs.from_flat({**models.dotted(run), "method.name": "none", "seed": run.seed})
    task = sources.load(settings.data, run.seed)
    penalty = run.options["tuned"]["penalty"]
    weights = clinical_scores.logistic(task.train.x, task.train.y, penalty)

    def answer(part: Part) -> scores.Answers:
        risk = clinical_scores.linear_risk(part.x, weights)
        logits = torch.logit(risk.clamp(1e-12, 1 - 1e-12))
        fit = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, part.y.double(), reduction="none"
        )
        both = torch.stack([1 - risk, risk], -1)
        return {
            "probabilities": both,
            "entropy": torch.special.entr(both).sum(-1),
            "log_prob": -fit,
            "labels": part.y,
        }

    return task, answer


def _trials(preset: str, arm: Arm) -> list[Options]:
    if arm is not LOGISTIC:
        return trials(arm, _RATES[preset], _OWN[preset])
    # No learning rate: as many penalties as the others have trials.
    key, values = arm.own
    several = len(_RATES[preset]) * _OWN[preset]
    listed = [*values, 1.0, 3.0, 300.0, 1000.0, 0.3, 3000.0]
    return [{key: value} for value in listed[:several]]


def _options(preset: str, arm: Arm) -> Options:
    base = _SIZES[preset]
    if arm is LOGISTIC:
        base = {key: value for key, value in base.items() if key.startswith("data.")}
    return {**base, "samples": SAMPLES[preset]}


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, curves of deferral, findings and claims from the records that there are."""
    records = list(records)
    there = sections.present(records, DATA)
    if not there:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = []
    findings: list[str] = []
    claims: list[Claim] = []
    for source in there:
        own, title = [record for record in records if record["data"] == source], DATA[source]
        blocks += [Text(_about(own, source)), _table(own, source), _proper_table(own, source)]
        blocks += [
            _curves(own, source, "error", "share of kept patients judged wrongly"),
            _curves(own, source, "brier", "Brier score of kept patients"),
            sections.choices(
                own, {source: "Options"}, f"{title}: chosen on validation data", TITLES
            ),
        ]
        compared = [
            Compared(source, metric, f"{name} ({title})", better)
            for metric, (name, better) in _COMPARED.items()
        ]
        more, details = sections.against_others(own, compared, TITLES)
        findings += more
        rule = judged.entry("clinical.superior")["rule"]
        blocks += [Text([rule]), *sections.pair_by_pair(details)]
        claims += [_claim(own, source, arm) for arm in PUBLISHED if arm != "gflowout"]
    return Section(findings, blocks, claims, there)


def _about(own: Sequence[Record], source: str) -> list[str]:
    def span(name: str) -> str:
        values = sorted(int(r["metrics"][name]) for r in own if name in r["metrics"])
        ends = dict.fromkeys(f"{value:,}" for value in values[:1] + values[-1:])
        return " to ".join(ends) or "?"

    seeds = counted(len({record["seed"] for record in own}), "seed")
    text = [
        f"{DATA[source]}: {span('stays/train')} stays to train on with {span('deaths/train')} "
        f"deaths, and {span('stays/test')} with {span('deaths/test')} in hospitals that are not "
        f"trained on; {seeds}. Inputs are the drugs of the first 48 hours, the label is death "
        "during the stay. Options are chosen by the NLL on other patients of the training "
        "hospitals.",
        "Deaths are rare and networks learn their true frequency, so hardly any risk is above one "
        "half. F1, precision and recall are taken at the threshold with the best macro F1 on "
        "validation data, and once more where a risk is above the share of deaths in training. "
        "All three are means over the two outcomes; the paper says so of F1 only, but "
        "its numbers for precision and recall fit.",
    ]
    if source == "eicu-demo":
        text.append(
            "This is the open demo, with 126 deaths in 2,520 stays, not the paper's database, "
            "which needs credentials; its largest hospital has no death, so each seed draws "
            "hospitals that hold 30 % of the stays. A draw changes AUROC by several hundredths, "
            "far more than methods differ by: comparisons are paired by draw, and the demo shows "
            "that the study works rather than which method is better."
        )
    return text


def _table(own: Sequence[Record], source: str) -> Table:
    heads = ["F1 (macro)", "Precision", "Recall"]
    heads += [f"{name}, above base rate" for name in ("F1", "precision", "recall")]
    metrics = [f"{kind}/{name}" for kind in ("chosen", "share") for name in _MACRO]
    rows = sections.arm_rows(own, source, metrics, TITLES)
    none = [None] * 3
    published = {arm: [*values, *none] for arm, values in PUBLISHED.items()}
    rows += sections.paper_rows(published, {**TITLES, "mc": "Random"})
    f1, recall = (sections.cell(by_seed(own, source, "mc", f"half/{n}").values()).mean
                  for n in ("f1", "recall"))  # fmt: skip
    remark = ""
    if f1 is not None and recall is not None and abs(recall - 0.5) < 0.005:
        remark = (
            f" At one half MC dropout has a macro F1 of {f1:.3f}, because it "
            "expects hardly anybody to die; the paper's row for random dropout looks like that."
        )
    caption = (
        "Threshold: the one with the best macro F1 on validation data; 'above base rate': the "
        "share of deaths in training. The paper does not state its own, and its numbers are from "
        f"the full database.{remark}"
    )
    columns = [Column(head, "high") for head in heads]
    return Table(f"{DATA[source]}: who will die", "Method", columns, rows, caption)


def _proper_table(own: Sequence[Record], source: str) -> Table:
    return Table(
        f"{DATA[source]}: the risk as a number, and deferral",
        "Method",
        [Column(title, better) for title, better in _PROPER.values()],
        sections.arm_rows(own, source, list(_PROPER), TITLES),
        "Areas: the least certain patients, by the entropy of their risk, are left to a doctor; "
        "mean over all shares of patients kept. Not in the paper.",
    )


def _curves(own: Sequence[Record], source: str, kind: str, title: str) -> Curves:
    lines = []
    for arm, name in TITLES.items():
        metrics = [record["metrics"] for record in own if record["method"] == arm]
        curves = [m[f"curve/risk/{kind}"] for m in metrics if m.get(f"curve/risk/{kind}")]
        if curves:
            x = next(m["curve/coverage"] for m in metrics if m.get("curve/coverage"))
            points = zip(x, zip(*curves, strict=True), strict=True)
            lines.append(sections.line(name, points))
    return Curves(
        f"{DATA[source]}: {title}, if the others are left to a doctor",
        "share of patients kept",
        title,
        lines,
        "The most certain patients are kept first. At 1 nobody is left to a doctor.",
        percent=kind == "error",
    )


def _claim(own: Sequence[Record], source: str, arm: str) -> Claim:
    """GFlowOut against one of the paper's baselines, in the paper's three metrics."""
    ours, theirs = PUBLISHED["gflowout"], PUBLISHED[arm]
    margins = {
        title: round(mine - other, 3)
        for title, mine, other in zip(_MACRO.values(), ours, theirs, strict=True)
    }
    comparisons = {}
    for name, title in _MACRO.items():
        mine, other = (by_seed(own, source, a, f"chosen/{name}") for a in ("gflowout", arm))
        comparisons[title] = pair(mine, other, "high")
    held, why = judged.by_margins(holm(comparisons), margins, judged.superior)
    title = TITLES[arm] if arm == "id-gflowout" else TITLES[arm].lower()
    title = "random dropout" if arm == "mc" else title
    return judged.template("clinical.superior", held, other=title, data=DATA[source], margins=why)


STUDY = Study(
    name="clinical",
    title="Death in intensive care, across hospitals",
    question=(
        "Does a learned posterior over masks predict deaths better, and know better when to ask a "
        "doctor, in hospitals it was not trained on?"
    ),
    paper="Table 4",
    work="gflowout.studies.clinical:work",
    tuning=tuning,
    runs=runs,
    section=section,
)
