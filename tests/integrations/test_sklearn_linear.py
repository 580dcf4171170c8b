"""Networks that start as a linear model, and what small tables gain by it."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor, linear
from gflowout.integrations.sklearn.tabular import distinct

STILL = {"epochs": 1, "lr": 1e-12, "generator_lr": 1e-12, "random_state": 0}


def table(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    effect = x @ rng.normal(size=(8, max(1, classes)))
    if not classes:
        return x, effect[:, 0] + rng.normal(size=rows)
    noisy = effect + rng.gumbel(size=effect.shape)
    return x, noisy.argmax(1) if classes > 2 else (noisy[:, 0] > noisy[:, 1]).astype(int)


@pytest.mark.parametrize("method", ["none", "mc", "gflowout"])
def test_untrained_networks_are_linear(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    for classes, hidden in ((0, (40,)), (2, (60, 30)), (3, (60, 30))):
        outputs = classes if classes > 2 else 1
        slope, bias = rng.normal(size=(8, outputs)), rng.normal(size=outputs)
        given = torch.from_numpy(slope).float(), torch.from_numpy(bias).float()
        monkeypatch.setattr(linear, "sparse_model", lambda *_, given=given: given)
        x, y = table(120, classes)
        make = GFlowOutClassifier if classes else GFlowOutRegressor
        est = make(method, **STILL, samples=200, hidden_layer_sizes=hidden).fit(x, y)
        scaled = est._scale.apply(x) @ slope
        made = est.predictive(x).outputs.double().mean(0).numpy().reshape(len(x), -1)[:, :outputs]
        if not classes:
            made = est._target_scale.apply(made)
        made -= bias
        if method == "none":
            np.testing.assert_allclose(made, scaled, atol=1e-4)
        else:  # masks of the draws, and the mean mask that the scale is for
            assert np.corrcoef(made.ravel(), scaled.ravel())[0, 1] > 0.98
            assert 0.8 < made.std() / scaled.std() < 1.2


def test_the_sparse_model_finds_the_effects() -> None:
    x, y = table(300, 0)
    x[:, 4:] = np.random.default_rng(5).normal(size=(300, 4))  # which say nothing
    slope, bias = linear.sparse_model(distinct(x, y[:, None], np.ones(300)), "gaussian", 0)
    exact = np.linalg.lstsq(np.column_stack([x, np.ones(300)]), y, rcond=None)[0]
    np.testing.assert_allclose(slope[:, 0], exact[:8], atol=0.3)
    assert float(bias) == pytest.approx(exact[8], abs=0.2)
    many = distinct(np.tile(x, (9, 1)) + np.arange(2700)[:, None] * 1e-9, np.tile(y, 9)[:, None],
                    np.ones(2700))  # fmt: skip
    assert len(many) > linear.MOST_ROWS
    np.testing.assert_allclose(linear.sparse_model(many, "gaussian", 0)[0], slope, atol=0.1)


def test_linear_tables_are_predicted_as_by_logistic_regression() -> None:
    behind = []
    for seed in range(2):
        x, y = table(400, 2, seed)
        plain = LogisticRegression(C=1.0).fit(x[:150], y[:150])
        losses = [
            log_loss(y[150:], model.predict_proba(x[150:]))
            for model in (GFlowOutClassifier(random_state=seed).fit(x[:150], y[:150]), plain)
        ]
        behind.append(losses[0] - losses[1])
    assert np.mean(behind) < 0.06


def test_random_starts_and_layers_that_are_too_narrow() -> None:
    x, y = table(120, 2)
    still = GFlowOutClassifier("none", **STILL).fit(x, y)
    random = GFlowOutClassifier("none", **STILL, linear_start=False).fit(x, y)
    assert still.score(x, y) > 0.8
    assert random.predict_proba(x).std() < 0.1 < still.predict_proba(x).std()
    GFlowOutClassifier(**STILL, hidden_layer_sizes=(2,)).fit(x, y)
    GFlowOutClassifier(**STILL).fit(x[:15], y[:15])
    with pytest.raises(TypeError, match="linear_start must be True or False"):
        GFlowOutClassifier(linear_start=1).fit(x, y)
