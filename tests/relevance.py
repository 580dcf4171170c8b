"""A problem in which methods with learned noise must separate signal features from noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo


class Branches(nn.Module):
    """Features that determine the label and features that do not, each with a site."""

    def __init__(self, signal: int, noise: int) -> None:
        super().__init__()
        self.sizes = [signal, noise]
        self.signal, self.noise = nn.Identity(), nn.Identity()
        self.head = nn.Linear(signal + noise, 1)

    def forward(self, x: Tensor) -> Tensor:
        signal, noise = x.split(self.sizes, -1)
        return self.head(torch.cat([self.signal(signal), self.noise(noise)], -1))


def learned(method: str, name: str, steps: int = 400, **options: Any) -> list[Tensor]:
    """Train on a linear problem of 2 signal features in 12; return what was learned of each kind.

    Examples are always new ones, so that noise can never look like signal.
    """
    torch.manual_seed(0)
    mixed = options.get("per_unit", False)
    model = gfo.wrap(
        nn.Sequential(nn.Identity(), nn.Linear(12, 1)) if mixed else Branches(2, 10),
        method,
        ["0"] if mixed else ["signal", "noise"],
        likelihood=gfo.Gaussian(1),
        example=(torch.zeros(2, 12),),
        train_size=200,
        **options,
    )
    optimiser = torch.optim.Adam(model.parameter_groups(lr=2e-2, generator_lr=2e-3))
    for _ in range(steps):
        x = torch.randn(100, 12)
        y = x[:, :2].sum(1, keepdim=True) + torch.randn(100, 1)
        optimiser.zero_grad()
        model(x, y=y).total.backward()
        optimiser.step()
    values = [getattr(model.method, name)(site).detach() for site in range(len(model.sites))]
    return [values[0][:2], values[0][2:]] if mixed else values
