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
from gflowout.app.files import CHUNK, Inputs, open_inputs
from gflowout.app.preprocess import Problem, Target
from gflowout.app.sources import Part
from gflowout.core import random
from gflowout.core.atomic_io import write_file
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.core.predictive import Predictive
from gflowout.core.text import inert
from gflowout.data.errors import DataError
from gflowout.decisions.conformal import Intervals, Sets

FORMATS = (".csv", ".parquet", ".npz")


def predict(
    model: MaskedModel,
    problem: Problem,
    paths: Sequence[Path],
    *,
    samples: int = 20,
    seed: int = 0,
    decide: Callable[[Predictive], Answers] = lambda pred: {},
    advance: Callable[[int], None] = lambda done: None,
    started: Callable[[int], None] = lambda total: None,
) -> tuple[pd.DataFrame, list[str]]:
    """Predict one CSV, Parquet or NPZ file, one folder of images, or image files.

    ``decide`` adds sets or intervals, see :func:`covering`. ``started`` is called with the number
    of all examples, ``advance`` with that of each batch that is done. Returns a table, see
    :func:`table`, and remarks for the user.
    """
    inputs = open_inputs(problem, paths)
    started(len(inputs))
    transform = problem.inputs.transform
    batches = ((x if transform is None else transform(x),) for x in inputs.chunks())
    answers = collect(model, problem.target, batches, samples, seed, advance, decide)
    return table(problem.target, inputs, answers), inputs.notes()


def conformal(
    model: MaskedModel,
    problem: Problem,
    part: Part,
    coverage: float,
    *,
    samples: int = 20,
    seed: int = 0,
) -> Sets | Intervals:
    """Sets of classes, or intervals, fitted to labelled examples.

    These must be examples that the model was not trained on.

    Raises:
        DataError: If the examples are too few for the coverage.
    """
    generator = random.generator(seed, "calibration")
    device = next(model.parameters()).device
    predictions = []
    for x, _ in part.batches(problem, CHUNK):
        pred = model.predict(x.to(device), samples=samples, generator=generator)
        predictions.append(pred.to("cpu"))
    numbers = problem.target.likelihood == "gaussian"
    fitted = Intervals(coverage) if numbers else Sets(coverage)
    try:
        return fitted.fit(Predictive.join(predictions), part.y)
    except ValueError as error:
        raise DataError(str(error)) from error


def covering(fitted: Sets | Intervals, target: Target) -> Callable[[Predictive], Answers]:
    """What adds the sets or intervals of :func:`conformal` to predictions.

    Answers are ``set``, [batch, classes], or ``low`` and ``high``, [batch], in the data's units.
    """

    def decide(pred: Predictive) -> Answers:
        if isinstance(fitted, Sets):
            return {"set": fitted(pred)}
        low, high = (end.flatten() * target.std + target.mean for end in fitted(pred))
        return {"low": low, "high": high}

    return decide


def table(target: Target, inputs: Inputs, answers: Answers) -> pd.DataFrame:
    """One row per input.

    ``row`` or ``file``; for classes ``prediction``, ``p_<class>`` for each, ``confidence``,
    ``entropy``, ``mutual_information`` and ``dempster_shafer``; for numbers ``mean``, ``std``,
    ``aleatoric_std``, ``epistemic_std``, ``q05``, ``q50`` and ``q95``. With a coverage, for classes
    ``set``, their names with ``|`` between them, and ``set_size``; for numbers ``low`` and
    ``high``.
    """
    columns: dict[str, Any] = {inputs.label: list(inputs.names)}
    for name, values in answers.items():
        if name == "set":
            members = [row.nonzero().flatten().tolist() for row in values]
            columns["set"] = ["|".join(target.classes[at] for at in row) for row in members]
            columns["set_size"] = values.sum(-1).numpy()
            continue
        if name != "probabilities":
            columns[name] = values.float().numpy()
            continue
        best = values.argmax(-1).tolist()
        columns["prediction"] = [target.classes[place] for place in best]
        for place, label in enumerate(target.classes):
            columns[f"p_{label}"] = values[:, place].float().numpy()
    return pd.DataFrame(columns)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, Parquet or NPZ, by the ending of the name, whole or not at all.

    In CSV, a name of a file or class that a spreadsheet would run as a formula has an apostrophe
    before it; see :func:`gflowout.core.text.inert`.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path}: must end in {', '.join(FORMATS)}")

    def save(stream: Any) -> None:
        if suffix == ".csv":
            stream.write(_inert(frame).to_csv(index=False, lineterminator="\n").encode())
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


def _inert(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose texts no spreadsheet runs as formulas."""
    shown = frame.copy()
    for name, column in frame.items():
        if column.dtype.kind not in "biuf":
            shown[name] = [inert(str(text)) for text in column]
    return shown
