"""What ``gflowout study run`` does; slow to import, so commands import it when they run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from gflowout.app.config import is_file
from gflowout.cli import options
from gflowout.cli.study_costs import Planned, message, print_costs
from gflowout.core import checks
from gflowout.core.optional import MissingExtraError
from gflowout.core.text import aligned, counted
from gflowout.data.images import IMAGE_SETS
from gflowout.runs import BusyError, Engine, Pool, Ray, Run, Summary, records
from gflowout.runs.study import RunOptions, do_runs
from gflowout.studies.framework import files
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.plan import Part, Plan
from gflowout.studies.framework.study import Study

ALL, PAPER = "all", "paper"
UNKNOWN = "ood"
"""The study that can be run against other data."""


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
        print_costs(planned, preset, out, data_dir, how.engine)
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
            problems.append(f"{name}: {message(outcome)}")
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


def catalogue() -> Iterator[str]:
    """A description of each study: what it asks, and how large it is."""
    nowhere = Path("no such folder")
    for name in studies.STUDIES:
        try:
            study = studies.get(name)
            plans = {preset: planning.plan(study, preset, nowhere) for preset in studies.PRESETS}
        except Exception as error:
            yield f"{name}: {message(error)}"
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
