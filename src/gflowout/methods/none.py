"""No masks at all: the backbone as it is, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses
from gflowout.core.trajectory import Trajectory


@dataclass(frozen=True, repr=False)
class NoDropoutOptions(Options):
    """There are none.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.NoDropout()
        NoDropout()
    """

    ALIAS: ClassVar[str] = "NoDropout"


class NoDropout(Method):
    """Every unit is kept, in training and in prediction.

    ``nn.Dropout`` layers that are sites are switched off; others behave as in any module. The only
    method that needs no site.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(net, "none", ["input"], likelihood=gfo.Categorical(2), example=(x,))
        >>> pred = model.predict(x)
        >>> torch.allclose(pred.samples, pred.samples[:1])
        True
    """

    name = "none"
    keep_rates = False
    Options = NoDropoutOptions
    deterministic = True

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Keep every unit."""
        return trajectory.mask(site, lambda: activation.new_ones(1, self.sites[site].units))

    def step(self, score: Score) -> Losses:
        """One pass; the loss is the negative log-likelihood."""
        return likelihood_losses(score(self.draw))
