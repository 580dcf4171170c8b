"""Runs one after the other in this process: nothing to start, easy to debug."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gflowout.runs import records
from gflowout.runs.child import Limits
from gflowout.runs.engines.base import Ended, Engine, Event, Listener, Progress, Started
from gflowout.runs.work import Task, TimeLimitError, describe, execute, surroundings


@dataclass
class Inline(Engine):
    """Runs one after the other, in the calling thread.

    A crash of the interpreter in one run ends the study. A time limit stops Python code, but not
    a call that never returns to it; memory is not limited.

    Examples:
        >>> from gflowout.runs import engine
        >>> engine("inline")
        Inline()
    """

    _task: Task | None = field(default=None, init=False, repr=False)

    def open(self, limits: Limits, listen: Listener) -> None:
        """See the base class."""
        if limits.memory_gb is not None:
            raise ValueError("memory_limit must be None with the inline engine; take 'pool'")
        main = threading.current_thread() is threading.main_thread()
        if limits.seconds is not None and not main:
            raise ValueError(
                "time_limit must be None with the inline engine outside the main thread; "
                "take 'pool'"
            )
        self._limits, self._listen = limits, listen

    def room(self) -> bool:
        """See the base class."""
        return self._task is None

    def begin(self, task: Task) -> None:
        """See the base class."""
        self._task = task

    def poll(self) -> Iterator[Event]:
        """Do the task that was started."""
        task, self._task = self._task, None
        assert task is not None
        yield Started(task)
        yield Ended(task, self._execute(task))

    def close(self) -> None:
        """See the base class."""
        self._task = None

    def _execute(self, task: Task) -> dict[str, Any]:
        def progress(step: int, steps: int, message: str) -> None:
            self._listen(Progress(task, step, steps, message))

        started, clock = records.now(), time.perf_counter()
        try:
            with _alarm(self._limits.seconds):
                return execute(task, progress)
        except TimeLimitError as error:  # it came just before or after the run's own code
            return records.build(
                task.run,
                work=task.work,
                attempt=task.attempt,
                started=started,
                seconds=time.perf_counter() - clock,
                environment=surroundings(task.work, task.threads),
                error=describe(error),
            )


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeLimitError(f"stopped after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
