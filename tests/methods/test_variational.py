"""Variational dropout: its divergence, its noise, and variances that are learned."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from differences import assert_gradient
from relevance import learned
from torch import Tensor, nn

import gflowout as gfo
from gflowout.methods import variational


def small(alphas: tuple[float, ...] = (0.3, 0.8), **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    model = gfo.wrap(
        net,
        "variational",
        ["1", "3"],
        likelihood=gfo.Categorical(2),
        example=(torch.zeros(2, 2),),
        **{"train_size": 50, **options},
    )
    with torch.no_grad():
        numbers = model.method.log_alpha
        for moved, alpha in zip(numbers.split(numbers.moved), alphas, strict=True):
            moved.fill_((math.log(alpha) - numbers.start) / 10)
    return model


def exact_divergence(alpha: float) -> float:
    """-log(alpha) / 2 + E log|xi| under N(1, alpha), less its limit -(gamma + log 2) / 2."""
    # Midpoints, none of which falls on the pole of the logarithm.
    step = 1e-5
    normal = torch.arange(-10, 10, step, dtype=torch.float64) + step / 2 + 1e-9
    density = (-normal.square() / 2).exp() / math.sqrt(2 * math.pi)
    expected = ((1 + math.sqrt(alpha) * normal).abs().log() * density).sum().item() * step
    limit = -(0.5772156649015329 + math.log(2)) / 2
    return -math.log(alpha) / 2 + expected - limit


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.3, 1.0, 3.0, 20.0, 1000.0])
def test_divergence_against_numerical_integration(alpha: float) -> None:
    log_alpha = torch.tensor(math.log(alpha))
    exact = exact_divergence(alpha)
    assert variational.log_uniform_kl(log_alpha).item() == pytest.approx(exact, abs=0.01)
    if 0.05 <= alpha <= 1:  # the first term alone would not do
        assert abs(nn.functional.softplus(-log_alpha).item() / 2 - exact) > 0.02


@pytest.mark.parametrize("per_unit", [False, True])
def test_divergence_counts_units_and_examples(per_unit: bool) -> None:
    model = small(per_unit=per_unit, train_size=80, kl_weight=0.5)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    expected = 0.5 * (3 * exact_divergence(0.3) + 2 * exact_divergence(0.8)) / 80
    losses = model(x, y=y)
    assert losses.prior.item() == pytest.approx(expected, rel=0.02)
    assert losses.total.item() == pytest.approx((losses.nll + losses.prior).item())
    model.set_options(train_size=160, kl_weight=1.0)
    assert model(x, y=y).prior.item() == pytest.approx(losses.prior.item())
    assert losses.log_q is losses.log_reward is losses.log_z is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x, y=y).prior.item() == pytest.approx(losses.prior.item(), rel=1e-6)


def test_factors_have_mean_one_and_the_learned_variance() -> None:
    model, draws = small((0.3, 0.8)), 20_000
    x, y = torch.randn(1, 2).expand(draws, 2), torch.zeros(draws).long()
    predicted = model.predict(x[:1], samples=draws, return_masks=True).masks
    for masks in (model(x, y=y).masks, [mask[:, 0] for mask in predicted]):
        for mask, alpha in zip(masks, (0.3, 0.8), strict=True):
            assert (mask.mean(0) - 1).abs().max() < 4.5 * math.sqrt(alpha / draws)
            assert (mask.var(0) / alpha - 1).abs().max() < 4.5 * math.sqrt(2 / draws)
            spread = torch.corrcoef(mask.T) - torch.eye(mask.shape[1])
            assert spread.abs().max() < 4.5 / math.sqrt(draws)


def quadrature(points: int = 24) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the standard normal, from the Hermite recurrence (Golub & Welsch)."""
    off = torch.arange(1, points, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0].square()


def test_the_prediction_is_the_integral_over_the_noise() -> None:
    """By Gauss-Hermite quadrature over the five factors' two sites, without the wrapped model."""
    alphas, draws = (0.3, 0.8), 8000
    model = small(alphas)
    x = torch.tensor([[0.7, -1.2], [-0.4, 0.3]])
    samples = model.predict(x, samples=draws, generator=torch.Generator().manual_seed(1)).samples
    nodes, weights = quadrature(12)
    grid = torch.cartesian_prod(*[nodes] * 5).float()
    weight = torch.cartesian_prod(*[weights] * 5).prod(-1).float()
    exact = []
    for one in x:
        hidden = model.backbone[1](model.backbone[0](one)) * (1 + alphas[0] ** 0.5 * grid[:, :3])
        hidden = model.backbone[3](model.backbone[2](hidden)) * (1 + alphas[1] ** 0.5 * grid[:, 3:])
        exact.append(weight @ model.backbone[4](hidden).softmax(-1))
    target = torch.stack(exact).detach()
    deviation = samples.std(0) / math.sqrt(draws)
    assert ((samples.mean(0) - target).abs() < 4.5 * deviation + 1e-3).all()
    plain = model.backbone(x).softmax(-1).detach()  # the mean is not the network without noise
    assert ((plain - target).abs() > 8 * deviation).any()


@pytest.mark.parametrize("per_unit", [False, True])
def test_gradients_of_the_variances_against_finite_differences(per_unit: bool) -> None:
    model = small(per_unit=per_unit, train_size=5).double()
    x, y = torch.randn(12, 2, dtype=torch.float64), torch.arange(12) % 2
    assert_gradient(model, model.method.log_alpha.moved, x, y)


@pytest.mark.parametrize("per_unit", [False, True])
def test_noise_grows_where_it_does_no_harm(per_unit: bool) -> None:
    signal, noise = learned("variational", "alpha", per_unit=per_unit)
    assert signal.max() < 0.02  # from 0.1
    assert noise.min() > 1


def test_without_the_divergence_noise_has_no_reason_to_grow() -> None:
    signal, noise = learned("variational", "alpha", kl_weight=0.0)
    assert signal.max() < 0.02
    assert noise.max() < 0.3


def test_a_unit_that_nothing_needs_stays_finite() -> None:
    model = small()
    with torch.no_grad():
        model.method.log_alpha.moved.fill_(1e6)
    losses = model(torch.randn(4, 2), y=torch.tensor([0, 1, 0, 1]))
    losses.total.backward()
    assert model.method.alpha(0).item() == pytest.approx(math.exp(8))
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
