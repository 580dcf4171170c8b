"""Cox's model against the partial likelihood, exponential distributions and brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo


def labels(rows: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    time = torch.rand(rows, generator=source) * 5 + 0.1
    event = (torch.rand(rows, generator=source) < 0.7).float()
    return torch.stack([time, event], 1)


def partial(risk: Tensor, y: Tensor) -> Tensor:
    """Cox's partial log-likelihood with Breslow's treatment of ties, by its definition."""
    time, event = y.unbind(1)
    total = torch.zeros((), dtype=risk.dtype)
    for row in range(len(y)):
        if event[row]:
            total += risk[row] - risk[time >= time[row]].logsumexp(0)
    return total


def profiled(risk: Tensor, y: Tensor) -> Tensor:
    """The full log-likelihood, cuts at all event times, at the best baseline for given risks."""
    time, event = y.unbind(1)
    cuts = time[event == 1].unique()
    likelihood = gfo.Cox(cuts).double()
    exposure = likelihood._exposure(time.double())
    at_risk = (exposure * risk.exp()[:, None]).sum(0)
    interval = torch.bucketize(time[event == 1].contiguous(), cuts)
    events = torch.bincount(interval, minlength=len(cuts) + 1).double()
    with torch.no_grad():  # events over time at risk; none after the last event
        likelihood.log_hazard.copy_((events / at_risk.clamp(min=1e-300)).log().clamp(min=-60))
    return likelihood.log_prob(risk, likelihood.target(y)).sum()


@pytest.mark.parametrize("ties", [False, True])
def test_at_the_best_baseline_it_is_the_partial_likelihood(ties: bool) -> None:
    """Where risk sets do not change inside an interval, the two differ by a constant."""
    y = labels(12)
    if ties:
        y[:, 0] = y[:, 0].ceil()
    else:  # censored times at event times, so that nobody leaves inside an interval
        events = y[y[:, 1] == 1, 0].sort().values
        later = torch.bucketize(y[:, 0].contiguous(), events).clamp(max=len(events) - 1)
        y[:, 0] = torch.where(y[:, 1] == 1, y[:, 0], events[later])
    torch.manual_seed(0)
    risks = [torch.randn(12, dtype=torch.float64) for _ in range(4)]
    gaps = torch.stack([profiled(risk, y) - partial(risk, y) for risk in risks])
    assert torch.allclose(gaps, gaps[0].expand(4), atol=1e-6)
    censored_as_events = y.clone()
    censored_as_events[:, 1] = 1
    wrong = torch.stack([profiled(risk, y) - partial(risk, censored_as_events) for risk in risks])
    assert not torch.allclose(wrong, wrong[0].expand(4), atol=1e-2)


def test_a_constant_hazard_is_the_exponential_distribution() -> None:
    y, risk = labels(20), torch.randn(20)
    likelihood = gfo.Cox([1.0, 2.5], hazard=0.3)
    rate = 0.3 * risk.exp()
    exponential = torch.distributions.Exponential(rate)
    time, event = y.unbind(1)
    expected = torch.where(event == 1, exponential.log_prob(time), -rate * time)
    assert torch.allclose(likelihood.log_prob(risk, likelihood.target(y)), expected, rtol=1e-4)
    assert torch.allclose(
        likelihood.samples(risk), torch.exp(-rate[:, None] * torch.tensor([1.0, 2.5])), rtol=1e-4
    )


def changing() -> gfo.Cox:
    likelihood = gfo.Cox([1.0, 2.0]).double()
    with torch.no_grad():
        likelihood.log_hazard.copy_(torch.tensor([-1.0, 0.5, -0.3]))
    return likelihood


def test_density_integrates_to_one_and_to_the_survival() -> None:
    likelihood, risk = changing(), torch.tensor([-0.4, 0.8], dtype=torch.float64)
    step = 1e-3
    time = torch.arange(step / 2, 60, step, dtype=torch.float64)
    y = torch.stack([time, torch.ones_like(time)], 1)
    for row in range(2):
        density = likelihood.log_prob(risk[row].expand(len(y)), likelihood.target(y)).exp()
        assert density.sum().item() * step == pytest.approx(1, abs=1e-4)
        for at in (0.7, 1.0, 1.6, 4.0):
            left = density[time > at].sum().item() * step
            times = torch.tensor([at])
            assert likelihood.survival(risk, times)[row, 0].item() == pytest.approx(left, abs=2e-3)
            censored = torch.tensor([[at, 0.0]], dtype=torch.float64)
            score = likelihood.log_prob(risk[row : row + 1], likelihood.target(censored))
            assert score.exp().item() == pytest.approx(left, abs=2e-3)


def test_quantile_is_the_time_at_which_the_mixture_reaches_it() -> None:
    likelihood = changing()
    outputs = torch.randn(5, 3, dtype=torch.float64)
    settled, frozen = likelihood.settle(outputs.flatten())
    pred = gfo.Predictive(settled.detach().reshape(5, 3, 3), frozen)
    for probability in (0.05, 0.5, 0.97):
        times = pred.quantile(probability)
        alive = likelihood.survival(outputs.flatten(), times).reshape(5, 3, 3).mean(0).diagonal()
        assert torch.allclose(1 - alive, torch.full((3,), probability, dtype=torch.float64))
    mean = pred.mean
    assert torch.allclose(pred.variance(), mean * (1 - mean))  # of whether there was no event


def test_training_finds_risks_and_baseline() -> None:
    torch.manual_seed(0)
    x = torch.randn(1500, 2)
    true = torch.tensor([0.8, -0.5])
    time = torch.distributions.Exponential(0.5 * (x @ true).exp()).sample()
    limit = torch.rand(1500) * 4
    y = torch.stack([torch.minimum(time, limit), (time <= limit).float()], 1)
    likelihood = gfo.Cox.from_labels(y, intervals=5)
    net = nn.Sequential(nn.Identity(), nn.Linear(2, 1, bias=False))
    model = gfo.wrap(net, "none", ["0"], likelihood=likelihood, example=(x[:2],))
    optimiser = torch.optim.Adam(model.parameter_groups(lr=0.05))
    descend(model, x, y, optimiser, 150)
    assert torch.allclose(net[1].weight[0], true, atol=0.12)
    hazards = likelihood.log_hazard.exp()
    assert torch.allclose(hazards, torch.full((5,), 0.5), rtol=0.3)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(3), r"shape \[batch, 2\] for Cox.*got \[3\]"),
        (torch.zeros(3, 3), r"shape \[batch, 2\].*got \[3, 3\]"),
        (torch.tensor([[-1.0, 1.0]]), "times >= 0.*got -1"),
        (torch.tensor([[1.0, 0.5]]), r"1 \(event\) or 0 \(censored\).*got 0.5"),
        (torch.tensor([[math.nan, 1.0]]), "finite numbers for Cox"),
    ],
)
def test_wrong_labels(y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gfo.Cox([1.0]).target(y)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: gfo.Cox([]), TypeError, "cuts must be a sequence of at least one time"),
        (lambda: gfo.Cox([2.0, 1.0]), ValueError, r"cuts must increase, got \(2.0, 1.0\)"),
        (lambda: gfo.Cox([0.0]), ValueError, r"cuts must be a number in \(0, inf\), got 0"),
        (lambda: gfo.Cox([1.0], hazard=0), ValueError, "hazard must be a number"),
        (lambda: gfo.Cox.from_labels(torch.zeros(4, 2)), ValueError, "at least two events"),
        (lambda: gfo.Cox([1.0]).samples(torch.zeros(4, 2)), ValueError, r"gives \[4, 2\]"),
    ],
)
def test_wrong_arguments(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_another_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"y must have shape \[4, 2\].*got \[3, 2\]"):
        gfo.Cox([1.0]).log_prob(torch.zeros(4), torch.ones(3, 2))
