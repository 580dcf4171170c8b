"""Numbers of a training epoch, and warnings of what goes wrong in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gflowout.core.method import Losses
from gflowout.core.sites import Site

PARTS = ("total", "nll", "tb", "prior")
EVERY = 10  # steps from one closer look to the next
GROWTH = 10.0  # a trajectory-balance loss of so many times its least value is reported,
IN_A_ROW = 3  # if it has grown in so many epochs in a row
COLLAPSE = 0.01  # keep rates this near to 0 or 1 leave nothing to draw
ADVICE = (
    "Lower lr and generator_lr, set clip (gradient norm, 1.0 is a start), lower beta, or look for "
    "odd values in the data"
)


class TrainingWarning(UserWarning):
    """Training goes on, but not well.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", TrainingWarning)  # stop instead of going on badly
    """


class DivergedError(RuntimeError):
    """The loss is not a finite number any more; training cannot go on.

    Examples:
        >>> try:
        ...     raise DivergedError("loss is not finite in epoch 3")
        ... except DivergedError as error:
        ...     print("lower the learning rate:", error)
        lower the learning rate: loss is not finite in epoch 3
    """


def alarms(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Warnings after the last epoch of a history, by a short name of what they are about."""
    warnings: dict[str, str] = {}
    balance = [numbers["train/tb"] for numbers in history if "train/tb" in numbers]
    recent = balance[-IN_A_ROW - 1 :]
    growing = len(recent) > IN_A_ROW and all(after > before for before, after in pairwise(recent))
    if growing and balance[-1] > GROWTH * min(balance):
        warnings["tb"] = (
            f"the trajectory-balance loss grew for {IN_A_ROW} epochs, to {balance[-1]:.3g} from "
            f"{min(balance):.3g}: the generators do not follow the backbone. Lower lr or raise "
            "generator_lr and log_z_lr, lower beta, or set clip"
        )
    last = history[-1] if history else {}
    rates = {name: rate for name, rate in last.items() if name.startswith("keep/")}
    for name, rate in rates.items() if "log_q" in last else ():
        if min(rate, 1 - rate) < COLLAPSE:
            state, advice = ("on", "Lower") if rate > 0.5 else ("off", "Raise")
            warnings[name] = (
                f"nearly all masks of site {name.removeprefix('keep/')!r} are all-{state} (keep "
                f"rate {rate:.4f}): there is nothing left to draw. {advice} prior_keep or beta, "
                "lower generator_lr, or raise epsilon and temperature"
            )
    return warnings


class EpochStatistics:
    """Collects losses, keep rates, log-quantities and gradient norms of one epoch.

    Sums stay on the device until the epoch ends, so that training does not wait for them.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.names = [site.name for site in sites]
        self.steps = 0
        self._parts: Tensor | None = None
        self._moments: list[Tensor] = []
        self._keep: list[Tensor] = []
        self._norms: list[dict[str, Tensor]] = []

    def add(self, losses: Losses) -> None:
        """Add the losses of a step."""
        parts = torch.stack([getattr(losses, name).detach() for name in PARTS])
        self._parts = parts if self._parts is None else self._parts + parts
        self.steps += 1

    def look(self, losses: Losses, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        """Look closer at a step: masks, log-quantities and gradients."""
        # Kept units are at 1 or, rescaled, above; relaxed masks lie in between.
        self._keep.append(torch.stack([(mask > 0.5).float().mean() for mask in losses.masks]))
        if losses.log_q is not None and losses.log_reward is not None and losses.log_z is not None:
            self._moments.append(_moments(losses.log_q, losses.log_reward, losses.log_z))
        norms = {}
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                gradients = [p.grad for p in group["params"] if p.grad is not None]
                if gradients:
                    norms[group["name"]] = torch.nn.utils.get_total_norm(gradients)
        self._norms.append(norms)

    def numbers(self) -> dict[str, float]:
        """Means over the epoch by name; waits for the device."""
        if self._parts is None:
            return {}
        means = (self._parts / self.steps).tolist()
        numbers = {f"train/{name}": value for name, value in zip(PARTS, means, strict=True)}
        if self._keep and self.names:
            rates = torch.stack(self._keep).mean(0).tolist()
            numbers |= {f"keep/{name}": rate for name, rate in zip(self.names, rates, strict=True)}
        if self._moments:
            numbers |= _log_quantities(torch.stack(self._moments).sum(0).tolist())
        for name in self._norms[0] if self._norms else ():
            values = [float(norms[name]) for norms in self._norms if name in norms]
            numbers[f"gradient/{name}"] = sum(values) / len(values)
        return numbers


def _moments(log_q: Tensor, log_reward: Tensor, log_z: Tensor) -> Tensor:
    q, r = log_q.detach().double().flatten(), log_reward.detach().double().flatten()
    count = torch.ones_like(q).sum()
    sums = (count, q.sum(), r.sum(), (q * q).sum(), (r * r).sum(), (q * r).sum())
    return torch.stack((*sums, log_z.detach().double().sum()))


def _log_quantities(sums: Sequence[float]) -> dict[str, float]:
    count, q, r, qq, rr, qr, z = sums
    spread_q, spread_r = qq - q * q / count, rr - r * r / count
    # Below rounding error there is no spread, and no correlation either.
    rounding = 1e-9 * (qq + rr)
    correlation = math.nan
    if min(spread_q, spread_r) > rounding:
        correlation = (qr - q * r / count) / math.sqrt(spread_q * spread_r)
    means = {"log_q": q / count, "log_reward": r / count, "log_z": z / count}
    return {**means, "correlation": correlation}
