"""All runs of the demo, in parallel, and what is printed of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gflowout.core.atomic_io import write_text
from gflowout.studies.demo import metrics, page
from gflowout.studies.demo.study import BASELINE, DRAWS, METHODS, Run, execute


@dataclass(frozen=True)
class Settings:
    """What the user can choose.

    Attributes:
        seeds: Number of seeds, counted from 0.
        epochs: Passes over the training data.
        jobs: Processes, with one thread each; 1 runs in this process.
        quick: Whether this is only to see that it works.
    """

    seeds: int = 5
    epochs: int = 60
    jobs: int = 2
    quick: bool = False

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        return f"gflowout demo --seeds {self.seeds} --epochs {self.epochs}"


def run(settings: Settings, out: Path, console: Console | None = None) -> metrics.Table:
    """Train every method with every seed, print a table, write a page.

    Args:
        settings: See :class:`Settings`.
        out: The page.
        console: Where to print; the terminal if not given.

    Returns:
        The scores behind the table.
    """
    console = console or Console()
    start = time.perf_counter()
    runs = train_all(settings, console)
    scores = collect(runs)
    findings = metrics.findings(scores, BASELINE, settings.seeds)
    seconds = time.perf_counter() - start
    notes = describe(settings, seconds)
    console.print(table(scores))
    for line in notes:
        console.print(line, highlight=False)
    console.print()
    for line in findings:
        console.print(f"- {line}", highlight=False)
    write_text(out, page.build(runs, scores, findings, notes, settings.command))
    console.print(f"\nPictures and explanations: {out}", highlight=False, soft_wrap=True)
    return scores


def train_all(settings: Settings, console: Console) -> list[Run]:
    """Run every method with every seed behind a progress bar; order does not depend on timing."""
    # The dearest method comes last in the table: starting with it leaves no core idle at the end.
    todo = [(name, seed) for name in reversed(METHODS) for seed in range(settings.seeds)]
    done: dict[tuple[str, int], Run] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=len(todo))
        for run in _results(todo, settings):
            done[run.method, run.seed] = run
            progress.update(task, advance=1, description=f"training ({run.method} done)")
    return [done[name, seed] for name in METHODS for seed in range(settings.seeds)]


def collect(runs: Sequence[Run]) -> metrics.Table:
    """Arrange the scores of runs by method and metric, seeds in order."""
    return {
        name: {
            metric.key: [run.scores[metric.key] for run in runs if run.method == name]
            for metric in metrics.METRICS
        }
        for name in METHODS
    }


def table(scores: metrics.Table) -> Table:
    """Lay out means with standard errors below them; fits 80 columns."""
    result = Table(box=box.SIMPLE_HEAD, padding=0, title="mean ± standard error over seeds")
    result.add_column("\nmethod", no_wrap=True)
    for metric in metrics.METRICS:
        name = metric.name.replace("AUROC MI", "by MI")
        result.add_column(f"{metric.data}\n{name}", justify="right", no_wrap=True)
    for method, values in scores.items():
        cells = []
        for metric in metrics.METRICS:
            mean, error = metrics.mean_and_error(values[metric.key])
            below = "" if error != error else f"\n[dim]±{metric.show(error)}[/dim]"
            cells.append(metric.show(mean) + below)
        result.add_row(method, *cells)
    return result


def describe(settings: Settings, seconds: float) -> list[str]:
    """Say what the numbers are numbers of."""
    seeds = f"{settings.seeds} seed" + ("s" if settings.seeds > 1 else "")
    lines = [
        "Data: scikit-learn's 1,797 digits; 1,000 to train, 297 to choose the epoch by NLL, 500 to "
        "test. rotated: test digits turned by up to 90° either way. photos: telling test digits "
        "from as many 8x8 patches of two photographs, which are the positive class.",
        f"Scores: from the average of {DRAWS} draws' probabilities. ECE with {metrics.BINS} bins. "
        "AUROC and AUPR score by predictive entropy; by MI: AUROC by mutual information.",
        f"Runs: {seeds} (split, weights and masks), {settings.epochs} epochs each, library "
        f"defaults, nothing tuned on test; {seconds:.0f} s on a {os.cpu_count()}-core CPU.",
    ]
    if settings.quick:
        lines.append(
            "This is a quick run: the models are hardly trained, the numbers mean nothing."
        )
    return lines


def _results(todo: Sequence[tuple[str, int]], settings: Settings) -> Iterator[Run]:
    if settings.jobs == 1:
        yield from (execute(name, seed, settings.epochs) for name, seed in todo)
        return
    workers = min(settings.jobs, len(todo))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    before = set(multiprocessing.active_children())
    try:
        with _interrupts_ignored():
            futures = [pool.submit(execute, name, seed, settings.epochs) for name, seed in todo]
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that leave Ctrl-C to this one: they inherit that it is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
