"""ID-GFlowOut: masks shared by all examples, learned by trajectory balance (section 3.3).

The masks are parameters of the model with a fixed prior; q(z) is fitted to the prior times the
likelihood of the whole training set, and draws the masks in training and in prediction. One row of
masks serves a group of examples, whose mean log-likelihood, times the size of the training set,
stands for that of the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gflowout.core import checks, credit, distributed, generators, objectives, policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, balance_losses, scaled
from gflowout.core.noise import RecordedNoise
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import Starts, check_policy, check_sizes, history_of, history_sizes

DEFAULT_GROUPS = 8


@dataclass(frozen=True, repr=False)
class IDGFlowOutOptions(Options):
    """Options of ID-GFlowOut; the defaults are those that find the posterior.

    A step with the defaults runs the backbone once on four copies of the batch, and costs about
    four times one with ``draws=1``; see the design notes for what that buys.

    Attributes:
        objective: What trains the posterior: ``"tb"``, trajectory balance; or ``"credit"``, the
            ELBO of the training set per example, with credit per unit from the backward pass of the
            likelihood, as in GFlowOut: biased, but it comes much nearer to a sharp posterior.
        temperature: Divides the posterior's logits, around the prior's, when drawing in training.
        epsilon: Probability, per mask and site, of a random mask from the prior.
        beta: Scale of the log-likelihood in the reward.
        prior_keep: Keep rate of the fixed prior. ``None``: that of the ``nn.Dropout`` that the site
            replaces, and 0.9 where there was none; 0.5 in ``preset="paper"``. ``keep`` sets it,
            too.
        start_keep: Keep rate that the posterior starts from; ``None`` for that of the prior.
        sparsity: What the prior charges for every unit that is kept, in nats, beyond
            ``prior_keep``. To anneal, let it grow during training:
            ``model.set_options(sparsity=4 * min(1.0, step / 1000))``.
        rescale: ``"none"``, or ``"kept"`` to divide kept units by the fraction that was kept.
        hidden: Widths of the mask generators, which see the masks of earlier sites. ``()`` for a
            plain logit per unit.
        log_z: ``"batch"``, the mean over the masks of the batch; or ``"learned"``, one number.
        draws: Masks scored on the same examples in one step.
        group_size: Examples that share one mask. ``None``: the batch forms 8 groups, or a single
            one if ``draws`` is above 1. Of one process, where several train together.
        train_size: Number of training examples, of all processes together.
        blocks: Autoregressive blocks inside a site, at most one per unit; 1 is the paper.
        history: What generators see of earlier sites: ``"all"`` masks, as in the paper, or a
            learned ``"summary"`` of fixed size, whose cost is linear in the number of sites.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.IDGFlowOut(keep=0.8, train_size=1000)
        IDGFlowOut(prior_keep=0.8, train_size=1000)
    """

    objective: str = "tb"
    temperature: float = 1.0
    epsilon: float = 0.0
    beta: float = 1.0
    prior_keep: float | None = None
    start_keep: float | None = None
    sparsity: float = 0.0
    rescale: str = "none"
    hidden: tuple[int, ...] = (32, 32)
    log_z: str = "batch"
    draws: int = 4
    group_size: int | None = None
    train_size: int | None = None
    blocks: int = 1
    history: str = "all"

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "IDGFlowOut"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset(
        {"prior_keep", "start_keep", "hidden", "log_z", "blocks", "history"}
    )
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "prior_keep": 0.5, "temperature": 2.0, "epsilon": 0.1, "log_z": "learned", "draws": 1,
            "group_size": 1,
        },
        "features": {"prior_keep": 0.1, "start_keep": 0.3, "beta": 0.3, "hidden": (), "draws": 8},
    }  # fmt: skip

    def __post_init__(self) -> None:
        """Check the values."""
        check_policy(self)
        check_sizes(self)
        checks.choice("objective", self.objective, ["tb", "credit"])
        checks.number("sparsity", self.sparsity, low=0)
        if self.start_keep is not None:
            checks.probability("start_keep", self.start_keep)


class IDGFlowOut(Method):
    """Sample-independent masks with a fixed prior.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(
        ...     net, "id-gflowout", ["input"], likelihood=gfo.Categorical(2), example=(x,),
        ...     train_size=100,
        ... )
        >>> masks = model.predict(x, return_masks=True).masks[0]
        >>> bool((masks == masks[:, :1]).all())  # all rows of a draw share one mask
        True
    """

    name = "id-gflowout"
    Options = IDGFlowOutOptions
    binary_masks = True

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: IDGFlowOutOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        self.starts = Starts(sites, options.prior_keep)
        self.posterior = nn.ModuleList()
        self.history = history_of(sites, options) if options.hidden else None
        sizes = history_sizes(sites, options)
        for index, (site, earlier) in enumerate(zip(sites, sizes, strict=True)):
            inputs = [earlier] if options.hidden else []
            start = self.starts.at(index)
            if options.start_keep is not None:
                start = policy.logit(options.start_keep)
            self.posterior.append(
                generators.MaskPolicy(inputs, site.units, options.hidden, start, options.blocks)
            )
        if options.log_z == "learned":
            self.log_z = nn.Parameter(torch.zeros(()))

    @property
    def shares_masks(self) -> bool:
        """Whether a mask serves the whole batch."""
        return self._whole

    def draw_training(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw one exploring mask per group; account for it under posterior and prior."""
        mask = self.walk_training(site, trajectory)
        if self.options.objective == "credit":
            logits = trajectory.terms["logits"][site]
            mask = credit.credited(mask, logits.expand_as(mask), self.options.beta)
        return trajectory.rows_in_use(scaled(mask, self.options.rescale).to(activation.dtype))

    def walk_training(self, site: int, trajectory: Trajectory) -> Tensor:
        """Draw and account for masks of a site, [rows, units], from the size of the batch alone."""
        batch, like = trajectory.batch, generators.like(self.posterior)
        if site == 0:
            self._form_groups(batch, trajectory, like.device)
            if self._whole and self.joint(trajectory):
                self._agree(trajectory, like)
        rows = batch if trajectory.index is None else self._groups(batch)
        choose = policy.exploring(self, site, trajectory, rows, like)
        mask, logits = self._walk(site, rows * trajectory.copies, trajectory, choose)
        trajectory.masks.append(mask)
        prior = policy.log_prob_at_rate(mask, self.starts.at(site) - self.options.sparsity)
        trajectory.add(policy.log_prob(mask, logits), prior)
        if self.options.objective == "credit":
            trajectory.record(logits=logits.expand_as(mask))
        return mask

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw one mask for the whole batch from the posterior."""
        mask, expected = self.walk(site, trajectory), trajectory.noise.expected
        used = scaled(mask, self.options.rescale, expected=expected)
        return trajectory.rows_in_use(used.to(activation.dtype))

    def walk(self, site: int, trajectory: Trajectory) -> Tensor:
        """Draw the mask of a site, one row per copy of the batch, [copies, units]."""

        def drawn() -> Tensor:
            like, units = generators.like(self.posterior), self.sites[site].units
            choose = policy.drawing(trajectory.noise, 1, units, like)
            return self._walk(site, trajectory.copies, trajectory, choose)[0]

        return trajectory.mask(site, drawn)

    def draw_ahead(self, trajectory: Trajectory) -> list[Tensor]:
        """The masks of all sites: they depend on nothing but the masks before."""
        widths = [site.units for site in self.sites]
        drawn = trajectory.noise.uniform(1, sum(widths), generators.like(self.posterior))
        trajectory.noise = RecordedNoise(torch.split(drawn, widths, -1), trajectory.copies)
        return [self.walk(site, trajectory) for site in range(len(self.sites))]

    def step(self, score: Score) -> Losses:
        """One pass; each part of the loss reaches its own parameters only."""
        trajectory = score(self.draw_training, copies=self.options.draws)
        balance = self.balance(trajectory, trajectory.log_likelihood, self.options.beta)
        tb = objectives.trajectory_balance(*balance).mean()
        if self.options.objective == "credit":
            tb = self._kl(trajectory).mean() / self.examples_in_training(trajectory.batch)
        log_q, reward, log_z = map(trajectory.per_example, balance)
        # Of the training set, as the masks' reward has it.
        evidence = (balance[1] - trajectory.log_p.detach()) / (self.options.beta or 1.0)
        fit = trajectory.per_example(evidence)
        return balance_losses(trajectory, tb, log_q, reward, log_z, log_likelihood=fit)

    @property
    def balanced(self) -> bool:
        """Whether the posterior learns by trajectory balance."""
        return bool(self.options.objective == "tb")

    def _kl(self, trajectory: Trajectory) -> Tensor:
        """KL divergence from the prior in closed form, each site given earlier masks, [rows]."""
        total = torch.zeros_like(trajectory.log_q)
        for site, logits in enumerate(trajectory.terms["logits"]):
            prior = torch.as_tensor(self.starts.at(site), dtype=logits.dtype, device=logits.device)
            total = total + policy.kl(logits, prior - self.options.sparsity)
        return total

    def balance(
        self, trajectory: Trajectory, evidence: Tensor, beta: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log q, log reward and log Z of the rows of masks.

        ``evidence`` is what each example says for its masks, its log-likelihood, [batch]; ``beta``
        scales it in the reward.
        """
        log_q, draws = trajectory.log_q, trajectory.copies
        size = self.examples_in_training(len(evidence) // draws) if beta else 1
        means = _group_means(trajectory, evidence.detach())
        joint = self.joint(trajectory)
        if joint and self._whole:
            means = distributed.mean(means, len(evidence) // draws)
        reward = objectives.log_reward(size * means, trajectory.log_p, beta)
        if self.options.log_z == "learned":
            return log_q, reward, self.log_z.expand_as(log_q)
        # With several draws, masks are compared on the same examples only.
        shape = log_q.shape if draws == 1 else (draws, -1)
        log_z = objectives.batch_log_z(log_q.reshape(shape), reward.reshape(shape))
        log_z = log_z.reshape(log_q.shape)
        if joint and draws == 1:  # groups of all processes have the same target
            log_z = distributed.mean(log_z[:1], len(log_q)).expand_as(log_q)
        return log_q, reward, log_z

    def _form_groups(self, batch: int, trajectory: Trajectory, device: torch.device) -> None:
        """Say which examples share a row of masks; given masks keep the groups they have."""
        groups = self._groups(batch)
        if trajectory.given is None:
            if (
                groups == 1
                and batch > 1
                and self.options.draws == 1
                and self.options.log_z == "batch"
                and not self.joint(trajectory)
            ):
                raise ValueError(
                    f"group_size={self.options.group_size} leaves a single mask in a batch of "
                    f'{batch}, and log_z="batch" compares masks: take a smaller group_size, draws '
                    'above 1, or log_z="learned"'
                )
            trajectory.index = _rows_of(batch, groups, trajectory.copies, device)
            return
        member, given = _rows_of(batch, groups, 1, device), trajectory.given
        first = torch.searchsorted(member, torch.arange(groups, device=device))
        rows = [mask[first] for mask in given]
        if all(torch.equal(row[member], mask) for row, mask in zip(rows, given, strict=True)):
            trajectory.given, trajectory.index = rows, member

    @property
    def _whole(self) -> bool:
        """Whether a mask serves the whole batch, and so all processes."""
        return self.options.group_size is None and self.options.draws > 1

    def _agree(self, trajectory: Trajectory, like: Tensor) -> None:
        """Let every process draw the masks that the first one draws.

        All random numbers of the pass go in one message, drawn in the order in which a single
        process would draw them.
        """
        chance = [1] if self.options.epsilon > 0 else []
        widths = [width for site in self.sites for width in (*chance, site.units)]
        drawn = [trajectory.noise.uniform(1, width, like) for width in widths]
        numbers = torch.split(distributed.from_first(torch.cat(drawn, -1)), widths, -1)
        trajectory.noise = RecordedNoise(numbers, trajectory.copies)

    def _groups(self, batch: int) -> int:
        size: int | None = self.options.group_size
        if size is not None:
            return -(-batch // size)
        return min(batch, DEFAULT_GROUPS) if self.options.draws == 1 else 1

    def _walk(
        self, site: int, rows: int, trajectory: Trajectory, choose: policy.Choose
    ) -> tuple[Tensor, Tensor]:
        seen = []
        if self.options.hidden:
            like = generators.like(self.posterior).new_empty(rows, 0)
            seen = [trajectory.earlier(like, self.history, "posterior")]
        mask, logits = self.posterior[site](seen, choose)
        return mask, logits


@functools.lru_cache(maxsize=64)
def _rows_of(batch: int, groups: int, copies: int, device: torch.device) -> Tensor:
    """Which row of masks each example of every copy takes; the same in most steps."""
    with torch.inference_mode(False):  # it may serve a step with gradients later
        member = torch.arange(batch, device=device) * groups // batch
        copy = torch.arange(copies, device=device).unsqueeze(1)
        return (copy * groups + member).flatten()


def _group_means(trajectory: Trajectory, values: Tensor) -> Tensor:
    """Mean of a value per example over the examples of each row of masks, [rows]."""
    index = trajectory.index
    if index is None:  # given masks: a row per example; those with equal masks form a group
        _, index = torch.unique(torch.cat(trajectory.masks, -1), dim=0, return_inverse=True)
        means = _mean_by(index, values, int(index.max()) + 1)
        return means[index]
    return _mean_by(index, values, len(trajectory.log_q))


def _mean_by(index: Tensor, values: Tensor, rows: int) -> Tensor:
    # Not bincount, for whose largest number an accelerator is waited for.
    zeros = values.new_zeros(rows)
    return zeros.index_add(0, index, values) / zeros.index_add(0, index, torch.ones_like(values))
