"""Estimators for scikit-learn: what weights, rows, seeds and masks mean to them."""

import dataclasses
import math
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from gflowout import Disagreement, Ensemble, Predictive, Units
from gflowout.integrations.sklearn import (
    GFlowOutClassifier,
    GFlowOutRegressor,
    chains,
    one_hot_groups,
    parameters,
    tabular,
)
from gflowout.integrations.sklearn.features import units_of
from gflowout.integrations.sklearn.recipes import FEATURES, HIDDEN, LOOPED, ROWS, Recipe
from gflowout.methods import METHODS

QUICK = {"epochs": 3, "hidden_layer_sizes": (8,), "random_state": 0}
SELECT = {**QUICK, "mask_inputs": True, "chains": 2, "options": {"start_keep": 0.8}}


def classes(rows: int = 80, features: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(seed)
    x = rng.randn(rows, features)
    return x, (x[:, 0] + 0.3 * rng.randn(rows) > 0).astype(int)


# Tables


def test_equal_rows_become_one_whatever_their_order() -> None:
    rng = np.random.RandomState(0)
    x, y = rng.randint(3, size=(50, 2)).astype(float), rng.randint(2, size=(50, 1)).astype(float)
    weight = rng.randint(4, size=50).astype(float)
    counted: dict[tuple[float, ...], float] = {}
    for row in range(50):
        key = (*x[row], *y[row])
        counted[key] = counted.get(key, 0) + weight[row]
    order = rng.permutation(50)
    table = tabular.distinct(x, y, weight)
    negative = np.where(x == 0, -0.0, x)
    other = tabular.distinct(negative[order], y[order], weight[order])
    found = {
        (*one, *two): three for one, two, three in zip(table.x, table.y, table.weight, strict=True)
    }
    assert found == {key: value for key, value in counted.items() if value}
    for name in ("x", "y", "weight"):
        np.testing.assert_array_equal(getattr(table, name), getattr(other, name))


def test_rows_are_visited_as_often_as_they_weigh() -> None:
    weight = np.array([0.25, 1.0, 2.5, 4.0])
    rng = np.random.RandomState(0)
    seen = np.stack(
        [np.bincount(tabular.visits(weight, weight.sum(), rng), minlength=4) for _ in range(2000)]
    )
    assert (seen >= np.floor(weight * 8 / 7.75)).all()
    assert (seen <= np.ceil(weight * 8 / 7.75)).all()
    np.testing.assert_allclose(seen.mean(0), weight * 8 / 7.75, atol=0.03)
    assert sorted(tabular.visits(np.ones(9), 9, rng)) == list(range(9))


def test_folds_are_alike_and_leave_every_class_to_training() -> None:
    y = np.repeat([0.0, 1.0, 2.0], [40, 21, 1])[:, None]
    fold = tabular.folds(y, 5, np.random.RandomState(0), classes=True)
    counts = np.array([[np.sum((y[:, 0] == k) & (fold == f)) for k in range(3)] for f in range(5)])
    assert (np.ptp(counts, 0) <= 1).all()
    assert counts[:, 2].sum() == 0
    target = np.random.RandomState(0).randn(100, 1)
    fold = tabular.folds(target, 4, np.random.RandomState(0), classes=False)
    ranks = target[:, 0].argsort().argsort()
    assert np.ptp([ranks[fold == f].mean() for f in range(4)]) <= 3


def test_scale_is_weighted_and_leaves_constants() -> None:
    x = np.array([[1.0, 7.0], [3.0, 7.0], [9.0, 7.0]])
    scale = tabular.Scale.of(x, np.array([2.0, 1.0, 0.5]))
    repeated = x.repeat([4, 2, 1], axis=0)
    np.testing.assert_allclose(scale.mean, repeated.mean(0))
    np.testing.assert_allclose(scale.deviation, [repeated[:, 0].std(), 1.0])


def test_weights_that_sum_to_little_are_relative() -> None:
    x, y = classes()
    small = GFlowOutClassifier("id-gflowout", **QUICK).fit(x, y, np.full(80, 1 / 80))
    plain = GFlowOutClassifier("id-gflowout", **QUICK).fit(x, y)
    for one in (small, plain):
        rows = round(80 * (1 - HIDDEN.validation_fraction))
        assert one.chains_[0].model.method.options.train_size == pytest.approx(rows, abs=1)
    np.testing.assert_allclose(small.predict_proba(x), plain.predict_proba(x), atol=1e-5)


def test_weights_that_sum_to_very_much_are_asked_about() -> None:
    x, y = classes(40)
    with pytest.warns(UserWarning, match="sums to 480 for 40 rows.*divide weights by their mean"):
        GFlowOutClassifier(**QUICK).fit(x, y, np.full(40, 12.0))
    GFlowOutClassifier(**QUICK).fit(x, y, np.full(40, 9.0))


# Weights, order, seeds


@pytest.mark.parametrize("kind", [GFlowOutClassifier, GFlowOutRegressor])
def test_weights_are_repetitions_and_order_is_nothing(kind: type) -> None:
    x, y = classes(60)
    weight = np.random.RandomState(1).randint(0, 4, size=60)
    est = kind(**QUICK)
    wanted = clone(est).fit(x, y, sample_weight=weight).predict(x)
    order = np.random.RandomState(2).permutation(weight.sum())
    repeated = clone(est).fit(x.repeat(weight, 0)[order], y.repeat(weight)[order])
    np.testing.assert_array_equal(repeated.predict(x), wanted)
    np.testing.assert_array_equal(repeated.predictive(x).outputs.mean(0).shape[0], 60)
    unweighted = clone(est).fit(x, y).predictive(x).mean
    assert not torch.equal(unweighted, repeated.predictive(x).mean)


def test_global_random_states_neither_matter_nor_move() -> None:
    x, y = classes()
    est = GFlowOutClassifier(**QUICK)
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = est.fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    np.random.seed(2)
    torch.manual_seed(2)
    np.testing.assert_array_equal(clone(est).fit(x, y).predict_proba(x), first)
    other = clone(est).set_params(random_state=1).fit(x, y).predict_proba(x)
    assert np.abs(other - first).max() > 1e-3


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_row_gets_the_same_answer_alone(method: str) -> None:
    x, y = classes(40)
    est = GFlowOutClassifier(method, **QUICK).fit(x, y)
    alone = np.concatenate([est.predict_proba(row[None]) for row in x[:4]])
    np.testing.assert_allclose(alone, est.predict_proba(x)[:4], rtol=1e-7, atol=1e-9)


def test_draws_in_common_are_those_of_the_model() -> None:
    # One row: there is nothing to have in common, so the library's own predict gives the same.
    x, y = classes(40)
    model = GFlowOutClassifier(**QUICK).fit(x, y).chains_[0].model
    own = model.predict(torch.tensor(x[:1]), samples=7, generator=torch.Generator().manual_seed(0))
    shared = chains.predict(model, x[:1], 7, torch.Generator().manual_seed(0))
    torch.testing.assert_close(shared.outputs, own.outputs)


def test_class_weights_are_sample_weights() -> None:
    x, y = classes(90)
    y[:60] = 0
    ratio = (y == 0).sum() / (y == 1).sum()
    est = GFlowOutClassifier(**{**QUICK, "epochs": 20})
    plain, balanced = (
        clone(est).set_params(class_weight=given).fit(x, y).predict_proba(x)[:, 1].mean()
        for given in (None, "balanced")
    )
    named = clone(est).set_params(class_weight={1: ratio}).fit(x, y).predict_proba(x)[:, 1].mean()
    assert balanced > plain + 0.05
    assert named == pytest.approx(balanced, abs=1e-3)


# Training


def test_the_best_epoch_is_kept() -> None:
    x, y = classes(120, 20)
    y = np.where(np.random.RandomState(0).rand(120) < 0.3, 1 - y, y)  # overfits soon
    est = GFlowOutClassifier(
        "none", random_state=0, epochs=60, patience=60, validation_fraction=0.25
    )
    chain = est.fit(x, y).chains_[0]
    scores = {one["epoch"]: one["valid_nll"] for one in chain.history if "valid_nll" in one}
    best = min(scores.values())
    assert scores[chain.best_epoch] == best < 0.9 * scores[59]
    # Without masks nothing is random: the weights' own log-likelihood is that of their epoch.
    rows = -chain.evidence / best
    assert rows == pytest.approx(round(rows), abs=1e-3)
    assert round(rows) in (29, 30)
    short = clone(est).set_params(patience=6).fit(x, y)
    assert short.n_iter_ < est.n_iter_ == 60


def test_chains_pool_their_draws_by_weight() -> None:
    x, y = classes()
    est = GFlowOutClassifier("none", chains=2, **{**QUICK, "samples": 10}).fit(x, y)
    est.chain_weights_ = np.array([0.8, 0.2])
    scaled = torch.tensor(est._scale.apply(x))
    parts = [one.model.predict(scaled, samples=1).mean for one in est.chains_]
    wanted = 0.8 * parts[0] + 0.2 * parts[1]
    torch.testing.assert_close(est.predictive(x).mean, wanted)


def test_chains_of_a_grid_differ_in_prior_and_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ((0.1, 0.3), (0.2, 1.0))
    monkeypatch.setattr(parameters, "LOOPED", dataclasses.replace(LOOPED, grid=grid))
    x, y = classes()
    # An option that chains side by side do not have.
    options = {"start_keep": 0.8, "epsilon": 0.1}
    est = GFlowOutClassifier(**{**SELECT, "chains": 3, "options": options}).fit(x, y)
    options = [one.model.method.options for one in est.chains_]
    assert [(one.prior_keep, one.beta) for one in options] == [grid[0], grid[1], grid[0]]
    evidence = np.array([one.evidence for one in est.chains_])
    weights = np.exp(LOOPED.temper * (evidence - evidence.max()))
    np.testing.assert_allclose(est.chain_weights_, weights / weights.sum())


# Predictions


def test_uncertainty_of_classes_adds_up() -> None:
    x, y = classes()
    labels = np.array(["no", "yes"])[y]
    est = GFlowOutClassifier(**QUICK).fit(x, labels)
    assert set(est.predict(x)) <= {"no", "yes"}
    found = pd.DataFrame(est.predict_uncertainty(x))
    parts = found["expected_entropy"] + found["mutual_information"]
    np.testing.assert_allclose(found["entropy"], parts)
    probabilities = est.predict_proba(x)
    np.testing.assert_allclose(found["max_probability"], probabilities.max(1))
    entropy = -(probabilities * np.log(probabilities)).sum(1)
    np.testing.assert_allclose(found["entropy"], entropy)
    assert isinstance(est.predictive(x), Predictive)


def test_regression_is_in_the_units_of_the_target() -> None:
    rng = np.random.RandomState(0)
    x = rng.randn(300, 2)
    y = 1000 + 50 * x[:, 0] + 20 * rng.randn(300)
    est = GFlowOutRegressor(random_state=0).fit(x, y)
    mean, std = est.predict(x, return_std=True)
    assert est.score(x, y) > 0.7
    assert 15 < np.sqrt(np.mean((y - mean) ** 2)) < 25
    assert 15 < std.mean() < 35
    found = est.predict_uncertainty(x, quantiles=(0.1, 0.9))
    np.testing.assert_allclose(
        found["std"] ** 2, found["epistemic_std"] ** 2 + found["aleatoric_std"] ** 2
    )
    inside = np.mean((found["q0.1"] < y) & (y < found["q0.9"]))
    assert 0.7 < inside < 0.95


def test_several_targets() -> None:
    rng = np.random.RandomState(0)
    x = rng.randn(200, 3)
    y = np.stack([100 * x[:, 0], x[:, 1] - 5], 1) + 0.1 * rng.randn(200, 2)
    est = GFlowOutRegressor(random_state=0, epochs=40).fit(x, y)
    mean, std = est.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert est.score(x, y) > 0.7


@pytest.mark.parametrize("kind", [GFlowOutClassifier, GFlowOutRegressor])
def test_pickles_and_joblib_files_predict_the_same(kind: type, tmp_path) -> None:
    x, y = classes(40)
    est = kind(**SELECT).fit(x, y)
    joblib.dump(est, tmp_path / "est.joblib")
    for copy in (pickle.loads(pickle.dumps(est)), joblib.load(tmp_path / "est.joblib")):
        assert torch.equal(copy.predictive(x).outputs, est.predictive(x).outputs)
        assert torch.equal(copy.inclusion_.mean, est.inclusion_.mean)


# Features


@pytest.mark.parametrize("kind", [GFlowOutClassifier, GFlowOutRegressor])
def test_irrelevant_inputs_have_low_inclusion(kind: type) -> None:
    rng = np.random.RandomState(0)
    x = rng.randn(300, 12)
    signal = 2 * x[:, 3] - 2 * x[:, 7] + 0.3 * rng.randn(300)
    y = (signal > 0).astype(int) if kind is GFlowOutClassifier else signal
    est = kind(
        mask_inputs=True, chains=6, epochs=100, hidden_layer_sizes=(32,), random_state=0
    ).fit(x, y)
    assert est.get_support(indices=True).tolist() == [3, 7]
    assert est.inclusion_.mean[[3, 7]].min() > 0.9
    others = np.delete(est.inclusion_.mean.numpy(), [3, 7])
    assert others.max() < 0.4
    assert est.score(x, y) > 0.85


def test_a_selector_in_a_pipeline_with_frames() -> None:
    x, y = classes(100, 6)
    frame = pd.DataFrame(x, columns=list("abcdef"))
    est = GFlowOutClassifier(**SELECT, always=["b"], keep={"a": 0.5}).fit(frame, y)
    assert est.inclusion_.names == tuple("abcdef")
    assert est.inclusion_.mean[1] == 1
    est.threshold = float(np.sort(est.inclusion_.mean)[-3])
    chosen = np.array(list("abcdef"))[est.get_support()]
    assert len(chosen) >= 3
    assert "b" in chosen
    assert est.get_feature_names_out().tolist() == chosen.tolist()
    assert est.set_output(transform="pandas").transform(frame).columns.tolist() == chosen.tolist()
    assert 1 in est.get_support(indices=True, threshold=1.0)
    shown = est.plot_inclusion(top=4)
    labels = [label.get_text() for label in shown.get_yticklabels()]
    assert set(labels[:2]) == {"a", "b"}  # the one that must stay, and one that is sure
    assert len(shown.get_yticklabels()) == 4
    plt.close(shown.figure)
    pipe = make_pipeline(GFlowOutClassifier(**SELECT), LogisticRegression()).fit(frame, y)
    assert pipe.score(frame, y) > 0.8


def test_without_masked_inputs_there_is_no_selector() -> None:
    est = GFlowOutClassifier()
    for name in ("transform", "get_support", "get_feature_names_out", "inclusion", "set_output",
                 "plot_inclusion"):  # fmt: skip
        assert not hasattr(est, name)
        assert hasattr(est.set_params(mask_inputs=True), name)
        est.set_params(mask_inputs=False)
    x, y = classes(40)
    est = GFlowOutClassifier(**SELECT).fit(x, y)
    assert hasattr(est, "feature_importances_")
    est.set_params(mask_inputs=False, options=None).fit(x, y)
    assert not hasattr(est, "inclusion_")
    assert not hasattr(est, "feature_importances_")
    est.set_params(mask_inputs=True)  # but not fitted so
    with pytest.raises(NotFittedError):
        est.get_support()
    with pytest.raises(NotFittedError):
        est.inclusion(x)


def test_importances_for_other_selectors() -> None:
    x, y = classes(60)
    est = GFlowOutClassifier(**SELECT)
    selector = SelectFromModel(est, threshold=-np.inf, max_features=2).fit(x, y)
    found = selector.estimator_
    np.testing.assert_array_equal(found.feature_importances_, found.inclusion_.mean.numpy())
    best = np.sort(np.argsort(-found.feature_importances_, kind="stable")[:2])
    np.testing.assert_array_equal(selector.get_support(indices=True), best)
    assert RFE(est, n_features_to_select=2, step=2).fit(x, y).support_.sum() == 2


@pytest.mark.parametrize("method", ["combined", "contextual"])
def test_other_methods_keep_their_own_priors(method: str) -> None:
    x, y = classes(60)
    given = {**SELECT, "options": None}
    est = GFlowOutClassifier(method, **given, keep={0: 0.2}).fit(x, y)
    assert est._recipe().samples == FEATURES.samples
    found, own = est.chains_[0].model.method.options, METHODS[method].Options()
    assert found.prior_keep == own.prior_keep
    if method == "combined":
        assert (found.hidden, found.draws, found.beta) == (own.hidden, own.draws, own.beta)
    rates = est.chains_[0].model.sites[0].keep
    assert rates == pytest.approx((0.2, 0.9, 0.9, 0.9))
    assert est.inclusion_.mean[1:].min() > 0.3
    assert np.ptp(est.inclusion(x[:20]), 0).max() > 0  # rows differ


@pytest.mark.parametrize(
    "method", ["mc", "concrete", "masksembles", "modes", "none", "variational"]
)
def test_methods_that_learn_nothing_about_features_say_so(method: str) -> None:
    x, y = classes(40)
    est = GFlowOutClassifier(method, **{**SELECT, "options": None})
    with pytest.warns(UserWarning, match=f"method '{method}' learn nothing about single features"):
        est.fit(x, y)
    if method == "concrete":  # which may
        est.set_params(options={"per_unit": True}).fit(x, y)


def test_rates_that_users_give_hold() -> None:
    x, y = classes(60)
    rates = [0.02, 0.5, 0.02, 0.02]
    est = GFlowOutClassifier(**SELECT, keep=rates).fit(x, y)
    assert est.chains_[0].model.sites[0].keep == pytest.approx(rates)
    looped = est.set_params(options={"start_keep": 0.8, "epsilon": 0.1}).fit(x, y)
    site = looped.chains_[0].model.sites[0]
    final = [math.log(rate / (1 - rate)) - LOOPED.sparsity for rate in site.keep]
    np.testing.assert_allclose([1 / (1 + math.exp(-one)) for one in final], rates)


def test_inclusion_row_by_row() -> None:
    x, y = classes(60)
    shared = GFlowOutClassifier(**SELECT).fit(x, y).inclusion(x)
    assert (shared == shared[0]).all()
    given = {**SELECT, "options": None, "generator_lr": 0.1, "epochs": 20, "chains": 1}
    own = GFlowOutClassifier("gflowout", **given).fit(x, y)
    found = own.inclusion(x[:30])
    assert np.ptp(found, 0).max() > 0
    np.testing.assert_allclose(own.inclusion(x[3:5]), found[3:5])
    # All of the training rows, as there are few; they count the same.
    assert own.inclusion_.masks.shape[2] == 60
    np.testing.assert_allclose(own.inclusion_.mean, own.inclusion(x, 500).mean(0), atol=0.03)


def mixed(rows: int = 120) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(
        {
            "age": rng.randn(rows),
            "dose": np.where(rng.rand(rows) < 0.2, np.nan, rng.randn(rows)),
            "ward": rng.choice(["a", "b", "c"], rows),
            "sex": rng.choice(["f", "m"], rows),
        }
    )
    return frame, ((frame["ward"] == "a") ^ (frame["age"] > 0)).to_numpy().astype(int)


def test_groups_by_name_notice_that_a_column_is_gone() -> None:
    frame, y = mixed()
    encode = OneHotEncoder(sparse_output=False).set_output(transform="pandas")
    est = GFlowOutClassifier(**SELECT, groups=[["ward_a", "ward_b", "ward_c"]])
    fewer = frame["ward"] != "c"
    with pytest.raises(ValueError, match="X has no column 'ward_c'"):
        make_pipeline(encode, est).fit(frame.loc[fewer, ["ward", "sex"]], y[fewer])


def test_mixed_columns_through_a_pipeline() -> None:
    frame, y = mixed()
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), ["age", "dose"]),
        (OneHotEncoder(), ["ward"]),
        (OneHotEncoder(drop="if_binary"), ["sex"]),
    ).fit(frame)
    names = prepare.get_feature_names_out().tolist()
    groups = one_hot_groups(prepare)
    found = [{names[column].split("__")[1] for column in group} for group in groups]
    assert found == [{"dose", "missingindicator_dose"}, {"ward_a", "ward_b", "ward_c"}]
    pipe = make_pipeline(prepare, GFlowOutClassifier(**SELECT, groups=groups)).fit(frame, y)
    masks = pipe[-1].inclusion_.masks
    for group in groups:
        assert (masks[..., group] == masks[..., group[:1]]).all()
    plain = make_pipeline(prepare, GFlowOutClassifier(random_state=0)).fit(frame, y)
    assert plain.score(frame, y) > 0.9


def test_groups_follow_columns_through_selectors_and_scalers() -> None:
    frame, y = mixed()
    frame = frame[["ward", "sex"]].assign(site=["s"] * 119 + ["t"])
    encode = OneHotEncoder(sparse_output=False)
    chain = make_pipeline(encode, MaxAbsScaler(), "passthrough", VarianceThreshold(0.05)).fit(frame)
    assert chain.get_feature_names_out().tolist() == [
        "ward_a",
        "ward_b",
        "ward_c",
        "sex_f",
        "sex_m",
    ]
    assert one_hot_groups(chain) == [[0, 1, 2], [3, 4]]
    best = make_pipeline(clone(encode), SelectKBest(k=4)).fit(frame, y)
    names = best.get_feature_names_out().tolist()
    found = [[names[column] for column in group] for group in one_hot_groups(best)]
    kinds = ("ward", "sex", "site")
    split = [[name for name in names if name.startswith(kind)] for kind in kinds]
    assert found == [group for group in split if len(group) > 1]
    # Columns of one variable stay together where a later step treats them apart.
    apart = make_column_transformer((StandardScaler(), [0, 4]), remainder="passthrough")
    assert one_hot_groups(make_pipeline(clone(encode), apart).fit(frame)) == [
        [0, 2, 3],
        [1, 4],
        [5, 6],
    ]
    inside = make_column_transformer(
        (clone(encode), ["sex"]),
        (make_pipeline(clone(encode), VarianceThreshold(0.05)), ["ward", "site"]),
    )
    assert one_hot_groups(inside.fit(frame)) == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("kind", [SimpleImputer, KNNImputer])
def test_groups_of_imputers(kind: type, empty: bool) -> None:
    x = np.random.RandomState(0).randn(30, 3)
    x[:5, 0] = x[:, 1] = np.nan
    fill = kind(add_indicator=True, keep_empty_features=empty).fit(x)
    assert one_hot_groups(fill) == ([[0, 3], [1, 4]] if empty else [[0, 2]])
    both = FeatureUnion([("scale", StandardScaler()), ("missing", MissingIndicator())])
    assert one_hot_groups(both.fit(x[:, [2, 0]])) == [[1, 2]]
    bins = KBinsDiscretizer([2, 3], encode="onehot-dense", strategy="uniform")
    assert one_hot_groups(bins.fit(np.random.RandomState(0).randn(30, 2))) == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize("step", [PCA(2), FunctionTransformer(np.abs), PolynomialFeatures(2)])
def test_groups_of_mixed_columns_are_for_the_user(step) -> None:
    frame, _ = mixed()
    chain = make_pipeline(OneHotEncoder(sparse_output=False), step).fit(frame[["ward", "sex"]])
    wanted = f"which columns {type(step).__name__} mixes is unknown: give groups yourself"
    with pytest.raises(ValueError, match=wanted):
        one_hot_groups(chain)
    with pytest.raises(NotFittedError):
        one_hot_groups(OneHotEncoder())


def test_rates_and_masks_of_features_by_name() -> None:
    names = ["a", "b", "c", "d"]
    series = pd.Series({"d": 0.4, "a": 0.2})
    assert units_of(None, None, series, names, 4, 0.1).keep == (0.2, 0.1, 0.1, 0.4)
    assert units_of([[0, 1]], None, {"b": 0.3}, names, 4, 0.1).keep == (0.3, 0.3, 0.1, 0.1)
    assert units_of(None, np.array([True, False, False, True]), None, names, 4, 0.1).always == [
        0,
        3,
    ]
    units = units_of([["b", "c"]], ["a"], {"b": 0.5}, names, 4, 0.1)
    assert units == Units(groups=[[1, 2]], keep=(0.1, 0.5, 0.5, 0.1), always=[0])
    for keep in ({"a": 0.2, "b": 0.3}, [0.2, 0.3, 0.1, 0.1]):
        with pytest.raises(
            ValueError, match=r"same within a group, got 0\.2 for 'a', 0\.3 for 'b'"
        ):
            units_of([["a", "b"]], None, keep, names, 4, 0.1)


def test_schedules_and_options_of_chains() -> None:
    recipe = Recipe("id-gflowout", grid=((0.1, 1.0), (0.1, 0.3)), options={"draws": 8})
    options = recipe.chain_options(1, {"prior_keep": 0.5, "beta": 1.0})
    assert options == {"prior_keep": 0.1, "beta": 0.3}
    sparse = Recipe("mc", sparsity=3.0)
    sparsities = [sparse.annealed(progress) for progress in (0.2, 0.55, 0.8)]
    assert sparsities == pytest.approx([0.0, 1.5, 3.0])
    assert [HIDDEN.decayed(progress) for progress in (0.2, 0.75)] == pytest.approx([1.0, 0.5])


# scikit-learn's tools


def test_searches_and_calibration() -> None:
    x, y = classes(60)
    est = GFlowOutClassifier(**QUICK)
    search = GridSearchCV(est, {"method": ["mc", "gflowout"], "lr": [0.05]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.7
    assert cross_val_score(est, x, y, cv=2, scoring="neg_log_loss").max() < 0
    calibrated = CalibratedClassifierCV(est, cv=2).fit(x, y)
    np.testing.assert_allclose(calibrated.predict_proba(x).sum(1), 1)


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = classes(60)
    GFlowOutClassifier(**QUICK).fit(x, y)
    assert capsys.readouterr().out == ""
    GFlowOutClassifier(**QUICK, verbose=True, chains=2).fit(x, y)
    assert "chain 2/2 epoch 3/3" in capsys.readouterr().out


def test_chains_make_an_ensemble() -> None:
    x, y = classes(60)
    est = GFlowOutClassifier(**SELECT).fit(x, y)
    ensemble = Ensemble([one.model for one in est.chains_], weights=est.chain_weights_.tolist())
    assert ensemble.predict(torch.tensor(est._scale.apply(x))).mean.shape == (60,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "gflowot"}, "method must be one of .* did you mean 'gflowout'"),
        ({"hidden_layer_sizes": 8}, "hidden_layer_sizes must be a list of widths, got 8"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be an integer >= 1, got 0"),
        ({"hidden_layer_sizes": ()}, "needs something to mask: take mask_inputs=True"),
        ({"mask_hidden": False}, "needs something to mask"),
        ({"mask_hidden": 2}, "mask_hidden must be True, False or 'auto', got 2"),
        ({"mask_inputs": "yes"}, "mask_inputs must be True or False"),
        ({"options": {"rate": 2}}, "method 'gflowout' has no option 'rate'"),
        ({"options": 3}, "options must be a dict or None, got 3"),
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be an integer"),
        ({"lr": -1}, "lr must be a number"),
        ({"generator_lr": 0}, "generator_lr must be a number"),
        ({"chains": 0}, "chains must be an integer >= 1"),
        ({"samples": 0}, "samples must be an integer >= 1"),
        ({"validation_fraction": 0.9}, r"validation_fraction must be a number in \[0, 0.5\]"),
        ({"class_weight": "equal"}, "class_weight must be 'balanced', a dict or None, got 'equal'"),
        ({"class_weight": {7: 1.0}}, "class_weight names 7, which is not among the classes"),
        ({"groups": [[0, 1]]}, "groups is about masked inputs: it needs mask_inputs=True"),
        ({"mask_inputs": True, "always": ["age"]}, "X has no column names"),
        ({"mask_inputs": True, "always": [4]}, "always must name features by numbers from 0 to 3"),
        ({"mask_inputs": True, "groups": "ab"}, "groups must be a list of lists"),
        ({"mask_inputs": True, "groups": ["a", "b"]}, r'such as \[\["a", "b"\]\], got'),
        ({"mask_inputs": True, "groups": [[0, 1], [1, 2]]}, "groups: feature 1 is named twice"),
        ({"mask_inputs": True, "groups": [[0, 1]], "always": [1]}, "feature 1 is in a group"),
        ({"mask_inputs": True, "always": [True]}, "a mask of 4 of them, got a mask of 1"),
        ({"mask_inputs": True, "keep": {0: 1.5}}, "keep must be a number in"),
        (
            {"mask_inputs": True, "keep": 1.0},
            "keep must be below 1, got 1; name .* always",
        ),
        ({"mask_inputs": True, "keep": [0.1]}, "one for each of the 4 features, got 1"),
        ({"standardize": 1}, "standardize must be True or False"),
        ({"device": "gpu"}, "device must be a name such as 'cpu' or 'cuda', got 'gpu'"),
        pytest.param(
            {"device": "cuda"},
            "device is 'cuda', but PyTorch finds no such device here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_errors_name_the_argument(given: dict, message: str) -> None:
    x, y = classes(30)
    with pytest.raises((ValueError, TypeError), match=message):
        GFlowOutClassifier(**{**QUICK, **given}).fit(x, y)


def test_errors_about_columns_suggest_one() -> None:
    x, y = classes(30)
    frame = pd.DataFrame(x, columns=["age", "dose", "ward", "sex"])
    with pytest.raises(ValueError, match="X has no column 'dos'; did you mean 'dose'"):
        GFlowOutClassifier(**SELECT, always=["dos"]).fit(frame, y)
    with pytest.raises(ValueError, match="groups: feature 'dose' is named twice"):
        GFlowOutClassifier(**SELECT, groups=[["age", "dose"], ["dose", "sex"]]).fit(frame, y)


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = """
        import sys
        for name in ("numpy", "sklearn", "rich"):
            sys.modules[name] = None  # importing it fails
        import warnings
        warnings.filterwarnings("ignore")
        import gflowout.integrations
        from gflowout.core.optional import MissingExtraError
        try:
            import gflowout.integrations.sklearn
        except MissingExtraError as error:
            print(error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    wanted = "gflowout.integrations.sklearn needs scikit-learn: pip install -e '.[sklearn]'"
    assert ended.stdout.startswith(wanted)


def test_the_documents_code_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    short = dataclasses.replace(FEATURES, chains=6, steps=100)
    monkeypatch.setattr(parameters, "FEATURES", short)
    text = (Path(__file__).parents[2] / "docs/guides/tables.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    space: dict = {}
    exec(compile(code, "docs/guides/tables.md", "exec"), space)
    assert space["clf"].score(space["X_test"], space["y_test"]) > 0.9
    wards = [f"onehotencoder__ward_{ward}" for ward in "abc"]
    assert space["mixed"].groups == [wards]


def test_masks_of_each_row_are_charged_for() -> None:
    x, y = classes(60)
    est = GFlowOutClassifier("gflowout", mask_inputs=True, epochs=6, random_state=0).fit(x, y)
    assert len(est.chains_) == ROWS.chains
    options = est.chains_[0].model.method.options
    assert (options.beta, options.draws, options.log_z) == (20.0, 4, "batch")
    assert options.sparsity == ROWS.sparsity  # it was brought in during the training
    found = est.inclusion(x[:5])
    assert found.std(0).max() > 0  # rows differ
    free = GFlowOutClassifier(
        "gflowout", mask_inputs=True, epochs=6, random_state=0, options={"sparsity": 0.0}
    ).fit(x, y)
    assert free.chains_[0].model.method.options.sparsity == 0


def test_label_noise_is_learned() -> None:
    x, y = classes(1500)
    wrong = np.random.RandomState(1).rand(1500) < 0.4
    labels = np.where(wrong, np.random.RandomState(2).randint(2, size=1500), y)
    clf = GFlowOutClassifier("mc", hidden_layer_sizes=(16,), random_state=0, label_noise="learned")
    clf.fit(x, labels)
    rate = clf.chains_[0].model.likelihood.label_noise.rate.item()
    assert 0.2 < rate < 0.6
    assert clf.score(x, y) > 0.85


def test_disagreement_is_trained() -> None:
    x, y = classes(200)
    far = np.random.RandomState(1).randn(200, 4) * 6
    settings = {
        "epochs": 20,
        "hidden_layer_sizes": (32,),
        "random_state": 0,
        "validation_fraction": 0.0,
    }
    clf = GFlowOutClassifier(
        "masksembles", **settings, disagreement=Disagreement(1.0, inputs=lambda x: 6 * x)
    )
    plain = clone(clf).set_params(disagreement=None)
    assert clone(clf).disagreement == clf.disagreement
    more, less = (
        own.fit(x, y).predict_uncertainty(far)["mutual_information"].mean() for own in (clf, plain)
    )
    assert more > 2 * less


def test_terms_that_do_not_fit_are_named() -> None:
    x, y = classes()
    with pytest.raises(
        TypeError, match=r"disagreement must be gfo\.Disagreement or None, got 0\.1"
    ):
        GFlowOutClassifier(**QUICK, disagreement=0.1).fit(x, y)
    with pytest.raises(ValueError, match="method 'none' are all the same"):
        GFlowOutClassifier("none", **QUICK, disagreement=Disagreement()).fit(x, y)
    with pytest.raises(ValueError, match="rows of label_noise must sum to 1"):
        GFlowOutClassifier(**QUICK, label_noise=[[1.0, 0.5], [0.0, 1.0]]).fit(x, y)


def test_the_old_name_of_the_widths_works_with_a_warning() -> None:
    x, y = classes(60)
    clf = GFlowOutClassifier("mc", epochs=2, random_state=0)
    new = clone(clf).set_params(hidden_layer_sizes=(8,)).fit(x, y)
    old = clone(clf).set_params(hidden=(8,))
    with pytest.warns(FutureWarning, match="hidden of GFlowOutClassifier is now called") as warned:
        old.fit(x, y)
    assert [Path(warning.filename).name for warning in warned] == [Path(__file__).name]
    np.testing.assert_array_equal(old.predict_proba(x), new.predict_proba(x))
    assert new.chains_[0].model.backbone.widths[1:-1] == (8,)
    with pytest.raises(TypeError, match="got hidden and hidden_layer_sizes"):
        old.set_params(hidden_layer_sizes=(8,)).fit(x, y)
