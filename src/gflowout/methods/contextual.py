r"""Contextual dropout (Fan et al. 2021): keep rates from the activation, learned by the ELBO.

At every site a small generator maps the pooled, detached activation to keep rates
:math:`\pi_l(x, z_{<l})`; labels are never seen, so the same generator draws the masks in training
and in prediction. The objective is the negative ELBO of each example, averaged over the batch,

.. math:: \mathbb{E}_{q(z \mid x)} \Big[ -\log p(y \mid x, z) + w \sum_l
          \mathrm{KL}\big(\mathrm{Bern}(\pi_l(x, z_{<l})) \,\|\, \mathrm{Bern}(\rho_l)\big) \Big],

with one learned keep rate :math:`\rho_l` per site as prior and ``kl_weight`` w. The backbone
follows the likelihood; no gradient of the generators reaches it. See :func:`arm` for theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import checks, generators, objectives, policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, marginal_nll, scaled
from gflowout.core.sites import Site
from gflowout.core.trajectory import Scored, Trajectory
from gflowout.methods._shared import Starts, check_bound

NARROWEST = 8
"""Least width of a generator's hidden layer."""


@dataclass(frozen=True, repr=False)
class ContextualDropoutOptions(Options):
    """Options of contextual dropout.

    The prior is learned, so only the likelihood speaks for noise: where it does nothing but harm,
    rates and prior go to 1 together.

    Attributes:
        prior_keep: Keep rate that generators and learned prior start from. ``None``: that of the
            ``nn.Dropout`` that the site replaces, and 0.9 where there was none; 0.5 in
            ``preset="paper"``. ``keep`` sets it, too.
        kl_weight: Weight of the KL term; 1 is the ELBO. To anneal, let it grow during training:
            ``model.set_options(kl_weight=min(1.0, step / 1000))``.
        family: ``"bernoulli"``, masks of 0 and 1 with the ARM estimator and two forward passes per
            training step; or ``"gaussian"``, factors of mean 1 and variance (1 - keep) / keep with
            the reparametrised gradient and one pass.
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        reduction: Units of a site per hidden unit of its generator.
        gain: Log-odds per unit of a generator's output. With the authors' 0.01
            (``preset="paper"``) rates hardly leave their start.
        bound: ``"mean"`` averages the log-likelihoods of the draws, as in the ELBO; ``"marginal"``
            takes the log of their mean likelihood, for labels with many parts, in one pass.
        draws: Masks per example in one step.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Contextual(keep=0.8, family="gaussian")
        Contextual(prior_keep=0.8, family='gaussian')
    """

    prior_keep: float | None = None
    kl_weight: float = 1.0
    family: str = "bernoulli"
    rescale: str = "none"
    reduction: int = 10
    gain: float = 1.0
    bound: str = "mean"
    draws: int = 1

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Contextual"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"prior_keep", "family", "reduction", "gain"})
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"prior_keep": 0.5, "gain": 0.01}}
    RENAMED: ClassVar[dict[str, str]] = {"noise": "family"}

    def __post_init__(self) -> None:
        """Check the values."""
        if self.prior_keep is not None:
            checks.probability("prior_keep", self.prior_keep)
        checks.number("kl_weight", self.kl_weight, low=0)
        checks.choice("family", self.family, list(FAMILIES))
        checks.choice("rescale", self.rescale, ["none", "kept"])
        checks.integer("reduction", self.reduction, low=1)
        checks.number("gain", self.gain, low=0, open_low=True)
        check_bound(self)
        if self.family == "gaussian" and self.rescale != "none":
            raise ValueError(
                f"rescale must be 'none' with family=\"gaussian\", whose factors have mean 1, got "
                f"{self.rescale!r}"
            )


class Bernoulli:
    """Masks of 0 and 1; logits are log-odds of keeping a unit."""

    @staticmethod
    def sample(logits: Tensor, random: Tensor) -> Tensor:
        """1 where the uniform number is below the keep rate; without gradient."""
        return policy.draw(logits, random)

    @staticmethod
    def mean(logits: Tensor) -> Tensor:
        """The keep rates."""
        return torch.sigmoid(logits.detach())

    @staticmethod
    def log_prob(mask: Tensor, logits: Tensor) -> Tensor:
        """Log-probability, summed over units."""
        logits = policy.single(logits)
        # policy.log_prob would spread the prior's single number over all units first.
        return (mask * logits).sum(-1) - F.softplus(logits).expand_as(mask).sum(-1)

    @staticmethod
    def kl(logits: Tensor, prior: Tensor) -> Tensor:
        """KL divergence from the prior's log-odds, summed over units.

        Examples:
            >>> Bernoulli.kl(torch.tensor([0.0, 0.0]), torch.tensor(0.0))
            tensor(0.)
        """
        return policy.kl(logits, prior)


class Gaussian:
    """Factors of mean 1 with the variance of inverted dropout, (1 - keep) / keep = exp(-logit)."""

    @staticmethod
    def sample(logits: Tensor, random: Tensor) -> Tensor:
        """A differentiable function of the logits, which may be those of one copy of the batch."""
        deviation: Tensor = (-logits / 2).exp()
        copies = random.to(logits.dtype).reshape(-1, *logits.shape)
        return (1 + deviation * copies).flatten(0, 1)

    @staticmethod
    def mean(logits: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(logits)

    @staticmethod
    def log_prob(mask: Tensor, logits: Tensor) -> Tensor:
        """Log-density, summed over units."""
        logits = policy.single(logits)
        twice = logits - (mask - 1).square() * logits.exp() - math.log(2 * math.pi)
        return 0.5 * twice.sum(-1)

    @staticmethod
    def kl(logits: Tensor, prior: Tensor) -> Tensor:
        """KL divergence from the prior's noise, summed over units.

        Examples:
            >>> Gaussian.kl(torch.tensor([0.5]), torch.tensor(0.5))
            tensor(0.)
        """
        ratio = prior - logits
        return 0.5 * (ratio.expm1() - ratio).sum(-1)


FAMILIES: dict[str, type[Bernoulli | Gaussian]] = {"bernoulli": Bernoulli, "gaussian": Gaussian}


@dataclass
class _Record:
    """What one pass leaves behind, site after site: random numbers, logits and KL divergences.

    Draws that cannot be folded take several passes, one after the other.
    """

    antithetic: _Record | None = None
    random: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    log_q: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)


class ContextualDropout(Method):
    """Masks whose keep rates depend on the example, with a learned prior rate per site.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
        >>> likelihood = gfo.Categorical(2)
        >>> model = gfo.wrap(net, "contextual", ["input"], likelihood=likelihood, example=(x,))
        >>> losses = model(x, y=torch.tensor([0, 1, 0]))
        >>> losses.masks[0].shape, bool(losses.prior > -1)
        (torch.Size([3, 4]), True)
    """

    name = "contextual"
    Options = ContextualDropoutOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: ContextualDropoutOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        self.starts = Starts(sites, options.prior_keep)
        self.noise = FAMILIES[options.family]
        self.generators = nn.ModuleList(_generator(site.units, options.reduction) for site in sites)
        self.prior = nn.Parameter(torch.zeros(len(sites)))

    def draw_training(
        self, site: int, activation: Tensor, trajectory: Trajectory, record: _Record
    ) -> Tensor:
        """Draw a mask and record what the losses need.

        The second pass takes the mirrored random numbers of the first, 1 - u, with logits of its
        own: its earlier masks, and so its activations, are others.
        """
        with torch.set_grad_enabled(record.antithetic is not None or torch.is_grad_enabled()):
            logits = trajectory.every_copy(self._logits(site, activation, trajectory.real))
        prior = self.prior_logits(site)
        record.logits.append(logits)
        record.kl.append(self.noise.kl(logits, prior))

        def drawn() -> Tensor:
            if record.antithetic is None:
                random = self._random(site, activation, trajectory)
            else:
                random = 1 - record.antithetic.random[len(record.random)]
            record.random.append(random)
            return self.noise.sample(logits, random)

        mask = trajectory.mask(site, drawn)
        if record.antithetic is None:
            scored = torch.is_grad_enabled() and self.options.bound == "marginal"
            with torch.set_grad_enabled(scored):
                log_q = self.noise.log_prob(mask.detach(), logits)
            with torch.no_grad():
                trajectory.add(log_q.detach(), self.noise.log_prob(mask, prior))
            record.log_q.append(log_q)
        return scaled(mask, self.options.rescale).to(activation.dtype)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw from the same generator as in training."""

        def draw() -> Tensor:
            logits = self._logits(site, activation, trajectory.real)
            if trajectory.noise.expected:
                return self.noise.mean(logits)
            return self.noise.sample(logits, self._random(site, activation, trajectory))

        mask, expected = trajectory.mask(site, draw), trajectory.noise.expected
        return scaled(mask, self.options.rescale, expected=expected).to(activation.dtype)

    def step(self, score: Score) -> Losses:
        """Two passes, the second without gradient for the backbone.

        It takes one with Gaussian noise, and one with the marginal bound.
        ``nll`` and ``prior`` have the values of the masks that were drawn, so ``total`` is a sample
        of the negative ELBO (with ``kl_weight``); the gradient of each part is an unbiased estimate
        of that of its expectation over masks. Masks that are given, or a pass without gradient,
        need no second pass: the likelihood then has nothing to tell the generators.
        """
        record = _Record()
        draw = partial(self.draw_training, record=record)
        trajectory = score(draw, copies=self.options.draws)
        if self.options.bound == "marginal":
            nll, kl = self._marginal(trajectory, record)
        else:
            nll, kl = self._elbo(trajectory, record, score)
        prior = self.options.kl_weight * kl
        log_reward = trajectory.log_p + trajectory.log_likelihood
        return Losses(
            total=nll + prior,
            nll=nll,
            tb=nll.new_zeros(()),
            prior=prior,
            masks=trajectory.masks_by_draw(),
            log_q=trajectory.by_draw(trajectory.log_q),
            log_reward=trajectory.by_draw(log_reward.detach()),
            log_p=trajectory.by_draw(trajectory.log_p.detach()),
            log_likelihood=trajectory.by_draw(trajectory.log_likelihood.detach()),
            kl=kl.detach(),
        )

    def _elbo(self, trajectory: Scored, record: _Record, score: Score) -> tuple[Tensor, Tensor]:
        """Mean NLL and KL divergence, with gradients from a second pass by :func:`arm`."""
        nll, kl = -trajectory.log_likelihood, self._by_site(record.kl)
        nll_loss, kl_loss = nll.mean(), torch.stack(kl).sum(0).mean()
        if not self._estimates(record):
            return nll_loss, kl_loss
        mirrored = _Record(antithetic=record)
        with torch.no_grad():
            draw = partial(self.draw_training, record=mirrored)
            pseudo = score(draw, copies=self.options.draws)
        costs = _costs(nll, kl)
        pseudo_costs = _costs(-pseudo.log_likelihood, self._by_site(mirrored.kl))
        parts = map(self._by_site, (record.random, record.logits, mirrored.logits))
        for of_site in zip(*parts, costs, pseudo_costs, strict=True):
            for_nll, for_kl = arm(*of_site).mean(-1)
            nll_loss, kl_loss = nll_loss + for_nll, kl_loss + for_kl
        return nll_loss, kl_loss

    def _marginal(self, trajectory: Scored, record: _Record) -> tuple[Tensor, Tensor]:
        """NLL of the mean over draws, and KL divergence, with gradients from the draws alone."""
        kl = self._by_site(record.kl)
        kl_loss = torch.stack(kl).sum(0).mean()
        if not self._estimates(record):
            return marginal_nll(trajectory), kl_loss
        log_q = torch.stack(self._by_site(record.log_q))
        log_q = log_q.reshape(len(self.sites), trajectory.copies, -1)
        later = torch.stack([cost[1] for cost in _costs(-trajectory.log_likelihood, kl)])
        nll = marginal_nll(trajectory, objectives.own_weights(log_q.sum(0)).flatten())
        return nll, kl_loss + objectives.leave_one_out(log_q, later.reshape(log_q.shape))

    def _estimates(self, record: _Record) -> bool:
        """Whether the generators need an estimate of their gradient."""
        drawn = bool(record.random) and torch.is_grad_enabled()
        return drawn and self.options.family == "bernoulli"

    def _by_site(self, values: list[Tensor]) -> list[Tensor]:
        """Join values of all passes: one [draws * batch, ...] per site."""
        sites = len(self.sites)
        if len(values) == sites:
            return values
        return [torch.cat(values[site::sites]) for site in range(sites)]

    def prior_logits(self, site: int) -> Tensor:
        """Log-odds of the prior's keep rate at a site, or of every unit's."""
        return self.prior[site] * generators.DIRECT_GAIN + self.starts.at(site)

    def _logits(self, site: int, activation: Tensor, real: Tensor | None = None) -> Tensor:
        pooled = self.sites[site].pool(activation.detach(), real).to(self.prior.dtype)
        logits: Tensor = self.starts.at(site) + self.options.gain * self.generators[site](pooled)
        return logits

    def _random(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        noise = trajectory.noise
        draw = noise.uniform if self.noise is Bernoulli else noise.normal
        return draw(trajectory.batch, self.sites[site].units, activation)


def _costs(nll: Tensor, kl: list[Tensor]) -> list[Tensor]:
    """What depends on each site's mask, [2, batch] per site: the NLL, and the KL of later sites.

    Through the activations, a mask also moves the keep rates of the sites that follow.
    """
    later = torch.zeros_like(nll)
    costs = []
    for of_site in reversed(kl):
        costs.append(torch.stack([nll.detach(), later]))
        later = later + of_site.detach()
    return costs[::-1]


def arm(
    uniform: Tensor, logits: Tensor, pseudo_logits: Tensor, cost: Tensor, pseudo_cost: Tensor
) -> Tensor:
    r"""Augment-REINFORCE-merge: zeros with the gradient of an expected cost for one site's logits.

    The cost f is that of the masks 1[u < keep], the pseudo cost f' that of 1[u > 1 - keep], all
    sites flipped together. The gradient of the result is

    .. math:: (u - \tfrac12) \big[ (f' - b) \nabla \phi' - (f - b) \nabla \phi \big],

    which for a site whose logits do not depend on earlier masks, :math:`\phi' = \phi`, is the
    estimator (f' - f)(u - 1/2) of Yin & Zhou (2019). Later sites see other activations in the
    second pass; each cost must then go with the logits of its own pass. Half of the estimator is
    that of the first pass, :math:`(1 - 2u) f \nabla \phi`, unbiased given the earlier masks, and
    half is the same at 1 - u. Taking the first pass's logits for both is biased. The baseline b,
    the mean cost of the batch's other examples, is independent of the example's u and changes no
    expectation. Random numbers and logits are [batch, units], costs and the result [..., batch].

    Examples:
        >>> logits = torch.zeros(1, 2, requires_grad=True)
        >>> uniform = torch.tensor([[0.25, 1.0]])
        >>> arm(uniform, logits, logits, torch.tensor([1.0]), torch.tensor([3.0])).backward()
        >>> logits.grad
        tensor([[-0.5000,  1.0000]])
    """
    cost, pseudo_cost = cost.detach(), pseudo_cost.detach()
    baseline = _others_mean((cost + pseudo_cost) / 2)
    centred = uniform - 0.5
    surrogate = (pseudo_cost - baseline) * (centred * pseudo_logits).sum(-1)
    surrogate = surrogate - (cost - baseline) * (centred * logits).sum(-1)
    return surrogate - surrogate.detach()


def _others_mean(values: Tensor) -> Tensor:
    """Mean of all values but one's own along the last axis; 0 where there are no others."""
    return (values.sum(-1, keepdim=True) - values) / max(1, values.shape[-1] - 1)


def _generator(units: int, reduction: int) -> nn.Module:
    """Two layers; the last starts at 0, so that every rate starts where the prior does."""
    width = max(NARROWEST, units // reduction)
    last = nn.Linear(width, units)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    norm = nn.LayerNorm(width, elementwise_affine=False)
    return nn.Sequential(nn.Linear(units, width), nn.LeakyReLU(), norm, last)
