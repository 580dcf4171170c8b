"""GFlowOut: masks that depend on the example, learned by trajectory balance (section 3.2).

At every site a posterior q(z | x, y, earlier masks) and a prior p(z | x, earlier masks) look at
the pooled activation that the mask will multiply. q draws the masks in training and is fitted to
p(y | x, z) p(z | x); p is fitted to q and draws the masks in prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gflowout.core import checks, credit, generators, objectives, policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import (
    Losses,
    Method,
    Options,
    Score,
    balance_losses,
    marginal_nll,
    scaled,
)
from gflowout.core.sites import Site
from gflowout.core.trajectory import Scored, Trajectory
from gflowout.methods._shared import Starts, check_bound, check_policy, history_of, history_sizes

SUBTB_DECAY = 0.9
"""Weight of a part of a trajectory relative to one that is a site shorter."""

BALANCE: dict[str, Any] = {
    "objective": "tb", "posterior": "own", "prior_fit": "draws", "anchor": 0.0,
}  # fmt: skip
"""How the paper learns posterior and prior, from masks that explore."""
PAPER: dict[str, Any] = {**BALANCE, "temperature": 2.0, "epsilon": 0.1}


@dataclass(frozen=True, repr=False)
class GFlowOutOptions(Options):
    """Options of GFlowOut; the defaults are those that learn, ``preset="paper"`` has the paper's.

    Attributes:
        objective: What trains the posterior. ``"tb"``: trajectory balance, the paper. ``"subtb"``
            and ``"db"``: sub-trajectory and detailed balance, with a learned flow at every site.
            ``"credit"``: the gradient that trajectory balance has on-policy, that of the ELBO, with
            credit per unit from the backward pass of the likelihood: biased where the
            log-likelihood is far from quadratic in a unit, but hardly noisy. ``"control"``: the
            same gradient, unbiased, with these credits as control variates; needs ``draws`` of at
            least 2, and runs backward twice through the layers behind the first site.
        posterior: ``"own"``: a network of its own, the paper; or ``"correction"``: what it adds to
            the logits of the prior.
        prior_fit: What fits the prior: ``"draws"``, the log-probability of the masks that were
            drawn, tempered or random ones included, as in the paper; or ``"kl"``, the closed-form
            KL(q || p) of the posterior itself.
        anchor: Weight of KL(p || start), in nats per nat: what keeps a learned prior near the keep
            rate that it started from.
        temperature: Divides the posterior's logits, around the prior's, when drawing in training.
        epsilon: Probability, per example and site, of a random mask from the start of the prior.
        beta: Scale of the log-likelihood in the reward.
        prior_keep: Keep rate that the learned prior and posterior start from, and the centre of
            ``temperature`` and ``epsilon``. ``None``: that of the ``nn.Dropout`` that the site
            replaces, and 0.9 where there was none; 0.5 in ``preset="paper"``. ``keep`` sets it,
            too.
        sparsity: What the reward charges for every unit that is kept, in nats. The prior is learned
            and follows the posterior, so this alone keeps masks small; see ``preset="features"``.
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        hidden: Widths of the mask generators.
        log_z: Of the balance objectives: ``"learned"``, a small network of (x, y); or ``"batch"``,
            the mean over draws, with ``"tb"`` only. ``"credit"`` and ``"control"`` need none.
        draws: Masks scored per example in one step.
        bound: What trains the backbone: ``"mean"``, the mean log-likelihood over draws from the
            posterior; or ``"marginal"``, the log of the mean likelihood, each draw weighted by
            prior over posterior: a bound of log p(y | x), for labels with many parts. It trains
            the prior, too, in place of ``prior_fit``.
        prior: ``"learned"``, or ``"fixed"`` at independent units with the keep rate that masks
            start from. The posterior is learned either way.
        blocks: Autoregressive blocks inside a site, at most one per unit; 1 is the paper.
        history: What generators see of earlier sites: ``"all"`` masks, as in the paper, or a
            learned ``"summary"`` of fixed size, whose cost is linear in the number of sites.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.GFlowOut(keep=0.8, beta=0.5)
        GFlowOut(beta=0.5, prior_keep=0.8)
    """

    objective: str = "credit"
    posterior: str = "correction"
    prior_fit: str = "kl"
    anchor: float = 1.0
    temperature: float = 1.0
    epsilon: float = 0.0
    beta: float = 1.0
    prior_keep: float | None = None
    sparsity: float = 0.0
    rescale: str = "none"
    hidden: tuple[int, ...] = (32, 32)
    log_z: str = "learned"
    draws: int = 1
    bound: str = "mean"
    prior: str = "learned"
    blocks: int = 1
    history: str = "all"

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "GFlowOut"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset(
        {"objective", "posterior", "prior_keep", "hidden", "log_z", "prior", "blocks", "history"}
    )
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {**PAPER, "prior_keep": 0.5},
        "features": {
            **PAPER, "prior_keep": 0.5, "beta": 20.0, "sparsity": 1.0, "log_z": "batch", "draws": 4,
        },
    }  # fmt: skip

    BEFORE: ClassVar[dict[str, Any]] = BALANCE

    def __post_init__(self) -> None:
        """Check the values."""
        check_policy(self)
        check_bound(self)
        checks.choice("prior", self.prior, ["learned", "fixed"])
        checks.choice("objective", self.objective, ["tb", "subtb", "db", "credit", "control"])
        checks.choice("posterior", self.posterior, ["own", "correction"])
        checks.choice("prior_fit", self.prior_fit, ["draws", "kl"])
        checks.number("anchor", self.anchor, low=0)
        checks.number("sparsity", self.sparsity, low=0)
        if self.sparsity and (self.bound, self.prior) != ("mean", "learned"):
            raise ValueError(
                "sparsity must be 0 unless the prior follows the posterior, as it does with "
                f'bound="mean" and prior="learned", got {self.sparsity}: lower prior_keep instead'
            )
        if self.objective in ("tb", "control") and self.draws < 2:
            if self.objective == "control":
                raise ValueError(
                    'objective="control" takes credits from the other draws of an example: draws '
                    f"must be an integer >= 2, got {self.draws}"
                )
            if self.log_z == "batch":
                raise ValueError(
                    'log_z="batch" averages over the draws of one example: draws must be an '
                    f"integer >= 2, got {self.draws}"
                )
        if self.objective in ("subtb", "db") and self.log_z == "batch":
            raise ValueError(
                f"objective={self.objective!r} learns a flow at every site: log_z must be "
                f'"learned", got {self.log_z!r}'
            )
        if self.objective == "control" and (self.temperature != 1 or self.epsilon):
            raise ValueError(
                'objective="control" is for masks drawn from the posterior itself: temperature '
                f"must be 1 and epsilon 0, got {self.temperature} and {self.epsilon}"
            )

    @property
    def balanced(self) -> bool:
        """Whether the posterior learns by balance, with a learned or estimated log Z."""
        return self.objective in ("tb", "subtb", "db")


class GFlowOut(Method):
    """Sample-dependent masks with a learned prior and a posterior that sees the label.

    ``context`` is the size of ``Trajectory.context``, which all generators see, too.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
        >>> likelihood = gfo.Categorical(2)
        >>> model = gfo.wrap(net, "gflowout", ["input"], likelihood=likelihood, example=(x,))
        >>> losses = model(x, y=torch.tensor([0, 1, 0]))
        >>> losses.log_q.shape, losses.masks[0].shape  # a posterior and a mask per example
        (torch.Size([3]), torch.Size([3, 4]))
    """

    name = "gflowout"
    Options = GFlowOutOptions
    binary_masks = True

    def __init__(
        self,
        sites: Sequence[Site],
        likelihood: Likelihood,
        options: GFlowOutOptions,
        context: int = 0,
    ) -> None:
        super().__init__(sites, likelihood, options)
        self.starts = Starts(sites, options.prior_keep)
        self.posterior, self.prior = nn.ModuleList(), nn.ModuleList()
        self.posterior_history = history_of(sites, options)
        self.prior_history = history_of(sites, options) if options.prior == "learned" else None
        sizes = history_sizes(sites, options)
        for index, (site, earlier) in enumerate(zip(sites, sizes, strict=True)):
            seen = [earlier, site.units, context]
            shape = (site.units, options.hidden, self.starts.at(index), options.blocks)
            seen_by_posterior = [*seen, likelihood.label_size]
            if options.posterior == "own":
                own: generators.MaskPolicy = generators.MaskPolicy(seen_by_posterior, *shape)
            else:
                own = generators.MaskCorrection(
                    seen_by_posterior, site.units, options.hidden, options.blocks
                )
            self.posterior.append(own)
            if options.prior == "learned":
                self.prior.append(generators.MaskPolicy(seen, *shape))
        if options.balanced and options.log_z == "learned":
            inputs = [sites[0].units, context, likelihood.label_size]
            self.log_z = generators.MaskGenerator(inputs, 1, options.hidden, start=0.0)
        if options.objective in ("subtb", "db"):  # of the states between
            self.log_flow = nn.ModuleList(
                generators.MaskGenerator(
                    [earlier, site.units, context, likelihood.label_size], 1, options.hidden, 0.0
                )
                for site, earlier in zip(sites[1:], sizes[1:], strict=True)
            )

    def draw_training(
        self,
        site: int,
        activation: Tensor,
        trajectory: Trajectory,
        leaves: list[Tensor] | None = None,
    ) -> Tensor:
        """Draw from the exploring posterior; account for the mask under posterior and prior.

        The masks as they are applied are added to ``leaves``, if given, to be differentiated.
        """
        options = self.options
        pooled, context = self._features(site, activation, trajectory)
        # Draws part at the first site: one run of the generators serves all of them there.
        if site or options.blocks > 1 or options.epsilon or context.shape[-1]:
            pooled = trajectory.every_copy(pooled)
        earlier = seen_by_prior = trajectory.earlier(pooled, self.posterior_history, "posterior")
        if self.prior_history is not None:
            seen_by_prior = trajectory.earlier(pooled, self.prior_history, "prior")
        label = trajectory.label[: pooled.shape[0]].to(pooled.dtype)
        seen = [earlier, pooled, context, label]
        if site == 0 and options.balanced and options.log_z == "learned":
            trajectory.log_z = trajectory.every_copy(self.log_z(*seen[1:]).squeeze(-1))
        elif site > 0 and options.objective in ("subtb", "db"):
            trajectory.record(log_flow=self.log_flow[site - 1](*seen).squeeze(-1))
        choose = policy.exploring(self, site, trajectory, trajectory.batch, pooled)
        prior_of, of_prior = self._prior(site), [seen_by_prior, pooled, context]
        if options.posterior == "own":
            mask, posterior = self.posterior[site](seen, choose)
            _, prior = prior_of(of_prior, policy.given(mask))
        else:
            active = credit.activity(
                self.sites[site], activation.detach().to(pooled.dtype), trajectory.real
            )
            if active.shape[0] < pooled.shape[0]:
                active = trajectory.every_copy(active)
            mask, posterior, prior = self.posterior[site](
                seen, choose, prior_of, of_prior, active, trajectory.batch
            )
        trajectory.masks.append(mask)
        mask = self._account(site, posterior, prior, trajectory)
        if leaves is not None:
            mask = mask.detach().requires_grad_()
            leaves.append(mask)
        return scaled(mask, options.rescale).to(activation.dtype)

    def _prior(self, site: int) -> Callable[..., tuple[Tensor, Tensor]]:
        """The prior of a site as a function of what it sees and of how to choose units."""
        if self.options.prior == "learned":
            return self.prior[site]
        posterior = self.posterior[site]
        assert isinstance(posterior, generators.MaskPolicy)
        return partial(generators.constant, self.starts.at(site), posterior.parts)

    def _account(
        self, site: int, posterior: Tensor, prior: Tensor, trajectory: Trajectory
    ) -> Tensor:
        """Keep what the losses need of a site's logits; return the mask as it is applied."""
        options, mask, terms = self.options, trajectory.masks[site], dict[str, Tensor]()
        if options.balanced:
            log_q, log_p = policy.log_prob(mask, posterior), policy.log_prob(mask, prior)
            posterior = posterior.detach()
        if not options.balanced or options.prior_fit == "kl" or options.anchor:
            fits_prior = (options.prior_fit, options.bound) == ("kl", "mean")
            scale = options.beta if options.objective == "credit" else None
            start = self.starts.at(site) if options.anchor and options.prior == "learned" else None
            sums = credit.account(mask, posterior, prior, start, fits_prior, scale)
            mask, terms["kl"] = sums.mask, sums.kl
            if sums.anchor is not None:
                terms["anchor"] = sums.anchor
            if not options.balanced:
                log_q, log_p = sums.log_q, sums.log_p
        if options.objective in ("subtb", "db"):
            terms["log_ratio"] = log_q - log_p.detach()
        if options.objective == "control" or (options.sparsity and not options.balanced):
            terms["keep"] = torch.sigmoid(posterior)
            terms["kept"] = terms["keep"].sum(-1)
        trajectory.add(log_q, log_p, **terms)
        if options.bound == "marginal":
            drawn = policy.log_prob_explored(self, site, trajectory, posterior, log_q)
            trajectory.log_drawn = drawn if site == 0 else trajectory.log_drawn + drawn
        return mask

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw from the prior."""

        def drawn() -> Tensor:
            units, noise, rows = self.sites[site].units, trajectory.noise, trajectory.batch
            if site == 0:
                noise.reserve(rows, [other.units for other in self.sites], activation)
            if self.options.prior == "fixed":
                keep = torch.as_tensor(self.starts.at(site)).sigmoid()
                return policy.bernoulli(noise, keep, rows, units, activation)
            pooled, context = self._features(site, activation, trajectory)
            earlier = trajectory.earlier(pooled, self.prior_history, "prior")
            if context.shape[-1] or self.options.blocks > 1:  # inputs that differ between copies
                pooled = trajectory.every_copy(pooled)
            choose = policy.drawing(noise, rows, units, pooled)
            mask: Tensor = self.prior[site]([earlier, pooled, context], choose)[0]
            return mask

        mask = trajectory.mask(site, drawn)
        expected = trajectory.noise.expected
        return scaled(mask, self.options.rescale, expected=expected).to(activation.dtype)

    def step(self, score: Score) -> Losses:
        """One pass; each part of the loss reaches its own parameters only.

        With ``objective="credit"`` the posterior learns from ``nll``, too.
        """
        leaves: list[Tensor] | None = None
        if self.options.objective == "control" and torch.is_grad_enabled():
            leaves = []
        draw = partial(self.draw_training, leaves=leaves)
        trajectory = score(draw, copies=self.options.draws)
        log_p, kl = trajectory.log_p, trajectory.total("kl")
        reward = objectives.log_reward(trajectory.log_likelihood, log_p, self.options.beta)
        if self.options.sparsity:
            reward = reward - self.options.sparsity * torch.cat(trajectory.masks, -1).sum(-1)
        if self.options.balanced:
            tb, log_z = self._balance(trajectory, reward)
        else:
            assert kl is not None
            tb, log_z = self._elbo(trajectory, kl, leaves), (reward - log_p - kl).detach()
        rest = self.likelihood_and_prior(trajectory)
        return balance_losses(trajectory, tb, trajectory.log_q, reward, log_z, kl=kl, **rest)

    def likelihood_and_prior(self, trajectory: Scored) -> dict[str, Tensor]:
        """What trains the backbone and a learned prior, by argument of ``balance_losses``."""
        options, log_p, anchor = self.options, trajectory.log_p, trajectory.total("anchor")
        losses, prior = {}, log_p.new_zeros(())
        if options.bound == "marginal":
            losses["nll"] = marginal_nll(trajectory, log_p - trajectory.log_drawn)
        elif options.prior == "learned" and options.prior_fit == "draws":
            prior = -log_p.mean()
        elif options.prior == "learned" and options.balanced:
            kl = trajectory.total("kl")
            assert kl is not None
            prior = kl.mean()
        losses["prior"] = prior if anchor is None else prior + options.anchor * anchor.mean()
        return losses

    def _balance(self, trajectory: Scored, reward: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a balance objective, and log Z."""
        log_q, log_p, log_z = trajectory.log_q, trajectory.log_p, trajectory.log_z
        if log_z is None:
            _check_draws(trajectory, 'log_z="batch", which averages over the draws of one example')
            by_draw = trajectory.by_draw(log_q), trajectory.by_draw(reward)
            log_z = objectives.batch_log_z(*by_draw).flatten()
        if self.options.objective == "tb":
            return objectives.trajectory_balance(log_q, reward, log_z).mean(), log_z
        log_flow = torch.stack([log_z, *trajectory.terms.get("log_flow", [])])
        parts = torch.stack(trajectory.terms["log_ratio"]), log_flow, reward - log_p.detach()
        if self.options.objective == "db":
            return objectives.detailed_balance(*parts).mean(), log_z
        return objectives.sub_trajectory_balance(*parts, decay=SUBTB_DECAY).mean(), log_z

    def _elbo(self, trajectory: Scored, kl: Tensor, leaves: list[Tensor] | None) -> Tensor:
        """What the ELBO adds to the likelihood, with the likelihood's gradient if it needs one."""
        options, count, kept = self.options, len(self.sites), trajectory.total("kept")
        if leaves is None:
            return (kl if kept is None else kl + options.sparsity * kept).mean()
        _check_draws(trajectory, 'objective="control", which takes credits from other draws')
        masks = [torch.cat(leaves[site::count]) for site in range(count)]
        fit = options.beta * trajectory.log_likelihood
        if options.sparsity:
            fit = fit - options.sparsity * torch.cat(masks, -1).sum(-1)
        slopes = torch.autograd.grad(fit.sum(), leaves, retain_graph=True)
        credits = [torch.cat(slopes[site::count]) for site in range(count)]
        by_draw = trajectory.by_draw
        return objectives.credit_control(
            by_draw(trajectory.log_q),
            by_draw(fit.detach()),
            by_draw(kl),
            [by_draw(slope) for slope in credits],
            [by_draw(mask) for mask in trajectory.masks],
            [by_draw(keep) for keep in trajectory.terms["keep"]],
        ).mean()

    @property
    def balanced(self) -> bool:
        """Whether the posterior learns by balance."""
        return bool(self.options.balanced)

    def _features(
        self, site: int, activation: Tensor, trajectory: Trajectory
    ) -> tuple[Tensor, Tensor]:
        dtype = self.posterior.get_parameter("0.blocks.0.bias").dtype
        pooled = self.sites[site].pool(activation.detach(), trajectory.real).to(dtype)
        context = trajectory.context
        if context is None:
            context = pooled.new_zeros(pooled.shape[0], 0)
        return pooled, context.to(dtype)


def _check_draws(trajectory: Trajectory, what: str) -> None:
    if trajectory.copies < 2:
        raise ValueError(
            f"masks must have shape [draws, batch, units] with at least 2 draws for {what}, got "
            f"{trajectory.copies} draw"
        )
