"""Do one run in this process: call its function, time it, and make its record.

A run's function has two arguments and is named ``"package.module:function"``::

    def work(run: Run, context: Context) -> Result:
        return {"metrics": {"accuracy": 0.9}}
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch

from gflowout.core import checks
from gflowout.runs import environment, locks, records
from gflowout.runs.spec import Run, plain

Report = Callable[[int, int, str], None]


class Result(TypedDict):
    """What a run's function returns.

    ``metrics``: final numbers by name. ``epochs``: a dict per epoch. ``data``: checksums of the
    data that were used, by name. NaN and infinities are allowed.

    Examples:
        >>> result: Result = {"metrics": {"accuracy": 0.9}, "epochs": [{"loss": 0.5}]}
    """

    metrics: Mapping[str, Any]
    epochs: NotRequired[list[Mapping[str, Any]]]
    data: NotRequired[Mapping[str, str]]


class TimeLimitError(BaseException):
    """Time is up. Not an ``Exception``: a run's function must not catch it by chance."""


@dataclass(frozen=True)
class Context:
    """What a run's function is given besides the run.

    Args:
        folder: A folder for this run alone, for checkpoints. A second attempt, or the next start
            of the study, finds there what the first one left.
        progress: Reports how far the run is: ``progress(step, steps, message)``. Cheap; call it as
            often as you like.
        attempt: Number of this attempt, from 1.

    Examples:
        >>> Context(Path("scratch/run"), attempt=2).progress(1, 10, "first epoch")
    """

    folder: Path
    progress: Report = lambda step, steps, message: None
    attempt: int = 1


Function = Callable[[Run, Context], Result]


@dataclass(frozen=True)
class Task:
    """One attempt at a run, as an engine hands it to the process that does it."""

    work: str
    run: Run
    folder: Path
    attempt: int = 1
    threads: int = 1

    def record(
        self,
        started: datetime,
        seconds: float,
        environment: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The record of this attempt, without its checksum.

        ``started`` is in UTC, ``environment`` by default that of this process. There is either a
        ``result``, which the run's function returned, or an ``error``, from :func:`records.error`.
        """
        result, facts = result or {}, environment or surroundings(self.work, self.threads)
        return {
            "format": records.FORMAT,
            "id": self.run.id,
            **self.run.to_dict(),
            "status": records.DONE if error is None else records.FAILED,
            "attempt": self.attempt,
            "work": self.work,
            "metrics": result.get("metrics", {}),
            "epochs": result.get("epochs", []),
            "checksums": result.get("data", {}),
            "error": None if error is None else dict(error),
            **{key: facts[key] for key in ("versions", "commit", "machine", "threads")},
            "started": started.isoformat(timespec="milliseconds"),
            "ended": (started + timedelta(seconds=seconds)).isoformat(timespec="milliseconds"),
            "seconds": round(seconds, 3),
        }


# Once per process and file: what counts is the code as it was loaded.
_commit = functools.cache(environment.commit)
_MOVED = {"gflowout.pipeline.": "gflowout.app.", "gflowout.experiments.": "gflowout.studies."}


def current_name(work: str) -> str:
    """The current name of a work function, also if records or plans have an earlier one."""
    for before, now in _MOVED.items():
        if str(work).startswith(before):
            return now + work.removeprefix(before)
    return work


def resolve(work: str) -> Function:
    """The function named ``"package.module:function"``, or a ``ValueError`` if there is none.

    An error while its module is imported passes through.
    """
    wrong = f"work must name a function as 'package.module:function', got {work!r}"
    if not isinstance(work, str) or work.count(":") != 1:
        raise ValueError(wrong)
    home, name = current_name(work).split(":")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{wrong}: no module {error.name}") from error
    function: Function | None = getattr(module, name, None)
    if function is None:
        raise ValueError(f"{wrong}: no such name in {home}{checks.suggest(name, dir(module))}")
    if not callable(function):
        raise ValueError(f"{wrong}, which is a {type(function).__name__}")
    return function


def surroundings(work: str, threads: int | None) -> dict[str, Any]:
    """Versions, commit, machine and threads, as a record has them."""
    file = None
    with contextlib.suppress(Exception):  # an error of its module is reported when it is called
        file = inspect.getsourcefile(inspect.unwrap(resolve(work)))
    commit = _commit(None if file is None else Path(file))
    versions, machine = environment.versions(), environment.machine()
    return {"versions": versions, "commit": commit, "machine": machine, "threads": threads}


def execute(task: Task, progress: Report) -> dict[str, Any]:
    """Do one run in this thread and return its record, of a success or a failure.

    Whatever its function raises ends up in the record; only ``KeyboardInterrupt`` passes.
    """
    with using_threads(task.threads):
        environment = surroundings(task.work, torch.get_num_threads())
        started, clock = records.now(), time.perf_counter()
        result, error = None, None
        try:
            task.folder.mkdir(parents=True, exist_ok=True)
            # A worker of a driver that was killed may still live for a moment.
            with locks.hold(task.folder / ".lock", wait=True):
                context = Context(task.folder, progress, task.attempt)
                result = check(resolve(task.work)(task.run, context))
        except KeyboardInterrupt:
            raise
        except BaseException as caught:
            error = describe(caught)
        seconds = time.perf_counter() - clock
        return task.record(started, seconds, environment=environment, result=result, error=error)


def check(result: Any) -> dict[str, Any]:
    """What a run's function returned as plain values, if it is a :class:`Result`."""
    if not isinstance(result, Mapping):
        raise TypeError(f"a run's function must return a dict, got {result!r}")
    for key in result:
        checks.choice("a key of the result", key, ("metrics", "epochs", "data"))
    if "metrics" not in result:
        raise ValueError("a run's function must return metrics, got none")
    checked: dict[str, Any] = {key: plain(key, value) for key, value in result.items()}
    for key, kind in (("metrics", dict), ("epochs", list), ("data", dict)):
        if key in checked and not isinstance(checked[key], kind):
            raise TypeError(f"{key} must be a {kind.__name__}, got {checked[key]!r}")
    for number, epoch in enumerate(checked.get("epochs", [])):
        if not isinstance(epoch, dict):
            raise TypeError(f"epochs[{number}] must be a dict, got {epoch!r}")
    return checked


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as a record has it."""
    text = str(error).strip()
    return records.error(
        "time limit" if isinstance(error, TimeLimitError) else "exception",
        f"{type(error).__name__}: {text.splitlines()[0]}" if text else repr(error),
        "".join(traceback.format_exception(error)),
    )


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Compute with this many threads inside a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
