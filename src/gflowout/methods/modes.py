r"""Modes: a few fixed masks, and a router that says how probable each is for an example.

The first action of a trajectory is the mode c, with p(c | x) from a small network on the pooled
activation of the first site. A mode has one mask per site, with little overlap between modes, as in
masksembles; units that it keeps may be dropped at random, too. In training all modes run on every
example, so that the loss needs no estimate,

.. math:: -\log \sum_c p(c \mid x) \, p(y \mid x, z_c),

and its gradient weights each mode by its responsibility p(c | x, y): backbone and router learn as
a mixture of experts does, inside one network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gflowout.core import checks, generators, policy
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
from gflowout.core.options import dropping
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import check_hidden
from gflowout.methods.masksembles import overlapping


@dataclass(frozen=True, repr=False)
class ModesOptions(Options):
    """Options of modes.

    Attributes:
        modes: Number of masks per site.
        scale: How little the masks overlap, from 1 (all keep every unit).
        rate: Probability of dropping a unit that the mode keeps, per example and draw. ``keep``
            sets it, too: 1 - rate.
        rescale: ``"inverse"`` divides kept units by the share that is kept on average; ``"none"``
            leaves them.
        hidden: Widths of the router.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Modes(modes=8, keep=0.9)
        Modes(modes=8, rate=0.1)
    """

    modes: int = 4
    scale: float = 2.0
    rate: float = 0.0
    rescale: str = "inverse"
    hidden: tuple[int, ...] = (32,)

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Modes"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"modes", "scale", "hidden"})

    def __post_init__(self) -> None:
        """Check the values."""
        checks.integer("modes", self.modes, low=2)
        checks.number("scale", self.scale, low=1)
        checks.number("rate", self.rate, low=0, high=1, open_high=True)
        checks.choice("rescale", self.rescale, ["inverse", "none"])
        check_hidden(self.hidden)

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """The drop rate is what is not kept."""
        return {"rate": dropping(keep)}


class Modes(Method):
    """Every draw of a prediction takes, for each example, a mode drawn from the router.

    ``Losses.masks`` holds the masks of all modes, [modes, batch, units]. If as many are given, they
    are taken for those of the modes in turn; others are scored with equal weights.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
        >>> model = gfo.wrap(
        ...     net, "modes", ["input"], likelihood=gfo.Categorical(2), example=(x,), modes=2,
        ... )
        >>> model(x, y=torch.tensor([0, 1, 0])).masks[0].shape
        torch.Size([2, 3, 4])
    """

    name = "modes"
    keep_rates = False
    Options = ModesOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: ModesOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        self.router = generators.MaskGenerator([sites[0].units], options.modes, options.hidden, 0.0)
        for index, site in enumerate(sites):
            masks = overlapping(options.modes, site.units, options.scale)
            self.register_buffer(f"masks{index}", masks)

    def draw_training(
        self, site: int, activation: Tensor, trajectory: Trajectory, turns: Iterator[int]
    ) -> Tensor:
        """Give every copy of the batch to the next mode."""
        if site == 0:
            modes = [next(turns) for _ in range(trajectory.copies)]
            log_p = self._logits(activation, trajectory).log_softmax(-1)
            order = torch.tensor(modes, device=log_p.device)
            rows = order.repeat_interleave(trajectory.batch)
            trajectory.log_p = log_p.gather(-1, rows.unsqueeze(-1)).squeeze(-1)
            alone = torch.eye(self.options.modes, dtype=log_p.dtype, device=log_p.device)
            trajectory.context = alone[order]
        return self._multiplier(site, activation, trajectory)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw a mode for each example at the first site, and take its masks."""
        if site == 0 and trajectory.given is None:
            keep = self._logits(activation, trajectory).softmax(-1)
            trajectory.context = keep if trajectory.noise.expected else _one(keep, trajectory)
        return self._multiplier(site, activation, trajectory)

    def step(self, score: Score) -> Losses:
        """One pass over as many copies of the batch as there are modes."""
        modes = self.options.modes
        draw = partial(self.draw_training, turns=itertools.cycle(range(modes)))
        trajectory = score(draw, copies=modes)
        log_weights = None
        if trajectory.copies == modes:  # each once: as drawn with probability 1 / modes
            log_weights = trajectory.log_p + math.log(modes)
        return likelihood_losses(trajectory, nll=marginal_nll(trajectory, log_weights))

    def _logits(self, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Log-odds of the modes, [copies * batch, modes]."""
        pooled = self.sites[0].pool(activation.detach(), trajectory.real)
        logits: Tensor = self.router(pooled.to(self.router.bias.dtype))
        return trajectory.every_copy(logits)

    def _multiplier(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """What the modes in ``trajectory.context``, a distribution per row, keep of a site."""
        members, keep = self.get_buffer(f"masks{site}"), 1 - self.options.rate

        def drawn() -> Tensor:
            assert trajectory.context is not None
            mask = trajectory.context @ members
            if keep == 1:
                return mask
            noise, rows, units = trajectory.noise, trajectory.batch, members.shape[-1]
            return trajectory.per_example(mask) * policy.bernoulli(
                noise, keep, rows, units, activation
            )

        mask = trajectory.mask(site, drawn)
        return scaled(mask, self.options.rescale, keep * members.mean()).to(activation.dtype)


def _one(probabilities: Tensor, trajectory: Trajectory) -> Tensor:
    """Draw one mode per row of probabilities: 1 for it and 0 for the others, [rows, modes]."""
    uniform = trajectory.noise.uniform(trajectory.batch, 1, probabilities)
    above = uniform >= probabilities.cumsum(-1)[:, :-1]
    mode = above.sum(-1, keepdim=True)
    numbers = torch.arange(probabilities.shape[-1], device=mode.device)
    return (mode == numbers).to(probabilities.dtype)
