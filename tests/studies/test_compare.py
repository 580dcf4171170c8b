"""Paired comparisons, against another implementation and cases made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gflowout.studies.framework import statistics
from gflowout.studies.framework.statistics import (
    by_arm,
    by_seed,
    compare_all,
    holm,
    paired,
    sentence,
)


def records(values, data="mnist", metric="clean/accuracy"):
    return [
        {"data": data, "method": arm, "seed": seed, "started": "2026", "metrics": {metric: value}}
        for arm, figures in values.items()
        for seed, value in figures.items()
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_interval_is_that_of_the_paired_t_test(seed, count):
    rng = np.random.default_rng(seed)
    ours, other = rng.normal(0.3, 1, count), rng.normal(0, 1, count)
    found = paired(ours.tolist(), other.tolist(), "high")
    test = stats.ttest_rel(ours, other)
    interval = test.confidence_interval(0.95)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.p == pytest.approx(test.pvalue)
    assert found.difference == pytest.approx((ours - other).mean())
    assert (found.verdict == "no difference seen") == (test.pvalue > 0.05)


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        # A common part of the seed, which pairing takes out.
        common = rng.normal(0, 5, 4)
        ours, other = common + rng.normal(1, 1, 4), common + rng.normal(0, 1, 4)
        found = paired(ours.tolist(), other.tolist(), "high")
        inside += found.low <= 1 <= found.high
    assert inside / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("better", "verdict"), [("high", "better"), ("low", "worse")])
def test_what_is_good_decides_the_verdict(better, verdict):
    assert paired([2, 3.1, 4], [1, 2, 3], better).verdict == verdict
    swapped = {"better": "worse", "worse": "better"}[verdict]
    assert paired([1, 2, 3], [2, 3.1, 4], better).verdict == swapped


def test_equal_differences():
    assert paired([1, 2], [1, 2], "high").verdict == "no difference seen"
    assert paired([1, 2], [1, 2], "high").p == 1
    assert paired([2, 3], [1, 2], "low").verdict == "worse"


@pytest.mark.parametrize(
    ("ours", "other", "why"),
    [
        ([], [], "no common seed"),
        ([1.0], [2.0], "1 common seed only"),
        ([1.0, math.nan], [1.0, 1.0], "not finite"),
        ([1.0, math.inf], [1.0, 1.0], "not finite"),
    ],
)
def test_what_cannot_be_compared_says_why(ours, other, why):
    found = paired(ours, other, "high")
    assert found.verdict == found.firm == "not comparable"
    assert why in sentence(found, "A", "B", "accuracy")
    assert math.isnan(found.low)


def test_unequal_numbers_are_refused():
    with pytest.raises(ValueError, match="got 2 and 1 values"):
        paired([1, 2], [1], "high")
    with pytest.raises(ValueError, match="better must be one of"):
        paired([1, 2], [1, 2], "big")


def test_holm_against_a_second_implementation():
    rng = np.random.default_rng(3)
    found = {
        str(k): paired(rng.normal(0.8 * k, 1, 5).tolist(), rng.normal(0, 1, 5).tolist(), "high")
        for k in range(6)
    }
    found["single"] = paired([1.0], [2.0], "high")
    made = holm(found)
    p = {name: each.p for name, each in found.items() if name != "single"}
    for name, value in p.items():
        # Straight from the definition: the largest of all steps up to this one.
        steps = [min(1, sum(q >= v for q in p.values()) * v) for v in p.values() if v <= value]
        assert made[name].adjusted == pytest.approx(max(steps))
        assert made[name].together == 6
    assert math.isnan(made["single"].adjusted)


def test_values_are_paired_by_seed_whatever_their_order():
    some = records({"gflowout": {2: 0.9, 0: 0.8, 5: 0.1}, "mc": {0: 0.7, 2: 0.79, 1: 0.0}})
    assert by_seed(some, "mnist", "gflowout", "clean/accuracy") == {0: 0.8, 2: 0.9, 5: 0.1}
    found = compare_all(some, "mnist", "clean/accuracy", "high")
    assert list(found) == ["mc"]
    assert found["mc"] == paired([0.8, 0.9], [0.7, 0.79], "high")
    assert compare_all(some, "cifar10", "clean/accuracy", "high") == {}
    assert compare_all(some, "mnist", "nll", "low") == {}
    assert by_arm(some, "mnist", "clean/accuracy") == {
        "gflowout": [0.8, 0.9, 0.1],
        "mc": [0.7, 0.0, 0.79],
    }


def test_the_last_record_of_a_seed_counts():
    old, new = records({"mc": {0: 0.1}})[0], records({"mc": {0: 0.2}})[0]
    new["started"] = "2027"
    assert by_seed([new, old], "mnist", "mc", "clean/accuracy") == {0: 0.2}


def test_nested_and_missing_metrics():
    record = {"data": "d", "method": "m", "seed": 0, "metrics": {"by": {"snow": 1}, "name": "x"}}
    assert by_seed([record], "d", "m", "by.snow") == {0: 1.0}
    assert by_seed([record], "d", "m", "name") == {}


def test_sentences():
    low = paired([0.1, 0.12, 0.11], [0.2, 0.23, 0.21], "low")
    assert sentence(low, "A", "B", "NLL") == (
        "A is better than B in NLL: by -0.103 (95 % interval -0.118 to -0.089, 3 paired seeds)."
    )
    same = paired([0.1, 0.2, 0.3], [0.2, 0.1, 0.3], "low")
    assert sentence(same, "A", "B", "NLL").startswith("No difference seen between A and B in NLL: ")
    weak = holm({"x": low, **{str(k): same for k in range(200)}})["x"]
    assert weak.firm == "no difference seen"
    assert "not significant after Holm correction for 201 comparisons" in sentence(
        weak, "A", "B", "NLL"
    )
    assert statistics.LEVEL == 0.95
