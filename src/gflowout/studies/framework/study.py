"""What a study is, and how it is run: tune, choose, run, report.

Each study is a module of :mod:`gflowout.studies` with a :class:`Study` named ``STUDY``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.data.store import ENTRIES, VARIABLE
from gflowout.runs import Engine, Run, Summary, records
from gflowout.runs.study import RunOptions, as_engine, do_runs
from gflowout.studies.framework import files
from gflowout.studies.framework.arms import Options
from gflowout.studies.framework.content import Section
from gflowout.studies.framework.statistics import Record

PRESETS = ("smoke", "cpu", "paper")
"""Seconds on little data; two cores and hours; the paper's own sizes, for GPUs."""

STUDIES = (
    "robustness", "block-order", "ood", "adaptation", "vqa", "clinical", "masks", "cost",
    "features", "joint", "ranks", "regimes",
)  # fmt: skip
"""Names of all studies, in the order of the report; ``-`` is ``_`` in the name of the file."""

TUNING = "tuning"
"""Name of the study that trials belong to. Studies that need the same trial share its record."""

Chosen = Mapping[tuple[str, str], Options]
"""By data and arm (``Run.data``, ``Run.method``) the tuned options."""


@dataclass(frozen=True)
class Study:
    """One of the paper's studies, or of our own."""

    name: str  # on the command line and in the records
    title: str  # heading in the report
    question: str  # what it asks, in one sentence for a newcomer
    paper: str  # where the paper has it, such as "Table 1"; empty if it has not
    work: str  # the function that does a run or a trial, "package.module:function"
    # Runs of a preset, given the tuned options.
    runs: Callable[[str, Chosen], list[Run]]
    # What the report says, from the records of the runs that are done.
    section: Callable[[Sequence[Record]], Section]
    # Trials of a preset: runs of the study TUNING, with their tuned options in the option "tuned".
    tuning: Callable[[str], list[Run]] = lambda preset: []
    score: str = "valid/nll"  # metric of the trials; lower is better
    # Seconds of a run or a trial on one core, if the study knows better than two epochs tell.
    seconds: Callable[[Run], float] | None = None
    # Names of the data sets of gflowout.data.store that a run or a trial reads.
    needs: Callable[[Run], Iterable[str]] = lambda run: sources(run)
    # The optional package that a run needs and that is not installed; such runs are left out.
    lacks: Callable[[Run], str] = lambda run: ""


def sources(run: Run) -> list[str]:
    """Names of the data sets that a run trains on and is tested against, as its options say.

    Examples:
        >>> sources(Run("ood", "mc", "mnist", 0, {"data.source": "mnist", "against": ["svhn"]}))
        ['mnist', 'svhn']
    """
    names = [run.options.get("data.source"), *run.options.get("against", ())]
    return [name for name in names if name in ENTRIES]


def get(name: str) -> Study:
    """The study of a name.

    Raises:
        ValueError: If there is none.

    Examples:
        >>> get("robustnes")
        Traceback (most recent call last):
            ...
        ValueError: study must be one of 'robustness', 'block-order', 'ood', 'adaptation', 'vqa',
        'clinical', 'masks', 'cost', 'features', 'joint', 'ranks', 'regimes', got 'robustnes'; did
        you mean 'robustness'?
    """
    checks.choice("study", name, STUDIES)
    study = importlib.import_module(f"gflowout.studies.{name.replace('-', '_')}").STUDY
    assert isinstance(study, Study)
    return study


def available(study: Study) -> Study:
    """The study without the runs whose optional packages are not installed here."""

    def runs(preset: str, chosen: Chosen) -> list[Run]:
        return [run for run in study.runs(preset, chosen) if not study.lacks(run)]

    return replace(study, runs=runs)


def run(
    study: Study,
    preset: str,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    engine: str | Engine = "pool",
    **options: Any,
) -> Summary:
    """As :func:`do_study`, with the options of :func:`gflowout.runs.run_study` by keyword."""
    how = RunOptions(as_engine(engine), **options)
    return do_study(study, preset, Path(folder), how, data_dir)


def do_study(
    study: Study,
    preset: str,
    folder: Path,
    options: RunOptions,
    data_dir: str | Path | None = None,
) -> Summary:
    """Do what is missing of a study: first its trials, then its runs with the best of them.

    Workers find the directory of all data sets in ``$GFLOWOUT_DATA``.

    Raises:
        ValueError: If every trial of an arm has failed, so that nothing can be chosen.
    """
    checks.choice("preset", preset, PRESETS)
    study = available(study)

    def do(runs: list[Run]) -> Summary:
        # Runs of the same study that were planned before, such as other trials, stay planned.
        ids, studies = {run.id for run in runs}, {run.study for run in runs}
        before = [run for run in files.planned(folder) if run.study in studies]
        files.remember(folder, [*(run for run in before if run.id not in ids), *runs])
        with data_directory(data_dir):
            return do_runs(runs, study.work, folder, options)

    tuning = study.tuning(preset)
    parts = [do(tuning)] if tuning else []
    parts.append(do(study.runs(preset, chosen(tuning, folder, study.score))))
    return Summary(
        total=sum(part.total for part in parts),
        skipped=sum(part.skipped for part in parts),
        done=sum(part.done for part in parts),
        failed={name: why for part in parts for name, why in part.failed.items()},
        seconds=sum(part.seconds for part in parts),
    )


def chosen(tuning: Iterable[Run], folder: Path, score: str = "valid/nll") -> Chosen:
    """The options of the trial with the lowest score, for each arm on each data set.

    Ties go to the first trial.

    Raises:
        ValueError: If an arm has no trial with a finite score.
    """
    tuning = list(tuning)
    done = {record["id"]: record for record in records.read(folder, records.DONE)} if tuning else {}
    best: dict[tuple[str, str], tuple[float, Options]] = {}
    for trial in tuning:
        place = (trial.data, trial.method)
        value = float(done[trial.id]["metrics"][score]) if trial.id in done else math.inf
        if place not in best or value < best[place][0]:
            options = dict(trial.options.get("tuned", {}))
            best[place] = (math.inf if math.isnan(value) else value, options)
    for (data, arm), (value, _) in best.items():
        if value == math.inf:
            raise ValueError(f"no trial of {arm} on {data} has a finite {score} in {folder}")
    return {place: options for place, (_, options) in best.items()}


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
