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


def alarms(history: Sequence[Mapping[str, float]], balance: bool = True) -> dict[str, str]:
    """Warnings after the last epoch of a history, by a short name of what they are about.

    ``balance`` tells whether ``train/tb`` is the residual of a balance, which should not grow.
    """
    warnings: dict[str, str] = {}
    losses = [numbers["train/tb"] for numbers in history if balance and "train/tb" in numbers]
    recent = losses[-IN_A_ROW - 1 :]
    growing = len(recent) > IN_A_ROW and all(after > before for before, after in pairwise(recent))
    if growing and losses[-1] > GROWTH * min(losses):
        warnings["tb"] = (
            f"the trajectory-balance loss grew for {IN_A_ROW} epochs, to {losses[-1]:.3g} from "
            f"{min(losses):.3g}: the generators do not follow the backbone. Lower lr or raise "
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
        self._disagreement: Tensor | None = None
        self._moments: list[Tensor] = []
        self._keep: list[Tensor] = []
        self._norms: list[dict[str, Tensor]] = []

    def add(self, losses: Losses, disagreement: Tensor | None = None) -> None:
        """Add the losses of a step, and the term that was added to them, if any."""
        if disagreement is not None:
            before = 0.0 if self._disagreement is None else self._disagreement
            self._disagreement = before + disagreement.detach()
        parts = torch.stack([getattr(losses, name).detach() for name in PARTS])
        self._parts = parts if self._parts is None else self._parts + parts
        self.steps += 1

    def look(self, losses: Losses, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        """Look closer at a step: masks, log-quantities and gradients."""
        if losses.masks:
            # Kept units are at 1 or, rescaled, above; relaxed masks lie in between.
            self._keep.append(torch.stack([(mask > 0.5).float().mean() for mask in losses.masks]))
        if losses.log_q is not None and losses.log_z is not None:
            self._moments.append(_moments(losses))
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
        if self._disagreement is not None:
            numbers["train/disagreement"] = self._disagreement.item() / self.steps
        if self._keep:
            rates = torch.stack(self._keep).mean(0).tolist()
            numbers |= {f"keep/{name}": rate for name, rate in zip(self.names, rates, strict=True)}
        if self._moments:
            numbers |= _log_quantities(torch.stack(self._moments).sum(0).tolist())
        for name in self._norms[0] if self._norms else ():
            values = [float(norms[name]) for norms in self._norms if name in norms]
            numbers[f"gradient/{name}"] = sum(values) / len(values)
        return numbers


def _moments(losses: Losses) -> Tensor:
    """Sums over masks: how many, log q - log p and the log-likelihood, means, KL and ELBO."""
    log_q, log_p, fit = (
        value.detach().double()
        for value in (losses.log_q, losses.log_p, losses.log_likelihood)
        if value is not None
    )
    ratio, count = log_q - log_p, torch.ones_like(log_q).sum()
    means = (log_q, losses.log_reward, losses.log_z)
    totals = [value.detach().double().sum() for value in means if value is not None]
    assert losses.kl is not None
    assert losses.elbo is not None
    totals += [count * losses.kl, count * losses.elbo]
    if ratio.dim() > 1:  # masks of one example are compared with each other
        ratio, fit = ratio - ratio.mean(0), fit - fit.mean(0)
    squares = (ratio.square().sum(), fit.square().sum(), (ratio * fit).sum())
    return torch.stack((count, ratio.sum(), fit.sum(), *squares, *totals))


def _log_quantities(sums: Sequence[float]) -> dict[str, float]:
    count, a, b, aa, bb, ab, *totals = sums
    spread_a, spread_b = aa - a * a / count, bb - b * b / count
    # Below rounding error there is no spread, and no correlation either.
    correlation = math.nan
    if spread_a > 1e-9 * aa and spread_b > 1e-9 * bb:
        correlation = (ab - a * b / count) / math.sqrt(spread_a * spread_b)
    names = ("log_q", "log_reward", "log_z", "kl", "elbo")
    means = {name: total / count for name, total in zip(names, totals, strict=True)}
    return {**means, "correlation": correlation}
