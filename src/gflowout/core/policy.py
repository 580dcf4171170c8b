"""Mask distributions: how masks are drawn, and how probable they are.

A site's mask is a vector of Bernoulli units, independent given the generator's inputs and the
blocks before; dependence between sites comes from conditioning on earlier masks. Everything is kept
as logits, so that log-probabilities come from log-sigmoid and never from the log of a clamped
probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.noise import Noise
from gflowout.core.trajectory import Trajectory

Choose = Callable[[Tensor, slice], Tensor]
"""``choose(logits of a block, its units) -> mask of the block``, drawn or given."""


def logit(probability: float) -> float:
    """Log-odds of a probability.

    Examples:
        >>> logit(0.5)
        0.0
    """
    return math.log(probability) - math.log1p(-probability)


def single(values: Tensor) -> Tensor:
    """The same in single precision at least: half precision loses sums over many units.

    Examples:
        >>> single(torch.zeros(2).half()).dtype, single(torch.zeros(2).double()).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_prob(mask: Tensor, logits: Tensor) -> Tensor:
    r"""Log-probability of masks under independent Bernoulli units.

    .. math:: \log q(z) = \sum_j z_j \log \pi_j + (1 - z_j) \log (1 - \pi_j),
              \qquad \pi = \mathrm{sigmoid}(\text{logits})

    ``mask`` is [..., units] and 1 where a unit is kept; ``logits``, the log-odds of keeping a unit,
    broadcast to it; logits of fewer rows serve one copy of the batch after the other. The result is
    [...].

    Examples:
        >>> log_prob(torch.tensor([1.0, 0.0]), torch.zeros(2)).exp()
        tensor(0.2500)
    """
    if logits.dim() == mask.dim() == 2 and 1 < logits.shape[0] < mask.shape[0]:
        return log_prob(mask.reshape(-1, *logits.shape), logits).flatten()
    # log sigmoid(a) = a - softplus(a), log(1 - sigmoid(a)) = -softplus(a)
    spread = single(logits).expand_as(mask)
    kept: Tensor = torch.linalg.vecdot(spread, mask.to(spread.dtype))
    return kept - F.softplus(spread).sum(-1)


def log_prob_at_rate(mask: Tensor, logit: float | Tensor) -> Tensor:
    """Log-probability of masks whose units are all kept with the same log-odds, or each its own.

    Examples:
        >>> log_prob_at_rate(torch.tensor([1.0, 0.0]), 0.0).exp()
        tensor(0.2500)
    """
    mask = single(mask)
    if isinstance(logit, Tensor):
        return log_prob(mask, logit.to(mask.dtype))
    none = -mask.shape[-1] * (max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))
    if logit == 0:
        return mask.new_full(mask.shape[:-1], none)
    return mask.sum(-1) * logit + none


def kl(logits: Tensor, prior: Tensor) -> Tensor:
    """KL divergence of independent Bernoulli units from the prior's log-odds, summed over units.

    Examples:
        >>> kl(torch.tensor([0.0, 0.0]), torch.tensor(0.0))
        tensor(0.)
    """
    logits, prior = single(logits), single(prior)
    per_unit = torch.sigmoid(logits) * (logits - prior) - F.softplus(logits) + F.softplus(prior)
    return per_unit.sum(-1)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Masks with log-odds ``logits`` from uniform random numbers of the masks' shape.

    Logits of fewer rows serve one copy of the batch after the other.

    Examples:
        >>> draw(torch.zeros(3), torch.tensor([0.1, 0.6, 0.4]))
        tensor([1., 0., 1.])
    """
    copies = uniform.reshape(-1, *logits.shape[:-1], uniform.shape[-1])
    kept = below(copies, torch.sigmoid(logits.detach()))
    return kept.reshape(uniform.shape).to(logits.dtype)


def below(uniform: Tensor, probability: Tensor | float) -> Tensor:
    """1 where ``uniform`` is below ``probability``, else 0, in the dtype of ``uniform``.

    Examples:
        >>> below(torch.tensor([0.1, 0.6]), 0.5)
        tensor([1., 0.])
    """
    # Ten times as fast on a CPU as comparing to bool and converting.
    return torch.lt(uniform, probability, out=torch.empty_like(uniform))


def bernoulli(noise: Noise, keep: float | Tensor, rows: int, units: int, like: Tensor) -> Tensor:
    """Draw masks, [copies * rows, units], whose units are kept at the rate ``keep``, or at its own.

    Without noise the result is the mean, the keep rate, [1, units].

    Examples:
        >>> from gflowout.core.noise import NoNoise
        >>> bernoulli(NoNoise(), 0.9, rows=5, units=2, like=torch.zeros(()))
        tensor([[0.9000, 0.9000]])
    """
    if noise.expected:
        return torch.as_tensor(keep, dtype=torch.float32, device=like.device).expand(1, units)
    return below(noise.uniform(rows, units, like), keep)


def explore(
    logits: Tensor, centre: float | Tensor, temperature: float, random: Tensor | None
) -> Tensor:
    """Logits of the training policy: tempered towards the prior, with random masks mixed in.

    ``centre`` is the log-odds of the prior's keep rate, common or per unit; rows where ``random``
    [batch] is true take the prior. At a keep rate of 0.5 this is the paper's policy; at any other,
    the uncentred form would drag masks back to 0.5.

    Examples:
        >>> explore(torch.tensor([[2.0]]), centre=0.0, temperature=2.0, random=None)
        tensor([[1.]])
    """
    if random is None:
        return logits if temperature == 1 else centre + (logits - centre) / temperature
    scale = (~random).to(logits.dtype).div_(temperature).unsqueeze(-1)
    return torch.addcmul(centre * (1 - scale), logits, scale)


def given(mask: Tensor) -> Choose:
    """Choose the units of a mask that exists already."""
    return lambda _, part: mask[..., part]


def drawing(noise: Noise, rows: int, units: int, like: Tensor) -> Choose:
    """Choose by drawing from the logits, ``rows`` masks per copy of the batch.

    Without noise the keep rates themselves are chosen, which later blocks and sites then see.
    """
    if noise.expected:
        places = range(units)
        return lambda logits, part: _keep_rates(logits, len(places[part]))
    uniform = noise.uniform(rows, units, like)
    return lambda logits, part: draw(logits, uniform[..., part])


def _keep_rates(logits: Tensor, units: int) -> Tensor:
    """Keep rates, [rows or 1, units], of log-odds that may be one number for all units."""
    keep = torch.sigmoid(logits.detach())
    return keep.expand(*(keep.shape[:-1] or (1,)), units)


def exploring(method: Any, site: int, trajectory: Trajectory, rows: int, like: Tensor) -> Choose:
    """Choose a site's mask in training: the given one, or a draw from the training policy.

    ``method`` has ``starts`` of keep rates and options ``temperature`` and ``epsilon``, the
    probability that one of the ``rows`` masks per copy of the batch is random; see :func:`explore`.
    """
    if trajectory.given is not None:
        return given(trajectory.given[site])
    options, centre, noise = method.options, method.starts.at(site), trajectory.noise
    random = None
    if options.epsilon:
        random = noise.uniform(rows, 1, like).squeeze(-1) < options.epsilon
    uniform = noise.uniform(rows, method.sites[site].units, like)

    def choose(logits: Tensor, part: slice) -> Tensor:
        around = centre[part] if isinstance(centre, Tensor) else centre
        tempered = explore(logits.detach(), around, options.temperature, random)
        return draw(tempered, uniform[..., part])

    return choose


def log_prob_explored(
    method: Any, site: int, trajectory: Trajectory, logits: Tensor, log_q: Tensor
) -> Tensor:
    """Log-probability of a site's masks under the training policy, without gradient, [rows].

    That of :func:`exploring`; ``log_q`` is that of the posterior itself, with log-odds ``logits``,
    from which given masks are taken to be drawn.
    """
    options, mask, log_q = method.options, trajectory.masks[site], log_q.detach()
    if trajectory.given is not None or (options.temperature == 1 and not options.epsilon):
        return log_q
    centre = method.starts.at(site)
    log_q = log_prob(mask, explore(logits.detach(), centre, options.temperature, None))
    if not options.epsilon:
        return log_q
    chance = mask.new_tensor([1 - options.epsilon, options.epsilon]).log()
    return torch.logaddexp(log_q + chance[0], log_prob_at_rate(mask, centre) + chance[1])
