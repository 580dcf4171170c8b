"""What a study is, and how all of them are run: tune, choose, run, report.

Each study is a module of :mod:`gflowout.studies` with a :class:`Study` named ``STUDY``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.data.store import ENTRIES, VARIABLE
from gflowout.runs import Engine, Run, Summary, records
from gflowout.runs.study import RunOptions, as_engine, do_runs
from gflowout.studies.framework import files
from gflowout.studies.framework.content import Section

PRESETS = ("smoke", "cpu", "paper")
"""Seconds on little data; two cores and hours; the paper's own sizes, for GPUs."""

STUDIES = (
    "robustness", "block-order", "ood", "adaptation", "vqa", "clinical", "masks", "cost", "features"
)  # fmt: skip
"""Names of all studies, in the order of the report; ``-`` is ``_`` in the name of the file."""

TUNING = "tuning"
"""Name of the study that trials belong to. Studies that need the same trial share its record."""

Record = Mapping[str, Any]
Options = dict[str, Any]
Chosen = Mapping[tuple[str, str], Options]
"""By data and arm (``Run.data``, ``Run.method``) the tuned options."""


@dataclass(frozen=True)
class Study:
    """One of the paper's studies, or of our own.

    Attributes:
        name: On the command line and in the records.
        title: Heading in the report.
        question: What it asks, in one sentence for a newcomer.
        paper: Where the paper has it, such as ``"Table 1"``; empty if it has not.
        work: The function that does a run or a trial, ``"package.module:function"``.
        tuning: Trials of a preset: runs of the study ``TUNING`` whose tuned options are in the
            option ``"tuned"``, scored by the metric ``valid/...`` named in ``score``.
        runs: Runs of a preset, given the tuned options.
        section: What the report says, from the records of its runs that are done.
        score: Metric of the trials; lower is better.
        seconds: What a run or a trial takes on one core, if the study knows that better than two
            epochs would tell.
        needs: Names of the data sets of :mod:`gflowout.data.store` that a run or a trial reads.
    """

    name: str
    title: str
    question: str
    paper: str
    work: str
    runs: Callable[[str, Chosen], list[Run]]
    section: Callable[[Sequence[Record]], Section]
    tuning: Callable[[str], list[Run]] = lambda preset: []
    score: str = "valid/nll"
    seconds: Callable[[Run], float] | None = None
    needs: Callable[[Run], Iterable[str]] = lambda run: sources(run)


def sources(run: Run) -> list[str]:
    """Names of the data sets that a run trains on and is tested against, as its options say.

    Examples:
        >>> sources(Run("ood", "mc", "mnist", 0, {"data.source": "mnist", "against": ["svhn"]}))
        ['mnist', 'svhn']
    """
    names = [run.options.get("data.source"), *run.options.get("against", ())]
    return [name for name in names if name in ENTRIES]


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under the name of what was scored.

    Examples:
        >>> prefixed("test", {"nll": 0.5})
        {'test/nll': 0.5}
    """
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def get(name: str) -> Study:
    """The study of a name.

    Raises:
        ValueError: If there is none.

    Examples:
        >>> get("robustnes")
        Traceback (most recent call last):
            ...
        ValueError: study must be one of 'robustness', 'block-order', 'ood', 'adaptation', 'vqa',
        'clinical', 'masks', 'cost', 'features', got 'robustnes'; did you mean 'robustness'?
    """
    checks.choice("study", name, STUDIES)
    study = importlib.import_module(f"gflowout.studies.{name.replace('-', '_')}").STUDY
    assert isinstance(study, Study)
    return study


def run(
    study: Study,
    preset: str,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    engine: str | Engine = "pool",
    retries: int = 1,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    progress: bool = True,
) -> Summary:
    """Do what is missing of a study: first its trials, then its runs with the best of them.

    Args:
        study: From :func:`get`.
        preset: ``"smoke"``, ``"cpu"`` or ``"paper"``.
        folder: Where records are and will be.
        data_dir: Directory of all data sets; workers find it in ``$GFLOWOUT_DATA``.
        engine: As in :func:`gflowout.runs.run_study`, like all that follows.
        retries: How often a run that fails is tried again.
        time_limit: Seconds after which a run is stopped.
        memory_limit: GiB of memory beyond which a run is stopped.
        progress: Show progress.

    Returns:
        What became of the trials and runs, together.

    Raises:
        ValueError: If every trial of an arm has failed, so that nothing can be chosen.
    """
    options = RunOptions(as_engine(engine), retries, time_limit, memory_limit, progress)
    return do_study(study, preset, Path(folder), options, data_dir)


def do_study(
    study: Study,
    preset: str,
    folder: Path,
    options: RunOptions,
    data_dir: str | Path | None = None,
) -> Summary:
    """As :func:`run`, with the options in one object."""
    checks.choice("preset", preset, PRESETS)

    def do(runs: list[Run]) -> Summary:
        files.remember(folder, _known(folder, runs))
        with data_directory(data_dir):
            return do_runs(runs, study.work, folder, options)

    trials = study.tuning(preset)
    parts = [do(trials)] if trials else []
    parts.append(do(study.runs(preset, chosen(trials, folder, study.score))))
    return Summary(
        total=sum(part.total for part in parts),
        skipped=sum(part.skipped for part in parts),
        done=sum(part.done for part in parts),
        failed={name: why for part in parts for name, why in part.failed.items()},
        seconds=sum(part.seconds for part in parts),
    )


def chosen(trials: Iterable[Run], folder: Path, score: str = "valid/nll") -> Chosen:
    """The options of the best trial of each arm on each data set; ties go to the first.

    Args:
        trials: Runs of the study ``TUNING``.
        folder: Where their records are.
        score: Metric to minimise.

    Raises:
        ValueError: If an arm has no trial with a finite score.
    """
    trials = list(trials)
    done = {record["id"]: record for record in records.read(folder, records.DONE)} if trials else {}
    best: dict[tuple[str, str], tuple[float, Options]] = {}
    for trial in trials:
        place = (trial.data, trial.method)
        value = float(done[trial.id]["metrics"][score]) if trial.id in done else math.inf
        if place not in best or value < best[place][0]:
            best[place] = (
                math.inf if math.isnan(value) else value,
                dict(trial.options.get("tuned", {})),
            )
    for (data, arm), (value, _) in best.items():
        if value == math.inf:
            raise ValueError(f"no trial of {arm} on {data} has a finite {score} in {folder}")
    return {place: options for place, (_, options) in best.items()}


def _known(folder: Path, runs: list[Run]) -> list[Run]:
    """Planned runs with those of the same study that were planned before, such as trials."""
    mine = {run.id for run in runs}
    studies = {run.study for run in runs}
    before = [run for run in files.planned(folder) if run.study in studies and run.id not in mine]
    return [*before, *runs]


@contextmanager
def data_directory(directory: str | Path | None) -> Iterator[None]:
    """Tell the workers where data sets are, which is not what makes a run another one."""
    before = os.environ.get(VARIABLE)
    if directory is not None:
        os.environ[VARIABLE] = str(Path(directory).resolve())
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        elif directory is not None:
            del os.environ[VARIABLE]
