"""A run folder of ``gflowout train`` as one file that takes inputs as they are stored.

What ``gflowout predict`` does to inputs before the network, and to a regression's answers after it,
is part of the file. Images are bytes; tables are numbers, with codes for names.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.app.preprocess import Column, Images, Problem
from gflowout.app.run import Trained
from gflowout.export.writing import Exported, export

_ROWS = 3  # of the call that a file is traced and checked with


def export_run(trained: Trained, path: str | os.PathLike[str], **options: Any) -> Exported:
    """Write a trained model of a run folder, from :func:`gflowout.app.run.load`, as one file.

    ``options`` are those of :func:`gflowout.export.export`, but ``prepare``, ``scale`` and
    ``metadata``, which follow from the run: the metadata has ``source``, ``target`` (name, classes)
    and, for tables, ``columns`` with the levels whose places are the codes of names.
    """
    problem, target = trained.problem, trained.problem.target
    prepare, example = prepared(problem)
    about: dict[str, Any] = {
        "source": problem.source,
        "target": {"name": target.name, "classes": list(target.classes)},
    }
    if not isinstance(problem.inputs, Images):
        about["columns"] = [dataclasses.asdict(column) for column in problem.inputs.columns]
    scale = (target.mean, target.std) if target.likelihood == "gaussian" else None
    return export(
        trained.model, path, (example,), prepare=prepare, scale=scale, metadata=about, **options
    )


def prepared(problem: Problem) -> tuple[nn.Module, Tensor]:
    """The module before the network, and random inputs as they are stored."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(problem.inputs, Images):
        images = torch.randint(256, (_ROWS, *problem.shape), generator=generator)
        return ScaledImages(problem.inputs.mean, problem.inputs.std), images.to(torch.uint8)
    values = []
    for column in problem.inputs.columns:
        if column.levels:
            levels = torch.randint(len(column.levels), (_ROWS,), generator=generator)
            values.append(levels.double())
        else:
            normal = torch.randn(_ROWS, generator=generator, dtype=torch.float64)
            values.append(column.mean + column.std * normal)
    return EncodedRows(problem.inputs.columns), torch.stack(values, 1)


class ScaledImages(nn.Module):
    """Scales images of bytes: (x / 255 - mean) / std per channel.

    Examples:
        >>> ScaledImages([0.5], [0.5])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        means, deviations = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("factor", (1 / (255 * deviations))[:, None, None])
        self.register_buffer("offset", (-means / deviations)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, channels, height, width] to float32."""
        return images.to(torch.float32) * self.factor + self.offset


class EncodedRows(nn.Module):
    """Encodes rows of a table: numbers are standardised, names one-hot.

    A row has one number per column, in double precision: the value of a column of numbers; for a
    column of names, the index of the name among its levels, -1 if it is not one; NaN if missing.

    Examples:
        >>> age, unit = Column("age", 30.0, 10.0, missing=True), Column("unit", levels=("a", "b"))
        >>> encode = EncodedRows([age, unit])
        >>> encode(torch.tensor([[20.0, 0.0], [torch.nan, 1.0], [40.0, -1.0]]).double())
        tensor([[-1.,  0.,  1.,  0.],
                [ 0.,  1.,  0.,  1.],
                [ 1.,  0.,  0.,  0.]])
    """

    column: Tensor
    mean: Tensor
    std: Tensor
    code: Tensor
    number: Tensor
    absent: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        # Column, mean, standard deviation, code, whether a number, whether "missing", per input.
        inputs: list[tuple[int, float, float, float, bool, bool]] = []
        for place, column in enumerate(columns):
            if column.levels:
                codes = range(len(column.levels))
                inputs += [(place, 0.0, 1.0, code, False, False) for code in codes]
            else:
                inputs.append((place, column.mean, column.std, -1.0, True, False))
            if column.missing:
                inputs.append((place, 0.0, 1.0, -1.0, False, True))
        names = ("column", "mean", "std", "code", "number", "absent")
        for name, values in zip(names, zip(*inputs, strict=True), strict=True):
            kind = None if name in ("column", "number", "absent") else torch.float64
            self.register_buffer(name, torch.tensor(values, dtype=kind))

    def forward(self, rows: Tensor) -> Tensor:
        """Map float64 [batch, columns] to float32 [batch, inputs]."""
        values = rows.index_select(1, self.column)
        gone = values.isnan()
        numbers = torch.where(gone, torch.zeros_like(values), (values - self.mean) / self.std)
        # Not torch.where: onnxruntime has none of booleans.
        flags = (self.absent & gone) | (~self.absent & (values == self.code))
        return torch.where(self.number, numbers, flags.to(values.dtype)).to(torch.float32)
