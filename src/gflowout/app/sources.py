"""From the data section of a configuration to training, validation and test examples.

Data sets by name, which are image sets and the clinical task, are read here; the user's own files
in :mod:`gflowout.app.own`. What is learned from data is learned from the training part alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gflowout.app import own
from gflowout.app.config import CLINICAL, ConfigError, DataConfig
from gflowout.app.labels import check_likelihood
from gflowout.app.preprocess import Images, Problem, Table, Target
from gflowout.app.tasks import Part, Task, split_rows
from gflowout.data import clinical, shifts
from gflowout.data.errors import DataError
from gflowout.data.images import IMAGE_SETS, load_images
from gflowout.data.splits import split


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
        task = own.load(data, seed)
    return _noisy(task, data, seed)


def _image_set(data: DataConfig, seed: int) -> Task:
    check_likelihood(data, "categorical")
    whole = load_images(data.source, "train", data.directory, partial=data.partial)
    unseen = load_images(data.source, "test", data.directory)
    first, second, _ = split_rows(len(whole), data, seed, whole.labels, 0.0)
    train, valid = (Part(whole.images[rows], whole.labels[rows]) for rows in (first, second))
    target = Target("categorical", "class", whole.classes)
    problem = Problem(data.source, Images.fit(train.x), target, len(train))
    return Task(problem, train, valid, Part(unseen.images, unseen.labels))


def _clinical(data: DataConfig, seed: int) -> Task:
    check_likelihood(data, "binary")
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


def _sets(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
