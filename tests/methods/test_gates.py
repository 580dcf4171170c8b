"""Stochastic gates: their penalty, their noise, how they predict, and gates that learn to close."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from differences import assert_gradient
from torch import Tensor, nn

import gflowout as gfo
from gflowout.methods import gates

NORMAL = NormalDist()
MEANS = ((-0.4, 0.1, 0.5), (0.9, 1.6))


def net() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.mul_(2)
    return layers


def small(means: tuple[tuple[float, ...], ...] = MEANS, **options: Any) -> gfo.MaskedModel:
    """Two sites of three and two units, with gates of known means."""
    model = gfo.wrap(
        net(), "gates", ["1", "3"], likelihood=gfo.Categorical(2), example=(torch.zeros(2, 2),),
        **options,
    )  # fmt: skip
    with torch.no_grad():
        numbers = model.method.means
        wanted = torch.tensor([mean for site in means for mean in site])
        numbers.moved.copy_((wanted - numbers.start) / 10)
    return model


def batch(size: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(size, 2, generator=generator), torch.arange(size) % 2


@pytest.mark.parametrize("noise", [0.5, 0.2])
def test_the_penalty_and_its_gradient_against_draws(noise: float) -> None:
    """The gradient of an expectation by the score function, which does not use the formula."""
    means = torch.tensor([-0.6, -0.1, 0.0, 0.3, 0.5, 1.2], requires_grad=True)
    draws = 200_000
    normal = torch.randn(draws, 6, generator=torch.Generator().manual_seed(0))
    is_open = (gates.gate(means, noise, normal) > 0).float()
    probability = gates.open_probability(means, noise)
    (gradient,) = torch.autograd.grad(probability.sum(), means)
    for found, samples in (
        (probability, is_open),
        (gradient, (is_open - is_open.mean(0)) * normal / noise),
    ):
        deviation = samples.std(0) / math.sqrt(draws) + 1e-6
        assert ((found - samples.mean(0)).abs() < 4.5 * deviation).all()
        assert ((found + 0.05 - samples.mean(0)).abs() > 8 * deviation).all()  # it can tell
    density = [NORMAL.pdf(mean / noise) / noise for mean in means.tolist()]
    torch.testing.assert_close(gradient, torch.tensor(density))


def test_the_penalty_counts_the_gates_of_all_sites_and_no_examples() -> None:
    model = small(strength=0.3, noise=0.4)
    count = sum(NORMAL.cdf(mean / 0.4) for site in MEANS for mean in site)
    for size in (4, 12):
        x, y = batch(size)
        losses = model(x, y=y)
        assert losses.prior.item() == pytest.approx(0.3 * count, rel=1e-5)
        assert losses.total.item() == pytest.approx((losses.nll + losses.prior).item())
    assert losses.log_q is losses.log_reward is losses.log_z is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x, y=y).prior.item() == pytest.approx(0.3 * count, rel=1e-5)
    for site, means in enumerate(MEANS):
        expected = torch.tensor([NORMAL.cdf(mean / 0.4) for mean in means])
        torch.testing.assert_close(model.method.open_probability(site), expected)
        torch.testing.assert_close(model.method.mean(site), torch.tensor(means))
    model.set_options(strength=0.0)
    assert model(x, y=y).prior.item() == 0


def expected_gate(mean: float, noise: float) -> float:
    """Mean of a gate by integration over the quantiles of its noise."""
    quantiles = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    return (mean + noise * torch.special.ndtri(quantiles)).clamp(0, 1).mean().item()


@pytest.mark.parametrize("noise", [0.5, 0.3])
def test_gates_have_the_distribution_that_they_should(noise: float) -> None:
    model, draws = small(noise=noise), 20_000
    x, y = torch.randn(1, 2).expand(draws, 2), torch.zeros(draws).long()
    torch.manual_seed(0)
    predicted = model.predict(x[:1], samples=draws, return_masks=True).masks
    for masks in (model(x, y=y).masks, [mask[:, 0] for mask in predicted]):
        joined, means = torch.cat(masks, -1), [mean for site in MEANS for mean in site]
        assert joined.min() == 0
        assert joined.max() == 1
        for found, exact in (
            ((joined == 0).float(), [NORMAL.cdf(-mean / noise) for mean in means]),
            ((joined == 1).float(), [1 - NORMAL.cdf((1 - mean) / noise) for mean in means]),
            (joined, [expected_gate(mean, noise) for mean in means]),
        ):
            error = (found.mean(0) - torch.tensor(exact)).abs()
            assert (error < 4.5 * found.std(0) / math.sqrt(draws) + 2e-4).all()
        spread = torch.corrcoef(joined.T) - torch.eye(5)
        assert spread.abs().max() < 4.5 / math.sqrt(draws)


def test_shared_gates_are_those_of_the_whole_batch() -> None:
    x, y = batch()
    for shared, rows in ((False, 12), (True, 1)):
        model = small(shared=shared)
        assert len(torch.cat(model(x, y=y).masks, -1).unique(dim=0)) == rows
        drawn = torch.cat(model.predict(x, samples=7, return_masks=True).masks, -1)
        assert [len(mask.unique(dim=0)) for mask in drawn] == [rows] * 7
        assert len(drawn.flatten(0, 1).unique(dim=0)) == 7 * rows
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    whole, one_by_one = (
        model.predict(x, samples=7, chunk=chunk, generator=seed).samples
        for chunk, seed in zip((None, 1), seeds, strict=True)
    )
    torch.testing.assert_close(whole, one_by_one)
    model(x, y=y).nll.backward()  # a common gate, too, has a gradient from the likelihood
    assert (model.method.means.moved.grad != 0).any()


def test_the_prediction_is_the_integral_over_the_gates() -> None:
    """By quantiles of the noise of two gates, without the wrapped model."""
    model, draws = small(((-9.0, 0.1, 9.0), (9.0, 0.7))), 8000
    x, _ = batch(3)
    generator = torch.Generator().manual_seed(1)
    samples = model.predict(x, samples=draws, generator=generator).samples
    noise = torch.special.ndtri((torch.arange(400) + 0.5) / 400)
    grid = torch.cartesian_prod(noise, noise)
    first, second = ((mean + 0.5 * grid[:, at]).clamp(0, 1) for at, mean in ((0, 0.1), (1, 0.7)))
    one, zero = torch.ones_like(first), torch.zeros_like(first)
    exact = []
    for row in x:
        hidden = model.backbone[1](model.backbone[0](row)) * torch.stack([zero, first, one], -1)
        hidden = model.backbone[3](model.backbone[2](hidden)) * torch.stack([one, second], -1)
        exact.append(model.backbone[4](hidden).softmax(-1).mean(0))
    target, deviation = torch.stack(exact).detach(), samples.std(0) / math.sqrt(draws)
    assert ((samples.mean(0) - target).abs() < 4.5 * deviation + 1e-4).all()
    model.set_options(predict="mean")  # is another answer
    assert ((model.predict(x).mean - target).abs() > 8 * deviation).any()


def test_without_noise_every_sample_is_that_of_the_cut_off_means() -> None:
    model = small(predict="mean")
    x, y = batch()
    pred = model.predict(x, samples=5, return_masks=True)
    cut = [torch.tensor(means).clamp(0, 1) for means in MEANS]
    for mask, expected in zip(pred.masks, cut, strict=True):
        torch.testing.assert_close(mask, expected.expand(5, len(x), -1))
    hidden = model.backbone[1](model.backbone[0](x)) * cut[0]
    hidden = model.backbone[3](model.backbone[2](hidden)) * cut[1]
    output = model.backbone[4](hidden)
    torch.testing.assert_close(pred.samples, output.softmax(-1).detach().expand(5, -1, -1))
    torch.testing.assert_close(model(x), output)
    assert len(model(x, y=y).masks[0].unique(dim=0)) > 1  # training has its noise all the same


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_the_means_against_finite_differences(shared: bool) -> None:
    model = small(strength=0.2, shared=shared).double()
    x, y = batch(40)
    moved = model.method.means.moved
    tolerances = {"step": 1e-6, "rtol": 1e-4, "atol": 1e-5}
    penalty = assert_gradient(model, moved, x.double(), y, seed=2, **tolerances)
    density = [10 * 0.2 * NORMAL.pdf(mean / 0.5) / 0.5 for site in MEANS for mean in site]
    torch.testing.assert_close(penalty, torch.tensor(density).double(), rtol=1e-5, atol=1e-6)


def selected(steps: int = 200, **options: Any) -> gfo.MaskedModel:
    """Train on a regression with 5 relevant features of 20; 400 examples."""
    torch.manual_seed(0)
    x = torch.randn(400, 20)
    y = (x[:, :5] * torch.tensor([1.0, -1.0, 0.7, 1.5, -0.7])).sum(1, keepdim=True)
    y = y + 0.3 * torch.randn(400, 1)
    model = gfo.wrap(
        nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)),
        "gates",
        ["input"],
        likelihood=gfo.Gaussian(1),
        example=(x[:2],),
        **options,
    )
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-2, generator_lr=2e-3))
    for _ in range(steps):
        some = torch.randint(400, (100,))
        optimiser.zero_grad()
        model(x[some], y=y[some]).total.backward()
        optimiser.step()
    return model


@pytest.mark.parametrize("shared", [False, True])
def test_gates_of_features_that_do_not_matter_close(shared: bool) -> None:
    model = selected(strength=0.05, shared=shared)
    found = model.method.open_probability(0)
    assert found[:5].min() > 0.95  # from 0.84
    assert found[5:].max() < 0.1
    if not shared:  # what is closed is not seen: such features may change as they like
        model.set_options(predict="mean")
        x = torch.randn(50, 20)
        other = torch.cat([x[:, :5], 30 * torch.randn(50, 15)], 1)
        torch.testing.assert_close(model.predict(x).mean, model.predict(other).mean)


@pytest.mark.parametrize("wrong", ["no penalty", "wrong sign"])
def test_they_stay_open_without_a_reason_to_close(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gates.open_probability
    if wrong == "wrong sign":
        monkeypatch.setattr(gates, "open_probability", lambda *args: -right(*args))
    model = selected(strength=0.0 if wrong == "no penalty" else 0.05)
    found = right(model.method.mean(0), 0.5)
    assert found[:5].min() > 0.95
    assert found[5:].mean() > 0.6


def test_a_price_that_no_feature_is_worth_closes_all() -> None:
    assert selected(strength=20.0).method.open_probability(0).max() < 0.01


def test_units_with_rates_of_their_own_start_there(tmp_path: Path) -> None:
    sites = {"input": gfo.Units(keep=[0.05, 0.9]), "1": None}

    def wrapped(**options: Any) -> gfo.MaskedModel:
        return gfo.wrap(
            net(), "gates", sites, likelihood=gfo.Categorical(2), example=(torch.zeros(2, 2),),
            **options,
        )  # fmt: skip

    model = wrapped(start=0.2, noise=0.3)
    torch.testing.assert_close(model.method.open_probability(0), torch.tensor([0.05, 0.9]))
    torch.testing.assert_close(model.method.mean(1), torch.full((3,), 0.2))
    with torch.no_grad():
        model.method.means.moved.add_(0.01)
    gfo.save(model, tmp_path / "model.safetensors")
    again = gfo.load(tmp_path / "model.safetensors", net())
    for site in range(2):
        torch.testing.assert_close(again.method.mean(site), model.method.mean(site))
    for name in ("start", "noise"):  # means would have another meaning
        with pytest.raises(ValueError, match=f"{name} is fixed by wrap"):
            model.set_options(**{name: 0.4})


def test_the_paper_shares_gates_and_predicts_without_noise() -> None:
    options = small(preset="paper").method.options
    assert (options.start, options.noise) == (0.5, 0.5)
    assert options.shared
    assert options.predict == "mean"


def test_gates_far_from_the_middle_stay_finite() -> None:
    model = small(((-1e4, 0.5, 1e4), (1e4, -1e4)))
    x, y = batch()
    losses = model(x, y=y)
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert torch.equal(losses.masks[1], torch.tensor([1.0, 0.0]).expand(len(x), 2))
