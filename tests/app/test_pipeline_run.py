"""Training from a configuration: folders, resuming, loading, scores, and runs of a study."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from data_files import write_idx
from pipeline_files import patients, write_digits
from zoo import predicted

import gflowout as gfo
from gflowout.app import build, evaluation, run, sources
from gflowout.app.build import plan
from gflowout.app.config import Config, ConfigError, flat, read, with_changes
from gflowout.app.predict import predict
from gflowout.core import metrics
from gflowout.data.batches import Batches
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.shifts import rotate
from gflowout.methods import METHODS
from gflowout.runs import Inline, Run, records, run_study

SMALL = ["backbone.hidden=[16]", "fit.epochs=3", "fit.lr=0.01", "data.batch_size=20"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def config(digits: Path) -> Config:
    return read(None, ["data=mnist", f"data.directory={digits}", *SMALL])


@pytest.fixture(scope="module")
def trained(config: Config, tmp_path_factory: pytest.TempPathFactory) -> run.Trained:
    return run.train(config, tmp_path_factory.mktemp("runs") / "digits", progress=False)


def weights(model: gfo.model.MaskedModel) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


class TestTrain:
    def test_the_same_by_hand(self, config, trained):
        """The public parts, put together by hand, give the same weights."""
        from gflowout.backbones import MLP
        from gflowout.training import fit

        task = sources.load(config.data, 0)
        normalize = task.problem.inputs.transform
        torch.manual_seed(0)
        network = MLP((784, 16, 10))
        example = (normalize(task.train.x[:2]),)
        model = gfo.wrap(
            network, "gflowout", network.sites, likelihood=gfo.Categorical(10), example=example
        )
        train = Batches(
            task.train.x, task.train.y, batch_size=20, shuffle=True, seed=0, transform=normalize
        )
        valid = Batches(task.valid.x, task.valid.y, batch_size=500, transform=normalize)
        fit(model, train, valid, config.fit, progress=False)
        assert torch.equal(weights(model), weights(trained.model))

    def test_the_folder_tells_all(self, config, trained):
        folder = trained.folder
        assert read(folder / "config.yaml") == config
        record = records.from_text((folder / "record.json").read_text())
        assert record["options"] == flat(config)
        assert record["checksums"] == trained.task.fingerprints
        assert len(record["epochs"]) == 3
        best = record["metrics"]["best_epoch"]
        assert record["metrics"]["valid/nll"] == record["epochs"][best]["valid/nll"]
        assert json.loads((folder / "preprocess.json").read_text())["kind"] == "images"
        assert len(pd.read_csv(folder / "metrics.csv")) == 3

    def test_loaded_it_predicts_the_same(self, trained):
        loaded = run.load(trained.folder)
        assert loaded.config == trained.config
        assert loaded.problem == trained.problem
        x = torch.randn(5, 1, 28, 28)
        first, second = (predicted(one.model, x) for one in (loaded, trained))
        assert torch.equal(first.samples, second.samples)
        assert not loaded.model.training
        task, changed = run.data(loaded)
        assert changed == []
        assert task.fingerprints == trained.task.fingerprints

    def test_calling_again_does_nothing_more(self, config, trained):
        before = (trained.folder / "record.json").read_bytes()
        again = run.train(config, trained.folder, progress=False)
        assert again.result.resumed == 3
        assert torch.equal(weights(again.model), weights(trained.model))
        assert (trained.folder / "record.json").read_bytes() == before

    def test_interrupted_and_taken_up_it_ends_the_same(self, config, trained, tmp_path: Path):
        def interrupt(step: int, steps: int, message: str) -> None:
            if message == "epoch 2/3" and step < 2 * steps / 3:  # in the middle of it
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.train(config, tmp_path, progress=False, report=interrupt)
        with pytest.raises(MissingDataError, match="training is not complete; go on with: gflow"):
            run.load(tmp_path)
        result = run.train(config, tmp_path, progress=False)
        assert result.result.resumed == 1
        assert torch.equal(weights(result.model), weights(trained.model))

    def test_another_configuration_or_other_data_are_refused(self, config, trained, digits):
        other = with_changes(config, {"fit.lr": 0.5, "method.options.beta": 0.5})
        with pytest.raises(ConfigError) as caught:
            run.train(other, trained.folder, progress=False)
        assert caught.value.problems[1:3] == [
            "fit.lr was 0.01, is 0.5", "method.options.beta was None, is 0.5"
        ]  # fmt: skip
        smaller = sources.load(with_changes(config, {"data.limit": 100}).data, 0)
        with pytest.raises(
            DataError, match="the data differ from those that this run started with"
        ):
            run.train(config, trained.folder, progress=False, task=smaller)

    def test_starting_anew(self, config, tmp_path: Path):
        shorter = with_changes(config, {"fit.epochs": 1})
        run.train(shorter, tmp_path, progress=False)
        other = with_changes(shorter, {"seed": 1})
        found = run.train(other, tmp_path, progress=False, resume=False)
        assert found.result.resumed == 0
        assert read(tmp_path / "config.yaml").seed == 1
        record = records.from_text((tmp_path / "record.json").read_text())
        assert record["seed"] == 1

    def test_random_state_is_left_alone(self, config, tmp_path: Path):
        torch.manual_seed(3)
        expected = torch.rand(1)
        torch.manual_seed(3)
        run.train(with_changes(config, {"fit.epochs": 1}), tmp_path, progress=False)
        assert torch.rand(1) == expected

    def test_damaged_folders(self, trained, tmp_path: Path):
        with pytest.raises(MissingDataError, match="no such folder"):
            run.load(tmp_path / "none")
        with pytest.raises(MissingDataError, match="not the folder of a run, it misses config"):
            run.load(tmp_path)
        for name in ("config.yaml", "preprocess.json"):
            (tmp_path / name).write_bytes((trained.folder / name).read_bytes())
        (tmp_path / "model.safetensors").write_bytes(b"no")
        with pytest.raises(DataError, match="cannot be loaded"):
            run.load(tmp_path)

    @pytest.mark.parametrize(
        "text",
        ['{"kind": "im', "[]", "{}", '{"fingerprints": 3}', "\0", "[" * 100_000],
        ids=range(6),
    )
    def test_damaged_preprocessing_is_named(self, config, trained, tmp_path: Path, text):
        for name in ("config.yaml", "model.safetensors"):
            (tmp_path / name).write_bytes((trained.folder / name).read_bytes())
        (tmp_path / "preprocess.json").write_text(text)
        expected = r"preprocess\.json: damaged \(.*\); .*train again with --restart"
        with pytest.raises(DataError, match=expected):
            run.load(tmp_path)
        with pytest.raises(DataError, match=expected):
            run.train(config, tmp_path, progress=False)

    def test_only_the_first_of_several_processes_has_the_lock(self, tmp_path: Path, monkeypatch):
        from gflowout.runs import BusyError, locks

        def free() -> bool:
            try:
                with run._lock(tmp_path):
                    return True
            except BusyError:
                return False

        with locks.hold(tmp_path / ".training.lock"):
            assert not free()
            for names, waits in (
                ({"LOCAL_RANK": "0"}, True),
                ({"LOCAL_RANK": "0", "RANK": "0"}, True),
                ({"LOCAL_RANK": "1"}, False),
                ({"LOCAL_RANK": "0", "RANK": "2"}, False),
                ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
            ):
                with monkeypatch.context() as patch:
                    for name, value in names.items():
                        patch.setenv(name, value)
                    assert free() is not waits
        assert free()


class TestBuild:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_gets_what_it_needs(self, trained, method):
        config = with_changes(trained.config, {"method.name": method})
        task = trained.task
        model = build.model(config, task.problem, build.example(task))
        if hasattr(model.method.options, "train_size"):
            assert model.method.options.train_size == len(task.train) == 180
        assert [site.name for site in model.sites] == ["hidden.0.act"]
        config = with_changes(config, {"backbone.sites": ["input", "hidden.*.act"]})
        model = build.model(config, task.problem, build.example(task))
        assert [site.name for site in model.sites] == ["input", "hidden.0.act"]

    def test_what_does_not_fit(self, trained):
        task = trained.task
        config = with_changes(trained.config, {"backbone.sites": ["nothing"]})
        with pytest.raises(ConfigError, match=r"be put on the backbone: .*nothing"):
            build.model(config, task.problem, build.example(task))

    def test_colour_pictures_get_a_resnet(self, trained):
        from dataclasses import replace

        from gflowout.app.preprocess import Images

        colour = replace(trained.problem, inputs=Images((3, 8, 8), (0.0,) * 3, (1.0,) * 3))
        config = with_changes(trained.config, {"backbone.width": 4, "backbone.order": "bn-conv"})
        network = build.backbone(config.backbone, colour)
        assert len(network.sites) == 8
        assert network(torch.zeros(2, 3, 8, 8)).shape == (2, 10)

    def test_a_plan_leaves_nothing_behind(self, trained):
        torch.manual_seed(3)
        expected = torch.rand(1)
        torch.manual_seed(3)
        found = plan(trained.config, trained.task)
        assert torch.rand(1) == expected
        lines = dict(found.lines)
        assert lines["data"] == "mnist: 180 train, 20 valid, 200 test"
        network = 784 * 16 + 16 + 16 * 10 + 10
        assert f"backbone {network:,}" in lines["parameters"]
        assert found.total == pytest.approx(3 * found.epoch)
        assert found.epoch > 9 * found.step > 0


class TestEvaluate:
    def test_scores_equal_those_of_the_interface(self, trained):
        found = run.evaluate(trained, samples=7)
        task = trained.task
        x = task.problem.inputs.transform(task.test.x)
        pred = trained.model.predict(x, samples=7, generator=torch.Generator().manual_seed(0))
        labels = task.test.y
        assert found["accuracy"] == (pred.mean.argmax(-1) == labels).float().mean().item()
        assert found["nll"] == pytest.approx(-pred.log_prob(labels).mean().item())
        truth = torch.nn.functional.one_hot(labels, 10)
        brier = (pred.mean - truth).square().sum(-1).mean().item()
        assert found["brier"] == pytest.approx(brier)
        assert found["accuracy"] > 0.5  # the bars can be learned

    def test_shifts(self, trained):
        found = run.evaluate(trained, rotate=True, corrupt=[("gaussian_noise", 2)], samples=5)
        x = trained.problem.inputs.transform(rotate(trained.task.test.x, seed=0))
        pred = trained.model.predict(x, samples=5, generator=torch.Generator().manual_seed(0))
        nll = -pred.log_prob(trained.task.test.y).mean().item()
        assert found["rotated/nll"] == pytest.approx(nll)
        assert found["rotated/nll"] > found["nll"]
        assert {"gaussian_noise-2/accuracy", "gaussian_noise-2/ece"} <= found.keys()

    def test_unlike_data(self, trained, tmp_path: Path):
        noise = np.random.default_rng(0).integers(0, 256, (50, 28, 28), dtype="uint8")
        np.savez(tmp_path / "noise.npz", x=noise)
        found = run.evaluate(trained, ood=[str(tmp_path / "noise.npz")], samples=5)
        transform, draws = trained.problem.inputs.transform, torch.Generator
        known, unknown = (
            trained.model.predict(transform(x), samples=5, generator=draws().manual_seed(0))
            for x in (trained.task.test.x, torch.from_numpy(noise)[:, None])
        )
        pairs = known.entropy()[:, None], unknown.entropy()[None]
        wins = ((pairs[0] < pairs[1]).double() + 0.5 * (pairs[0] == pairs[1])).mean().item()
        assert found["noise.npz/entropy/auroc"] == pytest.approx(wins, abs=1e-6)
        assert len([name for name in found if name.startswith("noise.npz/")]) == 9

    def test_unlike_data_in_idx_files(self, trained, tmp_path: Path):
        images = torch.randint(256, (40, 32, 32), dtype=torch.uint8)
        (tmp_path / "letters").mkdir()
        write_idx(tmp_path / "letters" / "t10k-images-idx3-ubyte.gz", images)
        problem = trained.problem
        x = evaluation.other_data(problem, str(tmp_path / "letters"))
        assert torch.equal(x, evaluation.fitted(images[:, None], problem.inputs.shape))
        found = run.evaluate(trained, ood=[str(tmp_path / "letters")], samples=2)
        assert 0 <= found["letters/entropy/auroc"] <= 1
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="empty"):
            evaluation.other_data(problem, str(tmp_path / "empty"))

    def test_what_the_data_do_not_have(self, trained):
        with pytest.raises(ConfigError, match=r"--ood must be one of mnist, .*did you mean 'svhn'"):
            run.evaluate(trained, ood=["svnh"])
        with pytest.raises(ValueError, match="split must be one of"):
            run.evaluate(trained, split="tests")


class TestMetrics:
    def test_detection_against_counting(self):
        generator = torch.Generator().manual_seed(0)
        known = torch.randint(0, 30, (60,), generator=generator).float() - 40
        unknown = torch.randint(10, 40, (50,), generator=generator).float() - 40
        found = metrics.detection(known, unknown)
        difference = unknown[:, None] - known[None]
        auroc = ((difference > 0).double() + 0.5 * (difference == 0)).mean().item()
        assert found["auroc"] == pytest.approx(auroc, abs=1e-6)
        rates = [
            (known >= threshold).double().mean().item()
            for threshold in torch.cat([known, unknown]).unique()
            if (unknown >= threshold).double().mean() >= 0.95
        ]
        assert found["fpr95"] == pytest.approx(min(rates), abs=1e-6)
        steps, precision = [0.0], 0.0
        for threshold in torch.cat([known, unknown]).unique().flip(0):
            hits = (unknown >= threshold).sum().item()
            taken = hits + (known >= threshold).sum().item()
            steps.append(hits / len(unknown))
            precision += (steps[-1] - steps[-2]) * hits / taken
        assert found["aupr"] == pytest.approx(precision, abs=1e-6)

    def test_scores_that_never_vary(self):
        found = metrics.detection(torch.ones(3), torch.ones(2))
        assert all(math.isnan(value) for value in found.values())


class TestNumbers:
    """Regression, where labels are scaled and everything must come back in their units."""

    @pytest.fixture(scope="class")
    def trained(self, tmp_path_factory: pytest.TempPathFactory) -> run.Trained:
        folder = tmp_path_factory.mktemp("days")
        frame = patients(300)
        frame["days"] *= 100
        frame.to_csv(folder / "p.csv", index=False)
        config = read(
            None,
            [f"data={folder / 'p.csv'}", "data.target=days", "data.drop=[died]", *SMALL,
             "method=mc", "method.options.rate=0.1", "fit.epochs=15", "fit.lr=0.02"],
        )  # fmt: skip
        return run.train(config, folder / "run", progress=False)

    def test_scores_are_in_the_units_of_the_data(self, trained):
        found, target = run.evaluate(trained, samples=50), trained.problem.target
        task = trained.task
        pred = trained.model.predict(
            task.test.x, samples=50, generator=torch.Generator().manual_seed(0)
        )
        values = task.test.y * target.std + target.mean
        error = (pred.mean.flatten() * target.std + target.mean) - values
        assert found["rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-4)
        assert found["rmse"] < 0.6 * values.std().item()  # better than the mean
        # A mixture of normal densities in the units of the data, written out.
        noise = trained.model.likelihood.log_variance.exp().sqrt().item() * target.std
        means = pred.samples.squeeze(-1) * target.std + target.mean
        mixture = torch.distributions.Normal(means, noise).log_prob(values).exp().mean(0)
        assert found["nll"] == pytest.approx(-mixture.log().mean().item(), rel=1e-3)
        assert 0.7 < found["coverage90"] <= 1

    def test_predicted_columns(self, trained, tmp_path: Path):
        patients(40, seed=5).drop(columns=["died", "days"]).to_csv(tmp_path / "n.csv", index=False)
        frame, notes = predict(trained.model, trained.problem, [tmp_path / "n.csv"], samples=30)
        assert list(frame.columns) == [
            "row", "mean", "std", "aleatoric_std", "epistemic_std", "q05", "q50", "q95"
        ]  # fmt: skip
        total = frame.aleatoric_std**2 + frame.epistemic_std**2
        np.testing.assert_allclose(frame["std"] ** 2, total, rtol=1e-4)
        assert (frame.q05 < frame.q50).all()
        assert (frame.q50 < frame.q95).all()
        assert notes == []
        truth = patients(40, seed=5).days * 100
        assert np.corrcoef(frame["mean"], truth)[0, 1] > 0.8

    def test_not_for_numbers(self, trained):
        with pytest.raises(ConfigError, match="compares scores of classes"):
            run.evaluate(trained, ood=["mnist"])
        with pytest.raises(ConfigError, match="are for images"):
            run.evaluate(trained, rotate=True)


class TestWork:
    def test_a_study_of_it(self, config, trained, tmp_path: Path):
        options = {key: value for key, value in flat(config).items() if key != "seed"}
        runs = [Run("s", "gflowout", "mnist", 0, {**options, "test": True, "samples": 4})]
        mc = {**options, "method.name": "mc", "fit.epochs": 1}
        runs.append(Run("s", "mc", "mnist", 1, mc))
        summary = run_study(
            runs, "gflowout.app.run:work", tmp_path, engine=Inline(), progress=False
        )
        assert summary.done == 2, summary
        first, second = (
            next(r for r in records.read(tmp_path) if r["method"] == each.method) for each in runs
        )
        expected = run.evaluate(trained, samples=4)
        assert first["metrics"]["test/nll"] == expected["nll"]
        assert (
            first["metrics"]["valid/nll"] == run.evaluate(trained, split="valid", samples=4)["nll"]
        )
        assert len(first["epochs"]) == 3
        assert first["checksums"] == trained.task.fingerprints
        assert not any(name.startswith("test/") for name in second["metrics"])
        assert second["metrics"]["epochs_trained"] == 1

    def test_a_run_must_agree_with_its_options(self, config, tmp_path: Path):
        from gflowout.runs import Context

        with pytest.raises(ValueError, match="seed is 3 in the run, and 0 in its options"):
            run.work(Run("s", "gflowout", "mnist", 3, flat(config)), Context(tmp_path))


def test_probabilities_of_two_classes(tmp_path: Path):
    patients().to_csv(tmp_path / "p.csv", index=False)
    config = read(None, [f"data={tmp_path / 'p.csv'}", "data.target=died", *SMALL, "method=none"])
    trained = run.train(config, tmp_path / "run", progress=False)
    found = run.evaluate(trained, samples=1)
    answers = evaluation.collect(
        trained.model, trained.problem.target,
        trained.task.test.batches(trained.problem, 50), 1, 0,
    )  # fmt: skip
    with torch.no_grad():
        p = trained.model.backbone(trained.task.test.x).sigmoid().squeeze(-1)
    np.testing.assert_allclose(answers["probabilities"][:, 1], p, rtol=1e-5)
    y = trained.task.test.y
    nll = torch.nn.functional.binary_cross_entropy(p, y).item()
    assert found["nll"] == pytest.approx(nll, rel=1e-4)
    assert found["accuracy"] == pytest.approx(((p > 0.5) == (y > 0.5)).float().mean().item())
    assert {"auroc", "aupr"} <= found.keys()
