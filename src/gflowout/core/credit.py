"""What the ELBO needs of a site's masks: credit per unit, log-probabilities and divergences.

The credit of a unit is what it is worth by the slope of the log-likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.sites import Site


def credited(mask: Tensor, logits: Tensor, scale: float = 1.0) -> Tensor:
    r"""Return a drawn mask that carries gradients to the logits that it was drawn with: biased.

    What a unit is worth is the difference of a function between 1 and 0, which the mean of its
    slopes at both ends estimates (the trapezoid rule, exact where the function is quadratic in the
    unit). A backward pass gives the slope at the end that was drawn; divided by the probability of
    that end it is unbiased for the sum of both:

    .. math:: \frac{\partial}{\partial a} \mathbb{E} f = \pi (1 - \pi) [f(1) - f(0)]
              \approx \mathbb{E} \Big[ \frac{\pi (1 - \pi)}{2 \Pr(z)} f'(z) \Big]
              = \mathbb{E} \Big[ \frac{|z - \pi|}{2} f'(z) \Big].

    So the gradient of each unit is its own credit, at no further pass, where a score function
    has one number for all units. ``scale`` multiplies the gradient. Logits of fewer rows serve one
    copy of the batch after the other.

    Examples:
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> mask = credited(torch.tensor([1.0, 0.0, 1.0]), logits)
        >>> (mask * torch.tensor([4.0, 8.0, 0.0])).sum().backward()  # f is linear: exact
        >>> logits.grad  # of 4, 8, 0 times the keep rate
        tensor([1., 2., 0.])
    """
    credit: Tensor = _Credit.apply(mask, logits, scale)  # type: ignore[no-untyped-call]
    return credit


class _Credit(torch.autograd.Function):
    """The mask itself in the forward pass; see :func:`credited`."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, logits: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask.reshape(-1, *logits.shape), torch.sigmoid(logits))
        ctx.scale = scale
        return mask.view_as(mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, _add(None, *_credit(gradient, *ctx.saved_tensors), ctx.scale / 2), None


def activity(site: Site, activation: Tensor, real: Tensor | None = None) -> Tensor:
    """How active each unit is: root mean square over all that it stands for, [batch, units].

    In units of the mean over the units of an example. For ``real`` see :meth:`Site.pool`.

    Examples:
        >>> activity(Site("fc", units=3, axis=1, rank=2), torch.tensor([[0.0, 3.0, -3.0]]))
        tensor([[0.0000, 1.2247, 1.2247]])
    """
    if site.rank == 2 and site.layout is None:
        size = activation.abs()
    else:
        size = site.pool(activation.square(), real).sqrt_()
    norm: Tensor = torch.linalg.vector_norm(size, dim=-1, keepdim=True)
    active: Tensor = size * (site.units**0.5 / (norm + 1e-12))
    return active


@dataclass(frozen=True)
class Account:
    """What masks and their distributions come to: sums over units, [rows].

    Attributes:
        mask: The masks, with the gradient of :func:`credited` if it was asked for.
        log_q: Log-probability of the masks under the posterior.
        log_p: That under the prior.
        kl: KL divergence of the posterior from the prior; a row per posterior.
        anchor: KL divergence of the prior from where it started; a row per prior. ``None`` if it
            was not asked for.
    """

    mask: Tensor
    log_q: Tensor
    log_p: Tensor
    kl: Tensor
    anchor: Tensor | None


def account(
    mask: Tensor,
    posterior: Tensor,
    prior: Tensor,
    start: float | Tensor | None,
    fits_prior: bool,
    credit: float | None = None,
) -> Account:
    """Account for masks, [rows, units], under a posterior and a prior with log-odds like them.

    Log-odds of fewer rows serve one copy of the batch after the other; one row of the prior serves
    all. ``start`` are the log-odds that the prior started from; ``None``: no anchor is wanted.
    Unless it ``fits_prior``, the divergence of the posterior has no gradient in the prior.
    ``credit`` is the scale of :func:`credited`; ``None``: the masks carry no gradient.

    Examples:
        >>> logits, even = torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)
        >>> sums = account(torch.tensor([[1.0, 0.0]]), even, logits, 0.0, fits_prior=False)
        >>> sums.log_q.exp(), sums.anchor.shape
        (tensor([0.2500]), torch.Size([1]))
    """
    if posterior.dtype.itemsize < 4:  # sums over units in single precision
        posterior, prior = posterior.float(), prior.float()
    mask = mask.to(posterior.dtype)
    return Account(*_Account.apply(mask, posterior, prior, start, fits_prior, credit))  # type: ignore[no-untyped-call]


class _Account(torch.autograd.Function):
    """Written out by hand: autograd would take twice the time, most of a step's on a CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        mask: Tensor,
        posterior: Tensor,
        prior: Tensor,
        start: float | Tensor | None,
        fits_prior: bool,
        credit: float | None,
    ) -> tuple[Tensor | None, ...]:
        dot = torch.linalg.vecdot
        copies = mask.reshape(-1, *posterior.shape)
        keep, keep_prior = torch.sigmoid(posterior), torch.sigmoid(prior)
        none, none_prior = F.softplus(posterior).sum(-1), F.softplus(prior).sum(-1)
        gap = posterior - prior
        moved: Tensor | None = None
        anchor: Tensor | None = None
        log_q = dot(posterior, copies) - none
        log_p = dot(prior, copies) - none_prior
        kl = dot(keep, gap) - none + none_prior
        if start is not None:
            moved = prior - start
            anchor = dot(keep_prior, moved) - none_prior + _softplus_sum(start, prior.shape[-1])
        ctx.save_for_backward(copies, keep, keep_prior, gap, moved)
        ctx.fits_prior, ctx.credit = fits_prior, credit
        ctx.set_materialize_grads(False)
        applied = mask.view_as(mask)
        if credit is None:
            ctx.mark_non_differentiable(applied)
        return applied, log_q.flatten(), log_p.flatten(), kl, anchor

    @staticmethod
    def backward(
        ctx: Any,
        applied: Tensor | None,
        log_q: Tensor | None,
        log_p: Tensor | None,
        kl: Tensor | None,
        anchor: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        copies, keep, keep_prior, gap, moved = ctx.saved_tensors
        own = of_prior = None
        if ctx.needs_input_grad[1]:
            if kl is not None:
                own = _of_keep(gap, keep).mul_(kl.unsqueeze(-1))
            if log_q is not None:
                own = _add(own, copies - keep, _per_row(log_q, copies))
            if applied is not None:
                own = _add(own, *_credit(applied, copies, keep), ctx.credit / 2)
        if ctx.needs_input_grad[2]:
            if anchor is not None:
                of_prior = _of_keep(moved, keep_prior).mul_(anchor.unsqueeze(-1))
            if kl is not None and ctx.fits_prior:
                of_prior = _add(of_prior, (keep_prior - keep).unsqueeze(0), kl.unsqueeze(-1))
            if log_p is not None:
                of_prior = _add(of_prior, copies - keep_prior, _per_row(log_p, copies))
        return None, own, of_prior, None, None, None


def _softplus_sum(logits: float | Tensor, units: int) -> float | Tensor:
    """Sum of softplus over units with common log-odds, or each its own."""
    if isinstance(logits, Tensor):
        return F.softplus(logits).expand(units).sum()
    return units * (max(logits, 0.0) + math.log1p(math.exp(-abs(logits))))


def _of_keep(gradient: Tensor, keep: Tensor) -> Tensor:
    """Gradient in log-odds of a gradient in keep rates: times keep * (1 - keep)."""
    of_logits: Tensor = torch.ops.aten.sigmoid_backward(gradient, keep)
    return of_logits


def _credit(gradient: Tensor, copies: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of twice the gradient of :func:`credited` in the log-odds, [copies, ...] each."""
    return (copies - keep).abs_(), gradient.reshape(copies.shape)


def _per_row(gradient: Tensor, copies: Tensor) -> Tensor:
    """Gradient of one number per mask, to be multiplied with the masks."""
    return gradient.reshape(*copies.shape[:-1], 1)


def _add(total: Tensor | None, values: Tensor, weights: Tensor, scale: float = 1.0) -> Tensor:
    """Add the product of values, [copies, ...], and weights, summed over copies of the batch.

    It is added in place.
    """
    if total is not None and values.shape[0] == 1:
        return total.addcmul_(values.squeeze(0), weights.squeeze(0), value=scale)
    product = values * weights
    product = product.sum(0) if product.shape[0] > 1 else product.squeeze(0)
    return product.mul_(scale) if total is None else total.add_(product, alpha=scale)
