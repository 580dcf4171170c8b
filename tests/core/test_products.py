"""Products that a linear layer works out: always what the product itself would give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.core.shared_product import SharedProduct

BATCH, DRAWS, UNITS = 6, 4, 5


@pytest.fixture
def factors() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, UNITS), torch.bernoulli(torch.full((DRAWS, UNITS), 0.5)) * 1.5


def plain(factors: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    batch, masks = factors
    return torch.cat([batch * mask for mask in masks])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [3, BATCH, BATCH + 1])
@torch.no_grad()
def test_linear_layers(factors, bias: bool, outputs: int) -> None:
    layer = nn.Linear(UNITS, outputs, bias=bias)
    product = SharedProduct(*factors)
    torch.testing.assert_close(layer(product), layer(plain(factors)))
    assert type(layer(product)) is torch.Tensor
    assert (product.value is None) == (outputs <= BATCH)  # more outputs: weights are the larger


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("elements", [1, 2 * 3 * UNITS, 3 * 3 * UNITS])
@torch.no_grad()
def test_a_few_draws_at_a_time(
    factors, bias: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gflowout.core.shared_product._IN_CACHE", elements)  # 1, 2 or 3 of 4 draws
    layer = nn.Linear(UNITS, 3, bias=bias)
    torch.testing.assert_close(layer(SharedProduct(*factors)), layer(plain(factors)))


OPERATIONS = {
    "relu": F.relu,
    "relu_": lambda x: F.relu(x, inplace=True),
    "mul_": lambda x: x.mul_(2),
    "view changed in place": lambda x: (x.view(DRAWS, BATCH, UNITS)[0].zero_(), x)[1],
    "layer_norm": lambda x: F.layer_norm(x, (UNITS,)),
    "cat": lambda x: torch.cat([x, x], 1),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "index": lambda x: x[1:3],
    "residual": lambda x: x + F.linear(x, torch.eye(UNITS)),
    "linear, then changed, then linear": lambda x: (
        F.linear(x, torch.ones(2, UNITS)).sum() + F.linear(x.add_(1), torch.ones(2, UNITS))
    ),
    "matmul from the left": lambda x: torch.ones(3, len(x)) @ x,
    "square": lambda x: x.t() @ x,
    "weight": lambda x: F.linear(torch.ones(2, UNITS), x),
    "float64": lambda x: x.double(),
    "shape": lambda x: torch.tensor([*x.shape, x.numel(), x.dim()]),
    "item": lambda x: torch.tensor(x[0, 0].item()),
    "iteration": lambda x: torch.stack(list(x)),
    "mean": lambda x: x.mean(0),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, UNITS, UNITS)),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach() * 1,
    "contiguous": lambda x: x.contiguous() * 1,
}


@pytest.mark.parametrize("name", OPERATIONS)
@torch.no_grad()
def test_any_operation(factors, name: str) -> None:
    operation = OPERATIONS[name]
    got, expected = operation(SharedProduct(*factors)), operation(plain(factors))
    torch.testing.assert_close(got + 0, expected + 0)
    assert type(got + 0) is torch.Tensor


@torch.no_grad()
def test_changes_in_place_stay(factors) -> None:
    product, expected = SharedProduct(*factors), plain(factors)
    product.clamp_(min=0)
    expected.clamp_(min=0)
    torch.testing.assert_close(
        F.linear(product, torch.ones(2, UNITS)), expected.sum(1, True).expand(-1, 2)
    )


class Tail(nn.Module):
    """A site whose product is read in an unusual way before or after a linear layer."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.first, self.site, self.second = nn.Linear(7, UNITS), nn.Identity(), nn.Linear(UNITS, 3)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.site(self.first(x))
        if self.read == "twice":
            return self.second(hidden) + hidden[:, :3]
        if self.read == "in place":
            return self.second(F.relu_(hidden))
        if self.read == "later":
            return self.second(hidden.tanh())
        return self.second(hidden)


@pytest.mark.parametrize("read", ["once", "twice", "in place", "later"])
@pytest.mark.parametrize("method", ["id-gflowout", "masksembles", "combined", "mc"])
def test_predictions_do_not_depend_on_it(read: str, method: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 7)
    options = {"train_size": 10} if method in ("id-gflowout", "combined") else {}
    model = gfo.wrap(
        Tail(read), method, ["site"], likelihood=gfo.Categorical(3), example=(x[:2],), **options
    )
    one, all_ = (
        model.predict(x, samples=8, chunk=chunk, generator=torch.Generator().manual_seed(3)).samples
        for chunk in (1, 8)
    )
    torch.testing.assert_close(one, all_)
    assert all_.std(0).max() > 1e-4


def test_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    usual = SharedProduct.linear
    monkeypatch.setattr(
        SharedProduct, "linear", lambda self, *rest: rows.append(len(self)) or usual(self, *rest)
    )
    x = torch.randn(128, 784)
    net = MLP()
    model = gfo.wrap(
        net,
        "id-gflowout",
        net.sites,
        likelihood=gfo.Categorical(10),
        example=(x[:2],),
        train_size=9,
    )
    model.predict(x, samples=20)
    assert rows == [20 * 128]
    model(x, y=torch.zeros(128).long()).total.backward()  # gradients take the usual way
    assert rows == [20 * 128]
