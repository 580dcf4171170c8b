"""Frames as they are: categories, strings and missing values, encoded inside."""

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor
from gflowout.integrations.sklearn.frames import MOST_LEVELS, Encoder

SHORT = {"mask_inputs": True, "chains": 6, "epochs": 20, "hidden_layer_sizes": (16,)}


def mixed(rows: int = 240) -> tuple[pd.DataFrame, np.ndarray]:
    """Whether a dose is missing, and the ward, decide; everything else is noise."""
    rng = np.random.default_rng(0)
    missing = rng.random(rows) < 0.4
    frame = pd.DataFrame(
        {
            "noise": rng.normal(size=rows),
            "dose": np.where(missing, np.nan, rng.normal(size=rows)),
            "ward": pd.Categorical(rng.choice(["a", "b", "c", "d"], rows)),
            "name": rng.choice(["x", "y", None], rows),
            "flag": pd.array(rng.choice([True, False], rows), dtype="boolean"),
            "code": [1, "one"] * (rows // 2),
        }
    )
    a, c = (frame.ward == ward for ward in "ac")
    return frame, (a | (c & missing) | (missing & (frame.ward == "d"))).to_numpy().astype(int)


@pytest.fixture(scope="module")
def fitted() -> tuple[pd.DataFrame, np.ndarray, GFlowOutClassifier]:
    frame, y = mixed()
    return frame, y, GFlowOutClassifier(**SHORT, random_state=0).fit(frame, y)


def test_features_are_those_of_the_frame(fitted) -> None:
    frame, y, est = fitted
    assert est.n_features_in_ == 6
    assert est.feature_names_in_.tolist() == list(frame)
    assert list(est.inclusion_.names) == list(frame)
    assert est.inclusion_.mean[[1, 2]].min() > 0.8
    assert est.inclusion_.mean[[0, 3, 4, 5]].max() < 0.5
    assert est.p_values_.shape == est.feature_importances_.shape == (6,)
    assert set(est.get_support(indices=True, fdr=0.1)) >= {1, 2}
    assert est.score(frame, y) > 0.85
    assert est.inclusion(frame[:3]).shape == (3, 6)
    assert est.get_feature_names_out().tolist() == ["dose", "ward"]
    small = est.transform(frame)
    assert small.columns.tolist() == ["dose", "ward"]
    pd.testing.assert_frame_equal(small, frame[["dose", "ward"]])


def test_encoded_by_hand_is_the_same(fitted) -> None:
    # One-hot columns and the indicator beside their column, as groups: the same networks.
    frame, y, est = fitted
    numbers = np.column_stack([
        frame.noise, frame.dose.fillna(frame.dose.mean()), frame.dose.isna(),
        *(frame.ward == ward for ward in "abcd"),
        frame.name == "x", frame.name == "y", frame.name.isna(),
        frame.flag, frame.code == 1, frame.code == "one",
    ]).astype(float)  # fmt: skip
    groups = [[1, 2], [3, 4, 5, 6], [7, 8, 9], [11, 12]]
    by_hand = GFlowOutClassifier(**SHORT, groups=groups, random_state=0).fit(numbers, y)
    np.testing.assert_allclose(est.predict_proba(frame), by_hand.predict_proba(numbers), rtol=1e-6)
    np.testing.assert_array_equal(est.p_values_, by_hand.p_values_[[0, 1, 3, 7, 10, 11]])


def test_polars_frames_say_the_same(fitted) -> None:
    polars = pytest.importorskip("polars")
    frame, _, _ = fitted
    frame = frame.assign(code=frame.code.astype(str))
    same = polars.from_dict({
        name: [None if missing else value for value, missing in
               zip(frame[name].tolist(), frame[name].isna(), strict=True)]
        for name in frame
    })  # fmt: skip
    encoder = Encoder.of(frame)
    assert Encoder.of(same) == encoder
    np.testing.assert_array_equal(encoder.apply(same), encoder.apply(frame))


def test_groups_always_and_keep_are_by_name_of_the_frame() -> None:
    frame, y = mixed()
    options = {**SHORT, "epochs": 2}
    est = GFlowOutClassifier(
        **options, groups=[["dose", "name"]], always=["ward"], keep={"flag": 0.9}
    ).fit(frame, y)
    assert est.inclusion_.mean[2] == 1
    assert est.inclusion_.mean[1] == est.inclusion_.mean[3]
    assert est.p_values_[2] == 0
    looped = GFlowOutClassifier(
        "mc", mask_inputs=True, epochs=2, keep=0.5, groups=[["dose", "name"]]
    )
    with pytest.warns(UserWarning, match="learn nothing"):
        looped.fit(frame, y)
    assert looped.inclusion_.masks.shape[-1] == 6
    assert bool((looped.inclusion_.masks[..., 1] == looped.inclusion_.masks[..., 3]).all())


def test_levels_that_are_new_or_missing_later() -> None:
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": ["u", "v", "u", "w"]})
    encoder = Encoder.of(frame)
    later = pd.DataFrame({"a": [None, 1.0], "b": ["new", None]})
    assert encoder.apply(later).tolist() == [[2.5, 0, 0, 0], [1, 0, 0, 0]]
    many = pd.DataFrame({"a": [str(n) for n in range(200)] + ["7"] * 5})
    wide = Encoder.of(many)
    assert len(wide.source) == MOST_LEVELS
    assert wide.apply(many)[7].sum() == 1


def test_cross_validation_encodes_every_fold_anew() -> None:
    frame, y = mixed(60)
    frame["rare"] = ["once"] + ["often"] * 59  # a level that folds lack
    est = GFlowOutClassifier(epochs=2, random_state=0)
    assert np.isfinite(cross_val_score(est, frame, y, cv=3)).all()
    numbers = frame[["noise"]].assign(twice=2 * frame.noise)
    reg = GFlowOutRegressor(epochs=2, random_state=0).fit(numbers, y)
    same = clone(reg).fit(numbers.to_numpy(), y)  # plain numbers are not encoded
    np.testing.assert_array_equal(reg.predict(numbers), same.predict(numbers.to_numpy()))


def test_errors_name_the_column(fitted) -> None:
    frame, y, est = fitted
    with pytest.raises(TypeError, match="X must be a DataFrame with the columns of fit"):
        est.predict(np.zeros((2, 6)))
    with pytest.raises(ValueError, match="column 'dose' must hold numbers, as in fit"):
        est.predict(frame.assign(dose="high"))
    with pytest.raises(ValueError, match="dates or times in the column 'day'"):
        clone(est).fit(frame.assign(day=pd.Timestamp("2020-01-01")), y)
    with pytest.raises(ValueError, match="column 'dose' holds infinity"):
        est.predict(frame.assign(dose=np.inf))
    with pytest.raises(ValueError, match="feature names"):
        est.predict(frame[frame.columns[::-1]])


def test_a_fit_that_fails_keeps_the_encoder(fitted) -> None:
    frame, y, est = fitted
    before = est.predict_proba(frame[:5])
    with pytest.raises(ValueError, match="at least two classes"):
        est.fit(frame[["noise"]], np.zeros(len(y)))
    np.testing.assert_array_equal(est.predict_proba(frame[:5]), before)


def test_weights_are_routed() -> None:
    frame, y = mixed(60)
    with config_context(enable_metadata_routing=True):
        est = GFlowOutClassifier(epochs=2, random_state=0)
        est.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(est).fit(frame, y, sample_weight=np.arange(60) % 3)
        direct = clone(est).fit(frame, y, sample_weight=np.arange(60) % 3)
        np.testing.assert_array_equal(pipe.predict_proba(frame), direct.predict_proba(frame))
        weights = {"sample_weight": np.ones(60)}
        scores = cross_validate(make_pipeline(est), frame, y, cv=2, params=weights)
    assert np.isfinite(scores["test_score"]).all()
