"""Combined: masks shared by all examples times masks of their own, the paper's future work.

z = z_shared * z_own: the shared ones are parameters with a fixed prior, as in ID-GFlowOut; given
them, the own ones are latent variables of each example, as in GFlowOut, whose generators also see
all shared masks. Both posteriors are learned in one pass: what an example says for the shared masks
is its evidence log p(y | x, z_shared), which log R - log q of its own masks estimates, and equals
once their posterior is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gflowout.core import objectives
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, balance_losses, scaled
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import check_bound, check_policy, check_sizes, keep_rate
from gflowout.methods.gflowout import PAPER, GFlowOut, GFlowOutOptions
from gflowout.methods.id_gflowout import IDGFlowOut, IDGFlowOutOptions


@dataclass(frozen=True, repr=False)
class CombinedOptions(Options):
    """Options of the combined method.

    Attributes:
        temperature: Of the own masks in training; the shared ones are drawn on-policy.
        epsilon: Probability, per example and site, of a random own mask in training.
        beta: Scale of the log-likelihood in the rewards.
        prior_keep: Keep rate of the shared masks' prior, and start of the own masks. A unit lives
            if both keep it, so at the 0.7 of ``preset="paper"`` about half do. ``None``: both
            together keep as many as the ``nn.Dropout`` that the site replaces, and 0.9 where there
            was none. ``keep`` is the rate of both together, the square of this.
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        hidden: Widths of the mask generators.
        draws: Shared masks scored on the same examples in one step, each with own masks.
        bound: What trains the backbone, ``"mean"`` or ``"marginal"`` over the draws; see GFlowOut.
        group_size: Examples that share a mask; see ID-GFlowOut.
        train_size: Number of training examples.
        blocks: Autoregressive blocks inside a site.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Combined(keep=0.81, train_size=1000)  # 0.9 each
        Combined(prior_keep=0.9, train_size=1000)
    """

    temperature: float = 2.0
    epsilon: float = 0.1
    beta: float = 1.0
    prior_keep: float | None = None
    rescale: str = "none"
    hidden: tuple[int, ...] = (32, 32)
    draws: int = 4
    bound: str = "mean"
    group_size: int | None = None
    train_size: int | None = None
    blocks: int = 1

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Combined"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"prior_keep", "hidden", "blocks"})
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"prior_keep": 0.7}}
    log_z: ClassVar[str] = "learned"
    history: ClassVar[str] = "all"

    def __post_init__(self) -> None:
        """Check the values."""
        check_policy(self)
        check_bound(self)
        check_sizes(self)

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """Shared and own masks together keep this share of the units."""
        return {"prior_keep": keep**0.5}


class Combined(Method):
    """Shared masks times own masks.

    ``Losses.masks`` and ``Predictive.masks`` hold the products, [batch, units]. Given masks of that
    shape are taken for own ones, with shared ones that keep everything; to score a pair, give
    [batch, 2 * units], shared ones first.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
        >>> model = gfo.wrap(
        ...     net, "combined", ["input"], likelihood=gfo.Categorical(2), example=(x,),
        ...     train_size=100, draws=1,
        ... )
        >>> masks = model.predict(x, return_masks=True).masks[0]  # shared ones times own ones
        >>> bool(((masks == 0) | (masks == 1)).all())
        True
    """

    name = "combined"
    Options = CombinedOptions
    binary_masks = True
    mask_parts = 2

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: CombinedOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        units = sum(site.units for site in sites)
        shared, own = self._parts()
        halves = [replace(site, rate=1 - keep_rate(site) ** 0.5) for site in sites]
        self.shared = IDGFlowOut(halves, likelihood, shared)
        self.own = GFlowOut(halves, likelihood, own, context=units)

    def draw_training(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw the shared masks of all sites at the first, and own ones at each."""
        if site == 0:
            self._share(trajectory, self.shared.walk_training)
        self.own.draw_training(site, activation, trajectory)
        return self._product(site, activation, trajectory)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw shared masks from their posterior and own ones from the learned prior."""
        if site == 0:
            self._share(trajectory, self.shared.walk)
        self.own.draw(site, activation, trajectory)
        return self._product(site, activation, trajectory)

    def keep_probabilities(self) -> list[Tensor] | None:
        """Those of the shared masks."""
        return self.shared.keep_probabilities()

    def step(self, score: Score) -> Losses:
        """One pass; the log-quantities of the result are those of the own masks."""
        self.shared.options, self.own.options = self._parts()
        trajectory = score(self.draw_training, copies=self.options.draws)
        log_q, log_p, log_z = trajectory.log_q, trajectory.log_p, trajectory.log_z
        assert log_z is not None
        assert trajectory.shared is not None
        reward = objectives.log_reward(trajectory.log_likelihood, log_p, self.options.beta)
        own = objectives.trajectory_balance(log_q, reward, log_z).mean()
        balance = self.shared.balance(trajectory.shared, reward - log_q.detach(), beta=1.0)
        tb = own + objectives.trajectory_balance(*balance).mean()
        # Shared masks are the same for all examples: their divergence counts once for all.
        shared = trajectory.shared.per_example(trajectory.shared.log_q - trajectory.shared.log_p)
        kl = log_q - log_p + shared / self.shared.examples_in_training(trajectory.batch)
        rest = self.own.likelihood_and_prior(trajectory)
        return balance_losses(trajectory, tb, log_q, reward, log_z, kl=kl, **rest)

    def _share(self, trajectory: Trajectory, draw: Callable[[int, Trajectory], Tensor]) -> None:
        """Draw the shared masks of all sites and show them to the generators of the own ones."""
        examples = trajectory.copies * trajectory.batch
        shared = Trajectory(noise=trajectory.noise, batch=trajectory.batch)
        if trajectory.given is not None:
            pairs = [
                mask.chunk(2, -1) if mask.shape[-1] > site.units else (torch.ones_like(mask), mask)
                for mask, site in zip(trajectory.given, self.sites, strict=True)
            ]
            shared.given, trajectory.given = ([pair[side] for pair in pairs] for side in (0, 1))
        for site in range(len(self.sites)):
            draw(site, shared)
        trajectory.shared = shared
        trajectory.context = torch.cat(shared.full_masks(examples), -1)

    def _product(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        assert trajectory.shared is not None
        shared = trajectory.shared.per_example(trajectory.shared.masks[site])
        mask = shared * trajectory.masks[site]
        expected = trajectory.noise.expected
        return scaled(mask, self.options.rescale, expected=expected).to(activation.dtype)

    def _parts(self) -> tuple[IDGFlowOutOptions, GFlowOutOptions]:
        """Options of the shared and of the own masks."""
        common = ("prior_keep", "hidden", "draws", "blocks")
        shared, own = ("group_size", "train_size"), ("temperature", "epsilon", "beta", "bound")
        return (
            IDGFlowOutOptions(**{name: getattr(self.options, name) for name in common + shared}),
            GFlowOutOptions(**PAPER | {name: getattr(self.options, name) for name in common + own}),
        )
