"""Masks follow the distributions that they are said to be drawn from."""

from __future__ import annotations

from typing import Any

import enumeration
import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo

DRAWS = 20_000


def small(method: str, **options: Any) -> gfo.MaskedModel:
    """Sites of three and two units: 32 masks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 3))
    likelihood, example = gfo.Categorical(3), (torch.zeros(2, 2),)
    return gfo.wrap(net, method, ["1", "3"], likelihood=likelihood, example=example, **options)


def perturbed(method: str, **options: object) -> gfo.MaskedModel:
    """A model whose generators are far from their start."""
    extra = {"train_size": 10} if method == "id-gflowout" else {}
    model = small(method, prior_keep=0.7, **extra, **options)
    with torch.no_grad():
        for name, parameter in model.method.named_parameters():
            spread = 0.1 if name.endswith("bias") and method == "id-gflowout" else 1.0
            parameter.add_(spread * torch.randn_like(parameter))
    return model


def chi_square(drawn: Tensor, probabilities: Tensor) -> float:
    """Of counts of masks, over those expected at least five times."""
    counts = (drawn[:, None] == enumeration.all_masks(5)).all(-1).sum(0)
    expected = len(drawn) * probabilities
    likely = expected >= 5
    assert likely.sum() >= 5
    return ((counts - expected).square() / expected)[likely].sum().item()


LIMIT = 61.1  # at most 31 degrees of freedom, p = 0.001
X, Y = torch.tensor([[0.7, -0.4]]), torch.tensor([1])


@pytest.mark.parametrize(
    ("method", "source"), [("gflowout", "prior"), ("id-gflowout", "posterior")]
)
def test_predictions_draw_from_the_learned_distribution(method: str, source: str) -> None:
    model = perturbed(method)
    generators = getattr(model.method, source)
    expected = enumeration.generator_log_prob(model, generators, X, Y)[0].exp()
    drawn = torch.cat(model.predict(X, samples=DRAWS, return_masks=True).masks, -1)[:, 0]
    assert chi_square(drawn, expected) < LIMIT
    start = enumeration.log_fixed_prior(enumeration.all_masks(5), 0.7).exp()
    assert chi_square(drawn, start) > 10 * LIMIT


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
@pytest.mark.parametrize(
    ("temperature", "epsilon"), [(1.0, 0.0), (2.0, 0.0), (1.0, 0.4), (2.0, 0.3)]
)
def test_training_draws_from_the_exploring_posterior(
    method: str, temperature: float, epsilon: float
) -> None:
    """Site by site: tempered around the prior, or, with probability epsilon, the prior's start."""
    options = {"draws": 1, "group_size": 1} if method == "id-gflowout" else {}
    model = perturbed(method, temperature=temperature, epsilon=epsilon, **options)
    masks = enumeration.all_masks(5)
    start = torch.tensor(0.7).logit()
    expected = torch.ones(len(masks))
    for logits, mask in zip(
        posterior_logits(model, masks), enumeration.split(masks, model), strict=True
    ):
        tempered = torch.distributions.Bernoulli(logits=start + (logits - start) / temperature)
        random = torch.distributions.Bernoulli(logits=start)
        expected = expected * (
            (1 - epsilon) * tempered.log_prob(mask).sum(-1).exp()
            + epsilon * random.log_prob(mask).sum(-1).exp()
        )
    torch.manual_seed(1)
    drawn = torch.cat(model(X.expand(DRAWS, 2), y=Y.expand(DRAWS)).masks, -1)
    assert expected.sum().item() == pytest.approx(1, abs=1e-4)
    assert chi_square(drawn, expected) < LIMIT


@torch.no_grad()
def posterior_logits(model: gfo.MaskedModel, masks: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    handles = [
        policy.register_forward_hook(lambda _, args, out: seen.append(out[1]))
        for policy in model.method.posterior
    ]
    count = len(masks)
    model(X.expand(count, 2), y=Y.expand(count), masks=enumeration.split(masks, model))
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("method", ["mc", "gflowout", "id-gflowout", "combined"])
def test_the_mean_prediction_is_the_expectation_over_all_masks(method: str) -> None:
    """Within sampling error of brute force; the spread of the samples gives that error."""
    if method in ("gflowout", "id-gflowout"):
        model = perturbed(method)
        source = model.method.prior if method == "gflowout" else model.method.posterior
        weight = enumeration.generator_log_prob(model, source, X, Y)[0].exp()
    else:
        extra: dict[str, Any] = {"train_size": 10, "prior_keep": 0.7}
        if method == "mc":
            extra = {"rate": 0.4, "rescale": "none"}
        model = small(method, **extra)
        keep = 0.6 if method == "mc" else 0.7 * 0.7  # at its start, a product of two masks
        weight = enumeration.log_fixed_prior(enumeration.all_masks(5), keep).exp()
    masks = enumeration.split(enumeration.all_masks(5), model)
    with torch.no_grad():
        answers = model(X.expand(32, 2), masks=masks).softmax(-1)
    exact = weight @ answers
    prediction = model.predict(X, samples=DRAWS)
    error = prediction.samples[:, 0].std(0) / DRAWS**0.5
    assert ((prediction.mean[0] - exact).abs() < 4.5 * error + 1e-5).all()
