"""Which inputs matter: masks on inputs against networks, gates, trees and L1. Not in the paper.

Problems with a known answer, and real data with and without noise columns. All arms have the same
number of trials on rows that are held out from the training rows, anew for every seed: seeds draw
other rows, and a row on which an option was chosen could be another seed's test row. Then one fit
to all training rows, and one look at the test rows. ``paper`` is a larger ``cpu``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gflowout.runs import Context, Result, Run
from gflowout.studies import features_scores as scores
from gflowout.studies.features_arms import ARMS, Arm
from gflowout.studies.features_claims import JUDGED
from gflowout.studies.features_data import PROBLEMS, Floats, Problem, load
from gflowout.studies.features_fit import Fitted, fit
from gflowout.studies.features_section import section
from gflowout.studies.framework.study import TUNING, Chosen, Options, Study

TRIALS = {"smoke": 1, "cpu": 3, "paper": 6}
SEEDS = {"smoke": 1, "cpu": 5, "paper": 20}
_DATA = {
    "smoke": ("independent", "digits"),
    "cpu": tuple(PROBLEMS),
    "paper": tuple(PROBLEMS),
}
_SMALL: Options = {"rows": 120, "test": 60, "members": 2, "share": 0.02}
_CHAINS: Options = {"members": 5}
"""Of ``cpu`` where nothing was promised: half of the chains, half of the time."""
_BATCH = 100
_SMOKE_STEPS = 6
_SECONDS = {
    "id-gflowout": (4.5, 50.0), "gflowout": (1.8, 4.0), "gates": (1.6, 10.0), "mc": (0.5, 1.3),
    "concrete": (0.8, 1.7), "contextual": (1.6, 3.0), "ensemble": (0.3, 2.0),
    "mc-ensemble": (0.5, 8.0), "mc-equal": (0.5, 75.0), "l1": (0.1, 0.1), "forest": (1.5, 4.0),
    "boosting": (1.3, 4.5),
}  # fmt: skip
"""Of a trial and of a run on the problem ``independent``, measured on one core of two."""
_SCALE = {"wide": 1.5, "digits": 1.4, "eicu": 1.4, "eicu-noise": 1.6}
_DIGITS = 7.0
"""Ten classes are ten trees a round."""
_TOP = 15
"""Features whose names a record keeps."""


def place(data: str, seed: int) -> str:
    """What the trials of a problem and a seed are called.

    Examples:
        >>> place("wide", 3)
        'wide draw 3'
    """
    return f"{data} draw {seed}"


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on held-out rows of each draw of each problem."""
    return [
        Run(
            TUNING,
            arm.label,
            place(data, seed),
            seed,
            {**_options(preset, data, arm), "tuned": tuned},
        )
        for seed in range(SEEDS[preset])
        for data in _DATA[preset]
        for arm in ARMS.values()
        if not arm.like
        for tuned in arm.trials[: TRIALS[preset]]
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every problem, seed by seed."""
    return [
        Run("features", arm.label, data, seed, {**_options(preset, data, arm), "tuned": tuned})
        for seed in range(SEEDS[preset])
        for data in _DATA[preset]
        for arm in ARMS.values()
        if not arm.only or data in arm.only
        for tuned in [chosen.get((place(data, seed), arm.like or arm.label), _first(arm))]
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: fit to a part of the training rows, score the rest. A run: fit to all, then test."""
    del context  # nothing is kept: a run is a minute
    arm, options, trial = ARMS[run.method], run.options, run.study == TUNING
    data = run.data.partition(" draw ")[0]
    problem = load(data, run.seed, options.get("rows"), options.get("test"))
    classes = int(max(problem.y.max(), problem.y_test.max())) + 1
    how = {
        "classes": classes, "epochs": options["fit.epochs"], "seed": run.seed,
        "share": options.get("share", 1.0),
    }  # fmt: skip
    if trial:
        kept = ~problem.held
        fitted = fit(arm, options["tuned"], problem.x[kept], problem.y[kept], members=1, **how)
        found = scores.prediction(fitted.proba(problem.x[problem.held]), problem.y[problem.held])
        metrics = {**_prefixed("valid", found), "cost/train": fitted.seconds}
        return {"metrics": metrics, "data": problem.checksums(test=False)}
    members = min(arm.members, options.get("members", arm.members))
    fitted = fit(
        arm, options["tuned"], problem.x, problem.y, members=members, apart=problem.held, **how
    )
    return {
        "metrics": on_test_rows(problem, fitted) | about_features(problem, fitted, run.seed == 0),
        "data": problem.checksums(test=True),
    }


def on_test_rows(problem: Problem, fitted: Fitted) -> dict[str, Any]:
    """Scores on test rows, the same under shift, and what it took.

    ``single/nll`` is the mean over chains that predict alone.

    Args:
        problem: The data.
        fitted: A fitted arm.
    """
    began = time.perf_counter()
    said = fitted.proba(problem.x_test)
    found: dict[str, Any] = {
        "cost/predict": time.perf_counter() - began,
        "cost/train": fitted.seconds,
        "cost/networks": fitted.networks,
        **_prefixed("test", scores.prediction(said, problem.y_test)),
    }
    if problem.irrelevant.any():
        shifted = scores.prediction(fitted.proba(problem.shifted()), problem.y_test)
        found |= _prefixed("shift", shifted)
    if fitted.alone:
        each = [scores.prediction(one(problem.x_test), problem.y_test) for one in fitted.alone]
        found["single/nll"] = float(np.mean([one["nll"] for one in each]))
    return found


def about_features(problem: Problem, fitted: Fitted, whole: bool) -> dict[str, Any]:
    """What an arm says of the features, held against what is known of them.

    A family of near-copies counts as one. Its probability, which is held against the truth for
    calibration, is that of keeping at least one of them. For the AUROC it is the highest of its
    members': by chance, one of two is kept more often than one. Arms that say nothing have no such
    figure.

    Args:
        problem: The data.
        fitted: A fitted arm.
        whole: Keep every feature's probability with its interval, not only the highest.
    """
    family, relevant = problem.family, problem.relevant
    made: dict[str, Any] = {}
    if fitted.masks is not None and fitted.weights is not None:
        each: Floats = fitted.weights @ fitted.masks.mean(1)
        found = each >= scores.THRESHOLD
        likely = scores.kept_families(fitted.masks, fitted.weights, family)
        score = scores.best_of_families(each, family)
        made["size"] = float(each.sum())
        if relevant is not None:
            made["brier"] = scores.brier(likely, relevant)
            made["families"] = [round(float(value), 4) for value in likely]
            made["relevant"] = [int(value) for value in relevant]
        if fitted.low is not None and fitted.high is not None:
            order = np.argsort(-each, kind="stable")
            order = order if whole else order[:_TOP]
            made["names"] = [problem.names[place] for place in order]
            made["values"] = [round(float(each[place]), 4) for place in order]
            made["low"] = [round(float(fitted.low[place]), 4) for place in order]
            made["high"] = [round(float(fitted.high[place]), 4) for place in order]
        if problem.irrelevant.any():
            made["noise"] = float(each[problem.irrelevant].mean())
    elif fitted.importance is not None and fitted.found is not None:
        found, score = fitted.found, scores.best_of_families(fitted.importance, family)
    else:
        return {}
    made |= scores.discoveries(found, family, relevant, problem.irrelevant)
    if relevant is not None:
        made["auroc"] = scores.auroc(score, relevant)
    return {f"inclusion/{name}": value for name, value in made.items()}


def seconds(run: Run) -> float:
    """What a trial or a run takes on one core, by arm and problem; tiny ones a second.

    Examples:
        >>> trial, *_ = tuning("cpu")
        >>> trial.method, seconds(trial)
        ('id-gflowout', 4.5)
    """
    if "share" in run.options:
        return 1.0
    trial, all_of_it = _SECONDS[run.method]
    data = run.data.partition(" draw ")[0]
    if run.study != TUNING and "members" in run.options and ARMS[run.method].members > 5:
        all_of_it *= run.options["members"] / ARMS[run.method].members
    scale = _DIGITS if (data, run.method) == ("digits", "boosting") else _SCALE.get(data, 1.0)
    return scale * (trial if run.study == TUNING else all_of_it)


def _first(arm: Arm) -> Options:
    return dict((ARMS[arm.like] if arm.like else arm).trials[0])


def _options(preset: str, data: str, arm: Arm) -> Options:
    """Options of a run; a dry run reads its price from two of the epochs."""
    small = _SMALL if preset == "smoke" else {}
    if preset == "cpu" and data not in JUDGED:
        small = _CHAINS
    rows = min(small.get("rows", PROBLEMS[data].rows), PROBLEMS[data].rows)
    batches = -(-rows * 4 // (5 * _BATCH))
    steps = _SMOKE_STEPS if preset == "smoke" else arm.steps
    return {**small, "fit.epochs": -(-steps // batches)}


def _prefixed(prefix: str, found: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in found.items()}


STUDY = Study(
    name="features",
    title="Which inputs matter",
    question=(
        "Does a posterior over masks of the inputs find the features that matter, and predict "
        "better than networks, trees and L1 where most of them do not?"
    ),
    paper="",
    work="gflowout.studies.features:work",
    tuning=tuning,
    runs=runs,
    section=section,
    seconds=seconds,
    needs=lambda run: ["eicu-demo"] if run.data.startswith("eicu") else [],
)
