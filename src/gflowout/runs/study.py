"""A study: do those of its runs that have no record yet, and write their records."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gflowout.core import checks
from gflowout.core.text import counted, duration
from gflowout.runs import engines, locks, records
from gflowout.runs.child import Limits
from gflowout.runs.engines import Ended, Engine, Event
from gflowout.runs.spec import Run
from gflowout.runs.table import Tally, display
from gflowout.runs.work import Task, resolve

SCRATCH = ".scratch"
"""Folder among the records in which runs have their own folders."""


@dataclass(frozen=True)
class Summary:
    """What became of a study.

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
    """Do what is missing of a study.

    A run that has a record of success is skipped; one that failed is tried again. Stop it as you
    like, also with ``kill -9``, and start it again: nothing is lost but the work of the runs that
    were under way, and not even that if they keep checkpoints in their folders.

    Args:
        runs: The runs of the study.
        work: The function that does one, ``"package.module:function"``.
        folder: Where records are and will be. One study at a time may write to it.
        engine: ``"inline"``, ``"pool"``, ``"ray"``, or an engine with options of its own.
        retries: How often a run that fails is tried again now.
        time_limit: Seconds after which an attempt is stopped and counts as failed.
        memory_limit: GiB of memory beyond which it is; Linux, not inline.
        progress: Show how it goes, on standard error.
        scratch: Where runs have their own folders; by default inside ``folder``. With Ray on
            several machines it should be on a file system they share.
        keep_scratch: Keep the folder of a run when it is done.

    Returns:
        Counts, and the runs that failed.

    Raises:
        BusyError: If another process is writing to the folder.
        KeyboardInterrupt: After Ctrl-C, when all that ran has been stopped.

    Examples:
        >>> import sys, tempfile
        >>> from gflowout.runs import grid, read
        >>> work = "def square(run, context): return {'metrics': {'square': run.seed**2}}"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "doctest_work.py").write_text(work)
        ...     sys.path.insert(0, folder)
        ...     runs = [Run("toy", "none", "numbers", seed) for seed in range(3)]
        ...     summary = run_study(
        ...         runs, "doctest_work:square", Path(folder) / "records", engine="inline",
        ...         progress=False,
        ...     )
        ...     squares = [each["metrics"]["square"] for each in read(Path(folder) / "records")]
        ...     sys.path.remove(folder)
        >>> summary.done, sorted(squares)
        (3, [0, 1, 4])
    """
    runs = _unique(runs)
    resolve(work)
    if isinstance(engine, str):
        engine = engines.engine(engine)
    if not isinstance(engine, Engine):
        raise TypeError(f"engine must be a name or an Engine, got {engine!r}")
    limits = Limits(
        None
        if time_limit is None
        else checks.number("time_limit", time_limit, low=0, open_low=True),
        None
        if memory_limit is None
        else checks.number("memory_limit", memory_limit, low=0, open_low=True),
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    base = (folder / SCRATCH if scratch is None else Path(scratch)).resolve()
    clock = time.monotonic()
    with locks.hold(folder / ".lock", doing="another study is at work in this folder"):
        records.clean(folder)
        finished, attempts = records.finished(folder), records.failures(folder)
        tasks = [
            Task(work, run, base / run.id, attempts.get(run.id, 0) + 1)
            for run in runs
            if run.id not in finished
        ]
        if not keep_scratch:
            for run in runs:  # killed between the record and this
                if run.id in finished:
                    shutil.rmtree(base / run.id, ignore_errors=True)
        tally = Tally(len(runs), len(runs) - len(tasks))
        try:
            with display(tally, progress) as shown:

                def listen(event: Event) -> None:
                    if isinstance(event, Ended):
                        records.write(folder, event.record)
                        if not event.failed and not keep_scratch:
                            shutil.rmtree(event.task.folder, ignore_errors=True)
                    shown.hear(event)

                engine.map(tasks, listen, retries=retries, limits=limits)
        except KeyboardInterrupt:
            # It may have come between a record and the tally: what is on disk counts.
            there = records.finished(folder)
            tally.done = sum(task.run.id in there for task in tasks)
            print(
                f"\nstopped: {tally.line(ended=True)}. Records are in {folder}; "
                "start the same study again to do the rest.",
                file=sys.stderr,
            )
            raise
    return Summary(
        tally.total, tally.skipped, tally.done, dict(tally.failed), time.monotonic() - clock
    )


def _unique(runs: Iterable[Run]) -> list[Run]:
    """The runs, each once; two different ones with one name cannot be told apart on disk."""
    known: dict[str, Run] = {}
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(f"runs must be a list of Run, got {run!r}")
        if known.setdefault(run.id, run) != run:
            raise ValueError(f"runs must have different ids, got {run.id} twice; rename one")
    return list(known.values())
