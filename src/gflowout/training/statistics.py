"""Numbers of an epoch: means of the losses, and now and then a closer look at the masks.

Sums stay on the device until the epoch ends, so that training does not wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.core.method import Losses
from gflowout.core.sites import Site

PARTS = ("total", "nll", "tb", "prior")
EVERY = 10
"""Steps from one closer look to the next."""


class EpochStatistics:
    """Collects losses, keep rates, log-quantities and gradient norms of one epoch.

    Args:
        sites: Of the model, for the names of the keep rates.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.names = [site.name for site in sites]
        self.steps = 0
        self._parts: Tensor | None = None
        self._looks: list[Tensor] = []
        self._keep: list[Tensor] = []
        self._norms: list[dict[str, Tensor]] = []

    def add(self, losses: Losses) -> None:
        """Add the losses of a step."""
        parts = torch.stack([getattr(losses, name).detach() for name in PARTS])
        self._parts = parts if self._parts is None else self._parts + parts
        self.steps += 1

    def look(self, losses: Losses, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        """Look closer at a step: masks, log-quantities and gradients."""
        self._keep.append(torch.stack([_keep_rate(mask) for mask in losses.masks]))
        if losses.log_q is not None and losses.log_reward is not None and losses.log_z is not None:
            self._looks.append(_moments(losses.log_q, losses.log_reward, losses.log_z))
        norms = {}
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                gradients = [p.grad for p in group["params"] if p.grad is not None]
                if gradients:
                    norms[group["name"]] = torch.nn.utils.get_total_norm(gradients)
        self._norms.append(norms)

    def numbers(self) -> dict[str, float]:
        """Everything by name; all calls of this wait for the device."""
        if self._parts is None:
            return {}
        means = (self._parts / self.steps).tolist()
        found = {f"train/{name}": value for name, value in zip(PARTS, means, strict=True)}
        if self._keep and self.names:
            rates = torch.stack(self._keep).mean(0).tolist()
            found |= {f"keep/{name}": rate for name, rate in zip(self.names, rates, strict=True)}
        if self._looks:
            found |= _log_quantities(torch.stack(self._looks).sum(0).tolist())
        for name in self._norms[0] if self._norms else ():
            values = [float(norms[name]) for norms in self._norms if name in norms]
            found[f"gradient/{name}"] = sum(values) / len(values)
        return found


def _keep_rate(mask: Tensor) -> Tensor:
    # Kept units are at 1 or, rescaled, above; relaxed masks lie in between.
    return (mask > 0.5).float().mean()


def _moments(log_q: Tensor, log_reward: Tensor, log_z: Tensor) -> Tensor:
    q, r = log_q.detach().double().flatten(), log_reward.detach().double().flatten()
    count = torch.ones_like(q).sum()
    sums = (count, q.sum(), r.sum(), (q * q).sum(), (r * r).sum(), (q * r).sum())
    return torch.stack((*sums, log_z.detach().double().sum()))


def _log_quantities(sums: Sequence[float]) -> dict[str, Any]:
    count, q, r, qq, rr, qr, z = sums
    spread_q, spread_r = qq - q * q / count, rr - r * r / count
    # Below rounding error there is no spread, and no correlation either.
    rounding = 1e-9 * (qq + rr)
    known = spread_q > rounding and spread_r > rounding
    correlation = (qr - q * r / count) / math.sqrt(spread_q * spread_r) if known else math.nan
    return {
        "log_q": q / count,
        "log_reward": r / count,
        "log_z": z / count,
        "correlation": correlation,
    }
