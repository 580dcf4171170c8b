"""The keep rates that masks start from, if no option says otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gflowout as gfo

OPTIONS: dict[str, dict[str, Any]] = {
    "mc": {},
    "contextual": {},
    "concrete": {"train_size": 40},
    "gflowout": {},
    "id-gflowout": {"train_size": 40},
    "combined": {"train_size": 40},
}


def rates(method: str, **options: Any) -> list[float]:
    """Share of kept units at each site before training: after ReLU, Dropout(0.3), Dropout(0)."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 50), nn.Dropout(0.3), nn.Linear(50, 50),
        nn.Dropout(0.0), nn.Linear(50, 3),
    )  # fmt: skip
    x = torch.randn(20, 4)
    model = gfo.wrap(
        net, method, ["1", "3", "5"], likelihood=gfo.Categorical(3), example=(x,),
        **OPTIONS[method], **options,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    masks = model.predict(x, samples=400, generator=generator, return_masks=True).masks
    assert masks is not None
    return [mask.mean().item() for mask in masks]


@pytest.mark.parametrize("method", OPTIONS)
def test_they_come_from_the_dropout_that_stood_there_or_are_high(method: str) -> None:
    assert rates(method) == pytest.approx([0.9, 0.7, 0.9], abs=0.015)


@pytest.mark.parametrize("method", ["mc", "contextual", "gflowout", "id-gflowout", "combined"])
def test_the_paper_keeps_half(method: str) -> None:
    assert rates(method, preset="paper") == pytest.approx([0.5] * 3, abs=0.02)


@pytest.mark.parametrize(
    ("method", "options", "keep"),
    [("gflowout", {"prior_keep": 0.6}, 0.6), ("combined", {"prior_keep": 0.6}, 0.36),
     ("mc", {"rate": 0.2}, 0.8), ("concrete", {"rate": 0.2}, 0.8)],
)  # fmt: skip
def test_options_override_both(method: str, options: dict[str, Any], keep: float) -> None:
    assert rates(method, **options) == pytest.approx([keep] * 3, abs=0.015)


def test_variational_dropout_starts_from_the_variance_of_the_dropout() -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), torch.zeros(2, 4)
    model = gfo.wrap(
        net, "variational", ["input", "1"], likelihood=gfo.Categorical(3), example=(x,),
        train_size=40,
    )  # fmt: skip
    alphas = [model.method.alpha(site).item() for site in range(2)]
    assert alphas == pytest.approx([1 / 9, 1.0], rel=0.01)


def test_a_saved_model_starts_from_the_same_rates(tmp_path: Any) -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), torch.randn(2, 4)
    model = gfo.wrap(net, "gflowout", likelihood=gfo.Categorical(3), example=(x,)).eval()
    gfo.save(model, tmp_path / "model.safetensors")
    again = gfo.load(tmp_path / "model.safetensors", net)
    torch.testing.assert_close(again.eval()(x), model(x))
