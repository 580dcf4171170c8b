"""Engines: ways to do many runs, in this process or in processes of their own on this machine.

An engine starts tasks and reports events; whoever listens to these writes the records.
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gflowout.core import checks
from gflowout.runs import records
from gflowout.runs.child import Child, Limits
from gflowout.runs.devices import VISIBLE, check_gpus, devices, slots
from gflowout.runs.environment import cores
from gflowout.runs.work import Task, TimeLimitError, describe, execute

_POLL = 0.1  # seconds between two looks at limits and at processes that died
_POLL_ENDING = 0.005  # the same, while a process is about to end


@dataclass(frozen=True)
class Started:
    """An attempt at a run has begun."""

    task: Task


@dataclass(frozen=True)
class Progress:
    """A run tells how far it is."""

    task: Task
    step: int
    steps: int
    message: str


@dataclass(frozen=True)
class Ended:
    """An attempt is over. ``again``: it failed and will be tried again."""

    task: Task
    record: dict[str, Any]
    again: bool = False

    @property
    def failed(self) -> bool:
        """Whether the attempt failed."""
        return self.record["error"] is not None


@dataclass(frozen=True)
class Tick:
    """A moment has passed."""


Event = Started | Progress | Ended | Tick
Listener = Callable[[Event], None]


class Engine(ABC):
    """A way to do many runs.

    A subclass starts tasks and reports on them; the loop, and with it retries, is here.

    Examples:
        >>> from gflowout.runs import engine
        >>> isinstance(engine("inline"), Engine)
        True
    """

    def map(
        self,
        tasks: Iterable[Task],
        listen: Listener,
        *,
        retries: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """Do all tasks; a failing one does not stop the others.

        Args:
            tasks: What to do, in this order as far as possible.
            listen: Is called with each event, in the thread of the caller. What it raises stops
                everything and passes through, like Ctrl-C.
            retries: How often a run that failed is tried again.
            limits: Time and memory of each attempt.
        """
        waiting = deque(tasks)
        checks.integer("retries", retries, low=0)
        left = {task.run.id: retries for task in waiting}
        running = 0
        if not waiting:
            return
        try:
            self.open(limits or Limits(), listen)
            while waiting or running:
                while waiting and self.room():
                    self.begin(waiting.popleft())
                    running += 1
                for event in self.poll():
                    if isinstance(event, Ended):
                        running -= 1
                        if event.failed and left[event.task.run.id]:
                            left[event.task.run.id] -= 1
                            waiting.append(replace(event.task, attempt=event.task.attempt + 1))
                            event = replace(event, again=True)
                    listen(event)
                listen(Tick())
        finally:
            self.close()

    @abstractmethod
    def open(self, limits: Limits, listen: Listener) -> None:
        """Prepare, before the first task."""

    @abstractmethod
    def room(self) -> bool:
        """Whether another task can be started now."""

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Start a task, or queue it."""

    @abstractmethod
    def poll(self) -> Iterator[Event]:
        """New events; waits a moment if there are none."""

    @abstractmethod
    def close(self) -> None:
        """End whatever still runs. May be called at any moment, also before :meth:`open`."""


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
            where = "with the inline engine outside the main thread"
            raise ValueError(f"time_limit must be None {where}; take 'pool'")
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
        started, clock = records.now(), time.perf_counter()
        try:
            with _alarm(self._limits.seconds):
                return execute(task, lambda *step: self._listen(Progress(task, *step)))
        except TimeLimitError as error:  # it came just before or after the run's own code
            return task.record(started, time.perf_counter() - clock, error=describe(error))


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimeLimitError` in this thread after so many seconds."""
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


class Pool(Engine):
    """Runs in processes of their own, several at once.

    A run that crashes its interpreter, or is killed, fails alone. Where the machine has GPUs, every
    run sees its own ones only (``CUDA_VISIBLE_DEVICES``) and has its share of the cores; else a run
    has one thread.

    Args:
        jobs: How many at once; by default as many as ``gpus`` allows, or as there are cores.
        start: ``"spawn"``: each run has a fresh interpreter, which takes seconds to start.
            ``"fork"``: each is a copy of this process and starts in milliseconds; not for GPUs,
            nor for a process that has threads of its own.
        gpus: GPUs per run: a whole number, or a part of one that several runs share. By default
            one where there are some, shared if ``jobs`` are more than GPUs. 0 hides them.

    Examples:
        >>> Pool(jobs=2, gpus=0)
        Pool(jobs=2, start='spawn')
    """

    def __init__(
        self, jobs: int | None = None, start: str = "spawn", gpus: float | None = None
    ) -> None:
        self.start = checks.choice("start", start, ("spawn", "fork"))
        self.jobs = cores() if jobs is None else checks.integer("jobs", jobs, low=1)
        self.gpus, self._free = self._share(jobs, gpus)
        if jobs is None and self._free:
            self.jobs = len(self._free)
        self._limits = Limits()
        self._children: dict[Child, str | None] = {}  # with the devices of each
        self._new: list[Task] = []

    def __repr__(self) -> str:
        gpus = f", gpus={self.gpus:g}" if self.gpus else ""
        return f"Pool(jobs={self.jobs}, start={self.start!r}{gpus})"

    def _share(self, jobs: int | None, gpus: float | None) -> tuple[float, list[str]]:
        """GPUs per run, and the devices of each run that fits at once; none without GPUs."""
        if gpus is None and self.start == "spawn" and (names := devices()):
            gpus = 1 / -(-jobs // len(names)) if jobs else 1.0
        if not gpus:
            return check_gpus(gpus or 0.0), []
        if self.start == "fork":
            raise ValueError(f"gpus must be 0 with start='fork', got {gpus:g}; take 'spawn'")
        names = devices()
        free = slots(names, check_gpus(gpus))
        if len(free) < (jobs or 1):
            raise ValueError(
                f"gpus must leave room for {jobs or 1} at once on the {len(names)} GPUs of this "
                f"machine, got {gpus:g} per run"
            )
        return gpus, free

    def open(self, limits: Limits, listen: Listener) -> None:
        """See the base class."""
        self._limits = limits

    def room(self) -> bool:
        """See the base class."""
        return len(self._children) < self.jobs

    def begin(self, task: Task) -> None:
        """See the base class."""
        device, variables = None, {VISIBLE: ""} if devices() else {}
        if self.gpus:
            device = self._free.pop(0)
            variables = {VISIBLE: device}
            task = replace(task, threads=max(1, cores() // self.jobs))
        self._children[Child(task, self._limits, self.start, variables)] = device
        self._new.append(task)

    def poll(self) -> Iterator[Event]:
        """See the base class."""
        while self._new:
            yield Started(self._new.pop(0))
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                if not child.closed:  # a closed channel would always be ready
                    selector.register(child.channel, selectors.EVENT_READ)
            ending = any(child.ending for child in self._children)
            selector.select(_POLL_ENDING if ending else _POLL)
        for child in list(self._children):
            steps: list[tuple[int, int, str]] = []
            record = child.poll(lambda *step, steps=steps: steps.append(step))
            if steps:  # only where it is now
                yield Progress(child.task, *steps[-1])
            if record is not None:
                self._release(child)
                yield Ended(child.task, record)

    def close(self) -> None:
        """See the base class."""
        for child in list(self._children):
            self._release(child)
            child.kill()
        self._new.clear()

    def _release(self, child: Child) -> None:
        device = self._children.pop(child)
        if device is not None:
            self._free.append(device)
