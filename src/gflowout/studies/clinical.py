"""Death in intensive care, in hospitals that were not trained on: Table 4.

The first 48 hours' drugs of a stay, an MLP of three hidden layers, all methods and a logistic
regression. ``cpu`` takes the open demo of eICU, where each seed draws other test hospitals, and
tunes anew for each draw: else a patient on whom an option was chosen could be in another seed's
test. ``paper`` takes the full database and the hospital that the paper's appendix names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from gflowout.app import config as configs
from gflowout.app import evaluation as scores
from gflowout.app import sources
from gflowout.app.preprocess import Target
from gflowout.app.tasks import Part, Task
from gflowout.runs import Context, Result, Run
from gflowout.studies import clinical_scores, models
from gflowout.studies.clinical_section import TITLES, section
from gflowout.studies.framework.arms import ARMS, Arm, trials
from gflowout.studies.framework.study import TUNING, Chosen, Options, Study

LOGISTIC = Arm("logistic", "logistic", TITLES["logistic"], own=("penalty", (30.0, 10.0, 100.0)))
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
        found: dict[str, Any] = {}
        task, answer = _linear(run)
        epochs: list[Mapping[str, Any]] = []
    else:
        # Of an ensemble one member is tuned: what is good for it is good for all.
        wanted = dataclasses.replace(arm, members=1) if trial else arm
        tuned = run.options["tuned"]
        # Members differ in their seed, not in their hospitals.
        base = {**_dotted(run), "data.seed": run.seed}
        fitted = models.fitted(wanted, base, tuned, run.seed, context)
        task, epochs, found = fitted.task, fitted.epochs, dict(fitted.facts)

        def answer(part: Part) -> scores.Answers:
            batches = part.batches(fitted.problem, BATCH)
            samples = run.options["samples"]
            return scores.collect(fitted.model, task.target, batches, samples, run.seed)

    valid = answer(task.part("valid"))
    found |= _prefixed("valid", _proper(task.target, valid))
    if trial:
        used = {name: task.fingerprints[name] for name in ("train", "valid")}
        return {"metrics": found, "epochs": epochs, "data": used}
    found |= in_test_hospitals(task, valid, answer(task.part("test")))
    return {"metrics": found, "epochs": epochs, "data": task.fingerprints}


def in_test_hospitals(task: Task, valid: scores.Answers, test: scores.Answers) -> dict[str, Any]:
    """All that is reported of the test hospitals.

    ``chosen/f1`` and so on are at the threshold with the best macro F1 on validation data.
    ``share/f1`` and so on are at the share of deaths in training: who is above it is more likely to
    die than a patient of whom nothing is known, and it is what one half is after training on
    classes made equally frequent. ``half/f1`` and so on are at one half. ``risk/...`` are areas
    under the curves of deferral by entropy, ``risk-mi/...`` by mutual information.

    Args:
        task: The data.
        valid: Answers on validation data.
        test: Answers on test data.
    """
    risk, died = test["probabilities"][:, 1].double(), test["labels"].long()
    share = float(task.train.y.double().mean())
    threshold = clinical_scores.best_threshold(
        valid["probabilities"][:, 1].double(), valid["labels"].long()
    )
    found: dict[str, Any] = _prefixed("test", _proper(task.target, test))
    found |= _prefixed("share", clinical_scores.macro(risk, died, share))
    found |= _prefixed("chosen", clinical_scores.macro(risk, died, threshold))
    found |= _prefixed("half", clinical_scores.macro(risk, died, 0.5))
    found |= {"threshold/share": share, "threshold/chosen": threshold}
    wrong = ((risk >= 0.5).long() != died).double()
    losses = {"error": wrong, "brier": (risk - died).square()}
    for name, doubt in (("risk", "entropy"), ("risk-mi", "mutual_information")):
        if doubt not in test or not bool(test[doubt].any()):
            continue  # nothing that draws could disagree on
        for kind, loss in losses.items():
            curve = clinical_scores.risk_coverage(test[doubt], loss)
            found[f"{name}/{kind}"] = float(curve.mean())
            found[f"curve/{name}/{kind}"] = clinical_scores.at_coverages(curve)
    found["curve/coverage"] = list(clinical_scores.COVERAGES)
    for part in ("train", "valid", "test"):
        found[f"stays/{part}"] = len(task.part(part))
        found[f"deaths/{part}"] = int(task.part(part).y.sum())
    return found


def _proper(target: Target, answers: scores.Answers) -> dict[str, float]:
    """NLL, Brier score of the risk, calibration error, AUROC and AUPRC."""
    found = scores.measure(target, answers)
    risk = answers["probabilities"][:, 1].double()
    found["brier"] = float((risk - answers["labels"].double()).square().mean())
    return found


def _linear(run: Run) -> tuple[Task, Any]:
    """The logistic regression of a run, and what it says of a part."""
    settings = configs.from_flat({**_dotted(run), "method.name": "none", "seed": run.seed})
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


def _dotted(run: Run) -> Options:
    """The part of a run's options that is a configuration."""
    return {key: value for key, value in run.options.items() if "." in key}


def _prefixed(prefix: str, found: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in found.items()}


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
