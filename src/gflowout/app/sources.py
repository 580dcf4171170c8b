"""From the data section of a configuration to training, validation and test examples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
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
    check_numbers,
    lists_to_tuples,
)
from gflowout.data import clinical, shifts
from gflowout.data.batches import Batches
from gflowout.data.errors import DataError
from gflowout.data.images import IMAGE_SETS, load_images
from gflowout.data.splits import split
from gflowout.data.transforms import Augment

MOST_CLASSES = 20  # whole numbers with at most so many different values are taken for classes
SPLITS = ("train", "valid", "test")
_NO_MIRROR = ("mnist", "kmnist", "notmnist", "svhn")


@dataclass(frozen=True, eq=False)
class Part:
    """Examples as they are stored: images as bytes, tables encoded."""

    x: Tensor  # uint8 [N, C, H, W], or float32 [N, inputs]
    y: Tensor  # as the likelihood takes labels; a number is standardised
    weights: Tensor | None = None  # how often to draw each example in training; None: all alike

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, problem: Problem, batch_size: int, **options: Any) -> Batches:
        """Batches in the order of the examples, unless options of :class:`Batches` change it."""
        transform = problem.inputs.transform
        return Batches(self.x, self.y, batch_size=batch_size, transform=transform, **options)

    def fingerprint(self) -> str:
        """SHA-256 of inputs and labels."""
        state = hashlib.sha256()
        for tensor in (self.x, self.y):
            state.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            state.update(tensor.contiguous().numpy().tobytes())
        return f"sha256:{state.hexdigest()}"


@dataclass(frozen=True, eq=False)
class Task:
    """The data of a run."""

    problem: Problem
    train: Part
    valid: Part
    test: Part | None
    notes: tuple[str, ...] = ()  # sentences for the user

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
        """One of the parts; a :class:`ConfigError` if no test examples were kept."""
        part: Part | None = getattr(self, name)
        if part is None:
            raise ConfigError([f"there is no {name} part: data.{name} is 0"])
        return part

    def training(self, config: DataConfig, seed: int) -> Batches:
        """Batches to train on: shuffled, augmented if the configuration says so."""
        augment = Augment(flip=config.source not in _NO_MIRROR) if config.augment else None
        options = {"shuffle": True, "seed": seed, "augment": augment, "weights": self.train.weights}
        return self.train.batches(self.problem, config.batch_size, **options)


def load(data: DataConfig, seed: int) -> Task:
    """Read the data of a configuration and split them; a seed of the section overrides ``seed``."""
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
    """Read new examples with labels, prepared as in training, and remarks for the user.

    The path is that of a table with the column of the labels, of an NPZ file with ``x`` and ``y``,
    or of a folder with one sub-folder of images per class.
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
        x, labels, notes = _with_labels(x, labels, target.name)
        if not len(labels):
            raise DataError(f"has no label in {target.name!r}")
        return Part(x, target.encode(labels)), [*inputs.notes(), *notes]


def _split_rows(
    count: int, data: DataConfig, seed: int, stratify: Tensor | None, test_share: float
) -> tuple[Tensor, ...]:
    """Rows of the training, validation and test part; ``stratify`` has the class of each row."""
    test = max(1, round(test_share * count)) if test_share else 0
    rest = count - test if data.limit is None else min(data.limit, count - test)
    valid = max(1, round(data.valid * rest))
    return split(count, (rest - valid, valid, test), seed=seed, stratify=stratify)


def _image_set(data: DataConfig, seed: int) -> Task:
    _check_likelihood(data, "categorical")
    images = load_images(data.source, "train", data.directory, partial=data.partial)
    test = load_images(data.source, "test", data.directory)
    rows = _split_rows(len(images), data, seed, images.labels, 0.0)
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
    return _examples(data, seed, "y", labels, x)


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
    inputs = frame.drop(columns=[target, *data.drop])
    classes = [target] if data.likelihood in ("categorical", "binary") else []
    check_numbers(frame.drop(columns=data.drop), [*data.categorical, *classes])
    return _examples(data, seed, target, frame[target], inputs)


def _folder(path: Path, data: DataConfig, seed: int) -> Task:
    _check_likelihood(data, "categorical", "binary")
    by_class = files.class_folders(path)
    paths = [image for images in by_class.values() for image in images]
    labels = pd.Series([name for name, images in by_class.items() for _ in images])
    shape = (files.channels_of(paths), data.size, data.size)
    images, resized = files.read_images(paths, shape)
    task = _examples(data, seed, "class", labels, images)
    note = f"{resized:,} of {len(paths):,} images resized to {data.size}x{data.size}"
    return replace(task, notes=(*task.notes, note)) if resized else task


def _examples(
    data: DataConfig, seed: int, name: str, labels: pd.Series[Any], inputs: Tensor | pd.DataFrame
) -> Task:
    """Split examples; learn means, scales and classes from the training part alone."""
    inputs, labels, notes = _with_labels(inputs, labels, name)
    if len(labels) < 10:
        raise DataError(f"has {len(labels)} examples with a label; at least 10 are needed")
    likelihood = _likelihood(data.likelihood, name, labels)
    target = Target.fit(likelihood, name, labels)
    stratify = target.encode(labels).long() if target.classes else None
    splits = _split_rows(len(labels), data, seed, stratify, data.test)
    places = [part for part in splits if len(part)]
    if not target.classes:
        target = Target.fit(likelihood, name, labels.iloc[places[0].numpy()])
    y = target.encode(labels)
    learned: Images | Table
    if isinstance(inputs, Tensor):
        x = [inputs[part] for part in places]
        learned = Images.fit(x[0])
    else:
        frames = [inputs.iloc[part.numpy()] for part in places]
        learned = Table.fit(frames[0], data.categorical)
        x = [learned.encode(frame, Remarks()) for frame in frames]
    train, valid, *test = (Part(x, y[part]) for x, part in zip(x, places, strict=True))
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


def _with_labels(
    x: Any, labels: pd.Series[Any], name: str
) -> tuple[Any, pd.Series[Any], list[str]]:
    """Leave out examples without a label, with a note that says how many."""
    present = labels.notna().to_numpy()
    if present.all():
        return x, labels, []
    rows = torch.from_numpy(present.copy()) if isinstance(x, Tensor) else present
    return x[rows], labels[present], [f"{(~present).sum():,} rows without {name!r} left out"]


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
            f"{name!r} has {distinct:,} values in {len(labels):,} rows, too many to be classes"
        )
    return wanted


def _check_likelihood(data: DataConfig, *allowed: str) -> None:
    if data.likelihood not in ("auto", *allowed):
        raise ConfigError(
            [f"data.likelihood of {data.source!r} is {' or '.join(allowed)}, got {data.likelihood}"]
        )
