"""Disagreement and label noise in ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.data.batches import Batches
from gflowout.data.shifts import label_noise
from gflowout.training import FitOptions, fit

pytest.importorskip("lightning")

OPTIONS = FitOptions(epochs=2, accelerator="cpu")


def wrapped(method: str = "mc", **likelihood: Any) -> gfo.MaskedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return gfo.wrap(
            MLP((6, 32, 16, 3)), method, ["hidden.0.act", "hidden.1.act"],
            likelihood=gfo.Categorical(3, **likelihood), example=(torch.zeros(2, 6),), rate=0.1,
        )  # fmt: skip


def batches(noise: float = 0.0, rows: int = 300) -> tuple[Batches, Batches]:
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(3))
    y = label_noise(x[:, :3].argmax(-1), noise, 3, seed=0)[0]
    train = Batches(x[:-100], y[:-100], batch_size=50, shuffle=True, seed=1)
    return train, Batches(x[-100:], y[-100:], batch_size=50)


def test_the_term_is_trained_and_recorded() -> None:
    train, valid = batches()
    runs = {}
    for weight in (0.0, 1.0):
        term = gfo.Disagreement(weight, inputs=lambda x: 10 * x)
        result = fit(wrapped(), train, valid, OPTIONS, progress=False, disagreement=term)
        runs[weight] = result.history[-1]
    assert runs[1.0]["train/disagreement"] < 0
    assert runs[0.0]["train/disagreement"] == 0
    parts = ("nll", "tb", "prior", "disagreement")
    total = sum(runs[1.0][f"train/{name}"] for name in parts)
    assert runs[1.0]["train/total"] == pytest.approx(total, abs=1e-5)
    assert runs[1.0]["valid/nll"] != runs[0.0]["valid/nll"]
    plain = fit(wrapped(), train, valid, OPTIONS, progress=False)
    assert "train/disagreement" not in plain.history[-1]


def test_another_term_is_another_run(tmp_path: Path) -> None:
    train, valid = batches()
    term = gfo.Disagreement(0.1)
    options = {"options": OPTIONS, "folder": tmp_path, "progress": False}
    first = fit(wrapped(), train, valid, disagreement=term, **options)
    again = fit(wrapped(), train, valid, disagreement=gfo.Disagreement(0.1), **options)
    assert again.history == first.history
    for other in (None, gfo.Disagreement(0.2)):
        with pytest.raises(ValueError, match=r"holds another run: loss\.disagreement"):
            fit(wrapped(), train, valid, disagreement=other, **options)
    with pytest.raises(ValueError, match=r"loss\.label_noise \(was None, is 0\.1\)"):
        fit(wrapped(label_noise=0.1), train, valid, disagreement=term, **options)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    train, valid = batches()
    options = {"options": OPTIONS, "folder": tmp_path / "run", "progress": False}
    with pytest.raises(
        TypeError, match=r"disagreement must be gfo\.Disagreement or None, got 0\.1"
    ):
        fit(wrapped(), train, valid, disagreement=0.1, **options)
    net, likelihood = MLP((6, 8, 3)), gfo.Categorical(3)
    plain = gfo.wrap(net, "none", (), likelihood=likelihood, example=(torch.zeros(2, 6),))
    with pytest.raises(ValueError, match="method 'none' are all the same"):
        fit(plain, train, valid, disagreement=gfo.Disagreement(), **options)
    assert not (tmp_path / "run").exists()


def test_validation_is_of_labels_as_they_are() -> None:
    train, valid = batches(noise=0.4, rows=1100)
    model = wrapped(label_noise="learned")
    options = FitOptions(epochs=12, lr=5e-3, accelerator="cpu")
    result = fit(model, train, valid, options, progress=False)
    noise = model.likelihood.label_noise
    assert noise is not None
    assert noise.rate.item() > 0.2
    assert "gradient/label_noise" in result.history[-1]
    x, y = (torch.cat(parts) for parts in zip(*valid, strict=True))
    pred = model.predict(x)
    noisy = gfo.Predictive(pred.outputs, model.likelihood)
    losses = [-own.log_prob(y).mean().item() for own in (pred, noisy)]
    assert losses[1] < losses[0]  # wrong labels surprise predictions of the true class
    assert result.best_score == pytest.approx(losses[1], abs=0.03)
