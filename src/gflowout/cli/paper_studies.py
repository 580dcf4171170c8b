"""What ``gflowout study run NAME`` and ``study list`` do with the studies of the paper."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gflowout.cli.study_options import check_data
from gflowout.core import checks
from gflowout.core.text import aligned

if TYPE_CHECKING:
    from gflowout.runs import Engine, Run
    from gflowout.studies.framework.plan import Kind, Part, Plan, Price
    from gflowout.studies.framework.study import Study

ALL = "all"
_ENDINGS = (".yaml", ".yml")


@dataclass
class _Loaded:
    """A study and what it is to do, or what is wrong with it."""

    name: str
    study: Study | None = None
    plan: Plan | None = None
    error: Exception | None = None


def names_of(word: str) -> list[str] | None:
    """Names of the studies that a word stands for; ``None`` if it is a file.

    Raises:
        ValueError: If it is neither.
    """
    from gflowout.studies.framework.study import STUDIES

    if word == ALL:
        return list(STUDIES)
    if word in STUDIES:
        return [word]
    if word.endswith(_ENDINGS) or Path(word).exists():
        return None
    listed = ", ".join(STUDIES)
    raise ValueError(
        f"STUDY must be a file of YAML, {ALL}, or one of {listed}; got {word!r}"
        f"{checks.suggest(word, [*STUDIES, ALL])}"
    )


def part_of(methods: str | None, data: str | None, seeds: str | None) -> Part:
    """The part of a study that the options ask for."""
    from gflowout.studies.framework.plan import Part

    numbers = _words("--seeds", seeds)
    for each in numbers or ():
        if not each.isdecimal():
            raise ValueError(f"--seeds must be numbers such as 0,1,2, got {seeds!r}")
    wanted = None if numbers is None else [int(each) for each in numbers]
    return Part(_words("--methods", methods), _words("--data", data), wanted)


def run(
    names: Sequence[str],
    preset: str,
    part: Part,
    out: Path,
    *,
    data_dir: Path | None,
    here: bool = True,
    **how: Any,
) -> int:
    """Do what is missing of some studies; one that fails does not stop the others.

    Args:
        names: Of the studies.
        preset: Size of all.
        part: What is wanted of them.
        out: Folder of the records.
        data_dir: Directory of all data sets.
        here: Whether runs are done on this machine, so that data must be here.
        **how: As in :func:`gflowout.studies.framework.study.run`.

    Returns:
        The exit code.
    """
    from gflowout.core.optional import MissingExtraError
    from gflowout.runs import BusyError, records
    from gflowout.studies.framework import study as studies

    how["engine"] = _quick(how["engine"], preset)
    rows = [["study", "runs", "done", "done before", "failed", "time"]]
    troubles: list[str] = []
    loaded = _load(names, preset, part, out)
    if here:
        check_data(_needed(loaded, out), data_dir)
    for each in loaded:
        if each.study is None:
            rows.append([each.name, "-", "-", "-", "-", "-"])
            troubles.append(f"{each.name}: {_said(each.error)}")
            continue
        typer.echo(f"{each.name}: {each.study.title}", err=True)
        try:
            summary = studies.run(each.study, preset, out, data_dir=data_dir, **how)
        except (BusyError, MissingExtraError):
            raise
        except Exception as error:
            if not isinstance(error, ValueError):  # not foreseen: where it comes from matters
                typer.echo("".join(traceback.format_exception(error)), err=True)
            rows.append([each.name, "-", "-", "-", "-", "-"])
            troubles.append(f"{each.name}: {_said(error)}")
            continue
        head, *failed = str(summary).splitlines()
        numbers = [summary.total, summary.done, summary.skipped, len(summary.failed)]
        rows.append([each.name, *map(str, numbers), head.rpartition(" in ")[2]])
        troubles += failed
    for line in aligned(rows):
        typer.echo(line)
    if troubles and records.failures(out):
        troubles.append(f"failures in full, with tracebacks: {out}{os.sep}*.failed-*.json")
    for line in troubles:
        typer.echo(line)
    return 1 if troubles else 0


def dry_run(
    names: Sequence[str],
    preset: str,
    part: Part,
    out: Path,
    *,
    data_dir: Path | None,
    workers: int | None,
    engine: Engine,
    here: bool = True,
) -> None:
    """Print what would be done and what it will take.

    A kind of run is priced by its records, or by a few steps or two epochs of one arm. Trials that
    several studies share are counted once, and so are networks.
    """
    from gflowout.core.text import counted
    from gflowout.runs import records
    from gflowout.studies.framework import plan as estimates
    from gflowout.studies.framework import study as studies

    finished = records.finished(out) if out.is_dir() else set()
    planned: set[str] = set()
    trained: set[str] = set()
    total, certain = 0.0, True
    loaded = _load(names, preset, part, out)
    if here:
        check_data(_needed(loaded, out), data_dir)
    engine = _quick(engine, preset)
    for each in loaded:
        if each.study is None or each.plan is None:
            typer.echo(f"{each.name}: {_said(each.error)}")
            certain = False
            continue
        trials = [trial for trial in each.plan.trials if trial.id not in planned]
        planned |= {trial.id for trial in trials}
        shared = len(each.plan.trials) - len(trials)
        also = f" ({shared} of them counted above)" if shared else ""
        later = "" if each.plan.tuned else "; trials choose the options of the runs"
        typer.echo(
            f"{each.name}, {preset}: {counted(len(each.plan.trials), 'trial')}{also} and "
            f"{counted(len(each.plan.runs), 'run')}, records in {out}{later}"
        )
        known = estimates.from_records(out, [studies.TUNING, each.name], _sort)
        if each.study.seconds is not None:
            known = {**_told([*trials, *each.plan.runs], each.study.seconds), **known}
        runs = list(trials)
        spared = 0
        for run in each.plan.runs:
            networks = _networks(run, out)
            if networks in trained and run.id not in finished and _sort(run) not in known:
                spared += 1
            else:
                runs.append(run)
            if networks is not None:
                trained.add(networks)
        kinds = estimates.tally(runs, finished, _sort)
        with studies.data_directory(data_dir):
            price = _price(runs, each.study.work, engine)
            lines, seconds, sure = estimates.left_to_do(kinds, known, price)
        if spared:
            lines.append(
                f"{counted(spared, 'run')} on networks that others train: scoring alone, which is "
                "not counted"
            )
        for line in lines:
            typer.echo(f"  {line}")
        total, certain = total + seconds, certain and sure
    typer.echo(estimates.sum_up(total, workers, certain))


def catalogue() -> Iterator[str]:
    """The studies in words: what they ask, and how large they are."""
    from gflowout.core.text import counted
    from gflowout.studies.framework import plan as selection
    from gflowout.studies.framework import study as studies

    nowhere = Path("no such folder")
    for name in studies.STUDIES:
        try:
            study = studies.get(name)
            plans = {preset: selection.plan(study, preset, nowhere) for preset in studies.PRESETS}
        except Exception as error:
            yield f"{name}: {_said(error)}"
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


def _load(names: Sequence[str], preset: str, part: Part, out: Path) -> list[_Loaded]:
    """Studies with their plans; those without a wanted run are left out, with a word on it."""
    from gflowout.studies.framework import plan as selection
    from gflowout.studies.framework import study as studies

    found, runs = [], list[Any]()
    for name in names:
        try:
            study = studies.get(name)
            runs += selection.plan(study, preset, out).runs
            part_of_it = selection.restricted(study, part)
            plan = selection.plan(part_of_it, preset, out)
            found.append(_Loaded(name, part_of_it, plan))
        except Exception as error:
            if len(names) == 1:
                raise
            found.append(_Loaded(name, error=error))
    selection.check(part, runs, "--")
    for each in found:
        if each.plan is not None and not each.plan.runs:
            typer.echo(f"{each.name}: left out, none of its runs is asked for", err=True)
    return [each for each in found if each.plan is None or each.plan.runs]


def _needed(loaded: Iterable[_Loaded], out: Path) -> Iterator[str]:
    """Names of the data sets that trials and runs still to do read."""
    from gflowout.runs import records

    finished = records.finished(out)
    for each in loaded:
        if each.study is not None and each.plan is not None:
            for run in (*each.plan.trials, *each.plan.runs):
                if run.id not in finished:
                    yield from each.study.needs(run)


def _quick(engine: Engine, preset: str) -> Engine:
    """A pool that copies this process instead of starting new ones: for runs of a second.

    What a run imports is imported here, once. Not with GPUs, and only where copies are safe.
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


def _sort(run: Run) -> Kind:
    from gflowout.studies.framework.study import TUNING

    return ("trials" if run.study == TUNING else "runs"), run.data


def _price(runs: Sequence[Run], work: str, engine: Engine) -> Callable[[Kind], Price]:
    """Prices a kind by GFlowOut, or by its first arm if that is not among them."""
    import dataclasses

    from gflowout.studies.framework import plan as estimates
    from gflowout.studies.framework.arms import ARMS

    def price(kind: Kind) -> Price:
        own = [run for run in runs if _sort(run) == kind]
        typical = next((run for run in own if run.method == "gflowout"), own[0])
        found = _few_steps(typical, engine) or estimates.measure(typical, work, engine)
        if found.seconds is None:
            return found
        members = [ARMS[run.method].members if run.method in ARMS else 1 for run in own]
        if kind[0] == "trials":
            members = [1]  # of an ensemble one member is tuned
        seconds = found.seconds * sum(members) / len(members)
        return dataclasses.replace(
            found, seconds=seconds, source=f"{typical.method}, {found.source}"
        )

    return price


def _told(runs: Sequence[Run], seconds: Callable[[Run], float]) -> dict[Kind, Price]:
    """Prices of kinds by what a study says of its runs."""
    from gflowout.studies.framework.plan import Price

    spent: dict[Kind, list[float]] = {}
    for run in runs:
        spent.setdefault(_sort(run), []).append(seconds(run))
    return {
        kind: Price(sum(each) / len(each), "as measured on one core of two")
        for kind, each in spent.items()
    }


def _networks(run: Run, out: Path) -> str | None:
    """A name of the networks of a run; ``None`` if its options do not configure any."""
    from gflowout.app.config import ConfigError
    from gflowout.runs import Context
    from gflowout.studies import models
    from gflowout.studies.framework.arms import ARMS

    options = run.to_dict()["options"]
    if run.method not in ARMS or "data.source" not in options:
        return None
    dotted = {key: value for key, value in options.items() if "." in key}
    arm = ARMS[run.method]
    try:
        wanted = models.settings(arm, dotted, options.get("tuned", {}), run.seed)
    except ConfigError:
        return None
    return f"{arm.members} x {models.folder_of(wanted, Context(out / run.id))}"


def _few_steps(run: Run, engine: Engine) -> Price | None:
    """Price of training what a run's options configure; ``None`` if they do not."""
    from gflowout.app import plan, sources
    from gflowout.app.config import ConfigError
    from gflowout.data.errors import DataError
    from gflowout.runs.work import using_threads
    from gflowout.studies.framework.arms import ARMS
    from gflowout.studies.framework.plan import Price, starting
    from gflowout.studies.models import settings

    options = run.to_dict()["options"]
    if run.method not in ARMS or "data.source" not in options:
        return None
    dotted = {key: value for key, value in options.items() if "." in key}
    try:
        wanted = settings(ARMS[run.method], dotted, options.get("tuned", {}), run.seed)
        with using_threads(1):  # as runs have
            began = time.perf_counter()
            task = sources.load(wanted.data, wanted.seed)
            reading = time.perf_counter() - began
            seconds = starting(engine) + reading + plan.plan(wanted, task).total
    except ConfigError:
        return None
    except DataError as error:
        return Price(None, str(error).splitlines()[0])
    early = "" if wanted.fit.patience is None else ", if none stops early"
    return Price(seconds, f"from a few steps{early}; scoring comes on top")


def _words(option: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{option} must name at least one, got {text!r}")
    return words


def _said(error: Exception | None) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else repr(error)
