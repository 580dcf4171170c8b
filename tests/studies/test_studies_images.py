"""The studies on images done for real, with few arms and tiny parts of real data."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from studies_images_files import link

import gflowout as gfo
from gflowout.app import evaluation as scores
from gflowout.app import sources
from gflowout.app.config import from_flat
from gflowout.app.sources import Part
from gflowout.core.ensemble import Ensemble
from gflowout.data import corruptions, overlays, shifts, store
from gflowout.data.images import ImageSet, load_images
from gflowout.runs import Context, Run, records
from gflowout.studies import (
    adaptation,
    block_order,
    images,
    ood,
    robustness,
    vqa,
)
from gflowout.studies.framework import study
from gflowout.studies.framework.arms import ARMS, combinations, of_preset, trials
from gflowout.studies.framework.study import TUNING
from gflowout.training.options import FitOptions, optimisers

STUDIES = {"robustness": robustness, "block-order": block_order, "ood": ood,
           "adaptation": adaptation}  # fmt: skip
FEW = ("none", "gflowout", "ensemble")


@pytest.fixture(scope="session")
def data_dir(real_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(real_data, tmp_path_factory.mktemp("data"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """Three arms instead of nine, few members, and the data where studies look for them."""
    monkeypatch.setenv(store.VARIABLE, str(data_dir))
    pool = dataclasses.replace(ARMS["ensemble"], members=2)
    arms = {label: pool if label == "ensemble" else ARMS[label] for label in FEW}
    monkeypatch.setattr(images, "ARMS", arms)


def stored(folder: Path) -> set[str]:
    place = folder / ".scratch" / images.STORE
    return {each.name for each in place.iterdir()} if place.is_dir() else set()


def one(runs: list[Run], arm: str, data: str) -> Run:
    return next(run for run in runs if (run.method, run.data) == (arm, data))


def changed(run: Run, **options: Any) -> Run:
    values = run.to_dict()
    return Run.from_dict({**values, "options": {**values["options"], **options}})


@pytest.mark.parametrize("name", STUDIES)
def test_records_and_sections_of_a_study(smoke: Callable[[str], Path], name: str) -> None:
    out, whole = smoke(name), study.get(name)
    trials = {trial.id for trial in whole.tuning("smoke")}
    done = [r for r in records.read(out, "done") if r["study"] == name or r["id"] in trials]
    for record in done:
        assert len(json.dumps(record)) < 200_000
        touched = [key for key in record["metrics"] if not key.startswith("valid/")]
        assert (touched == []) == (record["study"] == TUNING)
    own = [record for record in done if record["study"] == name]
    runs = whole.runs("smoke", study.chosen(whole.tuning("smoke"), out, whole.score))
    arms = [label for label in ARMS if label in {run.method for run in runs}]
    assert {record["method"] for record in own} == set(arms)
    part = whole.section(own)
    assert part.data
    assert part.claims
    assert all("Rule: " in claim.why for claim in part.claims)
    tables = [block for block in part.blocks if type(block).__name__ == "Table"]
    by_method = next(table for table in tables if table.head == "Method")
    ours = [row.title for row in by_method.rows if row.source == "ours"]
    assert ours == [ARMS[label].title for label in arms]
    # Each network is trained once, whatever number of studies looks at it.
    assert {folder_name(run) for run in runs if not ARMS[run.method].rate_of} <= stored(out)
    pictures = [block for block in part.blocks if type(block).__name__ == "Pictures"]
    assert bool(pictures) == (name == "robustness")
    for pictured in pictures:
        doubts = [picture.uncertainty for picture in pictured.pictures]
        assert doubts == sorted(doubts)
        assert len(doubts) == 12
        assert all(abs(sum(card.probabilities) - 1) < 0.01 for card in pictured.pictures)


def test_random_dropout_at_the_keep_rate_of_a_learned_method(smoke: Callable[[str], Path]) -> None:
    done = records.read(smoke("robustness"), "done")
    keep = {r["method"]: r["metrics"].get("keep") for r in done if r["study"] == "robustness"}
    for arm in (arm for arm in ARMS.values() if arm.rate_of):
        assert keep[arm.label] == pytest.approx(keep[arm.rate_of], abs=0.01), arm.label
    assert keep["mc"] == pytest.approx(0.5, abs=0.01)
    assert keep["none"] is keep["ensemble"] is None
    runs = robustness.runs("cpu", {("cifar10", "combined"): {"fit.lr": 0.1}})
    run = one(runs, "mc-at-combined", "cifar10")  # trains the same network as that arm's run
    assert dict(run.options["partner"]) == {"method.options.draws": 2, "fit.lr": 0.1}


def folder_name(run: Run) -> str:
    options = {key: value for key, value in run.options.items() if "." in key}
    config = images.settings(ARMS[run.method], options, run.options["tuned"], run.seed)
    return images.folder_of(config, Context(Path("run"))).name


@pytest.mark.parametrize("name", ["robustness", "adaptation"])
def test_the_same_run_again_gives_the_same_figures(
    name: str,
    smoke: Callable[[str], Path],
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(data_dir))
    own = [record for record in records.read(smoke(name), "done") if record["study"] == name]
    plain, first = (
        next(record for record in own if record["method"] == arm) for arm in ("none", "gflowout")
    )
    work, run = STUDIES[name].work, Run.from_dict(first)
    if name == "adaptation":  # one number of points more changes nothing for the others
        run = changed(run, points=(9, *run.options["points"]))
    second = work(run, Context(tmp_path / "a" / "run"))
    assert {key: second["metrics"].get(key) for key in first["metrics"]} == first["metrics"]
    extra = {key.partition("/")[0] for key in second["metrics"].keys() - first["metrics"].keys()}
    assert extra == ({"points-9"} if name == "adaptation" else set())
    assert second["data"] == first["checksums"]
    seeded = Run.from_dict({**plain, "seed": 1})
    assert work(seeded, Context(tmp_path / "b" / "run"))["metrics"] != plain["metrics"]


@pytest.mark.usefixtures("few")
def test_a_trial_does_not_look_at_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = one(robustness.STUDY.tuning("smoke"), "gflowout", "mnist")
    before = robustness.work(trial, Context(tmp_path / "a" / "run"))
    real = load_images

    def spoiled(name: str, part: str, *rest: Any, **options: Any) -> ImageSet:
        found = real(name, part, *rest, **options)
        if part == "test":
            found = dataclasses.replace(found, images=255 - found.images, labels=found.labels * 0)
        return found

    monkeypatch.setattr(sources, "load_images", spoiled)
    after = robustness.work(trial, Context(tmp_path / "b" / "run"))
    assert after["metrics"] == before["metrics"]
    assert set(after["data"]) == {"train", "valid"}
    assert all(name.startswith("valid/") for name in after["metrics"])


@pytest.mark.usefixtures("few")
def test_members_differ_share_their_data_and_start_with_the_single_network(tmp_path: Path) -> None:
    runs = robustness.runs("smoke", {})
    context = Context(tmp_path / "run")
    single = images.trained(one(runs, "none", "mnist"), context)
    pool = images.trained(one(runs, "ensemble", "mnist"), context)
    assert isinstance(pool.model, Ensemble)
    assert len(pool.model.members) == 2
    assert ARMS["ensemble"].members == 5
    first, *others = [list(member.parameters()) for member in pool.model.members]
    assert all(torch.equal(a, b) for a, b in zip(first, single.model.parameters(), strict=True))
    for place, other in enumerate(others):
        rest = [first, *others[:place]]
        assert all(not torch.equal(other[0], each[0]) for each in rest)
    tasks = [sources.load(config.data, config.seed).fingerprints for config in pool.configs]
    assert all(task == single.task.fingerprints for task in tasks)
    assert [config.seed for config in pool.configs] == [0, 1000]
    # Members that disagree have mutual information, one that never does has none.
    part = images.subset(single.task.part("test"), 0, 50)
    run = one(runs, "ensemble", "mnist")
    disagreement = images.answer(pool, part, run)["mutual_information"]
    assert float(disagreement.mean()) > 1e-4
    assert not images.answer(single, part, run)["mutual_information"].any()
    mean = torch.stack(
        [
            member.predict(next(iter(part.batches(single.problem, 50)))[0], samples=1).mean
            for member in pool.model.members
        ]
    ).mean(0)
    torch.testing.assert_close(images.answer(pool, part, run)["probabilities"], mean)


@pytest.fixture
def pictured(few: None, tmp_path: Path) -> tuple[images.Fitted, Part, Context]:
    run = one(block_order.runs("smoke", {}), "none", "cifar10")
    found = images.trained(run, Context(tmp_path / "run"))
    return found, images.subset(found.task.part("test"), 10, 30), Context(tmp_path / "run")


def test_kept_shifts_are_those_made_anew(
    pictured: tuple[images.Fitted, Part, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, part, context = pictured
    frost = overlays.load_overlays()
    fresh = {
        ("snow", 3): corruptions.corrupt(part.x, "snow", 3, seed=0),
        ("frost", 5): corruptions.corrupt(part.x, "frost", 5, seed=0, overlays=frost),
        ("rotated", 0): shifts.rotate(part.x, seed=0),
    }
    for (kind, severity), wanted in fresh.items():
        made = images.shifted(part.x, kind, severity, found, context)
        assert torch.equal(made, wanted)
        assert not torch.equal(made, part.x)
    kept = sorted((context.folder.parent / images.SHIFTED).iterdir())
    assert len(kept) == 3
    with monkeypatch.context() as patch:  # found, not made
        patch.setattr(corruptions, "corrupt", None)
        for kind, severity in (("snow", 3), ("frost", 5)):
            again = images.shifted(part.x, kind, severity, found, context)
            assert torch.equal(again, fresh[kind, severity])
    kept[0].write_bytes(b"damaged")
    for (kind, severity), wanted in fresh.items():
        assert torch.equal(images.shifted(part.x, kind, severity, found, context), wanted)
    other = images.shifted(part.x[:5], "snow", 3, found, context)  # other images, another file
    assert torch.equal(other, fresh["snow", 3][:5])
    assert len(list((context.folder.parent / images.SHIFTED).iterdir())) == 4


def test_subsets_are_balanced_nested_and_the_same_each_time() -> None:
    labels = torch.arange(1000) % 10
    part = Part(torch.arange(1000).view(-1, 1, 1, 1).to(torch.uint8), labels)
    chosen = images.subset(part, 50, 200)
    assert chosen.y.bincount().tolist() == [20] * 10
    assert chosen.y[:50].bincount().tolist() == [5] * 10
    assert torch.equal(chosen.x, images.subset(part, 50, 200).x)
    assert len(images.subset(part, 50, 5000)) == 1000


def test_fine_tuning_starts_from_the_checkpoint_and_stops_by_validation_data(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = one(adaptation.runs("smoke", {}), "ensemble", "cifar10")
    context = Context(tmp_path / "run")
    found = images.trained(run, context)
    assert isinstance(found.model, Ensemble)
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in found.model.members]
    real, seen = adaptation.fit, []

    def spied(model: Any, train: Any, valid: Any, options: Any, **rest: Any) -> Any:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        seen.append((state, train, valid, options))
        return real(model, train, valid, options, **rest)

    monkeypatch.setattr(adaptation, "fit", spied)
    clean = adaptation.some(adaptation.clean_labels(found.configs[0]), 18, run.seed)
    tuned = adaptation.finetuned(found, clean, {"fit.epochs": 1, "rate": 0.3}, context)
    assert isinstance(tuned.model, Ensemble)
    assert len(seen) == 2
    for place, (state, train, valid, options) in enumerate(seen):
        assert state.keys() == before[place].keys()
        assert all(torch.equal(state[name], before[place][name]) for name in state)
        assert sum(len(y) for _, y in train) == 18
        assert torch.equal(torch.cat([y for _, y in valid]), found.task.valid.y)
        assert options.lr == pytest.approx(0.3 * found.configs[0].fit.lr)
    for place, member in enumerate(found.model.members):  # the checkpoint stays as it was
        now = member.state_dict()
        assert all(torch.equal(now[name], value) for name, value in before[place].items())
        moved = tuned.model.members[place].state_dict()
        assert any(not torch.equal(moved[name], value) for name, value in before[place].items())


def test_clean_points_are_true_nested_and_from_the_noisy_training_images(few: None) -> None:
    run = one(adaptation.runs("smoke", {}), "none", "cifar10")
    options = {key: value for key, value in run.options.items() if "." in key}
    config = images.settings(ARMS["none"], options, {}, run.seed)
    noisy = sources.load(config.data, config.seed)
    again = sources.load(config.data, config.seed)
    assert torch.equal(noisy.train.y, again.train.y)  # drawn once
    clean = adaptation.clean_labels(config)
    assert torch.equal(clean.train.x, noisy.train.x)
    assert torch.equal(clean.valid.y, noisy.valid.y)
    wrong = int((clean.train.y != noisy.train.y).sum())
    assert 0 < wrong <= round(0.3 * len(noisy.train))
    small, large = adaptation.some(clean, 9, 0), adaptation.some(clean, 18, 0)
    assert torch.equal(large.train.x[:9], small.train.x)
    assert large.problem.train_size == 18
    assert large.problem.inputs == noisy.problem.inputs
    for image, label in zip(small.train.x, small.train.y, strict=True):
        (place,) = (clean.train.x == image).flatten(1).all(1).nonzero().flatten().tolist()
        assert clean.train.y[place] == label
    with pytest.raises(ValueError, match="points must be at most 36, got 37"):
        adaptation.some(clean, 37, 0)


@pytest.mark.parametrize("preset", study.PRESETS)
@pytest.mark.parametrize("name", STUDIES)
def test_every_preset_builds_valid_configurations(name: str, preset: str) -> None:
    module = STUDIES[name]
    trials = module.STUDY.tuning(preset)
    assert not any(ARMS[run.method].rate_of for run in trials)
    per_arm = {(run.data, run.method): 0 for run in trials}
    for run in trials:
        assert run.study == TUNING
        per_arm[run.data, run.method] += 1
    assert len(set(per_arm.values())) <= 1  # the same budget for each
    best = {(run.data, run.method): dict(run.options["tuned"]) for run in trials}
    runs = module.runs(preset, best)
    arms = ARMS.values() if name == "robustness" else of_preset(preset)
    assert {run.method for run in runs} == {arm.label for arm in arms}
    assert len({run.id for run in runs}) == len(runs)
    for run in [*trials, *runs]:
        options = {key: value for key, value in run.options.items() if "." in key}
        config = images.settings(ARMS[run.method], options, run.options["tuned"], run.seed)
        assert config.data.seed == run.seed
        if preset == "paper":
            assert not config.data.partial
            assert config.data.limit is None
            wide = run.data == "mnist" or config.backbone.width == 64
            assert wide
            assert run.options["samples"] == 20
    if name == "block-order":
        assert all(run.options["backbone.order"] == "bn-conv" for run in runs)
    if name == "adaptation" and preset != "smoke":
        assert all(run.options["points"] == (1000, 2000, 4000, 8000) for run in runs)
        assert all(run.options["data.label_noise"] == 0.3 for run in runs)
    if preset == "cpu":
        seeds = {run.data: max(r.seed for r in runs if r.data == run.data) + 1 for run in runs}
        wanted = {"robustness": 9, "ood": 5}.get(name)
        assert all(count >= 3 for count in seeds.values())
        assert seeds.get("mnist") == wanted


def test_preset_paper_trains_as_the_published_programs() -> None:
    for module in STUDIES.values():
        plan = [*module.STUDY.tuning("paper"), *module.runs("paper", {})]
        for run in plan:
            if run.data == "mnist":
                continue
            config = images.settings(ARMS[run.method], images.dotted(run), {}, run.seed)
            assert config.fit.weight_decay == 5e-4, run.id  # of all arms alike
            assert (config.fit.optimizer, config.backbone.width) == ("sgd", 64)
            assert "fit.weight_decay" not in run.options["tuned"]
    runs = vqa.runs("paper", {})
    fits = {tuple(vqa.configuration(ARMS[r.method], r, {})["fit.betas"]) for r in runs}
    assert fits == {(0.9, 0.98)}
    (steps,) = optimisers(
        gfo.wrap(torch.nn.Linear(2, 2), "mc", ["input"], likelihood="classification",
                 example=(torch.zeros(2, 2),)),
        FitOptions(betas=(0.9, 0.98)),
    )  # fmt: skip
    assert {group["betas"] for group in steps.param_groups} == {(0.9, 0.98)}


def test_records_have_the_elbo_and_both_dempster_shafer_scores(
    smoke: Callable[[str], Path],
) -> None:
    def metrics(study: str, arm: str) -> Any:
        own = records.read(smoke(study), "done")
        wanted = (study, arm, "mnist")
        return next(r["metrics"] for r in own if (r["study"], r["method"], r["data"]) == wanted)

    assert math.isfinite(metrics("robustness", "gflowout")["clean/elbo"])
    assert "clean/elbo" not in metrics("robustness", "ensemble")
    scores = metrics("ood", "gflowout")
    both = [scores[f"notmnist/dempster_shafer{how}/auroc"] for how in ("", "-draws")]
    assert all(0 <= auroc <= 1 for auroc in both)


def test_preset_paper_searches_what_the_paper_did_with_one_budget() -> None:
    tuned = [arm for arm in ARMS.values() if not arm.rate_of]
    tried = {arm.label: trials(arm, [0.02, 0.05, 0.1], "grid") for arm in tuned}
    assert {len(options) for options in tried.values()} == {27}
    for label, options in tried.items():
        assert len({json.dumps(each, sort_keys=True) for each in options}) == 27, label
    for label in ("id-gflowout-paper", "gflowout", "combined", "control"):
        for key in ("hidden", "temperature", "prior_keep"):
            values = {each[f"method.options.{key}"] for each in tried[label]}
            assert len(values) == 3, (label, key)
    points = combinations({"a": (0, 1, 2), "b": (0, 1, 2), "c": (0, 1, 2)})
    for first, second in ("ab", "ac", "bc"):  # every pair of values once
        assert len({(point[first], point[second]) for point in points}) == 9
    assert all("fit.weight_decay" not in each for each in tried["none"])


def test_ood_takes_the_models_of_robustness(tmp_path: Path) -> None:
    context = Context(tmp_path / "run")

    def folders(runs: list[Run]) -> set[Path]:
        found = set()
        for run in runs:
            options = {key: value for key, value in run.options.items() if "." in key}
            config = images.settings(ARMS[run.method], options, run.options["tuned"], run.seed)
            found.add(images.folder_of(config, context))
        return found

    for preset in ("cpu", "paper"):
        assert folders(ood.runs(preset, {})) <= folders(robustness.runs(preset, {}))
    shared = {run.id for run in robustness.STUDY.tuning("cpu")}
    for module in (block_order, ood, adaptation):
        assert {run.id for run in module.STUDY.tuning("cpu")} <= shared


def test_presets_give_every_arm_the_same_network_and_data() -> None:
    for preset in study.PRESETS:
        for data in images.DATA:
            bases = [images.base(preset, data, arm) for arm in ARMS.values()]
            plain = [
                {key: value for key, value in each.items() if not key.startswith("method.")}
                for each in bases
            ]
            assert all(each == plain[0] for each in plain)
            assert from_flat(plain[0]).data.source == data
    assert set(scores.UNCERTAINTIES) <= set(ood.SCORES)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
