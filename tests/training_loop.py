"""Plain training on one batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def descend(
    model: nn.Module,
    x: Any,
    y: Tensor,
    optimiser: Optimizer,
    steps: int,
    schedule: LRScheduler | None = None,
) -> None:
    """Take steps down the total loss of the same examples."""
    for _ in range(steps):
        optimiser.zero_grad()
        model(x, y=y).total.backward()
        optimiser.step()
        if schedule is not None:
            schedule.step()
