"""Which inputs matter: masks on inputs against networks, gates, trees and L1. Not in the paper.

Problems with a known answer, and real data with and without noise columns. All arms have the same
number of trials on rows that are held out from the training rows, anew for every seed: seeds draw
other rows, and a row on which an option was chosen could be another seed's test row. Then one fit
to all training rows, and one look at the test rows. ``paper`` is a larger ``cpu``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gflowout.runs import Context, Result, Run
from gflowout.studies.features_data import PROBLEMS, Flags, Floats, Ints, Problem, load
from gflowout.studies.features_fit import ARMS, Arm, Fitted, fit
from gflowout.studies.features_section import JUDGED, section
from gflowout.studies.framework.study import TUNING, Chosen, Options, Study, prefixed

TRIALS = {"smoke": 1, "cpu": 3, "paper": 6}
SEEDS = {"smoke": 1, "cpu": 5, "paper": 20}
_DATA = {"smoke": ("independent", "digits"), "cpu": (*PROBLEMS,), "paper": (*PROBLEMS,)}
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
LEAST = 1e-4
"""Probabilities are at least this, for all arms: a forest may say 0."""
THRESHOLD = 0.5
"""Inclusion probability from which a feature counts as found."""


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
        Run(TUNING, arm.label, place(data, seed), seed, _options(preset, data, arm, tuned))
        for seed in range(SEEDS[preset])
        for data in _DATA[preset]
        for arm in ARMS.values()
        if not arm.like
        for tuned in arm.trials[: TRIALS[preset]]
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every problem, seed by seed."""
    return [
        Run("features", arm.label, data, seed, _options(preset, data, arm, tuned))
        for seed in range(SEEDS[preset])
        for data in _DATA[preset]
        for arm in ARMS.values()
        if not arm.only or data in arm.only
        for like in [arm.like or arm.label]
        for tuned in [chosen.get((place(data, seed), like), ARMS[like].trials[0])]
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: fit to a part of the training rows, score the rest. A run: fit to all, then test."""
    del context  # nothing is kept: a run is a minute
    arm, options = ARMS[run.method], run.options
    data = run.data.partition(" draw ")[0]
    problem = load(data, run.seed, options.get("rows"), options.get("test"))
    classes = int(max(problem.y.max(), problem.y_test.max())) + 1
    how = {
        "classes": classes, "epochs": options["fit.epochs"], "seed": run.seed,
        "share": options.get("share", 1.0),
    }  # fmt: skip
    if run.study == TUNING:
        held, kept = problem.held, ~problem.held
        fitted = fit(arm, options["tuned"], problem.x[kept], problem.y[kept], members=1, **how)
        scores = prediction(fitted.proba(problem.x[held]), problem.y[held])
        metrics = {**prefixed("valid", scores), "cost/train": fitted.seconds}
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
    """Scores of a fitted arm on test rows, the same under shift, and what it took.

    ``single/nll`` is the mean over chains that predict alone.
    """
    began = time.perf_counter()
    probabilities = fitted.proba(problem.x_test)
    metrics: dict[str, Any] = {
        "cost/predict": time.perf_counter() - began,
        "cost/train": fitted.seconds,
        "cost/networks": fitted.networks,
        **prefixed("test", prediction(probabilities, problem.y_test)),
    }
    if problem.irrelevant.any():
        shifted = fitted.proba(problem.shifted())
        metrics |= prefixed("shift", prediction(shifted, problem.y_test))
    if fitted.alone:
        single = [prediction(proba(problem.x_test), problem.y_test) for proba in fitted.alone]
        metrics["single/nll"] = float(np.mean([scores["nll"] for scores in single]))
    return metrics


def about_features(problem: Problem, fitted: Fitted, whole: bool) -> dict[str, Any]:
    """What an arm says of the features, compared with what is known of them.

    A family of near-copies counts as one. Its probability, which is compared with the truth for
    calibration, is that of keeping at least one of them. For the AUROC it is the highest of its
    members': by chance, one of two is kept more often than one. Arms that say nothing have no such
    metrics.

    Args:
        problem: The data.
        fitted: A fitted arm.
        whole: Keep every feature's probability with its interval, not only the highest.
    """
    family, relevant = problem.family, problem.relevant
    metrics: dict[str, Any] = {}
    if fitted.masks is not None and fitted.weights is not None:
        inclusion: Floats = fitted.weights @ fitted.masks.mean(1)
        found = inclusion >= THRESHOLD
        score = best_of_families(inclusion, family)
        metrics["size"] = float(inclusion.sum())
        if relevant is not None:
            likely = kept_families(fitted.masks, fitted.weights, family)
            metrics["brier"] = float(np.mean((likely - relevant) ** 2))
            metrics["families"] = _rounded(likely)
            metrics["relevant"] = [int(value) for value in relevant]
        if fitted.low is not None and fitted.high is not None:
            order = np.argsort(-inclusion, kind="stable")
            order = order if whole else order[:_TOP]
            metrics["names"] = [problem.names[place] for place in order]
            metrics["values"] = _rounded(inclusion[order])
            metrics["low"] = _rounded(fitted.low[order])
            metrics["high"] = _rounded(fitted.high[order])
        if problem.irrelevant.any():
            metrics["noise"] = float(inclusion[problem.irrelevant].mean())
    elif fitted.importance is not None and fitted.found is not None:
        found, score = fitted.found, best_of_families(fitted.importance, family)
    else:
        return {}
    metrics |= discoveries(found, family, relevant, problem.irrelevant)
    if relevant is not None:
        metrics["auroc"] = auroc(score, relevant)
    return prefixed("inclusion", metrics)


def _rounded(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]


def prediction(probabilities: Floats, y: Ints) -> dict[str, float]:
    """NLL, accuracy and AUROC of probabilities [rows, classes]; of several classes its mean.

    Examples:
        >>> probabilities = np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])
        >>> scores = prediction(probabilities, np.array([0, 0, 1]))
        >>> round(scores["nll"], 4), round(scores["accuracy"], 4), scores["auroc"]
        (0.4228, 1.0, 1.0)
    """
    kept = np.clip(probabilities, LEAST, 1)
    kept /= kept.sum(1, keepdims=True)
    classes = range(1, 2) if kept.shape[1] == 2 else range(kept.shape[1])
    areas = [auroc(kept[:, label], y == label) for label in classes]
    known = [area for area in areas if not math.isnan(area)]
    return {
        "nll": float(-np.log(kept[np.arange(len(y)), y]).mean()),
        "accuracy": float((kept.argmax(1) == y).mean()),
        "auroc": float(np.mean(known)) if known else math.nan,
    }


def auroc(score: Floats, right: Flags) -> float:
    """Chance that something right has a higher score than something wrong; ties count half.

    NaN if there is only one kind.

    Examples:
        >>> auroc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
        0.875
    """
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return math.nan
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def kept_families(masks: Floats, weights: Floats, family: Ints) -> Floats:
    """Probability that at least one feature of a family is kept, [families].

    Masks are [chains, draws, features], weights are of the chains, families of the features.

    Examples:
        >>> masks = np.array([[[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1.0]]])
        >>> kept_families(masks, np.ones(1), np.array([0, 0, 1]))
        array([0.75, 0.5 ])
    """
    kept = [masks[:, :, family == one].max(2).mean(1) for one in range(family.max() + 1)]
    probability: Floats = weights @ np.stack(kept, 1)
    return probability


def best_of_families(score: Floats, family: Ints) -> Floats:
    """Highest score in each family, [families]."""
    return np.array([score[family == one].max() for one in range(family.max() + 1)])


def discoveries(
    found: Flags, family: Ints, relevant: Flags | None, irrelevant: Flags
) -> dict[str, float]:
    """How many of the features that a method found are right.

    Returns:
        ``"found"``: features. ``"false"``: those of them known not to matter. Where it is known
        what matters, ``"true"``: relevant families of which a feature was found, and ``"fdr"``: the
        share of what was found that is false; 0 if nothing was found. ``"strict"`` is that share if
        of a family only the first is right, and its copies are false.

    Examples:
        >>> found, family = np.array([True, True, False, True]), np.array([0, 0, 1, 2])
        >>> discoveries(found, family, np.array([True, True, False]), family == 2)
        {'found': 3.0, 'false': 1.0, 'true': 1.0, 'fdr': 0.333..., 'strict': 0.666...}
    """
    false = float((found & irrelevant).sum())
    total = float(found.sum())
    metrics = {"found": total, "false": false}
    if relevant is not None:
        metrics["true"] = float((best_of_families(found.astype(float), family) > 0)[relevant].sum())
        metrics["fdr"] = false / max(1.0, total)
        originals = np.zeros(len(found), dtype=bool)
        originals[np.unique(family, return_index=True)[1]] = True
        wrong = found & ~(originals & relevant[family])
        metrics["strict"] = float(wrong.sum()) / max(1.0, total)
    return metrics


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


def _options(preset: str, data: str, arm: Arm, tuned: Mapping[str, Any]) -> Options:
    """Options of a run; a dry run reads its price from two of the epochs."""
    small = _SMALL if preset == "smoke" else {}
    if preset == "cpu" and data not in JUDGED:
        small = _CHAINS
    rows = min(small.get("rows", PROBLEMS[data].rows), PROBLEMS[data].rows)
    batches = -(-rows * 4 // (5 * _BATCH))
    steps = _SMOKE_STEPS if preset == "smoke" else arm.steps
    return {**small, "fit.epochs": -(-steps // batches), "tuned": dict(tuned)}


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
