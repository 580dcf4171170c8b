"""Curves and areas are those of their definition, and the risk of a rule is bounded."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom
from sklearn.metrics import roc_auc_score
from torch import Tensor

import gflowout as gfo
from gflowout.selective import Defer, RiskCoverage, risk_bound, risk_coverage


def yes_or_no(
    rows: int, seed: int = 0, informative: bool = True
) -> tuple[gfo.Predictive, Tensor, Tensor]:
    """Predictions whose answer is wrong with a probability that is known, and falls with certainty.

    Also these probabilities. If not ``informative``, the score says nothing about them.
    """
    source = torch.Generator().manual_seed(seed)
    sure = 3 * torch.rand(rows, generator=source, dtype=torch.float64)
    wrong = 0.5 * torch.exp(-2 * sure) if informative else torch.full_like(sure, 0.1)
    y = (torch.rand(rows, generator=source) < wrong).long()
    outputs = torch.stack((sure, torch.zeros_like(sure)), -1)
    return gfo.Predictive(outputs[None], gfo.Categorical(2)), y, wrong


def brute_areas(loss: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """AURC and AUGRC by their definitions, averaged over all orders of ties."""
    orders = [
        order
        for order in itertools.permutations(range(len(loss)))
        if all(score[a] <= score[b] for a, b in itertools.pairwise(order))
    ]
    count, aurc, augrc = len(loss), [], []
    for order in orders:
        sums = [sum(loss[row] for row in order[:k]) for k in range(count + 1)]
        aurc.append(np.mean([sums[k] / k for k in range(1, count + 1)]))
        augrc.append(np.trapezoid(np.array(sums) / count, np.arange(count + 1) / count))
    return float(np.mean(aurc)), float(np.mean(augrc))


@pytest.mark.parametrize("seed", range(10))
def test_areas_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.RandomState(seed)
    loss, score = rng.rand(6), rng.randint(4, size=6).astype(float)  # with ties
    curve = RiskCoverage.of(torch.tensor(loss), torch.tensor(score))
    assert (curve.aurc, curve.augrc) == pytest.approx(brute_areas(loss, score))
    for place, threshold in enumerate(curve.threshold.tolist()):
        kept = score <= threshold
        assert float(curve.coverage[place]) == pytest.approx(kept.mean())
        assert float(curve.risk[place]) == pytest.approx(loss[kept].mean())


def test_the_generalised_area_is_its_closed_form() -> None:
    pred, y, _ = yes_or_no(500)
    curve = risk_coverage(pred, y)
    wrong = (pred.mean.argmax(-1) != y).numpy()
    error = wrong.mean()
    auroc = roc_auc_score(wrong, pred.entropy().numpy())
    assert curve.augrc == pytest.approx((1 - auroc) * error * (1 - error) + error**2 / 2)


def test_a_better_score_has_a_smaller_area() -> None:
    pred, y, _ = yes_or_no(500)
    noise = torch.rand(500, generator=torch.Generator().manual_seed(1))
    best, good, poor = (
        risk_coverage(pred, y, score)
        for score in ((pred.mean.argmax(-1) != y).float(), "entropy", noise)
    )
    assert best.aurc < good.aurc < poor.aurc
    assert best.augrc < good.augrc < poor.augrc
    assert float(best.risk[-1]) == float(good.risk[-1]) == float(poor.risk[-1])


def test_scores_by_name_value_or_function_are_the_same() -> None:
    pred, y, _ = yes_or_no(100)
    by_name = risk_coverage(pred, y, "entropy")
    assert risk_coverage(pred, y, pred.entropy()).aurc == by_name.aurc
    assert risk_coverage(pred, y, lambda given: given.entropy()).aurc == by_name.aurc
    # For two classes, confidence has the order of the entropy.
    assert risk_coverage(pred, y, "max_probability").aurc == pytest.approx(by_name.aurc)


def test_numbers_have_squared_errors() -> None:
    outputs = torch.tensor([[[0.0, 0.0], [0.0, 2.0]]])
    pred = gfo.Predictive(outputs, gfo.Gaussian(heteroscedastic=True).eval())
    curve = risk_coverage(pred, torch.tensor([1.0, 3.0]), "variance")
    assert curve.risk.tolist() == [1.0, 5.0]


@pytest.mark.parametrize(("errors", "answers"), [(0, 1), (0, 59), (3, 100), (99, 100), (7, 7)])
@pytest.mark.parametrize("delta", [0.01, 0.05, 0.5])
def test_the_bound_is_that_of_clopper_and_pearson(errors: int, answers: int, delta: float) -> None:
    exact = beta.ppf(1 - delta, errors + 1, answers - errors) if errors < answers else 1.0
    upper = risk_bound(errors, answers, delta)
    assert upper == pytest.approx(exact, rel=1e-9)
    if errors < answers:
        assert binom.cdf(errors, answers, upper) == pytest.approx(delta, rel=1e-6)


@functools.cache
def population(informative: bool) -> tuple[Tensor, Tensor]:
    """Scores and probabilities of a wrong answer of many examples."""
    pred, _, wrong = yes_or_no(20_000, seed=999, informative=informative)
    return pred.entropy(), wrong


def true_risk(rule: Defer, informative: bool) -> float:
    """Risk of the answers that a rule by entropy gives."""
    entropy, wrong = population(informative)
    kept = entropy <= rule.threshold
    return float(wrong[kept].mean()) if kept.any() else 0.0


def failures(delta: float, informative: bool, repeats: int = 100) -> int:
    """How often the risk of a rule, fitted on new held-out examples, is above what was asked."""
    risk = 0.1 if informative else 0.099  # the latter cannot be had by deferring
    count = 0
    for seed in range(repeats):
        pred, y, _ = yes_or_no(400, seed, informative)
        rule = Defer("entropy", risk=risk, delta=delta).fit(pred, y)
        count += true_risk(rule, informative) > risk
    return count


@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.filterwarnings("ignore:no threshold has")
def test_the_risk_is_above_the_bound_as_rarely_as_promised(informative: bool) -> None:
    # More than 24 of 100 have a probability below 1e-4 if each has one of at most 0.1.
    assert binom.sf(24, 100, 0.1) < 1e-4
    assert failures(0.1, informative) <= 24


@pytest.mark.filterwarnings("ignore:no threshold has")
def test_the_best_of_many_thresholds_without_a_correction_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The observed risk instead of its test: a rule that looks right and is wrong."""
    monkeypatch.setattr(
        "gflowout.decisions.selective.binomial_cdf",
        lambda errors, answers, risk: float(errors / answers > risk),
    )
    assert failures(0.1, informative=False) > 24


def test_a_rule_answers_where_it_is_sure() -> None:
    pred, y, wrong = yes_or_no(3000)
    rule = Defer(risk=0.05).fit(pred, y)
    assert 0.3 < float(rule.coverage) < 0.9
    assert float(rule.bound) <= 0.05
    assert float((~rule(pred)).double().mean()) == pytest.approx(float(rule.coverage))
    assert true_risk(rule, informative=True) <= 0.05
    assert float(wrong.mean()) > 0.07  # of all
    strict = Defer(risk=0.02).fit(pred, y)
    assert strict.coverage < rule.coverage


def test_all_are_deferred_where_nothing_is_safe_enough() -> None:
    pred, y, _ = yes_or_no(50)
    with pytest.warns(UserWarning, match="all examples will be deferred"):
        rule = Defer(risk=0.01).fit(pred, y)
    assert bool(rule(pred).all())
    assert math.isnan(float(rule.bound))


def test_files_bring_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    pred, y, _ = yes_or_no(1000)
    rule = Defer("max_probability", risk=0.1).fit(pred, y)
    rule.save(path)
    again = Defer.load(path)
    assert torch.equal(again(pred), rule(pred))
    assert again.state_dict() == rule.state_dict()
    with pytest.warns(UserWarning, match="deferred"):
        Defer(risk=0.01).fit(*yes_or_no(50)[:2]).save(path)
    assert bool(Defer.load(path)(pred).all())
    function = Defer(lambda given: given.entropy(), risk=0.1).fit(pred, y)
    with pytest.raises(TypeError, match="score cannot be saved"):
        function.save(path)


def test_a_prediction_defers_a_share_or_above_a_threshold() -> None:
    pred, _, _ = yes_or_no(100)
    entropy = pred.entropy()
    deferred = pred.defer("entropy", share=0.25)
    assert int(deferred.sum()) == 25
    assert entropy[deferred].min() >= entropy[~deferred].max()
    assert torch.equal(pred.defer(threshold=0.5), entropy > 0.5)
    assert torch.equal(pred.defer("max_probability", share=0.25), deferred)
    assert not pred.defer(share=0).any()
    assert pred.defer(share=1).all()
    with pytest.raises(ValueError, match="either share or threshold"):
        pred.defer()
    with pytest.raises(ValueError, match="score must be one of 'entropy'"):
        pred.defer("entropie", share=0.5)


@pytest.mark.parametrize("score", ["entropy", "variation_ratio", "max_probability"])
def test_what_is_not_a_number_is_left_to_a_person(score: str) -> None:
    outputs = torch.tensor([[[9.0, 0.0], [math.nan, 0.0], [8.0, 0.0]]]).repeat(5, 1, 1)
    pred = gfo.Predictive(outputs, gfo.Categorical(2))
    assert pred.defer(score, threshold=0.1).tolist() == [False, True, False]
    assert pred.defer(score, share=0.34).tolist() == [False, True, False]


def test_given_losses_at_ignored_labels_do_not_count() -> None:
    outputs = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0))
    pred = gfo.Predictive(outputs, gfo.Categorical(3, ignore_index=-100))
    y, loss = torch.arange(20) % 3, torch.linspace(0, 1, 20)
    y[:5] = -100
    rest = gfo.Predictive(outputs[:, 5:], pred.likelihood)
    curve, expected = risk_coverage(pred, y, loss=loss), risk_coverage(rest, y[5:], loss=loss[5:])
    assert (curve.aurc, curve.augrc) == (expected.aurc, expected.augrc)


def test_errors_say_what_is_wrong() -> None:
    pred, y, _ = yes_or_no(30)
    with pytest.raises(ValueError, match=r"loss must have the shape of the labels, \[30\], got"):
        risk_coverage(pred, y, loss=torch.zeros(3))
    with pytest.raises(ValueError, match="got 'entropi'; did you mean 'entropy'"):
        Defer("entropi")
    with pytest.raises(ValueError, match="score must have the shape of the losses"):
        risk_coverage(pred, y, torch.zeros(20))
    with pytest.raises(ValueError, match="NaN"):
        risk_coverage(pred, y, torch.full((30,), math.nan))
    with pytest.raises(TypeError, match="score must be the name"):
        Defer(3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not fitted"):
        Defer()(pred)
    tags = gfo.Predictive(torch.zeros(1, 30, 4, 3), gfo.Categorical(3))
    with pytest.raises(ValueError, match="one label each"):
        Defer().fit(tags, torch.zeros(30, 4).long())
    numbers = gfo.Predictive(torch.zeros(1, 30, 1), gfo.Gaussian())
    with pytest.raises(TypeError, match="Defer is for classes"):
        Defer("variance").fit(numbers, torch.zeros(30))
    with pytest.raises(ValueError, match="errors must be at most answers"):
        risk_bound(3, 2)


def test_plots_return_their_axis() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pred, y, _ = yes_or_no(50)
    figure, ax = pyplot.subplots()
    names = ["entropy", "mutual_information"]
    assert gfo.selective.plot_risk_coverage(pred, y, names, ax=ax) is ax
    curve = risk_coverage(pred, y, "entropy")
    assert ax.lines[0].get_ydata() == pytest.approx(curve.risk.tolist())
    assert [line.get_label().split(" ")[0] for line in ax.lines] == names
    with pytest.raises(TypeError, match="list of names"):
        gfo.selective.plot_risk_coverage(pred, y, "entropy")
    pyplot.close(figure)
