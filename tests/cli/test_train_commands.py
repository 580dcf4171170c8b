"""``gflowout train | evaluate | predict``, end to end, on small data."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from pipeline_files import patients, write_digits, write_pictures
from typer.testing import CliRunner

from gflowout.app import predict as predicting
from gflowout.app import run as runs
from gflowout.app import sources
from gflowout.app.config import nested, read
from gflowout.cli import commands
from gflowout.data.images import load_images
from gflowout.training import FitResult, signals

runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})
SMALL = ("--set", "backbone.hidden=[16]", "--set", "fit.lr=0.01", "--set", "data.batch_size=20")


def run(*arguments: object):
    return runner.invoke(commands.app, [str(each) for each in arguments])


def good(*arguments: object):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def plain(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def refused(*arguments: object) -> str:
    """The message of a wrong usage or configuration."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert not isinstance(result.exception, ValueError)
    return plain(result.stderr)


def failed(*arguments: object) -> str:
    """The message of a problem with data or files: a line, not a traceback."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return plain(result.stderr)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def digits(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the little MNIST, trained by the command."""
    out = tmp_path_factory.mktemp("runs") / "deep" / "digits"
    result = good("train", "--data", "mnist", "--data-dir", root, "--epochs", 3, *SMALL,
                  "--out", out, "--seed", 1)  # fmt: skip
    assert "3 epochs (all done) in" in result.stdout
    assert f"next: gflowout evaluate {out}" in result.stdout
    return out


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A CSV file, and a model of it."""
    folder = tmp_path_factory.mktemp("patients")
    path, out = folder / "patients.csv", folder / "run"
    patients().to_csv(path, index=False)
    good("train", "--data", path, "--set", "data.target=died", "--set", "data.drop=[days]",
         "--method", "mc", "--epochs", 2, *SMALL, "--out", out, "--quiet")  # fmt: skip
    return path, out


class TestTrain:
    def test_options_reach_the_configuration(self, digits: Path, root: Path):
        config = read(digits / "config.yaml")
        assert (config.data.source, config.data.directory) == ("mnist", str(root))
        assert (config.seed, config.fit.seed, config.fit.epochs) == (1, 1, 3)
        assert config.fit.lr == 0.01

    def test_set_goes_before_options_and_these_before_the_file(self, tmp_path: Path, root: Path):
        (tmp_path / "c.yaml").write_text(
            f"data: {{source: mnist, directory: {root}, limit: 50}}\nmethod: none\n"
            "fit: {epochs: 9, lr: 0.5}\nseed: 8\n"
        )
        good("train", "--config", tmp_path / "c.yaml", "--method", "mc", "--epochs", 5,
             "--set", "fit.epochs=1", "--out", tmp_path / "run", "--quiet")  # fmt: skip
        config = read(tmp_path / "run" / "config.yaml")
        assert (config.method.name, config.fit.epochs, config.fit.lr) == ("mc", 1, 0.5)
        assert (config.seed, config.data.limit) == (8, 50)

    def test_quiet_prints_nothing(self, tmp_path: Path, root: Path):
        result = good("train", "--data", "mnist", "--data-dir", root, "--epochs", 1, *SMALL,
                      "--out", tmp_path, "--quiet")  # fmt: skip
        assert result.output == ""

    def test_a_second_call_has_nothing_to_do(self, digits: Path):
        before = {path: path.read_bytes() for path in digits.glob("*.*")}
        result = good("train", "--config", digits / "config.yaml", "--out", digits)
        assert "3 epochs (all done, 3 of them before)" in result.stdout
        assert {path: path.read_bytes() for path in digits.glob("*.*")} == before

    @pytest.mark.parametrize(
        ("sent", "code", "word", "done"),
        [(signal.SIGINT, 130, "interrupted", 1), (signal.SIGTERM, 143, "terminated", 2)],
    )
    def test_interrupted_it_says_how_to_go_on_and_ends_the_same(
        self, digits: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        sent: int, code: int, word: str, done: int,
    ):  # fmt: skip
        from gflowout.training.module import MaskedModule

        step, out = MaskedModule.training_step, tmp_path / "run"

        def interrupted(self, batch, index):
            if self.current_epoch == 1 and index == 0:
                signal.raise_signal(sent)
            return step(self, batch, index)

        monkeypatch.setattr(MaskedModule, "training_step", interrupted)
        monkeypatch.setattr(signals, "GRACE", math.inf)  # a busy machine may be slow
        result = run("train", "--data", "mnist", "--data-dir", root, "--epochs", 3, *SMALL,
                     "--out", out, "--seed", 1)  # fmt: skip
        assert result.exit_code == code
        message, command = result.stderr.split("go on with: gflowout ")
        assert message == f"{word}: all complete epochs are saved; "
        monkeypatch.undo()
        assert "training is not complete; go on with: " in failed("evaluate", out)
        assert f"{done} of them before" in good(*shlex.split(command)).stdout
        expected, found = (runs.load(folder).model.state_dict() for folder in (digits, out))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)

    def test_interrupted_before_anything_was_done(self, root, tmp_path, monkeypatch):
        def interrupted(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(sources, "load", interrupted)
        result = run("train", "--data", "mnist", "--data-dir", root, "--out", tmp_path / "run")
        assert (result.exit_code, result.stderr) == (130, "interrupted: nothing was trained yet\n")

    def test_terminated_before_anything_was_done(self, root, tmp_path, monkeypatch):
        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(sources, "load", lambda *_: signal.raise_signal(signal.SIGTERM))
        result = run("train", "--data", "mnist", "--data-dir", root, "--out", tmp_path / "run")
        assert (result.exit_code, result.stderr) == (143, "terminated: nothing was trained yet\n")
        assert signal.getsignal(signal.SIGTERM) is before

    @pytest.mark.parametrize(
        ("losses", "stopped", "expected"),
        [
            ([3.0, 2.0, 1.0], "epochs", True),
            ([3.0, 1.0, 2.0], "epochs", False),
            ([1.0], "epochs", True),
            ([3.0, 1.0, 2.0], "patience", False),
        ],
    )
    def test_it_says_that_training_was_too_short(
        self, digits: Path, capsys: pytest.CaptureFixture[str], losses, stopped, expected
    ):
        from gflowout.cli import train_output

        history = [{"epoch": epoch, "valid/nll": loss} for epoch, loss in enumerate(losses)]
        best = losses.index(1.0)
        result = FitResult(history, best, 1.0, stopped, 1.0, 0, digits)
        train_output.show_training(dataclasses.replace(runs.load(digits), result=result), ())
        text = capsys.readouterr().out
        advice = f"the best epoch is the last: train longer, with --epochs {2 * len(losses)} and"
        assert (advice in text) == expected

    def test_tables_train_until_they_stop_improving(self, tmp_path: Path):
        rows = np.random.default_rng(0).normal(size=(60, 2))
        table = pd.DataFrame(rows, columns=["a", "b"]).assign(y=np.arange(60) % 2)
        table.to_csv(tmp_path / "noise.csv", index=False)
        command = ["train", "--data", tmp_path / "noise.csv", "--set", "data.target=y", *SMALL,
                   "--method", "none", "--set", "fit.lr=0.1"]  # fmt: skip
        plan = good(*command, "--dry-run").stdout
        assert "1000 epochs at most, stops after 50 without a better one" in plan
        assert "cost        at most" in plan
        shorter = (*command, "--set", "fit.patience=5", "--out", tmp_path / "run")
        assert "(stopped early, no better for a while)" in good(*shorter).stdout

    def test_dry_run_prints_the_plan_and_writes_nothing(self, root: Path, tmp_path: Path):
        result = good("train", "--data", "mnist", "--data-dir", root, "--epochs", 7, *SMALL,
                      "--method", "id-gflowout", "--out", tmp_path / "run",
                      "--dry-run")  # fmt: skip
        lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
        assert lines["data"] == "mnist: 180 train, 20 valid, 200 test"
        assert lines["method"].startswith("id-gflowout: objective tb, temperature 1.0, ")
        assert "train_size 180" in lines["method"]
        assert lines["training"].startswith("7 epochs at most, 9 steps of 20, adam, lr 0.01, ")
        assert lines["folder"] == f"{tmp_path / 'run'} (new)"
        assert " in all: " in lines["cost"]
        assert lines["nothing"] == "was written"
        assert list(tmp_path.iterdir()) == []

    def test_dry_run_of_a_run_that_was_begun(self, digits: Path):
        result = good("train", "--config", digits / "config.yaml", "--out", digits, "--dry-run")
        assert "(goes on after epoch 3)" in result.stdout

    def test_another_configuration_in_the_same_folder(self, digits: Path, root: Path):
        message = refused("train", "--config", digits / "config.yaml", "--epochs", 4,
                          "--out", digits)  # fmt: skip
        assert "holds a run with another configuration: fit.epochs was 3, is 4" in message
        assert "start anew with --restart" in message

    def test_restart(self, root: Path, tmp_path: Path):
        first = ["train", "--data", "mnist", "--data-dir", root, "--epochs", 1, *SMALL,
                 "--out", tmp_path]  # fmt: skip
        good(*first)
        result = good(*first, "--seed", 5, "--restart")
        assert "1 epoch (all done) in" in result.stdout
        assert read(tmp_path / "config.yaml").seed == 5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--set", "fit.lrr=1"], "fit.lrr: there is no such key; did you mean 'fit.lr'"),
            (["--epochs", "0"], "fit.epochs must be an integer >= 1, got 0"),
            (["--epochs", "x"], "'--epochs': .* integer.* got 'x'"),
            (["--set", "fit.accelerator=tpu"], "fit.accelerator 'tpu' is not available on this"),
            (["--method", "gflowot"], "method.name must be one of .* did you mean 'gflowout'"),
            (["--data", "mnst"], "did you mean 'mnist'"),
            (["--set", "seed"], "'seed' must be key=value"),
            (["--config", "none.yaml"], "none.yaml: cannot be read"),
            (["--set", "backbone.sites=[none]"], "cannot be put on the backbone"),
            (["--set", "data.likelihood=gaussian"], "data.likelihood of 'mnist' is categorical"),
        ],
    )
    def test_configuration_errors(self, root: Path, tmp_path: Path, arguments, message):
        import re

        data = [] if "--data" in arguments else ["--data", "mnist"]
        found = refused("train", *data, "--data-dir", root, *arguments, "--out", tmp_path / "run")
        assert re.search(message, found)
        assert not (tmp_path / "run").exists()

    def test_problems_with_files(self, root: Path, tmp_path: Path):
        out = ("--out", tmp_path / "run")
        assert "no cifar10 here" in failed("train", "--data", "cifar10", "--data-dir", root, *out)
        path = tmp_path / "none.csv"
        message = failed("train", "--data", path, "--set", "data.target=y", *out)
        assert message == f"{path}: no such file or folder"
        message = refused("train", "--data", path, *out)  # a column to learn can wait
        assert message == f"{path}: no such file or folder"
        patients().to_csv(tmp_path / "there.csv", index=False)
        for place in ((tmp_path / "there.csv",), ("there.csv", "--data-dir", tmp_path)):
            message = refused("train", "--data", *place, *out)
            wanted = "the column of the labels; --set data.target=NAME"
            assert message == f"data.target is missing: {wanted}"
        (tmp_path / "file").write_text("")
        message = refused("train", "--data", "mnist", "--data-dir", root,
                          "--out", tmp_path / "file" / "run")  # fmt: skip
        assert "is a file, not a folder" in message
        assert "--out: is needed" in refused("train", "--data", "mnist")

    def test_two_do_not_train_in_one_folder(self, digits: Path):
        from gflowout.runs import locks

        with locks.hold(digits / ".training.lock"):
            message = failed("train", "--config", digits / "config.yaml", "--out", digits)
        assert message.startswith(f"{digits}: another process trains here (process ")

    def test_a_loss_that_is_not_finite(self, root: Path, tmp_path: Path):
        message = failed("train", "--data", "mnist", "--data-dir", root, "--epochs", 3,
                         "--set", "fit.lr=1e20", "--set", "fit.optimizer=sgd",
                         "--out", tmp_path / "run", "--quiet")  # fmt: skip
        assert message.startswith("training failed: ")

    def test_a_damaged_folder_is_told_and_started_anew(self, root: Path, tmp_path: Path):
        command = ["train", "--data", "mnist", "--data-dir", root, "--epochs", 1, *SMALL,
                   "--out", tmp_path, "--quiet"]  # fmt: skip
        good(*command)
        path = tmp_path / "preprocess.json"
        path.write_text(path.read_text()[:50])
        for message in (failed(*command), failed("evaluate", tmp_path)):
            assert message.startswith(f"{path}: damaged (")
            assert message.endswith("train again with --restart")
        good(*command, "--restart")
        assert json.loads(path.read_text())["kind"] == "images"

    def test_logs_for_tensorboard(self, root: Path, tmp_path: Path, monkeypatch):
        pytest.importorskip("tensorboard")
        events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        command = ["train", "--data", "mnist", "--data-dir", root, "--epochs", 2, *SMALL,
                   "--quiet", "--out"]  # fmt: skip
        good(*command, tmp_path / "without")
        assert not (tmp_path / "without" / "tensorboard").exists()
        good(*command, tmp_path / "with", "--tensorboard")
        log = events.EventAccumulator(str(tmp_path / "with" / "tensorboard"))
        log.Reload()
        found = [event.value for event in log.Scalars("valid/nll")]
        table = pd.read_csv(tmp_path / "with" / "metrics.csv")
        assert found == pytest.approx(table["valid/nll"].tolist(), rel=1e-5)
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        message = failed(*command, tmp_path / "not", "--tensorboard")
        assert "--tensorboard needs" in message
        assert not (tmp_path / "not").exists()

    def test_warnings_are_one_line(self, root: Path, tmp_path: Path, monkeypatch):
        from gflowout.training import TrainingWarning

        def warn(*arguments, **options):
            warnings.warn("epoch 3: masks collapse", TrainingWarning, stacklevel=2)
            raise KeyboardInterrupt

        monkeypatch.setattr(runs, "train", warn)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            result = run("train", "--data", "mnist", "--data-dir", root, "--out", tmp_path / "run")
        assert result.stderr.splitlines()[0] == "warning: epoch 3: masks collapse"


class TestEvaluate:
    def test_tables_and_file(self, digits: Path, tmp_path: Path):
        noise = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype="uint8")
        np.savez(tmp_path / "noise.npz", x=noise)
        result = good("evaluate", digits, "--rotate", "--corruption", "gaussian_noise",
                      "--severity", 2, "--ood", tmp_path / "noise.npz", "--samples", 5,
                      "--json", tmp_path / "scores.json")  # fmt: skip
        lines = [line.split() for line in result.stdout.splitlines()]
        content = json.loads((tmp_path / "scores.json").read_text())
        scores = content["scores"]
        assert content["examples"] == 200
        assert ["data", "accuracy", "%", "NLL", "Brier", "ECE"] in lines
        for name, prefix in (
            ("test", ""), ("rotated", "rotated/"), ("gaussian_noise-2", "gaussian_noise-2/")
        ):  # fmt: skip
            (row,) = [line for line in lines if line and line[0] == name]
            figures = [100 * scores[f"{prefix}accuracy"], *(
                scores[f"{prefix}{metric}"] for metric in ("nll", "brier", "ece")
            )]  # fmt: skip
            assert [float(cell) for cell in row[1:]] == pytest.approx(figures, abs=0.0051)
        for score in ("dempster-shafer", "entropy", "mutual-information"):
            (row,) = [line for line in lines if line[:2] == ["noise.npz", score]]
            key = f"noise.npz/{score.replace('-', '_')}/auroc"
            assert float(row[2]) == pytest.approx(scores[key], abs=1e-4)
        expected = runs.evaluate(runs.load(digits), samples=5)
        assert scores["nll"] == expected["nll"]

    def test_other_parts_and_other_places(self, digits: Path, root: Path, tmp_path: Path):
        moved = tmp_path / "moved"
        moved.mkdir()
        (moved / "mnist").symlink_to(root / "mnist")
        result = good("evaluate", digits, "--split", "valid", "--data-dir", moved, "--quiet")
        assert "valid: 20 examples" in result.stdout
        assert result.stderr == ""

    def test_changed_data_are_told(self, digits: Path, tmp_path: Path):
        other = write_digits(tmp_path, 100)
        result = good("evaluate", digits, "--data-dir", other, "--quiet")
        assert "warning: the test part is not what it was in training" in result.stderr

    def test_a_score_that_never_varies(self, root: Path, tmp_path: Path):
        good("train", "--data", "mnist", "--data-dir", root, "--epochs", 1, *SMALL,
             "--method", "none", "--out", tmp_path / "run", "--quiet")  # fmt: skip
        np.savez(tmp_path / "noise.npz", x=np.random.default_rng(0).integers(
            0, 256, (20, 28, 28), dtype="uint8"))  # fmt: skip
        result = good("evaluate", tmp_path / "run", "--ood", tmp_path / "noise.npz",
                      "--json", tmp_path / "s.json")  # fmt: skip
        lines = [line.split() for line in result.stdout.splitlines()]
        assert ["noise.npz", "mutual-information", "-", "-", "-"] in lines
        scores = json.loads((tmp_path / "s.json").read_text())["scores"]
        assert scores["noise.npz/mutual_information/auroc"] is None
        assert scores["noise.npz/entropy/auroc"] is not None

    def test_a_table_with_two_classes(self, table):
        result = good("evaluate", table[1], "--quiet")
        assert "AUROC" in result.stdout

    def test_a_file_with_labels_instead(self, table, tmp_path: Path):
        _, out = table
        frame = patients(60, seed=9)
        frame.loc[7, "died"] = None
        frame.to_csv(tmp_path / "new.csv", index=False)
        result = good("evaluate", out, "--on", tmp_path / "new.csv", "--quiet",
                      "--json", tmp_path / "s.json")  # fmt: skip
        assert "note: 1 rows without 'died' left out" in result.stdout
        scores = json.loads((tmp_path / "s.json").read_text())
        assert (scores["part"], scores["examples"]) == ("new.csv", 59)
        good("predict", out, tmp_path / "new.csv", "-o", tmp_path / "p.csv", "--quiet")
        found = pd.read_csv(tmp_path / "p.csv")
        kept = frame.died.notna()
        right = (found.prediction == frame.died)[kept]
        assert scores["scores"]["accuracy"] == pytest.approx(right.mean(), abs=0.05)
        frame.loc[0, "died"] = "maybe"
        frame.to_csv(tmp_path / "new.csv", index=False)
        message = failed("evaluate", out, "--on", tmp_path / "new.csv")
        assert message.endswith("the label 'maybe' is none of the classes of the model: no, yes")
        frame.drop(columns="died").to_csv(tmp_path / "new.csv", index=False)
        assert "misses the labels 'died'" in failed("evaluate", out, "--on", tmp_path / "new.csv")
        assert "cannot be used with --split" in refused(
            "evaluate", out, "--on", out, "--split", "test"
        )

    def test_a_folder_with_labels_instead(self, digits: Path, root: Path, tmp_path: Path):
        test = load_images("mnist", "test", root)
        for place, label in enumerate(test.labels.tolist()):
            (tmp_path / "in" / str(label)).mkdir(parents=True, exist_ok=True)
            pixels = test.images[place, 0].numpy()
            Image.fromarray(pixels).save(tmp_path / "in" / str(label) / f"{place:03d}.png")
        good("evaluate", digits, "--on", tmp_path / "in", "--json", tmp_path / "a.json", "--quiet")
        good("evaluate", digits, "--json", tmp_path / "b.json", "--quiet")
        one, other = (
            json.loads((tmp_path / name).read_text())["scores"] for name in ("a.json", "b.json")
        )
        assert one["nll"] == pytest.approx(
            other["nll"], rel=0.1, abs=0.005
        )  # other masks for other places
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.03)

    def test_wrong_usage_and_missing_runs(self, digits: Path, tmp_path: Path):
        assert "did you mean 'test'" in refused("evaluate", digits, "--split", "tests")
        assert "must be one of 'snow'" in refused("evaluate", digits, "--corruption", "rain")
        assert "did you mean 'svhn'" in refused("evaluate", digits, "--ood", "svnh")
        assert "no such folder" in failed("evaluate", tmp_path / "none")
        assert "does not exist" in refused("evaluate", digits, "--json", tmp_path / "no" / "a")


class TestPredict:
    def test_the_training_table_as_through_the_interface(self, table, tmp_path: Path):
        path, out = table
        result = good("predict", out, path, "-o", tmp_path / "p.csv", "--samples", 9, "--seed", 4)
        found = pd.read_csv(tmp_path / "p.csv")
        trained = runs.load(out)
        frame = patients()
        assert list(found.columns) == [
            "row", "prediction", "p_no", "p_yes", "confidence", "entropy", "mutual_information",
            "dempster_shafer",
        ]  # fmt: skip
        # An encoding of its own, from the columns that were stored.
        columns = []
        for column in trained.problem.inputs.columns:
            values = frame[column.name]
            if column.levels is None:
                columns.append(((values.astype(float) - column.mean) / column.std).fillna(0))
            else:
                columns += [(values == level).astype(float) for level in column.levels]
            if column.missing:
                columns.append(values.isna().astype(float))
        x = torch.tensor(np.stack(columns, 1), dtype=torch.float32)
        generator = torch.Generator().manual_seed(4)
        pred = trained.model.predict(x, samples=9, generator=generator)
        np.testing.assert_allclose(found.p_yes, pred.mean, rtol=1e-5)
        np.testing.assert_allclose(found.entropy, pred.entropy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            found.mutual_information, pred.mutual_information(), rtol=1e-3, atol=1e-6
        )
        np.testing.assert_allclose(found.dempster_shafer, pred.dempster_shafer(), rtol=1e-5)
        assert found.prediction.tolist() == np.where(found.p_yes > 0.5, "yes", "no").tolist()
        assert found.row.tolist() == list(range(120))
        assert "note: columns that the model does not take: days, died" in result.stdout
        assert "120 rows; columns row, prediction, p_no, p_yes, confidence" in result.stdout

    def test_sets_are_fitted_to_the_test_part(self, digits: Path, tmp_path: Path):
        trained = runs.load(digits)
        task, _ = runs.data(trained)
        np.savez(tmp_path / "in.npz", x=task.valid.x.numpy())
        result = good("predict", digits, tmp_path / "in.npz", "-o", tmp_path / "p.csv",
                      "--coverage", 0.8)  # fmt: skip
        found = pd.read_csv(tmp_path / "p.csv", dtype={"set": str}, keep_default_na=False)
        assert "set, set_size" in result.stdout
        plain = pd.read_csv(tmp_path / "p.csv").filter(regex="^p_")
        fitted = predicting.conformal(trained.model, trained.problem, task.test, 0.8)
        decide = predicting.covering(fitted, trained.problem.target)
        x = task.valid.batches(trained.problem, 1000)
        pred = trained.model.predict(next(iter(x))[0], generator=torch.Generator().manual_seed(0))
        sets = decide(pred)["set"]
        names = np.array(trained.problem.target.classes)
        assert found["set"].tolist() == ["|".join(names[row]) for row in sets.numpy()]
        assert found["set_size"].tolist() == sets.sum(1).tolist()
        # Classes above one probability, which the test part decides.
        inside = plain.to_numpy()[sets.numpy()]
        assert inside.min() > plain.to_numpy()[~sets.numpy()].max()
        hit = sets.gather(1, task.valid.y[:, None]).double().mean()
        assert abs(float(hit) - 0.8) < 4 * math.sqrt(
            0.16 * (1 / len(task.test) + 1 / len(hit[None]))
        )

    def test_intervals_are_in_the_units_of_the_target(self, tmp_path: Path):
        patients(400).to_csv(tmp_path / "days.csv", index=False)
        patients(300, seed=1).to_csv(tmp_path / "other.csv", index=False)
        patients(500, seed=2).to_csv(tmp_path / "new.csv", index=False)
        out = tmp_path / "run"
        good("train", "--data", tmp_path / "days.csv", "--set", "data.target=days", "--set",
             "data.drop=[died]", "--epochs", 5, *SMALL, "--out", out, "--quiet")  # fmt: skip
        truth = patients(500, seed=2).days
        for more in ((), ("--calibrate-on", tmp_path / "other.csv")):
            good("predict", out, tmp_path / "new.csv", "-o", tmp_path / "p.csv", "--coverage", 0.9,
                 "--force", "--quiet", *more)  # fmt: skip
            found = pd.read_csv(tmp_path / "p.csv")
            assert (found.low < found["mean"]).all()
            np.testing.assert_allclose(found.high - found["mean"], found["mean"] - found.low, 1e-3)
            hit = ((found.low <= truth) & (truth <= found.high)).mean()
            count = 300 if more else 80  # rows of calibration
            assert abs(hit - 0.9) < 4 * math.sqrt(0.09 * (1 / count + 1 / 500)) + 1 / count

    def test_a_coverage_that_cannot_be_had_says_why(self, table, tmp_path: Path):
        path, out = table
        target = ("-o", tmp_path / "p.csv")
        assert "between 0 and 1" in refused("predict", out, path, *target, "--coverage", 90)
        assert "needs --coverage" in refused("predict", out, path, *target, "--calibrate-on", path)
        message = failed("predict", out, path, *target, "--coverage", 0.999)
        assert "coverage=0.999 needs at least 999 held-out examples" in message
        frame = pd.read_csv(path)
        try:
            frame.iloc[::-1].to_csv(path, index=False)
            message = failed("predict", out, path, *target, "--coverage", 0.8)
        finally:
            frame.to_csv(path, index=False)
        assert "name others with --calibrate-on" in message
        assert not (tmp_path / "p.csv").exists()

    @pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "images", "image"])
    def test_formats_hold_the_same(self, table, digits: Path, tmp_path: Path, kind):
        out, pixels = table[1], np.random.default_rng(0).integers(0, 256, (6, 28, 28), "uint8")
        source = tmp_path / f"in.{kind}"
        if kind == "csv":
            patients().to_csv(source, index=False)
        elif kind == "parquet":
            patients().to_parquet(source)
        elif kind == "npz":
            np.savez(source, x=pixels)
        else:
            (tmp_path / "in" / "file").mkdir(parents=True)  # the name of an argument of savez
            for place, image in enumerate(pixels):
                Image.fromarray(image).save(tmp_path / "in" / "file" / f"{place}.png")
            source = tmp_path / "in" if kind == "images" else tmp_path / "in" / "file" / "0.png"
        if kind not in ("csv", "parquet"):
            out = digits
        for name in ("a.csv", "b.parquet", "c.npz"):
            good("predict", out, source, "-o", tmp_path / name, "--quiet")
        first = pd.read_csv(tmp_path / "a.csv", dtype={"prediction": str})
        label = "file" if kind.startswith("image") else "row"
        assert first.columns[0] == label
        likely = next(name for name in first.columns if name.startswith("p_"))
        second = pd.read_parquet(tmp_path / "b.parquet")
        with np.load(tmp_path / "c.npz", allow_pickle=False) as arrays:
            third = pd.DataFrame({name: arrays[name] for name in arrays.files})
        for other in (second, third):
            assert list(other.columns) == list(first.columns)
            np.testing.assert_allclose(other[likely], first[likely], rtol=1e-6)
            assert other.prediction.tolist() == first.prediction.tolist()
            assert other[label].tolist() == first[label].tolist()

    def test_a_folder_of_images(self, digits: Path, root: Path, tmp_path: Path):
        test = load_images("mnist", "test", root)
        (tmp_path / "in" / "more").mkdir(parents=True)
        for place in range(40):
            name = f"{place:02d}.png" if place < 30 else f"more/{place:02d}.png"
            Image.fromarray(test.images[place, 0].numpy()).save(tmp_path / "in" / name)
        result = good("predict", digits, tmp_path / "in", "-o", tmp_path / "p.csv")
        found = pd.read_csv(tmp_path / "p.csv", dtype={"prediction": str})
        assert found.file[0] == "00.png"
        assert found.file[39] == "more/39.png"
        trained = runs.load(digits)
        x = trained.problem.inputs.transform(test.images[:40])
        pred = trained.model.predict(x, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(found[[f"p_{c}" for c in range(10)]], pred.mean, rtol=1e-4,
                                   atol=1e-9)  # fmt: skip
        assert found.prediction.tolist() == [str(c) for c in pred.mean.argmax(-1).tolist()]
        unsure = found.file[found.mutual_information.argmax()]
        assert f"least certain by mutual_information, file: {unsure} (" in result.stdout

    def test_several_images_by_name(self, digits: Path, tmp_path: Path):
        for name in ("b.png", "a.png"):
            Image.new("RGB", (40, 30), "white").save(tmp_path / name)
        result = good("predict", digits, tmp_path / "b.png", tmp_path / "a.png",
                      "-o", tmp_path / "p.csv")  # fmt: skip
        found = pd.read_csv(tmp_path / "p.csv")
        assert found.file.tolist() == [str(tmp_path / "b.png"), str(tmp_path / "a.png")]
        assert "note: 2 of 2 images had another size and were resized" in result.stdout

    def test_own_pictures_from_training_to_prediction(self, tmp_path: Path):
        write_pictures(tmp_path / "colours")
        good("train", "--data", tmp_path / "colours", "--set", "data.size=8", "--backbone", "mlp",
             *SMALL, "--epochs", 8, "--out", tmp_path / "run", "--quiet")  # fmt: skip
        good("predict", tmp_path / "run", tmp_path / "colours", "-o", tmp_path / "p.csv", "--quiet")
        found = pd.read_csv(tmp_path / "p.csv")
        right = found.file.str.split("/").str[0] == found.prediction
        assert right.mean() > 0.9

    def test_values_that_training_has_not_seen_are_counted(self, table, tmp_path: Path):
        frame = patients(5)
        frame["unit"] = ["z", "z", "a", "b", "c"]
        frame.loc[1, "age"] = np.nan
        frame.to_csv(tmp_path / "in.csv", index=False)
        result = good("predict", table[1], tmp_path / "in.csv", "-o", tmp_path / "p.csv")
        assert "note: column 'unit': 2 values that training has not seen" in result.stdout
        assert "column 'age': 1 missing values, of which training had none" in result.stdout

    def test_files_are_not_replaced_without_force(self, table, tmp_path: Path):
        path, out = table
        (tmp_path / "p.csv").write_text("mine")
        message = refused("predict", out, path, "-o", tmp_path / "p.csv")
        assert "exists; --force replaces it" in message
        assert (tmp_path / "p.csv").read_text() == "mine"
        good("predict", out, path, "-o", tmp_path / "p.csv", "--force", "--quiet")
        assert len(pd.read_csv(tmp_path / "p.csv")) == 120

    def test_what_cannot_be_predicted(self, table, digits: Path, tmp_path: Path):
        path, out = table
        target = ("-o", tmp_path / "p.csv")
        patients().drop(columns=["age"]).to_csv(tmp_path / "in.csv", index=False)
        message = failed("predict", out, tmp_path / "in.csv", *target)
        assert message == f"{tmp_path / 'in.csv'}: misses the column 'age'"
        patients().drop(columns=["age", "unit"]).to_csv(tmp_path / "in.csv", index=False)
        message = failed("predict", out, tmp_path / "in.csv", *target)
        assert message == f"{tmp_path / 'in.csv'}: misses the columns 'age', 'unit'"
        assert "the model takes images, this is a table" in failed("predict", digits, path, *target)
        assert "no such file or folder" in failed("predict", out, tmp_path / "none.csv", *target)
        assert "no such folder" in failed("predict", tmp_path / "none", path, *target)
        assert "must end in .csv, .parquet, .npz" in refused("predict", out, path, "-o", "p.txt")
        assert "does not exist" in refused("predict", out, path, "-o", tmp_path / "no" / "p.csv")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["in.csv"]


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_has_examples_and_exit_codes(command):
    text = plain(good(command, "--help").stdout)
    assert f"gflowout {command} " in text
    assert "Exit codes: 0 all is well, 1 a problem with data, files or training, 2 wrong" in text


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from gflowout.cli import train as train_commands
    from gflowout.core import optional

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(train_commands, "find_spec", lambda name: None)
    monkeypatch.setattr(optional.importlib, "import_module", missing)
    message = failed("train", "--data", "mnist", "--out", tmp_path / "run")
    assert message.startswith("this command needs pydantic: pip install -e '.[studies]'")


class TestPage:
    """docs/reference/command-line.md says what is so."""

    PAGE = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text(
        encoding="utf-8"
    )

    def test_the_configuration_file_has_every_key_and_its_default(self, tmp_path: Path):
        block = self.PAGE.split("```yaml\n")[1].split("```")[0]
        (tmp_path / "c.yaml").write_text(block)
        found, expected = read(tmp_path / "c.yaml"), read(None, ["data=mnist"])
        assert found == expected
        for line in nested_lines(expected):
            assert line in block

    def test_every_option_of_the_commands_is_there(self):
        import re

        shown = set(re.findall(r"--[a-z][a-z-]+", self.PAGE))
        known = {"--data-dir"}
        for command in ("train", "evaluate", "predict"):
            known |= set(re.findall(r"--[a-z][a-z-]+", good(command, "--help").stdout))
        assert shown <= known

    def test_the_errors_are_the_real_ones(self, tmp_path: Path):
        result = run("train", "--data", "mnist", "--set", "fit.epoch=3", "--method", "gflowot",
                     "--out", tmp_path / "e")  # fmt: skip
        assert result.stderr in self.PAGE


def nested_lines(config) -> list[str]:
    return [f"  {key}:" for section in nested(config).values() if isinstance(section, dict)
            for key in section]  # fmt: skip
