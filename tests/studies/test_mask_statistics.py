"""Statistics of masks against other implementations, brute force and cases made by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from sklearn.metrics import mutual_info_score

from gflowout.studies import mask_statistics as of_masks


def bits(draws, points, units, keep=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(draws, points, units, generator=generator) < keep).float()


def test_correlations_are_those_of_scipy_point_by_point():
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(30, 7, generator=generator).round(decimals=1)  # with ties
    second = 0.4 * first + torch.randn(30, 7, generator=generator) + torch.arange(7) * 100
    found = of_masks.correlate(first, second)
    pearson = [stats.pearsonr(first[:, i].double(), second[:, i].double()) for i in range(7)]
    spearman = [stats.spearmanr(first[:, i], second[:, i]).statistic for i in range(7)]
    assert found.pearson == pytest.approx(sum(each.statistic for each in pearson) / 7)
    assert found.spearman == pytest.approx(sum(spearman) / 7)
    good = sum(each.pvalue <= 0.05 and each.statistic > 0 for each in pearson)
    assert found.significant == pytest.approx(good / 7)
    assert (found.points, found.masks) == (7, 30)
    for each in pearson:
        assert of_masks.p_value(each.statistic, 28) == pytest.approx(each.pvalue)


def test_the_pooled_correlation_is_a_regression_with_a_mean_for_each_point():
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randn(2, 6, 4, generator=generator).double()
    found = of_masks.correlate(first, second)
    # The same as a regression of all values on dummies of the points: R^2 of what is left.
    dummies = torch.eye(4).repeat(6, 1).double()
    left = [v.flatten() - dummies @ torch.linalg.lstsq(dummies, v.flatten()).solution
            for v in (first, second)]  # fmt: skip
    r = float(left[0] @ left[1] / (left[0].norm() * left[1].norm()))
    assert found.pooled == pytest.approx(r)
    t = r * math.sqrt((4 * 5 - 1) / (1 - r * r))
    assert found.p == pytest.approx(2 * stats.t(4 * 5 - 1).sf(abs(t)))


def test_p_values_of_chance_are_uniform():
    generator = torch.Generator().manual_seed(3)
    p = [of_masks.correlate(*torch.randn(2, 10, 5, generator=generator)).p for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_points_that_never_vary_are_left_out():
    first = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    found = of_masks.correlate(first, first)
    assert (found.points, found.pearson, found.p) == (1, 1.0, 0.0)
    assert math.isnan(of_masks.correlate(torch.ones(3, 2), first).pearson)


def test_distances_of_pairs_by_brute_force():
    means, labels = bits(1, 12, 5)[0] * 0.7, torch.arange(12) % 3
    within, between = [], []
    for i, j in itertools.combinations(range(12), 2):
        far = sum(abs(float(means[i, u]) - float(means[j, u])) for u in range(5)) / 5
        (within if labels[i] == labels[j] else between).append(far)
    found = of_masks.pair_distances(means, labels)
    assert found[0] == pytest.approx(sum(within) / len(within))
    assert found[1] == pytest.approx(sum(between) / len(between))
    assert math.isnan(of_masks.pair_distances(means[:3], torch.arange(3))[0])


def test_distance_of_independent_draws_is_that_of_two_coins():
    # Two means of one coin each differ with probability 2 k (1 - k).
    masks = bits(2, 200, 100, keep=0.3)
    assert of_masks.manhattan(masks[0], masks[1]) == pytest.approx(2 * 0.3 * 0.7, abs=0.01)


def test_information_is_that_of_scikit_learn():
    masks, labels = bits(4, 60, 3, keep=0.4), torch.arange(60) % 4
    masks[:, :, 1] = (masks[:, :, 1] + (labels > 1)).clamp(max=1)  # knows something
    found = of_masks.information(masks, labels, classes=5)  # one class without a point
    for unit in range(3):
        pairs = masks[:, :, unit].flatten().long(), labels.repeat(4)
        assert found[unit] == pytest.approx(mutual_info_score(*pairs) / math.log(2))


def test_information_of_known_cases():
    labels = torch.arange(1000) % 4
    masks = torch.stack([(labels < 2), (labels == 0), torch.ones(1000)], -1).float().unsqueeze(0)
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    found = of_masks.information(masks, labels, classes=4)
    assert found.tolist() == pytest.approx([1.0, quarter, 0.0])


def test_beyond_chance_takes_off_what_few_points_give():
    labels = torch.arange(80) % 10
    masks = bits(5, 80, 400, keep=0.5)
    raw = of_masks.information(masks, labels, classes=10)
    # Miller and Madow: (classes - 1) / (2 n ln 2) bits for nothing.
    assert float(raw.mean()) == pytest.approx(9 / (2 * 400 * math.log(2)), rel=0.1)
    found = of_masks.beyond_chance(masks, labels, classes=10)
    assert abs(float(found.bits.mean())) < 0.001
    assert float(found.above.float().mean()) < 0.03
    masks[:, :, 7] = (labels < 5).float()
    found = of_masks.beyond_chance(masks, labels, classes=10)
    assert found.bits[7] == pytest.approx(1, abs=0.15)
    assert bool(found.above[7])
    again = of_masks.beyond_chance(masks, labels, classes=10)
    assert torch.equal(found.bits, again.bits)


def test_points_are_shuffled_not_draws():
    # All draws of a point are equal: 20 draws say no more than one, and chance is as large.
    masks, labels = bits(1, 60, 300), torch.arange(60) % 10
    one = of_masks.beyond_chance(masks, labels, classes=10)
    many = of_masks.beyond_chance(masks.expand(20, -1, -1), labels, classes=10)
    assert torch.allclose(one.bits, many.bits)
    assert abs(float(many.bits.mean())) < 0.01


def test_keep_rates_by_class():
    masks, labels = bits(3, 8, 4), torch.tensor([0, 0, 1, 1, 1, 0, 1, 1])
    found = of_masks.keep_by_class(masks, labels, classes=3)
    for label in (0, 1):
        assert torch.allclose(found[label].float(), masks[:, labels == label].mean((0, 1)))
    assert bool(found[2].isnan().all())
