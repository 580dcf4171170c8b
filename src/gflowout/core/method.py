"""The outline that every method follows, its options, and the result of a training pass.

A method file reads in the same order: options, parameters, masks for training, masks for
prediction, losses. A method sees activations and log-likelihoods, never the backbone.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor, nn

from gflowout.core import distributed, objectives, text
from gflowout.core.likelihoods import Likelihood
from gflowout.core.noise import SeededNoise
from gflowout.core.options import Options as Options
from gflowout.core.sites import Site
from gflowout.core.trajectory import Scored, Trajectory

DrawMask = Callable[[int, Tensor, Trajectory], Tensor]
"""``draw(site index, activation, trajectory) -> mask``; see ``Site.apply`` for its shape."""


class Score(Protocol):
    """Runs the backbone under masks from ``draw`` and scores the labels."""

    def __call__(self, draw: DrawMask, copies: int = 1) -> Scored:
        """Return the trajectory with its log-likelihood, the batch taken ``copies`` times."""

    def weight(self, site: int) -> Tensor | None:
        """Return the weights that read a site's units, [units, ...]; ``None`` if not known."""


@dataclass(frozen=True)
class Losses:
    """The result of a training pass.

    Attributes:
        total: What to call ``backward`` on: the sum of the parts.
        nll: Negative log-likelihood of the labels, averaged over the batch; trains the backbone.
            With ``bound="marginal"`` that of the mean over draws, and it trains the prior, too.
        tb: Trains the mask posterior, and log Z: the trajectory-balance loss; or, with GFlowOut's
            objectives ``"credit"`` and ``"control"``, KL(q || p), which may train the prior, too. 0
            where there is none.
        prior: Trains a learned prior: the negative log-probability of the masks, or what else it is
            fitted by; or what a method adds to the likelihood to regularise its noise. 0 where
            there is neither.
        log_q: Log-probability of the masks under the posterior, [batch], or ``None``.
        log_reward: Log of the unnormalised posterior, [batch], or ``None``.
        log_z: Estimate of the log evidence, [batch], or ``None``; with ``log_z="batch"`` the mean
            of log R - log q, which on-policy is a lower bound of it.
        masks: One [batch, units] per site, in execution order. With ``draws`` above 1, these and
            all log-quantities start with an axis of that size.
        log_p: Log-probability of the masks under the prior, [batch], or ``None``.
        log_likelihood: log p(y | x, z), [batch]; for masks that examples share, that of the
            training set as the reward has it. ``None`` where there is no posterior.
        kl: KL(q || p), averaged over the batch, without gradient: in closed form where the method
            has it, else the mean of log q - log p. ``None`` where there is no posterior.

    Examples:
        >>> import gflowout as gfo
        >>> net, x, y = nn.Linear(8, 3), torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=gfo.Categorical(3), example=(x,))
        >>> losses = model(x, y=y)
        >>> losses.total.backward()
        >>> [list(mask.shape) for mask in losses.masks]
        [[4, 8]]
    """

    total: Tensor
    nll: Tensor
    tb: Tensor
    prior: Tensor
    masks: list[Tensor]
    log_q: Tensor | None = None
    log_reward: Tensor | None = None
    log_z: Tensor | None = None
    log_p: Tensor | None = None
    log_likelihood: Tensor | None = None
    kl: Tensor | None = None

    @property
    def elbo(self) -> Tensor | None:
        """Evidence lower bound, mean of log p(y | x, z) minus KL(q || p); ``None`` without q.

        An estimate for masks that were drawn on-policy (``temperature=1``, ``epsilon=0``).
        """
        if self.log_likelihood is None or self.kl is None:
            return None
        return self.log_likelihood.detach().mean() - self.kl

    @property
    def bound(self) -> Tensor | None:
        """Lower bound of the log evidence from all draws of an example together, batch mean.

        The log of the mean of p(y | x, z) p(z) / q(z) over draws: with one draw a sample of
        the ELBO, with more it is tighter. ``None`` without a posterior.
        """
        if self.log_q is None or self.log_p is None or self.log_likelihood is None:
            return None
        log_weight = (self.log_likelihood + self.log_p - self.log_q).detach()
        log_weight = log_weight if log_weight.dim() > 1 else log_weight.unsqueeze(0)
        return objectives.marginal_bound(log_weight).mean()

    def __repr__(self) -> str:
        """Show the numbers, and of the rest only that it is there."""
        parts = ", ".join(
            f"{name}={getattr(self, name).item():.4g}" for name in ("total", "nll", "tb", "prior")
        )
        return f"Losses({parts}, masks at {text.counted(len(self.masks), 'site')})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to use if the losses are taken for a tensor."""
            hint = f": use losses.total.{name}" if hasattr(Tensor, name) else ""
            raise AttributeError(f"Losses has no attribute {name!r}{hint}")


_DRAWS, _AT_A_TIME = 1000, 100
"""Masks that :meth:`Method.keep_probabilities` draws, and how many of them at a time."""

METHODS: dict[str, type[Method]] = {}
"""The methods by name, in the order in which :mod:`gflowout.methods` lists them."""


class Method(nn.Module):
    """Base of the methods: how masks are drawn, and what a training pass minimises.

    Args:
        sites: In execution order.
        likelihood: Gives the size of an encoded label.
        options: Of the method's own class.

    Examples:
        >>> from gflowout.methods import METHODS
        >>> METHODS["mc"]
        <class 'gflowout.methods.mc.MCDropout'>
        >>> issubclass(METHODS["mc"], Method)
        True
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    deterministic: ClassVar[bool] = False
    """Whether every draw of a prediction is the same."""
    binary_masks: ClassVar[bool] = False
    """Whether the method knows probabilities of masks, which must be 0 and 1 then."""
    mask_parts: ClassVar[int] = 1
    """Masks per unit that may stand side by side in a given mask tensor."""
    keep_rates: ClassVar[bool] = True
    """Whether units can start from keep rates of their own."""

    def __init__(self, sites: Sequence[Site], likelihood: Likelihood, options: Any) -> None:
        super().__init__()
        rated = [site.name for site in sites if site.keep is not None]
        if rated and not self.keep_rates:
            raise ValueError(
                f"keep was given for site {rated[0]!r}, but method {self.name!r} has no keep rates"
            )
        self.sites = tuple(sites)
        self.options = options
        mixed = [site.name for site in sites if site.folded == "batch"]
        if mixed and not self.shares_masks:
            raise ValueError(
                f"the output of site {mixed[0]!r} has no batch axis: neither is an axis before the "
                "units the batch, nor are its rows those of one example after the other. Method "
                f"{self.name!r} draws a mask for each example, so name a submodule whose output "
                "starts with the batch (reshape in a submodule of its own, such as nn.Unflatten, "
                'or an nn.Identity after it), or take masks that all examples share: "id-gflowout" '
                'with draws above 1 and no group_size, "masksembles", or "gates" with shared=True'
            )

    @property
    def shares_masks(self) -> bool:
        """Whether all examples of a pass have one mask, so that a site needs no batch axis."""
        return self.deterministic

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Return the multiplier of a site when labels are unknown: in prediction."""
        raise TypeError(f"{type(self).__name__} must define draw")

    def draw_ahead(self, trajectory: Trajectory) -> list[Tensor] | None:
        """Draw the masks of all sites before a prediction's first pass, if nothing else is needed.

        ``trajectory`` is that of all draws. The result is what :meth:`draw` would draw, [draws,
        units] per site, one row for each copy of the batch; ``None`` where masks depend on it.
        """
        return None

    @property
    def balanced(self) -> bool:
        """Whether ``Losses.tb``, if any, is the residual of a balance, which should shrink."""
        return True

    def members(self) -> list[Tensor] | None:
        """Masks of all members, one [members, 1, units] per site, if a draw is one of a few."""
        return None

    def keep_probabilities(self) -> list[Tensor] | None:
        """Probability that each unit is kept, [units] per site; ``None`` if examples differ in it.

        The mean of drawn masks, where these can be drawn without inputs; the same in every call.
        """
        device = next((tensor.device for tensor in self.parameters()), torch.device("cpu"))
        totals: list[Tensor] = []
        for start in range(0, _DRAWS, _AT_A_TIME):
            seeds = range(start, start + _AT_A_TIME)
            masks = self.draw_ahead(Trajectory(SeededNoise(seeds, device)))
            if masks is None:
                return None
            sums = [mask.detach().sum(0) for mask in masks]
            totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        return [total / _DRAWS for total in totals]

    def fixed_masks(self, threshold: float) -> list[Tensor] | None:
        """One mask for all examples, [units] per site: units that are kept at least this probably.

        ``None`` where there are no :meth:`keep_probabilities`.
        """
        keep = self.keep_probabilities()
        return None if keep is None else [(site >= threshold).float() for site in keep]

    def step(self, score: Score) -> Losses:
        """Run the backbone as often as the method needs and return the losses."""
        raise TypeError(f"{type(self).__name__} must define step")

    def joint(self, trajectory: Trajectory) -> bool:
        """Tell whether a pass belongs to a step that several processes take together.

        It does in train mode, with gradient, on masks that the method draws. In all other passes a
        process may be the only one to run: agreement would wait for the others for ever.
        """
        learning = self.training and torch.is_grad_enabled() and trajectory.given is None
        return learning and distributed.active()

    def examples_in_training(self, batch: int) -> int:
        """Size of the training set, ``train_size``; training without it is an error.

        A pass without gradient warns instead, and takes the batch for the training set.
        """
        size: int | None = self.options.train_size
        if size is not None:
            return size
        if distributed.active():
            raise ValueError(
                f"train_size was not given, and with {distributed.size()} processes the batch of "
                f"{batch} is only a part: pass train_size=, the number of training examples of all "
                "processes together"
            )
        if torch.is_grad_enabled():
            raise ValueError(
                "train_size was not given: masks that all examples share, and rates that they "
                "learn together, need the number of training examples, which is unknown in a "
                f"batch of {batch}. Pass train_size=len(train_set) to gfo.wrap, or call "
                "model.set_options(train_size=...); gfo.fit counts them itself"
            )
        warnings.warn(
            f"train_size was not given: the batch of {batch} is taken for the whole training set, "
            "so that all losses but nll are of another scale; pass train_size=",
            stacklevel=2,
        )
        return batch

    def extra_repr(self) -> str:
        """Show the options."""
        options = dataclasses.asdict(self.options)
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def marginal_nll(trajectory: Scored, log_weights: Tensor | None = None) -> Tensor:
    """Negative :func:`objectives.marginal_bound` over the draws, averaged over the batch.

    ``log_weights`` are [draws * batch].
    """
    by_draw = (trajectory.copies, -1)
    weights = None if log_weights is None else log_weights.reshape(by_draw)
    bound = objectives.marginal_bound(trajectory.log_likelihood.reshape(by_draw), weights)
    return -bound.mean()


def likelihood_losses(
    trajectory: Scored, prior: Tensor | None = None, nll: Tensor | None = None
) -> Losses:
    """Losses of a method that minimises the negative log-likelihood, plus ``prior`` if given.

    ``nll`` replaces the mean over draws and examples.
    """
    nll = -trajectory.log_likelihood.mean() if nll is None else nll
    zero = nll.new_zeros(())
    total, prior = (nll, zero) if prior is None else (nll + prior, prior)
    return Losses(total=total, nll=nll, tb=zero, prior=prior, masks=trajectory.masks_by_draw())


def balance_losses(
    trajectory: Scored,
    tb: Tensor,
    log_q: Tensor,
    log_reward: Tensor,
    log_z: Tensor,
    prior: Tensor | None = None,
    nll: Tensor | None = None,
    kl: Tensor | None = None,
    log_likelihood: Tensor | None = None,
) -> Losses:
    """Losses of a method whose posterior is trained by trajectory balance.

    The log-quantities are [draws * batch]; ``prior`` is the loss of a learned prior, ``nll``
    replaces the mean over draws and examples, ``kl`` [draws * batch] is the KL divergence in closed
    form, and ``log_likelihood`` that of masks that examples share.
    """
    nll = -trajectory.log_likelihood.mean() if nll is None else nll
    total = nll + tb
    log_p = trajectory.per_example(trajectory.log_p).detach()
    kl = (log_q.detach() - log_p) if kl is None else kl.detach()
    fit = (trajectory.log_likelihood if log_likelihood is None else log_likelihood).detach()
    names = ("log_q", "log_reward", "log_z", "log_p", "log_likelihood")
    by_draw = trajectory.each_by_draw(log_q, log_reward, log_z, log_p, fit)
    return Losses(
        total=total if prior is None else total + prior,
        nll=nll,
        tb=tb,
        prior=nll.new_zeros(()) if prior is None else prior,
        masks=trajectory.masks_by_draw(),
        **dict(zip(names, by_draw, strict=True)),
        kl=kl.mean(),
    )


def scaled(
    mask: Tensor, rescale: str, keep: float | Tensor = 1.0, expected: bool = False
) -> Tensor:
    """Multiplier of a mask [rows, units]: as it is, or scaled so that activations keep their size.

    ``rescale`` is ``"none"``; ``"kept"``: times units over kept units, per row; or ``"inverse"``:
    over the keep rate. If ``expected``, the mask holds keep rates of independent units, and the
    result is the mean multiplier of masks that are drawn with them.

    Examples:
        >>> scaled(torch.tensor([[1.0, 0.0]]), "kept")
        tensor([[2., 0.]])
    """
    if rescale == "kept" and expected:
        return mean_share(mask) * mask.shape[-1]
    if rescale == "kept":
        return mask * (mask.shape[-1] / mask.sum(-1, keepdim=True).clamp(min=1))
    return mask / keep if rescale == "inverse" else mask


def mean_share(keep: Tensor, nodes: int = 48) -> Tensor:
    r"""Mean of a unit over the number of kept units, for independent units, [rows, units].

    .. math:: \mathbb{E} \Big[ \frac{z_i}{\sum_j z_j} \Big]
              = \pi_i \int_0^1 \prod_{j \ne i} (1 - \pi_j u) \, du,

    0 over 0 being 0. By the midpoint rule, with nodes as dense near 0 as the integrand is steep.

    Examples:
        >>> mean_share(torch.tensor([[0.5, 0.5]]))  # 1/4 for both and 1/2 + 1/4 for the one alone
        tensor([[0.3750, 0.3750]])
    """
    precise = keep.to(torch.promote_types(keep.dtype, torch.float32))
    end = (40 / precise.sum(-1, keepdim=True).clamp(min=1e-9)).clamp(max=1)  # negligible beyond
    total = torch.zeros_like(precise)
    for node in range(nodes):
        place = (node + 0.5) / nodes
        left = 1 - precise * (end * place**3)
        total += 3 * place**2 / nodes * left.log().sum(-1, keepdim=True).exp() / left
    return (precise * total * end).to(keep.dtype)
