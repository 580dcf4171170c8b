r"""Stochastic gates (Yamada, Lindenbaum, Negahban & Kluger 2020): units that nothing needs close.

Every unit has a gate between 0 and 1 with a learned mean and fixed noise,

.. math:: z = \min(1, \max(0, \mu + \sigma \epsilon)), \qquad \epsilon \sim N(0, 1),

which is exactly 0 with some probability and still has a gradient in :math:`\mu`. The loss is the
mean negative log-likelihood of an example plus the expected number of gates that are not closed,

.. math:: \lambda \sum_k P(z_k > 0) = \lambda \sum_k \Phi(\mu_k / \sigma),

with :math:`\Phi` the distribution function of the standard normal. Nothing is divided by the number
of training examples, N: an open gate must gain :math:`\lambda` nats per example, and in the log
posterior of all of them it costs as much as a prior with log-odds :math:`-N \lambda` of keeping it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import SiteNumbers


@dataclass(frozen=True, repr=False)
class StochasticGatesOptions(Options):
    """Options of stochastic gates.

    Attributes:
        start: Mean of every gate at the start. Units with a keep rate of their own start where
            that is the probability that their gate is not closed; ``keep`` does this for all.
        noise: Standard deviation sigma of the noise.
        strength: What an open gate costs, lambda: nats per example. To select few inputs, take
            more, 0.01 say.
        shared: Draw one set of gates for the whole batch instead of one per example.
        predict: Gates of a prediction: ``"draw"`` draws them as in training; ``"mean"`` sets the
            noise to 0, so that all samples are the same.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Gates(keep=0.5, strength=0.01)
        Gates(start=0.0, strength=0.01)
    """

    start: float = 0.5
    noise: float = 0.5
    strength: float = 0.001
    shared: bool = False
    predict: str = "draw"

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Gates"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"start", "noise"})
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"strength": 0.01, "shared": True, "predict": "mean"}
    }

    def __post_init__(self) -> None:
        """Check the values."""
        checks.number("start", self.start)
        checks.number("noise", self.noise, low=0, open_low=True)
        checks.number("strength", self.strength, low=0)
        checks.boolean("shared", self.shared)
        checks.choice("predict", self.predict, ["draw", "mean"])

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """The mean at which this is the probability that a gate is not closed."""
        normal = NormalDist(0, given.get("noise", cls.noise))
        return {"start": normal.inv_cdf(checks.probability("keep", keep))}


class StochasticGates(Method):
    """Gates of a learned mean, by default drawn anew for each example and draw.

    Masks are the gates themselves: numbers from 0 to 1.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(net, "gates", ["input"], likelihood=gfo.Categorical(2), example=(x,))
        >>> model.method.open_probability(0)  # Phi(1) at the start
        tensor([0.8413, 0.8413, 0.8413, 0.8413], grad_fn=<...>)
    """

    name = "gates"
    Options = StochasticGatesOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: StochasticGatesOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        normal = NormalDist(0, options.noise)
        self.means = SiteNumbers(sites, options.start, per_unit=True, from_keep=normal.inv_cdf)

    @property
    def shares_masks(self) -> bool:
        """Whether gates are drawn for the whole batch."""
        return bool(self.options.shared)

    def mean(self, site: int) -> Tensor:
        """Learned mean of a site's gates before they are cut off at 0 and 1, [units]."""
        return self.means.split(self.means())[site]

    def open_probability(self, site: int) -> Tensor:
        """Probability that a gate of a site is not closed, [units]."""
        return open_probability(self.mean(site), self.options.noise)

    def draw_training(
        self, site: int, activation: Tensor, trajectory: Trajectory, means: tuple[Tensor, ...]
    ) -> Tensor:
        """Draw gates, differentiable in their means."""
        mask = trajectory.mask(site, lambda: self._drawn(means[site], activation, trajectory))
        return mask.to(activation.dtype)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw gates as in training, or take those without noise."""
        mask = trajectory.mask(site, lambda: self._predicted(site, activation, trajectory))
        return mask.to(activation.dtype)

    def draw_ahead(self, trajectory: Trajectory) -> list[Tensor] | None:
        """The gates of all sites, where examples share them."""
        if self.options.predict == "draw" and not self.options.shared:
            return None
        like = self.means.moved
        return [self._predicted(site, like, trajectory) for site in range(len(self.sites))]

    def keep_probabilities(self) -> list[Tensor]:
        """Probabilities that gates are not closed."""
        return [self.open_probability(site).detach() for site in range(len(self.sites))]

    def fixed_masks(self, threshold: float) -> list[Tensor]:
        """Gates without noise; closed where :meth:`keep_probabilities` are below the threshold."""
        return [
            torch.where(keep >= threshold, self.mean(site).detach().clamp(0, 1), 0.0)
            for site, keep in enumerate(self.keep_probabilities())
        ]

    def step(self, score: Score) -> Losses:
        """One pass; likelihood and penalty both reach the means.

        Gates are drawn whether the model is in train or eval mode. Given masks have no gradient:
        the penalty alone then reaches the means.
        """
        means = self.means()
        trajectory = score(partial(self.draw_training, means=self.means.split(means)))
        count = open_probability(means, self.options.noise).sum()
        return likelihood_losses(trajectory, self.options.strength * count)

    def _drawn(self, mean: Tensor, like: Tensor, trajectory: Trajectory) -> Tensor:
        rows = 1 if self.options.shared else trajectory.batch
        normal = trajectory.noise.normal(rows, len(mean), like)
        return gate(mean, self.options.noise, normal)

    def _predicted(self, site: int, like: Tensor, trajectory: Trajectory) -> Tensor:
        mean = self.mean(site)
        if trajectory.noise.expected and self.options.predict == "draw":
            return mean_gate(mean, self.options.noise).unsqueeze(0)
        if self.options.predict == "draw":
            return self._drawn(mean, like, trajectory)
        return mean.clamp(0, 1).expand(trajectory.copies, -1)


def gate(mean: Tensor, noise: float, normal: Tensor) -> Tensor:
    """Gates between 0 and 1 that are differentiable in their mean, unless they are cut off.

    ``mean`` is [units], ``normal`` standard normal numbers, [rows, units].

    Examples:
        >>> gate(torch.tensor([0.5]), 0.5, torch.tensor([[-2.0], [0.5], [2.0]])).flatten()
        tensor([0.0000, 0.7500, 1.0000])
    """
    return (mean + noise * normal).clamp(0, 1)


def mean_gate(mean: Tensor, noise: float) -> Tensor:
    """Mean of gates that are cut off at 0 and 1.

    Examples:
        >>> mean_gate(torch.tensor([-9.0, 0.5, 9.0]), 0.5)
        tensor([0.0000, 0.5000, 1.0000])
    """

    def above(bound: float) -> Tensor:  # mean of what a normal number exceeds the bound by
        far = (mean - bound) / noise
        density = torch.exp(-far.square() / 2) / math.sqrt(2 * math.pi)
        excess: Tensor = noise * (far * torch.special.ndtr(far) + density)
        return excess

    return above(0.0) - above(1.0)


def open_probability(mean: Tensor, noise: float) -> Tensor:
    """Probability that gates are above 0: that of a normal number below mean over noise.

    Examples:
        >>> open_probability(torch.tensor([-0.5, 0.0, 0.5]), 0.5)
        tensor([0.1587, 0.5000, 0.8413])
    """
    probability: Tensor = torch.special.ndtr(mean / noise)
    return probability
