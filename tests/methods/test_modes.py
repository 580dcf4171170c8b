"""Modes: the exact loss of the mixture, draws from the router, and answers that differ by mode."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.core import objectives


def build(**options: Any) -> gfo.MaskedModel:
    """A router away from its start, and modes whose answers differ."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3.0)
    options = {"modes": 3} | options
    likelihood, example = gfo.MultiLabel(4), (torch.zeros(2, 3),)
    model = gfo.wrap(net, "modes", ["1", "3"], likelihood=likelihood, example=example, **options)
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


def data() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(7, 3, generator=draws), torch.rand(7, 4, generator=draws).round()


def by_hand(model: gfo.MaskedModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """log p(c | x), [modes, batch], and outputs under every mode, [modes, batch, labels]."""
    hidden = torch.tanh(model.backbone[0](x))
    log_p = model.method.router(hidden.detach()).log_softmax(-1)
    outputs = []
    for mode in range(model.method.options.modes):
        masks = [model.method.get_buffer(f"masks{site}")[mode] for site in (0, 1)]
        first, second = (mask * len(mask) / mask.sum() for mask in masks)
        late = torch.tanh(model.backbone[2](hidden * first)) * second
        outputs.append(model.backbone[4](late))
    return log_p.T, torch.stack(outputs)


def exact(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> Tensor:
    """The loss: all labels of an example together, all modes by their probability."""
    log_p, outputs = by_hand(model, x)
    scores = torch.distributions.Bernoulli(logits=outputs).log_prob(y).sum(-1)
    return -(log_p + scores).logsumexp(0).mean()


@pytest.mark.parametrize("foldable", [True, False])
def test_loss_and_gradients_are_those_of_the_mixture(foldable: bool) -> None:
    model, (x, y) = build(), data()
    if not foldable:
        model.spec = dataclasses.replace(model.spec, foldable=False)
    parameters = list(model.parameters())
    losses, expected = model(x, y=y), exact(model, x, y)
    torch.testing.assert_close(losses.total, expected)
    assert losses.total is losses.nll
    found = torch.autograd.grad(losses.total, parameters)
    for one, other in zip(found, torch.autograd.grad(expected, parameters), strict=True):
        assert one.any()
        torch.testing.assert_close(one, other)
    assert [list(mask.shape) for mask in losses.masks] == [[3, 7, 6], [3, 7, 5]]


def mean_of_logs(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    return (log_likelihood + (0 if log_weights is None else log_weights)).mean(0)


def unweighted(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    return right_bound(log_likelihood)


right_bound = objectives.marginal_bound


@pytest.mark.parametrize("wrong", [mean_of_logs, unweighted])
def test_wrong_losses_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = build(), data()
    monkeypatch.setattr(objectives, "marginal_bound", wrong)
    assert (model(x, y=y).total - exact(model, x, y)).abs() > 0.1


def test_given_masks_of_all_modes_have_the_same_loss() -> None:
    for options in ({}, {"rate": 0.4}):
        model, (x, y) = build(**options), data()
        losses = model(x, y=y)
        torch.testing.assert_close(model(x, y=y, masks=losses.masks).nll, losses.nll)
        alone = model(x, y=y, masks=[mask[0] for mask in losses.masks])  # of no known mode
        output = model(x, masks=[mask[0] for mask in losses.masks])
        score = torch.distributions.Bernoulli(logits=output).log_prob(y).sum(-1).mean()
        torch.testing.assert_close(alone.nll, -score)


def test_masks_overlap_little_and_use_every_unit() -> None:
    model = build(modes=2, scale=100.0)
    for site in (0, 1):
        masks = model.method.get_buffer(f"masks{site}")
        assert (masks.sum(0) >= 1).all()
        assert masks.prod(0).sum() <= 1  # odd numbers of units share one
    same = build(scale=1.0)
    x, _ = data()
    torch.testing.assert_close(same.eval()(x), same.backbone(x))


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_draws_follow_the_router_example_by_example(rate: float) -> None:
    model, (x, _) = build(rate=rate), data()
    draws = 4000
    masks = model.predict(x, samples=draws, return_masks=True).masks
    probabilities = by_hand(model, x)[0].exp()
    assert probabilities.std(1).max() > 0.1  # which examples differ in
    kept = torch.cat([model.method.get_buffer(f"masks{site}") for site in (0, 1)], -1)
    rates = torch.cat(masks, -1).mean(0)
    expected = (1 - rate) * probabilities.T @ kept
    error = (expected * (1 - expected) / draws).clamp(min=0).sqrt()
    assert ((rates - expected).abs() <= 4.5 * error + 2 / draws).all()
    # One mode at all sites: no draw keeps what no mode keeps.
    outside = torch.cat(masks, -1).unsqueeze(-2) > kept
    assert outside.any(-1).all(-1).sum() == 0


def test_the_mean_prediction_weights_modes_by_their_probability() -> None:
    model, (x, _) = build(), data()
    log_p, outputs = by_hand(model, x)
    expected = (log_p.exp().unsqueeze(-1) * outputs.sigmoid()).sum(0)
    pred = model.predict(x, samples=4000)
    error = pred.samples.std(0) / math.sqrt(4000)
    assert ((pred.mean - expected).abs() <= 4.5 * error + 1e-5).all()


def trained(method: str, **options: Any) -> float:
    """NLL per example where all five labels are 1 or all are 0, by the toss of a coin.

    The coin of half of the examples is known: their second input says it.
    """
    torch.manual_seed(0)
    coin = torch.randint(2, (200,)).float()
    known = torch.randint(2, (200,)).float()
    x = torch.stack((known, known * (2 * coin - 1)), -1)
    y = coin.unsqueeze(-1).expand(-1, 5)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    model = gfo.wrap(
        net, method, ["1", "3"], likelihood=gfo.MultiLabel(5), example=(x[:2],), **options
    )
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-2, generator_lr=1e-2), fused=True)
    descend(model, x, y, optimiser, 120)
    return -model.predict(x, samples=200).log_prob(y).mean().item()


def test_modes_take_answers_that_a_mean_cannot() -> None:
    half = math.log(2) / 2  # the coin, where it is not known
    assert trained("modes", modes=2) < half + 0.1
    assert trained("mc", rate=0.1) > 5 * half - 0.5  # each label tosses a coin of its own


def test_options_that_shape_parameters_stay() -> None:
    model = build()
    model.set_options(rate=0.2)
    for change in ({"modes": 4}, {"scale": 3.0}, {"hidden": (4,)}):
        with pytest.raises(ValueError, match=r"is fixed by wrap"):
            model.set_options(**change)
