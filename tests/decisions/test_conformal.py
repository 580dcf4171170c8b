"""Sets and intervals are those of the definition, and hold the truth as often as they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.conformal import Intervals, Sets, quantile, report_intervals, report_sets, set_scores
from gflowout.decisions import conformal_scores

LEVELS = (0.8, 0.9, 0.95)
METHODS = ("lac", "aps", "raps")


def classes(rows: int, count: int = 5, seed: int = 0) -> tuple[gfo.Predictive, Tensor]:
    """Predictions of moderate quality, with several draws."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(count, (rows,), generator=source)
    logits = 1.5 * torch.randn(3, rows, count, generator=source, dtype=torch.float64)
    logits[:, torch.arange(rows), y] += 1.5
    return gfo.Predictive(logits, gfo.Categorical(count)), y


def numbers(rows: int, seed: int = 0) -> tuple[gfo.Predictive, Tensor]:
    """Predictions with a spread that is wrong by a factor, and noise that is not normal."""
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=source, dtype=torch.float64)
    noise = torch.empty_like(x).exponential_(generator=source) - 1
    means = x + 0.1 * torch.randn(4, rows, 1, generator=source, dtype=torch.float64)
    outputs = torch.cat((means, (0.3 * x + 0.05).log().expand(4, -1, -1)), -1)
    return gfo.Predictive(outputs, gfo.Gaussian(heteroscedastic=True).eval()), x + (0.5 * x) * noise


def take(pred: gfo.Predictive, rows: Tensor) -> gfo.Predictive:
    return gfo.Predictive(pred.outputs[:, rows], pred.likelihood)


def brute_score(p: np.ndarray, label: int, method: str, penalty: float, free: int) -> float:
    """The score of one class of one example, by its definition."""
    if method == "lac":
        return float(1 - p[label])
    at_least = [other for other in range(len(p)) if p[other] >= p[label]]
    charge = penalty * max(0, len(at_least) - free) if method == "raps" else 0.0
    return float(sum(p[other] for other in at_least) + charge)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_a_class_is_in_the_set_unless_its_p_value_is_small(method: str, coverage: float) -> None:
    pred, y = classes(60)
    held_out, new = torch.arange(40), torch.arange(40, 60)  # the + 1 changes the rank for 40
    sets = Sets(coverage, method, penalty=0.2, free=2).fit(take(pred, held_out), y[held_out])
    chosen = sets(take(pred, new))
    p = pred.mean.numpy()
    own = [brute_score(p[row], int(y[row]), method, 0.2, 2) for row in held_out]
    for place, row in enumerate(new):
        for label in range(5):
            score = brute_score(p[row], label, method, 0.2, 2)
            p_value = (1 + sum(other >= score - 1e-12 for other in own)) / 41
            assert bool(chosen[place, label]) == (p_value > 1 - coverage + 1e-12)


def test_sets_of_crepes() -> None:
    crepes = pytest.importorskip("crepes")
    pred, y = classes(300)
    held_out, new = torch.arange(200), torch.arange(200, 300)
    scores = 1 - pred.mean.numpy()
    own = scores[np.arange(200), y[:200].numpy()]

    def reference(true_scores: np.ndarray, new_scores: np.ndarray) -> np.ndarray:
        fitted = crepes.base.ConformalClassifier().fit(true_scores)
        sets = fitted.predict_set(new_scores, confidence=0.85, smoothing=False)
        return np.asarray(sets).astype(bool)

    sets = Sets(0.85).fit(take(pred, held_out), y[held_out])(take(pred, new))
    assert (sets.numpy() == reference(own, scores[200:])).all()
    sets = Sets(0.85, per_class=True).fit(take(pred, held_out), y[held_out])(take(pred, new))
    for label in range(5):
        theirs = reference(own[y[:200].numpy() == label], scores[200:, label : label + 1])
        assert (sets[:, label : label + 1].numpy() == theirs).all()


def test_intervals_of_crepes() -> None:
    crepes = pytest.importorskip("crepes")
    pred, y = numbers(300)
    mean, std = pred.mean[:, 0].numpy(), pred.variance().sqrt()[:, 0].numpy()
    for method, sigmas in (("residual", None), ("spread", std)):
        low, high = Intervals(0.85, method).fit(
            take(pred, torch.arange(200)), y[:200]
        )(take(pred, torch.arange(200, 300)))  # fmt: skip
        reference = crepes.base.ConformalRegressor().fit(
            y[:200, 0].numpy() - mean[:200], sigmas=None if sigmas is None else sigmas[:200]
        )
        theirs = reference.predict_int(
            mean[200:], sigmas=None if sigmas is None else sigmas[200:], confidence=0.85
        )
        assert torch.cat((low, high), -1).numpy() == pytest.approx(theirs, abs=1e-9)


def tails(covered: int, new: int, held_out: int, coverage: float) -> tuple[float, float]:
    """Probabilities that as few, and as many, of the new examples are covered.

    With k the rank of the quantile among n scores, the number of m new examples that are covered is
    beta-binomial(m, k, n + 1 - k), however good the predictions are.
    """
    rank = math.ceil((held_out + 1) * coverage - 1e-9)
    pmf = betabinom.pmf(np.arange(new + 1), new, rank, held_out + 1 - rank)
    return float(pmf[: covered + 1].sum()), float(pmf[covered:].sum())


def check_splits(
    hits: Callable[[Tensor, Tensor], Tensor], rows: int, held_out: int, coverage: float, splits: int
) -> None:
    """All random splits, and their mean, are in the band of the exact distribution."""
    new = rows - held_out
    counts = []
    for split in range(splits):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(split))
        counts.append(int(hits(order[:held_out], order[held_out:]).sum()))
    worst = min(min(tails(count, new, held_out, coverage)) for count in {min(counts), max(counts)})
    assert worst > 1e-4 / splits
    rank = math.ceil((held_out + 1) * coverage - 1e-9)
    law = betabinom(new, rank, held_out + 1 - rank)
    # Four standard errors; splits of one sample are taken for independent.
    assert abs(np.mean(counts) - law.mean()) < 4 * law.std() / math.sqrt(splits)


@pytest.fixture(scope="module")
def digits() -> tuple[gfo.Predictive, Tensor]:
    """Predictions of digits that a small network was not trained on."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float() / 16, torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        order = torch.randperm(len(x))
        train, rest = order[:300], order[300:]
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(10), example=(x[:2],))
        optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
        descend(model, x[train], y[train], optimizer, 60)
        # Masks of their own for every row, so that rows are exchangeable.
        return model.predict(x[rest], samples=10), y[rest]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("coverage", LEVELS)
def test_coverage_of_sets_on_digits(
    method: str, coverage: float, digits: tuple[gfo.Predictive, Tensor]
) -> None:
    pred, y = digits

    def hits(held_out: Tensor, new: Tensor) -> Tensor:
        sets = Sets(coverage, method).fit(take(pred, held_out), y[held_out])(take(pred, new))
        return sets.gather(1, y[new, None])

    check_splits(hits, len(y), 200, coverage, splits=20)


@pytest.mark.parametrize("coverage", LEVELS)
def test_coverage_per_class_on_digits(
    coverage: float, digits: tuple[gfo.Predictive, Tensor]
) -> None:
    pred, y = digits
    total, splits, outside = torch.bincount(y), 20, 0
    for split in range(splits):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(split))
        held_out, new = order[:400], order[400:]
        sets = Sets(coverage, per_class=True).fit(take(pred, held_out), y[held_out])
        hit = sets(take(pred, new)).gather(1, y[new, None])[:, 0]
        for label in range(10):
            count = int((y[held_out] == label).sum())
            covered = int(hit[y[new] == label].sum())
            least = min(tails(covered, int(total[label]) - count, count, coverage))
            assert least > 1e-6
            outside += least < 0.025
    assert outside <= 25  # of 200, where 10 or fewer are expected


def test_coverage_of_a_class_needs_its_own_threshold() -> None:
    """One hard class: marginal sets cover it too rarely, sets per class do not."""
    pred, y = classes(4000)
    outputs = pred.outputs.clone()
    outputs[:, y == 0] = outputs[:, y == 0].roll(1, -1)
    pred = gfo.Predictive(outputs, pred.likelihood)
    held_out, new = torch.arange(2000), torch.arange(2000, 4000)
    worst = [
        report_sets(
            Sets(0.9, per_class=per_class).fit(take(pred, held_out), y[held_out])(take(pred, new)),
            y[new],
        )["worst_class"]
        for per_class in (False, True)
    ]
    assert worst[0] < 0.8 < 0.86 < worst[1]


@pytest.fixture(scope="module")
def diabetes() -> tuple[gfo.Predictive, Tensor]:
    """Predictions of the progression of diabetes for patients that a network has not seen."""
    table, progression = load_diabetes(return_X_y=True)
    x, y = torch.tensor(table).float() * 20, torch.tensor(progression).float()[:, None]
    y = (y - y.mean()) / y.std()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        order = torch.randperm(len(x))
        train, rest = order[:150], order[150:]
        net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
        model = gfo.wrap(net, "mc", ["1"], likelihood="regression", example=(x[:2],))
        optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
        for _ in range(100):
            optimizer.zero_grad()
            model(x[train], y=y[train]).total.backward()
            optimizer.step()
        return model.predict(x[rest], samples=10), y[rest]


@pytest.mark.parametrize("data", ["diabetes", "simulated"])
@pytest.mark.parametrize("method", ["spread", "residual", "quantile"])
@pytest.mark.parametrize("coverage", LEVELS)
def test_coverage_of_intervals(
    data: str, method: str, coverage: float, diabetes: tuple[gfo.Predictive, Tensor]
) -> None:
    pred, y = diabetes if data == "diabetes" else numbers(1500)

    def hits(held_out: Tensor, new: Tensor) -> Tensor:
        fitted = Intervals(coverage, method).fit(take(pred, held_out), y[held_out])
        low, high = fitted(take(pred, new))
        return (low <= y[new]) & (y[new] <= high)

    check_splits(hits, len(y), 200, coverage, splits=20)


def small_splits(coverage: float) -> None:
    """Few held-out examples and many splits, where one rank makes a difference."""
    pred, y = classes(700)
    scores = (1 - pred.mean).gather(1, y[:, None])[:, 0]
    check_splits(
        lambda held_out, new: scores[new] <= quantile(scores[held_out], coverage),
        len(y), 20, coverage, splits=400,
    )  # fmt: skip


@pytest.mark.parametrize("coverage", LEVELS)
def test_a_quantile_without_the_new_example_fails(
    coverage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_splits(coverage)
    monkeypatch.setattr(
        conformal_scores, "rank_of", lambda count, coverage: math.ceil(count * coverage - 1e-9)
    )
    with pytest.raises(AssertionError):
        small_splits(coverage)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99, 0.123])
def test_too_few_examples_are_an_error(coverage: float) -> None:
    least = conformal_scores.least_count(coverage)
    assert least >= coverage / (1 - coverage) - 1e-9
    quantile(torch.rand(least), coverage)
    if least > 1:
        assert math.ceil(least * coverage - 1e-9) > least - 1
        with pytest.raises(ValueError, match=f"needs at least {least} held-out examples"):
            quantile(torch.rand(least - 1), coverage)


def test_rounding_does_not_move_the_rank() -> None:
    for count in range(1, 500):
        for part in range(1, 100):
            exact = -(-(count + 1) * part // 100)
            assert conformal_scores.rank_of(count, part / 100) == max(1, exact)


def test_an_empty_set_can_be_refused() -> None:
    y = torch.arange(100) % 3
    logits = 2.0 * nn.functional.one_hot(y, 3) + torch.rand(100, 1) * torch.tensor([1.0, 0, 0])
    pred = gfo.Predictive(logits[None], gfo.Categorical(3))
    may = Sets(0.5).fit(pred, y)(pred)
    never = Sets(0.5, allow_empty=False).fit(pred, y)(pred)
    assert report_sets(may, y)["empty"] > 0.2
    assert report_sets(never, y)["empty"] == 0
    assert torch.equal(never | may, never)


def test_yes_or_no_has_sets_of_two() -> None:
    source = torch.Generator().manual_seed(0)
    log_odds = torch.randn(2, 200, 1, generator=source)
    y = (log_odds.mean(0)[:, 0] + 0.5 * torch.randn(200, generator=source) > 0).float()
    binary = gfo.Predictive(log_odds, gfo.Binary())
    two = gfo.Predictive(torch.cat((-log_odds / 2, log_odds / 2), -1), gfo.Categorical(2))
    assert torch.equal(Sets(0.9).fit(binary, y)(binary), Sets(0.9).fit(two, y.long())(two))


def test_numbers_of_a_label_have_thresholds_of_their_own() -> None:
    pred, y = numbers(200)
    means, log_variances = pred.outputs.chunk(2, -1)
    outputs = torch.cat((means, 10 * means, log_variances, log_variances), -1)
    both = gfo.Predictive(outputs, gfo.Gaussian(2, heteroscedastic=True).eval())
    joined = Intervals(0.8, "residual").fit(both, torch.cat((y, 10 * y), -1))
    alone = Intervals(0.8, "residual").fit(pred, y)
    torch.testing.assert_close(joined.threshold, alone.threshold * torch.tensor([1.0, 10.0]))


def test_a_spread_that_is_informative_makes_shorter_intervals() -> None:
    pred, y = numbers(2000)
    widths = {
        method: report_intervals(*Intervals(0.9, method).fit(pred, y)(pred), y)["width"]
        for method in ("spread", "residual")
    }
    assert widths["spread"] < widths["residual"]


def test_reports_count() -> None:
    sets = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    assert report_sets(sets, torch.tensor([0, 2, 1])) == {
        "coverage": pytest.approx(1 / 3), "worst_class": 0, "size": 1,
        "empty": pytest.approx(1 / 3), "single": pytest.approx(1 / 3),
    }  # fmt: skip


def test_reports_refuse_labels_that_do_not_fit() -> None:
    sets = torch.ones(4, 3, dtype=torch.bool)
    assert report_sets(sets, torch.tensor([0.0, 1.0, 2.0, 0.0]))["coverage"] == 1
    for wrong in (0.7, math.nan):
        with pytest.raises(ValueError, match="y must hold classes as whole numbers"):
            report_sets(sets, torch.full((4,), wrong))
    low, high = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"same shape .* \[2, 3\] and \[3, 2\]"):
        report_intervals(low, high, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="must hold numbers, got NaN"):
        report_intervals(low, high, torch.full((2, 3), math.nan))
    assert report_intervals(low[0], high[0], torch.zeros(3, 1))["coverage"] == 1


def test_thresholds_keep_no_gradient() -> None:
    pred = gfo.Predictive(torch.randn(2, 30, 1), gfo.Ordinal(3))  # whose thresholds are learned
    assert not Sets(0.5).fit(pred, torch.arange(30) % 3).threshold.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_scores_rank_classes_by_probability(method: str) -> None:
    p = torch.rand(50, 7, dtype=torch.float64).softmax(-1)
    assert torch.equal(set_scores(p, method).argsort(-1), p.argsort(-1, descending=True))


def test_files_bring_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "fitted.safetensors"
    pred, y = classes(300)
    for sets in (Sets(0.8, "raps", penalty=0.3, free=2), Sets(0.8, per_class=True)):
        sets.fit(pred, y).save(path)
        again = Sets.load(path)
        assert torch.equal(again(pred), sets(pred))
        assert repr(again) == repr(sets)
    pred, y = numbers(100)
    intervals = Intervals(0.8, "quantile").fit(pred, y)
    intervals.save(path)
    assert torch.equal(Intervals.load(path)(pred)[0], intervals(pred)[0])


def test_errors_say_what_is_wrong() -> None:
    pred, y = classes(30)
    number, values = numbers(30)
    with pytest.raises(ValueError, match=r"coverage must be a number in \(0, 1\), got 90"):
        Sets(90)
    with pytest.raises(ValueError, match="method must be one of 'lac'"):
        Sets(0.9, "apps")
    with pytest.raises(ValueError, match=r"at least 9 labels of every class .* of class"):
        Sets(0.9, per_class=True).fit(pred, y)
    with pytest.raises(TypeError, match="prediction of classes, it has Gaussian"):
        Sets().fit(number, values)
    with pytest.raises(TypeError, match=r"take gfo\.conformal.Sets"):
        Intervals().fit(pred, y)
    with pytest.raises(ValueError, match=r"y must have shape \[30, 1\]"):
        Intervals().fit(number, values[:20])
    tags = gfo.Predictive(torch.zeros(1, 30, 4, 3), gfo.Categorical(3))
    with pytest.raises(ValueError, match="one label each"):
        Sets().fit(tags, torch.zeros(30, 4).long())
    pixels = gfo.Predictive(torch.zeros(1, 30, 4, 4, 3), gfo.Categorical(3))
    with pytest.raises(ValueError, match=r"labels of shape \[4, 4\] .*outputs\[:, :, 0, 0\], gfo"):
        Sets()(pixels)
    with pytest.raises(ValueError, match=r"soft labels of shape \[30, 5\]; take y.argmax"):
        Sets().fit(pred, torch.full((30, 5), 0.2))
    with pytest.raises(ValueError, match=r"y must be in \[0, 4\] for these sets, .* from -100"):
        report_sets(torch.ones(2, 5, dtype=torch.bool), torch.tensor([-100, 4]))
    with pytest.raises(RuntimeError, match="not fitted"):
        Sets()(pred)
    other = Sets(0.5, per_class=True).fit(pred, y)
    with pytest.raises(ValueError, match="5 classes as in fit, got 3"):
        other(gfo.Predictive(torch.zeros(1, 2, 3), gfo.Categorical(3)))
    exact = gfo.Predictive(torch.full((1, 30, 2), -1e4), number.likelihood)
    with pytest.raises(ValueError, match="positive variance"):
        Intervals().fit(exact, values)
