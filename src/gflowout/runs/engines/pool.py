"""Runs in processes of their own on this machine, several at once, one thread each."""

from __future__ import annotations

import selectors
from collections.abc import Iterator

from gflowout.core import checks
from gflowout.runs.child import Child, Limits
from gflowout.runs.engines.base import Ended, Engine, Event, Listener, Progress, Started
from gflowout.runs.environment import cores
from gflowout.runs.work import Task

_MOMENT = 0.1  # seconds between two looks at limits and at processes that died
_BLINK = 0.005  # the same, while a process is about to end


class Pool(Engine):
    """Runs in processes of their own, several at once.

    A run that crashes its interpreter, or is killed, fails alone.

    Args:
        jobs: How many at once; by default as many as there are cores.
        start: ``"spawn"``: each run has a fresh interpreter, which takes seconds to start.
            ``"fork"``: each is a copy of this process and starts in milliseconds; not for GPUs,
            nor for a process that has threads of its own.

    Examples:
        >>> Pool(jobs=2)
        Pool(jobs=2, start='spawn')
    """

    def __init__(self, jobs: int | None = None, start: str = "spawn") -> None:
        self.jobs = cores() if jobs is None else checks.integer("jobs", jobs, low=1)
        self.start = checks.choice("start", start, ("spawn", "fork"))
        self._limits = Limits()
        self._children: list[Child] = []
        self._new: list[Task] = []

    def __repr__(self) -> str:
        return f"Pool(jobs={self.jobs}, start={self.start!r})"

    def open(self, limits: Limits, listen: Listener) -> None:
        """See the base class."""
        self._limits = limits

    def room(self) -> bool:
        """See the base class."""
        return len(self._children) < self.jobs

    def begin(self, task: Task) -> None:
        """See the base class."""
        self._children.append(Child(task, self._limits, self.start))
        self._new.append(task)

    def poll(self) -> Iterator[Event]:
        """See the base class."""
        while self._new:
            yield Started(self._new.pop(0))
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                if not child.deaf:  # or it would be ready for ever
                    selector.register(child.channel, selectors.EVENT_READ)
            ending = any(child.ending for child in self._children)
            selector.select(_BLINK if ending else _MOMENT)
        for child in list(self._children):
            steps: list[tuple[int, int, str]] = []
            record = child.poll(lambda *step, steps=steps: steps.append(step))
            if steps:  # only where it is now
                yield Progress(child.task, *steps[-1])
            if record is not None:
                self._children.remove(child)
                yield Ended(child.task, record)

    def close(self) -> None:
        """See the base class."""
        while self._children:
            self._children.pop().kill()
        self._new.clear()
