"""How a training step grows with the number of sites, by what generators see of earlier masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.bench.methods import adam_step
from gflowout.bench.timing import Case, Table

DEPTHS = (4, 8, 16, 32, 64)
_CLASSES = 10
_COMPARED: dict[str, dict[str, Any]] = {
    "mc": {"method": "mc"},
    "all": {"method": "gflowout", "history": "all"},
    "summary": {"method": "gflowout", "history": "summary"},
}


class Residual(nn.Module):
    """Residual blocks of two convolutions each; a site before every sum, as in ResNet-18."""

    def __init__(self, sites: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.branches = nn.ModuleList(_branch(width) for _ in range(sites))
        self.head = nn.Linear(width, _CLASSES)
        self.sites = tuple(f"branches.{index}" for index in range(sites))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, 3, height, width] to [batch, classes]."""
        x = self.stem(x)
        for branch in self.branches:
            x = (x + branch(x)).relu()
        output: Tensor = self.head(x.mean((2, 3)))
        return output


class Transformer(nn.Module):
    """Layers of a transformer; a site after every attention and every feed-forward part."""

    def __init__(self, sites: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(sites // 2)
        )
        self.head = nn.Linear(width, _CLASSES)
        self.sites = tuple(
            f"layers.{index}.dropout{part}" for index in range(sites // 2) for part in (1, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, tokens, width] to [batch, classes]."""
        for layer in self.layers:
            x = layer(x)
        output: Tensor = self.head(x.mean(1))
        return output


def depth_tables(repeats: int, width: int = 64) -> list[Table]:
    """One table per network and depth; names of cases hold the generators' parameters.

    Args:
        repeats: Rounds.
        width: Channels of the residual network; the transformer has four times as many features.
    """

    def residual(sites: int) -> Table:
        return Table(
            f"depth-{sites}",
            f"Training step, {sites} residual blocks of width {width} on 16x16, a site in each, "
            "batch 32",
            ("mc",),
            repeats,
            lambda: _cases(lambda: Residual(sites, width), torch.randn(32, 3, 16, 16)),
            cost=0.2 * sites * (width / 64) ** 2,
        )

    def transformer(sites: int) -> Table:
        size = 4 * width
        return Table(
            f"depth-transformer-{sites}",
            f"Training step, {sites // 2} transformer layers of width {size}, two sites in each, "
            "64 tokens, batch 16",
            ("mc",),
            repeats,
            lambda: _cases(lambda: Transformer(sites, size), torch.randn(16, 64, size)),
            cost=0.1 * sites * (width / 64) ** 2,
        )

    return [make(sites) for make in (residual, transformer) for sites in DEPTHS]


def _branch(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
    )


def _cases(build: Callable[[], Any], x: Tensor) -> dict[str, Case]:
    y = torch.randint(_CLASSES, (len(x),))
    cases: dict[str, Case] = {}
    for name, options in _COMPARED.items():
        net = build()
        model = gfo.wrap(
            net, sites=net.sites, likelihood=gfo.Categorical(_CLASSES), example=(x[:2],), **options
        )
        size = sum(parameter.numel() for parameter in model.method.parameters())
        label = f"{name}, {size:,} parameters" if size else name
        cases[label] = adam_step(model, x, y)
    return cases
