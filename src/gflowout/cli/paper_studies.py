"""The studies of the paper on the command line: choose, plan, run and price them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gflowout.cli import options
from gflowout.core import checks
from gflowout.core.text import aligned, counted

if TYPE_CHECKING:
    from gflowout.app.config import Config
    from gflowout.runs import Engine, Run, Summary
    from gflowout.runs.study import RunOptions
    from gflowout.studies.framework.plan import Kind, Part, Plan, Price
    from gflowout.studies.framework.study import Study

ALL = "all"


@dataclass(frozen=True)
class _Planned:
    """A study and its plan, or the error that kept it from being planned."""

    name: str
    study: Study | None = None
    plan: Plan | None = None
    error: Exception | None = None


def names_of(word: str) -> list[str] | None:
    """The studies that a word on the command line stands for; ``None`` if it is a file.

    Raises:
        ValueError: If it is neither.
    """
    from gflowout.studies.framework.study import STUDIES

    if word == ALL:
        return list(STUDIES)
    if word in STUDIES:
        return [word]
    if word.endswith(options.YAML) or Path(word).exists():
        return None
    raise ValueError(
        f"STUDY must be a file of YAML, {ALL}, or one of {', '.join(STUDIES)}; got {word!r}"
        f"{checks.suggest(word, [*STUDIES, ALL])}"
    )


def part_of(methods: str | None, data: str | None, seeds: str | None) -> Part:
    """The part of a study that the options ask for."""
    from gflowout.studies.framework.plan import Part

    def listed(option: str, text: str | None) -> list[str] | None:
        return None if text is None else options.words(option, text)

    numbers = listed("--seeds", seeds)
    if numbers is not None and not all(number.isdecimal() for number in numbers):
        raise ValueError(f"--seeds must be numbers such as 0,1,2, got {seeds!r}")
    wanted = None if numbers is None else [int(number) for number in numbers]
    return Part(listed("--methods", methods), listed("--data", data), wanted)


def run(
    names: Sequence[str],
    preset: str,
    part: Part,
    out: Path,
    data_dir: Path | None,
    dry_run: bool,
    how: RunOptions,
) -> int:
    """Do what is missing of some studies, or print what it would cost; returns the exit code."""
    from gflowout.runs import Ray

    planned = _plan(names, preset, part, out)
    if not isinstance(how.engine, Ray):  # the nodes of a cluster have disks of their own
        options.check_data(_needed(planned, out), data_dir)
    how = replace(how, engine=_quick(how.engine, preset))
    if dry_run:
        _print_costs(planned, preset, out, data_dir, how.engine)
        return 0
    with options.resumable():
        return _run(planned, preset, out, data_dir, how)


def _plan(names: Sequence[str], preset: str, part: Part, out: Path) -> list[_Planned]:
    """Studies with their plans; those without a wanted run are left out, with a message."""
    from gflowout.studies.framework import plan as planning
    from gflowout.studies.framework import study as studies

    planned, runs = list[_Planned](), list["Run"]()
    for name in names:
        try:
            study = _trials_once(studies.get(name))
            plan = planning.plan(study, preset, out)
            runs += plan.runs
            if part != planning.Part():
                study = _trials_once(planning.restricted(study, part))
                plan = planning.plan(study, preset, out)
            planned.append(_Planned(name, _runs_once(study, plan), plan))
        except Exception as error:
            if len(names) == 1:
                raise
            planned.append(_Planned(name, error=error))
    planning.check(part, runs, "--")
    for item in planned:
        if item.plan is not None and not item.plan.runs:
            typer.echo(f"{item.name}: left out, none of its runs is asked for", err=True)
    return [item for item in planned if item.plan is None or item.plan.runs]


def _trials_once(study: Study) -> Study:
    """The study, with trials that are planned only once."""
    return replace(study, tuning=functools.cache(study.tuning))


def _runs_once(study: Study, plan: Plan) -> Study:
    """The study, with the runs of its plan if no trial can change them any more."""
    return replace(study, runs=lambda preset, chosen: plan.runs) if plan.tuned else study


def _needed(planned: Iterable[_Planned], out: Path) -> Iterator[str]:
    """Names of the data sets that trials and runs still to do read."""
    from gflowout.runs import records

    finished = records.finished(out)
    for item in planned:
        if item.study is not None and item.plan is not None:
            for run in (*item.plan.trials, *item.plan.runs):
                if run.id not in finished:
                    yield from item.study.needs(run)


def _quick(engine: Engine, preset: str) -> Engine:
    """A pool that forks this process instead of starting new ones: for runs of a second.

    What a run imports is imported here, once. Not with GPUs, and only where forks are safe.
    """
    if preset not in ("smoke", "cpu"):  # many of their runs are shorter than the start of a process
        return engine
    import torch

    from gflowout.runs import Pool

    if type(engine) is not Pool or sys.platform != "linux" or torch.cuda.is_available():
        return engine
    for module in ("gflowout.app.run", "gflowout.bench.timing", "lightning.pytorch"):
        with contextlib.suppress(ImportError):  # a run that needs it says so
            importlib.import_module(module)
    return Pool(engine.jobs, start="fork")


def _run(
    planned: Iterable[_Planned], preset: str, out: Path, data_dir: Path | None, how: RunOptions
) -> int:
    """Do what is missing of the studies; one that fails does not stop the others."""
    from gflowout.core.optional import MissingExtraError
    from gflowout.runs import BusyError, records
    from gflowout.studies.framework.study import do_study

    rows = [["study", "runs", "done", "done before", "failed", "time"]]
    problems: list[str] = []
    for item in planned:
        summary: Summary | None = None
        error = item.error
        if item.study is not None:
            typer.echo(f"{item.name}: {item.study.title}", err=True)
            try:
                summary = do_study(item.study, preset, out, how, data_dir)
            except (BusyError, MissingExtraError):
                raise
            except Exception as failure:
                if not isinstance(failure, ValueError):  # unexpected: show where it comes from
                    typer.echo("".join(traceback.format_exception(failure)), err=True)
                error = failure
        if summary is None:
            rows.append([item.name, "-", "-", "-", "-", "-"])
            problems.append(f"{item.name}: {_first_line(error)}")
            continue
        head, *failed = str(summary).splitlines()
        numbers = [summary.total, summary.done, summary.skipped, len(summary.failed)]
        rows.append([item.name, *map(str, numbers), head.rpartition(" in ")[2]])
        problems += failed
    options.echo(aligned(rows))
    if problems and records.failures(out):
        problems.append(f"failures in full, with tracebacks: {out}{os.sep}*.failed-*.json")
    options.echo(problems)
    return 1 if problems else 0


def _print_costs(
    planned: Iterable[_Planned], preset: str, out: Path, data_dir: Path | None, engine: Engine
) -> None:
    """Print what would be done and what it will take.

    The cost of a kind of run comes from its records, or from a few steps or two epochs of one arm.
    Trials that several studies share are counted once, and so are networks.
    """
    from gflowout.runs import records
    from gflowout.studies.framework import plan as planning
    from gflowout.studies.framework import study as studies

    finished = records.finished(out)
    counted_trials: set[str] = set()
    networks: set[str] = set()
    total, certain = 0.0, True
    for item in planned:
        study, plan = item.study, item.plan
        if study is None or plan is None:
            typer.echo(f"{item.name}: {_first_line(item.error)}")
            certain = False
            continue
        trials = [trial for trial in plan.trials if trial.id not in counted_trials]
        counted_trials |= {trial.id for trial in trials}
        shared = len(plan.trials) - len(trials)
        also = f" ({shared} of them counted above)" if shared else ""
        later = "" if plan.tuned else "; trials choose the options of the runs"
        typer.echo(
            f"{item.name}, {preset}: {counted(len(plan.trials), 'trial')}{also} and "
            f"{counted(len(plan.runs), 'run')}, records in {out}{later}"
        )
        prices = planning.from_records(out, [studies.TUNING, item.name], _kind)
        if study.seconds is not None:
            prices = {**_stated([*trials, *plan.runs], study.seconds), **prices}
        runs = list(trials)
        for run in plan.runs:
            name = _networks(run, out)
            trained = name in networks and run.id not in finished and _kind(run) not in prices
            if not trained:
                runs.append(run)
            if name is not None:
                networks.add(name)
        with studies.data_directory(data_dir):
            lines, seconds, sure = planning.left_to_do(
                planning.tally(runs, finished, _kind), prices, _price(runs, study.work, engine)
            )
        if spared := len(trials) + len(plan.runs) - len(runs):
            lines.append(
                f"{counted(spared, 'run')} on networks that others train: scoring alone, which is "
                "not counted"
            )
        options.echo(f"  {line}" for line in lines)
        total, certain = total + seconds, certain and sure
    typer.echo(planning.sum_up(total, options.workers(engine), certain))


def catalogue() -> Iterator[str]:
    """A description of each study: what it asks, and how large it is."""
    from gflowout.studies.framework import plan as planning
    from gflowout.studies.framework import study as studies

    nowhere = Path("no such folder")
    for name in studies.STUDIES:
        try:
            study = studies.get(name)
            plans = {preset: planning.plan(study, preset, nowhere) for preset in studies.PRESETS}
        except Exception as error:
            yield f"{name}: {_first_line(error)}"
            continue
        where = f"the paper's {study.paper}" if study.paper else "not in the paper"
        yield f"{name}: {study.title} ({where})"
        yield f"    {study.question}"
        sizes = [
            f"{preset} {counted(len(plan.trials), 'trial')} + {counted(len(plan.runs), 'run')}"
            for preset, plan in plans.items()
        ]
        yield f"    {'; '.join(sizes)}"
    yield ""
    yield "run one with: gflowout study run NAME --preset smoke --out results/smoke"


def _kind(run: Run) -> Kind:
    """Runs of one kind have about the same cost."""
    from gflowout.studies.framework.study import TUNING

    return ("trials" if run.study == TUNING else "runs"), run.data


def _price(runs: Sequence[Run], work: str, engine: Engine) -> Callable[[Kind], Price]:
    """Prices a kind by GFlowOut, or by its first arm if that is not among them."""
    from gflowout.studies.framework import plan as planning
    from gflowout.studies.framework.study import ARMS

    def price(kind: Kind) -> Price:
        own = [run for run in runs if _kind(run) == kind]
        typical = next((run for run in own if run.method == "gflowout"), own[0])
        measured = _few_steps(typical, engine) or planning.measure(typical, work, engine)
        if measured.seconds is None:
            return measured
        members = [ARMS[run.method].members if run.method in ARMS else 1 for run in own]
        if kind[0] == "trials":
            members = [1]  # only one member of an ensemble is tuned
        seconds = measured.seconds * sum(members) / len(members)
        return replace(measured, seconds=seconds, source=f"{typical.method}, {measured.source}")

    return price


def _stated(runs: Sequence[Run], seconds: Callable[[Run], float]) -> dict[Kind, Price]:
    """Prices of kinds by what a study says of its runs."""
    from gflowout.studies.framework.plan import Price

    spent: dict[Kind, list[float]] = {}
    for run in runs:
        spent.setdefault(_kind(run), []).append(seconds(run))
    return {
        kind: Price(sum(times) / len(times), "as measured on one core of two")
        for kind, times in spent.items()
    }


def _config(run: Run) -> Config | None:
    """The configuration of a run's networks; ``None`` if its options do not configure any."""
    from gflowout.app.config import ConfigError
    from gflowout.studies.framework.study import ARMS
    from gflowout.studies.models import settings

    values = run.to_dict()["options"]
    if run.method not in ARMS or "data.source" not in values:
        return None
    dotted = {key: value for key, value in values.items() if "." in key}
    try:
        return settings(ARMS[run.method], dotted, values.get("tuned", {}), run.seed)
    except ConfigError:
        return None


def _networks(run: Run, out: Path) -> str | None:
    """A name of the networks of a run; ``None`` if its options do not configure any."""
    from gflowout.runs import Context
    from gflowout.studies import models
    from gflowout.studies.framework.study import ARMS

    config = _config(run)
    if config is None:
        return None
    return f"{ARMS[run.method].members} x {models.folder_of(config, Context(out / run.id))}"


def _few_steps(run: Run, engine: Engine) -> Price | None:
    """Price of training what a run's options configure; ``None`` if they do not."""
    from gflowout.app import build, sources
    from gflowout.app.config import ConfigError
    from gflowout.data.errors import DataError
    from gflowout.runs.work import using_threads
    from gflowout.studies.framework.plan import Price, starting

    config = _config(run)
    if config is None:
        return None
    try:
        with using_threads(1):  # as runs have
            began = time.perf_counter()
            task = sources.load(config.data, config.seed)
            reading = time.perf_counter() - began
            seconds = starting(engine) + reading + build.plan(config, task).total
    except ConfigError:
        return None
    except DataError as error:
        return Price(None, str(error).splitlines()[0])
    early = "" if config.fit.patience is None else ", if none stops early"
    return Price(seconds, f"from a few steps{early}; scoring comes on top")


def _first_line(error: Exception | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else repr(error)
