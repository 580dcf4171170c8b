"""GFlowOut: masks that depend on the example, learned by trajectory balance (section 3.2).

At every site a posterior q(z | x, y, earlier masks) and a prior p(z | x, earlier masks) look at
the pooled activation that the mask will multiply. q draws the masks in training and is fitted to
p(y | x, z) p(z | x); p is fitted to the masks that were drawn and draws them in prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gflowout.core import checks, objectives, policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, balance_losses, scaled
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import Starts, check_policy, history_of, history_sizes


@dataclass(frozen=True)
class GFlowOutOptions(Options):
    """Options of GFlowOut; the defaults are the paper's.

    Attributes:
        temperature: Divides the posterior's logits, around the prior's, when drawing in training.
        epsilon: Probability, per example and site, of a random mask from the start of the prior.
        beta: Scale of the log-likelihood in the reward.
        prior_keep: Keep rate that the learned prior and posterior start from, and the centre of
            ``temperature`` and ``epsilon``.
        sparsity: What the reward charges for every unit that is kept, in nats. The prior is learned
            and follows the posterior, so this alone keeps masks small; see ``preset="features"``.
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        hidden: Widths of the mask generators.
        log_z: ``"learned"``, a small network of (x, y); or ``"batch"``, the mean over draws.
        draws: Masks scored per example in one step.
        blocks: Autoregressive blocks inside a site, at most one per unit; 1 is the paper.
        history: What generators see of earlier sites: ``"all"`` masks, as in the paper, or a
            learned ``"summary"`` of fixed size, whose cost is linear in the number of sites.
    """

    temperature: float = 2.0
    epsilon: float = 0.1
    beta: float = 1.0
    prior_keep: float = 0.5
    sparsity: float = 0.0
    rescale: str = "none"
    hidden: tuple[int, ...] = (32, 32)
    log_z: str = "learned"
    draws: int = 1
    blocks: int = 1
    history: str = "all"

    STRUCTURAL: ClassVar[frozenset[str]] = frozenset(
        {"prior_keep", "hidden", "log_z", "blocks", "history"}
    )
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "features": {"beta": 20.0, "sparsity": 1.0, "log_z": "batch", "draws": 4},
    }

    def __post_init__(self) -> None:
        """Check the values."""
        check_policy(self)
        checks.number("sparsity", self.sparsity, low=0)
        if self.log_z == "batch" and self.draws < 2:
            raise ValueError(
                'log_z="batch" averages over the draws of one example: draws must be an integer '
                f">= 2, got {self.draws}"
            )


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
        self.prior_history = history_of(sites, options)
        sizes = history_sizes(sites, options)
        for index, (site, earlier) in enumerate(zip(sites, sizes, strict=True)):
            seen = [earlier, site.units, context]
            shape = (site.units, options.hidden, self.starts.at(index), options.blocks)
            self.posterior.append(policy.MaskPolicy([*seen, likelihood.label_size], *shape))
            self.prior.append(policy.MaskPolicy(seen, *shape))
        if options.log_z == "learned":
            inputs = [sites[0].units, context, likelihood.label_size]
            self.log_z = policy.MaskGenerator(inputs, 1, options.hidden, start=0.0)

    def draw_training(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw from the exploring posterior; account for the mask under posterior and prior."""
        pooled, context = self._features(site, activation, trajectory)
        pooled = trajectory.every_copy(pooled)
        earlier = seen_by_prior = trajectory.earlier(pooled, self.posterior_history, "posterior")
        if self.prior_history is not None:
            seen_by_prior = trajectory.earlier(pooled, self.prior_history, "prior")
        label = trajectory.label.to(pooled.dtype)
        if site == 0 and self.options.log_z == "learned":
            trajectory.log_z = self.log_z(pooled, context, label).squeeze(-1)
        choose = policy.exploring(self, site, trajectory, trajectory.batch, pooled)
        mask, posterior = self.posterior[site]([earlier, pooled, context, label], choose)
        _, prior = self.prior[site]([seen_by_prior, pooled, context], policy.given(mask))
        trajectory.masks.append(mask)
        trajectory.add(policy.log_prob(mask, posterior), policy.log_prob(mask, prior))
        return scaled(mask, self.options.rescale).to(activation.dtype)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw from the learned prior."""

        def drawn() -> Tensor:
            pooled, context = self._features(site, activation, trajectory)
            earlier = trajectory.earlier(pooled, self.prior_history, "prior")
            if context.shape[-1] or self.options.blocks > 1:  # inputs that differ between copies
                pooled = trajectory.every_copy(pooled)
            units = self.sites[site].units
            choose = policy.drawing(trajectory.noise, trajectory.batch, units, pooled)
            mask: Tensor = self.prior[site]([earlier, pooled, context], choose)[0]
            return mask

        mask = trajectory.mask(site, drawn)
        return scaled(mask, self.options.rescale).to(activation.dtype)

    def step(self, score: Score) -> Losses:
        """One pass; each part of the loss reaches its own parameters only."""
        trajectory = score(self.draw_training, copies=self.options.draws)
        log_q, log_p, log_z = trajectory.log_q, trajectory.log_p, trajectory.log_z
        reward = objectives.log_reward(trajectory.log_likelihood, log_p, self.options.beta)
        if self.options.sparsity:
            reward = reward - self.options.sparsity * torch.cat(trajectory.masks, -1).sum(-1)
        if log_z is None:
            if trajectory.copies < 2:
                raise ValueError(
                    "masks must have shape [draws, batch, units] with at least 2 draws for log_z="
                    '"batch", which averages over the draws of one example'
                )
            by_draw = trajectory.by_draw(log_q), trajectory.by_draw(reward)
            log_z = objectives.batch_log_z(*by_draw).flatten()
        tb = objectives.trajectory_balance(log_q, reward, log_z).mean()
        return balance_losses(trajectory, tb, log_q, reward, log_z, prior=-log_p.mean())

    def _features(
        self, site: int, activation: Tensor, trajectory: Trajectory
    ) -> tuple[Tensor, Tensor]:
        dtype = policy.like(self.prior).dtype
        pooled = self.sites[site].pool(activation.detach(), trajectory.real).to(dtype)
        context = trajectory.context
        if context is None:
            context = pooled.new_zeros(pooled.shape[0], 0)
        return pooled, context.to(dtype)
