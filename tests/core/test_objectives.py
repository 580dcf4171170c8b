from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gflowout.core import objectives


def values(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_residual_is_zero_for_the_posterior_and_only_there() -> None:
    log_reward = values(0, 16)
    log_z = log_reward.logsumexp(0)
    log_q = log_reward - log_z
    exact = objectives.trajectory_balance(log_q, log_reward, log_z.expand(16))
    assert exact.abs().max() < 1e-20
    for change in (log_q + 0.1 * values(1, 16), log_q - 0.2):
        assert objectives.trajectory_balance(change, log_reward, log_z.expand(16)).min() > 0


@given(st.integers(0, 1000))
def test_residual_is_never_negative(seed: int) -> None:
    residual = objectives.trajectory_balance(values(seed, 8), values(seed + 1, 8), values(2, 8))
    assert (residual >= 0).all()


def test_batch_log_z_makes_the_loss_a_variance() -> None:
    log_q, log_reward = values(0, 7, 3), values(1, 7, 3)
    log_z = objectives.batch_log_z(log_q, log_reward)
    loss = objectives.trajectory_balance(log_q, log_reward, log_z).mean(0)
    torch.testing.assert_close(loss, (log_reward - log_q).var(0, correction=0))


def test_batch_log_z_needs_no_gradient() -> None:
    """The gradient is that of the variance, although the mean is held fixed."""
    log_reward = values(1, 9)
    held, free = values(0, 9).requires_grad_(), values(0, 9).requires_grad_()
    log_z = objectives.batch_log_z(held, log_reward)
    objectives.trajectory_balance(held, log_reward, log_z).mean().backward()
    (log_reward - free).var(correction=0).backward()
    torch.testing.assert_close(held.grad, free.grad)


def test_on_policy_gradient_is_that_of_the_reverse_kl() -> None:
    """In expectation over masks, half of the gradient of trajectory balance is that of the KL."""
    log_reward = values(3, 8)
    log_target = log_reward.log_softmax(0)
    table = values(4, 8).requires_grad_()
    log_q = table.log_softmax(0)
    weight = log_q.detach().exp()
    log_z = log_reward.logsumexp(0).expand(8)
    residual = objectives.trajectory_balance(log_q, log_reward, log_z)
    (tb,) = torch.autograd.grad((weight * residual).sum() / 2, table)
    log_q = table.log_softmax(0)
    (kl,) = torch.autograd.grad((log_q.exp() * (log_q - log_target)).sum(), table)
    torch.testing.assert_close(tb, kl)


def test_reward_has_no_gradient_and_scales_the_likelihood() -> None:
    likelihood, prior = values(0, 4).requires_grad_(), values(1, 4).requires_grad_()
    reward = objectives.log_reward(likelihood, prior, beta=0.5)
    assert not reward.requires_grad
    torch.testing.assert_close(reward, (0.5 * likelihood + prior).detach())


@pytest.mark.parametrize("shapes", [((4, 1), (4,), (4,)), ((4,), (4,), (4, 1)), ((4,), (1,), (4,))])
def test_shapes_that_would_broadcast_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"must have one shape, got log_q .* log_z"):
        objectives.trajectory_balance(*(torch.zeros(shape) for shape in shapes))
    with pytest.raises(ValueError, match="must have one shape"):
        objectives.batch_log_z(torch.zeros(4), torch.zeros(4, 1))
