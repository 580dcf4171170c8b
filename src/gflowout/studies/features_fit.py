"""Fits of the arms of the features study, and what they say of features.

Arrays in, arrays out; knows nothing of runs or of the problems' truth.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.methods import METHODS
from gflowout.studies.features_arms import Arm, Tuned
from gflowout.studies.features_data import Flags, Floats, Ints

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


@dataclass(frozen=True)
class Fitted:
    """A fitted arm.

    Attributes:
        proba: From rows to probabilities, [rows, classes].
        networks: Models that were trained, trees and rounds not counted.
        seconds: Of training.
        masks: Input masks of 0 and 1, [chains, draws, features], if it draws any that were learned.
        weights: Of the chains.
        importance: Score of every feature, else.
        found: Features that it says matter, for those with importances.
        low: Lower end of the 90 % interval of every inclusion probability.
        high: Its upper end.
        alone: Each chain's own probabilities of rows.
    """

    proba: Callable[[Floats], Floats]
    networks: int
    seconds: float
    masks: Floats | None = None
    weights: Floats | None = None
    importance: Floats | None = None
    found: Flags | None = None
    low: Floats | None = None
    high: Floats | None = None
    alone: Sequence[Callable[[Floats], Floats]] = field(default_factory=tuple)


def fit(
    arm: Arm,
    tuned: Tuned,
    x: Floats,
    y: Ints,
    *,
    classes: int,
    epochs: int,
    seed: int,
    members: int | None = None,
    apart: Flags | None = None,
    share: float = 1.0,
) -> Fitted:
    """Fit an arm with some of its options.

    Args:
        arm: Which.
        tuned: One of its trials.
        x: [rows, features].
        y: [rows], from 0.
        classes: How many there are; not all need be among the rows.
        epochs: Of networks, at most.
        seed: Decides everything.
        members: Networks, if not as many as the arm has.
        apart: Rows that permutation importance is measured on, by a second model that was not
            fitted to them, [rows]; ``None`` leaves out what an arm says of features.
        share: Of all trees, rounds and permutations, to try things out.
    """
    began = time.perf_counter()
    if arm.method in METHODS:
        many = members or arm.members
        return _networks(arm, tuned, x, y, classes, epochs, seed, many, apart is not None)
    model = _classic(arm, tuned, seed, classes, share)
    model.fit(x, y)
    seconds = time.perf_counter() - began
    importance, found = None, None
    if arm.method == "l1":
        importance = np.abs(model[-1].coef_).max(0)
        found = importance > 0
    elif apart is not None:
        second = _classic(arm, tuned, seed, classes, share).fit(x[~apart], y[~apart])
        importance, found = permutation_importance(
            aligned(second, classes), x[apart], y[apart], seed, max(1, round(share * REPEATS))
        )
    return Fitted(aligned(model, classes), 0, seconds, importance=importance, found=found)


def aligned(model: Any, classes: int) -> Callable[[Floats], Floats]:
    """What a classifier says, with a column for classes that it has not seen, too."""

    def proba(x: Floats) -> Floats:
        found = np.zeros((len(x), classes))
        found[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(x)
        return found

    return proba


def permutation_importance(
    proba: Callable[[Floats], Floats], x: Floats, y: Ints, seed: int, repeats: int = REPEATS
) -> tuple[Floats, Flags]:
    """By how much the NLL grows if a feature is shuffled, and whether that is firmly above 0.

    Args:
        proba: A fitted model.
        x: Rows that it was not fitted to, [rows, features].
        y: [rows].
        seed: Decides the shuffles.
        repeats: Shuffles of each feature.

    Returns:
        Mean growth, and whether it is more than :data:`FIRM` standard errors over rows above 0.
    """
    rng = np.random.default_rng(seed)

    def losses(rows: Floats) -> Floats:
        truth = np.tile(y, len(rows) // len(y))
        found: Floats = -np.log(np.clip(proba(rows)[np.arange(len(rows)), truth], 1e-4, 1))
        return found

    before = losses(x)
    growth = np.zeros((x.shape[1], len(x)))
    for feature in range(x.shape[1]):
        many = np.tile(x, (repeats, 1))
        orders = [rng.permutation(len(x)) for _ in range(repeats)]
        many[:, feature] = np.concatenate([x[order, feature] for order in orders])
        growth[feature] = losses(many).reshape(repeats, -1).mean(0) - before
    mean, error = growth.mean(1), growth.std(1, ddof=1) / np.sqrt(len(x))
    return mean, mean > FIRM * np.maximum(error, 1e-12)


def _networks(
    arm: Arm,
    tuned: Tuned,
    x: Floats,
    y: Ints,
    classes: int,
    epochs: int,
    seed: int,
    members: int,
    features: bool,
) -> Fitted:
    """Networks that are trained on their own; with masks on inputs, as chains of one estimator."""
    estimators = require("gflowout.integrations.sklearn", extra="sklearn", purpose="the study")
    options = dict(tuned)
    inputs = bool(options.pop("inputs", arm.inputs))
    common: dict[str, Any] = {
        "hidden": WIDTHS, "epochs": epochs, "batch_size": 100, "validation_fraction": 0.2,
        "lr": options.pop("lr"), "weight_decay": options.pop("weight_decay", 0.0),
        "options": options, "mask_inputs": inputs,
    }  # fmt: skip
    if arm.inputs:
        # Every chain gives its share of the draws.
        common |= {"chains": members, "samples": max(DRAWS, CHAIN_DRAWS * members)}
        states = [seed]
    else:
        masked = arm.method != "none"
        common |= {
            "chains": 1,
            "samples": max(5, DRAWS // members),
            "patience": PATIENCE,
            "mask_hidden": masked,
        }
        states = [seed * 1000 + member for member in range(members)]
    began = time.perf_counter()
    with warnings.catch_warnings():  # of arms whose inclusion is not reported anyway
        warnings.filterwarnings("ignore", "masks of method .* learn nothing", UserWarning)
        models = [
            estimators.GFlowOutClassifier(arm.method, random_state=state, **common).fit(x, y)
            for state in states
        ]
    seconds = time.perf_counter() - began
    said = [aligned(model, classes) for model in models]

    def proba(rows: Floats) -> Floats:
        pooled: Floats = np.mean([each(rows) for each in said], 0)
        return pooled

    if not (features and inputs and arm.note):
        return Fitted(proba, members, seconds)
    shown = models[0].inclusion_
    low, high = shown.interval(0.9)
    chains = range(members if members > 1 else 0)
    return Fitted(
        proba,
        members,
        seconds,
        masks=shown.masks.double().flatten(1, 2).numpy(),
        weights=shown.weights.numpy(),
        low=low.numpy(),
        high=high.numpy(),
        alone=[aligned(_single(models[0], chain), classes) for chain in chains],
    )


def _single(model: Any, chain: int) -> Any:
    """The estimator with one of its chains alone."""
    one = copy.copy(model)
    one.chains_, one.chain_weights_ = [model.chains_[chain]], np.ones(1)
    one.samples = CHAIN_DRAWS
    return one


def _classic(arm: Arm, tuned: Tuned, seed: int, classes: int, share: float) -> Any:
    checks.choice("method", arm.method, ("l1", "forest", "boosting"))
    if arm.method == "l1":
        linear = require("sklearn.linear_model", extra="sklearn", purpose="the study features")
        pipeline = require("sklearn.pipeline", extra="sklearn", purpose="the study features")
        scaling = require("sklearn.preprocessing", extra="sklearn", purpose="the study features")
        # liblinear is exact and knows two classes only.
        solver, most = ("liblinear", 1000) if classes == 2 else ("saga", 3000)
        # What is an L1 penalty in scikit-learn from 1.8 on has another name before.
        names = linear.LogisticRegression().get_params()
        lasso = {"penalty": "l1"} if names.get("penalty") == "l2" else {"l1_ratio": 1.0}
        model = linear.LogisticRegression(
            C=tuned["C"], solver=solver, max_iter=most, tol=1e-3, random_state=seed, **lasso
        )
        return pipeline.make_pipeline(scaling.StandardScaler(), model)
    trees = require("sklearn.ensemble", extra="sklearn", purpose="the study features")
    if arm.method == "forest":
        return trees.RandomForestClassifier(
            round(share * TREES), max_features=float(tuned["features"]),
            min_samples_leaf=int(tuned["leaf"]), random_state=seed,
        )  # fmt: skip
    return Boosting(int(tuned["leaves"]), float(tuned["rate"]), seed, round(share * ROUNDS))


class Boosting:
    """Gradient boosting whose number of rounds is chosen by cross-validation, then fitted to all.

    Args:
        leaves: Of each tree at most.
        rate: Learning rate.
        seed: Of the folds.
        rounds: At most.
    """

    def __init__(self, leaves: int, rate: float, seed: int, rounds: int = ROUNDS) -> None:
        self.leaves, self.rate, self.seed, self.rounds = leaves, rate, seed, rounds

    def fit(self, x: Floats, y: Ints) -> Boosting:
        """Choose the number of rounds and fit."""
        self.classes_ = np.unique(y)
        # Ten classes are ten trees a round, and few rows are soon learned by heart.
        most = self.rounds if len(self.classes_) == 2 else max(1, self.rounds // 3)
        fold = np.random.default_rng(self.seed).permutation(len(y)) % FOLDS
        losses = np.zeros(most)
        for number in range(FOLDS):
            apart = fold == number
            model = self._model(most).fit(x[~apart], y[~apart])
            place = np.searchsorted(model.classes_, y[apart]).clip(max=len(model.classes_) - 1)
            for step, said in enumerate(model.staged_predict_proba(x[apart])):
                losses[step] -= np.log(np.clip(said[np.arange(len(place)), place], 1e-4, 1)).mean()
        self.chosen = int(losses.argmin()) + 1
        self.model = self._model(self.chosen).fit(x, y)
        return self

    def predict_proba(self, x: Floats) -> Floats:
        """Probabilities of the classes, [rows, classes]."""
        found: Floats = self.model.predict_proba(x)
        return found

    def _model(self, rounds: int) -> Any:
        trees = require("sklearn.ensemble", extra="sklearn", purpose="the study features")
        return trees.HistGradientBoostingClassifier(
            learning_rate=self.rate, max_iter=rounds, max_leaf_nodes=self.leaves,
            min_samples_leaf=10, early_stopping=False, random_state=self.seed,
        )  # fmt: skip
