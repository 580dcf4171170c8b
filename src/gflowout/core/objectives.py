"""Trajectory balance and its relatives, as pure functions of log-probabilities.

All inputs are one number per trajectory. Shapes must agree exactly: a [batch, 1] tensor beside a
[batch] one would silently broadcast to [batch, batch], so it is an error here.
"""

from __future__ import annotations

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


def _same_shape(**values: Tensor) -> None:
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"all arguments must have one shape, got {listed}")
