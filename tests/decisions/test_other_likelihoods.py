"""Intervals and risks of likelihoods whose samples are not labels, and of counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gflowout as gfo
from gflowout.decisions.conformal import Intervals
from gflowout.decisions.risk import risk_coverage


def quantiles(rows: int, shift: float = 0.0) -> tuple[gfo.Predictive, Tensor]:
    """Predicted 5 and 95 % quantiles, ``shift`` too close, of a normal label."""
    source = torch.Generator().manual_seed(rows)
    y = torch.randn(rows, generator=source)
    ends = torch.tensor([-1.645 + shift, 1.645 - shift])
    return gfo.Predictive(ends.expand(3, rows, 2), gfo.Quantile([0.05, 0.95])), y


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("column", [False, True])
def test_conformalised_quantiles_cover(shift: float, column: bool) -> None:
    pred, y = quantiles(400, shift)
    intervals = Intervals(coverage=0.9, method="quantile").fit(pred, y[:, None] if column else y)
    low, high = intervals(pred)
    assert low.shape == (400,)
    inside = ((low <= y) & (y <= high)).float().mean().item()
    assert inside == pytest.approx(0.9, abs=0.005)  # of the held-out examples themselves
    assert intervals.threshold.item() == pytest.approx(shift, abs=0.25)


def test_other_levels_are_an_error() -> None:
    pred, y = quantiles(400)
    with pytest.raises(ValueError, match=r"one of the levels of Quantile.*got 0.1"):
        Intervals(coverage=0.8, method="quantile").fit(pred, y)


@pytest.mark.parametrize("method", ["spread", "residual"])
def test_quantiles_are_no_expected_labels(method: str) -> None:
    pred, y = quantiles(400)
    with pytest.raises(TypeError, match=rf"method must be 'quantile' for Quantile.*'{method}'"):
        Intervals(method=method).fit(pred, y)


@pytest.mark.parametrize("method", ["spread", "residual", "quantile"])
def test_censored_times_have_no_intervals(method: str) -> None:
    """With two cuts, survival probabilities have the shape of labels, and are none."""
    pred = gfo.Predictive(torch.zeros(2, 50, 3), gfo.Cox([1.0, 2.0], proportional=False))
    y = torch.ones(50, 2)
    assert pred.mean.shape == y.shape
    with pytest.raises(TypeError, match=r"Intervals are for numbers.*Cox.*censored"):
        Intervals(method=method).fit(pred, y)
    with pytest.raises(TypeError, match=r"samples of Cox.*are neither"):
        risk_coverage(pred, y, "epistemic_variance")


@pytest.mark.parametrize("method", ["spread", "residual", "quantile"])
def test_intervals_of_counts(method: str) -> None:
    log_rates = torch.linspace(0, 4, 500).reshape(1, 500, 1)
    torch.default_generator.manual_seed(0)
    y = torch.poisson(log_rates[0].exp())
    pred = gfo.Predictive(log_rates, gfo.Poisson())
    low, high = Intervals(coverage=0.9, method=method).fit(pred, y)(pred)
    inside = ((low <= y) & (y <= high)).float().mean().item()
    assert 0.9 <= inside < 0.95  # counts tie
    curve = risk_coverage(pred, y, "variance")
    assert curve.risk[-1].item() == pytest.approx((y - pred.mean).square().mean().item(), rel=1e-4)


def test_heavy_tails_have_intervals_without_a_variance() -> None:
    pred = gfo.Predictive(torch.zeros(1, 50, 2), gfo.StudentT(df=1.0, heteroscedastic=True))
    y = torch.linspace(-3, 3, 50)
    with pytest.raises(ValueError, match="a finite variance for method='spread'"):
        Intervals(method="spread").fit(pred, y)
    low, high = Intervals(method="residual").fit(pred, y)(pred)
    assert (high - low).min().item() > 5
