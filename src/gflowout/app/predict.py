"""Predictions with uncertainty on new files, written as a table with one row per input."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib import format as npy

from gflowout.app.evaluation import Answers, collect
from gflowout.app.files import Inputs, open_inputs
from gflowout.app.preprocess import Problem, Target
from gflowout.core.atomic_io import write_file
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require

FORMATS = (".csv", ".parquet", ".npz")


def predict(
    model: MaskedModel,
    problem: Problem,
    paths: Sequence[Path],
    *,
    samples: int = 20,
    seed: int = 0,
    advance: Callable[[int], None] = lambda done: None,
    started: Callable[[int], None] = lambda total: None,
) -> tuple[pd.DataFrame, list[str]]:
    """Predict one CSV, Parquet or NPZ file, one folder of images, or image files.

    ``started`` is called with the number of all examples, ``advance`` with that of each batch that
    is done. Returns a table, see :func:`table`, and remarks for the user.
    """
    inputs = open_inputs(problem, paths)
    started(len(inputs))
    transform = problem.inputs.transform
    batches = ((x if transform is None else transform(x),) for x in inputs.chunks())
    answers = collect(model, problem.target, batches, samples, seed, advance)
    return table(problem.target, inputs, answers), inputs.notes()


def table(target: Target, inputs: Inputs, answers: Answers) -> pd.DataFrame:
    """One row per input.

    ``row`` or ``file``; for classes ``prediction``, ``p_<class>`` for each, ``confidence``,
    ``entropy``, ``mutual_information`` and ``dempster_shafer``; for numbers ``mean``, ``std``,
    ``aleatoric_std``, ``epistemic_std``, ``q05``, ``q50`` and ``q95``.
    """
    columns: dict[str, Any] = {inputs.label: list(inputs.names)}
    for name, values in answers.items():
        if name != "probabilities":
            columns[name] = values.float().numpy()
            continue
        best = values.argmax(-1).tolist()
        columns["prediction"] = [target.classes[place] for place in best]
        for place, label in enumerate(target.classes):
            columns[f"p_{label}"] = values[:, place].float().numpy()
    return pd.DataFrame(columns)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, Parquet or NPZ, by the ending of the name, whole or not at all."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path}: must end in {', '.join(FORMATS)}")

    def save(stream: Any) -> None:
        if suffix == ".csv":
            stream.write(frame.to_csv(index=False, lineterminator="\n").encode())
        elif suffix == ".parquet":
            require("pyarrow", extra="studies", purpose="writing Parquet")
            stream.write(frame.to_parquet(index=False))
        else:  # an array per column; numpy.savez has no room for a column named "file"
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, column in frame.items():
                    numbers = column.dtype.kind in "biuf"
                    values = np.asarray(column.to_numpy(dtype=None if numbers else str))
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        npy.write_array(member, values, allow_pickle=False)

    write_file(path, save)
