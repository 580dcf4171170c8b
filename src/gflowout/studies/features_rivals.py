"""Rivals of the features study: other people's tools as they come, one function for each.

A rival is fitted to a table and says how it predicts and what it makes of the columns. Nothing is
tuned by the study: a rival has the defaults of its package, or chooses its options by itself, by
cross-validation on the training rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gflowout.core.optional import require
from gflowout.studies import features_data
from gflowout.studies.features_data import Flags, Floats
from gflowout.studies.features_fit import Proba, aligned
from gflowout.studies.features_tables import Split

RATE = 0.1
"""False discovery rate that is asked of rivals with such an option."""
FOLDS = 3
TREES = 300
PENALTIES = tuple(float(c) for c in 10 ** np.linspace(-2, 1, 7))
LEAVES = (4, 8, 16)
ROUNDS = 300
CHAINS = 5
"""Networks with stochastic gates that are pooled."""


@dataclass(frozen=True)
class Answer:
    """What a fitted rival says.

    ``predict`` gives probabilities, [rows, classes], or mean and standard deviation of a
    regression, [rows, 2]. ``score`` ranks the columns, the highest first, ``None`` if it says
    nothing of them; ``selected`` are those that it takes; ``inclusion`` are probabilities that they
    matter, [columns] each.
    """

    predict: Proba
    score: Floats | None = None
    selected: Flags | None = None
    inclusion: Floats | None = None


@dataclass(frozen=True)
class Rival:
    """A rival: ``package`` is what it needs beside scikit-learn; ``several``: more classes, too."""

    fit: Callable[[Split, int, bool], Answer] = field(repr=False)
    title: str
    seconds: float
    package: str = ""
    several: bool = True


def _predictions(model: Any, split: Split) -> Proba:
    """Of a fitted model; the spread of a regression is that of residuals of a fifth held out."""
    if split.classes:
        return aligned(model, split.classes)
    valid = np.arange(len(split.y)) % 5 == 0
    base = require("sklearn.base", extra="sklearn", purpose="the study features")
    second = base.clone(model).fit(split.x[~valid], split.y[~valid])
    spread = float(np.sqrt(np.mean((split.y[valid] - second.predict(split.x[valid])) ** 2)))
    return lambda x: np.column_stack([model.predict(x), np.full(len(x), spread)])


def _kind(split: Split, module: Any, classifier: str, regressor: str) -> Any:
    return getattr(module, classifier if split.classes else regressor)


def _estimator(split: Split) -> Any:
    module = require("gflowout.integrations.sklearn", extra="sklearn", purpose="the study features")
    return _kind(split, module, "GFlowOutClassifier", "GFlowOutRegressor")


def _of_estimator(model: Any, split: Split) -> Proba:
    if split.classes:
        return aligned(model, split.classes)
    return lambda x: np.column_stack(model.predict(x, return_std=True))


def network(split: Split, seed: int, small: bool) -> Answer:
    """Masks on hidden units, the default of the estimators: no selection of columns."""
    model = _estimator(split)(random_state=seed).fit(split.x, split.y)
    return Answer(_of_estimator(model, split))


def masks(method: str, split: Split, seed: int, small: bool, **options: Any) -> Answer:
    """Masks on inputs of this library."""
    options |= {"chains": 3, "epochs": 2} if small else {}
    model = _estimator(split)(method, mask_inputs=True, random_state=seed, **options).fit(
        split.x, split.y
    )
    likely = model.inclusion_.mean.numpy()
    tested = model.p_values_ is not None
    selected = model.get_support(**({"fdr": RATE} if tested else {"threshold": 0.5}))
    score = likely - 1e-6 * model.p_values_ if tested else likely
    return Answer(_of_estimator(model, split), score, selected, likely)


def l1(split: Split, seed: int, small: bool, columns: Flags | None = None) -> Answer:
    """L1-penalised linear model, by cross-validation; of some columns, if these are given."""
    sklearn = functools.partial(require, extra="sklearn", purpose="the study features")
    linear, selection = sklearn("sklearn.linear_model"), sklearn("sklearn.model_selection")
    scaler = sklearn("sklearn.preprocessing").StandardScaler()
    pipe = sklearn("sklearn.pipeline").make_pipeline
    kept = np.ones(split.x.shape[1], bool) if columns is None or not columns.any() else columns
    if split.classes:
        solver, most = ("liblinear", 1000) if split.classes == 2 else ("saga", 3000)
        plain = linear.LogisticRegression(
            l1_ratio=1.0, solver=solver, max_iter=most, tol=1e-3, random_state=seed
        )
        grid = {"logisticregression__C": PENALTIES}
        search = selection.GridSearchCV(pipe(scaler, plain), grid, scoring="neg_log_loss", cv=FOLDS)
        model = search.fit(split.x[:, kept], split.y).best_estimator_
    else:
        lasso = linear.LassoCV(cv=FOLDS, random_state=seed)
        model = pipe(scaler, lasso).fit(split.x[:, kept], split.y)
    size = np.zeros(split.x.shape[1])
    size[kept] = np.abs(np.atleast_2d(model[-1].coef_)).max(0)
    narrow = Split(split.x[:, kept], split.y, split.x_test, split.y_test, split.classes)
    predict = _predictions(model, narrow)
    return Answer(lambda x: predict(x[:, kept]), size, size > 0)


def ridge(split: Split, seed: int, small: bool) -> Answer:
    """L2-penalised linear model, by cross-validation."""
    sklearn = functools.partial(require, extra="sklearn", purpose="the study features")
    linear, selection = sklearn("sklearn.linear_model"), sklearn("sklearn.model_selection")
    scaler = sklearn("sklearn.preprocessing").StandardScaler()
    pipe = sklearn("sklearn.pipeline").make_pipeline
    if split.classes:
        plain = pipe(scaler, linear.LogisticRegression(max_iter=2000))
        grid = {"logisticregression__C": [float(c) for c in 10.0 ** np.arange(-3, 3)]}
        model = selection.GridSearchCV(plain, grid, scoring="neg_log_loss", cv=FOLDS)
    else:
        model = pipe(scaler, linear.RidgeCV(10.0 ** np.arange(-3, 4)))
    return Answer(_predictions(model.fit(split.x, split.y), split))


def forest(split: Split, seed: int, small: bool) -> Answer:
    """A random forest at scikit-learn's defaults, with more trees."""
    ensemble = require("sklearn.ensemble", extra="sklearn", purpose="the study features")
    kind = _kind(split, ensemble, "RandomForestClassifier", "RandomForestRegressor")
    trees = 20 if small else TREES
    model = kind(trees, random_state=seed, max_features="sqrt" if split.classes else 1 / 3)
    model.fit(split.x, split.y)
    return Answer(_predictions(model, split), model.feature_importances_)


def boruta(split: Split, seed: int, small: bool) -> Answer:
    """Features that Boruta confirms, and a forest on them; on all if there is none."""
    package = require("boruta", extra="rivals", purpose="the rival Boruta")
    ensemble = require("sklearn.ensemble", extra="sklearn", purpose="the study features")
    kind = _kind(split, ensemble, "RandomForestClassifier", "RandomForestRegressor")
    trees = kind(max_depth=5, n_jobs=1)
    search = package.BorutaPy(trees, n_estimators=100, max_iter=5 if small else 20,
                              random_state=seed)  # fmt: skip
    search.fit(split.x, split.y)
    kept = search.support_ if search.support_.any() else np.ones(split.x.shape[1], bool)
    narrow = Split(split.x[:, kept], split.y, split.x_test, split.y_test, split.classes)
    answer = forest(narrow, seed, small)
    score = -search.ranking_.astype(float)
    assert answer.score is not None
    score[kept] += 0.5 * answer.score / answer.score.max()
    return Answer(lambda x: answer.predict(x[:, kept]), score, search.support_)


def lightgbm(split: Split, seed: int, small: bool) -> Answer:
    """Gradient boosting: leaves and rounds by cross-validation, gain as importance."""
    package = require("lightgbm", extra="rivals", purpose="the rival LightGBM")
    objective = {0: "regression", 2: "binary"}.get(split.classes, "multiclass")
    common = {
        "objective": objective, "learning_rate": 0.05, "verbose": -1, "num_threads": 1,
        "seed": seed, "min_data_in_leaf": 10,
    }  # fmt: skip
    if objective == "multiclass":
        common["num_class"] = split.classes
    rounds = 10 if small else ROUNDS
    best: tuple[float, int, int] | None = None
    for leaves in LEAVES[:1] if small else LEAVES:
        losses = package.cv(
            {**common, "num_leaves": leaves}, package.Dataset(split.x, split.y), rounds,
            nfold=FOLDS, stratified=bool(split.classes), seed=seed,
            callbacks=[package.early_stopping(50, verbose=False)],
        )  # fmt: skip
        losses = next(values for name, values in losses.items() if name.endswith("-mean"))
        result = (float(np.min(losses)), leaves, int(np.argmin(losses)) + 1)
        best = result if best is None else min(best, result)
    assert best is not None
    kind = _kind(split, package, "LGBMClassifier", "LGBMRegressor")
    model = kind(
        num_leaves=best[1], n_estimators=best[2], learning_rate=0.05, min_child_samples=10,
        n_jobs=1, random_state=seed, verbose=-1,
    ).fit(split.x, split.y)  # fmt: skip
    gain = model.booster_.feature_importance("gain")
    return Answer(_predictions(model, split), gain)


def lassonet(split: Split, seed: int, small: bool) -> Answer:
    """LassoNet: the network on its path with the lowest validation loss."""
    package = require("lassonet", extra="rivals", purpose="the rival LassoNet")
    mean, size = split.x.mean(0), np.maximum(split.x.std(0), 1e-9)
    centre, spread = (0.0, 1.0) if split.classes else (split.y.mean(), split.y.std())

    def scaled(x: Floats) -> Any:
        return ((x - mean) / size).astype(np.float32)

    y: Any = split.y
    if not split.classes:
        y = ((y - centre) / spread).astype(np.float32)[:, None]
    kind = _kind(split, package, "LassoNetClassifier", "LassoNetRegressor")
    model = kind(
        hidden_dims=(100,), random_state=seed, torch_seed=seed, verbose=0,
        n_iters=(5, 2) if small else (1000, 100), path_multiplier=1.5 if small else 1.05,
    )  # fmt: skip
    path = model.path(scaled(split.x), y, return_state_dicts=True)
    best = min(path, key=lambda state: float(state.val_loss))
    model.load(best.state_dict)
    score, selected = model.feature_importances_.numpy(), best.selected.numpy()
    if split.classes:
        return Answer(lambda x: model.predict_proba(scaled(x)), score, selected)
    error = spread * float(best.val_loss) ** 0.5
    return Answer(
        lambda x: np.column_stack([
            model.predict(scaled(x)).ravel() * spread + centre, np.full(len(x), error)
        ]),
        score, selected,
    )  # fmt: skip


def knockoffs(split: Split, seed: int, small: bool) -> Answer:
    """Gaussian knockoffs with the Lasso's statistic, and an L1 model of what they select."""
    package = require("hidimstat", extra="rivals", purpose="the rival knockoffs")
    linear = require("sklearn.linear_model", extra="sklearn", purpose="the study features")
    lasso = linear.LassoCV(cv=FOLDS, max_iter=2000, tol=1e-4)
    model = package.ModelXKnockoff(lasso, random_state=seed)
    model.fit_importance(split.x, split.y - split.y.mean())
    selected = np.asarray(model.fdr_selection(fdr=RATE)) != 0
    answer = l1(split, seed, small, selected)
    return Answer(answer.predict, model.importances_.mean(0), selected)


def dcrt(split: Split, seed: int, small: bool) -> Answer:
    """Distilled conditional randomization test by the Lasso, and an L1 model of what it selects."""
    package = require("hidimstat", extra="rivals", purpose="the rival dCRT")
    linear = require("sklearn.linear_model", extra="sklearn", purpose="the study features")
    lasso = linear.LassoCV(alphas=10, cv=FOLDS, tol=1e-4)
    model = package.D0CRT(lasso, random_state=seed)
    model.fit_importance(split.x, split.y - split.y.mean())
    selected = np.asarray(model.fdr_selection(fdr=RATE)) != 0
    answer = l1(split, seed, small, selected)
    return Answer(answer.predict, -np.asarray(model.pvalues_), selected)


def ebm(split: Split, seed: int, small: bool) -> Answer:
    """An explainable boosting machine; columns of a term share its importance."""
    package = require("interpret.glassbox", extra="rivals", purpose="the rival EBM")
    kind = _kind(split, package, "ExplainableBoostingClassifier", "ExplainableBoostingRegressor")
    quick = {"max_rounds": 5, "outer_bags": 1} if small else {}
    model = kind(n_jobs=1, random_state=seed, **quick).fit(split.x, split.y)
    score = np.zeros(split.x.shape[1])
    for columns, size in zip(model.term_features_, model.term_importances(), strict=True):
        score[list(columns)] += size / len(columns)
    return Answer(_predictions(model, split), score)


def bart(split: Split, seed: int, small: bool) -> Answer:
    """Bayesian additive regression trees; a column counts by how often trees split on it."""
    package = require("stochtree", extra="rivals", purpose="the rival BART")
    general: dict[str, Any] = {"random_seed": seed + 1, "num_threads": 1}
    if split.classes:
        general["outcome_model"] = package.OutcomeModel(outcome="binary", link="probit")
    model = package.BARTModel()
    steps = {"num_gfr": 2, "num_mcmc": 5} if small else {"num_gfr": 10, "num_mcmc": 100}
    model.sample(split.x, split.y.astype(float), general_params=general, **steps)
    score = model.forest_container_mean.get_overall_split_counts(split.x.shape[1]).astype(float)

    def predict(x: Floats) -> Floats:
        scale = "probability" if split.classes else "linear"
        draws = model.predict(x, type="posterior", terms="y_hat", scale=scale)
        if split.classes:
            return np.column_stack([1 - draws.mean(1), draws.mean(1)])
        noise = float(np.mean(model.global_var_samples))
        return np.column_stack([draws.mean(1), np.sqrt(draws.var(1) + noise)])

    return Answer(predict, score)


_FITS: dict[str, Callable[[Split, int, bool], Answer]] = {
    "id-gflowout": functools.partial(masks, "auto"),
    "gates": functools.partial(masks, "gates", chains=CHAINS, options={"strength": 0.003}),
    "network": network,
    "l1": l1,
    "ridge": ridge,
    "forest": forest,
    "boruta": boruta,
    "lightgbm": lightgbm,
    "lassonet": lassonet,
    "knockoffs": knockoffs,
    "dcrt": dcrt,
    "ebm": ebm,
    "bart": bart,
}
RIVALS = {
    label: Rival(_FITS[label], **about, several=label not in ("knockoffs", "dcrt", "bart"))
    for label, about in features_data.TABLES["rivals"].items()
}
"""All rivals by name, in the order of the report."""
