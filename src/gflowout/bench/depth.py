"""How a training step grows with the number of sites, by what generators see of earlier masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.bench.methods import adam_step
from gflowout.bench.timing import Case, Table

DEPTHS = (4, 8, 16, 32, 64)
_WIDTH = 32
_CLASSES = 10


class Blocks(nn.Module):
    """Residual blocks of one convolution each; a site on every branch."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, _WIDTH, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1), nn.BatchNorm2d(_WIDTH))
            for _ in range(depth)
        )
        self.head = nn.Linear(_WIDTH, _CLASSES)
        self.sites = tuple(f"branches.{index}" for index in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, 3, height, width] to [batch, classes]."""
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x).relu()
        output: Tensor = self.head(x.mean((2, 3)))
        return output


def depth_tables(repeats: int) -> list[Table]:
    """One table per depth; names of cases hold the number of parameters of the generators."""

    def of_depth(depth: int) -> Table:
        return Table(
            f"depth-{depth}",
            f"Training step, {depth} residual blocks of width {_WIDTH}, a site in each, batch 32",
            ("mc",),
            repeats,
            lambda: _cases(depth),
            cost=0.03 * depth,
        )

    return [of_depth(depth) for depth in DEPTHS]


def _cases(depth: int) -> dict[str, Case]:
    x, y = torch.randn(32, 3, 16, 16), torch.randint(_CLASSES, (32,))
    cases: dict[str, Case] = {}
    compared: dict[str, dict[str, Any]] = {
        "mc": {"method": "mc"},
        "all": {"method": "gflowout", "history": "all"},
        "summary": {"method": "gflowout", "history": "summary"},
    }
    for name, options in compared.items():
        net = Blocks(depth)
        model = gfo.wrap(
            net,
            sites=net.sites,
            likelihood=gfo.Categorical(_CLASSES),
            example=(x[:2],),
            **options,
        )
        size = sum(parameter.numel() for parameter in model.method.parameters())
        label = f"{name}, {size:,} parameters" if size else name
        cases[label] = adam_step(model, x, y)
    return cases
