"""The VQA study: regions and noise, sections from hand-made records, and the smoke preset."""

import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vqa_files import FEATURES, write_easy, write_v2

from gflowout.backbones import MCAN, region_padding
from gflowout.core.likelihoods import Categorical, MultiLabel
from gflowout.data import store, vqa
from gflowout.data.vqa import VQABatches
from gflowout.runs import Context, Run, read
from gflowout.studies import vqa as vqa_study
from gflowout.studies import vqa_data
from gflowout.studies.framework import study
from gflowout.studies.framework.arms import ARMS, of_preset
from gflowout.studies.framework.content import PAPER, Curves, Table
from gflowout.studies.framework.sections import TITLES
from gflowout.studies.vqa import PUBLISHED, section
from gflowout.training import FitOptions

SEED_THAT_KEEPS_NO = 2
"""Of two training pictures one is held out; the test asks for an answer of the other."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the features of pictures are made once for all tests."""
    return tmp_path_factory.mktemp("vqa")


@pytest.fixture
def questions(
    real_data: Callable[[str], Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], vqa_data.Prepared]:
    def load(name: str) -> vqa_data.Prepared:
        monkeypatch.setenv(store.VARIABLE, str(real_data(name).parent))
        return vqa_data.load(name, 0, vqa_study.sizes("smoke", name), kept)

    return load


def test_region_features_by_hand() -> None:
    pictures = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    pictures[0, 0, :4, :4] = 255  # red above, on the left
    pictures[0, 1, 4:, :] = torch.arange(8, dtype=torch.uint8) * 20  # ever more green below
    found = vqa_data.region_features(pictures, 2)
    assert found.shape == (2, 4, 6 + vqa_data.DIRECTIONS)
    assert found[0, 0, :3].tolist() == [1, 0, 0]
    assert (found[1] == 0).all()  # no light: padding
    assert (found[0, 1] == 0).all()
    below = torch.arange(8).float() * 20 / 255
    assert float(found[0, 3, 1]) == pytest.approx(float(below[4:].mean()), rel=1e-5)
    assert float(found[0, 3, 4]) == pytest.approx(float(below[4:].std(correction=0)), rel=1e-3)
    edges = found[0, 3, 6:]
    assert int(edges.argmax()) == 0  # it grows to the right: direction 0
    ramp = (torch.arange(8, dtype=torch.uint8) * 20).expand(1, 3, 8, 8)
    for picture, direction in ((ramp, 0), (ramp.mT, 2), (ramp.flip(-1), 4), (ramp.mT.flip(-2), 6)):
        edges = vqa_data.region_features(picture.contiguous(), 2)[0, 0, 6:]
        assert edges.nonzero().tolist() == [[direction]]


def test_regions_are_standardised_and_padding_stays_zero(
    questions: Callable[[str], vqa_data.Prepared],
) -> None:
    data = questions("vqa-rad")
    features = data.train.visual
    assert isinstance(features, torch.Tensor)
    padding = region_padding(features)
    assert 0 < int(padding.sum()) < padding.numel()  # pictures are made square by a black border
    whole = vqa.load("vqa-rad", size=32, length=8)  # the same split: seed 0
    seen = whole.train.image_index.unique()
    real = features[seen][~padding[seen]][:, :-2]
    assert real.mean(0).abs().max() < 1e-3
    assert (real.std(0) - 1).abs().max() < 1e-3


def test_features_are_kept_and_damaged_ones_made_again(
    questions: Callable[[str], vqa_data.Prepared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = questions("vqa-rad")
    options = vqa_study.sizes("smoke", "vqa-rad")

    def again() -> torch.Tensor:
        vqa_data._regions.cache_clear()
        found = vqa_data.load("vqa-rad", 0, options, tmp_path).train.visual
        assert isinstance(found, torch.Tensor)
        return found

    assert torch.equal(again(), fresh.train.visual)
    (path,) = (tmp_path / vqa_data.STORE).iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(again(), fresh.train.visual)
    monkeypatch.setattr(vqa_data, "_decoded", None)  # not needed any more
    assert torch.equal(again(), fresh.train.visual)


def test_noise_leaves_padding_alone_and_is_the_same_for_all(
    questions: Callable[[str], vqa_data.Prepared],
) -> None:
    data = questions("vqa-rad")
    assert isinstance(data.test.visual, torch.Tensor)
    spoiled = data.test.visual.clone()
    spoiled[:, -1] = 0
    test = dataclasses.replace(data.test, visual=spoiled)
    (clean, *_), (noisy, *_) = (
        next(iter(VQABatches(test, batch_size=40, seed=0, noise=noise))) for noise in (0.0, 2.0)
    )
    assert torch.equal(region_padding(noisy), region_padding(clean))
    assert region_padding(noisy)[:, -1].all()
    added = (noisy - clean)[~region_padding(clean)]
    assert float(added.std()) == pytest.approx(2.0, rel=0.05)
    (again, *_) = next(iter(VQABatches(test, batch_size=40, seed=0, noise=2.0)))
    assert torch.equal(again, noisy)


def test_question_alone_against_a_table() -> None:
    train = SimpleNamespace(
        tokens=torch.tensor([[5, 6], [5, 6], [5, 6], [5, 7], [5, 7], [5, 7], [8, 1]]),
        scores=lambda rows: torch.eye(4)[[1, 1, 2, 3, 3, 3, 0]],
    )
    test = SimpleNamespace(tokens=torch.tensor([[5, 6], [5, 9], [9, 9], [8, 1], [8, 2]]))
    found = vqa_data.question_only(SimpleNamespace(train=train, test=test))
    # Known words; the same first word (three 3s, two 1s, a 2); nothing known; and so on.
    assert found.tolist() == [1, 3, 3, 0, 0]


def test_presets_have_every_arm_with_as_many_trials() -> None:
    for preset in study.PRESETS:
        trials = vqa_study.tuning(preset)
        counts: dict[tuple[str, str], int] = {}
        for trial in trials:
            assert trial.study == study.TUNING
            counts[trial.data, trial.method] = counts.get((trial.data, trial.method), 0) + 1
        arms = {arm.label for arm in of_preset(preset)}
        tuned = {arm for arm in arms if not ARMS[arm].rate_of}
        assert set(counts) == {(d, arm) for d in vqa_study.PRESETS[preset]["data"] for arm in tuned}
        assert len(set(counts.values())) == 1
        runs = vqa_study.runs(preset, {})
        assert len({run.id for run in runs}) == len(runs)
        assert {run.method for run in runs} == arms
        for run in [*runs, *trials]:
            config = vqa_study.configuration(ARMS[run.method], run, run.options["tuned"])
            how = FitOptions(**vqa_study._under("fit.", config), seed=run.seed)
            assert how.epochs == run.options["fit.epochs"]
    assert vqa_study.PRESETS["cpu"]["seeds"] >= 5


def test_paper_preset_is_the_published_network() -> None:
    run = vqa_study.runs("paper", {})[0]
    config = vqa_study.configuration(ARMS[run.method], run, run.options["tuned"])
    with torch.device("meta"):
        ours = MCAN(20_000, 3129, run.options["features"], **vqa_study._under("net.", config))
        published = MCAN.small(20_000, 3129, dropout=0.1)
    mine, theirs = ({n: p.shape for n, p in net.named_parameters()} for net in (ours, published))
    assert mine == theirs
    assert ours.sites == published.sites
    assert run.data == "vqa-v2"


@pytest.mark.parametrize("arm", ["none", "gflowout"])
def test_vqa_v2_runs_on_made_up_files(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_v2(tmp_path / "data" / "vqa_v2")
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "data"))
    words = arm == "gflowout"
    if words:  # the user has GloVe vectors, of as many numbers as the network takes and of others
        (tmp_path / "data" / "glove").mkdir()
        for size in (8, 9):
            line = f"is{' 0.5' * size}\n"
            (tmp_path / "data" / "glove" / f"glove.6B.{size}d.txt").write_text(line)
    run = next(run for run in vqa_study.runs("paper", {}) if run.method == arm)
    tiny = vqa_study.sizes("smoke", "vqa-rad")
    small = {
        **run.to_dict()["options"],
        **{key: value for key, value in tiny.items() if key.startswith("net.")},
        "features": FEATURES,
        "held_out": 0.4,
        "min_count": 0,
        "fit.epochs": 1,
        "samples": 2,
    }
    run = Run(run.study, run.method, run.data, SEED_THAT_KEEPS_NO, small)
    found = vqa_study.work(run, Context(tmp_path / "runs" / "one"))
    assert 0 <= found["metrics"]["noisy/all"] <= 1
    assert found["metrics"]["noisy/all"] == found["metrics"]["noise-5/all"]
    assert math.isfinite(found["metrics"]["clean/nll"])
    data = vqa_data.load("vqa-v2", SEED_THAT_KEEPS_NO, small, tmp_path)
    assert "no" in data.train.answers[-1]
    config = vqa_study.configuration(ARMS[arm], run, {})
    model = vqa_study.build(ARMS[arm], config, data, 0)
    assert isinstance(model.likelihood, MultiLabel)
    assert (found["metrics"]["vectors/known"] > 0) == ("vectors" in found["data"]) == words
    start = model.backbone.embedding.weight
    assert bool((start == 0.5).all(-1).any()) == words
    said = " ".join(vqa_study._about([{"metrics": found["metrics"], "seed": 0}], "vqa-v2"))
    assert ("Words start from GloVe vectors" in said) == words
    assert ("No GloVe vectors were found" in said) != words


def test_easy_vqa_runs_on_made_up_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = {
        split: [["is there a circle?", "yes" if image % 2 else "no", image] for image in range(20)]
        for split in ("train", "test")
    }
    write_easy(tmp_path / "data" / "easy_vqa", questions)
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "data"))
    runs = (run for run in vqa_study.runs("cpu", {}) if run.data == "easy-vqa")
    run = next(run for run in runs if run.method == "gflowout")
    tiny = vqa_study.sizes("smoke", "vqa-rad")
    small = {key: value for key, value in tiny.items() if key.startswith(("net.", "fit."))}
    options = {**run.to_dict()["options"], **small, "samples": 2}
    run = Run(run.study, run.method, run.data, run.seed, options)
    found = vqa_study.work(run, Context(tmp_path / "runs" / "one"))
    assert 0 <= found["metrics"]["noisy/all"] <= 1
    assert found["metrics"]["noisy/all"] == found["metrics"]["noise-2/all"]
    assert math.isfinite(found["metrics"]["clean/nll"])
    data = vqa_data.load("easy-vqa", run.seed, options, tmp_path)
    assert data.single
    config = vqa_study.configuration(ARMS["gflowout"], run, {})
    likelihood = vqa_study.build(ARMS["gflowout"], config, data, 0).likelihood
    assert isinstance(likelihood, Categorical)


def test_a_model_is_trained_once(
    questions: Callable[[str], vqa_data.Prepared], tmp_path: Path
) -> None:
    data = questions("vqa-rad")
    run = next(run for run in vqa_study.runs("smoke", {}) if run.data == "vqa-rad")
    config, context = vqa_study.configuration(ARMS["none"], run, {}), Context(tmp_path / "one")
    model, first = vqa_study._trained(ARMS["none"], config, run, data, 0, context)
    assert isinstance(model.likelihood, Categorical)
    elsewhere = Context(tmp_path / "two")
    same, second = vqa_study._trained(ARMS["none"], config, run, data, 0, elsewhere)
    assert (first.resumed, second.resumed) == (0, len(first.history))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True)
    )
    other, third = vqa_study._trained(ARMS["none"], config, run, data, 1, context)  # a new member
    assert third.resumed == 0
    assert not torch.equal(next(other.parameters()), next(model.parameters()))


def test_scores_are_the_official_accuracy_by_hand(
    questions: Callable[[str], vqa_data.Prepared],
) -> None:
    data = questions("vqa-rad")
    arm = ARMS["mc"]
    run = next(r for r in vqa_study.runs("smoke", {}) if (r.data, r.method) == ("vqa-rad", "mc"))
    model = vqa_study.build(arm, vqa_study.configuration(arm, run, {}), data, 0)
    found = vqa_study.scored(model, data, 2.0, 4, seed=3)
    visual, tokens, scores = next(iter(VQABatches(data.test, batch_size=40, seed=0, noise=2.0)))
    pred = model.predict(visual, tokens, samples=4, generator=torch.Generator().manual_seed(3))
    right = pred.mean.argmax(-1) == scores.argmax(-1)
    right &= scores.sum(-1) > 0
    assert found["all"] == pytest.approx(float(right.float().mean()))
    closed = data.test.types == vqa.TYPES.index("yes/no")
    assert found["yes/no"] == pytest.approx(float(right[closed].float().mean()))
    known = scores.sum(-1) > 0
    chosen = pred.mean[known].gather(1, scores[known].argmax(-1, keepdim=True))
    assert found["nll"] == pytest.approx(float(-chosen.log().mean()), rel=1e-4)


def test_trials_do_not_look_at_test_questions(
    questions: Callable[[str], vqa_data.Prepared],
    kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions("vqa-rad")
    for folder in ("a", "b"):  # features, but no trained model
        shutil.copytree(kept / vqa_data.STORE, tmp_path / folder / vqa_data.STORE)
    trial = next(trial for trial in vqa_study.tuning("smoke") if trial.method == "mc")
    found = vqa_study.work(trial, Context(tmp_path / "a" / "run"))
    assert set(found["data"]) == {"train", "valid"}
    assert "valid/nll" in found["metrics"]
    names = set(found["metrics"])
    assert not any(name.startswith(("test", "clean", "nois", "question")) for name in names)
    real = vqa_data.load

    def without_test(*args: Any) -> vqa_data.Prepared:
        return dataclasses.replace(real(*args), test=None)  # type: ignore[arg-type]

    monkeypatch.setattr(vqa_data, "load", without_test)
    again = vqa_study.work(trial, Context(tmp_path / "b" / "run"))
    assert again["metrics"] == found["metrics"]


@pytest.mark.usefixtures("one_thread")
def test_smoke_end_to_end(
    smoke: Callable[[str], Path],
    real_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = real_data("vqa-rad").parent
    records = [r for r in read(smoke("vqa"), "done") if r["study"] == "vqa"]
    pairs = {(record["data"], record["method"]) for record in records}
    assert pairs == {("vqa-rad", arm.label) for arm in of_preset("smoke")}
    for record in records:
        numbers = record["metrics"]
        assert numbers["noisy/all"] == numbers["noise-2/all"]
        kinds = [kind for kind, count in numbers["questions"].items() if count]
        mean = sum(numbers["questions"][kind] * numbers[f"clean/{kind}"] for kind in kinds) / 40
        assert numbers["clean/all"] == pytest.approx(mean)
    assert len(section(records).claims) == 2
    # The same run, in a folder that holds no trained model.
    monkeypatch.setenv(store.VARIABLE, str(folder))
    record = next(r for r in records if (r["data"], r["method"]) == ("vqa-rad", "gflowout"))
    run = Run.from_dict(record)
    again = vqa_study.work(run, Context(tmp_path / "second" / run.id))
    assert again["metrics"] == record["metrics"]


def test_section_of_hand_made_records() -> None:
    found = section(_records(gain=0.05))
    clean, noisy, _ = (block for block in found.blocks if isinstance(block, Table))
    ours = {row.title: row for row in noisy.rows if row.source != PAPER}
    theirs = {row.title: row for row in noisy.rows if row.source == PAPER}
    assert [column.title for column in noisy.columns] == ["All", "Yes/no", "Other", "NLL"]
    assert ours["GFlowOut"].cells[0].mean == pytest.approx(0.465)
    assert ours["Contextual dropout (paper)"].cells[0].mean == pytest.approx(0.415)
    assert ours["Contextual dropout (paper)"].cells[0].runs == 4
    assert ours["Contextual dropout (paper)"].cells[0].error == pytest.approx(
        0.01 * math.sqrt(5 / 12)
    )
    assert ours["Question alone"].cells[0].mean == pytest.approx(0.3)
    assert ours["Question alone"].cells[0].runs == 4
    assert theirs["GFlowOut, VQA v2"].cells[0].mean == pytest.approx(0.5033)
    assert theirs["GFlowOut, VQA v2"].cells[2].mean == pytest.approx(0.4017)  # other, no number
    assert len(theirs) == len(PUBLISHED["noisy"])
    assert "standard deviation 2" in noisy.title
    assert {row.title for row in clean.rows if row.source != PAPER} == set(ours)
    curves = next(block for block in found.blocks if isinstance(block, Curves))
    drawn = {series.title: series for series in curves.series}
    assert drawn["GFlowOut"].x == [0.0, 1.0, 2.0]
    assert drawn["GFlowOut"].y == pytest.approx([0.515, 0.565, 0.465])
    assert [claim.verdict for claim in found.claims] == ["tested on a stand-in"] * 2
    assert found.claims[0].why.startswith("Holds on easy-VQA, in place of VQA v2.")
    assert "better than" in found.findings[0]
    assert list(found.data) == ["easy-vqa"]


def test_claims_follow_the_stated_rule() -> None:
    def judged(**made: Any) -> set[str]:
        return {claim.verdict for claim in section(_records(**made)).claims}

    good = {"data": "vqa-v2", "clean": 0.65}
    assert judged(gain=0.0, **good) == {"reproduced"}  # it matches
    assert judged(gain=-0.05, **good) == {"not reproduced"}
    assert judged(gain=-0.05) == {"tested on a stand-in"}
    assert judged(gain=-0.05, data="vqa-v2", clean=0.5) == {"not testable here"}  # paper: 0.66
    assert judged(gain=0.0, noise=0.2, **good) == {"not testable here"}
    few = section([record for record in _records(gain=0.05) if record["seed"] < 2]).claims
    assert {claim.verdict for claim in few} == {"not testable here"}


def test_sections_of_parts_of_a_study() -> None:
    assert section([]).findings
    one = [record for record in _records(gain=0.1) if record["method"] == "concrete"][:1]
    assert {claim.verdict for claim in section(one).claims} == {"not testable here"}
    assert set(TITLES) == set(ARMS)


def _records(
    gain: float, noise: float = 0.0, data: str = "easy-vqa", clean: float = 0.5
) -> list[dict]:
    """Four seeds of three arms on data without questions for a number."""
    made = []
    for seed in range(4):
        for arm in ("concrete", "contextual-paper", "gflowout"):
            ahead = (gain + noise * (-1) ** seed) if arm == "gflowout" else 0.0
            level = clean + seed / 100
            made.append(
                {
                    "study": "vqa",
                    "data": data,
                    "method": arm,
                    "seed": seed,
                    "started": "",
                    "options": {"noisy": 2.0},
                    "metrics": {
                        "questions": {"yes/no": 60, "number": 0, "other": 40},
                        **{f"question/{kind}": 0.3 for kind in ("all", "yes/no", "other")},
                        **{f"clean/{kind}": level for kind in ("all", "yes/no", "other")},
                        "noise-1/all": level + ahead,
                        "noise-2/all": level - 0.1 + ahead,
                        **{
                            f"noisy/{kind}": level - 0.1 + ahead
                            for kind in ("all", "yes/no", "other")
                        },
                        "clean/nll": 1.0,
                        "noisy/nll": 2.0,
                    },
                }
            )
    return made
