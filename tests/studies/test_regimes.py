"""The study regimes: which of them admit a ranking, intervals, its data, its models, its plan."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import write_cifar10, write_mnist
from torch import Tensor

from gflowout.data import store
from gflowout.runs import Context, Run
from gflowout.studies import regimes, regimes_data, regimes_fit, regimes_section
from gflowout.studies.framework.statistics import Comparison, crossed, pair
from gflowout.studies.framework.study import TUNING
from gflowout.studies.regimes_arms import ARMS, CONTROLS, KEEPS, OWN, SCALED, like
from gflowout.studies.regimes_data import Problem, Regime

SIZES = {"train": 40, "valid": 20, "test": 60}
HOW = {"epochs": 4, "batch": 20, "lr": 1e-2, "valid_samples": 2, "width": 2}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Made pictures under the names of MNIST, notMNIST and CIFAR-10."""
    for name in ("mnist", "notmnist"):
        write_mnist(tmp_path / "data" / name, 300)
    write_cifar10(tmp_path / "data" / "cifar10", 120, (1, 2))
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "data"))
    regimes_data.read.cache_clear()
    yield tmp_path
    regimes_data.read.cache_clear()


# Intervals


def _null(seeds: int, blocks: int, of_blocks: float, number: int) -> tuple[dict, dict]:
    """Two arms without a true difference, whose observed one depends on seed and test block."""
    source = torch.Generator().manual_seed(number)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    gaps = noise(seeds, 1) + of_blocks * noise(1, blocks) + noise(seeds, blocks)
    ours = {seed: row.tolist() for seed, row in enumerate(gaps)}
    return ours, {seed: [0.0] * blocks for seed in ours}


@pytest.mark.parametrize("of_blocks", [0.0, 6.0])
def test_intervals_cover_no_difference_with_common_test_blocks(of_blocks: float) -> None:
    covered, naive, count = 0, 0, 80
    for number in range(count):
        ours, other = _null(8, 10, of_blocks, number)
        gap = crossed(ours, other, "high")
        covered += gap.low <= 0 <= gap.high
        means = [{s: statistics.fmean(row) for s, row in arm.items()} for arm in (ours, other)]
        plain = pair(*means, "high")
        naive += plain.low <= 0 <= plain.high
        assert gap.difference == pytest.approx(plain.difference)
        assert gap.high - gap.low > 0
    assert covered >= 0.91 * count
    assert (naive < 0.7 * count) == (of_blocks > 0)  # which is why there is another interval


def test_crossed_turns_round_with_its_arms_and_says_what_it_cannot() -> None:
    ours, other = _null(5, 4, 1.0, 0)
    one, back = crossed(ours, other, "high"), crossed(other, ours, "high")
    assert (one.low, one.p) == pytest.approx((-back.high, back.p))
    assert crossed({0: [1.0, 2.0]}, {0: [1.0, 1.0]}, "low").verdict == "not comparable"
    assert crossed({0: [1.0]}, {1: [1.0]}, "low").why == "no common seed"
    same = crossed({0: [1.0, 2.0], 1: [2.0, 3.0]}, {0: [1.0, 2.0], 1: [2.0, 3.0]}, "low")
    assert (same.verdict, same.p) == ("no difference seen", 1.0)


# Which regimes admit a ranking


def record(arm: str, seed: int, metrics: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the section reads of a record."""
    return {
        "study": "regimes", "data": "mnist-clean", "method": arm, "seed": seed,
        "metrics": metrics, "options": {"tuned": {}, **options}, "started": "",
    }  # fmt: skip


def rule(last: list[float], rate: float) -> list[dict[str, Any]]:
    """Plain networks whose validation NLL is 0.5, 0.4 and the last one; MC dropout at a rate."""
    plain = [record("none", s, {"curve/valid": [0.5, 0.4, v]}) for s, v in enumerate(last)]
    return [*plain, record("mc", 0, {}, tuned={"method.options.rate": rate})]


@pytest.mark.parametrize(
    ("last", "rate", "overfits", "inside"),
    [
        ([0.60, 0.62, 0.61], 0.3, True, True),
        ([0.60, 0.62, 0.61], 0.0, True, False),  # no dropout is best
        ([0.60, 0.62, 0.61], 0.7, True, False),  # the other end of the grid
        ([0.35, 0.36, 0.34], 0.3, False, True),  # still falling
        ([0.30, 0.62, 0.45], 0.3, False, True),  # the interval has 0 in it
    ],
)
def test_a_regime_is_admitted_by_overfitting_and_a_rate_inside_the_grid(
    last: list[float], rate: float, overfits: bool, inside: bool
) -> None:
    found = regimes_section.admission(rule(last, rate), "mnist-clean")
    assert found is not None
    assert (found.overfits, found.inside) == (overfits, inside)
    assert found.admitted == (overfits and inside)
    assert found.keep == pytest.approx(1 - rate)
    assert regimes_section.admission(rule(last[:1], rate), "mnist-clean") is None


def scored(last: list[float], gain: float) -> list[dict[str, Any]]:
    """Records of all arms; learned ones have an NLL below all others by the gain."""
    source = torch.Generator().manual_seed(0)
    records = []
    for arm in ARMS:
        for seed in range(6):
            blocks = 0.5 + 0.01 * torch.rand(20, generator=source) - gain * (arm in CONTROLS)
            nll = float(blocks.mean())
            metrics = {
                "test/nll": nll, "test/accuracy": 0.9 + 0.001 * seed, "test/ece": 0.1,
                "blocks": {"test/nll": blocks.tolist()},
            }  # fmt: skip
            records.append(record(arm, seed, metrics))
    plan = rule(last, 0.3)
    for one in records:
        if one["method"] == "none":
            one["metrics"] |= plan[0]["metrics"]
        if one["method"] == "mc":
            one["options"] = plan[-1]["options"]
    return records


def test_the_section_ranks_where_dropout_matters_and_corrects_over_all_comparisons() -> None:
    records = scored([0.6] * 6, gain=0.1)
    family = regimes_section.comparisons(records, "mnist-clean")
    assert {test.together for test in family.values()} == {len(family)}
    assert {key[:2] for key in family} == {
        (learned, other)
        for learned, controls in CONTROLS.items()
        for other in (*regimes_section.RIVALS, *controls)
    }
    section = regimes_section.section(records)
    assert {claim.verdict for claim in section.claims} == {"holds"}
    assert any("GFlowOut is better than any other method" in text for text in section.findings)
    again = regimes_section.section(scored([0.6] * 6, gain=0.0))
    assert {claim.verdict for claim in again.claims} == {"does not hold"}


def test_the_section_ranks_nothing_where_it_does_not() -> None:
    section = regimes_section.section(scored([0.3] * 6, gain=0.1))
    assert section.findings == [
        "MNIST, 2,000 images: dropout does not matter here, nothing is ranked."
    ]
    assert section.claims == []
    table = next(block for block in section.blocks if "scores" in getattr(block, "title", ""))
    assert not table.best
    assert not any("pair by pair" in getattr(block, "title", "") for block in section.blocks)
    assert regimes_section.section([]).findings == []


# Plan


def test_every_arm_has_as_many_trials_on_seeds_that_no_run_has() -> None:
    trials, runs = regimes.tuning("cpu"), regimes.runs("cpu", {})
    counts = Counter((trial.data, trial.method) for trial in trials)
    assert set(counts) == {(data, arm) for data in regimes_data.REGIMES for arm in OWN}
    assert set(counts.values()) == {len(KEEPS)}
    tried = {seed for trial in trials for seed in trial.options["trial_seeds"]}
    assert len(tried) >= 2
    assert not tried & {run.seed for run in runs}
    for data in regimes_data.REGIMES:
        assert {run.method for run in runs if run.data == data} == set(ARMS)
        own = [run.options for run in (*trials, *runs) if run.data == data]
        assert len({tuple(map(options.get, ("epochs", "train", "lr"))) for options in own}) == 1


def test_controls_have_what_was_chosen_for_their_arm() -> None:
    chosen = {("mnist-clean", arm): {OWN[arm][0]: 0.123} for arm in ("gflowout", "none")}
    chosen["mnist-clean", "mc"] = {"method.options.rate": 0.4}
    own = {r.method: r.options for r in regimes.runs("cpu", chosen) if r.data == "mnist-clean"}
    for arm in ("control", "mc-at-gflowout", SCALED, "ensemble"):
        assert own[arm]["tuned"] == own[like(ARMS[arm])]["tuned"], arm
    assert own["mc-at-gflowout"]["partner"] == own["gflowout"]["tuned"]
    assert ARMS["control"].options["method.options.beta"] == 0


# Data


def test_digits_are_known_or_held_out(data: Path) -> None:
    clean = regimes_data.load("mnist-clean", 0, SIZES)
    assert clean.classes == 8
    assert clean.train[0].shape == (40, 1, 28, 28)
    assert int(clean.train[1].max()) < 8
    assert len(clean.test[1]) + len(clean.others["digits"]) == SIZES["test"]
    other = regimes_data.load("mnist-clean", 1, SIZES)
    assert not torch.equal(other.train[0], clean.train[0])
    assert torch.equal(other.test[1], clean.test[1])  # the same for all seeds
    noisy = regimes_data.load("mnist-noisy", 0, SIZES)
    assert torch.equal(noisy.train[0], clean.train[0])
    assert torch.equal(noisy.clean[1], clean.train[1])
    assert 0 < int((noisy.train[1] != clean.train[1]).sum()) <= 12  # 30 % drawn anew
    assert torch.equal(noisy.valid[1], clean.valid[1])


def test_pictures_behind_the_stem_are_not_those_it_was_trained_with(data: Path) -> None:
    regime = regimes_data.REGIMES["cifar10-stem"]
    whole = regimes_data.read("cifar10", "train")
    stem = whole.images[regimes_data.stem_order(len(whole))[:100]]
    seen = {picture.numpy().tobytes() for picture in stem}
    for part in regimes_data.pictures(regime, 0, SIZES, first=100)[:2]:
        assert not seen & {picture.numpy().tobytes() for picture in part.images}
    how = {**HOW, **SIZES, "stem": {"train": 100, "epochs": 1}}
    problem = regimes_fit.behind_stem(regime, how, data, 0)
    again = regimes_fit.behind_stem(regime, how, data, 0)  # with the stem that is kept
    assert problem.train[0].shape == (40, 4, 16, 16)
    assert torch.equal(problem.train[0], again.train[0])
    assert not torch.equal(problem.train[1], problem.clean[1])
    head = regimes_fit.network(regime, 10, HOW)
    assert head(problem.train[0]).shape == (40, 10)
    assert len(head.sites) == 4


# Models


def tiny() -> tuple[Regime, Problem]:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 784, generator=source), torch.randint(3, (60,), generator=source)
    parts = [(x[a:b], y[a:b]) for a, b in ((0, 30), (30, 60), (30, 60))]
    return regimes_data.REGIMES["mnist-clean"], Problem(3, *parts, parts[0])


def test_training_keeps_the_best_epoch_and_shares_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regime, problem = tiny()
    here = regimes_fit.Place(regime, problem, HOW, tmp_path, 0)
    first = regimes_fit.fitted(ARMS["none"], {}, None, here, regimes_fit.silent)
    assert regimes_fit.nll(first.model, problem.valid, 2, 0) == pytest.approx(min(first.curve))
    assert first.curve.index(min(first.curve)) < len(first.curve) - 1  # labels are noise
    assert first.keep is None
    learned = regimes_fit.fitted(ARMS["gflowout"], {}, None, here, regimes_fit.silent)
    partner = (ARMS["gflowout"], {})
    equal = regimes_fit.fitted(ARMS["mc-at-gflowout"], {}, partner, here, regimes_fit.silent)
    assert equal.keep == pytest.approx(learned.keep, abs=0.01)
    monkeypatch.setattr(regimes_fit, "train", None)  # nothing may be trained again
    again = regimes_fit.fitted(ARMS["none"], {}, None, here, regimes_fit.silent)
    assert again.curve == first.curve
    for one, other in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(TypeError):  # another member is another network
        regimes_fit.fitted(ARMS["ensemble"], {}, None, here, regimes_fit.silent)


@pytest.mark.filterwarnings("ignore:predictions are no better than guessing")  # made pictures
def test_runs_score_and_adapt(data: Path) -> None:
    sizes = regimes.sizes("smoke", "cifar10-stem") | {**SIZES, "width": 2}
    runs = {}
    for arm in ("none", SCALED, "ensemble"):
        run = Run("regimes", arm, "cifar10-stem", 0, {**sizes, "tuned": {}})
        runs[arm] = regimes.work(run, Context(data / "runs" / arm))["metrics"]
        json.dumps(runs[arm])
        assert runs[arm]["points-20/nll"] != runs[arm]["test/nll"]
    assert runs[SCALED]["test/accuracy"] == runs["none"]["test/accuracy"]
    assert runs[SCALED]["test/nll"] != runs["none"]["test/nll"]
    trial = Run(TUNING, "mc", "mnist-clean", 100, {
        **regimes.sizes("smoke", "mnist-clean"), "trial_seeds": [100, 101], "members": 1,
        "tuned": {"method.options.rate": 0.5},
    })  # fmt: skip
    metrics = regimes.work(trial, Context(data / "runs" / "trial"))["metrics"]
    assert list(metrics) == ["valid/nll"]  # no test data


def test_blocks_of_a_run_have_the_mean_of_the_whole(data: Path) -> None:
    sizes = regimes.sizes("smoke", "mnist-clean") | {**SIZES, "test": 300}
    run = Run("regimes", "mc", "mnist-clean", 0, {**sizes, "tuned": {}})
    metrics = regimes.work(run, Context(data / "runs" / "mc"))["metrics"]
    blocks = metrics["blocks"]
    assert {len(values) for values in blocks.values()} == {regimes_section.BLOCKS}
    assert statistics.fmean(blocks["test/nll"]) == pytest.approx(metrics["test/nll"], abs=1e-5)
    assert {"digits/auroc", "notmnist/auroc"} <= set(blocks)


def test_a_comparison_without_blocks_is_by_seed() -> None:
    own = [record("mc", s, {"test/nll": 0.5 + s / 100}) for s in range(3)]
    own += [record("gflowout", s, {"test/nll": 0.4 + s / 50}) for s in range(3)]
    found = regimes_section._compare(own, "mnist-clean", "test/nll", "gflowout", "mc")
    assert isinstance(found, Comparison)
    assert found.seeds == 3
    assert found.verdict == "better"
