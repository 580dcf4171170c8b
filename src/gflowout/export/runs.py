"""A run folder of ``gflowout train`` as one file that takes inputs as they are stored.

What ``gflowout predict`` does to inputs before the network, and to a regression's answers after it,
is part of the file; see :mod:`gflowout.export.prepare`.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.app.preprocess import Images, Problem
from gflowout.app.run import Trained
from gflowout.export.prepare import EncodedRows, ScaledImages
from gflowout.export.writing import Exported, export

_ROWS = 3
"""Of the call that a file is traced and checked with."""


def export_run(trained: Trained, path: str | os.PathLike[str], **options: Any) -> Exported:
    """Write a trained model of a run folder as one file.

    Args:
        trained: From :func:`gflowout.app.run.load`.
        path: Where to.
        **options: Those of :func:`gflowout.export.export`, but ``prepare``, ``scale`` and
            ``metadata``, which follow from the run.

    Returns:
        What was written. The metadata has ``source``, ``target`` (name, classes) and, for tables,
        ``columns`` with the levels whose places are the codes of names.
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
    """What goes before the network, and inputs as they are stored, made up."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(problem.inputs, Images):
        images = torch.randint(256, (_ROWS, *problem.shape), generator=generator)
        return ScaledImages(problem.inputs.mean, problem.inputs.std), images.to(torch.uint8)
    columns, made = [], []
    for column in problem.inputs.columns:
        levels = 0 if column.levels is None else len(column.levels)
        columns.append((column.mean, column.std, levels, column.missing))
        if levels:
            made.append(torch.randint(levels, (_ROWS,), generator=generator).double())
        else:
            normal = torch.randn(_ROWS, generator=generator, dtype=torch.float64)
            made.append(column.mean + column.std * normal)
    return EncodedRows(columns), torch.stack(made, 1)
