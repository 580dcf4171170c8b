"""What ``gflowout study run`` does; slow to import, so commands import it when they run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import typer

from gflowout.app.config import Config, ConfigError, is_file
from gflowout.cli import options
from gflowout.core import checks
from gflowout.core.optional import MissingExtraError
from gflowout.core.text import aligned, counted
from gflowout.data.errors import DataError
from gflowout.data.images import IMAGE_SETS
from gflowout.runs import BusyError, Context, Engine, Pool, Ray, Run, Summary, records
from gflowout.runs.study import RunOptions, do_runs
from gflowout.runs.work import describe, using_threads
from gflowout.studies.framework import files
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.plan import Kind, Part, Plan, Price
from gflowout.studies.framework.study import Study

ALL, PAPER = "all", "paper"
UNKNOWN = "ood"
"""The study that can be run against other data."""
Planned = Mapping[str, tuple[Study, Plan] | Exception]  # by name; the error if it has no plan


def names_of(word: str, preset: str | None = None) -> list[str] | None:
    """The studies that a word on the command line stands for; ``None`` if it is a file.

    At preset ``paper`` the word ``all`` stands for the studies of the paper; those of our own are
    named one by one.
    """
    if word == ALL:
        every = list(studies.STUDIES)
        return [name for name in every if studies.get(name).paper] if preset == PAPER else every
    if word in studies.STUDIES:
        return [word]
    if word.endswith(options.YAML) or Path(word).exists():
        return None
    raise ValueError(
        f"STUDY must be a file of YAML, {ALL}, or one of {', '.join(studies.STUDIES)}; got {word!r}"
        f"{checks.suggest(word, [*studies.STUDIES, ALL])}"
    )


def part_of(methods: str | None, data: str | None, seeds: str | None) -> Part:
    """The part of a study that the options ask for."""
    numbers = options.words("--seeds", seeds)
    if numbers is not None and not all(number.isdecimal() for number in numbers):
        raise ValueError(f"--seeds must be numbers such as 0,1,2, got {seeds!r}")
    wanted = None if numbers is None else [int(number) for number in numbers]
    return Part(options.words("--methods", methods), options.words("--data", data), wanted)


def run(
    names: Sequence[str],
    preset: str,
    part: Part,
    out: Path,
    data_dir: Path | None,
    dry_run: bool,
    how: RunOptions,
    against: Sequence[str] = (),
) -> int:
    """Do what is missing of some studies, or print what it would cost; returns the exit code.

    ``against`` names further data for the study on unknown inputs.
    """
    planned = _plan(names, preset, part, out, against)
    if not (dry_run and isinstance(how.engine, Ray)):  # which would start a cluster
        options.check_data(_needed(planned, out), data_dir, how.engine)
    how = replace(how, engine=_quick(how.engine, preset))
    if dry_run:
        _print_costs(planned, preset, out, data_dir, how.engine)
        return 0
    with options.resumable():
        return _run(planned, preset, out, data_dir, how)


def run_file(
    file: Path,
    out: Path,
    data_dir: Path | None,
    set_: list[str] | None,
    dry_run: bool,
    how: RunOptions,
) -> int:
    """Do what is missing of a study file, or print what it would cost; returns the exit code."""
    study = files.read_study(file, options.overrides({"data.directory": data_dir}, set_))
    finished = records.finished(out)
    if not (dry_run and isinstance(how.engine, Ray)) and study.work == files.WORK:
        ours = (None, str(data_dir))  # another directory is named by the file itself
        missing = (run for run in study.runs if run.id not in finished)
        read = [run for run in missing if run.options["data.directory"] in ours]
        names = (name for run in read for name in studies.sources(run))
        options.check_data(names, data_dir, how.engine)
    if dry_run:
        typer.echo(f"{study.name}: {counted(len(study.runs), 'run')}, records in {out}")
        pick = planning.first(study.runs)
        options.echo(
            planning.report(
                planning.tally(study.runs, finished),
                planning.from_records(out, [study.name]),
                lambda kind: planning.measure(pick(kind), study.work, how.engine),
                options.workers(how.engine),
            )
        )
        return 0
    files.remember(out, study.runs)
    with options.resumable():
        summary = do_runs(study.runs, study.work, out, how)
    typer.echo(str(summary))
    return summary.exit_code


def others_of(names: Sequence[str], against: str | None) -> list[str]:
    """Other data of the study on unknown inputs: names, and paths in full."""
    words = options.words("--against", against) or []
    if words and list(names) != [UNKNOWN]:
        raise ValueError(f"--against is for the study {UNKNOWN}")
    others = [str(Path(w).expanduser().resolve()) if is_file(w) else w for w in words]
    for word in others:
        if is_file(word) and not Path(word).exists():
            raise ValueError(f"--against: there is no file or folder {word}")
        if not is_file(word):
            checks.choice("--against", word, IMAGE_SETS)
    return others


def _plan(
    names: Sequence[str], preset: str, part: Part, out: Path, against: Sequence[str] = ()
) -> Planned:
    """Studies with their plans; those without a wanted run are left out, with a message."""
    planned: dict[str, tuple[Study, Plan] | Exception] = {}
    runs: list[Run] = []
    absent: set[str] = set()
    for name in names:
        try:
            study = studies.get(name)
            study = _trials_once(planning.widened(study, against) if against else study)
            everything = planning.plan(study, preset, out).runs
            runs += everything
            absent |= {study.lacks(run) for run in everything if part.has(run)} - {""}
            study = studies.available(study)
            if part != Part():
                study = _trials_once(planning.restricted(study, part))
            plan = planning.plan(study, preset, out)
            planned[name] = _runs_once(study, plan), plan
        except Exception as error:
            if len(names) == 1:
                raise
            planned[name] = error
    planning.check(part, runs, "--")
    if absent:
        packages = ", ".join(sorted(absent))
        typer.echo(f"runs left out for packages that are not installed: {packages}; "
                   "pip install -e '.[rivals]' in a clone of gflowout", err=True)  # fmt: skip
    for name, item in list(planned.items()):
        if not isinstance(item, Exception) and not item[1].runs:
            typer.echo(f"{name}: left out, none of its runs is asked for", err=True)
            del planned[name]
    return planned


def _trials_once(study: Study) -> Study:
    """The study, with trials that are planned only once."""
    return replace(study, tuning=functools.cache(study.tuning))


def _runs_once(study: Study, plan: Plan) -> Study:
    """The study, with the runs of its plan if no trial can change them any more."""
    return replace(study, runs=lambda preset, chosen: plan.runs) if plan.tuned else study


def _needed(planned: Planned, out: Path) -> Iterator[str]:
    """Names of the data sets that trials and runs still to do read."""
    finished = records.finished(out)
    for item in planned.values():
        if not isinstance(item, Exception):
            study, plan = item
            for run in (*plan.trials, *plan.runs):
                if run.id not in finished:
                    yield from study.needs(run)


def _quick(engine: Engine, preset: str) -> Engine:
    """A pool that forks this process instead of starting new ones: for runs of a second.

    What a run imports is imported here, once. Not with GPUs, and only where forks are safe.
    """
    if preset not in ("smoke", "cpu"):  # many of their runs are shorter than the start of a process
        return engine
    if type(engine) is not Pool or sys.platform != "linux" or engine.gpus:
        return engine
    for module in (
        "gflowout.app.run", "gflowout.bench.timing", "gflowout.integrations.huggingface",
        "lightning.pytorch", "transformers.models.bert.modeling_bert",
    ):  # fmt: skip
        with contextlib.suppress(ImportError):  # a run that needs it says so
            importlib.import_module(module)
    return Pool(engine.jobs, start="fork", gpus=0)


def _run(planned: Planned, preset: str, out: Path, data_dir: Path | None, how: RunOptions) -> int:
    """Do what is missing of the studies; one that fails does not stop the others."""
    rows = [["study", "runs", "done", "done before", "failed", "time"]]
    problems: list[str] = []
    for name, item in planned.items():
        outcome: Summary | Exception
        if isinstance(item, Exception):
            outcome = item
        else:
            typer.echo(f"{name}: {item[0].title}", err=True)
            try:
                outcome = studies.do_study(item[0], preset, out, how, data_dir)
            except (BusyError, MissingExtraError):
                raise
            except Exception as failure:
                if not isinstance(failure, ValueError):  # unexpected: show where it comes from
                    typer.echo("".join(traceback.format_exception(failure)), err=True)
                outcome = failure
        if isinstance(outcome, Exception):
            rows.append([name, "-", "-", "-", "-", "-"])
            problems.append(f"{name}: {_message(outcome)}")
            continue
        head, *failed = str(outcome).splitlines()
        numbers = [outcome.total, outcome.done, outcome.skipped, len(outcome.failed)]
        rows.append([name, *map(str, numbers), head.rpartition(" in ")[2]])
        problems += failed
    options.echo(aligned(rows))
    if problems and records.failures(out):
        problems.append(f"failures in full, with tracebacks: {out}{os.sep}*.failed-*.json")
    options.echo(problems)
    return 1 if problems else 0


def _print_costs(
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
            typer.echo(f"{name}: {_message(item)}")
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


def catalogue() -> Iterator[str]:
    """A description of each study: what it asks, and how large it is."""
    nowhere = Path("no such folder")
    for name in studies.STUDIES:
        try:
            study = studies.get(name)
            plans = {preset: planning.plan(study, preset, nowhere) for preset in studies.PRESETS}
        except Exception as error:
            yield f"{name}: {_message(error)}"
            continue
        where = f"the paper's {study.paper}" if study.paper else "not in the paper"
        yield f"{name}: {study.title} ({where})"
        yield f"    {study.question}"
        sizes = (
            f"{preset} {counted(len(plan.trials), 'trial')} + {counted(len(plan.runs), 'run')}"
            for preset, plan in plans.items()
        )
        yield f"    {'; '.join(sizes)}"
    yield "\nrun one with: gflowout study run NAME --preset smoke --out results/smoke"


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


def _message(error: Exception) -> str:
    """Type and first line of an error, as records of failures have them."""
    return str(describe(error)["message"])
