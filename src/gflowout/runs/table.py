"""Progress of a study: a live table in a terminal, a line per run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gflowout.core.optional import MissingExtraError, require
from gflowout.core.text import duration
from gflowout.runs.engines import Ended, Event, Progress, Started

_REFRESH = 0.25  # seconds
_SHORTEST = 0.05  # seconds to go that are worth a word
_ROWS = 30  # running runs that are shown


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
        if self.skipped:
            parts.append(f"{self.skipped} of them before")
        if self.retried:
            parts.append(f"{self.retried} tried again")
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if self.left:
            parts.append(f"{self.left} left")
        remaining = None if ended else self.remaining()
        if remaining is not None and remaining >= _SHORTEST:
            parts.append(f"about {duration(remaining)} to go")
        return ", ".join(parts)


class Lines:
    """A line for each attempt that has ended."""

    def __init__(self, tally: Tally, write: Callable[[str], None] | None = None) -> None:
        self.tally = tally
        self._write = write or (lambda text: print(text, file=sys.stderr, flush=True))

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def hear(self, event: Event) -> None:
        """Count an event and show it."""
        self.tally.hear(event)
        if isinstance(event, Ended):
            self._write(f"{verdict(event)} [{self.tally.line()}]")


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
        if isinstance(event, Ended) and (event.failed or event.again):
            self._console.print(verdict(event), style="red", markup=False, highlight=False)
        if time.monotonic() - self._drawn >= _REFRESH:
            self._drawn = time.monotonic()
            self._live.update(self.draw(), refresh=True)

    def draw(self) -> Any:
        """The table as it is now."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=None, caption=self.tally.line(), expand=True)
        table.add_column("run", ratio=4, overflow="fold")
        table.add_column("attempt", justify="right")
        table.add_column("step", justify="right")
        table.add_column("time", justify="right")
        table.add_column("", ratio=3, overflow="ellipsis", no_wrap=True)
        now = time.monotonic()
        for name, row in list(self.tally.rows.items())[:_ROWS]:
            step = f"{row.step}/{row.steps}" if row.steps else str(row.step or "")
            # Text, so that brackets in a message are not taken for markup.
            table.add_row(
                name, str(row.attempt), step, duration(now - row.since), Text(row.message)
            )
        if len(self.tally.rows) > _ROWS:
            table.add_row(f"and {len(self.tally.rows) - _ROWS} more", "", "", "", "")
        return table


def display(tally: Tally, progress: bool) -> Lines | Live:
    """Choose a live table for a terminal, plain lines otherwise."""
    if not progress:
        return Lines(tally, lambda text: None)
    if sys.stderr.isatty():
        try:
            return Live(tally)
        except MissingExtraError:
            pass  # plain lines need no extra
    return Lines(tally)


def verdict(event: Ended) -> str:
    """One line on how an attempt has ended."""
    name, seconds = event.task.run.id, duration(event.record["seconds"])
    if not event.failed:
        return f"{name}: done in {seconds}"
    then = "; will be tried again" if event.again else ""
    why = event.record["error"]["message"]
    return f"{name}: attempt {event.task.attempt} failed after {seconds}: {why}{then}"
