"""What ``gflowout study run --dry-run`` prints: the runs to do, and what they will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import typer

from gflowout.app.config import Config, ConfigError
from gflowout.cli import options
from gflowout.core.text import counted
from gflowout.data.errors import DataError
from gflowout.runs import Context, Engine, Run, records
from gflowout.runs.work import describe, using_threads
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.plan import Kind, Plan, Price
from gflowout.studies.framework.study import Study

Planned = Mapping[str, tuple[Study, Plan] | Exception]  # by name; the error if it has no plan


def print_costs(
    planned: Planned, preset: str, out: Path, data_dir: Path | None, engine: Engine
) -> None:
    """Print what would be done and what it will take.

    The cost of a kind of run comes from its records, or from a few steps or two epochs of one arm.
    Trials that several studies share are counted once, and so are networks.
    """
    finished = records.finished(out)
    counted_trials, networks = set[str](), set[str]()
    total, certain = 0.0, True
    for name, item in planned.items():
        if isinstance(item, Exception):
            typer.echo(f"{name}: {message(item)}")
            certain = False
            continue
        study, plan = item
        trials = [trial for trial in plan.trials if trial.id not in counted_trials]
        counted_trials |= {trial.id for trial in trials}
        shared = len(plan.trials) - len(trials)
        also = f" ({shared} of them counted above)" if shared else ""
        later = "" if plan.tuned else "; trials choose the options of the runs"
        typer.echo(
            f"{name}, {preset}: {counted(len(plan.trials), 'trial')}{also} and "
            f"{counted(len(plan.runs), 'run')}, records in {out}{later}"
        )
        prices = planning.from_records(out, [studies.TUNING, name], _kind)
        runs = list(trials)
        for run in plan.runs:
            network = _networks(run, out)
            priced = study.seconds is not None or _kind(run) in prices
            if priced or network not in networks or run.id in finished:
                runs.append(run)
            if network is not None:
                networks.add(network)
        with studies.data_directory(data_dir):
            lines, seconds, sure = planning.left_to_do(
                planning.tally(runs, finished, _kind), prices, _price(runs, study, engine)
            )
        if spared := len(trials) + len(plan.runs) - len(runs):
            lines.append(
                f"{counted(spared, 'run')} on networks that others train: scoring alone, which is "
                "not counted"
            )
        options.echo(f"  {line}" for line in lines)
        total, certain = total + seconds, certain and sure
    typer.echo(planning.sum_up(total, options.workers(engine), certain))


def _kind(run: Run) -> Kind:
    """Runs of one kind have about the same cost."""
    return ("trials" if run.study == studies.TUNING else "runs"), run.data


def _price(runs: Sequence[Run], study: Study, engine: Engine) -> Callable[[Kind], Price]:
    """Prices a kind as its study says, or by GFlowOut, or by its first arm if that is missing."""

    def price(kind: Kind) -> Price:
        own = [run for run in runs if _kind(run) == kind]
        if study.seconds is not None:
            return Price(fmean(map(study.seconds, own)), "as measured on one core of two")
        typical = next((run for run in own if run.method == "gflowout"), own[0])
        measured = _few_steps(typical, engine) or planning.measure(typical, study.work, engine)
        if measured.seconds is None:
            return measured
        members = [ARMS[run.method].members if run.method in ARMS else 1 for run in own]
        if kind[0] == "trials":
            members = [1]  # only one member of an ensemble is tuned
        seconds = measured.seconds * sum(members) / len(members)
        return replace(measured, seconds=seconds, source=f"{typical.method}, {measured.source}")

    return price


def _config(run: Run) -> Config | None:
    """The configuration of a run's networks; ``None`` if its options do not configure any."""
    from gflowout.studies.images import settings

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
    from gflowout.studies import images

    config = _config(run)
    if config is None:
        return None
    if ARMS[run.method].rate_of:  # its rate is not known yet
        return f"{run.method} {images.folder_of(config, Context(out / run.id))}"
    return f"{ARMS[run.method].members} x {images.folder_of(config, Context(out / run.id))}"


def _few_steps(run: Run, engine: Engine) -> Price | None:
    """Price of training what a run's options configure; ``None`` if they do not."""
    from gflowout.app import build, sources

    config = _config(run)
    if config is None:
        return None
    try:
        with using_threads(1):  # as runs have
            began = time.perf_counter()
            task = sources.load(config.data, config.seed)
            reading = time.perf_counter() - began
            seconds = planning.starting(engine) + reading + build.plan(config, task).total
    except ConfigError:
        return None
    except DataError as error:
        return Price(None, str(error).splitlines()[0])
    early = "" if config.fit.patience is None else ", if none stops early"
    return Price(seconds, f"from a few steps{early}; scoring comes on top")


def message(error: Exception) -> str:
    """Type and first line of an error, as records of failures have them."""
    return str(describe(error)["message"])
