"""From the data section of a configuration to training, validation and test examples.

Three kinds of sources: image sets by name, the clinical task, and the user's own files. What is
learned from data (means, scales, levels) is learned from the training part alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gflowout.data import clinical, shifts
from gflowout.data.batches import Batches
from gflowout.data.errors import DataError
from gflowout.data.images import IMAGE_SETS, load_images
from gflowout.data.splits import split
from gflowout.data.transforms import Augment
from gflowout.pipeline import files, inputs
from gflowout.pipeline.config import CLINICAL, ConfigError, DataConfig
from gflowout.pipeline.preprocess import (
    Images,
    Problem,
    Remarks,
    Table,
    Target,
    level,
    sorted_levels,
)

SPLITS = ("train", "valid", "test")
FEW = 20
"""Whole numbers with at most so many different values are taken for classes."""
_NO_MIRROR = ("mnist", "kmnist", "notmnist", "svhn")


@dataclass(frozen=True, eq=False)
class Part:
    """Examples as they are stored: images as bytes, tables encoded.

    Attributes:
        x: uint8 [N, C, H, W], or float32 [N, inputs].
        y: Labels as the likelihood takes them; a number is standardised.
        weights: How often to draw each example in training, or ``None`` for all alike.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, problem: Problem, batch_size: int) -> Batches:
        """Batches to score, in the order of the examples."""
        transform = problem.inputs.transform
        return Batches(self.x, self.y, batch_size=batch_size, transform=transform)

    def fingerprint(self) -> str:
        """SHA-256 of inputs and labels."""
        state = hashlib.sha256()
        for tensor in (self.x, self.y):
            state.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            state.update(tensor.contiguous().numpy().tobytes())
        return f"sha256:{state.hexdigest()}"


@dataclass(frozen=True, eq=False)
class Task:
    """Everything that is known about the data of a run.

    Attributes:
        problem: What a model takes and gives.
        train: Training examples.
        valid: Validation examples.
        test: Test examples; ``None`` if none were kept.
        notes: What a user should know, one sentence each.
    """

    problem: Problem
    train: Part
    valid: Part
    test: Part | None
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.problem.target

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Checksum of each part."""
        return {name: self.part(name).fingerprint() for name in self.splits}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the parts that there are."""
        return SPLITS if self.test is not None else SPLITS[:2]

    def part(self, name: str) -> Part:
        """One of the parts.

        Raises:
            ConfigError: If no test examples were kept.
        """
        found: Part | None = getattr(self, name)
        if found is None:
            raise ConfigError([f"there is no {name} part: data.{name} is 0"])
        return found

    def training(self, config: DataConfig, seed: int) -> Batches:
        """Batches to train on: shuffled, augmented if the configuration says so."""
        augment = None
        if config.augment:
            augment = Augment(flip=config.source not in _NO_MIRROR)
        return Batches(
            self.train.x,
            self.train.y,
            batch_size=config.batch_size,
            shuffle=True,
            seed=seed,
            transform=self.problem.inputs.transform,
            augment=augment,
            weights=self.train.weights,
        )


def load(data: DataConfig, seed: int) -> Task:
    """Read the data of a configuration and split them.

    Args:
        data: Section of the configuration.
        seed: Of the run; the section's own one goes before.

    Raises:
        DataError: If files are missing or damaged.
        ConfigError: If the section does not fit what was found.
    """
    seed = seed if data.seed is None else data.seed
    if data.source in IMAGE_SETS:
        task = _image_set(data, seed)
    elif data.source in CLINICAL:
        task = _clinical(data, seed)
    else:
        task = _own(data, seed)
    return _noisy(task, data, seed)


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


def encode_labels(target: Target, labels: pd.Series[Any]) -> Tensor:
    """Labels as the likelihood takes them.

    Raises:
        DataError: If one is not a class of the target, or not a number.
    """
    if target.likelihood == "gaussian":
        try:
            numbers = torch.from_numpy(labels.to_numpy(dtype="float64", copy=True))
        except (TypeError, ValueError) as error:
            raise DataError(f"the labels {target.name!r} must be numbers") from error
        if not bool(numbers.isfinite().all()):
            raise DataError(f"the labels {target.name!r} hold infinity")
        return ((numbers - target.mean) / target.std).float()
    places = {each: place for place, each in enumerate(target.classes)}
    names = [level(value) for value in labels.tolist()]
    odd = next((name for name in names if name not in places), None)
    if odd is not None:
        listed = ", ".join(target.classes[:12]) + (", ..." if len(places) > 12 else "")
        raise DataError(f"the label {odd!r} is none of the classes of the model: {listed}")
    codes = torch.tensor([places[name] for name in names])
    return codes.float() if target.likelihood == "binary" else codes


def _column(columns: Any, name: str) -> pd.Series[Any]:
    if name not in columns:
        raise DataError(f"misses the labels {name!r}")
    return pd.Series(columns[name])


def _ignored(name: str) -> str:
    return Remarks(ignored={name}).lines()[0]


def _image_set(data: DataConfig, seed: int) -> Task:
    _only(data, "categorical")
    whole = load_images(data.source, "train", data.directory, partial=data.partial)
    unseen = load_images(data.source, "test", data.directory)
    first, second, _ = _rows(len(whole), data, seed, whole.labels, 0.0)
    train, valid = (Part(whole.images[rows], whole.labels[rows]) for rows in (first, second))
    target = Target("categorical", "class", whole.classes)
    problem = Problem(data.source, Images.fit(train.x), target, len(train))
    return Task(problem, train, valid, Part(unseen.images, unseen.labels))


def _clinical(data: DataConfig, seed: int) -> Task:
    _only(data, "binary")
    options = {name: _sets(value) for name, value in data.options.items()}
    try:
        found = clinical.load(
            data.source, data.directory, valid_fraction=data.valid, seed=seed, **options
        )
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError([f"data.options.{error}"]) from error
    parts = [Part(each.x, each.y, each.weights) for each in (found.train, found.valid, found.test)]
    if data.limit is not None and len(parts[0]) > data.limit:
        (rows,) = split(len(parts[0]), (data.limit,), seed=seed)
        weights = parts[0].weights
        kept = None if weights is None else weights[rows]
        parts[0] = Part(parts[0].x[rows], parts[0].y[rows], kept)
    target = Target("binary", "died", ("no", "yes"))
    problem = Problem(data.source, Table.plain(found.train.features), target, len(parts[0]))
    notes = (f"test hospitals, unseen in training: {found.summary['test hospitals']}",)
    return Task(problem, parts[0], parts[1], parts[2], notes)


def _own(data: DataConfig, seed: int) -> Task:
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
    _only(data, "categorical", "binary")
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
    kind = _likelihood(data.likelihood, name, labels)
    target = Target(kind, name, () if kind == "gaussian" else sorted_levels(labels.tolist()))
    stratify = encode_labels(target, labels).long() if target.classes else None
    parts = _rows(len(labels), data, seed, stratify, data.test)
    if not target.classes:
        numbers = labels.to_numpy(dtype="float64")[parts[0].numpy()]
        std = float(numbers.std())
        target = replace(target, mean=float(numbers.mean()), std=std if std > 0 else 1.0)
    values = encode_labels(target, labels)
    learned = rows.fit(known[parts[0]])
    made = [Part(rows.take(learned, known[part]), values[part]) for part in parts if len(part)]
    problem = Problem(data.source, learned, target, len(made[0]))
    return Task(problem, made[0], made[1], made[2] if len(made) > 2 else None, tuple(notes))


def _likelihood(wanted: str, name: str, labels: pd.Series[Any]) -> str:
    """What the labels are: given, or told from their type and number."""
    distinct = labels.nunique()
    number = pd.api.types.is_numeric_dtype(labels) and not pd.api.types.is_bool_dtype(labels)
    if wanted == "auto":
        whole = number and bool((labels.to_numpy(dtype="float64") % 1 == 0).all())
        if number and not (whole and distinct <= FEW):
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


def _rows(
    count: int, data: DataConfig, seed: int, stratify: Tensor | None, test_share: float
) -> tuple[Tensor, ...]:
    """Rows of training, validation and test: of the wanted sizes, classes in equal shares."""
    test = max(1, round(test_share * count)) if test_share else 0
    rest = count - test if data.limit is None else min(data.limit, count - test)
    valid = max(1, round(data.valid * rest))
    return split(count, (rest - valid, valid, test), seed=seed, stratify=stratify)


def _noisy(task: Task, data: DataConfig, seed: int) -> Task:
    target = task.target
    if data.augment and not isinstance(task.problem.inputs, Images):
        raise ConfigError([f"data.augment is for images, got source {data.source!r}"])
    if not data.label_noise:
        return task
    if target.likelihood == "gaussian":
        raise ConfigError(["data.label_noise is for classes, the labels are numbers"])
    drawn, changed = shifts.label_noise(
        task.train.y.long(), data.label_noise, len(target.classes), seed=seed
    )
    noisy = replace(task.train, y=drawn.to(task.train.y.dtype))
    note = f"{int(changed.sum()):,} training labels drawn anew"
    return replace(task, train=noisy, notes=(*task.notes, note))


def _only(data: DataConfig, *allowed: str) -> None:
    if data.likelihood not in ("auto", *allowed):
        raise ConfigError(
            [f"data.likelihood of {data.source!r} is {' or '.join(allowed)}, got {data.likelihood}"]
        )


def _sets(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _listed(frame: pd.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
