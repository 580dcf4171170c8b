"""What all engines share: events, and the loop that starts runs, hears of them and retries.

An engine knows how to start one task and what became of it. It knows nothing of records on disk:
whoever listens to its events writes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gflowout.core import checks
from gflowout.runs.child import Limits
from gflowout.runs.work import Task


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
            limits: What each attempt may take.
        """
        waiting = deque(tasks)
        left = dict.fromkeys(
            (task.run.id for task in waiting), checks.integer("retries", retries, low=0)
        )
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
        """Make ready, before the first task."""

    @abstractmethod
    def room(self) -> bool:
        """Whether another task can be started now."""

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Start a task, or put it where it will be started."""

    @abstractmethod
    def poll(self) -> Iterator[Event]:
        """What is new; waits a moment if nothing is."""

    @abstractmethod
    def close(self) -> None:
        """End whatever still runs. May be called at any moment, also before :meth:`open`."""
