"""Uncertainty scores against brute force, known limits and symmetries."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gflowout.core import uncertainty

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 10_000)
sizes = st.integers(1, 6)


def distributions(seed: int, samples: int, classes: int, sharpness: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, 3, classes, generator=generator, dtype=torch.float64)
    return (sharpness * logits).softmax(-1)


def entropy_of(probabilities: list[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


@given(seeds, sizes, st.integers(2, 5))
@quick
def test_against_brute_force(seed: int, samples: int, classes: int) -> None:
    p = distributions(seed, samples, classes)
    for row in range(3):
        draws = p[:, row].tolist()
        mean = [sum(draw[k] for draw in draws) / samples for k in range(classes)]
        total = entropy_of(mean)
        expected = sum(entropy_of(draw) for draw in draws) / samples
        spread = sum(
            sum((draw[k] - mean[k]) ** 2 for draw in draws) / samples for k in range(classes)
        )
        # Mutual information once more, as the mean divergence of the draws from their average.
        divergence = sum(
            draw[k] * math.log(draw[k] / mean[k]) for draw in draws for k in range(classes)
        )
        for function, value in (
            (uncertainty.predictive_entropy, total),
            (uncertainty.expected_entropy, expected),
            (uncertainty.mutual_information, divergence / samples),
            (uncertainty.variance, spread),
            (uncertainty.max_probability, max(mean)),
        ):
            assert math.isclose(float(function(p)[row]), value, rel_tol=1e-8, abs_tol=1e-10)


@given(seeds, sizes, st.integers(2, 5))
@quick
def test_dempster_shafer_against_its_formula(seed: int, samples: int, classes: int) -> None:
    logits = 3 * torch.randn(
        samples, 2, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    for row in range(2):
        draws = logits[:, row].tolist()
        mean = [sum(draw[k] for draw in draws) / samples for k in range(classes)]
        of_mean = classes / (classes + sum(map(math.exp, mean)))
        of_draws = sum(classes / (classes + sum(map(math.exp, draw))) for draw in draws) / samples
        by_default = float(uncertainty.dempster_shafer(logits)[row])
        by_draws = float(uncertainty.dempster_shafer(logits, "draws")[row])
        assert math.isclose(by_default, of_mean, rel_tol=1e-9)
        assert math.isclose(by_draws, of_draws, rel_tol=1e-9)


@given(seeds, sizes, st.integers(2, 5))
@quick
def test_scores_of_unknown_inputs_against_brute_force(
    seed: int, samples: int, classes: int
) -> None:
    p = distributions(seed, samples, classes)
    logits = p.log() + torch.linspace(-2, 3, samples)[:, None, None]

    def gen(values: list[float], top: int) -> float:
        return sum((v * (1 - v)) ** 0.1 for v in sorted(values)[-top:])

    def log_sum(values: list[float]) -> float:
        return math.log(sum(math.exp(v) for v in values))

    for row in range(3):
        draws, raw = p[:, row].tolist(), logits[:, row].tolist()
        mean, mean_raw = (
            [sum(draw[k] for draw in group) / samples for k in range(classes)]
            for group in (draws, raw)
        )
        votes = [draw.index(max(draw)) for draw in draws]
        most = max(votes.count(k) for k in range(classes))
        gaps = [[v - sum(draw) / classes for v in draw] for draw in raw]
        spread = sum(
            sum((g[k] - sum(h[k] for h in gaps) / samples) ** 2 for g in gaps) / samples
            for k in range(classes)
        )
        for actual, expected in (
            (uncertainty.energy(logits), -log_sum(mean_raw)),
            (uncertainty.energy(logits, "draws"), -sum(map(log_sum, raw)) / samples),
            (uncertainty.max_logit(logits), -max(mean_raw)),
            (uncertainty.max_logit(logits, "draws"), -sum(map(max, raw)) / samples),
            (uncertainty.gen(p), gen(mean, classes)),
            (uncertainty.gen(p, top=2), gen(mean, 2)),
            (uncertainty.gen(p, "draws"), sum(gen(draw, classes) for draw in draws) / samples),
            (uncertainty.variation_ratio(p), 1 - most / samples),
            (uncertainty.variation_ratio(logits), 1 - most / samples),
            (uncertainty.variation_ratio(p, "mean"), 1 - max(mean)),
            (uncertainty.logit_disagreement(logits), spread / classes),
        ):
            assert math.isclose(float(actual[row]), expected, rel_tol=1e-7, abs_tol=1e-9)


def test_disagreement_of_logits_leaves_out_what_all_classes_share() -> None:
    logits = torch.randn(4, 5, 3, dtype=torch.float64)
    shifted = logits + 1e4 * torch.randn(4, 5, 1, dtype=torch.float64)
    disagreement = uncertainty.logit_disagreement(logits)
    torch.testing.assert_close(
        uncertainty.logit_disagreement(shifted), disagreement, rtol=1e-6, atol=0
    )
    not_centred = logits.var(0, correction=0).mean(-1)
    assert not torch.allclose(not_centred, disagreement)
    torch.testing.assert_close(uncertainty.logit_disagreement(3 * logits), 9 * disagreement)


def test_votes_of_draws_that_are_not_numbers_are_no_agreement() -> None:
    logits = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [math.inf, 0.0]]]).repeat(4, 1, 1)
    logits[1, 1, 1] = math.nan
    ratio = uncertainty.variation_ratio(logits)
    assert ratio.isnan().tolist() == [False, True, False]
    assert ratio[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["energy", "max_logit", "gen", "variation_ratio"])
def test_scores_of_unknown_inputs_name_what_combine_takes(name: str) -> None:
    with pytest.raises(ValueError, match=r"combine must be one of 'mean', 'draws', got 'logits'"):
        getattr(uncertainty, name)(torch.zeros(2, 3, 4), "logits")


@given(seeds, sizes, st.integers(2, 5))
@quick
def test_bounds_and_symmetries(seed: int, samples: int, classes: int) -> None:
    p = distributions(seed, samples, classes, sharpness=4.0)
    total, expected = uncertainty.predictive_entropy(p), uncertainty.expected_entropy(p)
    information = uncertainty.mutual_information(p)
    assert bool((information >= 0).all())
    assert torch.allclose(total, expected + information, atol=1e-9)
    assert bool((total <= math.log(classes) + 1e-9).all())
    assert bool((information <= math.log(samples) + 1e-9).all())
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    names = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    for function in (
        uncertainty.predictive_entropy,
        uncertainty.expected_entropy,
        uncertainty.mutual_information,
        uncertainty.variance,
        uncertainty.max_probability,
    ):
        value = function(p)
        assert torch.allclose(function(p[order]), value, atol=1e-9)
        assert torch.allclose(function(p[..., names]), value, atol=1e-9)
        assert torch.allclose(function(torch.cat((p, p))), value, atol=1e-9)
        alone = torch.stack([function(p[:, row : row + 1])[0] for row in range(3)])
        assert torch.allclose(alone, value, atol=1e-9)


def test_limits_for_classes() -> None:
    sure = torch.eye(4)[torch.zeros(5, dtype=torch.long)].unsqueeze(1)
    uniform = torch.full((5, 1, 4), 0.25)
    split = torch.eye(4).unsqueeze(1)
    zero, most = torch.zeros(1), torch.full((1,), math.log(4))
    for p, total, expected in (
        (sure, zero, zero),
        (uniform, most, most),
        (split, most, zero),
    ):
        assert torch.allclose(uncertainty.predictive_entropy(p), total, atol=1e-6)
        assert torch.allclose(uncertainty.expected_entropy(p), expected, atol=1e-6)
        assert torch.allclose(uncertainty.mutual_information(p), total - expected, atol=1e-6)
    assert uncertainty.variance(sure).item() == uncertainty.variance(uniform).item() == 0
    assert math.isclose(uncertainty.variance(split).item(), 0.75, rel_tol=1e-6)
    assert uncertainty.max_probability(sure).item() == 1


@pytest.mark.parametrize("combine", ["logits", "draws"])
def test_limits_of_dempster_shafer(combine: str) -> None:
    logits = torch.tensor([[[-1e4, -1e4]], [[-1e4, -1e4]]])
    assert uncertainty.dempster_shafer(logits, combine).item() == 1  # type: ignore[arg-type]
    assert uncertainty.dempster_shafer(-logits, combine).item() == 0  # type: ignore[arg-type]
    scores = [
        uncertainty.dempster_shafer(torch.full((3, 1, 5), level), combine).item()  # type: ignore[arg-type]
        for level in (-1.0, 0.0, 1.0, 2.0)
    ]
    assert scores == sorted(scores, reverse=True)
    assert math.isclose(scores[1], 0.5, rel_tol=1e-6)


def test_dempster_shafer_names_what_combine_takes() -> None:
    with pytest.raises(ValueError, match="combine must be one of 'logits', 'draws', got 'mean'"):
        uncertainty.dempster_shafer(torch.zeros(1, 1, 2), "mean")  # type: ignore[arg-type]


def mixture(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    variances = torch.rand(samples, 4, generator=generator, dtype=torch.float64) * 2 + 0.05
    return means, variances


@given(seeds, sizes)
@quick
def test_variances_against_brute_force(seed: int, samples: int) -> None:
    means, variances = mixture(seed, samples)
    for row in range(4):
        values, noises = means[:, row].tolist(), variances[:, row].tolist()
        centre = sum(values) / samples
        second = (
            sum(noise + value**2 for noise, value in zip(noises, values, strict=True)) / samples
        )
        between = sum((value - centre) ** 2 for value in values) / samples
        found = uncertainty.total_variance(means, variances)[row]
        assert math.isclose(float(found), second - centre**2, rel_tol=1e-8)
        assert math.isclose(
            float(uncertainty.epistemic_variance(means)[row]), between, rel_tol=1e-8, abs_tol=1e-12
        )
        assert math.isclose(
            float(uncertainty.aleatoric_variance(variances)[row]), sum(noises) / samples
        )


@given(seeds, sizes, st.floats(0.001, 0.999))
@quick
def test_quantiles_invert_the_distribution_function(
    seed: int, samples: int, probability: float
) -> None:
    means, variances = mixture(seed, samples)
    quantile = uncertainty.gaussian_mixture_quantile(means, variances, probability)
    for row in range(4):
        below = [
            NormalDist(mean, variance**0.5).cdf(float(quantile[row]))
            for mean, variance in zip(
                means[:, row].tolist(), variances[:, row].tolist(), strict=True
            )
        ]
        assert math.isclose(sum(below) / samples, probability, abs_tol=1e-9)


def test_quantiles_of_drawn_values() -> None:
    means, variances = mixture(3, 5)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(100_000, 5, 4, generator=generator, dtype=torch.float64)
    drawn = (means + variances.sqrt() * noise).flatten(0, 1)
    for probability in (0.05, 0.3, 0.5, 0.9):
        found = uncertainty.gaussian_mixture_quantile(means, variances, probability)
        assert torch.allclose(found, drawn.quantile(probability, dim=0), atol=0.05)


@given(seeds, sizes, st.floats(-5, 5), st.floats(0.1, 4), st.floats(0.01, 0.99))
@quick
def test_quantiles_move_with_location_and_scale(
    seed: int, samples: int, shift: float, scale: float, probability: float
) -> None:
    means, variances = mixture(seed, samples)
    function = uncertainty.gaussian_mixture_quantile
    quantile = function(means, variances, probability)
    moved = function(shift + scale * means, scale**2 * variances, probability)
    assert torch.allclose(moved, shift + scale * quantile, atol=1e-8)
    mirrored = function(-means, variances, 1 - probability)
    assert torch.allclose(mirrored, -quantile, atol=1e-8)


def test_quantiles_grow_with_probability() -> None:
    means, variances = mixture(0, 6)
    levels = [
        uncertainty.gaussian_mixture_quantile(means, variances, p) for p in (0.1, 0.2, 0.5, 0.8)
    ]
    assert all(bool((low < high).all()) for low, high in itertools.pairwise(levels))


def test_quantile_of_a_single_gaussian() -> None:
    found = uncertainty.gaussian_mixture_quantile(
        torch.tensor([[2.0]]), torch.tensor([[9.0]]), 0.975
    )
    assert math.isclose(found.item(), NormalDist(2, 3).inv_cdf(0.975), rel_tol=1e-5)


@pytest.mark.parametrize("probability", [0, 1, -0.1, 1.1, float("nan")])
def test_quantile_names_what_probability_takes(probability: float) -> None:
    with pytest.raises(ValueError, match=r"probability must be a number in \(0, 1\), got"):
        uncertainty.gaussian_mixture_quantile(torch.zeros(1, 1), torch.ones(1, 1), probability)
