"""Trajectory balance and its relatives, as pure functions of log-probabilities.

All inputs are one number per trajectory. Shapes must agree exactly: a [batch, 1] tensor beside a
[batch] one would silently broadcast to [batch, batch], so it is an error here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def log_reward(log_likelihood: Tensor, log_prior: Tensor, beta: float = 1.0) -> Tensor:
    r"""Log of the unnormalised posterior that the masks are to follow, without gradient.

    .. math:: \log R = \beta \log p(y \mid x, z) + \log p(z \mid x)

    Equation 7 of the paper with :math:`\beta = 1`; for ID-GFlowOut (equation 12) the likelihood
    is that of the whole training set.

    Examples:
        >>> import torch
        >>> log_reward(torch.tensor([-1.0]), torch.tensor([-2.0]))
        tensor([-3.])
    """
    _same_shape(log_likelihood=log_likelihood, log_prior=log_prior)
    return (beta * log_likelihood + log_prior).detach()


def trajectory_balance(log_q: Tensor, log_reward: Tensor, log_z: Tensor) -> Tensor:
    r"""Squared trajectory-balance residual, one per trajectory.

    .. math:: (\log Z + \log q(z) - \log R(z))^2

    Equation 5 of the paper. It is 0 for every mask exactly when q is the posterior and Z the
    evidence. q is the untempered policy.

    Examples:
        >>> import torch
        >>> trajectory_balance(torch.tensor([-2.0]), torch.tensor([-3.0]), torch.tensor([-1.0]))
        tensor([0.])
    """
    _same_shape(log_q=log_q, log_reward=log_reward, log_z=log_z)
    return (log_z + log_q - log_reward).square()


def batch_log_z(log_q: Tensor, log_reward: Tensor) -> Tensor:
    r"""Estimate log Z from masks with a common target: the mean of log R - log q over axis 0.

    With it, trajectory balance is the variance of :math:`\log R - \log q` (the log-variance
    loss), and there is nothing to learn. The result carries no gradient; none is needed, since
    the residuals sum to 0 over the axis. Arguments and result are [masks, ...].

    Examples:
        >>> import torch
        >>> batch_log_z(torch.tensor([-1.0, -3.0]), torch.tensor([-5.0, -5.0]))
        tensor([-3., -3.])
    """
    _same_shape(log_q=log_q, log_reward=log_reward)
    return (log_reward - log_q).detach().mean(0, keepdim=True).expand_as(log_q)


def marginal_bound(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    r"""Lower bound of log p(y | x) from several masks per example, [batch].

    .. math:: \log \frac1R \sum_{r=1}^R w_r \, p(y \mid x, z_r), \qquad
              w_r = \frac{p(z_r \mid x)}{q(z_r)}

    for masks that were drawn from q; without weights, from p itself. In expectation it is at most
    the log evidence and grows with R; it is the log evidence for any masks if q is the posterior.
    Arguments are [draws, batch], the log-likelihood being that of all parts of an example together:
    their sum.

    Examples:
        >>> import torch
        >>> marginal_bound(torch.tensor([[0.25], [0.75]]).log()).exp()
        tensor([0.5000])
    """
    if log_weights is not None:
        _same_shape(log_likelihood=log_likelihood, log_weights=log_weights)
        log_likelihood = log_likelihood + log_weights
    return log_likelihood.logsumexp(0) - math.log(log_likelihood.shape[0])


def own_weights(log_q: Tensor) -> Tensor:
    r"""Log-weights, zeros, that give the marginal bound a gradient in the distribution of masks.

    For masks drawn from q itself, weights q / q with the denominator held fixed lead to the
    gradient :math:`\sum_r \tilde w_r \nabla \log q(z_r)` with the shares :math:`\tilde w_r` of the
    draws in the likelihood: as R grows, that of :math:`\log \sum_z q(z) p(y \mid x, z)`. The mean
    of :math:`\nabla \log q` over draws, 0 in expectation, is subtracted. Argument and result are
    [draws, batch].

    Examples:
        >>> import torch
        >>> own_weights(torch.tensor([[-1.0], [-3.0]]))
        tensor([[0.],
                [0.]])
    """
    centred = log_q - log_q.mean(0, keepdim=True)
    return centred - centred.detach()


def leave_one_out(log_q: Tensor, cost: Tensor) -> Tensor:
    """Zero with the gradient of an expected cost: REINFORCE, minus the mean of the other draws.

    Arguments are [sites, draws, batch]; costs are averaged over draws and batch.

    Examples:
        >>> import torch
        >>> log_q = torch.zeros(1, 2, 1, requires_grad=True)
        >>> leave_one_out(log_q, torch.tensor([[[1.0], [3.0]]])).backward()
        >>> log_q.grad.flatten()
        tensor([-1.,  1.])
    """
    _same_shape(log_q=log_q, cost=cost)
    draws = cost.shape[1]
    centred = (cost - cost.mean(1, keepdim=True)).detach() * (draws / (draws - 1))
    surrogate = (centred * log_q).mean((1, 2)).sum()
    return surrogate - surrogate.detach()


def sub_trajectory_balance(
    log_ratio: Tensor, log_flow: Tensor, log_reward: Tensor, decay: float
) -> Tensor:
    r"""Squared balance of all parts of a trajectory, [rows]: SubTB(decay), a weighted mean.

    .. math:: \sum_{i < j} \lambda^{j - i} \Big( \log F_i
              + \sum_{i \le k < j} \log \frac{q_k}{p_k} - \log F_j \Big)^2
              \Big/ \sum_{i < j} \lambda^{j - i}

    States are masks of the first sites; :math:`F_i` p(masks so far) is the flow through one, with
    :math:`F_0 = Z` and :math:`F_L = R / p`, the likelihood. All are 0 exactly when q is the
    posterior and F_i the evidence given the masks so far. Balance of single steps alone is
    :func:`detailed_balance`, that of the longest part :func:`trajectory_balance`.

    Args:
        log_ratio: log q - log p of each site's mask, [sites, rows].
        log_flow: log F of the states before each site, [sites, rows].
        log_reward: log R - log p, [rows].
        decay: Weight of a part relative to one that is a site shorter.

    Examples:
        >>> ratio, flow = torch.tensor([[0.5], [0.5]]), torch.tensor([[-2.0], [-1.5]])
        >>> sub_trajectory_balance(ratio, flow, torch.tensor([-1.0]), decay=0.9)
        tensor([0.])
    """
    potential, sites = _potential(log_ratio, log_flow, log_reward), len(log_ratio)
    total, weights = torch.zeros_like(log_reward), 0.0
    for length in range(1, sites + 1):
        weight = decay ** (length - 1)
        total = total + weight * (potential[:-length] - potential[length:]).square().sum(0)
        weights += weight * (sites + 1 - length)
    return total / weights


def detailed_balance(log_ratio: Tensor, log_flow: Tensor, log_reward: Tensor) -> Tensor:
    """Squared balance of every site alone, [rows]: a mean; see :func:`sub_trajectory_balance`.

    Examples:
        >>> ratio, flow = torch.tensor([[0.5], [0.5]]), torch.tensor([[-2.0], [-1.5]])
        >>> detailed_balance(ratio, flow, torch.tensor([-2.0]))
        tensor([0.5000])
    """
    potential = _potential(log_ratio, log_flow, log_reward)
    return (potential[:-1] - potential[1:]).square().mean(0)


def _potential(log_ratio: Tensor, log_flow: Tensor, log_reward: Tensor) -> Tensor:
    """Log F - the sum of log q - log p so far, [sites + 1, rows]: balanced if all are equal."""
    _same_shape(log_ratio=log_ratio, log_flow=log_flow)
    _same_shape(log_ratio=log_ratio[0], log_reward=log_reward)
    summed = torch.cat([torch.zeros_like(log_ratio[:1]), log_ratio.cumsum(0)])
    return torch.cat([log_flow, log_reward.unsqueeze(0)]) - summed


def credit_control(
    log_q: Tensor,
    log_likelihood: Tensor,
    kl: Tensor,
    credits: Sequence[Tensor],
    masks: Sequence[Tensor],
    keeps: Sequence[Tensor],
) -> Tensor:
    r"""Surrogate with an unbiased gradient of KL(q || p) - E_q[f], by credits as control variates.

    That is half the gradient of on-policy trajectory balance with f the log-likelihood. For any
    coefficients w that do not depend on the masks z of a draw beyond the sites before,

    .. math:: h(z) = \sum_{l, j} w_{lj} (z_{lj} - \pi_{lj}(z_{<l})), \qquad
              \mathbb{E}[h \nabla \log q] = \mathbb{E} \Big[
              \sum_{l, j} w_{lj} \nabla \pi_{lj}(z_{<l}) \Big]:

    given :math:`z_{<l}` the term of a unit has mean 0, so scores of earlier sites do not see it;
    scores of later sites have mean 0 given this one; and the score of the site itself gives
    :math:`\operatorname{Cov}(z, \nabla \log q) = \nabla \pi`. Hence

    .. math:: \nabla \mathbb{E}[f] = \mathbb{E} \Big[ (f - h - b) \nabla \log q
              + \sum_{l, j} w_{lj} \nabla \pi_{lj} \Big].

    For each draw w is the mean slope of f in the masks of the *other* draws, and so is the
    baseline b, f of the other draws with their own linear part taken off. The KL divergence of a
    site, known given earlier masks, is differentiated as it is, and it is a cost of the masks
    before. Nothing is biased; what is left for the score function is what is not linear.

    Args:
        log_q: Of the masks, [draws, batch].
        log_likelihood: f, [draws, batch].
        kl: Of all sites, each given earlier masks, [draws, batch].
        credits: Slopes of f in the masks, [draws, batch, units] per site.
        masks: As drawn, on-policy, like ``credits``.
        keeps: Keep rates that they were drawn with, given earlier masks.

    Returns:
        [draws, batch]; the value is that of ``kl``.

    Examples:
        >>> log_q, keep = torch.zeros(2, 1), torch.tensor([[[0.5]], [[0.5]]], requires_grad=True)
        >>> f, slope = torch.tensor([[0.0], [3.0]]), torch.full((2, 1, 1), 3.0)  # f = 3 z
        >>> mask = torch.tensor([[[0.0]], [[1.0]]])
        >>> credit_control(log_q, f, log_q, [slope], [mask], [keep]).mean().backward()
        >>> keep.grad.flatten()  # -3 in total, without noise
        tensor([-1.5000, -1.5000])
    """
    _same_shape(log_q=log_q, log_likelihood=log_likelihood, kl=kl)
    own = cross = linear = torch.zeros_like(log_q)
    for credit, mask, keep in zip(credits, masks, keeps, strict=True):
        shift, others = mask - keep.detach(), _mean_of_others(credit)
        own = own + (credit * shift).sum(-1)
        cross = cross + (others * shift).sum(-1)
        linear = linear + (others * keep).sum(-1)
    cost = kl - log_likelihood
    advantage = (cost + cross - _mean_of_others(cost + own)).detach()
    surrogate = kl - linear + advantage * log_q
    return kl.detach() + surrogate - surrogate.detach()


def _mean_of_others(values: Tensor) -> Tensor:
    """For each draw the mean over the other draws, [draws, ...]."""
    return (values.sum(0, keepdim=True) - values) / (values.shape[0] - 1)


def _same_shape(**values: Tensor) -> None:
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"all arguments must have one shape, got {listed}")
