from __future__ import annotations

import enumeration
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gflowout.core import generators, policy


@given(st.integers(0, 100), st.integers(1, 8))
def test_log_prob_is_that_of_independent_bernoullis(seed: int, units: int) -> None:
    logits = 5 * torch.randn(units, generator=torch.Generator().manual_seed(seed))
    masks = enumeration.all_masks(units)
    expected = torch.distributions.Bernoulli(logits=logits).log_prob(masks).sum(-1)
    torch.testing.assert_close(policy.log_prob(masks, logits), expected, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 100))
def test_probabilities_of_all_masks_sum_to_one(seed: int) -> None:
    logits = 3 * torch.randn(6, generator=torch.Generator().manual_seed(seed))
    total = policy.log_prob(enumeration.all_masks(6), logits).exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("extreme", [-200.0, 200.0])
def test_extreme_logits_stay_finite(extreme: float) -> None:
    logits = torch.full((3,), extreme, requires_grad=True)
    for mask in (torch.zeros(3), torch.ones(3)):
        score = policy.log_prob(mask, logits)
        assert score.isfinite()
        (gradient,) = torch.autograd.grad(score, logits)
        assert gradient.isfinite().all()


def test_drawn_masks_follow_their_probabilities() -> None:
    logits = torch.tensor([-1.0, 0.0, 2.0])
    uniform = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0))
    drawn = policy.draw(logits.expand(40_000, 3), uniform)
    masks = enumeration.all_masks(3)
    counts = (drawn[:, None] == masks).all(-1).sum(0)
    expected = 40_000 * policy.log_prob(masks, logits).exp()
    chi_square = ((counts - expected).square() / expected).sum().item()
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001


def test_exploration_is_centred_on_the_prior() -> None:
    logits = torch.tensor([[3.0, -1.0]])
    centre = policy.logit(0.8)
    torch.testing.assert_close(
        policy.explore(logits, centre, 2.0, None), centre + (logits - centre) / 2
    )
    assert torch.equal(policy.explore(logits, centre, 1.0, None), logits)
    at_prior = policy.explore(torch.full((1, 2), centre), centre, 2.0, None)
    torch.testing.assert_close(at_prior, torch.full((1, 2), centre))
    rows = policy.explore(logits.expand(2, 2), centre, 1.0, torch.tensor([True, False]))
    torch.testing.assert_close(rows, torch.stack([torch.full((2,), centre), logits[0]]))


def test_generator_starts_at_the_prior_whatever_its_inputs() -> None:
    generator = generators.MaskGenerator([3, 0, 2], units=4, hidden=(8, 8), start=policy.logit(0.9))
    logits = generator(torch.randn(6, 3), torch.zeros(6, 0), torch.randn(6, 2))
    torch.testing.assert_close(logits.sigmoid(), torch.full((6, 4), 0.9))


def test_a_generator_without_inputs_is_a_logit_per_unit() -> None:
    generator = generators.MaskGenerator([0], units=4, hidden=(8, 8), start=0.0)
    assert [tuple(value.shape) for value in generator.parameters()] == [(4,)]
    assert generator(torch.zeros(5, 0)).shape == (1, 4)


@pytest.mark.parametrize("rate", [0.5, 0.07, 0.9, 1e-6, 1 - 1e-6])
def test_log_prob_at_one_rate_is_that_of_equal_logits(rate: float) -> None:
    masks, logit = enumeration.all_masks(5), policy.logit(rate)
    expected = torch.distributions.Bernoulli(logits=torch.tensor(logit)).log_prob(masks).sum(-1)
    torch.testing.assert_close(policy.log_prob_at_rate(masks, logit), expected)
