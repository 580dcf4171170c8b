"""Regimes in which dropout may matter: small training sets on which a plain network overfits.

MNIST with 2,000 images, clean and with wrong labels; CIFAR-10 at half its size; CIFAR-10 behind a
stem that is trained once, with wrong labels and adaptation to clean ones; CIFAR-100 with its 20
coarse labels. Arms are ranked only where dropout matters, by a rule that the report prints. Every
arm has as many trials, epochs and images; trials are means over seeds that no run has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gflowout.core import metrics
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.decisions.calibration import Temperature
from gflowout.runs import Context, Result, Run
from gflowout.studies import regimes_fit
from gflowout.studies.framework import keep_rates
from gflowout.studies.framework.arms import Arm, Options
from gflowout.studies.framework.claims import entry
from gflowout.studies.framework.statistics import prefixed
from gflowout.studies.framework.study import TUNING, Chosen, Study
from gflowout.studies.regimes_arms import ARMS, OWN, SCALED, like
from gflowout.studies.regimes_data import REGIMES, TABLES, Rows
from gflowout.studies.regimes_fit import Fitted, Place
from gflowout.studies.regimes_section import BLOCKS, NAME, section

PRESETS: dict[str, Any] = TABLES["presets"]
_HOW = ("epochs", "batch", "lr", "cycle", "width", "train", "valid", "test", "stem")
"""Sizes that training depends on; and draws of validation."""
_MS = {"mnist": (0.2, 0.006), "cifar10": (2.2, 0.6), "cifar100": (2.2, 0.6)}
"""Milliseconds of a training step per image, and of a draw, mean over arms."""


def sizes(preset: str, data: str) -> Options:
    """Sizes of a regime at a preset."""
    own = {} if preset == "smoke" else getattr(REGIMES[data], preset)
    values = {"lr": 1e-3, **PRESETS[preset]["sizes"], **own}
    if not REGIMES[data].stem:
        values = {key: value for key, value in values.items() if key not in ("stem", "points")}
    return values


def _arms(preset: str, data: str) -> list[Arm]:
    few = PRESETS[preset].get("few")
    if few and data != PRESETS[preset]["regimes"][0]:
        return [ARMS[label] for label in few]
    return list(ARMS.values())


def tuning(preset: str) -> list[Run]:
    """As many trials for every arm that has something to tune; each is a mean over seeds."""
    return [
        Run(TUNING, arm.label, data, sizes(preset, data)["trial_seeds"][0],
            {**sizes(preset, data), "members": 1, "tuned": {key: value}})
        for data in PRESETS[preset]["regimes"]
        for arm in _arms(preset, data)
        if arm.label in OWN
        for key, values in [OWN[arm.label]]
        for value in values[: PRESETS[preset]["values"]]
    ]  # fmt: skip


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set, seed by seed."""
    data = PRESETS[preset]["regimes"]
    counts = {name: sizes(preset, name)["seeds"] for name in data}

    def choice(name: str, label: str) -> Options:
        key, values = OWN[label]
        return dict(chosen.get((name, label), {key: values[0]}))

    return [
        Run(NAME, arm.label, name, seed, {**sizes(preset, name), "tuned": choice(name, like(arm)),
            **({"partner": choice(name, arm.rate_of)} if arm.rate_of else {})})
        for seed in range(max(counts.values()))
        for name in data
        if seed < counts[name]
        for arm in _arms(preset, name)
    ]  # fmt: skip


def work(run: Run, context: Context) -> Result:
    """A trial: train and score validation data, for every seed. A run: train, then score."""
    if run.study == TUNING:
        return _trial(run, context)
    here = _place(run, run.seed, context)
    arm, partner = _arm(run), None
    if arm.rate_of:
        partner = (ARMS[arm.rate_of], dict(run.options["partner"]))
    model = regimes_fit.fitted(arm, dict(run.options["tuned"]), partner, here, context.progress)
    values: dict[str, Any] = {
        **keep_rates.as_metric(model.keep),
        "curve/valid": [round(value, 5) for value in model.curve],
        "best_epoch": model.curve.index(min(model.curve)),
        **_scores(run, model, here),
    }
    values |= _adapted(run, model, here)
    return {"metrics": values, "data": here.problem.checksums(test=True)}


def _trial(run: Run, context: Context) -> Result:
    """Validation NLL of the best epoch, mean over the seeds of trials."""
    scores: list[float] = []
    sums: dict[str, str] = {}
    for seed in run.options["trial_seeds"]:
        here = _place(run, seed, context)
        arm = ARMS[run.method]
        model = regimes_fit.fitted(arm, dict(run.options["tuned"]), None, here, context.progress)
        scores.append(regimes_fit.nll(model.model, here.problem.valid, run.options["samples"], 0))
        checked = here.problem.checksums(test=False)
        sums |= {f"{seed}/{part}": checksum for part, checksum in checked.items()}
    return {"metrics": {"valid/nll": fmean(scores)}, "data": sums}


def _place(run: Run, seed: int, context: Context) -> Place:
    options = run.to_dict()["options"]
    how = {key: options[key] for key in (*_HOW, "valid_samples") if key in options}
    return regimes_fit.place(run.data, how, context.folder.parent, seed)


def _arm(run: Run) -> Arm:
    arm = ARMS[run.method]
    return replace(arm, members=run.options["members"]) if arm.members > 1 else arm


# Scores


def _scores(run: Run, fitted: Fitted, here: Place) -> dict[str, Any]:
    """Scores of test images, corrupted ones and unknown inputs, also by block of test images."""
    problem, ask = here.problem, _asked(run, fitted.model, here)
    answers = ask(problem.test)
    values: dict[str, Any] = prefixed("test", _measured(answers))
    right = (answers["probabilities"].argmax(-1) == answers["labels"]).double()
    by_block = {"test/nll": -answers["log_prob"].double(), "test/accuracy": right}
    blocks = {name: [float(b.mean()) for b in _blocks(v)] for name, v in by_block.items()}
    for name, x in problem.others.items():
        labels = torch.zeros(len(x), dtype=torch.int64)
        entropy = ask((x, labels))["entropy"]
        detected = metrics.detection(answers["entropy"], entropy)
        values |= {f"{name}/{key}": value for key, value in detected.items()}
        if min(len(x), len(right)) >= 2 * BLOCKS:
            pairs = zip(_blocks(answers["entropy"]), _blocks(entropy), strict=True)
            blocks[f"{name}/auroc"] = [metrics.detection(a, b)["auroc"] for a, b in pairs]
    for name, rows in problem.shifted.items():
        values |= prefixed(name, _measured(ask(rows)))
    if len(right) >= 2 * BLOCKS:
        values["blocks"] = {name: [round(v, 6) for v in own] for name, own in blocks.items()}
    return values


def _blocks(values: Tensor) -> Sequence[Tensor]:
    """Values in blocks of nearly the same size."""
    return values.tensor_split(BLOCKS)


def _measured(answers: Mapping[str, Tensor]) -> dict[str, float]:
    names = ("probabilities", "labels", "log_prob")
    return metrics.classification(*(answers[name] for name in names))


def _asked(
    run: Run, model: MaskedModel | Ensemble, here: Place
) -> Callable[[Rows], dict[str, Tensor]]:
    """What a model says of labelled inputs; logits are scaled if the arm does that."""
    samples = run.options["samples"]
    scale = _temperature(model, here.problem.valid) if run.method == SCALED else None

    def ask(rows: Rows) -> dict[str, Tensor]:
        x, y = rows
        parts: dict[str, list[Tensor]] = {name: [] for name in _ANSWERS}
        drawn = regimes_fit.predictions(model, x, samples, run.seed)
        for pred, labels in zip(drawn, torch.split(y, regimes_fit.BATCH), strict=True):
            answer = pred if scale is None else scale(pred)
            parts["probabilities"].append(answer.mean)
            parts["log_prob"].append(answer.log_prob(labels))
            parts["entropy"].append(answer.entropy())
        return {**{name: torch.cat(own) for name, own in parts.items()}, "labels": y}

    return ask


_ANSWERS = ("probabilities", "log_prob", "entropy")


def _temperature(model: MaskedModel | Ensemble, valid: Rows) -> Callable[[Predictive], Predictive]:
    x, y = valid
    with torch.no_grad():
        return Temperature().fit(model.predict(x, samples=1), y)


def _adapted(run: Run, fitted: Fitted, here: Place) -> dict[str, float]:
    """Scores after training on some images with their true labels, where the regime asks for it."""
    values: dict[str, float] = {}
    for points in run.options.get("points", ()):
        model = copy.deepcopy(fitted.model)
        members = model.members if isinstance(model, Ensemble) else [model]
        for number, member in enumerate(members):
            regimes_fit.adapt(member, here.problem, points, here.how, run.seed + 1000 * number)
        values |= prefixed(
            f"points-{points}", _measured(_asked(run, model, here)(here.problem.test))
        )
    return values


def seconds(run: Run) -> float:
    """About what a trial or a run takes on one core."""
    options, source = run.options, REGIMES[run.data].source
    step, draw = _MS[source]
    drawn = options["epochs"] * options["valid"] * options["valid_samples"]
    network = 1e-3 * (options["epochs"] * options["train"] * step + drawn * draw)
    if run.study == TUNING:
        return float(1.0 + network * len(options["trial_seeds"]))
    members = options["members"] if ARMS[run.method].members > 1 else 1
    kinds = 1 if source == "mnist" else 4  # clean, and three corruptions or sets of points
    scores = 1e-3 * draw * kinds * options["samples"] * options["test"]
    return float(1.0 + members * network + scores)


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.regimes:work",
    tuning=tuning,
    runs=runs,
    section=section,
    seconds=seconds,
    needs=lambda run: REGIMES[run.data].needs,
)
