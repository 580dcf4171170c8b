"""Soft labels, smoothing, class weights, pixels and ordered classes against PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_loop import descend

import gflowout as gfo
from gflowout.training.module import hits

WEIGHT = (0.5, 2.0, 1.0, 3.0)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def hard(*shape: int) -> Tensor:
    return torch.randint(4, shape)


def soft(*shape: int) -> Tensor:
    return torch.rand(*shape, 4).softmax(-1)


@pytest.mark.parametrize("kind", [hard, soft])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("places", [(), (3,), (5, 6)])
def test_training_score_is_pytorchs_cross_entropy(
    kind: Any, smoothing: float, weight: Any, places: tuple[int, ...]
) -> None:
    likelihood = gfo.Categorical(4, label_smoothing=smoothing, weight=weight)
    output, y = torch.randn(7, *places, 4), kind(7, *places)
    target = y.movedim(-1, 1) if y.is_floating_point() else y
    tensor = None if weight is None else torch.tensor(weight)
    loss = F.cross_entropy(
        output.movedim(-1, 1), target, tensor, reduction="none", label_smoothing=smoothing
    )
    expected = -loss.reshape(7, -1).sum(-1)
    scores = likelihood.log_prob(output, likelihood.target(y))
    assert torch.allclose(scores, expected, rtol=1e-4, atol=1e-5)
    pixels = gfo.Categorical(4, label_smoothing=smoothing, weight=weight, axis=1)
    moved = pixels.log_prob(output.movedim(-1, 1), pixels.target(y))
    assert torch.allclose(moved, scores, atol=1e-5)


def test_smoothing_leaves_ignored_labels_alone() -> None:
    likelihood = gfo.Categorical(4, ignore_index=255, label_smoothing=0.3, weight=WEIGHT)
    output, y = torch.randn(2, 5, 4), hard(2, 5)
    y[0, :4] = 255
    loss = F.cross_entropy(
        output.movedim(-1, 1),
        y,
        torch.tensor(WEIGHT),
        ignore_index=255,
        label_smoothing=0.3,
        reduction="none",
    )
    scores = likelihood.log_prob(output, likelihood.target(y))
    assert torch.allclose(scores, -loss.sum(1), atol=1e-5)


def test_one_hot_labels_are_hard_labels() -> None:
    likelihood, output, y = gfo.Categorical(4), torch.randn(6, 4), hard(6)
    one_hot = likelihood.target(F.one_hot(y, 4).float())
    same = likelihood.log_prob(output, y)
    assert torch.allclose(likelihood.log_prob(output, one_hot), same)
    assert torch.equal(likelihood.encode(one_hot), likelihood.encode(y))
    net = nn.Sequential(nn.Linear(3, 4))
    x = torch.randn(6, 3)
    model = gfo.wrap(net, "mc", ["input"], likelihood=likelihood, example=(x,))
    pred = model.predict(x)
    assert hits(pred.likelihood, pred.mean, one_hot) == hits(pred.likelihood, pred.mean, y)


def test_an_excluded_class_may_be_impossible() -> None:
    output = torch.tensor([[0.0, 0.0, -torch.inf, 0.0]], requires_grad=True)
    y = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    score = gfo.Categorical(4).log_prob(output, y)
    score.sum().backward()
    assert score.item() == pytest.approx(-np.log(3))
    assert output.grad is not None
    assert not output.grad.isnan().any()


def test_predictions_are_without_weights_and_smoothing() -> None:
    likelihood = gfo.Categorical(4, label_smoothing=0.3, weight=WEIGHT, label_noise=0.2)
    output, y = torch.randn(5, 4), hard(5)
    settled, plain = likelihood.settle(output)
    assert repr(plain) == "Categorical(classes=4)"
    assert torch.equal(plain.log_prob(settled, y), gfo.Categorical(4).log_prob(output, y))
    labels = likelihood.of_labels()
    assert repr(labels) == "Categorical(classes=4, label_noise=0.2)"
    same = gfo.Categorical(4)
    assert same.settle(output)[1] is same


def test_what_weights_do_to_predictions() -> None:
    """At the optimum, probabilities are w_y p(y | x), normalised; dividing by w undoes it."""
    share = torch.tensor([0.1, 0.2, 0.3, 0.4])
    likelihood = gfo.Categorical(4, weight=WEIGHT)
    y = torch.repeat_interleave(torch.arange(4), (1000 * share).round().long())
    logits = torch.zeros(4, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=100)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -likelihood.log_prob(logits.expand(1000, 4), y).mean()
        value.backward()
        return value

    optimiser.step(loss)
    expected = share * torch.tensor(WEIGHT)
    mean = likelihood.samples(logits[None])[0]
    assert torch.allclose(mean, expected / expected.sum(), atol=1e-3)
    undone = mean / torch.tensor(WEIGHT)
    assert torch.allclose(undone / undone.sum(), share, atol=1e-3)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_segmentation_has_one_mask_and_one_score_per_picture() -> None:
    x, y = torch.randn(3, 1, 5, 7), torch.randint(4, (3, 5, 7))
    y[0, :2] = 255
    likelihood = gfo.Categorical(4, axis=1, ignore_index=255)
    model = gfo.wrap(Segmenter(), "gflowout", ["body"], likelihood=likelihood, example=(x,))
    losses = model(x, y=y)
    losses.total.backward()
    assert [mask.shape for mask in losses.masks] == [(3, 6)]
    assert losses.log_likelihood is not None
    assert losses.log_likelihood.shape == (3,)
    pred = model.predict(x, samples=8, return_masks=True)
    assert pred.mean.shape == (3, 5, 7, 4)
    assert pred.entropy().shape == pred.mutual_information().shape == (3, 5, 7)
    # Draw by draw, by hand: the joint probability of all pixels that count.
    assert pred.masks is not None
    scores = []
    for mask in pred.masks[0]:
        with torch.no_grad():
            hidden = model.backbone.body(x) * mask[:, :, None, None]
            output = model.backbone.head(hidden)
        loss = F.cross_entropy(output, y, ignore_index=255, reduction="none")
        scores.append(-loss.sum((1, 2)))
    expected = torch.stack(scores).logsumexp(0) - np.log(8)
    assert torch.allclose(pred.log_prob(y), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 5])
def test_ordered_classes_are_differences_of_sigmoids(classes: int) -> None:
    likelihood = gfo.Ordinal(classes).double()
    with torch.no_grad():
        likelihood.first.sub_(0.7)
        likelihood.log_gaps.add_(0.2 * torch.randn(classes - 2))
    score = 3 * torch.randn(6, dtype=torch.float64)
    cuts = likelihood.thresholds.detach().numpy()
    assert (np.diff(cuts) > 0).all()
    below = 1 / (1 + np.exp(score.numpy()[:, None] - cuts))
    expected = np.diff(np.concatenate([np.zeros((6, 1)), below, np.ones((6, 1))], 1), axis=1)
    assert np.allclose(likelihood.samples(score).detach().numpy(), expected)
    y = torch.randint(classes, (6,))
    rows = expected[np.arange(6), y.numpy()]
    scores = likelihood.log_prob(score[:, None], likelihood.target(y))
    assert np.allclose(scores.detach().numpy(), np.log(rows))


def test_ordered_classes_stay_finite_far_out() -> None:
    likelihood = gfo.Ordinal(4)
    score = torch.tensor([-300.0, 300.0], requires_grad=True)
    scores = likelihood.log_prob(score, torch.tensor([3, 1]))
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert scores.tolist() == pytest.approx([-301.1, -299.6], abs=1.5)
    assert score.grad is not None
    assert torch.allclose(score.grad, torch.tensor([1.0, -1.0]))


def test_ordered_labels_are_encoded_by_the_thresholds_they_pass() -> None:
    likelihood = gfo.Ordinal(4)
    expected = torch.tensor([[-1.0, -1, -1], [1, -1, -1], [1, 1, -1], [1, 1, 1]])
    assert torch.equal(likelihood.encode(torch.arange(4)), expected)
    grid = torch.tensor([[0, 3], [1, 2]])
    assert torch.allclose(likelihood.encode(grid)[0], (expected[0] + expected[3]) / 2)


def test_grades_are_learned_with_their_order() -> None:
    x = torch.randn(1500, 1)
    noisy = 2 * x[:, 0] + torch.distributions.Uniform(1e-6, 1 - 1e-6).sample((1500,)).logit()
    y = torch.bucketize(noisy, torch.tensor([-1.0, 0.5, 2.0]))
    net = nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False))
    likelihood = gfo.Ordinal(4)
    model = gfo.wrap(net, "none", ["0"], likelihood=likelihood, example=(x[:2],))
    optimiser = torch.optim.Adam(model.parameter_groups(lr=0.05))
    descend(model, x, y, optimiser, 150)
    assert torch.allclose(likelihood.thresholds, torch.tensor([-1.0, 0.5, 2.0]), atol=0.25)
    assert net[1].weight.item() == pytest.approx(2.0, abs=0.25)
    pred = model.predict(x[:9], samples=3)
    assert pred.mean.shape == (9, 4)
    assert torch.allclose(pred.mean.sum(-1), torch.ones(9))
    assert pred.entropy().shape == (9,)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: gfo.Categorical(3, axis=2), ValueError, "axis must be -1 or 1, got 2"),
        (lambda: gfo.Categorical(3, weight=[1, 2]), ValueError, "weight must hold 3 numbers"),
        (lambda: gfo.Categorical(3, weight=[1, 2, -1]), ValueError, "weight must be a number"),
        (lambda: gfo.Categorical(3, weight="abc"), ValueError, "weight must hold 3 numbers"),
        (lambda: gfo.Categorical(3, label_smoothing=1), ValueError, "label_smoothing must be"),
        (lambda: gfo.Ordinal(1), ValueError, "classes must be an integer >= 2, got 1"),
    ],
)
def test_wrong_arguments(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("likelihood", "y", "error", "message"),
    [
        (gfo.Categorical(3), torch.zeros(2, 3), ValueError, "sum to 1 over the last.*sum of 0"),
        (gfo.Categorical(2), torch.tensor([[1.5, -0.5]]), ValueError, "values from -0.5"),
        (gfo.Categorical(2), torch.full((1, 2), torch.nan), ValueError, "sum to 1.*nan"),
        (gfo.Categorical(3), torch.ones(2, 2), TypeError, r"or probabilities.*got.*\[2, 2\]"),
        (gfo.Ordinal(3), torch.tensor([3]), ValueError, r"in \[0, 2\] for Ordinal.*3 to 3"),
        (gfo.Ordinal(3), torch.tensor([1.0]), TypeError, "y must be an integer tensor for Ordinal"),
    ],
)
def test_wrong_labels(
    likelihood: gfo.Likelihood, y: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        likelihood.target(y)


@pytest.mark.parametrize(
    ("likelihood", "shape", "message"),
    [
        (gfo.Categorical(3, axis=1), (2, 4, 5, 3), r"\[batch, 3, ...\].*gives \[2, 4, 5, 3\]"),
        (gfo.Ordinal(3), (2, 3), r"\[batch, ..., 1\].*gives \[2, 3\]"),
    ],
)
def test_wrong_outputs(likelihood: gfo.Likelihood, shape: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.samples(torch.zeros(shape))
