"""The study ranks: its sentences, Laplace and spread by brute force, its plan and its section."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import write_vader
from torch.nn import functional as F

from gflowout.data import store
from gflowout.runs import Context, read
from gflowout.studies import ranks, ranks_fit
from gflowout.studies.framework import study
from gflowout.studies.framework.content import Table
from gflowout.studies.ranks_laplace import LastLayer

OPTIONS = ranks.PRESETS["smoke"]["options"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Sentences


def test_sentences_of_one_source_are_in_one_part() -> None:
    sources = torch.randint(50, (400,), generator=seeded())
    parts = ranks_fit.divided(sources, 3)
    assert torch.cat(parts).sort().values.tolist() == list(range(400))
    groups = [set(sources[part].tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups))
    again, other = ranks_fit.divided(sources, 3), ranks_fit.divided(sources, 4)
    assert all(torch.equal(*pair) for pair in zip(parts, again, strict=True))
    assert torch.equal(parts[2], other[2])  # the same test for all seeds
    assert not torch.equal(parts[0], other[0])


def test_parts_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vader(tmp_path / "vader", 60)
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    rows = {**dict.fromkeys(("base_train", "base_valid", "valid", "test"), 1000), "train": 20}
    problem = ranks_fit.load(0, {"length": 8, "rows": rows})
    assert {name: len(x) for name, (x, _) in problem.tests.items()} == {
        "tweets": 15, "products": 16, "news": 16,
    }  # fmt: skip
    assert len(problem.train[0]) == 20
    assert len(problem.base_train[0]) == 3 * 36
    assert (problem.train[0][:, 0] == 2).all()  # every sentence begins with the same word
    for x, y in (problem.train, problem.valid):  # tokens tell the class of made sentences
        classes = {
            tuple(tokens): label for tokens, label in zip(x.tolist(), y.tolist(), strict=True)
        }
        assert len(classes) == 3
    assert problem.checksums(test=False).keys() == {"base_train", "base_valid", "train", "valid"}
    call = ranks_fit.call(torch.tensor([[5, 6, 0, 0], [5, 7, 8, 0]]))
    assert call["input_ids"].shape == (2, 3)
    assert call["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


# Laplace


def test_laplace_against_the_hessian_of_the_log_posterior() -> None:
    features = torch.randn(30, 3, generator=seeded()).double()
    labels = torch.randint(4, (30,), generator=seeded(1))
    weights = torch.randn(4, 4, generator=seeded(2)).double()
    inputs = F.pad(features, (0, 1), value=1.0)

    def cost(flat: torch.Tensor) -> torch.Tensor:
        own = flat.reshape(4, 4)
        fit = F.cross_entropy(inputs @ own.T, labels, reduction="sum")
        return fit + 0.7 / 2 * (own - weights).square().sum()

    logits = inputs @ weights.T
    head = LastLayer(features, logits, precision=0.7)
    hessian = torch.autograd.functional.hessian(cost, weights.flatten())
    assert torch.allclose(head.weights.reshape(16, 16), torch.linalg.inv(hessian), rtol=1e-6)
    # Logits of weights that are drawn from this Gaussian.
    x = torch.randn(2, 3, generator=seeded(3))
    jacobian = torch.func.jacrev(lambda flat: F.pad(x[1], (0, 1), value=1.0).double() @ flat.T)
    of_weights = jacobian(weights).reshape(4, 16)
    expected = of_weights @ torch.linalg.inv(hessian) @ of_weights.T
    assert torch.allclose(head.covariance(x)[1].double(), expected, rtol=1e-5)
    drawn = head.sample(x, torch.zeros(2, 4), 40_000, seeded(4))[:, 1].double()
    assert torch.allclose(drawn.T.cov(), expected, atol=0.03 * float(expected.diag().max()))
    assert drawn.mean(0).abs().max() < 0.03 * math.sqrt(float(expected.diag().max()))


def test_laplace_is_sure_of_what_it_has_seen_often() -> None:
    x = torch.randn(500, 2, generator=seeded())
    x[:, 1] = 0  # a feature that no training row has
    head = LastLayer(x, torch.zeros(500, 2), precision=1.0)
    covariance = head.covariance(torch.eye(2))
    known, unknown = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    assert known < 0.1  # of the difference of both logits
    assert unknown > 1.9


# Models


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Adapters with random masks on each kind of unit, and their problem."""
    folder = tmp_path_factory.mktemp("ranks")
    write_vader(folder / "vader", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(store.VARIABLE, str(folder))
        options = {**OPTIONS, "tuned": {"fit.lr": 1e-2, "method.options.rate": 0.5}}
        problem = ranks_fit.load(0, options)
        context = Context(folder / "work" / "run")
        arm = ranks.ARMS["mc"]
        models = {
            units: ranks_fit.adapted(arm, problem, options, 0, context, units=units)[0]
            for units in ranks.UNITS
        }
    for model in models.values():  # so that masks matter before much training
        for weights in model.backbone.parameters():
            weights.data.mul_(6)
    return problem, models, folder / "work"


def test_one_base_for_all_adapters(adapted: Any) -> None:
    problem, models, folder = adapted
    assert len(list((folder / ranks_fit.STORE).iterdir())) == 1 + len(models)
    nets = [model.backbone.get_base_model() for model in models.values()]
    words = [net.bert.embeddings.word_embeddings.weight for net in nets]
    assert all(torch.equal(words[0], other) for other in words)
    trained = {name for name, p in models["ranks"].backbone.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    features, logits = ranks_fit.head(models["ranks"], problem.train[0])
    net = models["ranks"].backbone.eval()
    assert features.shape == (len(logits), OPTIONS["net.width"])
    assert torch.allclose(logits, net(**ranks_fit.call(problem.train[0])).logits, atol=1e-5)
    adapters = {name: p for name, p in net.named_parameters() if "lora_B" in name}
    assert all(p.abs().max() > 0 for p in adapters.values())  # they were trained


def test_units_of_each_kind(adapted: Any) -> None:
    _, models, _ = adapted
    counts = {units: [site.units for site in model.sites] for units, model in models.items()}
    width, layers = OPTIONS["net.width"], OPTIONS["net.layers"]
    assert counts["ranks"] == [OPTIONS["net.rank"]] * 2 * layers
    assert counts["heads"] == [OPTIONS["net.heads"]] * layers
    assert counts["blocks"] == [1, 1] * layers
    assert counts["features"] == [width] * (layers + 1)


@pytest.mark.parametrize("units", ["heads", "blocks"])
def test_spread_by_hand(adapted: Any, units: str) -> None:
    problem, models, _ = adapted
    tokens, labels = problem.train
    label, total, mean = ranks_fit.spread(models[units], problem.train, 6, seed=0)
    masks = (
        models[units]
        .predict(**ranks_fit.call(tokens[:1]), samples=6, generator=seeded(), return_masks=True)
        .masks
    )
    scores = torch.zeros(6, len(labels)).double()
    for draw in range(6):
        for row in range(len(labels)):
            own = [mask[draw : draw + 1] for mask in masks]
            pred = models[units].predict(**ranks_fit.call(tokens[row : row + 1]), masks=own)
            scores[draw, row] = pred.log_prob(labels[row : row + 1]).item()
    assert label == pytest.approx(scores.std(0).mean().item(), rel=1e-3)
    assert total == pytest.approx(scores.sum(1).std().item(), rel=1e-3)
    assert mean == pytest.approx(scores.mean().item(), rel=1e-3)
    assert total > 2 * label  # masks move all labels together


# Plan and runs


def test_as_many_trials_for_each_arm() -> None:
    for preset in study.PRESETS:
        own = ranks.PRESETS[preset]
        counts = Counter(trial.method for trial in ranks.tuning(preset))
        assert set(counts.values()) == {own["own"] * len(own["rates"])}
        assert counts.keys() == ranks.ARMS.keys() - ranks.LIKE.keys()
        planned = ranks.runs(preset, {})
        assert len(planned) == own["seeds"] * (len(ranks.ARMS) + 1)
        assert preset == "smoke" or own["trial_seed"] not in {run.seed for run in planned}
    chosen = {("tweets", "gflowout"): {"fit.lr": 0.5}, ("tweets", "none"): {"fit.lr": 0.25}}
    taken = {run.method: run.options["tuned"]["fit.lr"] for run in ranks.runs("cpu", chosen)}
    assert taken["control"] == taken["gflowout"] == 0.5
    assert taken["ensemble"] == taken["none"] == 0.25


def test_smoke(smoke: Callable[[str], Path]) -> None:
    done = {
        record["method"]: record["metrics"]
        for record in read(smoke("ranks"), "done")
        if record["study"] == "ranks"
    }
    assert done.keys() == {*ranks.ARMS, ranks.COMPARISON}
    for arm in ranks.ARMS:
        for kind in ranks_fit.TESTED:
            names = ("nll", "ece", "accuracy", "selective")
            assert all(math.isfinite(done[arm][f"{kind}/{name}"]) for name in names)
    assert done["ensemble"]["epochs_trained"] == 2 * done["none"]["epochs_trained"]
    assert done["laplace"]["tweets/nll"] != done["none"]["tweets/nll"]
    assert done["control"]["posterior/kl"] <= done["gflowout"]["posterior/kl"] + 1e-6


# Section


def records(seeds: int = 5) -> list[Any]:
    levels = dict(zip(ranks.ARMS, (0.9, 0.85, 0.86, 0.84, 0.7, 0.83, 0.82, 0.8, 0.88), strict=True))
    rows = []
    for seed in range(seeds):
        for place, (arm, level) in enumerate(levels.items()):
            numbers = {
                f"{kind}/{name}": level + 0.01 * ((seed + place) % 3)
                for kind in ranks_fit.TESTED
                for name in ("nll", "ece", "accuracy", "selective")
            }
            rows.append((arm, seed, {**numbers, "cost/train": 9.0}))
        spread = {f"{units}/{name}": 1.0 + place for place, units in enumerate(ranks.UNITS)
                  for name in ("count", "label", "all", "nll")}  # fmt: skip
        rows.append((ranks.COMPARISON, seed, spread))
    return [
        {
            "study": "ranks", "data": "tweets", "method": method, "seed": seed, "started": "",
            "metrics": metrics, "options": {"tuned": {"fit.lr": 3e-3}},
        }
        for method, seed, metrics in rows
    ]  # fmt: skip


def test_section_of_hand_made_records() -> None:
    section = ranks.section(records())
    tables = {block.title: block for block in section.blocks if isinstance(block, Table)}
    tweets = tables["Tweets, the kind that adapters were trained on"]
    rows = {row.title: row.cells for row in tweets.rows}
    assert list(rows) == list(ranks.TITLES.values())
    assert rows["GFlowOut"][0].mean == pytest.approx(0.71, abs=0.01)
    assert rows["GFlowOut"][0].runs == 5
    assert (list(rows).index("GFlowOut"), 0) in tweets.best
    units = tables["Where a mask matters"]
    assert [row.cells[1].mean for row in units.rows] == [1, 2, 3, 4]
    assert len(section.findings) == 2 * len(ranks_fit.TESTED)
    assert "NLL on tweets: GFlowOut is better than any other method" in section.findings[0]


def test_what_is_not_there_is_left_out() -> None:
    assert ranks.section([]).findings == ("No run of this study is done yet.",)
    only = [record for record in records(1) if record["method"] == "mc"]
    section = ranks.section(only)
    assert not section.findings
    assert next(len(block.rows) for block in section.blocks if isinstance(block, Table)) == 1
