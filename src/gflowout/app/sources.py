"""From the data section of a configuration to training, validation and test examples.

Data are an image set or the clinical task by name, or the user's own files: a table as CSV or
Parquet, arrays as NPZ, a folder with one sub-folder of images per class. Means, scales and classes
are learned from the training part alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gflowout.app import files
from gflowout.app.config import CLINICAL, ConfigError, DataConfig
from gflowout.app.preprocess import (
    Images,
    Problem,
    Remarks,
    Table,
    Target,
    level,
    lists_to_tuples,
    sorted_levels,
)
from gflowout.app.tasks import Part, Task, split_rows
from gflowout.data import clinical, shifts
from gflowout.data.errors import DataError
from gflowout.data.images import IMAGE_SETS, load_images
from gflowout.data.splits import split

MOST_CLASSES = 20
"""Whole numbers with at most so many different values are taken for classes."""


def load(data: DataConfig, seed: int) -> Task:
    """Read the data of a configuration and split them.

    Args:
        data: Section of the configuration.
        seed: Of the run; the section's own one overrides it.

    Raises:
        DataError: If files are missing or damaged.
        ConfigError: If the section does not fit the data.
    """
    seed = seed if data.seed is None else data.seed
    if data.source in IMAGE_SETS:
        task = _image_set(data, seed)
    elif data.source in CLINICAL:
        task = _clinical(data, seed)
    else:
        task = _own_files(data, seed)
    if data.augment and not isinstance(task.problem.inputs, Images):
        raise ConfigError([f"data.augment is for images, got source {data.source!r}"])
    return _with_label_noise(task, data.label_noise, seed) if data.label_noise else task


def labelled(problem: Problem, path: Path) -> tuple[Part, list[str]]:
    """Read new examples with labels, prepared as in training.

    Args:
        problem: What the model takes and gives.
        path: A CSV or Parquet file with the column of the labels, an NPZ file with ``x`` and
            ``y``, or a folder with one sub-folder of images per class.

    Returns:
        The examples, and remarks for the user.

    Raises:
        DataError: If they do not fit the model, or a label is none of its classes.
    """
    target, path = problem.target, files.existing(path)
    inputs = files.open_inputs(problem, [path])
    with files.error_context(path):
        if path.is_dir():
            labels = pd.Series([name.partition("/")[0] for name in inputs.names])
        elif path.suffix.lower() == ".npz":
            labels = _column(files.read_arrays(path), "y")
        else:
            labels = _column(files.read_table(path), target.name)
        if len(labels) != len(inputs):
            raise DataError(f"has {len(inputs):,} inputs and {len(labels):,} labels")
        x = torch.cat(list(inputs.chunks()))
        # The column of the labels is expected here, though the model does not take it.
        inputs.remarks.ignored.discard(target.name)
        notes = inputs.notes()
        rows = _labelled_rows(labels)
        if not len(rows):
            raise DataError(f"has no label in {target.name!r}")
        if len(rows) < len(labels):
            notes.append(f"{len(labels) - len(rows):,} rows without {target.name!r} left out")
        return Part(x[rows], _encode_labels(target, labels.iloc[rows.numpy()])), notes


def _image_set(data: DataConfig, seed: int) -> Task:
    _check_likelihood(data, "categorical")
    images = load_images(data.source, "train", data.directory, partial=data.partial)
    test = load_images(data.source, "test", data.directory)
    rows = split_rows(len(images), data, seed, images.labels, 0.0)
    train, valid = (Part(images.images[part], images.labels[part]) for part in rows[:2])
    target = Target("categorical", "class", images.classes)
    problem = Problem(data.source, Images.fit(train.x), target, len(train))
    return Task(problem, train, valid, Part(test.images, test.labels))


def _clinical(data: DataConfig, seed: int) -> Task:
    _check_likelihood(data, "binary")
    options = lists_to_tuples(data.options)
    try:
        splits = clinical.load(
            data.source, data.directory, valid_fraction=data.valid, seed=seed, **options
        )
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError([f"data.options.{error}"]) from error
    train, valid, test = (
        Part(part.x, part.y, part.weights) for part in (splits.train, splits.valid, splits.test)
    )
    if data.limit is not None and len(train) > data.limit:
        (rows,) = split(len(train), (data.limit,), seed=seed)
        weights = None if train.weights is None else train.weights[rows]
        train = Part(train.x[rows], train.y[rows], weights)
    target = Target("binary", "died", ("no", "yes"))
    problem = Problem(data.source, Table.plain(splits.train.features), target, len(train))
    note = f"test hospitals, unseen in training: {splits.summary['test hospitals']}"
    return Task(problem, train, valid, test, (note,))


def _own_files(data: DataConfig, seed: int) -> Task:
    path = Path(data.source).expanduser()
    if data.directory is not None and not path.exists():
        path = Path(data.directory).expanduser() / path
    path = files.existing(path)
    with files.error_context(path):
        if path.is_dir():
            return _folder(path, data, seed)
        suffix = path.suffix.lower()
        if suffix == ".npz":
            return _arrays(path, data, seed)
        if suffix not in files.TABLES:
            raise DataError("must be a CSV, Parquet or NPZ file, or a folder of images")
        return _table(path, data, seed)


def _arrays(path: Path, data: DataConfig, seed: int) -> Task:
    arrays = files.read_arrays(path)
    if "y" not in arrays or arrays["y"].ndim != 1:
        raise DataError("must hold labels 'y', one per row of 'x'")
    x = files.inputs_of(path, arrays)
    labels = pd.Series(arrays["y"])
    if len(labels) != len(x):
        raise DataError(f"x has {len(x):,} rows, y {len(labels):,}")
    return _examples(data, seed, "y", labels, _Rows(x))


def _table(path: Path, data: DataConfig, seed: int) -> Task:
    frame = files.read_table(path)
    target = str(data.target)
    columns = [str(name) for name in frame.columns]
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    keys = {"target": [target], "drop": data.drop, "categorical": data.categorical}
    problems = [
        f"data.{key}: {path} has no column {name!r}; columns: {', '.join(columns[:12])}{more}"
        for key, names in keys.items()
        for name in names
        if name not in frame.columns
    ]
    if target in (*data.drop, *data.categorical):
        problems.append(f"data.target {target!r} is in data.drop or data.categorical, too")
    if problems:
        raise ConfigError(problems)
    rows = _Rows(frame.drop(columns=[target, *data.drop]), tuple(data.categorical))
    return _examples(data, seed, target, frame[target], rows)


def _folder(path: Path, data: DataConfig, seed: int) -> Task:
    _check_likelihood(data, "categorical", "binary")
    by_class = files.class_folders(path)
    paths = [image for images in by_class.values() for image in images]
    labels = pd.Series([name for name, images in by_class.items() for _ in images])
    shape = (files.channels_of(paths), data.size, data.size)
    images, resized = files.read_images(paths, shape)
    task = _examples(data, seed, "class", labels, _Rows(images))
    note = f"{resized:,} of {len(paths):,} images resized to {data.size}x{data.size}"
    return replace(task, notes=(*task.notes, note)) if resized else task


@dataclass(frozen=True, eq=False)
class _Rows:
    """Inputs before anything is learned from them: images, or the columns of a table."""

    values: Tensor | pd.DataFrame
    categorical: tuple[str, ...] = ()

    def fit(self, rows: Tensor) -> Images | Table:
        if isinstance(self.values, Tensor):
            return Images.fit(self.values[rows])
        return Table.fit(self.values.iloc[rows.numpy()], self.categorical)

    def take(self, inputs: Images | Table, rows: Tensor) -> Tensor:
        if isinstance(self.values, Tensor):
            return self.values[rows]
        assert isinstance(inputs, Table)
        return inputs.encode(self.values.iloc[rows.numpy()], Remarks())


def _examples(
    data: DataConfig, seed: int, name: str, labels: pd.Series[Any], inputs: _Rows
) -> Task:
    """Split examples whose labels are a column, and learn from the training part."""
    notes = []
    rows = _labelled_rows(labels)
    if len(rows) < len(labels):
        notes.append(f"{len(labels) - len(rows):,} rows without {name!r} left out")
        labels = labels.iloc[rows.numpy()]
    if len(labels) < 10:
        raise DataError(f"has {len(labels)} examples with a label; 10 are the least")
    likelihood = _likelihood(data.likelihood, name, labels)
    classes = () if likelihood == "gaussian" else sorted_levels(labels.tolist())
    target = Target(likelihood, name, classes)
    stratify = _encode_labels(target, labels).long() if classes else None
    places = split_rows(len(labels), data, seed, stratify, data.test)
    if not classes:
        numbers = labels.to_numpy(dtype="float64")[places[0].numpy()]
        std = float(numbers.std())
        target = replace(target, mean=float(numbers.mean()), std=std if std > 0 else 1.0)
    y = _encode_labels(target, labels)
    learned = inputs.fit(rows[places[0]])
    train, valid, *test = (
        Part(inputs.take(learned, rows[part]), y[part]) for part in places if len(part)
    )
    problem = Problem(data.source, learned, target, len(train))
    return Task(problem, train, valid, test[0] if test else None, tuple(notes))


def _with_label_noise(task: Task, share: float, seed: int) -> Task:
    if task.target.likelihood == "gaussian":
        raise ConfigError(["data.label_noise is for classes, the labels are numbers"])
    labels = task.train.y
    noisy, drawn = shifts.label_noise(labels.long(), share, len(task.target.classes), seed=seed)
    note = f"{int(drawn.sum()):,} training labels drawn anew"
    train = replace(task.train, y=noisy.to(labels.dtype))
    return replace(task, train=train, notes=(*task.notes, note))


def _column(columns: Any, name: str) -> pd.Series[Any]:
    if name not in columns:
        raise DataError(f"misses the labels {name!r}")
    return pd.Series(columns[name])


def _labelled_rows(labels: pd.Series[Any]) -> Tensor:
    return torch.from_numpy(labels.notna().to_numpy().copy()).nonzero().flatten()


def _encode_labels(target: Target, labels: pd.Series[Any]) -> Tensor:
    """Labels as the likelihood takes them: classes by number, numbers standardised."""
    if target.likelihood == "gaussian":
        try:
            numbers = torch.from_numpy(labels.to_numpy(dtype="float64", copy=True))
        except (TypeError, ValueError) as error:
            raise DataError(f"the labels {target.name!r} must be numbers") from error
        if not bool(numbers.isfinite().all()):
            raise DataError(f"the labels {target.name!r} hold infinity")
        return ((numbers - target.mean) / target.std).float()
    codes = {name: code for code, name in enumerate(target.classes)}
    names = [level(value) for value in labels.tolist()]
    unknown = next((name for name in names if name not in codes), None)
    if unknown is not None:
        listed = ", ".join(target.classes[:12]) + (", ..." if len(codes) > 12 else "")
        raise DataError(f"the label {unknown!r} is none of the classes of the model: {listed}")
    encoded = torch.tensor([codes[name] for name in names])
    return encoded.float() if target.likelihood == "binary" else encoded


def _likelihood(wanted: str, name: str, labels: pd.Series[Any]) -> str:
    """The likelihood that the section names; ``"auto"`` follows from the labels."""
    distinct = labels.nunique()
    number = pd.api.types.is_numeric_dtype(labels) and not pd.api.types.is_bool_dtype(labels)
    if wanted == "auto":
        whole = number and bool((labels.to_numpy(dtype="float64") % 1 == 0).all())
        if number and not (whole and distinct <= MOST_CLASSES):
            return "gaussian"
        wanted = "binary" if distinct == 2 else "categorical"
    if wanted == "gaussian":
        if not number:
            raise ConfigError([f"data.likelihood is gaussian, but {name!r} does not hold numbers"])
        return wanted
    if distinct < 2 or (wanted == "binary" and distinct != 2):
        takes = "two classes" if wanted == "binary" else "two classes at least"
        raise ConfigError([f"data.likelihood {wanted} takes {takes}, {name!r} has {distinct}"])
    if 2 * distinct > len(labels):
        raise DataError(
            f"{name!r} has {distinct:,} different values in {len(labels):,} rows, too many to be "
            "classes"
        )
    return wanted


def _check_likelihood(data: DataConfig, *allowed: str) -> None:
    if data.likelihood not in ("auto", *allowed):
        raise ConfigError(
            [f"data.likelihood of {data.source!r} is {' or '.join(allowed)}, got {data.likelihood}"]
        )
