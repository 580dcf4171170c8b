"""A study: do those of its runs that have no record yet, write their records, show progress."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import MissingExtraError, require
from gflowout.core.text import counted, duration
from gflowout.runs import locks, records
from gflowout.runs.child import Limits
from gflowout.runs.engines import Ended, Engine, Event, Inline, Pool, Progress, Started
from gflowout.runs.ray import Ray
from gflowout.runs.spec import Run
from gflowout.runs.work import Task, resolve

_REFRESH = 0.25  # seconds between two drawings of the live table
_SHORTEST = 0.05  # seconds to go that are worth a word
_ROWS = 30  # running runs that are shown
SCRATCH = ".scratch"  # folder among the records in which runs have their own folders
ENGINES: dict[str, type[Engine]] = {"inline": Inline, "pool": Pool, "ray": Ray}


def engine(name: str, **options: Any) -> Engine:
    """An engine by its name.

    Args:
        name: ``"inline"``, ``"pool"`` or ``"ray"``.
        options: Arguments of its class.

    Examples:
        >>> engine("pool", jobs=2, gpus=0)
        Pool(jobs=2, start='spawn')
        >>> engine("pol")
        Traceback (most recent call last):
            ...
        ValueError: engine must be one of 'inline', 'pool', 'ray', got 'pol'; did you mean 'pool'?
    """
    return ENGINES[checks.choice("engine", name, ENGINES)](**options)


def as_engine(name: str | Engine) -> Engine:
    """The engine itself, also if only its name is given."""
    chosen = engine(name) if isinstance(name, str) else name
    if not isinstance(chosen, Engine):
        raise TypeError(f"engine must be a name or an Engine, got {chosen!r}")
    return chosen


@dataclass(frozen=True)
class RunOptions:
    """How runs are done, whatever they are: the keyword arguments of :func:`run_study`."""

    engine: Engine
    retries: int = 1
    time_limit: float | None = None
    memory_limit: float | None = None
    progress: bool = True
    scratch: str | Path | None = None
    keep_scratch: bool = False

    def __post_init__(self) -> None:
        checks.integer("retries", self.retries, low=0)
        for name in ("time_limit", "memory_limit"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), low=0, open_low=True)


@dataclass(frozen=True)
class Summary:
    """How a study ended.

    Args:
        total: Its runs.
        skipped: Those that had a record before.
        done: Those done now.
        failed: Those that failed at every attempt: id and last line of the error.
        seconds: How long it took.

    Examples:
        >>> print(Summary(total=4, skipped=1, done=2, failed={"run3": "no memory"}, seconds=90.0))
        4 runs: 2 done, 1 done before, 1 failed, in 1:30
        failed: run3: no memory
    """

    total: int
    skipped: int
    done: int
    failed: dict[str, str]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 if every run has a record of success now, else 1."""
        return 1 if self.failed else 0

    def __str__(self) -> str:
        head = (
            f"{counted(self.total, 'run')}: {self.done} done, {self.skipped} done before, "
            f"{len(self.failed)} failed, in {duration(self.seconds)}"
        )
        return "\n".join([head, *(f"failed: {name}: {why}" for name, why in self.failed.items())])


def run_study(
    runs: Iterable[Run],
    work: str,
    folder: str | Path,
    *,
    engine: str | Engine = "pool",
    retries: int = 1,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    progress: bool = True,
    scratch: str | Path | None = None,
    keep_scratch: bool = False,
) -> Summary:
    """Do those runs of a study that have no record of success yet.

    A run that failed before is tried again. Stop a study at any time, also with ``kill -9``, and
    start it again: nothing is lost but the work of the runs that were under way, and not even that
    if they keep checkpoints in their folders.

    Args:
        runs: The runs of the study.
        work: The function that does one, ``"package.module:function"``.
        folder: Folder of the records. One study at a time may write to it.
        engine: ``"inline"``, ``"pool"``, ``"ray"``, or an engine with options of its own.
        retries: How often a run that fails is tried again now.
        time_limit: Seconds after which an attempt is stopped and counts as failed.
        memory_limit: Stop an attempt that uses more than this many GiB; Linux, not inline.
        progress: Show progress on standard error.
        scratch: Where runs have their own folders; by default inside ``folder``. With Ray on
            several machines it should be on a file system they share.
        keep_scratch: Keep the folder of a run when it is done.

    Raises:
        BusyError: If another process is writing to the folder.
        KeyboardInterrupt: After Ctrl-C, when all that ran has been stopped.

    Examples:
        >>> import sys, tempfile
        >>> from gflowout.runs import read
        >>> work = "def square(run, context): return {'metrics': {'square': run.seed**2}}"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "doctest_work.py").write_text(work)
        ...     sys.path.insert(0, folder)
        ...     runs = [Run("toy", "none", "numbers", seed) for seed in range(3)]
        ...     summary = run_study(
        ...         runs, "doctest_work:square", folder, engine="inline", progress=False
        ...     )
        ...     squares = [done["metrics"]["square"] for done in read(folder)]
        ...     sys.path.remove(folder)
        >>> summary.done, sorted(squares)
        (3, [0, 1, 4])
    """
    options = RunOptions(
        as_engine(engine), retries, time_limit, memory_limit, progress, scratch, keep_scratch
    )
    return do_runs(runs, work, folder, options)


def do_runs(runs: Iterable[Run], work: str, folder: str | Path, options: RunOptions) -> Summary:
    """As :func:`run_study`, with the options in one object."""
    runs = _unique(runs)
    resolve(work)
    limits = Limits(options.time_limit, options.memory_limit)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = (folder / SCRATCH if options.scratch is None else Path(options.scratch)).resolve()
    clock = time.monotonic()
    with locks.hold(folder / ".lock", doing="another study is at work in this folder"):
        records.clean(folder)
        finished, attempts = records.finished(folder), records.failures(folder)
        tasks = [
            Task(work, run, scratch / run.id, attempts.get(run.id, 0) + 1)
            for run in runs
            if run.id not in finished
        ]
        if not options.keep_scratch:  # a study may be killed between a record and the end of this
            for name in finished.intersection(run.id for run in runs):
                shutil.rmtree(scratch / name, ignore_errors=True)
        tally = Tally(len(runs), len(runs) - len(tasks))
        try:
            with _display(tally, options.progress) as show:

                def listen(event: Event) -> None:
                    if isinstance(event, Ended):
                        records.write(folder, event.record)
                        if not event.failed and not options.keep_scratch:
                            shutil.rmtree(event.task.folder, ignore_errors=True)
                    show(event)

                options.engine.map(tasks, listen, retries=options.retries, limits=limits)
        except KeyboardInterrupt:
            # It may have come between a record and the tally: what is on disk counts.
            finished = records.finished(folder)
            tally.done = sum(task.run.id in finished for task in tasks)
            print(
                f"\nstopped: {tally.line(ended=True)}. Records are in {folder}; "
                "start the same study again to do the rest.",
                file=sys.stderr,
            )
            raise
    seconds = time.monotonic() - clock
    return Summary(tally.total, tally.skipped, tally.done, tally.failed, seconds)


def _unique(runs: Iterable[Run]) -> list[Run]:
    """The runs, each once; two different runs must not have the same id."""
    unique: dict[str, Run] = {}
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(f"runs must be a list of Run, got {run!r}")
        if unique.setdefault(run.id, run) != run:
            raise ValueError(f"runs must have different ids, got {run.id} twice; rename one")
    return list(unique.values())


@dataclass
class _Row:
    attempt: int
    since: float
    step: int = 0
    steps: int = 0
    message: str = ""


@dataclass
class Tally:
    """Counts and times of a study, from its events. ``skipped``: runs that were done before."""

    total: int
    skipped: int
    done: int = 0
    retried: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    rows: dict[str, _Row] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Runs still to be finished, those that run now included."""
        return self.total - self.skipped - self.done - len(self.failed)

    def hear(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, Started):
            self.rows[event.task.run.id] = _Row(event.task.attempt, time.monotonic())
        elif isinstance(event, Progress) and event.task.run.id in self.rows:
            row = self.rows[event.task.run.id]
            row.step, row.steps, row.message = event.step, event.steps, event.message
        elif isinstance(event, Ended):
            self.rows.pop(event.task.run.id, None)
            self.spent.append(event.record["seconds"])
            if not event.failed:
                self.done += 1
            elif event.again:
                self.retried += 1
            else:
                self.failed[event.task.run.id] = event.record["error"]["message"]

    def remaining(self) -> float | None:
        """Seconds until the end, if the runs left take as long as the mean of those finished.

        ``None`` if there is no such mean, or those that run now have all taken longer than it.
        """
        if not self.spent or not self.left:
            return None
        mean, now = sum(self.spent) / len(self.spent), time.monotonic()
        begun = sum(min(mean, now - row.since) for row in self.rows.values())
        ahead = self.left * mean - begun
        return ahead / max(1, len(self.rows)) if ahead > 0 else None

    def line(self, ended: bool = False) -> str:
        """The counts in one line; no estimate of the time left if the study has ended."""
        parts = [f"{self.skipped + self.done} of {self.total} done"]
        numbers = {
            "of them before": self.skipped,
            "tried again": self.retried,
            "failed": len(self.failed),
            "left": self.left,
        }
        parts += [f"{number} {word}" for word, number in numbers.items() if number]
        remaining = None if ended else self.remaining()
        if remaining is not None and remaining >= _SHORTEST:
            parts.append(f"about {duration(remaining)} to go")
        return ", ".join(parts)


class Live:
    """A table that changes in place; ended attempts scroll by above it."""

    def __init__(self, tally: Tally, console: Any = None) -> None:
        self.tally = tally
        require("rich", extra="studies", purpose="the table of progress")
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = console or Console(stderr=True)
        # Drawn from the loop of the study, not from a thread: engines may fork.
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def hear(self, event: Event) -> None:
        """Count an event and show it."""
        self.tally.hear(event)
        if isinstance(event, Ended) and event.failed:
            self._console.print(_verdict(event), style="red", markup=False, highlight=False)
        if time.monotonic() - self._drawn >= _REFRESH:
            self._drawn = time.monotonic()
            self._live.update(self.draw(), refresh=True)

    def draw(self) -> Any:
        """The table as it is now."""
        from rich.table import Table
        from rich.text import Text

        table = Table(caption=self.tally.line(), expand=True)
        table.add_column("run", ratio=4, overflow="fold")
        for head in ("attempt", "step", "time"):
            table.add_column(head, justify="right")
        table.add_column("", ratio=3, overflow="ellipsis", no_wrap=True)
        now = time.monotonic()
        for name, row in list(self.tally.rows.items())[:_ROWS]:
            step = f"{row.step}/{row.steps}" if row.steps else str(row.step or "")
            message = Text(row.message)  # so that brackets in it are not taken for markup
            table.add_row(name, str(row.attempt), step, duration(now - row.since), message)
        if len(self.tally.rows) > _ROWS:
            table.add_row(f"and {len(self.tally.rows) - _ROWS} more")
        return table


@contextlib.contextmanager
def _display(tally: Tally, progress: bool) -> Iterator[Callable[[Event], None]]:
    """Count events and show them: a live table in a terminal, plain lines otherwise."""

    def hear(event: Event) -> None:
        tally.hear(event)
        if progress and isinstance(event, Ended):
            print(f"{_verdict(event)} [{tally.line()}]", file=sys.stderr, flush=True)

    live = None
    if progress and sys.stderr.isatty():
        with contextlib.suppress(MissingExtraError):  # plain lines need no extra
            live = Live(tally)
    with live or contextlib.nullcontext():
        yield live.hear if live else hear


def _verdict(event: Ended) -> str:
    """One line on how an attempt has ended."""
    name, seconds = event.task.run.id, duration(event.record["seconds"])
    if not event.failed:
        return f"{name}: done in {seconds}"
    then = "; will be tried again" if event.again else ""
    why = event.record["error"]["message"]
    return f"{name}: attempt {event.task.attempt} failed after {seconds}: {why}{then}"
