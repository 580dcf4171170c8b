"""Rivals of the features study: tables by brute force, scores, skipped packages, the section."""

import math
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from gflowout.core.optional import MissingExtraError
from gflowout.runs import Run
from gflowout.studies import features, features_compare, features_tables
from gflowout.studies.features_compare import (
    calibration,
    lacks,
    of_classes,
    of_columns,
    of_numbers,
    share_of_top,
    work,
)
from gflowout.studies.features_rivals import RIVALS, Answer
from gflowout.studies.features_tables import ORIGINS, Split, load
from gflowout.studies.framework import study
from gflowout.studies.framework.content import PAPER, Table

# Tables


def test_published_labels_follow_their_formulas() -> None:
    for name in ("xor-64", "ring-128", "ring-xor-256"):
        split = load(name, 5)
        for row, label in zip(split.x[:200], split.y[:200], strict=True):
            ring = abs(math.sqrt((row[0] - 0.5) ** 2 + (row[1] - 0.5) ** 2) - 0.35)
            wanted = {
                "xor-64": (row[0] - 0.5) * (0.5 - row[1]) >= 0,
                "ring-128": ring <= 0.1151,
                "ring-xor-256": ring <= 0.0704 or (row[2] - 0.5) * (0.5 - row[3]) >= 0.0337,
            }
            assert label == wanted[name]
        assert split.x.shape == (1000, int(name.rpartition("-")[2]))
        assert 0 <= split.x.min() < split.x.max() <= 1
    for name in ("xor-64", "ring-64", "ring-xor-64", "ring-xor-sum-64"):
        assert 0.45 < load(name, 0).y_test.mean() < 0.58  # as many of both classes


def test_all_that_matters_changes_the_label_and_nothing_else() -> None:
    for name, (count, rule) in features_tables.RULES.items():
        x = np.random.default_rng(0).uniform(size=(4000, 10))
        before = rule(x, np.random.default_rng(1))
        for column in range(10):
            moved = x.copy()
            moved[:, column] = 1 - moved[:, column] ** 2
            changed = (rule(moved, np.random.default_rng(1)) != before).any()
            assert changed == (column < count), (name, column)


def test_regressions_have_the_stated_effects() -> None:
    wide = load("wide-500", 0)
    assert wide.x.shape == (150, 500)
    x, y = wide.x_test[:, :6], wide.y_test
    np.testing.assert_allclose(np.linalg.lstsq(x, y, rcond=None)[0], [2, -2, 1.5, -1.5, 1, -1],
                               atol=0.15)  # fmt: skip
    near = load("correlated", 0)
    both = np.corrcoef(near.x_test, rowvar=False)
    np.testing.assert_allclose(both[50, [51, 52, 53]], [0.8, 0.64, 0.512], atol=0.06)
    assert near.relevant is not None
    assert np.flatnonzero(near.relevant).tolist() == list(range(5, 100, 10))
    effect = np.linalg.lstsq(near.x_test, near.y_test, rcond=None)[0]
    np.testing.assert_allclose(np.abs(effect[5::10]), 1, atol=0.35)


def test_seeds_draw_other_rows_and_the_same_again() -> None:
    for name in ("ring-64", "wine", "diabetes"):
        first, again, other = load(name, 1), load(name, 1), load(name, 2)
        np.testing.assert_array_equal(first.x, again.x)
        assert not np.array_equal(first.x, other.x)
    split = load("wine", 0)
    assert len(split.x) == 125
    assert len(split.x_test) == 53
    assert split.classes == 3
    assert split.relevant is None


@pytest.mark.skipif(find_spec("faraway") is None, reason="extra rivals")
def test_tables_of_a_package() -> None:
    fat = load("fat", 0)
    assert fat.x.shape[1] == 14  # without two formulas of the target, and the weight without fat
    assert load("meatspec", 0).x.shape == (151, 100)
    assert set(load("pima", 0).y) == {0, 1}


# Scores


def test_scores_of_predictions() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1], 200)
    y = rng.integers(2, size=200)
    scores = of_classes(probabilities, y)
    assert scores["nll"] == pytest.approx(log_loss(y, probabilities), rel=1e-3)
    assert scores["auroc"] == pytest.approx(roc_auc_score(y, probabilities[:, 1]))
    mean, deviation = rng.normal(size=5000), rng.uniform(0.5, 2, 5000)
    numbers = mean + deviation * rng.normal(size=5000)
    scores = of_numbers(np.column_stack([mean, deviation]), numbers)
    assert scores["coverage"] == pytest.approx(0.9, abs=0.02)
    assert scores["nll"] == pytest.approx(
        0.5 * math.log(2 * math.pi * math.e) + np.log(deviation).mean(), abs=0.03
    )
    assert scores["rmse"] == pytest.approx(((numbers - mean) ** 2).mean() ** 0.5)


def test_scores_of_columns() -> None:
    relevant = np.array([True, True, False, False, False])
    said = Answer(lambda x: x, np.array([5.0, 1, 3, 0, 0]), np.array([1, 0, 1, 0, 0], bool),
                  np.array([1.0, 0.5, 0.5, 0, 0]))  # fmt: skip
    scores = of_columns(said, relevant)
    assert (scores["top"], scores["power"], scores["fdp"]) == (0.5, 0.5, 0.5)
    assert scores["auroc"] == pytest.approx(5 / 6)
    assert scores["relevant"] == [0, 1]
    assert scores["ece"] == 0
    assert share_of_top(np.zeros(5), relevant) == pytest.approx(0.4)  # no order is no skill
    assert calibration(np.array([0.9, 0.9, 1.0]), np.array([True, False, False])) == pytest.approx(
        (0.9 + 0.9 + 1.0) / 3 - 1 / 3
    )
    nothing = Answer(lambda x: x, np.arange(5.0), np.zeros(5, bool))
    assert of_columns(nothing, relevant)["fdp"] == 0


# Rivals


@pytest.mark.parametrize("label", [name for name, rival in RIVALS.items() if not rival.package])
def test_rivals_without_packages_answer(label: str) -> None:
    for name in ("ring-64", "diabetes"):
        metrics = work(Run("features", label, name, 0, {"rows": 80, "test": 40}))["metrics"]
        assert metrics["test/nll"] > 0
        assert ("test/rmse" in metrics) == (name == "diabetes")
        known = name == "ring-64" and label not in ("network", "ridge")
        assert ("select/top" in metrics) == known


@pytest.mark.parametrize("label", ["lightgbm", "ebm", "dcrt"])
def test_rivals_of_the_extra_find_a_strong_effect(label: str) -> None:
    if find_spec(RIVALS[label].package) is None:
        pytest.skip("extra rivals")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    y = 2 * x[:, 3] + 0.3 * rng.normal(size=200)
    for classes, target in ((0, y), (2, (y > 0).astype(np.int64))):
        split = Split(x[:150], target[:150], x[150:], target[150:], classes)
        answer = RIVALS[label].fit(split, 0, True)
        assert answer.score.argmax() == 3
        assert answer.predict(split.x_test).shape == (50, 2)


def test_runs_of_packages_that_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_compare, "find_spec", lambda name: None)
    assert lacks(Run("features", "lightgbm", "ring-64", 0)) == "lightgbm"
    assert lacks(Run("features", "l1", "khan", 0)) == "ISLP"
    assert lacks(Run("features", "l1", "wine", 0)) == ""
    assert lacks(Run("features", "boosting", "digits", 0)) == ""
    kept = study.available(features.STUDY).runs("cpu", {})
    assert {run.method for run in kept if run.data == "ring-256"} == {
        name for name, rival in RIVALS.items() if not rival.package
    }
    assert not any(run.data == "khan" for run in kept)
    assert len([run for run in kept if run.data == "eicu"]) > 0


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_tables, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs faraway: pip install -e '.\[rivals\]'"):
        load("fat", 0)
    with pytest.raises(MissingExtraError, match="pip install --no-deps ISLP"):
        load("khan", 0)


def test_plans() -> None:
    for preset in ("smoke", "cpu", "paper"):
        own = features_compare.runs(preset, 1)
        assert len({run.id for run in own}) == len(own)
        several = {name for name, origin in ORIGINS.items() if origin.classes > 2}
        assert not [
            r for r in own if r.method in ("bart", "dcrt", "knockoffs") and r.data in several
        ]
        assert all(features.seconds(run) > 0 for run in own)
    assert {run.method for run in features_compare.runs("cpu", 1)} == set(RIVALS)


# The section


def test_published_numbers_stand_beside_ours() -> None:
    records = [
        {
            "study": "features", "data": name, "method": label, "seed": seed, "options": {},
            "metrics": {
                "test/nll": 0.5 + place / 10, "test/auroc": 0.9, "test/ece": 0.02, "cost/cpu": 3.0,
                **({"select/top": 1.0, "select/power": 1.0, "select/fdp": 0.0,
                    "select/inclusion": [1.0, 0.4, 0.0], "select/relevant": [0]}
                   if name != "wine" and label == "id-gflowout" else {}),
            },
        }
        for name in ("ring-64", "ring-xor-sum-256", "wine")
        for place, label in enumerate(("id-gflowout", "l1"))
        for seed in range(2)
    ]  # fmt: skip
    blocks = [block for block in features.section(records).blocks if isinstance(block, Table)]
    ring = next(block for block in blocks if block.title.startswith("Ring, 64"))
    paper = {row.title: row.cells for row in ring.rows if row.source == PAPER}
    place = [column.title for column in ring.columns].index("top")
    assert paper["LassoNet, published"][place].mean == 0.0
    assert paper["Random forest, published"][place].mean == 1.0
    assert paper["Random forest, published"][place + 4].mean == 0.72
    errors = next(block for block in blocks if block.title.startswith("Expected calibration"))
    assert [cell.mean for cell in errors.rows[0].cells] == pytest.approx([0.4 / 3] * 3)
    ranks = next(block for block in blocks if block.title.startswith("Real tables"))
    assert {row.title: row.cells[-1].mean for row in ranks.rows} == {
        "ID-GFlowOut on inputs": 1, "L1 linear model": 2,
    }  # fmt: skip
