"""MC dropout (Gal & Ghahramani 2016): random masks with a fixed rate, also in prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from gflowout.core import checks, policy
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
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import check_bound, keep_rate


@dataclass(frozen=True, repr=False)
class MCDropoutOptions(Options):
    """Options of MC dropout.

    Attributes:
        rate: Probability of dropping a unit. ``None``: that of the ``nn.Dropout`` that the site
            replaces, and 0.1 where there was none; 0.5 in ``preset="paper"``. Units with a keep
            rate of their own have that. ``keep`` sets it, too: 1 - rate.
        rescale: ``"inverse"`` divides kept units by the keep rate; ``"kept"`` by the fraction
            that was kept; ``"none"`` leaves them.
        bound: ``"mean"`` averages the log-likelihoods of the draws in training; ``"marginal"``
            takes the log of their mean likelihood, for labels with many parts.
        draws: Masks per example in one step.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.MC(keep=0.8) == gfo.MC(rate=0.2)
        True
    """

    rate: float | None = None
    rescale: str = "inverse"
    bound: str = "mean"
    draws: int = 1

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "MC"
    KEEP: ClassVar[bool] = True
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"rate": 0.5}}

    def __post_init__(self) -> None:
        """Check the values."""
        if self.rate is not None:
            checks.number("rate", self.rate, low=0, high=1, open_high=True)
        checks.choice("rescale", self.rescale, ["inverse", "kept", "none"])
        check_bound(self)

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """The drop rate is what is not kept."""
        return {"rate": dropping(keep)}


class MCDropout(Method):
    """Every unit is dropped independently with the same rate, anew for each example and draw.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(
        ...     net, "mc", ["input"], likelihood=gfo.Categorical(2), example=(x,), rate=0.75
        ... )
        >>> masks = model.predict(x, samples=1000, return_masks=True).masks[0]
        >>> 0.2 < masks.mean().item() < 0.3
        True
    """

    name = "mc"
    Options = MCDropoutOptions

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw a mask per example."""
        place, rate = self.sites[site], self.options.rate
        keep: float | Tensor = keep_rate(place) if rate is None else 1 - float(rate)
        if place.keep is not None:
            keep = activation.new_tensor(place.keep)

        def drawn() -> Tensor:
            noise, rows = trajectory.noise, trajectory.batch
            if site == 0:
                noise.reserve(rows, [other.units for other in self.sites], activation)
            mask = policy.bernoulli(noise, keep, rows, place.units, activation)
            return mask.to(activation.dtype)

        mask, expected = trajectory.mask(site, drawn), trajectory.noise.expected
        return scaled(mask, self.options.rescale, keep, expected)

    def step(self, score: Score) -> Losses:
        """One pass; the loss is the negative log-likelihood, or that of the mean over draws."""
        trajectory = score(self.draw, copies=self.options.draws)
        nll = marginal_nll(trajectory) if self.options.bound == "marginal" else None
        return likelihood_losses(trajectory, nll=nll)
