"""Sets and intervals of the estimators: which rows they come from, and how often they are right."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from gflowout.conformal import Intervals, Sets
from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor, chains
from gflowout.integrations.sklearn.tabular import Table

QUICK: dict[str, Any] = {"epochs": 3, "hidden_layer_sizes": (8,), "random_state": 0}


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, three classes that overlap, and a number with noise."""
    rng = np.random.RandomState(seed)
    x = rng.randn(count, 3)
    return x, np.digitize(x[:, 0] + 0.5 * rng.randn(count), [-0.5, 0.5]), x[:, 1] + rng.randn(count)


def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Scaled rows that networks are trained or validated on, filled by the next fit."""
    seen: list[np.ndarray] = []
    train = chains.train

    def spy(plan: Any, table: Table, valid: Table | None, report: Any) -> Any:
        seen.extend([table.x] if valid is None else [table.x, valid.x])
        return train(plan, table, valid, report)

    monkeypatch.setattr("gflowout.integrations.sklearn.base.train", spy)
    return seen


@pytest.mark.parametrize("kind", [GFlowOutClassifier, GFlowOutRegressor])
def test_no_network_sees_the_rows_that_are_kept_apart(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels, numbers = rows(200)
    seen = trained_on(monkeypatch)
    model = kind(**QUICK, chains=2, calibration_fraction=0.25, standardize=False)
    model.fit(x, labels if kind is GFlowOutClassifier else numbers)
    pred, y = model._calibration
    used = {tuple(row) for table in seen for row in table}
    apart = np.array([tuple(row) not in used for row in x])
    assert len(used) == 150
    assert apart.sum() == len(y) == pred.outputs.shape[1] == 50
    truth = labels if kind is GFlowOutClassifier else numbers
    assert y.numpy().ravel() == pytest.approx(truth[apart])
    assert pred.mean.numpy() == pytest.approx(model.predictive(x[apart]).mean.numpy())


def test_scales_do_not_see_them_either() -> None:
    x, labels, _ = rows(200)
    model = GFlowOutClassifier(**QUICK, calibration_fraction=0.5).fit(x, labels)
    assert abs(model._scale.mean - x.mean(0)).max() > 1e-3


def test_sets_hold_the_class_as_often_as_they_say() -> None:
    x, labels, _ = rows(3000)
    names = np.array(["a", "b", "c"])[labels]
    model = GFlowOutClassifier(**QUICK, calibration_fraction=0.5).fit(x[:1200], names[:1200])
    new, truth = x[1200:], labels[1200:]
    for coverage in (0.8, 0.95):
        sets = model.predict_set(new, coverage)
        hits = sets[np.arange(len(new)), truth].sum()
        # 600 rows for calibration: within 4 standard errors of both samples.
        error = 4 * np.sqrt(coverage * (1 - coverage) * (1 / 600 + 1 / 1800))
        assert abs(hits / len(new) - coverage) < error + 1 / 601
    pred, y = model._calibration
    expected = Sets(0.95, "aps").fit(pred, y)(model.predictive(new)).numpy()
    assert (model.predict_set(new, 0.95, "aps") == expected).all()
    expected = Sets(0.8, per_class=True).fit(pred, y)(model.predictive(new)).numpy()
    assert (model.predict_set(new, 0.8, per_class=True) == expected).all()
    for label in range(3):
        own = truth == label
        rate = model.predict_set(new[own], 0.8, per_class=True)[:, label].mean()
        error = 4 * np.sqrt(0.16 * (1 / (y == label).sum().item() + 1 / own.sum()))
        assert abs(rate - 0.8) < error + 0.01
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_set(new) == model.predict_set(new)).all()


def test_intervals_hold_the_number_as_often_as_they_say() -> None:
    x, _, numbers = rows(2000)
    y = 100 + 20 * numbers
    model = GFlowOutRegressor(**QUICK, calibration_fraction=0.5).fit(x[:800], y[:800])
    low, high = model.predict_interval(x[800:], 0.9)
    assert low.shape == high.shape == (1200,)
    hits = ((low <= y[800:]) & (y[800:] <= high)).sum()
    error = 4 * np.sqrt(0.09 * (1 / 400 + 1 / 1200))
    assert abs(hits / 1200 - 0.9) < error + 1 / 401
    pred, target = model._calibration
    expected = Intervals(0.9, "residual").fit(pred, target)(model.predictive(x[:5]))
    assert model.predict_interval(x[:5], 0.9, "residual")[0] == pytest.approx(
        expected[0][:, 0].numpy()
    )


def test_several_targets_and_two_classes() -> None:
    x, labels, numbers = rows(300)
    both = np.stack([numbers, 10 * x[:, 0]], 1)
    model = GFlowOutRegressor(**QUICK, calibration_fraction=0.3).fit(x, both)
    low, high = model.predict_interval(x)
    assert low.shape == (300, 2)
    assert (low < high).all()
    binary = GFlowOutClassifier(**QUICK, calibration_fraction=0.3).fit(x, labels > 0)
    sets = binary.predict_set(x, 0.9)
    assert sets.shape == (300, 2)
    best = binary.predict_proba(x).argmax(1)
    assert sets[np.arange(300), best].mean() > 0.8


def test_every_class_stays_in_training() -> None:
    x, labels, _ = rows(100)
    labels[0] = 7  # one row of its own
    model = GFlowOutClassifier(**QUICK, calibration_fraction=0.9).fit(x, labels)
    assert list(model.classes_) == [0, 1, 2, 7]
    assert model.predict_proba(x).shape == (100, 4)


def test_without_such_rows_it_says_what_to_do() -> None:
    x, labels, numbers = rows(60)
    model = GFlowOutClassifier(**QUICK).fit(x, labels)
    with pytest.raises(ValueError, match=r"predict_set needs rows .* calibration_fraction=0.2"):
        model.predict_set(x)
    fitted = GFlowOutRegressor(**QUICK, calibration_fraction=0.2).fit(x, numbers)
    with pytest.raises(ValueError, match=r"coverage=0\.95 needs at least 19 held-out examples"):
        fitted.predict_interval(x, 0.95)
    refitted = fitted.set_params(calibration_fraction=0.0).fit(x, numbers)
    with pytest.raises(ValueError, match="predict_interval needs rows"):
        refitted.predict_interval(x)
    with pytest.raises(ValueError, match="calibration_fraction must be a number in"):
        clone(model).set_params(calibration_fraction=1.5).fit(x, labels)
