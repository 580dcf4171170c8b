"""New files as inputs of a trained model: read in chunks, prepared exactly as in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gflowout.app import files
from gflowout.app.preprocess import Images, Problem, Remarks
from gflowout.data.errors import DataError

CHUNK = 1000
"""Examples that are read and predicted at once."""


@dataclass(frozen=True)
class Inputs:
    """Examples that can be read piece by piece.

    Attributes:
        label: What tells examples apart: ``"row"`` or ``"file"``.
        names: That of each example.
        take: Reads the examples of a slice, as they are stored.
        remarks: What is odd, known when all have been read.
    """

    label: str
    names: Sequence[Any]
    take: Callable[[slice], Tensor]
    remarks: Remarks
    resized: list[int]

    def __len__(self) -> int:
        return len(self.names)

    def chunks(self, size: int = CHUNK) -> Iterator[Tensor]:
        """All examples, some at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def notes(self) -> list[str]:
        """What a user should know, once all have been read."""
        count = sum(self.resized)
        more = [f"{count:,} of {len(self):,} images had another size and were resized"]
        return self.remarks.lines() + (more if count else [])


def open_inputs(problem: Problem, paths: Sequence[Path]) -> Inputs:
    """Find out what some paths hold for a model.

    Args:
        problem: What the model takes.
        paths: One CSV, Parquet or NPZ file; one folder of images; or image files.

    Raises:
        DataError: If they are not there, or are not what the model takes.
    """
    first = files.there(paths[0])
    if first.is_dir() or first.suffix.lower() in files.PICTURES:
        return _images(problem, [files.there(path) for path in paths])
    if len(paths) > 1:
        raise DataError(f"{paths[1]}: only images can be given as several files")
    suffix = first.suffix.lower()
    if suffix in files.TABLES:
        if isinstance(problem.inputs, Images):
            raise DataError(f"{first}: the model takes images, this is a table")
        return _table(problem, first, files.read_table(first))
    if suffix != ".npz":
        raise DataError(f"{first}: must be CSV, Parquet, NPZ, a folder of images or an image")
    found = files.inputs_of(first, files.read_arrays(first))
    if isinstance(found, pd.DataFrame):
        if isinstance(problem.inputs, Images):
            raise DataError(f"{first}: the model takes images as bytes, x is a table")
        return _table(problem, first, found)
    if not isinstance(problem.inputs, Images) or found.shape[1:] != torch.Size(problem.shape):
        kind = "images" if isinstance(problem.inputs, Images) else "rows"
        raise DataError(
            f"{first}: the model takes {kind} {list(problem.shape)}, x has images "
            f"{list(found.shape[1:])}"
        )
    return Inputs("row", range(len(found)), lambda part: found[part], Remarks(), [])


def read_all(problem: Problem, path: Path) -> Tensor:
    """All examples of a path, as they are stored."""
    return torch.cat(list(open_inputs(problem, [path]).chunks()))


def _table(problem: Problem, path: Path, frame: pd.DataFrame) -> Inputs:
    table, remarks = problem.inputs, Remarks()
    assert not isinstance(table, Images)

    def take(part: slice) -> Tensor:
        with files.named(path):
            return table.encode(frame.iloc[part], remarks)

    take(slice(0, 1))  # a column that is missing shows at once
    remarks.unknown.clear()
    remarks.missing.clear()
    return Inputs("row", range(len(frame)), take, remarks, [])


def _images(problem: Problem, paths: Sequence[Path]) -> Inputs:
    if not isinstance(problem.inputs, Images):
        raise DataError(f"{paths[0]}: the model takes a table, not images")
    shape = problem.inputs.shape
    found: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            found += [(each.relative_to(path).as_posix(), each) for each in files.find_images(path)]
        else:
            found.append((str(path), path))
    resized: list[int] = []

    def take(part: slice) -> Tensor:
        images, count = files.read_images([path for _, path in found[part]], shape)
        resized.append(count)
        return images

    return Inputs("file", [name for name, _ in found], take, Remarks(), resized)
