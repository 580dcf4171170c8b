"""Rows that depend on each other are never folded into one batch, and idle sites are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gflowout as gfo

ROWS = 6
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])


def _nearest(h: Tensor) -> Tensor:
    distance = torch.cdist(h, h).masked_fill(torch.eye(len(h), dtype=torch.bool), torch.inf)
    return h + h[distance.argmin(1)]


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "index": lambda h: h + h[[0]],
    "fixed-row reference": lambda h: h - h[:1],
    "last row": lambda h: h - h[-1:],
    "gather": lambda h: h + h.gather(0, torch.zeros_like(h, dtype=torch.long)),
    "scatter": lambda h: h.scatter_add(0, torch.ones_like(h, dtype=torch.long), h),
    "edges": lambda h: h.index_add(0, EDGES[1], h[EDGES[0]]),
    "segment": lambda h: h + torch.zeros_like(h).index_add(0, torch.arange(len(h)) // 2, h),
    "roll": lambda h: h + h.roll(1, 0),
    "flip": lambda h: h + h.flip(0),
    "cumsum": lambda h: h.cumsum(0),
    "sort": lambda h: h.sort(0).values,
    "nearest neighbour": _nearest,
    "mean": lambda h: h - h.mean(0),
    "standardised": lambda h: (h - h.mean(0)) / (h.std(0) + 1),
    "softmax over rows": lambda h: h * h.softmax(0),
    "row number": lambda h: h + torch.arange(len(h)).unsqueeze(1),
    "attention over rows": lambda h: h + (h @ h.T).softmax(1) @ h,
    "first half": lambda h: torch.cat([h[: len(h) // 2] * 2, h[len(h) // 2 :]]),
}


class Mixing(nn.Module):
    """Row-wise layers with one operator that mixes rows, before, between or after the sites."""

    def __init__(self, operator: Callable[[Tensor], Tensor], position: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)])
        self.acts = nn.ModuleList([nn.Tanh(), nn.Tanh(), nn.Identity()])
        self.operator, self.position = operator, position

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for at, (layer, act) in enumerate(zip(self.layers, self.acts, strict=True)):
            h = self.operator(h) if at == self.position else h
            h = act(layer(h))
        return self.operator(h) if self.position == 3 else h


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(MIXING)),
    position=st.integers(0, 3),
    rows=st.integers(2, ROWS),
    seed=st.integers(0, 1000),
    method=st.sampled_from(["mc", "gflowout"]),
)
def test_folded_draws_are_those_of_single_passes(
    name: str, position: int, rows: int, seed: int, method: str
) -> None:
    torch.manual_seed(seed)
    net = Mixing(MIXING[name], position)
    x = torch.randn(ROWS, 4)
    rows = ROWS if name == "edges" else rows
    model = gfo.wrap(
        net, method, ["acts.0", "acts.1"], likelihood=gfo.Categorical(3), example=(x[:rows],)
    ).eval()

    def predicted(chunk: int | None) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.predict(x, samples=4, chunk=chunk, generator=generator).samples

    torch.testing.assert_close(predicted(None), predicted(1), rtol=1e-4, atol=1e-5)


class Pooled(nn.Module):
    """Tokens or small maps, averaged, and mixed with other rows of the batch."""

    def __init__(self, body: nn.Module, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.operator = body, operator
        self.act, self.head = nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.operator(self.body(x).flatten(2).mean(2))))


class Embedded(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).transpose(1, 2)


def _pairs(h: Tensor) -> Tensor:
    pair = torch.arange(len(h)) // 2
    return h + torch.zeros_like(h).index_add(0, pair, h)[pair]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("kind", ["maps", "tokens"])
@pytest.mark.parametrize(
    "operator", [MIXING["mean"], MIXING["fixed-row reference"], MIXING["last row"], _pairs]
)
def test_rows_that_average_out_are_not_folded(
    operator: Callable[[Tensor], Tensor], kind: str, rows: int
) -> None:
    torch.manual_seed(0)
    body: nn.Module = nn.Conv2d(2, 8, 3) if kind == "maps" else Embedded(9, 8)
    x = torch.randn(5, 2, 9, 9) if kind == "maps" else torch.randint(9, (5, 6))
    likelihood = gfo.Categorical(3)
    model = gfo.wrap(
        Pooled(body, operator), "mc", ["act"], likelihood=likelihood, example=(x[:rows],)
    )
    assert not model.spec.foldable


def test_nodes_of_a_graph_are_trained_right_with_several_draws() -> None:
    net = Mixing(MIXING["edges"], 1)
    x, y = torch.randn(ROWS, 4), torch.randint(3, (ROWS,))
    model = gfo.wrap(
        net, "gflowout", ["acts.0"], likelihood=gfo.Categorical(3), example=(x,), draws=3
    )
    masks = [torch.randint(2, (3, ROWS, 8)).float()]
    losses = model(x, y=y, masks=masks)
    single = torch.stack(
        [model(x, y=y, masks=[mask[draw] for mask in masks]).nll for draw in range(3)]
    )
    torch.testing.assert_close(losses.nll, single.mean())


class LSTM(nn.Module):
    def __init__(self, state: bool) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
        self.spare, self.state = nn.Linear(4, 3), state

    def forward(self, x: Tensor) -> Tensor:
        self.spare(x[:, 0])  # runs, but nothing reads it
        sequence, (h, _) = self.lstm(x)
        return self.head(h[-1] if self.state else sequence[:, -1])


def test_a_site_that_nothing_reads_is_refused() -> None:
    x = torch.randn(2, 5, 4)

    def wrap(site: str, state: bool) -> gfo.MaskedModel:
        return gfo.wrap(LSTM(state), "mc", [site], likelihood=gfo.Categorical(3), example=(x,))

    with pytest.raises(ValueError, match=r"site 'lstm' has no influence .* not the state"):
        wrap("lstm", True)
    with pytest.raises(ValueError, match="site 'spare' has no influence on the output"):
        wrap("spare", False)
    assert float(wrap("lstm", False).predict(x, samples=8).variance().max()) > 0


def test_layers_that_start_at_zero_and_stopped_gradients_are_not_idle() -> None:
    zero = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(zero[2].weight)

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).detach())

    for net, site in ((zero, "1"), (Detached(), "body.1")):
        gfo.wrap(net, "mc", [site], likelihood=gfo.Categorical(3), example=(torch.randn(2, 4),))


class Saturated(nn.Module):
    """Rows share a mean that inputs hardly move, but masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.head = nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 3)
        nn.init.normal_(self.fc.weight, std=1e-4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.fc(x))
        return self.head(h - 0.5 * h.mean(0))


@pytest.mark.parametrize("damage", [None, math.nan])
def test_rows_that_only_masks_or_nothing_tell_apart_are_not_folded(damage: float | None) -> None:
    net, x = Saturated(), torch.randn(3, 4)
    if damage is not None:
        nn.init.constant_(net.head.weight, damage)
    model = gfo.wrap(net, "mc", ["act"], likelihood=gfo.Categorical(3), example=(x,))
    assert not model.spec.foldable
    nn.init.normal_(net.head.weight)
    folded, looped = (
        model.predict(x, samples=8, chunk=chunk, generator=torch.Generator().manual_seed(0))
        for chunk in (None, 1)
    )
    torch.testing.assert_close(folded.samples, looped.samples)


def test_neighbours_that_the_example_does_not_show_are_seen() -> None:
    class Neighbour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act, self.head = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.act(self.fc(x))
            far = 1e6 * torch.eye(len(h))
            return self.head(h + 0.5 * h[(torch.cdist(h, h) + far).argmin(1)])

    x = torch.tensor([[3.0, 3.0, 3.0, 3.0], [3.1, 3.0, 3.0, 3.0]])  # far from all other rows
    model = gfo.wrap(Neighbour(), "mc", ["act"], likelihood=gfo.Categorical(3), example=(x,))
    assert not model.spec.foldable
