"""MC dropout (Gal & Ghahramani 2016): random masks with a fixed rate, also in prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gflowout.core import checks, policy
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses, scaled
from gflowout.core.trajectory import Trajectory

DEFAULT_RATE = 0.5


@dataclass(frozen=True)
class MCDropoutOptions(Options):
    """Options of MC dropout.

    Attributes:
        rate: Probability of dropping a unit. ``None``: that of the ``nn.Dropout`` that the site
            replaces, and 0.5 where there was none. Units with a keep rate of their own have that.
        rescale: ``"inverse"`` divides kept units by the keep rate; ``"kept"`` by the fraction
            that was kept; ``"none"`` leaves them.
    """

    rate: float | None = None
    rescale: str = "inverse"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.rate is not None:
            checks.number("rate", self.rate, low=0, high=1, open_high=True)
        checks.choice("rescale", self.rescale, ["inverse", "kept", "none"])


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
        if rate is None:  # a rate of 1 would leave nothing to rescale
            rate = DEFAULT_RATE if place.rate is None or place.rate >= 1 else place.rate
        keep: float | Tensor = 1 - float(rate)
        if place.keep is not None:
            keep = activation.new_tensor(place.keep)

        def drawn() -> Tensor:
            uniform = trajectory.noise.uniform(trajectory.batch, place.units, activation)
            return policy.below(uniform, keep).to(activation.dtype)

        return scaled(trajectory.mask(site, drawn), self.options.rescale, keep)

    def step(self, score: Score) -> Losses:
        """One pass; the loss is the negative log-likelihood."""
        return likelihood_losses(score(self.draw))
