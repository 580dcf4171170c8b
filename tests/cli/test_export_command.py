"""``gflowout export``: run folders as files that take inputs as they are stored, and its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from pipeline_files import patients, write_digits
from test_readme import blocks
from test_train_commands import failed, good, refused

from gflowout.app import run as runs
from gflowout.app.preprocess import Remarks
from gflowout.data.images import load_images
from gflowout.export import formats, read_metadata
from gflowout.export.runs import prepared

OTHER = "torch-export"
TINY = ("--set", "backbone.hidden=[8]", "--set", "data.batch_size=50", "--epochs", 1, "--quiet")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    root = write_digits(folder / "data")
    good("train", "--data", "mnist", "--data-dir", root, *TINY, "--out", folder / "run",
         "--method", "mc")  # fmt: skip
    return folder / "run"


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression on a table of mixed columns."""
    folder = tmp_path_factory.mktemp("stays")
    patients().to_csv(folder / "patients.csv", index=False)
    good("train", "--data", folder / "patients.csv", "--set", "data.target=days", *TINY,
         "--set", "data.categorical=[ward]", "--method", "none",
         "--out", folder / "run")  # fmt: skip
    return folder / "run"


class TestImages:
    @pytest.fixture(scope="class")
    def path(self, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("images") / "digits.onnx"
        result = good("export", digits, "-o", path, "--samples", 6, "--coverage", 0.8)
        assert result.stderr == ""
        words = result.stdout.split()
        assert words[:4] == ["name", "type", "shape", "input"]
        assert "uint8 [batch, 1, 28, 28]" in " ".join(words)
        assert "samples float32 [6, batch, 10]" in " ".join(words)
        assert "set bool [batch, 10]" in " ".join(words)
        assert "largest difference from PyTorch: " in result.stdout
        assert float(words[-1]) < 1e-5
        return path

    def test_takes_bytes_and_predicts(self, path: Path, digits: Path):
        """The same classes as ``predict``, from images as they are stored."""
        trained = runs.load(digits)
        images = load_images("mnist", split="test", data_dir=trained.config.data.directory).images
        session = onnxruntime.InferenceSession(path)
        means = [
            session.run(["mean"], {"images": images.numpy(), "seed": np.array(seed)})[0]
            for seed in range(200)
        ]
        mean = torch.from_numpy(np.mean(means, 0))
        transform = trained.problem.inputs.transform
        pred = trained.model.predict(transform(images), samples=1200)
        error = (pred.samples.var(0) / 600).sqrt() + 1e-6
        assert ((mean - pred.mean) / error).abs().max() < 6  # of 2000 numbers

    def test_metadata(self, path: Path):
        about = read_metadata(path)
        assert about["source"] == "mnist"
        assert about["target"]["classes"] == [str(digit) for digit in range(10)]
        assert (about["samples"], about["draws"]) == (6, "seed")
        assert [(entry["kind"], entry["coverage"]) for entry in about["decisions"]] == [
            ("Sets", 0.8)
        ]
        session = onnxruntime.InferenceSession(path)
        assert json.loads(session.get_modelmeta().custom_metadata_map["gflowout"]) == about


class TestTables:
    @pytest.mark.parametrize("name", ["stays.onnx", "stays.pt2"])
    def test_takes_rows_and_answers_in_days(self, name: str, stays: Path, tmp_path: Path):
        path = tmp_path / name
        covered = ("--coverage", 0.8, "--quiet")
        result = good("export", stays, "-o", path, "--samples", 2, *covered)
        assert result.output == ""
        frame = patients(40, seed=5)
        frame.loc[0, "unit"] = "never seen"
        columns = read_metadata(path)["columns"]
        assert [column["name"] for column in columns][:3] == ["age", "unit", "ward"]
        rows = np.stack([coded(frame[column["name"]], column) for column in columns], 1)
        frame.drop(columns="days").to_csv(tmp_path / "new.csv", index=False)
        good("predict", stays, tmp_path / "new.csv", "-o", tmp_path / "found.csv", *covered)
        found = pd.read_csv(tmp_path / "found.csv")
        answer = formats.opened(path.read_bytes(), "onnx" if path.suffix == ".onnx" else OTHER)
        for batch in (1, 5, 40):
            inputs = {"rows": torch.from_numpy(rows[:batch]), "seed": torch.tensor(0)}
            mean, variance = (answer(inputs)[key][:, 0] for key in ("mean", "variance"))
            np.testing.assert_allclose(mean, found["mean"][:batch], rtol=1e-5)
            np.testing.assert_allclose(variance.sqrt(), found["std"][:batch], rtol=1e-5)
            for end in ("low", "high"):
                np.testing.assert_allclose(answer(inputs)[end][:, 0], found[end][:batch], rtol=1e-5)

    def test_rows_are_encoded_as_in_training(self, stays: Path):
        """Bit by bit, with gaps, unknown names and gaps that training has not seen."""
        problem = runs.load(stays).problem
        frame = patients(60, seed=8)
        frame.loc[3, "unit"] = "never seen"
        frame.loc[4, "age"] = None
        columns = [vars(column) for column in problem.inputs.columns]
        rows = np.stack([coded(frame[column["name"]], column) for column in columns], 1)
        expected = problem.inputs.encode(frame, Remarks())
        assert torch.equal(prepared(problem)[0](torch.from_numpy(rows)), expected)


def coded(values: pd.Series, column: dict) -> np.ndarray:
    """A column as the page of the documentation says."""
    if column["levels"] is None:
        return values.to_numpy("float64")
    levels = list(column["levels"])
    return np.array(
        [np.nan if pd.isna(v) else levels.index(str(v)) if str(v) in levels else -1 for v in values]
    )


class TestProblems:
    def test_usage(self, digits: Path, tmp_path: Path):
        assert "did you mean 'onnx'?" in refused(
            "export", digits, "-o", tmp_path / "a", "-f", "onx"
        )
        message = refused("export", digits, "-o", tmp_path / "a.onnx", "-f", OTHER)
        assert "must be 'onnx' for a path that ends in '.onnx'" in message
        assert "does not exist" in refused("export", digits, "-o", tmp_path / "no" / "a")
        (tmp_path / "there").write_text("mine")
        assert "--force replaces it" in refused("export", digits, "-o", tmp_path / "there")
        assert (tmp_path / "there").read_text() == "mine"
        wrong = ("export", digits, "-o", tmp_path / "a")
        assert "between 0 and 1, both excluded, got 9" in refused(*wrong, "--coverage", 9)
        assert "needs --coverage" in refused(*wrong, "--calibrate-on", digits)

    def test_no_run(self, tmp_path: Path):
        assert "no such folder" in failed("export", tmp_path / "none", "-o", tmp_path / "a")

    def test_missing_extra(self, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        message = failed("export", digits, "-o", tmp_path / "a")
        assert "needs onnxruntime: pip install -e '.[onnx]'" in message

    def test_file_that_differs(self, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        real = formats.opened

        def wrong(content, format):
            answer = real(content, format)
            return lambda inputs: {name: 2 * value for name, value in answer(inputs).items()}

        monkeypatch.setattr(formats, "opened", wrong)
        options = ("-f", OTHER, "--samples", 2, "-o", tmp_path / "a")
        assert "differs from PyTorch by" in failed("export", digits, *options)
        assert not list(tmp_path.iterdir())
        result = good("export", digits, *options, "--no-check")
        assert "not compared with PyTorch" in result.stdout


def test_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(
        compile(blocks("docs/guides/deployment.md"), "deployment.md", "exec"), {"__name__": "page"}
    )
    assert (tmp_path / "digits.onnx").exists()
