"""Data of a run: named sets and own files, what is learned from them, and that nothing leaks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from data_files import write_cifar10
from PIL import Image
from pipeline_files import patients, write_digits, write_pictures

from gflowout.app import files, sources
from gflowout.app.config import ConfigError, read
from gflowout.app.evaluation import fitted
from gflowout.app.preprocess import (
    Column,
    Images,
    Problem,
    Remarks,
    Table,
    Target,
    level,
    sorted_levels,
)
from gflowout.data.errors import DataError
from gflowout.data.images import load_images


def load(*overrides: str, seed: int = 0) -> sources.Task:
    return sources.load(read(None, overrides).data, seed)


def through_json(problem: Problem) -> Problem:
    return Problem.from_dict(json.loads(json.dumps(problem.to_dict())))


def test_levels_are_named_and_sorted():
    assert [level(value) for value in ("a", 3, 3.0, 2.5, True)] == ["a", "3", "3", "2.5", "True"]
    assert sorted_levels([10, 9, 9]) == ("9", "10")
    assert sorted_levels(["b", "a"]) == ("a", "b")


class TestTable:
    def test_encoding_equals_pandas_own(self):
        frame = patients().drop(columns="died")
        table, remarks = Table.fit(frame), Remarks()
        found = pd.DataFrame(table.encode(frame, remarks).numpy(), columns=table.names)
        for name in ("age", "ward", "days"):
            expected = (frame[name] - frame[name].mean()) / frame[name].std(ddof=0)
            np.testing.assert_allclose(found[name], expected, atol=1e-6)
        lactate = (frame.lactate - frame.lactate.mean()) / frame.lactate.std(ddof=0)
        np.testing.assert_allclose(found.lactate, lactate.fillna(0), atol=1e-6)
        np.testing.assert_array_equal(found["lactate missing"], frame.lactate.isna())
        dummies = pd.get_dummies(frame.unit, prefix="unit", prefix_sep="=", dummy_na=True)
        columns = ["unit=a", "unit=b", "unit=c", "unit missing"]
        np.testing.assert_array_equal(found[columns], dummies)
        assert remarks == Remarks()

    def test_new_rows_are_scaled_as_the_training_rows(self):
        table = Table.fit(pd.DataFrame({"a": [0.0, 10.0], "k": ["x", "y"]}))
        other = pd.DataFrame({"more": [1, 2, 3], "k": ["z", "x", None], "a": [20, None, 5]})
        remarks = Remarks()
        assert table.encode(other, remarks).tolist() == [[3, 0, 0], [0, 1, 0], [0, 0, 0]]
        assert remarks == Remarks({"more"}, {"k": 1}, {"a": 1, "k": 1})
        assert remarks.lines(2) == [
            "columns that the model does not take: more",
            "column 'k': 1 values that training has not seen",
            "column 'a': 1 missing values, of which training had none",
            "column 'k': 1 missing values, of which training had none",
        ]

    def test_the_type_of_a_level_does_not_matter(self):
        table = Table.fit(pd.DataFrame({"k": [1, 2, 2]}), categorical=["k"])
        for values in ([1, 2], [1.0, 2.0], ["1", "2"]):
            encoded = table.encode(pd.DataFrame({"k": values}), Remarks())
            assert encoded.tolist() == [[1, 0], [0, 1]]

    def test_a_constant_column_and_truth_values(self):
        table = Table.fit(pd.DataFrame({"c": [5, 5], "b": [True, False]}))
        assert table.encode(pd.DataFrame({"b": [True], "c": [5]}), Remarks()).tolist() == [[0, 1]]

    @pytest.mark.parametrize(
        ("frame", "message"),
        [
            ({}, "no column besides the target"),
            ({"a": [None, None]}, "column 'a' has no value in the training rows"),
            ({"a": [f"name {i}" for i in range(101)]}, "has 101 distinct values .*data.drop"),
            ({"a": pd.to_datetime(["2020-01-01"])}, "neither a number nor a name"),
            ({"a": [[1], [2]]}, "neither a number nor a name"),
            ({"a": [1.0, np.inf]}, "column 'a' holds infinity in row 2"),
        ],
    )
    def test_columns_that_cannot_be_used(self, frame, message):
        with pytest.raises(DataError, match=message):
            Table.fit(pd.DataFrame(frame))

    def test_new_rows_that_do_not_fit(self):
        table = Table.fit(pd.DataFrame({"age": [1.0, 2.0], "b": [3.0, 4.0]}))
        with pytest.raises(DataError, match=r"misses the column 'age'; did you mean 'agee'\?"):
            table.encode(pd.DataFrame({"agee": [1], "b": [2]}), Remarks())
        with pytest.raises(DataError, match="'age' must hold numbers as in training, got 'old' in"):
            table.encode(pd.DataFrame({"age": ["1", "old"], "b": [1, 2]}), Remarks())
        assert table.encode(pd.DataFrame({"age": ["1", "2"], "b": [3, 4]}), Remarks())[0, 0] == -1


class TestProblem:
    def test_survives_json(self):
        table = Table((Column("a", 0.1, 3.0), Column("k", levels=("x", "y"), missing=True)))
        for problem in (
            Problem("a.csv", table, Target("gaussian", "z", (), 0.1, 1 / 3), 10),
            Problem(
                "mnist", Images((1, 2, 3), (0.1,), (0.3,)), Target("binary", "z", ("n", "y")), 5
            ),
        ):
            assert through_json(problem) == problem
        with pytest.raises(ValueError, match="format 9 is not known"):
            Problem.from_dict({**problem.to_dict(), "format": 9})


class TestImageSets:
    def test_parts_are_disjoint_and_validation_comes_from_training(self, tmp_path: Path):
        root = write_digits(tmp_path)
        task = load("data=mnist", f"data.directory={root}", "data.valid=0.25")
        whole = load_images("mnist", "train", root)
        rows = {bytes(image.numpy().tobytes()) for image in whole.images}
        train = {bytes(image.numpy().tobytes()) for image in task.train.x}
        valid = {bytes(image.numpy().tobytes()) for image in task.valid.x}
        assert (len(train), len(valid)) == (150, 50)
        assert train | valid == rows
        assert task.valid.y.bincount().tolist() == [5] * 10
        assert task.test is not None
        assert torch.equal(task.test.x, load_images("mnist", "test", root).images)
        assert through_json(task.problem) == task.problem

    def test_normalised_by_the_training_part_alone(self, tmp_path: Path):
        task = load("data=mnist", f"data.directory={write_digits(tmp_path)}", "data.valid=0.5")
        pixels = torch.cat([x for x, _ in task.training(read(None, ["data=mnist"]).data, 0)])
        assert abs(float(pixels.mean())) < 1e-4
        assert abs(float(pixels.std()) - 1) < 1e-3
        other = task.problem.inputs.transform(task.valid.x)
        assert abs(float(other.mean())) > 1e-4

    def test_limit_noise_and_seed(self, tmp_path: Path):
        root = f"data.directory={write_digits(tmp_path)}"
        plain = load("data=mnist", root, "data.limit=100")
        noisy = load("data=mnist", root, "data.limit=100", "data.label_noise=0.5")
        assert (len(plain.train), len(plain.valid), len(plain.test)) == (90, 10, 200)
        assert torch.equal(plain.train.x, noisy.train.x)
        assert torch.equal(plain.valid.y, noisy.valid.y)
        changed = int((plain.train.y != noisy.train.y).sum())
        assert 30 <= changed <= 45  # 45 drawn, one in ten gets its own label
        assert noisy.notes == ("45 training labels drawn anew",)
        again = load("data=mnist", root, "data.limit=100", "data.seed=0", seed=5)
        assert again.fingerprints == plain.fingerprints
        other = load("data=mnist", root, "data.limit=100", seed=5)
        assert other.fingerprints["train"] != plain.fingerprints["train"]
        assert other.fingerprints["test"] == plain.fingerprints["test"]

    def test_only_training_images_are_augmented_and_digits_not_mirrored(self, tmp_path: Path):
        write_cifar10(tmp_path / "cifar-10-batches-py", 20)
        root = f"data.directory={tmp_path}"
        config = read(None, ["data=cifar10", root, "data.augment=true"]).data
        task = sources.load(config, 0)
        batches = task.training(config, 0)
        assert batches.augment is not None
        assert batches.augment.flip
        assert task.valid.batches(task.problem, 10).augment is None
        digits = read(None, ["data=mnist", "data.augment=true"]).data
        found = task.training(digits, 0).augment
        assert found is not None
        assert not found.flip

    def test_a_part_of_the_files(self, tmp_path: Path):
        write_cifar10(tmp_path / "cifar-10-batches-py", 20, (1, 4))
        root = f"data.directory={tmp_path}"
        with pytest.raises(DataError, match="misses data_batch_2"):
            load("data=cifar10", root)
        task = load("data=cifar10", root, "data.partial=true")
        assert len(task.train) + len(task.valid) == 40

    def test_what_does_not_fit(self, tmp_path: Path):
        root = f"data.directory={write_digits(tmp_path)}"
        with pytest.raises(ConfigError, match=r"data\.likelihood of 'mnist' is categorical"):
            load("data=mnist", root, "data.likelihood=gaussian")
        with pytest.raises(DataError, match="no cifar10 here"):
            load("data=cifar10", root)


class TestOwnTables:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        patients().to_csv(tmp_path / "patients.csv", index=False)
        return tmp_path / "patients.csv"

    def test_two_classes(self, table: Path):
        task = load(f"data={table}", "data.target=died", "data.drop=[days]")
        assert task.target == Target("binary", "died", ("no", "yes"))
        assert (len(task.train), len(task.valid), len(task.test)) == (86, 10, 24)
        assert isinstance(task.problem.inputs, Table)
        assert [each.name for each in task.problem.inputs.columns] == [
            "age", "unit", "ward", "smoker", "lactate"
        ]  # fmt: skip
        labels = torch.cat([part.y for part in (task.train, task.valid, task.test)])
        assert labels.sum() == (patients().died == "yes").sum()

    def test_scales_come_from_the_training_rows(self, table: Path):
        task = load(f"data={table}", "data.target=died", "data.test=0.5")
        assert abs(float(task.train.x[:, 0].mean())) < 1e-6
        assert abs(float(task.train.x[:, 0].std(correction=0)) - 1) < 1e-6
        assert abs(float(task.test.x[:, 0].mean())) > 1e-3

    def test_numbers_are_standardised_by_the_training_rows(self, table: Path):
        task = load(f"data={table}", "data.target=days", "data.drop=[died]", "data.test=0")
        assert task.target.likelihood == "gaussian"
        assert task.test is None
        assert abs(float(task.train.y.mean())) < 1e-6
        back = torch.cat([task.train.y, task.valid.y]) * task.target.std + task.target.mean
        np.testing.assert_allclose(sorted(back.tolist()), sorted(patients().days), atol=1e-5)
        with pytest.raises(ConfigError, match=r"no test part: data\.test is 0"):
            task.part("test")

    @pytest.mark.parametrize(
        ("values", "likelihood", "classes"),
        [
            (["b", "a"] * 10, "binary", ("a", "b")),
            ([True, False] * 10, "binary", ("False", "True")),
            ([10, 9, 2, 1] * 5, "categorical", ("1", "2", "9", "10")),
            ([1.0, 2.0, 3.0, None] * 5, "categorical", ("1", "2", "3")),
            ([0.5, 1.5] * 10, "gaussian", ()),
            (list(range(21)), "gaussian", ()),
        ],
    )
    def test_what_labels_are_is_told_from_them(self, tmp_path: Path, values, likelihood, classes):
        frame = pd.DataFrame({"x": range(len(values)), "y": values})
        frame.to_parquet(tmp_path / "a.parquet")
        task = load(f"data={tmp_path / 'a.parquet'}", "data.target=y")
        assert (task.target.likelihood, task.target.classes) == (likelihood, classes)
        missing = sum(value is None for value in values)
        assert len(task.notes) == bool(missing)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["data.target=dead"], "data.target: .* has no column 'dead'; columns: age, unit"),
            (["data.target=died", "data.drop=[x]"], "data.drop: .* has no column 'x'"),
            (["data.target=died", "data.drop=[died]"], "is in data.drop or data.categorical, too"),
            (["data.target=died", "data.likelihood=gaussian"], "'died' does not hold numbers"),
            (["data.target=unit", "data.likelihood=binary"], "takes two classes, 'unit' has 3"),
            (["data.target=died", "data.augment=true"], "data.augment is for images"),
            (["data.target=days", "data.label_noise=0.1"], "data.label_noise is for classes"),
        ],
    )
    def test_sections_that_do_not_fit_the_table(self, table: Path, overrides, message):
        with pytest.raises(ConfigError, match=message):
            load(f"data={table}", *overrides)

    def test_a_relative_path_is_looked_for_in_the_directory(self, table: Path):
        task = load("data=patients.csv", f"data.directory={table.parent}", "data.target=died")
        assert len(task.train) == 86

    @pytest.mark.parametrize("row", range(20))  # of all parts
    def test_a_typo_does_not_turn_numbers_into_categories(self, tmp_path: Path, row: int):
        path = tmp_path / "a.csv"
        frame = pd.DataFrame({"age": [str(20 + i % 60) for i in range(200)], "y": ["a", "b"] * 100})
        frame.loc[row, "age"] = "oops"
        frame.to_csv(path, index=False)
        message = f"'age': 199 of 200 values are numbers, but not 'oops' in row {row + 1} .the head"
        with pytest.raises(DataError, match=message):
            load(f"data={path}", "data.target=y")
        with pytest.raises(DataError, match=message):
            load(f"data={path}", "data.target=age")
        load(f"data={path}", "data.target=y", "data.categorical=[age]")
        load(f"data={path}", "data.target=age", "data.likelihood=categorical")

    def test_codes_and_words_are_categories(self, tmp_path: Path):
        path = tmp_path / "a.csv"
        codes = [str(i % 10) for i in range(100)]
        text = [str(i) if i % 8 else "none" for i in range(100)]
        frame = pd.DataFrame({"code": codes, "text": text, "y": ["a", "b"] * 50})
        frame.loc[5, "code"] = "unknown"
        frame.to_csv(path, index=False)
        task = load(f"data={path}", "data.target=y")
        assert isinstance(task.problem.inputs, Table)
        assert all(column.levels for column in task.problem.inputs.columns)

    @pytest.mark.parametrize("row", range(20))
    def test_infinity_is_found_by_its_row_in_the_file(self, tmp_path: Path, row: int):
        frame = pd.DataFrame({"a": np.arange(40.0), "y": ["a", "b"] * 20})
        frame.loc[row, "a"] = np.inf
        frame.to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(DataError, match=f"infinity in row {row + 1} .the header is not counte"):
            load(f"data={tmp_path / 'a.csv'}", "data.target=y")

    def test_damaged_files(self, tmp_path: Path):
        path = tmp_path / "a.csv"
        for content, message in (
            (b"", "cannot be read as CSV"),
            (b"a,b\n", "has no rows"),
            (b"a,y\n1,2\n", "1 examples with a label; at least 10 are needed"),
            (b"a,y\n" + b"".join(b"%d,n%d\n" % (i, i) for i in range(30)), "too many to be class"),
        ):
            path.write_bytes(content)
            with pytest.raises(DataError, match=message) as caught:
                load(f"data={path}", "data.target=y")
            assert str(caught.value).startswith(str(path))
        (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            load(f"data={tmp_path / 'a.parquet'}", "data.target=y")
        with pytest.raises(DataError, match="no such file or folder"):
            load(f"data={tmp_path / 'none.csv'}", "data.target=y")
        (tmp_path / "a.txt").write_text("a")
        with pytest.raises(DataError, match="must be a CSV, Parquet or NPZ file"):
            load(f"data={tmp_path / 'a.txt'}")


class TestOwnArrays:
    def test_features_and_images(self, tmp_path: Path):
        random, path = np.random.default_rng(0), tmp_path / "a.npz"
        y = np.arange(40) % 4
        np.savez(path, x=random.normal(size=(40, 3)), y=y)
        task = load(f"data={path}")
        assert task.problem.shape == (3,)
        assert task.target.classes == ("0", "1", "2", "3")
        pictures = random.integers(0, 256, (40, 6, 5, 3), dtype="uint8")
        np.savez(path, x=pictures, y=y)
        task = load(f"data={path}")
        assert task.problem.shape == (3, 6, 5)
        stored = {row.numpy().tobytes() for row in task.train.x}
        assert stored <= {np.ascontiguousarray(p.transpose(2, 0, 1)).tobytes() for p in pictures}

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"x": np.zeros((20, 2))}, "must hold labels 'y'"),
            ({"y": np.arange(20)}, "must hold an array 'x', got y"),
            ({"x": np.zeros((20, 2)), "y": np.arange(19)}, "x has 20 rows, y 19"),
            ({"x": np.zeros(20), "y": np.arange(20)}, r"x must be numbers \[N, features\]"),
            ({"x": np.array([{}] * 20), "y": np.arange(20)}, "cannot be read as NPZ"),
        ],
    )
    def test_what_cannot_be_used(self, tmp_path: Path, arrays, message):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DataError, match=message):
            load(f"data={tmp_path / 'a.npz'}")


class TestOwnImages:
    def test_one_folder_per_class(self, tmp_path: Path):
        write_pictures(tmp_path / "pets")
        task = load(f"data={tmp_path / 'pets'}", "data.size=8")
        assert task.problem.shape == (3, 8, 8)
        assert task.target == Target("binary", "class", ("blue", "red"))
        assert task.notes == ("24 of 24 images resized to 8x8",)
        red = task.train.x[:, 0].float().mean((1, 2)) > task.train.x[:, 2].float().mean((1, 2))
        assert torch.equal(red, task.train.y.bool())

    def test_grey_stays_grey_and_16_bits_become_8(self, tmp_path: Path):
        for name in "ab":
            (tmp_path / name).mkdir()
            for place in range(6):
                ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype("uint16")
                Image.fromarray(ramp).save(tmp_path / name / f"{place}.png")
        task = load(f"data={tmp_path}", "data.size=8", "data.test=0")
        assert task.problem.shape == (1, 8, 8)
        expected = (np.linspace(0, 65535, 64).astype("uint16") / 65535 * 255).round()
        assert task.train.x[0].flatten().tolist() == expected.tolist()

    def test_folders_that_are_none(self, tmp_path: Path):
        with pytest.raises(DataError, match="one sub-folder of images per class, two at least"):
            load(f"data={tmp_path}")
        write_pictures(tmp_path / "train")
        with pytest.raises(DataError, match=r"got train; name one of these, such as .*train"):
            load(f"data={tmp_path}")
        (tmp_path / "train" / "red" / "bad.png").write_bytes(b"not a picture")
        with pytest.raises(DataError, match=r"bad\.png: cannot be read as an image"):
            load(f"data={tmp_path / 'train'}")


class TestClinical:
    def test_equals_the_loader_itself(self, real_data):
        from gflowout.data import clinical

        root = real_data("eicu-demo").parent
        task = load("data=eicu-demo", f"data.directory={root}", "data.options.min_count=20")
        found = clinical.load("eicu-demo", root, min_count=20, valid_fraction=0.1, seed=0)
        for part, expected in (
            (task.train, found.train), (task.valid, found.valid), (task.test, found.test)
        ):  # fmt: skip
            assert torch.equal(part.x, expected.x)
            assert torch.equal(part.y, expected.y)
        frame = pd.DataFrame(found.test.x.numpy(), columns=found.test.features)
        assert isinstance(task.problem.inputs, Table)
        assert torch.equal(task.problem.inputs.encode(frame, Remarks()), found.test.x)
        with pytest.raises(ConfigError, match=r"data\.options\.label must be"):
            load("data=eicu-demo", f"data.directory={root}", "data.options.label=x")


class TestInputs:
    def problem(self, shape=(1, 4, 4)) -> Problem:
        return Problem(
            "x", Images(shape, (0.0,) * shape[0], (1.0,) * shape[0]), Target("binary"), 9
        )

    def test_images_flat_nested_and_by_name(self, tmp_path: Path):
        (tmp_path / "in" / "deep").mkdir(parents=True)
        for place, name in enumerate(["b.png", "a.png", "deep/c.png"]):
            Image.fromarray(np.full((4, 4), place, "uint8")).save(tmp_path / "in" / name)
        (tmp_path / "in" / "notes.txt").write_text("no image")
        found = files.open_inputs(self.problem(), [tmp_path / "in"])
        assert found.names == ["a.png", "b.png", "deep/c.png"]
        assert torch.cat(list(found.chunks(2))).flatten(1)[:, 0].tolist() == [1, 0, 2]
        named = [tmp_path / "in" / "b.png", tmp_path / "in" / "a.png"]
        found = files.open_inputs(self.problem(), named)
        assert torch.cat(list(found.chunks())).flatten(1)[:, 0].tolist() == [0, 1]

    def test_other_sizes_and_colours_are_made_to_fit(self, tmp_path: Path):
        Image.new("RGBA", (9, 7), (10, 20, 30, 255)).save(tmp_path / "a.png")
        found = files.open_inputs(self.problem((3, 4, 5)), [tmp_path])
        (chunk,) = found.chunks()
        assert chunk.shape == (1, 3, 4, 5)
        assert chunk[0, :, 0, 0].tolist() == [10, 20, 30]
        assert found.notes() == ["1 of 1 images had another size and were resized"]

    def test_what_the_model_does_not_take(self, tmp_path: Path):
        Image.new("L", (4, 4)).save(tmp_path / "a.png")
        pd.DataFrame({"a": [1]}).to_csv(tmp_path / "a.csv", index=False)
        np.savez(tmp_path / "b.npz", x=np.zeros((2, 5, 5), "uint8"))
        table = Problem("t", Table.plain(["a"]), Target("binary"), 9)
        cases = [
            (self.problem(), ["a.csv"], "takes images, this is a table"),
            (table, ["a.png"], "takes a table, not images"),
            (table, ["a.csv", "a.csv"], "only images can be given as several files"),
            (self.problem(), ["b.npz"], r"takes images \[1, 4, 4\], x has images \[1, 5, 5\]"),
            (table, ["b.npz"], r"takes rows \[1\], x has images"),
            (table, ["none.csv"], "no such file"),
        ]
        for problem, names, message in cases:
            with pytest.raises(DataError, match=message):
                files.open_inputs(problem, [tmp_path / name for name in names])

    def test_pictures_of_other_sets_are_made_to_fit(self):
        grey = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        assert torch.equal(fitted(grey, (1, 4, 4)), grey)
        assert torch.equal(fitted(grey, (3, 4, 4)), grey.expand(1, 3, 4, 4))
        assert torch.equal(fitted(grey.expand(1, 3, 4, 4), (1, 4, 4)), grey)
        halved = fitted(grey * 10, (1, 2, 2))
        assert halved.flatten().tolist() == sorted(halved.flatten().tolist())
        assert files.channels_of([]) == 1
