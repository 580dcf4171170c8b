"""The result of a prediction: its methods are the pure functions on the right quantities."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import predicted

import gflowout as gfo
from gflowout.core import uncertainty

S, B = 6, 4
CLASS_SCORES = [
    "entropy",
    "expected_entropy",
    "mutual_information",
    "max_probability",
    "dempster_shafer",
    "energy",
    "max_logit",
    "gen",
    "variation_ratio",
    "logit_disagreement",
]
REGRESSION_SCORES = ["aleatoric_variance", "epistemic_variance"]


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def drawn(likelihood: gfo.Likelihood, *shape: int) -> gfo.Predictive:
    generator = torch.Generator().manual_seed(0)
    return gfo.Predictive(2 * torch.randn(S, B, *shape, generator=generator), likelihood)


CLASSES: list[tuple[gfo.Predictive, Any, Any]] = [
    (drawn(gfo.Categorical(3), 3), lambda o: o, (B,)),
    (drawn(gfo.Categorical(3), 5, 3), lambda o: o, (B, 5)),
    (drawn(gfo.Binary()), lambda o: torch.stack((-o / 2, o / 2), -1), (B,)),
    (drawn(gfo.Binary(), 1), lambda o: torch.cat((-o / 2, o / 2), -1), (B,)),
    (drawn(gfo.MultiLabel(3), 3), lambda o: torch.stack((-o / 2, o / 2), -1), (B, 3)),
]


@pytest.mark.parametrize(("pred", "logits", "shape"), CLASSES)
def test_methods_are_the_pure_functions(pred: gfo.Predictive, logits: Any, shape: Any) -> None:
    scores = logits(pred.outputs)
    p = scores.softmax(-1)
    for found, expected in (
        (pred.entropy(), uncertainty.predictive_entropy(p)),
        (pred.expected_entropy(), uncertainty.expected_entropy(p)),
        (pred.mutual_information(), uncertainty.mutual_information(p)),
        (pred.max_probability(), uncertainty.max_probability(p)),
        (pred.variance(), uncertainty.variance(p)),
        (pred.dempster_shafer(), uncertainty.dempster_shafer(scores)),
        (pred.dempster_shafer("draws"), uncertainty.dempster_shafer(scores, "draws")),
        (pred.energy(), uncertainty.energy(scores)),
        (pred.energy("draws"), uncertainty.energy(scores, "draws")),
        (pred.max_logit(), uncertainty.max_logit(scores)),
        (pred.max_logit("draws"), uncertainty.max_logit(scores, "draws")),
        (pred.gen(), uncertainty.gen(p)),
        (pred.gen("draws", gamma=0.5, top=2), uncertainty.gen(p, "draws", 0.5, 2)),
        (pred.variation_ratio(), uncertainty.variation_ratio(p)),
        (pred.variation_ratio("mean"), uncertainty.variation_ratio(p, "mean")),
        (pred.logit_disagreement(), uncertainty.logit_disagreement(scores)),
    ):
        assert found.shape == shape
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("pred", "logits", "shape"), CLASSES)
def test_mean_averages_probabilities_never_logits(
    pred: gfo.Predictive, logits: Any, shape: Any
) -> None:
    p = logits(pred.outputs).softmax(-1)
    several = isinstance(pred.likelihood, gfo.Categorical)
    expected = p.mean(0) if several else p.mean(0)[..., 1]
    assert torch.allclose(pred.mean, expected.reshape(pred.mean.shape), atol=1e-6)
    of_logits = logits(pred.outputs).mean(0).softmax(-1)
    of_logits = of_logits if several else of_logits[..., 1]
    assert not torch.allclose(pred.mean, of_logits.reshape(pred.mean.shape), atol=1e-2)


LABELS: list[tuple[gfo.Predictive, Any]] = [
    (CLASSES[0][0], lambda: torch.randint(3, (B,))),
    (CLASSES[1][0], lambda: torch.randint(3, (B, 5))),
    (CLASSES[2][0], lambda: torch.randint(2, (B,)).float()),
    (CLASSES[3][0], lambda: torch.randint(2, (B, 1)).float()),
    (CLASSES[4][0], lambda: torch.randint(2, (B, 3)).float()),
    (drawn(gfo.Gaussian(2, heteroscedastic=True), 4), lambda: torch.randn(B, 2)),
    (drawn(gfo.Gaussian(1, noise=0.5)), lambda: torch.randn(B)),
]


@pytest.mark.parametrize(("pred", "labels"), LABELS)
def test_log_prob_is_the_log_of_the_mean_likelihood(pred: gfo.Predictive, labels: Any) -> None:
    torch.manual_seed(0)
    y = labels()
    likelihood = pred.likelihood
    target = likelihood.target(y)
    each = torch.stack([likelihood.log_prob(output, target).exp() for output in pred.outputs])
    found = pred.log_prob(y)
    assert found.shape == (B,)
    assert torch.allclose(found, each.mean(0).log(), atol=1e-5)
    assert bool((found >= each.log().mean(0) - 1e-6).all())


def test_log_prob_of_a_label_with_parts_is_the_joint_one() -> None:
    torch.manual_seed(1)
    labels = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    pred = gfo.Predictive(3 * torch.randn(S, 1, 3).expand(S, 8, 3), gfo.MultiLabel(3))
    found = pred.log_prob(labels).exp()
    by_hand = []
    for label in labels:
        products = []
        for draw in pred.outputs[:, 0].sigmoid():
            products.append(
                math.prod(float(p if v else 1 - p) for p, v in zip(draw, label, strict=True))
            )
        by_hand.append(sum(products) / S)
    assert torch.allclose(found, torch.tensor(by_hand), atol=1e-6)
    assert math.isclose(float(found.sum()), 1, rel_tol=1e-5)
    mean = pred.mean[0]
    alone = torch.where(labels == 1, mean, 1 - mean).prod(-1)
    assert not torch.allclose(found, alone, atol=1e-2)

    tags = torch.tensor(list(itertools.product(range(3), repeat=2)))
    several = gfo.Predictive(3 * torch.randn(S, 1, 2, 3).expand(S, 9, 2, 3), gfo.Categorical(3))
    assert math.isclose(float(several.log_prob(tags).exp().sum()), 1, rel_tol=1e-5)


def test_log_prob_of_classes_is_that_of_the_mean() -> None:
    pred = CLASSES[0][0]
    y = torch.tensor([0, 1, 2, 0])
    assert torch.allclose(pred.log_prob(y), pred.mean[torch.arange(B), y].log(), atol=1e-6)


def test_log_prob_stays_finite_for_hopeless_labels() -> None:
    pred = gfo.Predictive(torch.tensor([[[0.0, -500.0]], [[0.0, -600.0]]]), gfo.Categorical(2))
    found = pred.log_prob(torch.tensor([1])).item()
    assert math.isclose(found, -500 - math.log(2), rel_tol=1e-6)


def test_one_sample_has_no_disagreement() -> None:
    pred = gfo.Predictive(torch.randn(1, B, 3), gfo.Categorical(3))
    assert torch.equal(pred.mutual_information(), torch.zeros(B))
    assert torch.equal(pred.variance(), torch.zeros(B))
    assert torch.allclose(pred.entropy(), pred.expected_entropy())


@pytest.mark.parametrize("dim", [1, 2])
def test_regression_methods_are_the_pure_functions(dim: int) -> None:
    pred = drawn(gfo.Gaussian(dim, heteroscedastic=True), 2 * dim)
    means, noise = pred.outputs[..., :dim], pred.outputs[..., dim:].exp()
    assert torch.equal(pred.samples, means)
    for found, expected in (
        (pred.mean, means.mean(0)),
        (pred.epistemic_variance(), uncertainty.epistemic_variance(means)),
        (pred.aleatoric_variance(), uncertainty.aleatoric_variance(noise)),
        (pred.variance(), uncertainty.total_variance(means, noise)),
        (pred.quantile(0.9), uncertainty.gaussian_mixture_quantile(means, noise, 0.9)),
    ):
        assert found.shape == (B, dim)
        assert torch.allclose(found, expected)


def test_learned_noise_is_that_of_the_time_of_prediction() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    x, y = torch.randn(B, 3), torch.randn(B, 1)
    model = gfo.wrap(
        net, "mc", ["1"], likelihood=gfo.Gaussian(1, noise=0.5), example=(x[:2],), rate=0.2
    )
    pred = predicted(model, x)
    before = pred.log_prob(y)
    assert torch.allclose(pred.aleatoric_variance(), torch.tensor(0.25))
    with torch.no_grad():
        model.likelihood.log_variance.add_(1.0)
    assert torch.equal(pred.log_prob(y), before)
    assert not torch.allclose(predicted(model, x).log_prob(y), before)
    assert not pred.outputs.requires_grad


@pytest.mark.parametrize("score", CLASS_SCORES)
def test_scores_of_classes_do_not_apply_to_regression(score: str) -> None:
    pred = drawn(gfo.Gaussian(1, heteroscedastic=True), 2)
    with pytest.raises(TypeError, match=rf"{score}\(\) is for classes; for Gaussian.*use variance"):
        getattr(pred, score)()


@pytest.mark.parametrize("score", [*REGRESSION_SCORES, "quantile"])
@pytest.mark.parametrize("pred", [pred for pred, *_ in CLASSES], ids=repr)
def test_scores_of_regression_do_not_apply_to_classes(pred: gfo.Predictive, score: str) -> None:
    kind = type(pred.likelihood).__name__
    with pytest.raises(
        TypeError, match=rf"{score}\(\) is for regression \(Gaussian, ...\); for {kind}"
    ):
        getattr(pred, score)(*([0.5] if score == "quantile" else []))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("likelihood", "shape", "y"),
    [
        (gfo.Binary(), (), lambda batch: torch.ones(batch)),
        (gfo.Binary(), (1,), lambda batch: torch.ones(batch)),
        (gfo.MultiLabel(1), (1,), lambda batch: torch.ones(batch, 1)),
        (gfo.Gaussian(1), (), torch.randn),
        (gfo.Gaussian(1), (1,), torch.randn),
        (gfo.Categorical(2), (2,), lambda batch: torch.ones(batch, dtype=torch.long)),
        (gfo.Categorical(2), (1, 2), lambda batch: torch.ones(batch, 1, dtype=torch.long)),
    ],
)
def test_a_batch_of_one_is_read_like_any_other(
    likelihood: gfo.Likelihood, shape: Any, y: Any, batch: int
) -> None:
    outputs = torch.randn(S, 2, *shape)
    labels = y(2)
    both = gfo.Predictive(outputs, likelihood)
    some = gfo.Predictive(outputs[:, :batch], likelihood)
    assert some.mean.shape == (batch, *both.mean.shape[1:])
    assert torch.allclose(some.mean, both.mean[:batch])
    assert torch.allclose(some.variance(), both.variance()[:batch])
    assert torch.allclose(some.log_prob(labels[:batch]), both.log_prob(labels)[:batch])


def test_predictions_of_different_likelihoods_are_not_joined() -> None:
    classes = gfo.Predictive(torch.zeros(2, 3, 4), gfo.Categorical(4))
    labels = gfo.Predictive(torch.zeros(2, 3, 4), gfo.MultiLabel(4))
    assert gfo.Predictive.join([classes, classes]).mean.shape == (6, 4)
    with pytest.raises(ValueError, match=r"same likelihood, got Categorical.*, MultiLabel"):
        gfo.Predictive.join([classes, labels])


def test_repr_shows_sizes() -> None:
    assert repr(CLASSES[0][0]) == "Predictive(6 samples, mean [4, 3], Categorical(classes=3))"


def test_labels_are_checked() -> None:
    with pytest.raises(ValueError, match=r"y must be in \[0, 2\]"):
        CLASSES[0][0].log_prob(torch.tensor([0, 1, 2, 3]))
    wrong: Tensor = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"y must have shape \[4\].*got \[2\]"):
        CLASSES[0][0].log_prob(wrong)
