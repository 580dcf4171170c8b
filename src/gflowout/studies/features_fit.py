"""Arms of the features study: what each may tune, how it is fitted, what it says of features."""

from __future__ import annotations

import copy
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gflowout.core.inclusion import Inclusion
from gflowout.core.optional import require
from gflowout.methods import METHODS
from gflowout.studies import features_data
from gflowout.studies.features_data import LEAST, Flags, Floats, Ints, Problem, prediction
from gflowout.studies.framework.statistics import prefixed

Tuned = Mapping[str, float]
Proba = Callable[[Floats], Floats]
"""From rows to probabilities, [rows, classes]."""


@dataclass(frozen=True)
class Arm:
    """One competitor; ``label`` is ``Run.method`` in records.

    ``method`` is that of the masks, or ``"l1"``, ``"forest"``, ``"boosting"``. It may try six
    ``trials``, the best guess first, or those of the arm that it is ``like``. It masks ``inputs``
    if its trial does not say otherwise, and what such masks have ``learned`` is what it says of
    features. A run pools so many ``members``, a trial trains one; each takes so many ``steps`` at
    most: without sparse masks networks learn the training rows by heart in fewer than a hundred,
    and a short training is validated more often. ``only`` names problems, all if empty. ``seconds``
    are those of a trial and of a run on the problem ``independent``, on one core of two.
    """

    label: str
    title: str
    method: str
    seconds: tuple[float, float]
    trials: Sequence[Tuned] = ()
    inputs: bool = False
    members: int = 1
    steps: int = 300
    like: str = ""
    only: Sequence[str] = ()
    learned: bool = False


ARMS = {label: Arm(label, **arm) for label, arm in features_data.TABLES["arms"].items()}
EQUAL = ARMS["mc-equal"].members
"""MC networks with no less computing than the chains of ID-GFlowOut."""

WIDTHS = (64, 64)
PATIENCE = 30
"""Epochs without a better validation loss after which a network without input masks stops."""
DRAWS = 100
"""Masks of a prediction, of all networks together, at least."""
CHAIN_DRAWS = 30
"""Masks of a prediction by each chain with masks on inputs, which differ more."""
TREES = 200
ROUNDS = 300
"""Rounds of boosting at most; how many is chosen by cross-validation in every fit."""
FOLDS = 3
REPEATS = 5
"""Permutations of each feature."""
FIRM = 2.0
"""An importance counts as a discovery if it is more than so many standard errors above 0."""
THRESHOLD = 0.5
"""Inclusion probability from which a feature counts as found."""
_TOP = 15
"""Features whose names a record keeps."""


@dataclass(frozen=True)
class Fitted:
    """A fitted arm and its seconds of training.

    ``networks`` were trained, and each is in ``alone`` if these are chains of one posterior. Arms
    with learned masks on their inputs have an ``inclusion``. Trees and L1 have an ``importance`` of
    each feature, and ``selected`` those that matter.
    """

    proba: Proba
    networks: int
    seconds: float
    inclusion: Inclusion | None = None
    alone: Sequence[Proba] = ()
    importance: Floats | None = None
    selected: Flags | None = None


def fit(
    arm: Arm,
    tuned: Tuned,
    x: Floats,
    y: Ints,
    *,
    classes: int,
    epochs: int,
    seed: int,
    members: int = 1,
    apart: Flags | None = None,
    share: float = 1.0,
) -> Fitted:
    """Fit an arm with one of its trials to rows [rows, features] and classes [rows] from 0.

    Not all classes need be among the rows. Epochs are of networks, at most; the share is of all
    trees, rounds and permutations, to try things out. Permutation importance is measured on rows
    ``apart``, [rows], by a second model that was not fitted to them; ``None`` leaves out what an
    arm says of features.
    """
    train = functools.partial(_classic, arm.method, tuned, classes=classes, seed=seed, share=share)
    networks = _networks(arm, tuned, epochs, seed, members) if arm.method in METHODS else []
    began = time.perf_counter()
    with warnings.catch_warnings():  # of arms whose inclusion is not reported anyway
        warnings.filterwarnings("ignore", "masks of method .* learn nothing", UserWarning)
        models = [network.fit(x, y) for network in networks] or [train(x, y)]
    seconds = time.perf_counter() - began
    probas = [aligned(model, classes) for model in models]

    def proba(rows: Floats) -> Floats:
        pooled: Floats = np.mean([member(rows) for member in probas], 0)
        return pooled

    first = models[0]
    if arm.method == "l1":
        importance = np.abs(first[-1].coef_).max(0)
        return Fitted(proba, 0, seconds, importance=importance, selected=importance > 0)
    if apart is None or (networks and not (arm.learned and first.mask_inputs)):
        return Fitted(proba, members if networks else 0, seconds)
    if networks:
        chains = [_chain(first, place) for place in range(members if members > 1 else 0)]
        alone = [aligned(chain, classes) for chain in chains]
        return Fitted(proba, members, seconds, first.inclusion_, alone)
    second = aligned(train(x[~apart], y[~apart]), classes)
    repeats = max(1, round(share * REPEATS))
    importance, selected = permutation_importance(second, x[apart], y[apart], seed, repeats)
    return Fitted(proba, 0, seconds, importance=importance, selected=selected)


def aligned(model: Any, classes: int) -> Proba:
    """Probabilities of a classifier, with a column for classes that it has not seen, too."""

    def proba(x: Floats) -> Floats:
        probabilities = np.zeros((len(x), classes))
        probabilities[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(x)
        return probabilities

    return proba


def permutation_importance(
    proba: Proba, x: Floats, y: Ints, seed: int, repeats: int = REPEATS
) -> tuple[Floats, Flags]:
    """By how much the NLL of rows that a model was not fitted to grows if a feature is shuffled.

    The mean, and whether it is more than :data:`FIRM` standard errors over rows above 0.
    """
    rng = np.random.default_rng(seed)
    before = _nll(proba(x), y)
    growth = np.zeros((x.shape[1], len(x)))
    for feature in range(x.shape[1]):
        many = np.tile(x, (repeats, 1))
        orders = [rng.permutation(len(x)) for _ in range(repeats)]
        many[:, feature] = np.concatenate([x[order, feature] for order in orders])
        after = _nll(proba(many), np.tile(y, repeats)).reshape(repeats, -1).mean(0)
        growth[feature] = after - before
    mean, error = growth.mean(1), growth.std(1, ddof=1) / np.sqrt(len(x))
    return mean, mean > FIRM * np.maximum(error, 1e-12)


def _networks(arm: Arm, tuned: Tuned, epochs: int, seed: int, members: int) -> list[Any]:
    """Networks that are trained on their own; with masks on inputs, as chains of one estimator."""
    estimators = require("gflowout.integrations.sklearn", extra="sklearn", purpose="the study")
    options = dict(tuned)
    common: dict[str, Any] = {
        "hidden_layer_sizes": WIDTHS, "epochs": epochs, "batch_size": 100,
        "validation_fraction": 0.2,
        "lr": options.pop("lr"), "weight_decay": options.pop("weight_decay", 0.0),
        "mask_inputs": bool(options.pop("inputs", arm.inputs)), "options": options,
    }  # fmt: skip
    if arm.inputs:
        # Every chain gives its share of the draws.
        common |= {"chains": members, "samples": max(DRAWS, CHAIN_DRAWS * members)}
        states = [seed]
    else:
        common |= {
            "chains": 1, "samples": max(5, DRAWS // members), "patience": PATIENCE,
            "mask_hidden": arm.method != "none", "linear_start": False,
        }  # fmt: skip
        states = [seed * 1000 + member for member in range(members)]
    return [
        estimators.GFlowOutClassifier(arm.method, random_state=state, **common) for state in states
    ]


def _chain(model: Any, place: int) -> Any:
    """The estimator with one of its chains alone."""
    single = copy.copy(model)
    single.chains_, single.chain_weights_ = [model.chains_[place]], np.ones(1)
    single.samples = CHAIN_DRAWS
    return single


def _sklearn(module: str) -> Any:
    return require(f"sklearn.{module}", extra="sklearn", purpose="the study features")


def _classic(
    method: str, tuned: Tuned, x: Floats, y: Ints, *, classes: int, seed: int, share: float
) -> Any:
    """L1, forest or boosting, fitted."""
    if method == "l1":
        linear, pipeline = _sklearn("linear_model"), _sklearn("pipeline")
        # liblinear is exact and knows two classes only.
        solver, most = ("liblinear", 1000) if classes == 2 else ("saga", 3000)
        # What is an L1 penalty in scikit-learn from 1.8 on has another name before.
        names = linear.LogisticRegression().get_params()
        lasso = {"penalty": "l1"} if names.get("penalty") == "l2" else {"l1_ratio": 1.0}
        model = linear.LogisticRegression(
            C=tuned["C"], solver=solver, max_iter=most, tol=1e-3, random_state=seed, **lasso
        )
        return pipeline.make_pipeline(_sklearn("preprocessing").StandardScaler(), model).fit(x, y)
    if method == "forest":
        forest = _sklearn("ensemble").RandomForestClassifier(
            round(share * TREES), max_features=float(tuned["features"]),
            min_samples_leaf=int(tuned["leaf"]), random_state=seed,
        )  # fmt: skip
        return forest.fit(x, y)
    return boosting(x, y, int(tuned["leaves"]), tuned["rate"], seed, round(share * ROUNDS))


def boosting(x: Floats, y: Ints, leaves: int, rate: float, seed: int, rounds: int) -> Any:
    """Gradient boosting with a number of rounds chosen by cross-validation, fitted to all rows."""
    model = _sklearn("ensemble").HistGradientBoostingClassifier(
        learning_rate=rate, max_leaf_nodes=leaves, min_samples_leaf=10, early_stopping=False,
        random_state=seed,
    )  # fmt: skip
    # Ten classes are ten trees a round, and few rows are soon learned by heart.
    most = rounds if len(np.unique(y)) == 2 else max(1, rounds // 3)
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    losses = np.zeros(most)
    for number in range(FOLDS):
        apart = fold == number
        model.set_params(max_iter=most).fit(x[~apart], y[~apart])
        place = np.searchsorted(model.classes_, y[apart]).clip(max=len(model.classes_) - 1)
        for step, proba in enumerate(model.staged_predict_proba(x[apart])):
            losses[step] += _nll(proba, place).mean()
    return model.set_params(max_iter=int(losses.argmin()) + 1).fit(x, y)


def _nll(probabilities: Floats, y: Ints) -> Floats:
    """Of each row."""
    loss: Floats = -np.log(np.clip(probabilities[np.arange(len(y)), y], LEAST, 1))
    return loss


# Scores


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
    """What an arm says of the features, compared with what is known of them; empty if nothing.

    A family of near-copies counts as one. Its probability, which is compared with the truth for
    calibration, is that of keeping at least one of them. For the AUROC it is the highest of its
    members': by chance, one of two is kept more often than one. Every feature's probability and
    interval is kept if the ``whole`` is wanted, else the highest.
    """
    family, relevant = problem.family, problem.relevant
    metrics: dict[str, Any] = {}
    if fitted.inclusion is not None:
        masks = fitted.inclusion.masks.double().flatten(1, 2).numpy()
        weights = fitted.inclusion.weights.numpy()
        importance = weights @ masks.mean(1)
        selected = importance >= THRESHOLD
        metrics["size"] = float(importance.sum())
        if relevant is not None:
            likely = weights @ features_data.best_of_families(masks, family).mean(1)
            metrics["brier"] = float(np.mean((likely - relevant) ** 2))
            metrics["families"] = _rounded(likely)
            metrics["relevant"] = [int(value) for value in relevant]
        order = np.argsort(-importance, kind="stable")[: None if whole else _TOP]
        metrics["names"] = [problem.names[place] for place in order]
        low, high = (end.numpy() for end in fitted.inclusion.interval(0.9))
        for name, values in (("values", importance), ("low", low), ("high", high)):
            metrics[name] = _rounded(values[order])
        if problem.irrelevant.any():
            metrics["noise"] = float(importance[problem.irrelevant].mean())
    elif fitted.importance is not None and fitted.selected is not None:
        importance, selected = fitted.importance, fitted.selected
    else:
        return {}
    metrics |= features_data.discoveries(selected, family, relevant, problem.irrelevant)
    if relevant is not None:
        best = features_data.best_of_families(importance, family)
        metrics["auroc"] = features_data.auroc(best, relevant)
    return prefixed("inclusion", metrics)


def _rounded(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]
