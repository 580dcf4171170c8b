r"""Masksembles (Durasov et al. 2021): a few fixed masks, each a member of an implicit ensemble.

Every site has as many masks as there are members, drawn once when the model is wrapped. All keep
the same number of units; ``scale`` tells how far they overlap, from 1, where all are the same and
keep everything (one network), to large values, where no two share a unit (an ensemble of separate,
smaller networks). Training gives each part of the batch to one member.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import (
    Losses,
    Method,
    Options,
    Score,
    likelihood_losses,
    marginal_nll,
    scaled,
)
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory


@dataclass(frozen=True, repr=False)
class MasksemblesOptions(Options):
    """Options of masksembles.

    Attributes:
        members: Number of masks per site.
        scale: How little the masks overlap, from 1 (all keep every unit).
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        bound: ``"mean"`` gives each example to one member in training; ``"marginal"`` gives it to
            all of them and takes the log of their mean likelihood, which is exact.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Masksembles(members=8)
        Masksembles(members=8)
    """

    members: int = 4
    scale: float = 2.0
    rescale: str = "none"
    bound: str = "mean"

    ALIAS: ClassVar[str] = "Masksembles"
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"members", "scale"})

    def __post_init__(self) -> None:
        """Check the values."""
        checks.integer("members", self.members, low=1)
        checks.number("scale", self.scale, low=1)
        checks.choice("rescale", self.rescale, ["none", "kept"])
        checks.choice("bound", self.bound, ["mean", "marginal"])


class Masksembles(Method):
    """Every draw of a prediction is one member, chosen at random, for all sites and examples.

    To run every member exactly once, give their masks:
    ``model.predict(x, masks=model.method.members())``.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(
        ...     net, "masksembles", ["input"], likelihood=gfo.Categorical(2), example=(x,),
        ...     members=2, scale=10.0,
        ... )
        >>> sum(model.method.members()[0]).tolist()  # two networks that share no input
        [[1.0, 1.0, 1.0, 1.0]]
    """

    name = "masksembles"
    keep_rates = False
    Options = MasksemblesOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: MasksemblesOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        for index, site in enumerate(sites):
            masks = overlapping(options.members, site.units, options.scale)
            self.register_buffer(f"masks{index}", masks)

    @property
    def shares_masks(self) -> bool:
        """Every draw is one member for the whole batch."""
        return True

    def members(self) -> list[Tensor]:
        """Masks of all members, one [members, 1, units] per site."""
        return [self.get_buffer(f"masks{site}").unsqueeze(1) for site in range(len(self.sites))]

    def keep_probabilities(self) -> list[Tensor]:
        """Share of the members that keep a unit."""
        return [masks.mean((0, 1)) for masks in self.members()]

    def draw_training(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Give each part of the batch to one member, the first part to a random one."""
        if site == 0 and trajectory.given is None:
            count, batch = self.options.members, trajectory.batch
            part = torch.arange(batch, device=activation.device) * count // batch
            # Rotated, so that members have their turn also in batches smaller than their number.
            trajectory.index = (part + self._random(activation, trajectory)) % count
        return self._used(site, activation, trajectory)

    def draw_all(
        self, site: int, activation: Tensor, trajectory: Trajectory, turns: Iterator[int]
    ) -> Tensor:
        """Give every copy of the batch to the next member."""
        if site == 0 and trajectory.given is None:
            members = [next(turns) for _ in range(trajectory.copies)]
            index = torch.tensor(members, device=activation.device)
            trajectory.index = index.repeat_interleave(trajectory.batch)
        return self._used(site, activation, trajectory)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Take one member for the whole batch, or the mean of all."""
        if trajectory.noise.expected and trajectory.given is None:
            members = self.get_buffer(f"masks{site}")
            trajectory.masks.append(members.mean(0, keepdim=True))
            used = scaled(members, self.options.rescale).mean(0, keepdim=True)
            return used.to(activation.dtype)
        if site == 0 and trajectory.given is None:
            member = self._random(activation, trajectory)
            trajectory.index = member.repeat_interleave(trajectory.batch)
        return self._used(site, activation, trajectory)

    def step(self, score: Score) -> Losses:
        """One pass; the loss is the negative log-likelihood.

        A site with rows of the whole batch needs one member for all of it.
        """
        if self.options.bound == "marginal":
            members = self.options.members
            draw = partial(self.draw_all, turns=itertools.cycle(range(members)))
            trajectory = score(draw, copies=members)
            return likelihood_losses(trajectory, nll=marginal_nll(trajectory))
        mixed = any(site.folded == "batch" for site in self.sites)
        return likelihood_losses(score(self.draw if mixed else self.draw_training))

    def _random(self, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """One member per copy of the batch, [copies]."""
        members: int = self.options.members
        return (trajectory.noise.uniform(1, 1, activation).squeeze(-1) * members).long()

    def _used(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        mask = trajectory.mask(site, lambda: self.get_buffer(f"masks{site}"))
        used = scaled(mask, self.options.rescale).to(activation.dtype)
        return trajectory.per_example(used)


def kept_units(members: int, units: int, scale: float) -> int:
    """Units that every mask keeps, so that together the masks use them all.

    Masks of m among m * scale positions leave (1 - 1 / scale) ** members of the positions unused;
    m is chosen for the others to be ``units``.

    Examples:
        >>> [kept_units(4, 60, scale) for scale in (1, 2, 100)]
        [60, 32, 15]
    """
    used = scale * -math.expm1(members * math.log1p(-1 / scale)) if scale > 1 else 1.0
    return min(units, max(round(units / used), math.ceil(units / members)))


def overlapping(members: int, units: int, scale: float) -> Tensor:
    """Random masks of equal size, [members, units], which together keep every unit.

    Units are dealt to the members in turn; each then fills up with units of the others.
    """
    owner = torch.randperm(units) % members
    own = owner == torch.arange(members).unsqueeze(1)
    order = torch.rand(members, units) + own
    kept = order.topk(kept_units(members, units, scale), -1).indices
    return torch.zeros(members, units).scatter(-1, kept, 1.0)
