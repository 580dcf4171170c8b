"""Likelihoods against torch.distributions and closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions, nn
from training_loop import descend

import gflowout as gfo
from gflowout.core.likelihoods import LIKELIHOODS


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def normal(likelihood: gfo.Gaussian, output: Tensor) -> distributions.Normal:
    if likelihood.heteroscedastic:
        mean, log_variance = output.chunk(2, -1)
        return distributions.Normal(mean, (log_variance / 2).exp())
    return distributions.Normal(output, (likelihood.log_variance / 2).exp())


CASES: list[tuple[gfo.Likelihood, tuple[int, ...], Any, Any]] = [
    (
        gfo.Categorical(4),
        (5, 4),
        lambda: torch.randint(4, (5,)),
        lambda likelihood, output: distributions.Categorical(logits=output),
    ),
    (
        gfo.Categorical(4),
        (5, 3, 4),
        lambda: torch.randint(4, (5, 3)),
        lambda likelihood, output: distributions.Categorical(logits=output),
    ),
    (
        gfo.Binary(),
        (5,),
        lambda: torch.randint(2, (5,)).float(),
        lambda likelihood, output: distributions.Bernoulli(logits=output),
    ),
    (
        gfo.Binary(),
        (5, 1),
        lambda: torch.randint(2, (5, 1)),
        lambda likelihood, output: distributions.Bernoulli(logits=output),
    ),
    (
        gfo.MultiLabel(3),
        (5, 3),
        lambda: torch.randint(2, (5, 3)),
        lambda likelihood, output: distributions.Bernoulli(logits=output),
    ),
    (gfo.Gaussian(1, noise=0.4), (5, 1), lambda: torch.randn(5, 1), normal),
    (gfo.Gaussian(1, noise=2.0), (5,), lambda: torch.randn(5), normal),
    (gfo.Gaussian(3, noise=0.7), (5, 3), lambda: torch.randn(5, 3), normal),
    (gfo.Gaussian(2, noise=0.7), (5, 4, 2), lambda: torch.randn(5, 4, 2), normal),
    (gfo.Gaussian(2, heteroscedastic=True), (5, 4), lambda: torch.randn(5, 2), normal),
]


@pytest.mark.parametrize(("likelihood", "shape", "labels", "reference"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_is_that_of_the_distribution(
    likelihood: gfo.Likelihood, shape: tuple[int, ...], labels: Any, reference: Any, dtype: Any
) -> None:
    output, y = 2 * torch.randn(shape, dtype=dtype), labels()
    scores = likelihood.log_prob(output, likelihood.target(y))
    y = y if isinstance(likelihood, gfo.Categorical) else y.to(dtype)
    expected = reference(likelihood, output).log_prob(y).reshape(5, -1).sum(-1)
    assert scores.shape == (5,)
    assert scores.dtype == dtype
    assert torch.allclose(scores, expected, rtol=1e-5)


@pytest.mark.parametrize(("likelihood", "shape", "labels", "reference"), CASES)
def test_samples_are_the_mean_of_the_distribution(
    likelihood: gfo.Likelihood, shape: tuple[int, ...], labels: Any, reference: Any
) -> None:
    output = torch.randn(shape)
    distribution = reference(likelihood, output)
    mean = distribution.probs if hasattr(distribution, "probs") else distribution.mean
    found = likelihood.samples(output)
    assert torch.allclose(found, mean.reshape(found.shape))


@pytest.mark.parametrize(("likelihood", "shape", "labels", "reference"), CASES)
def test_labels_are_encoded_apart(
    likelihood: gfo.Likelihood, shape: tuple[int, ...], labels: Any, reference: Any
) -> None:
    """Examples with different labels look different to a mask posterior, equal ones alike."""
    y = labels()
    encoded = likelihood.encode(likelihood.target(y))
    assert encoded.shape == (5, likelihood.label_size)
    again = likelihood.encode(likelihood.target(y.flip(0)))
    assert torch.equal(again.flip(0), encoded)
    if y.reshape(5, -1).shape[1] == 1 or isinstance(likelihood, gfo.MultiLabel):
        for left in range(5):
            for right in range(5):
                same = torch.equal(encoded[left], encoded[right])
                assert same == torch.equal(y[left], y[right])


@pytest.mark.parametrize(("likelihood", "shape", "labels", "reference"), CASES)
def test_config_builds_the_same_likelihood(
    likelihood: gfo.Likelihood, shape: tuple[int, ...], labels: Any, reference: Any
) -> None:
    again = LIKELIHOODS[type(likelihood).__name__](**likelihood.config())
    output, target = torch.randn(shape), likelihood.target(labels())
    assert torch.equal(again.log_prob(output, target), likelihood.log_prob(output, target))
    assert repr(again) == repr(likelihood)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_are_scored_in_single(dtype: torch.dtype) -> None:
    output = torch.randn(6, 3).to(dtype)
    y = torch.randint(3, (6,))
    likelihood = gfo.Categorical(3)
    scores = likelihood.log_prob(output, y)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores, likelihood.log_prob(output.float(), y))


@given(st.floats(-200, 200), st.booleans())
@settings(max_examples=50, deadline=None)
def test_extreme_logits_stay_finite(value: float, yes: bool) -> None:
    logit = torch.tensor([value], requires_grad=True)
    score = gfo.Binary().log_prob(logit, torch.tensor([float(yes)]))
    score.sum().backward()
    signed = value if yes else -value
    exact = -math.log1p(math.exp(-signed)) if signed > 0 else signed - math.log1p(math.exp(signed))
    assert math.isclose(score.item(), exact, rel_tol=1e-5, abs_tol=1e-6)
    assert logit.grad is not None
    assert torch.isfinite(logit.grad).all()
    pair = torch.tensor([[0.0, value]])
    two = gfo.Categorical(2).log_prob(pair, torch.tensor([int(yes)]))
    assert torch.allclose(two, score, atol=2e-6)


def test_binary_and_two_classes_agree() -> None:
    logit = torch.randn(7)
    y = torch.randint(2, (7,))
    binary, two = gfo.Binary(), gfo.Categorical(2)
    expected = two.log_prob(binary.class_logits(logit), y)
    assert torch.allclose(binary.log_prob(logit, binary.target(y)), expected)
    assert torch.allclose(binary.class_logits(logit).softmax(-1)[:, 1], binary.samples(logit))


def test_multi_label_is_a_sum_of_binaries() -> None:
    output, y = torch.randn(6, 4), torch.rand(6, 4)
    parts = [gfo.Binary().log_prob(output[:, at], y[:, at]) for at in range(4)]
    many = gfo.MultiLabel(4)
    assert torch.allclose(many.log_prob(output, many.target(y)), torch.stack(parts).sum(0))


def test_soft_labels_average_the_hard_ones() -> None:
    output, weight = torch.randn(6), torch.rand(6)
    yes, no = (gfo.Binary().log_prob(output, torch.full((6,), value)) for value in (1.0, 0.0))
    found = gfo.Binary().log_prob(output, weight)
    assert torch.allclose(found, weight * yes + (1 - weight) * no, atol=1e-6)


def test_ignored_positions_count_for_nothing() -> None:
    likelihood = gfo.Categorical(3, ignore_index=-100)
    plain = gfo.Categorical(3)
    output, y = torch.randn(2, 4, 3, requires_grad=True), torch.randint(3, (2, 4))
    padded = y.clone()
    padded[0, 2:] = -100
    target = likelihood.target(padded)
    scores = likelihood.log_prob(output, target)
    assert torch.allclose(scores[0], plain.log_prob(output[:1, :2], y[:1, :2])[0])
    assert torch.allclose(scores[1], plain.log_prob(output, y)[1])
    scores.sum().backward()
    assert output.grad is not None
    assert output.grad[0, 2:].abs().max() == 0
    changed = y.clone()
    changed[0, 2:] = (y[0, 2:] + 1) % 3
    encoded = [likelihood.encode(likelihood.target(padded)), plain.encode(changed)]
    assert not torch.allclose(encoded[0][0], encoded[1][0])
    with pytest.raises(ValueError, match="got labels from"):
        plain.target(padded)


def test_gaussian_of_dimension_one_takes_flat_or_not() -> None:
    likelihood = gfo.Gaussian(1, noise=0.5)
    output, y = torch.randn(5), torch.randn(5)
    scores = [
        likelihood.log_prob(o, likelihood.target(t))
        for o in (output, output[:, None])
        for t in (y, y[:, None])
    ]
    assert all(torch.equal(score, scores[0]) for score in scores)


def test_fixed_noise_is_not_learned() -> None:
    fixed = gfo.Gaussian(2, noise=0.3, learn_noise=False)
    assert [p for p in fixed.parameters() if p.requires_grad] == []
    assert torch.allclose(fixed.log_variance.exp().sqrt(), torch.tensor(0.3))
    assert list(gfo.Gaussian(2, heteroscedastic=True).parameters()) == []


def test_settled_noise_does_not_follow_later_training() -> None:
    likelihood = gfo.Gaussian(2, noise=0.5)
    output, y = torch.randn(4, 2), torch.randn(4, 2)
    before = likelihood.log_prob(output, y).detach()
    settled, frozen = likelihood.settle(output)
    settled = settled.detach().clone()
    with torch.no_grad():
        likelihood.log_variance.add_(3.0)
    assert torch.allclose(frozen.log_prob(settled, y), before)
    assert not torch.allclose(likelihood.log_prob(output, y), before)


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_the_noise_of_the_data_is_recovered_by_training(heteroscedastic: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 3)
    true = torch.tensor([0.2, 1.5])
    y = x @ torch.randn(3, 2) + true * torch.randn(1000, 2)
    likelihood = gfo.Gaussian(2, heteroscedastic=heteroscedastic)
    net = nn.Sequential(nn.Identity(), nn.Linear(3, 4 if heteroscedastic else 2))
    model = gfo.wrap(net, "none", ["0"], likelihood=likelihood, example=(x[:2],))
    optimiser = torch.optim.Adam(model.parameter_groups(lr=0.05))
    descend(model, x, y, optimiser, 250)
    noise = model.predict(x[:50], samples=1).aleatoric_variance().sqrt()
    assert torch.allclose(noise, true.expand_as(noise), rtol=0.25)
    assert torch.allclose(noise.mean(0), true, rtol=0.1)


def test_a_posterior_sees_each_of_a_fixed_number_of_labels() -> None:
    y = torch.tensor([[0, 2, -1], [2, 0, -1]])  # the same classes at other places
    average = gfo.Categorical(3, ignore_index=-1)
    apart = gfo.Categorical(3, ignore_index=-1, positions=3)
    assert torch.equal(*average.encode(average.target(y)))
    expected = torch.zeros(2, 9)
    expected[0, [0, 5]] = expected[1, [2, 3]] = 1.0
    assert torch.equal(apart.encode(apart.target(y)), expected)
    assert apart.config() == {"classes": 3, "ignore_index": -1, "positions": 3}
    outputs = torch.randn(2, 3, 3)
    assert torch.equal(apart.log_prob(outputs, y), average.log_prob(outputs, y))


@pytest.mark.parametrize("positions", [None, 5])
def test_classes_of_a_bucket_are_added_up(positions: int | None) -> None:
    classes, buckets = 1000, 16
    plain = gfo.Categorical(classes, ignore_index=-1, positions=positions)
    hashed = gfo.Categorical(classes, ignore_index=-1, positions=positions, buckets=buckets)
    bucket = [label * 2654435761 % 2**32 * buckets // 2**32 for label in range(classes)]
    assert min(bucket.count(value) for value in range(buckets)) > 50  # about 62 each
    y = torch.randint(-1, classes, (7, 5))
    for labels in (y, torch.rand(7, 5, classes).softmax(-1)):
        own, each = (likelihood.encode(labels) for likelihood in (hashed, plain))
        assert own.shape == (7, hashed.label_size)
        expected = torch.zeros(7, positions or 1, buckets)
        expected.index_add_(2, torch.tensor(bucket), each.reshape(7, -1, classes))
        torch.testing.assert_close(own, expected.flatten(1))
    assert gfo.Categorical(**hashed.config()).config() == hashed.config()
    with pytest.raises(ValueError, match="buckets must be an integer >= 1, got 0"):
        gfo.Categorical(3, buckets=0)


def test_another_number_of_labels_is_refused() -> None:
    likelihood = gfo.Categorical(3, positions=4)
    with pytest.raises(ValueError, match=r"y must have 4 labels per example.*got shape \(2, 3\)"):
        likelihood.target(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="positions must be an integer >= 1, got 0"):
        gfo.Categorical(3, positions=0)
