"""Arms of the features study: what each may tune, how it is fitted, what it says of features."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.methods import METHODS
from gflowout.studies.features_data import Flags, Floats, Ints

Tuned = Mapping[str, float]

CHAINS = 10
"""Networks of a posterior over features in a run: two for each of five folds."""
MASKS = 8
"""Masks that ID-GFlowOut scores in each step of a chain."""
EQUAL = CHAINS * MASKS
"""MC networks with no less computing than the chains of ID-GFlowOut: one for each mask."""

_RATES = ({"lr": 2e-3}, {"lr": 5e-4}, {"lr": 5e-3})


@dataclass(frozen=True)
class Arm:
    """One competitor.

    Attributes:
        label: In records (``Run.method``).
        title: In tables.
        method: Name of the masks' method; of other models ``"l1"``, ``"forest"``, ``"boosting"``.
        trials: What it may try, the best guess first; six for each arm.
        inputs: Whether it masks inputs, if its tuned options do not say so.
        members: Networks that are pooled in a run; a trial trains one.
        steps: Of each network at most. Without sparse masks networks learn the training rows by
            heart in fewer than a hundred, and a short training is validated more often.
        like: Arm whose trials choose for this one, too.
        only: Problems that it is run on; all if empty.
        note: How it tells which features matter; empty if it does not.
    """

    label: str
    title: str
    method: str
    trials: tuple[Tuned, ...] = ()
    inputs: bool = False
    members: int = 1
    steps: int = 300
    like: str = ""
    only: tuple[str, ...] = ()
    note: str = ""


_SPARSE: Tuned = {"lr": 5e-4, "beta": 1.0, "prior_keep": 0.02, "start_keep": 0.05}
"""Sparse from the start: for few rows, which many features would soon learn by heart."""
_MASKS = "share of masks that keep a feature"
_PERMUTED = "permutation importance on rows it was not fitted to; found if 2 errors above 0"
_MC: tuple[Tuned, ...] = (
    {"lr": 2e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.3, "inputs": 0},
    {"lr": 2e-3, "rate": 0.3, "inputs": 1}, {"lr": 5e-4, "rate": 0.5, "inputs": 0},
    {"lr": 5e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.5, "inputs": 1},
)  # fmt: skip

_ALL = (
    Arm(
        "id-gflowout", "ID-GFlowOut on inputs", "id-gflowout",
        ({"lr": 2e-3, "beta": 0.3}, {"lr": 1.5e-3, "beta": 0.3}, _SPARSE,
         {"lr": 2e-3, "beta": 0.5}, {"lr": 3e-3, "beta": 0.3}, {**_SPARSE, "lr": 2e-3}),
        inputs=True, members=CHAINS, steps=1000, note=_MASKS,
    ),
    Arm(
        "gflowout", "GFlowOut on inputs", "gflowout",
        ({"lr": 2e-3, "beta": 20.0}, {"lr": 2e-3, "beta": 5.0}, {"lr": 5e-4, "beta": 20.0},
         {"lr": 2e-3, "beta": 50.0}, {"lr": 5e-4, "beta": 5.0}, {"lr": 5e-3, "beta": 20.0}),
        inputs=True, members=3, steps=1000, note=_MASKS,
    ),
    Arm(
        "gates", "Stochastic gates", "gates",
        ({"lr": 2e-3, "strength": 0.003}, {"lr": 2e-3, "strength": 0.01},
         {"lr": 2e-3, "strength": 0.001}, {"lr": 5e-3, "strength": 0.003},
         {"lr": 5e-3, "strength": 0.01}, {"lr": 2e-3, "strength": 0.03}),
        inputs=True, members=5, steps=1000, note="probability that a gate is not closed",
    ),
    Arm("mc", "MC dropout", "mc", _MC),
    Arm(
        "concrete", "Concrete dropout", "concrete",
        ({"lr": 2e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.2, "inputs": 0},
         {"lr": 2e-3, "rate": 0.2, "inputs": 1}, {"lr": 5e-4, "rate": 0.5, "inputs": 0},
         {"lr": 5e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.5, "inputs": 1}),
    ),
    Arm(
        "contextual", "Contextual dropout", "contextual",
        ({"lr": 2e-3, "prior_keep": 0.5, "inputs": 0}, {"lr": 2e-3, "prior_keep": 0.8, "inputs": 0},
         {"lr": 2e-3, "prior_keep": 0.5, "inputs": 1}, {"lr": 5e-4, "prior_keep": 0.5, "inputs": 0},
         {"lr": 2e-3, "prior_keep": 0.8, "inputs": 1}, {"lr": 5e-4, "prior_keep": 0.8, "inputs": 1}
        ),
        note=f"{_MASKS}, where inputs are masked",
    ),
    Arm(
        "ensemble", "Deep ensemble", "none",
        (*_RATES, *({**each, "weight_decay": 0.1} for each in _RATES)), members=5,
    ),
    Arm("mc-ensemble", "Ensemble of MC networks", "mc", members=5, like="mc"),
    Arm(
        "mc-equal", f"{EQUAL} MC networks", "mc", members=EQUAL, like="mc",
        only=("independent",),
    ),
    Arm(
        "l1", "L1 logistic regression", "l1",
        tuple({"C": value} for value in (0.1, 0.03, 0.5, 0.01, 0.2, 2.0)),
        note="size of its weight; found if it is not 0",
    ),
    Arm(
        "forest", "Random forest", "forest",
        ({"features": 0.15, "leaf": 1}, {"features": 0.4, "leaf": 3}, {"features": 0.4, "leaf": 10},
         {"features": 0.8, "leaf": 3}, {"features": 0.8, "leaf": 10}, {"features": 0.15, "leaf": 3}
        ),
        note=_PERMUTED,
    ),
    Arm(
        "boosting", "Gradient boosting", "boosting",
        ({"leaves": 8, "rate": 0.1}, {"leaves": 4, "rate": 0.1}, {"leaves": 4, "rate": 0.05},
         {"leaves": 8, "rate": 0.05}, {"leaves": 16, "rate": 0.05}, {"leaves": 2, "rate": 0.1}),
        note=_PERMUTED,
    ),
)  # fmt: skip
ARMS = {arm.label: arm for arm in _ALL if arm.method in (*METHODS, "l1", "forest", "boosting")}
"""All arms by label; what they may tune, and nothing else differs. ``inputs`` 1: masks on inputs,
too. ``mc-equal`` answers what the chains' computing would have bought otherwise."""

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
    """Fit an arm with some of its options to rows [rows, features] and classes [rows].

    Args:
        arm: Which.
        tuned: One of its trials.
        x: Inputs.
        y: Classes, from 0.
        classes: How many there are; not all need be among the rows.
        epochs: Of networks, at most.
        seed: Decides everything.
        members: Networks, if not as many as the arm has.
        apart: Rows that permutation importance is measured on, by a second model that was not
            fitted to them, [rows]; ``None`` leaves out what an arm says of features.
        share: Of all trees, rounds and permutations, to try things out.
    """
    if arm.method in METHODS:
        many = members or arm.members
        return _networks(arm, tuned, x, y, classes, epochs, seed, many, apart is not None)
    began = time.perf_counter()
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
    """Probabilities of a classifier, with a column for classes that it has not seen, too."""

    def proba(x: Floats) -> Floats:
        probabilities = np.zeros((len(x), classes))
        probabilities[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(x)
        return probabilities

    return proba


def permutation_importance(
    proba: Callable[[Floats], Floats], x: Floats, y: Ints, seed: int, repeats: int = REPEATS
) -> tuple[Floats, Flags]:
    """By how much the NLL of rows that a model was not fitted to grows if a feature is shuffled.

    Returns:
        Mean growth, and whether it is more than :data:`FIRM` standard errors over rows above 0.
    """
    rng = np.random.default_rng(seed)

    def losses(rows: Floats) -> Floats:
        truth = np.tile(y, len(rows) // len(y))
        loss: Floats = -np.log(np.clip(proba(rows)[np.arange(len(rows)), truth], 1e-4, 1))
        return loss

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
        common |= {
            "chains": 1, "samples": max(5, DRAWS // members), "patience": PATIENCE,
            "mask_hidden": arm.method != "none",
        }  # fmt: skip
        states = [seed * 1000 + member for member in range(members)]
    began = time.perf_counter()
    with warnings.catch_warnings():  # of arms whose inclusion is not reported anyway
        warnings.filterwarnings("ignore", "masks of method .* learn nothing", UserWarning)
        models = [
            estimators.GFlowOutClassifier(arm.method, random_state=state, **common).fit(x, y)
            for state in states
        ]
    seconds = time.perf_counter() - began
    probas = [aligned(model, classes) for model in models]

    def proba(rows: Floats) -> Floats:
        pooled: Floats = np.mean([one(rows) for one in probas], 0)
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


def _sklearn(module: str) -> Any:
    return require(f"sklearn.{module}", extra="sklearn", purpose="the study features")


def _classic(arm: Arm, tuned: Tuned, seed: int, classes: int, share: float) -> Any:
    checks.choice("method", arm.method, ("l1", "forest", "boosting"))
    if arm.method == "l1":
        linear, pipeline = _sklearn("linear_model"), _sklearn("pipeline")
        # liblinear is exact and knows two classes only.
        solver, most = ("liblinear", 1000) if classes == 2 else ("saga", 3000)
        # What is an L1 penalty in scikit-learn from 1.8 on has another name before.
        names = linear.LogisticRegression().get_params()
        lasso = {"penalty": "l1"} if names.get("penalty") == "l2" else {"l1_ratio": 1.0}
        model = linear.LogisticRegression(
            C=tuned["C"], solver=solver, max_iter=most, tol=1e-3, random_state=seed, **lasso
        )
        return pipeline.make_pipeline(_sklearn("preprocessing").StandardScaler(), model)
    if arm.method == "forest":
        return _sklearn("ensemble").RandomForestClassifier(
            round(share * TREES), max_features=float(tuned["features"]),
            min_samples_leaf=int(tuned["leaf"]), random_state=seed,
        )  # fmt: skip
    return Boosting(int(tuned["leaves"]), float(tuned["rate"]), seed, round(share * ROUNDS))


class Boosting:
    """Gradient boosting with a number of rounds chosen by cross-validation, fitted to all rows."""

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
            for step, proba in enumerate(model.staged_predict_proba(x[apart])):
                losses[step] -= np.log(np.clip(proba[np.arange(len(place)), place], 1e-4, 1)).mean()
        self.chosen = int(losses.argmin()) + 1
        self.model = self._model(self.chosen).fit(x, y)
        return self

    def predict_proba(self, x: Floats) -> Floats:
        """Probabilities of the classes, [rows, classes]."""
        probabilities: Floats = self.model.predict_proba(x)
        return probabilities

    def _model(self, rounds: int) -> Any:
        return _sklearn("ensemble").HistGradientBoostingClassifier(
            learning_rate=self.rate, max_iter=rounds, max_leaf_nodes=self.leaves,
            min_samples_leaf=10, early_stopping=False, random_state=self.seed,
        )  # fmt: skip
