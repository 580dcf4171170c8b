"""Scalers find the optimum that scipy finds, stay finite where there is none, and keep draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn import functional as F

import gflowout as gfo
from gflowout.calibration import Isotonic, Temperature, Vector
from gflowout.decisions._scaling import interpolate, isotonic, minimum, with_mean
from gflowout.metrics import calibration_error

ALL = [Temperature, Vector, Isotonic]


def overconfident(
    draws: int, rows: int = 400, classes: int = 4, factor: float = 3.0, seed: int = 0
) -> tuple[gfo.Predictive, Tensor]:
    """Labels that follow some probabilities, and predictions that are surer than these."""
    source = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(rows, classes, generator=source)
    y = torch.multinomial(logits.softmax(-1), 1, generator=source).squeeze(1)
    noise = 0.5 * torch.randn(draws, rows, classes, generator=source)
    return gfo.Predictive(factor * (logits + noise), gfo.Categorical(classes)), y


def nll(outputs: np.ndarray, y: np.ndarray) -> float:
    """Brute force, in NumPy: minus the mean log of the mean probability of the labels."""
    log_probs = outputs - logsumexp(outputs, -1, keepdims=True)
    chosen = log_probs[:, np.arange(len(y)), y]
    return float(-(logsumexp(chosen, 0) - math.log(len(outputs))).mean())


@pytest.mark.parametrize("draws", [1, 8])
@pytest.mark.parametrize("factor", [0.1, 3.0, 50.0])
def test_temperature_is_the_optimum(draws: int, factor: float) -> None:
    pred, y = overconfident(draws, factor=factor)
    outputs, labels = pred.outputs.double().numpy(), y.numpy()
    scaler = Temperature().fit(pred, y)
    best = minimize_scalar(
        lambda t: nll(outputs / np.exp(t), labels),
        bounds=(-6, 6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    # Near its minimum a loss is flat: its rounding errors of 1e-16 are 1e-8 in log T.
    assert math.log(scaler.temperature) == pytest.approx(best.x, abs=1e-5)
    assert -scaler(pred).log_prob(y).mean() == pytest.approx(best.fun, abs=1e-5)


def test_temperature_recovers_the_factor_and_calibrates() -> None:
    pred, y = overconfident(1, rows=5000, factor=3.0)
    outputs = 3 * (pred.outputs / 3).clone()
    scaler = Temperature().fit(gfo.Predictive(outputs, pred.likelihood), y)
    assert 3.0 < float(scaler.temperature) < 4.5  # the noise in the logits adds to the factor
    before, after = (calibration_error(p.mean, y) for p in (pred, scaler(pred)))
    assert after < 0.03 < 0.1 < before


def test_temperature_changes_no_class_of_a_draw() -> None:
    pred, y = overconfident(5)
    scaled = Temperature().fit(pred, y)(pred)
    assert torch.equal(scaled.samples.argmax(-1), pred.samples.argmax(-1))
    assert len(scaled.outputs) == 5


def test_a_loss_with_two_valleys_has_the_deeper_one_found() -> None:
    assert minimum(lambda t: min((t + 3) ** 2, (t - 2) ** 2 - 0.1), -7, 7) == pytest.approx(2)


def test_labels_that_are_all_predicted_right_leave_the_temperature() -> None:
    y = torch.arange(50) % 3
    pred = gfo.Predictive(4.0 * F.one_hot(y, 3)[None], gfo.Categorical(3))
    with pytest.warns(UserWarning, match="every label is predicted right"):
        scaler = Temperature().fit(pred, y)
    assert float(scaler.temperature) == 1
    with pytest.warns(UserWarning, match="does not determine"):  # nothing depends on T
        Temperature().fit(gfo.Predictive(torch.zeros(1, 50, 3), gfo.Categorical(3)), y)


def test_predictions_that_are_always_wrong_become_uniform() -> None:
    y = torch.arange(50) % 3
    pred = gfo.Predictive(-4.0 * F.one_hot(y, 3)[None], gfo.Categorical(3))
    with pytest.warns(UserWarning, match="no better than guessing"):
        scaler = Temperature().fit(pred, y)
    assert float(scaler.temperature) == pytest.approx(1e3)
    torch.testing.assert_close(scaler(pred).mean, torch.full((50, 3), 1 / 3), atol=2e-3, rtol=0)


def test_labels_of_one_class() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]]).repeat(20, 1)
    pred, y = gfo.Predictive(logits[None], gfo.Categorical(2)), torch.zeros(60).long()
    assert 0 < float(Temperature().fit(pred, y).temperature) < 1e3
    for kind in (Vector, Isotonic):
        with pytest.raises(ValueError, match="at least two classes to fit"):
            kind().fit(pred, y)


@pytest.mark.parametrize("draws", [1, 4])
def test_vector_is_the_optimum(draws: int) -> None:
    pred, y = overconfident(draws, rows=200, classes=3)
    outputs, labels = pred.outputs.double().numpy(), y.numpy()

    def loss(values: np.ndarray) -> float:
        log_weight, bias = values[:3], values[3:]
        return nll(outputs * np.exp(log_weight) + bias, labels) + 1e-3 * (values**2).sum()

    best = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-7})
    scaler = Vector().fit(pred, y)
    assert scaler.weight.log().numpy() == pytest.approx(best.x[:3], abs=1e-4)
    assert scaler.bias.numpy() == pytest.approx(best.x[3:], abs=1e-4)
    assert -scaler(pred).log_prob(y).mean() < -pred.log_prob(y).mean()


def test_vector_stays_finite_where_classes_are_separable_or_missing() -> None:
    y = torch.arange(60) % 2
    pred = gfo.Predictive(4.0 * F.one_hot(y, 3)[None], gfo.Categorical(3))
    scaler = Vector().fit(pred, y)
    assert torch.cat((scaler.weight.log(), scaler.bias)).abs().max() < 10
    assert float(scaler.bias[2]) < 0  # the class that never occurs
    assert torch.equal(scaler(pred).mean.argmax(-1), y)


def test_vector_of_yes_or_no_is_platt_scaling() -> None:
    source = torch.Generator().manual_seed(0)
    log_odds = torch.randn(500, generator=source)
    y = (torch.rand(500, generator=source) < (3 * log_odds + 1).sigmoid()).float()
    for shape in ((1, 500), (1, 500, 1)):
        scaler = Vector().fit(gfo.Predictive(log_odds.reshape(shape), gfo.Binary()), y)
        assert float(scaler.weight) == pytest.approx(3, abs=0.6)
        assert float(scaler.bias) == pytest.approx(1, abs=0.3)


def test_vector_of_several_labels_scales_each() -> None:
    source = torch.Generator().manual_seed(0)
    log_odds = torch.randn(3, 800, 2, generator=source) * 0.1 + torch.randn(800, 2)
    truth = (log_odds.mean(0) * torch.tensor([0.5, 4.0])).sigmoid()
    y = (torch.rand(800, 2, generator=source) < truth).float()
    scaler = Vector().fit(gfo.Predictive(log_odds, gfo.MultiLabel(2)), y)
    assert float(scaler.weight[0]) < 1 < 2.5 < float(scaler.weight[1])


@pytest.mark.parametrize("seed", range(5))
def test_isotonic_fit_is_that_of_scikit_learn(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(200, generator=source, dtype=torch.float64).mul(50).round() / 50  # with ties
    y = (torch.rand(200, generator=source) < x).double()
    reference = IsotonicRegression(out_of_bounds="clip").fit(x.numpy(), y.numpy())
    knots, values = isotonic(x, y)
    new = torch.linspace(-0.1, 1.1, 300, dtype=torch.float64)
    mapped = interpolate(new[None], knots[None], values[None])[0]
    assert mapped.numpy() == pytest.approx(reference.predict(new.numpy()), abs=1e-12)


def test_isotonic_is_one_against_the_rest_and_the_draws_follow() -> None:
    pred, y = overconfident(6, rows=600)
    mean = pred.mean.double().numpy()
    maps = [
        IsotonicRegression(out_of_bounds="clip").fit(mean[:, at], y.numpy() == at)
        for at in range(4)
    ]
    mapped = np.stack([maps[at].predict(mean[:, at]) for at in range(4)], 1)
    mapped = np.maximum(mapped, np.minimum(mean, 1 / 602))
    calibrated = Isotonic().fit(pred, y)(pred)
    expected = mapped / mapped.sum(1, keepdims=True)
    # The shift of the draws is found to 1e-6, from single-precision outputs.
    assert calibrated.mean.numpy() == pytest.approx(expected, abs=1e-4)
    assert calibrated.samples.shape == pred.samples.shape
    assert calibrated.mutual_information().mean() > 0.01
    assert calibration_error(calibrated.mean, y) < 0.05 < calibration_error(pred.mean, y)
    assert torch.isfinite(calibrated.log_prob(y)).all()


def test_draws_that_agree_still_agree() -> None:
    pred, y = overconfident(1, rows=300)
    same = gfo.Predictive(pred.outputs.expand(5, -1, -1), pred.likelihood)
    assert Isotonic().fit(same, y)(same).mutual_information().max() < 1e-5


def test_a_shift_keeps_differences_between_draws() -> None:
    log_probs = torch.randn(4, 7, 3, dtype=torch.float64).log_softmax(-1)
    target = torch.rand(7, 3, dtype=torch.float64).softmax(-1)
    shifted = with_mean(log_probs, target)
    torch.testing.assert_close(shifted.exp().mean(0), target, atol=2e-6, rtol=0)
    change = shifted - log_probs
    change = change - change[..., :1]  # draws are normalised
    torch.testing.assert_close(change, change[:1].expand_as(change))


def test_isotonic_leaves_no_class_impossible() -> None:
    y = torch.arange(300) % 3
    pred = gfo.Predictive(9.0 * F.one_hot(y, 3)[None], gfo.Categorical(3))
    calibrated = Isotonic().fit(pred, y)(pred)
    assert 0 < float(calibrated.mean.min()) <= 1 / 302


@pytest.mark.parametrize("kind", [Temperature, Vector])
def test_tags_count_one_by_one_and_padding_not_at_all(kind: type) -> None:
    pred, y = overconfident(3, rows=60)
    rows, padded = pred.outputs.reshape(3, 20, 3, 4), y.reshape(20, 3).clone()
    padded[:, 2] = -100
    tags = gfo.Predictive(rows, gfo.Categorical(4, ignore_index=-100))
    flat = gfo.Predictive(rows[:, :, :2].reshape(3, 40, 4), gfo.Categorical(4))
    one, other = kind().fit(tags, padded), kind().fit(flat, padded[:, :2].reshape(-1))
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_classes_may_be_on_the_first_axis(kind: type) -> None:
    """Of pictures as many pixels high and wide as there are classes, in either layout."""
    pred, y = overconfident(3, rows=160)
    pixels, y = pred.outputs.reshape(3, 10, 4, 4, 4), y.reshape(10, 4, 4)
    last = gfo.Predictive(pixels, gfo.Categorical(4))
    first = gfo.Predictive(pixels.movedim(-1, 2), gfo.Categorical(4, axis=1))
    one, other = kind().fit(last, y), kind().fit(first, y)
    torch.testing.assert_close(other(first).mean, one(last).mean)
    torch.testing.assert_close(one(first).mean, one(last).mean)


@pytest.mark.parametrize("kind", ALL)
def test_files_bring_back_what_was_saved(kind: type, tmp_path: Path) -> None:
    pred, y = overconfident(3, rows=100)
    scaler, path = kind().fit(pred, y), tmp_path / "scaler.safetensors"
    scaler.save(path)
    assert torch.equal(kind.load(path)(pred).mean, scaler(pred).mean)
    other = next(other for other in ALL if other is not kind)
    with pytest.raises(ValueError, match=f"it holds '{kind.__name__}'"):
        other.load(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        kind.load(path)
    path.write_bytes(b"no file of ours")
    with pytest.raises(ValueError, match="not a safetensors file"):
        kind.load(path)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must"):
        Temperature().load_state_dict({"temperature": torch.tensor(value)})


@pytest.mark.parametrize("kind", ALL)
def test_errors_say_what_is_wrong(kind: type) -> None:
    pred, y = overconfident(2, rows=20)
    with pytest.raises(RuntimeError, match="is not fitted: call fit"):
        kind()(pred)
    numbers = gfo.Predictive(torch.zeros(2, 20, 1), gfo.Gaussian())
    with pytest.raises(TypeError, match="the prediction has Gaussian"):
        kind().fit(numbers, torch.zeros(20))
    with pytest.raises(ValueError, match=r"y must have shape \[20\]"):
        kind().fit(pred, y[:10])
    with pytest.raises(TypeError, match=r"pred must be a gfo\.Predictive"):
        kind().fit(pred.mean, y)
    with pytest.raises(ValueError, match="soft labels"):
        kind().fit(gfo.Predictive(torch.zeros(1, 2), gfo.Binary()), torch.tensor([0.3, 1.0]))
    broken = gfo.Predictive(torch.full((1, 20, 4), math.nan), gfo.Categorical(4))
    with pytest.raises(ValueError, match="finite outputs"):
        kind().fit(broken, y)


def test_reliability_is_the_calibration_error_of_torchmetrics() -> None:
    pred, y = overconfident(4)
    bars = gfo.calibration.reliability(pred, y, bins=15)
    assert bars.error == pytest.approx(float(calibration_error(pred.mean, y)), abs=1e-5)
    assert int(bars.count.sum()) == len(y)
    confidence, best = pred.mean.double().max(-1)
    inside = (confidence > 14 / 15) & (confidence <= 1)
    assert float(bars.accuracy[-1]) == pytest.approx(float((best == y)[inside].double().mean()))


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_the_calibration_error_is_that_of_the_definition(bins: int) -> None:
    pred, y = overconfident(4)
    logits = pred.outputs.double().numpy()
    mean = np.exp(logits - logsumexp(logits, -1, keepdims=True)).mean(0)
    by_bin: dict[int, list[tuple[float, float]]] = {}
    for row, label in zip(mean, y.tolist(), strict=True):
        place = math.ceil(row.max() * bins)
        by_bin.setdefault(place, []).append((row.max(), float(row.argmax() == label)))
    gaps = [abs(sum(sure - right for sure, right in rows)) for rows in by_bin.values()]
    error = gfo.calibration.reliability(pred, y, bins).error
    assert error == pytest.approx(sum(gaps) / len(y), abs=1e-12)


def test_plots_of_reliability_return_their_axis() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pred, y = overconfident(4)
    figure, ax = pyplot.subplots()
    assert gfo.calibration.plot_reliability(pred, y, ax=ax) is ax
    drawn = ax.lines[1].get_ydata()
    bars = gfo.calibration.reliability(pred, y)
    assert drawn == pytest.approx(bars.accuracy[bars.count > 0].tolist())
    assert "calibration error" in ax.get_title()
    pyplot.close(figure)
