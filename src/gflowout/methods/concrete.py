r"""Concrete dropout (Gal, Hron & Kendall 2017): the drop rates are learned by gradient descent.

In training a mask is relaxed: with uniform u and keep rate :math:`\pi = 1 - p`,

.. math:: z = \mathrm{sigmoid}\big((\mathrm{logit}\, \pi - \mathrm{logit}\, u) / t\big),

which has a gradient in the rate and becomes the hard mask 1[u < keep] as t goes to 0. Units are
multiplied by z over the keep rate. The loss is the negative log-likelihood plus the KL divergence
from the prior over N training examples (equations 1 to 4 of the paper),

.. math:: \frac{1}{N} \sum_l \Big[ \frac{\ell^2}{2} \sum_k \frac{\|w_{lk}\|^2}{1 - p_{lk}}
          - c \sum_k H(p_{lk}) \Big],

with w the weights that read unit k (of a network with inverse scaling: 1 - p times the paper's), H
the entropy of a Bernoulli variable and c = 1 the paper's scale. Prediction uses hard masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks, policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses
from gflowout.core.options import dropping
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import SiteNumbers, check_sizes, keep_rate


@dataclass(frozen=True, repr=False)
class ConcreteDropoutOptions(Options):
    """Options of concrete dropout.

    Attributes:
        rate: Drop rate that every unit starts with. ``None``: that of the ``nn.Dropout`` that the
            site replaces, and 0.1 where there was none. ``keep`` sets it, too: 1 - rate.
        per_unit: Learn a rate per unit instead of one per site.
        relaxation: Temperature t of the relaxed masks in training.
        length_scale: Of the Gaussian prior over weights: their squares count
            ``length_scale**2 / (2 * train_size)``, over the keep rate. 0 leaves them out.
        dropout_regularizer: Scale c of the entropy term; 1 is the KL divergence.
        train_size: Number of training examples, N.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Concrete(keep=0.8, per_unit=True)
        Concrete(rate=0.2, per_unit=True)
    """

    rate: float | None = None
    per_unit: bool = False
    relaxation: float = 0.1
    length_scale: float = 1e-2
    dropout_regularizer: float = 1.0
    train_size: int | None = None

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Concrete"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"rate", "per_unit"})

    def __post_init__(self) -> None:
        """Check the values."""
        if self.rate is not None:
            checks.probability("rate", self.rate)
        checks.boolean("per_unit", self.per_unit)
        checks.number("relaxation", self.relaxation, low=0, open_low=True)
        checks.number("length_scale", self.length_scale, low=0)
        checks.number("dropout_regularizer", self.dropout_regularizer, low=0)
        check_sizes(self)

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """The drop rate is what is not kept."""
        return {"rate": dropping(keep)}


class ConcreteDropout(Method):
    """Bernoulli masks, anew for each example and draw, with learned rates.

    The weights that read a site are those of the next linear or convolutional layer of its size
    (``Site.consumer``); without one the site has no weight term.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(
        ...     net, "concrete", ["input"], likelihood=gfo.Categorical(2), example=(x,),
        ...     rate=0.25, train_size=100,
        ... )
        >>> model.method.rate(0)  # where it starts; training moves it
        tensor([0.2500], grad_fn=<...>)
    """

    name = "concrete"
    Options = ConcreteDropoutOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: ConcreteDropoutOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        keep = None if options.rate is None else 1 - options.rate
        starts = [policy.logit(keep_rate(site, keep)) for site in sites]
        self.keep_logits = SiteNumbers(sites, starts, options.per_unit)

    def rate(self, site: int) -> Tensor:
        """Learned drop rate of a site, [1], or of its units, [units]."""
        return self.keep_logits.split(torch.sigmoid(-self.keep_logits()))[site]

    def draw_training(
        self,
        site: int,
        activation: Tensor,
        trajectory: Trajectory,
        logits: tuple[Tensor, ...],
        inverse_keep: tuple[Tensor, ...],
    ) -> Tensor:
        """Draw a relaxed mask per example."""

        def draw() -> Tensor:
            uniform = self._uniform(site, activation, trajectory)
            return relaxed(logits[site], uniform, self.options.relaxation)

        mask = trajectory.mask(site, draw)
        return (mask * inverse_keep[site]).to(activation.dtype)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw a hard mask per example."""
        logits = self.keep_logits.split(self.keep_logits())[site]

        def draw() -> Tensor:
            rows, units = trajectory.batch, self.sites[site].units
            choose = policy.drawing(trajectory.noise, rows, units, activation)
            return choose(logits, slice(None))

        mask = trajectory.mask(site, draw)
        return (mask / torch.sigmoid(logits)).to(activation.dtype)

    def keep_probabilities(self) -> list[Tensor]:
        """The learned rates."""
        numbers = enumerate(self.sites)
        return [(1 - self.rate(index)).detach().expand(site.units) for index, site in numbers]

    def step(self, score: Score) -> Losses:
        """One pass; likelihood and regularisers both reach the rates and the backbone.

        Masks are relaxed whether the model is in train or eval mode. Given masks have no gradient:
        the likelihood then reaches the rates by the scaling of kept units only.
        """
        options: ConcreteDropoutOptions = self.options
        logits, split = self.keep_logits(), self.keep_logits.split
        keep = torch.sigmoid(logits)
        inverse_keep = split(keep.reciprocal())
        draw = partial(self.draw_training, logits=split(logits), inverse_keep=inverse_keep)
        trajectory = score(draw)
        # Sums of products, not matrix products, which autocast would round.
        uncertain = (self.keep_logits.units * entropy(logits, keep)).sum()
        divergence = -options.dropout_regularizer * uncertain
        for site, inverse in enumerate(inverse_keep):
            weight = score.weight(site)
            if weight is not None and options.length_scale > 0:
                squares = weight_term(weight, inverse)
                divergence = divergence + options.length_scale**2 / 2 * squares
        regular = options.dropout_regularizer > 0 or options.length_scale > 0
        size = self.examples_in_training(trajectory.batch) if regular else 1
        return likelihood_losses(trajectory, divergence / size)

    def _uniform(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        return trajectory.noise.uniform(trajectory.batch, self.sites[site].units, activation)


def relaxed(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Masks between 0 and 1 that are differentiable in the log-odds of keeping a unit.

    Examples:
        >>> relaxed(torch.zeros(2), torch.tensor([0.4, 0.6]), 0.1)
        tensor([0.9830, 0.0170])
    """
    # Scaling the noise apart from the logits keeps it out of the backward pass.
    noise = torch.logit(uniform).div_(temperature)
    return torch.sigmoid(logits / temperature - noise)


def entropy(logits: Tensor, probability: Tensor) -> Tensor:
    """Entropy of Bernoulli variables, in nats, from their log-odds and their sigmoid.

    Examples:
        >>> entropy(torch.zeros(1), torch.tensor([0.5]))
        tensor([0.6931])
    """
    return F.softplus(logits) - logits * probability


def weight_term(weight: Tensor, inverse_keep: Tensor) -> Tensor:
    """Squared weights [units, ...] over the keep rate of the unit that they read, summed.

    ``inverse_keep`` is one over the keep rate, [units] or [1].

    Examples:
        >>> weight_term(torch.ones(2, 3), torch.tensor([2.0]))
        tensor(12.)
    """
    if len(inverse_keep) == 1:
        return weight.square().sum() * inverse_keep.squeeze()
    return (weight.square().flatten(1).sum(1) * inverse_keep).sum()
