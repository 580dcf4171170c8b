"""Counts, heavy tails and quantiles against SciPy, torch.distributions and brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.core import special

RATES = torch.tensor([[-3.0], [0.0], [1.5], [4.0]])
COUNTS = torch.tensor([[0], [2], [9], [40]])


def array(value: Tensor) -> Any:
    return value.detach().double().numpy()


def test_poisson_is_that_of_scipy() -> None:
    likelihood = gfo.Poisson()
    scores = likelihood.log_prob(RATES, likelihood.target(COUNTS))
    reference = stats.poisson(np.exp(array(RATES)))
    assert np.allclose(array(scores), reference.logpmf(COUNTS.numpy())[:, 0], rtol=1e-5)
    assert np.allclose(array(likelihood.samples(RATES)), reference.mean())
    assert np.allclose(array(likelihood.variance(RATES)), reference.var())


@pytest.mark.parametrize("dispersion", [1e-6, 0.1, 1.0, 7.0])
def test_negative_binomial_is_that_of_scipy(dispersion: float) -> None:
    likelihood = gfo.NegativeBinomial(dispersion=dispersion)
    scores = likelihood.log_prob(RATES, likelihood.target(COUNTS))
    size, mean = 1 / dispersion, np.exp(array(RATES))
    reference = stats.nbinom(size, size / (size + mean))
    assert np.allclose(array(scores), reference.logpmf(COUNTS.numpy())[:, 0], rtol=1e-4)
    assert np.allclose(array(likelihood.samples(RATES)), reference.mean(), rtol=1e-4)
    assert np.allclose(array(likelihood.variance(RATES)), reference.var(), rtol=1e-4)


def test_without_dispersion_a_negative_binomial_is_poisson() -> None:
    target = gfo.Poisson().target(COUNTS)
    expected = gfo.Poisson().log_prob(RATES, target)
    for dispersion, close in ((1e-9, True), (0.5, False)):
        likelihood = gfo.NegativeBinomial(dispersion=dispersion)
        scores = likelihood.log_prob(RATES, target)
        assert torch.allclose(scores, expected, rtol=1e-4, atol=1e-4) == close
        scores.sum().backward()
        assert torch.isfinite(likelihood.log_dispersion.grad).all()


@pytest.mark.parametrize("df", [0.8, 1.0, 3.0, 50.0])
def test_student_t_is_that_of_scipy(df: float) -> None:
    likelihood = gfo.StudentT(2, df=df, noise=0.3)
    output, y = torch.randn(6, 2), 3 * torch.randn(6, 2)
    reference = stats.t(df, loc=array(output), scale=0.3)
    scores = likelihood.log_prob(output, likelihood.target(y))
    assert np.allclose(array(scores), reference.logpdf(y.numpy()).sum(1), rtol=1e-5)
    assert np.allclose(array(likelihood.variance(output)), 0.09 * stats.t(df).var()) or df <= 2
    assert bool(likelihood.variance(output).isinf().all()) == (df <= 2)


@pytest.mark.parametrize("df", [2.0, 5.0])
def test_the_pull_of_an_outlier_on_a_t_vanishes(df: float) -> None:
    """The slope in the location is (df + 1) u / (df + u^2); that of a normal distribution is u."""
    y = torch.tensor([0.5, 5.0, 500.0])
    for likelihood, slope in (
        (gfo.Gaussian(), y),
        (gfo.StudentT(df=df), (df + 1) * y / (df + y.square())),
    ):
        place = torch.zeros(3, requires_grad=True)
        likelihood.log_prob(place, likelihood.target(y)).sum().backward()
        assert place.grad is not None
        assert torch.allclose(place.grad, slope, rtol=1e-4)


@pytest.mark.parametrize("name", ["output", "label"])
def test_shapes_of_counts(name: str) -> None:
    likelihood, wide = gfo.Poisson(), gfo.Poisson(3)
    flat = likelihood.log_prob(RATES[:, 0], likelihood.target(COUNTS[:, 0]))
    assert torch.equal(flat, likelihood.log_prob(RATES, likelihood.target(COUNTS)))
    output, y = torch.randn(4, 5, 3), torch.randint(9, (4, 5, 3))
    parts = torch.distributions.Poisson(output.exp()).log_prob(y).sum((1, 2))
    assert torch.allclose(wide.log_prob(output, wide.target(y)), parts, rtol=1e-5)
    call = wide.samples if name == "output" else wide.target
    with pytest.raises(ValueError, match=r"\[batch, ..., 3\]"):
        call(torch.zeros(4, 2))


def test_pinball_loss_is_the_log_likelihood_of_quantiles() -> None:
    levels = (0.1, 0.5, 0.8)
    likelihood = gfo.Quantile(levels, noise=1.0, learn_noise=False)
    output, y = torch.randn(7, 3), 2 * torch.randn(7)
    scores = likelihood.log_prob(output, likelihood.target(y))
    expected = torch.zeros(7)
    for row in range(7):
        for at, level in enumerate(levels):
            gap = (y[row] - output[row, at]).item()
            loss = level * gap if gap > 0 else (level - 1) * gap
            expected[row] += (np.log(level * (1 - level)) - loss) / 3
    assert torch.allclose(scores, expected, atol=1e-5)
    assert torch.equal(scores, likelihood.log_prob(output, likelihood.target(y[:, None])))


def test_trained_quantiles_cover_what_they_promise() -> None:
    torch.manual_seed(0)
    y = torch.distributions.Exponential(1.0).sample((4000,))
    likelihood = gfo.Quantile([0.1, 0.9])
    place = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.Adam([place, *likelihood.parameters()], lr=0.05)
    target = likelihood.target(y)
    for _ in range(250):
        optimiser.zero_grad()
        (-likelihood.log_prob(place.expand(4000, 2), target).mean()).backward()
        optimiser.step()
    assert (y <= place[0]).float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert (y <= place[1]).float().mean().item() == pytest.approx(0.9, abs=0.02)


def mixture(kind: str) -> tuple[gfo.Predictive, Any]:
    outputs = torch.randn(3, 4, 1)
    numbers = array(outputs)[:, :, 0]
    if kind == "poisson":
        return gfo.Predictive(outputs, gfo.Poisson()), stats.poisson(np.exp(numbers))
    if kind == "negative binomial":
        pred = gfo.NegativeBinomial(dispersion=0.4).settle(outputs.flatten(0, 1))
        size = 1 / 0.4
        reference = stats.nbinom(size, size / (size + np.exp(numbers)))
        return gfo.Predictive(pred[0].detach().reshape(3, 4, 2), pred[1]), reference
    if kind == "student t":
        pred = gfo.StudentT(df=3.0, noise=0.5).settle(outputs.flatten(0, 1))
        reference = stats.t(3.0, loc=numbers, scale=0.5)
        return gfo.Predictive(pred[0].detach().reshape(3, 4, 2), pred[1]), reference
    pred = gfo.Gaussian(noise=0.5).settle(outputs.flatten(0, 1))
    reference = stats.norm(loc=numbers, scale=0.5)
    return gfo.Predictive(pred[0].detach().reshape(3, 4, 2), pred[1]), reference


KINDS = ["poisson", "negative binomial", "student t", "gaussian"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("probability", [0.03, 0.5, 0.95])
def test_quantiles_are_those_of_the_mixture(kind: str, probability: float) -> None:
    torch.manual_seed(1)
    pred, reference = mixture(kind)
    value = array(pred.quantile(probability))[:, 0]
    reached = reference.cdf(value).mean(0)
    if kind in KINDS[:2]:  # the smallest count that reaches it
        assert (reached >= probability).all()
        assert (reference.cdf(value - 1).mean(0) < probability).all()
    else:
        assert np.allclose(reached, probability, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_a_prediction_are_those_of_the_mixture(kind: str) -> None:
    torch.manual_seed(2)
    pred, reference = mixture(kind)
    means, variances = reference.mean(), reference.var()
    assert np.allclose(array(pred.mean)[:, 0], means.mean(0), rtol=1e-4)
    total = (variances + means**2).mean(0) - means.mean(0) ** 2
    assert np.allclose(array(pred.variance())[:, 0], total, rtol=1e-4)
    assert np.allclose(array(pred.aleatoric_variance())[:, 0], variances.mean(0), rtol=1e-4)
    y = torch.tensor([0.0, 1.0, 2.0, 3.0])
    density = reference.pmf if kind in KINDS[:2] else reference.pdf
    assert np.allclose(array(pred.log_prob(y)), np.log(density(y.numpy()).mean(0)), rtol=1e-4)


def test_predicted_quantiles_do_not_cross_and_are_named() -> None:
    outputs = torch.tensor([[[2.0, 1.0]], [[0.0, 4.0]]])
    pred = gfo.Predictive(outputs, gfo.Quantile([0.1, 0.9], learn_noise=False))
    assert torch.equal(pred.mean, torch.tensor([[0.5, 3.0]]))
    assert torch.equal(pred.quantile(0.9), torch.tensor([3.0]))
    with pytest.raises(ValueError, match=r"probability must be one of the levels.*got 0.5"):
        pred.quantile(0.5)
    with pytest.raises(TypeError, match=r"gives no variance of labels; use epistemic_variance"):
        pred.variance()
    assert torch.equal(pred.epistemic_variance(), torch.tensor([[0.25, 1.0]]))


@pytest.mark.parametrize(
    ("a", "b"), [(0.5, 0.5), (2.0, 0.5), (10.0, 3.0), (0.01, 40.0), (3000.0, 2000.0)]
)
def test_incomplete_beta_function_is_that_of_scipy(a: float, b: float) -> None:
    x = torch.linspace(0, 1, 41, dtype=torch.float64)
    value = special.betainc(torch.tensor(a), torch.tensor(b), x)
    assert np.allclose(value.numpy(), stats.beta(np.float32(a), np.float32(b)).cdf(x), atol=1e-10)


@pytest.mark.parametrize("df", [0.5, 1.0, 4.0, 300.0])
def test_student_cdf_is_that_of_scipy(df: float) -> None:
    t = torch.tensor([-1e6, -30.0, -1.0, 0.0, 1e-9, 0.3, 5.0, 1e9])
    assert np.allclose(special.student_t_cdf(t, df), stats.t(df).cdf(t.double()), atol=1e-12)


WRONG: list[tuple[gfo.Likelihood, Any, type[Exception], str]] = [
    (gfo.Poisson(), torch.tensor([1.0, -2.0]), ValueError, "counts 0, 1, 2.*Poisson.*got -2"),
    (gfo.Poisson(), torch.tensor([1.0, 0.5]), ValueError, "counts 0, 1, 2.*got 0.5"),
    (gfo.Poisson(), torch.tensor([1.0, torch.nan]), ValueError, "counts 0, 1, 2.*got nan"),
    (gfo.Poisson(), torch.tensor([1.0, torch.inf]), ValueError, "counts 0, 1, 2.*got inf"),
    (gfo.Poisson(), torch.tensor([True]), TypeError, "counts.*got torch.bool"),
    (gfo.Poisson(2), torch.zeros(4, 3), ValueError, r"shape \[batch, ..., 2\].*got \[4, 3\]"),
    (gfo.NegativeBinomial(), torch.tensor([-1]), ValueError, "counts.*NegativeBinomial.*got -1"),
    (gfo.StudentT(), torch.tensor([1]), TypeError, "floating-point tensor for StudentT"),
    (gfo.StudentT(), torch.tensor([torch.nan]), ValueError, "finite numbers for StudentT"),
    (gfo.Quantile(), torch.tensor([torch.inf]), ValueError, "finite numbers for Quantile"),
    (gfo.Quantile(), [1.0], TypeError, "y must be a torch.Tensor, got list"),
]


@pytest.mark.parametrize(("likelihood", "y", "error", "message"), WRONG)
def test_wrong_labels(
    likelihood: gfo.Likelihood, y: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        likelihood.target(y)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: gfo.StudentT(df=0), ValueError, r"df must be a number in \(0, inf\), got 0"),
        (lambda: gfo.StudentT(noise=-1), ValueError, "noise must be a number"),
        (lambda: gfo.Quantile([]), TypeError, "levels must be a list or tuple"),
        (lambda: gfo.Quantile([0.5, 0.1]), ValueError, r"levels must increase, got \(0.5, 0.1\)"),
        (lambda: gfo.Quantile([0.5, 1.0]), ValueError, r"levels must be a number in \(0, 1\)"),
        (lambda: gfo.Poisson(0), ValueError, "dim must be an integer >= 1, got 0"),
        (lambda: gfo.NegativeBinomial(dispersion=0), ValueError, "dispersion must be a number"),
        (lambda: gfo.NegativeBinomial(learn_dispersion=1), TypeError, "learn_dispersion must be"),
    ],
)
def test_wrong_arguments(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_rate_and_dispersion_of_data_are_recovered_by_training() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 1)
    mean, size = torch.exp(1 + 0.5 * x), 2.0
    rate = torch.distributions.Gamma(size, size / mean).sample()
    y = torch.poisson(rate)
    net = nn.Sequential(nn.Identity(), nn.Linear(1, 1))
    model = gfo.wrap(net, "none", ["0"], likelihood=gfo.NegativeBinomial(), example=(x[:2],))
    optimiser = torch.optim.Adam(model.parameter_groups(lr=0.05))
    descend(model, x, y, optimiser, 150)
    likelihood = model.likelihood
    assert isinstance(likelihood, gfo.NegativeBinomial)
    assert likelihood.log_dispersion.exp().item() == pytest.approx(0.5, rel=0.15)
    assert net[1].weight.item() == pytest.approx(0.5, abs=0.1)
    assert net[1].bias.item() == pytest.approx(1.0, abs=0.1)
