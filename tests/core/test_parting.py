"""Draws that part at the first site: one copy of the batch up to there, and the same answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import predicted

import gflowout as gfo
from gflowout.methods import METHODS

BATCH, SIZE = 3, 6


class Residual(nn.Module):
    """The input passes by the site."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(x + self.first(x))
        return output


class Sized(nn.Module):
    """The size of the batch passes by the site."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 2, 1), nn.Linear(2 * SIZE, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.first(x.unsqueeze(1)).reshape(len(x), -1))
        return output


class Convolutional(nn.Module):
    """Image maps, with a norm and a residual block after the site."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)
        self.map = nn.Identity()
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.map(self.norm(self.first(x.reshape(-1, 1, 2, 3))))
        output: Tensor = self.last((h + self.second(h)).mean((2, 3)))
        return output


def chain() -> nn.Module:
    layers = [nn.Linear(SIZE, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)]
    return nn.Sequential(*layers)


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "mc": {},
    "concrete": {"train_size": 10},
    "variational": {"train_size": 10},
    "gates": {},
    "gates shared": {"shared": True},
    "gates mean": {"predict": "mean"},
    "masksembles": {},
    "modes": {},
    "modes drawn": {"rate": 0.3},
    "contextual": {},
    "contextual gaussian": {"family": "gaussian"},
    "id-gflowout": {"train_size": 10},
    "id-gflowout groups": {"train_size": 10, "draws": 3, "group_size": 2},
    "gflowout": {"draws": 3},
    "gflowout fixed": {"draws": 3, "prior": "fixed"},
    "gflowout blocks": {"blocks": 2, "draws": 3},
    "combined": {"train_size": 10},
}


def test_every_method_is_in_the_table() -> None:
    assert {name.split()[0] for name in OPTIONS} == METHODS.keys()


def wrapped(
    name: str, build: Callable[[], nn.Module] = chain, sites: Any = ("1", "3")
) -> gfo.MaskedModel:
    """A model whose generators are far from their start."""
    torch.manual_seed(0)
    model = gfo.wrap(
        build(),
        name.split()[0],
        list(sites),
        likelihood=gfo.Categorical(2),
        example=(torch.randn(2, SIZE),),
        **OPTIONS[name],
    )
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def unparted(model: gfo.MaskedModel) -> None:
    """Take every copy of the batch through all layers, as if the trial had failed."""
    assert model.spec.parts_at_first_site
    model.spec = dataclasses.replace(model.spec, parts_at_first_site=False)


@pytest.mark.parametrize("sites", [("1", "3"), ("input", "3"), ("3",)])
@pytest.mark.parametrize("name", OPTIONS)
def test_predictions_are_the_same(name: str, sites: tuple[str, ...]) -> None:
    model, x = wrapped(name, sites=sites), torch.randn(BATCH, SIZE)
    calls: list[dict[str, Any]] = [{}, {"chunk": 3}, {"chunk": 1}]
    parted = [predicted(model, x, return_masks=True, **call) for call in calls]
    unparted(model)
    whole = predicted(model, x, return_masks=True)
    for one in parted:
        torch.testing.assert_close(one.samples, whole.samples)
        torch.testing.assert_close(one.masks, whole.masks)


@pytest.mark.parametrize("name", OPTIONS)
def test_training_steps_are_the_same(name: str) -> None:
    model = wrapped(name).double()  # shared masks have gradients that cancel up to rounding
    x, y = torch.randn(BATCH, SIZE).double(), torch.tensor([0, 1, 1])
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        losses = model(x, y=y)
        losses.total.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append((losses, gradients))
        if model.spec.parts_at_first_site:
            unparted(model)
    (parted, gradients), (whole, expected) = results
    torch.testing.assert_close(parted.total, whole.total)
    torch.testing.assert_close(parted.masks, whole.masks)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("name", ["mc", "id-gflowout", "gflowout"])
def test_image_maps(name: str) -> None:
    model, x = wrapped(name, Convolutional, ["map", "second"]), torch.randn(BATCH, SIZE)
    parted = predicted(model, x).samples
    unparted(model)
    torch.testing.assert_close(parted, predicted(model, x).samples)


@pytest.mark.parametrize("build", [Residual, Sized])
def test_what_passes_by_the_first_site_is_noticed(build: Callable[[], nn.Module]) -> None:
    model = wrapped("gflowout", build, ["first"])
    assert not model.spec.parts_at_first_site
    assert model.spec.foldable


def test_the_layers_before_the_first_site_see_one_copy_of_the_batch() -> None:
    """Work is counted, not timed."""
    model = wrapped("id-gflowout")
    rows: dict[str, int] = {"0": 0, "2": 0}
    for name in rows:

        def count(_: nn.Module, args: tuple[Tensor], name: str = name) -> None:
            rows[name] += len(args[0])

        model.backbone.get_submodule(name).register_forward_pre_hook(count)
    model.predict(torch.randn(BATCH, SIZE), samples=20)
    assert rows == {"0": BATCH, "2": 20 * BATCH}
    model(torch.randn(BATCH, SIZE), y=torch.zeros(BATCH).long())
    assert rows == {"0": 2 * BATCH, "2": 24 * BATCH}


@pytest.mark.parametrize(("name", "calls"), [("id-gflowout", 1), ("gflowout", 5)])
def test_masks_that_depend_on_no_input_are_drawn_once(name: str, calls: int) -> None:
    model = wrapped(name)
    generators = model.method.posterior if name == "id-gflowout" else model.method.prior
    seen: list[int] = []
    generators[1].register_forward_hook(lambda *_: seen.append(1))
    model.predict(torch.randn(BATCH, SIZE), samples=20, chunk=4)
    assert len(seen) == calls


def test_a_pass_does_not_grow_with_the_number_of_draws() -> None:
    """What a pass holds at a time is what the peak of memory is made of, beside the result."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    x = torch.randn(128, 784)
    model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(10), example=(x[:2],))
    rows: list[int] = []
    net[2].register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    most = []
    for samples in (20, 500):
        rows.clear()
        assert len(model.predict(x, samples=samples).samples) == samples
        most.append(max(rows))
    assert most[1] <= 1.2 * most[0]
