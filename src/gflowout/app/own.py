"""Examples in the user's own files: to train on, or labelled ones to evaluate on.

A table as CSV or Parquet, arrays as NPZ, a folder with one sub-folder of images per class. What is
learned from data (means, scales, levels) is learned from the training part alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gflowout.app import files, inputs
from gflowout.app.config import ConfigError, DataConfig
from gflowout.app.labels import check_likelihood, encode_labels, likelihood_of
from gflowout.app.preprocess import Images, Problem, Remarks, Table, Target, sorted_levels
from gflowout.app.tasks import Part, Task, split_rows
from gflowout.data.errors import DataError


def load(data: DataConfig, seed: int) -> Task:
    """Read a file or folder of the user and split its examples.

    Args:
        data: Section of the configuration; its source is a path.
        seed: Of the split.

    Raises:
        DataError: If files are missing or damaged.
        ConfigError: If the section does not fit what was found.
    """
    path = Path(data.source).expanduser()
    if data.directory is not None and not path.exists():
        path = Path(data.directory).expanduser() / path
    path = files.there(path)
    with files.named(path):
        if path.is_dir():
            return _folder(path, data, seed)
        suffix = path.suffix.lower()
        if suffix == ".npz":
            arrays = files.read_arrays(path)
            if "y" not in arrays or arrays["y"].ndim != 1:
                raise DataError("must hold labels 'y', one per row of 'x'")
            x = files.inputs_of(path, arrays)
            labels = pd.Series(arrays["y"])
            if len(labels) != len(x):
                raise DataError(f"x has {len(x):,} rows, y {len(labels):,}")
            rows = _ImageRows(x) if isinstance(x, Tensor) else _TableRows(x, ())
            return _examples(data, seed, "y", labels, rows)
        if suffix not in files.TABLES:
            raise DataError("must be a CSV, Parquet or NPZ file, or a folder of images")
        return _table(path, data, seed)


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
    target, path = problem.target, files.there(path)
    found = inputs.open_inputs(problem, [path])
    with files.named(path):
        if path.is_dir():
            labels = pd.Series([name.partition("/")[0] for name in found.names])
        elif path.suffix.lower() == ".npz":
            labels = _column(files.read_arrays(path), "y")
        else:
            labels = _column(files.read_table(path), target.name)
        if len(labels) != len(found):
            raise DataError(f"has {len(found):,} inputs and {len(labels):,} labels")
        x = torch.cat(list(found.chunks()))
        notes = [note for note in found.notes() if note != _ignored(target.name)]
        known = torch.from_numpy(labels.notna().to_numpy().copy())
        if not bool(known.any()):
            raise DataError(f"has no label in {target.name!r}")
        if not bool(known.all()):
            notes.append(f"{int((~known).sum()):,} rows without {target.name!r} left out")
        return Part(x[known], encode_labels(target, labels[labels.notna()])), notes


def _column(columns: Any, name: str) -> pd.Series[Any]:
    if name not in columns:
        raise DataError(f"misses the labels {name!r}")
    return pd.Series(columns[name])


def _ignored(name: str) -> str:
    return Remarks(ignored={name}).lines()[0]


def _table(path: Path, data: DataConfig, seed: int) -> Task:
    frame = files.read_table(path)
    target = str(data.target)
    problems = []
    for key, names in (
        ("target", [target]), ("drop", data.drop), ("categorical", data.categorical)
    ):  # fmt: skip
        problems += [
            f"data.{key}: {path} has no column {name!r}; columns: {_listed(frame)}"
            for name in names
            if name not in frame.columns
        ]
    if target in (*data.drop, *data.categorical):
        problems.append(f"data.target {target!r} is in data.drop or data.categorical, too")
    if problems:
        raise ConfigError(problems)
    labels = frame[target]
    inputs = frame.drop(columns=[target, *data.drop])
    return _examples(data, seed, target, labels, _TableRows(inputs, tuple(data.categorical)))


def _folder(path: Path, data: DataConfig, seed: int) -> Task:
    check_likelihood(data, "categorical", "binary")
    found = files.class_folders(path)
    paths = [each for each_class in found.values() for each in each_class]
    labels = pd.Series([name for name, inside in found.items() for _ in inside])
    shape = (files.channels_of(paths), data.size, data.size)
    images, resized = files.read_images(paths, shape)
    task = _examples(data, seed, "class", labels, _ImageRows(images))
    note = f"{resized:,} of {len(paths):,} images resized to {data.size}x{data.size}"
    return replace(task, notes=(*task.notes, note)) if resized else task


@dataclass(frozen=True, eq=False)
class _ImageRows:
    images: Tensor

    def fit(self, rows: Tensor) -> Images:
        return Images.fit(self.images[rows])

    def take(self, inputs: Any, rows: Tensor) -> Tensor:
        return self.images[rows]


@dataclass(frozen=True, eq=False)
class _TableRows:
    frame: pd.DataFrame
    categorical: tuple[str, ...]

    def fit(self, rows: Tensor) -> Table:
        return Table.fit(self.frame.iloc[rows.numpy()], self.categorical)

    def take(self, inputs: Any, rows: Tensor) -> Tensor:
        encoded: Tensor = inputs.encode(self.frame.iloc[rows.numpy()], Remarks())
        return encoded


def _examples(
    data: DataConfig, seed: int, name: str, labels: pd.Series[Any], rows: _ImageRows | _TableRows
) -> Task:
    """Split examples whose labels are a column, and learn from the training part."""
    notes = []
    known = torch.from_numpy(labels.notna().to_numpy().copy()).nonzero().flatten()
    if len(known) < len(labels):
        notes.append(f"{len(labels) - len(known):,} rows without {name!r} left out")
        labels = labels.iloc[known.numpy()]
    if len(labels) < 10:
        raise DataError(f"has {len(labels)} examples with a label; 10 are the least")
    kind = likelihood_of(data.likelihood, name, labels)
    target = Target(kind, name, () if kind == "gaussian" else sorted_levels(labels.tolist()))
    stratify = encode_labels(target, labels).long() if target.classes else None
    parts = split_rows(len(labels), data, seed, stratify, data.test)
    if not target.classes:
        numbers = labels.to_numpy(dtype="float64")[parts[0].numpy()]
        std = float(numbers.std())
        target = replace(target, mean=float(numbers.mean()), std=std if std > 0 else 1.0)
    values = encode_labels(target, labels)
    learned = rows.fit(known[parts[0]])
    made = [Part(rows.take(learned, known[part]), values[part]) for part in parts if len(part)]
    problem = Problem(data.source, learned, target, len(made[0]))
    return Task(problem, made[0], made[1], made[2] if len(made) > 2 else None, tuple(notes))


def _listed(frame: pd.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
