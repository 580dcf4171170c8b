"""What runs will cost: from records that are there, or from a short run of each kind."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.core.text import duration
from gflowout.runs import Engine, Inline, Pool, Run, records
from gflowout.runs.work import Task, execute

EPOCHS = "fit.epochs"
Kind = tuple[str, str]
"""Method and data, or the like: what runs of about the same cost have in common."""

Sort = Callable[[Run], Kind]


def by_method(run: Run) -> Kind:
    """Method and data of a run."""
    return run.method, run.data


@dataclass(frozen=True)
class Price:
    """Seconds of one run of a kind, and how they are known."""

    seconds: float | None
    source: str


def from_records(folder: Path, studies: Iterable[str], sort: Sort = by_method) -> dict[Kind, Price]:
    """Mean seconds of the runs that are done in a folder, by kind."""
    wanted, spent = set(studies), dict[Kind, list[float]]()
    for record in records.read(folder, records.DONE) if folder.is_dir() else ():
        if record["study"] in wanted:
            spent.setdefault(sort(Run.from_dict(record)), []).append(record["seconds"])
    return {
        kind: Price(sum(each) / len(each), f"mean of {len(each)} done")
        for kind, each in spent.items()
    }


def measure(run: Run, work: str, engine: Engine | None = None) -> Price:
    """Do two epochs of a run here and now, in a temporary folder; the others take as long.

    What comes before, such as reading data, is counted once, and so is the start of a process. The
    first run of all is done twice: it also loads libraries. A run that tells nothing of its
    progress is taken to spend all its time in epochs, which makes the price too high.

    Args:
        run: One of the kind.
        work: The function that does it.
        engine: What will do the runs; by default one that starts a process for each.
    """
    options = run.to_dict()["options"]
    # Studies of the paper keep the configuration of all their arms under one key.
    place = options.get("base") if isinstance(options.get("base"), dict) else options
    epochs = place.get(EPOCHS)
    if not isinstance(epochs, int):
        return Price(None, "not known before a run is done")
    few = min(epochs, 2)
    place[EPOCHS] = few
    short = Run(run.study, run.method, run.data, run.seed, options)
    _warm_up(short, work)
    half: list[float] = []
    last: list[float] = []

    def hear(step: int, steps: int, message: str) -> None:
        if 2 * step == steps:
            half.append(time.perf_counter())
        elif step == steps:
            last.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        record = execute(Task(work, short, Path(folder)), hear)
    if record["error"] is not None:
        return Price(None, f"a short run failed: {record['error']['message']}")
    whole, start = float(record["seconds"]), starting(engine)
    if few == epochs:
        return Price(start + whole, "measured once")
    if half and last:
        whole += (epochs - few) * (last[0] - half[0])
        return Price(start + whole, f"from {few} epochs, measured")
    return Price(start + whole * epochs / few, f"at most, from {few} epochs in {whole:.1f} s")


_warm: set[str] = set()


def _warm_up(run: Run, work: str) -> None:
    """Do a run once for nothing, so that the first kind is not charged for loading libraries."""
    if work not in _warm:
        _warm.add(work)
        with tempfile.TemporaryDirectory() as folder:
            execute(Task(work, run, Path(folder)), lambda *_: None)


def starting(engine: Engine | None = None) -> float:
    """Seconds that a run takes to start: none where it is done here or in a copy of this process.

    Args:
        engine: What will do the runs; by default one that starts a process for each.
    """
    copies = isinstance(engine, Pool) and engine.start == "fork"
    return 0.0 if copies or isinstance(engine, Inline) else start_up()


@functools.cache
def start_up() -> float:
    """Seconds that a process takes to start and to load the libraries of training."""
    began = time.perf_counter()
    code = "import gflowout.app.run, lightning.pytorch"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return time.perf_counter() - began


def report(
    kinds: Mapping[Kind, tuple[int, int]],
    known: Mapping[Kind, Price],
    price: Callable[[Kind], Price],
    workers: int | None,
) -> list[str]:
    """A table of what is left to do and what it will take.

    Args:
        kinds: Numbers of runs, all and done, by kind.
        known: Prices that are known.
        price: Finds the price of another kind.
        workers: Runs at once; ``None`` if nobody knows.
    """
    lines, total, certain = left_to_do(kinds, known, price)
    return [*lines, sum_up(total, workers, certain)]


def left_to_do(
    kinds: Mapping[Kind, tuple[int, int]],
    known: Mapping[Kind, Price],
    price: Callable[[Kind], Price],
) -> tuple[list[str], float, bool]:
    """A line for each kind, all seconds that are known together, and whether all are known."""
    lines, total, certain = [], 0.0, True
    for kind, (count, done) in kinds.items():
        left = count - done
        each = known.get(kind) or (price(kind) if left else Price(None, "nothing left to do"))
        if each.seconds is not None:
            total += left * each.seconds
        elif left:
            certain = False
        cost = "" if each.seconds is None else f" at {duration(each.seconds)}"
        method, data = kind
        lines.append(f"{method} on {data}: {left} of {count} runs to do{cost} ({each.source})")
    return lines, total, certain


def sum_up(total: float, workers: int | None, certain: bool = True) -> str:
    """One line on all seconds together.

    Args:
        total: Seconds that are known.
        workers: Runs at once; ``None`` if nobody knows.
        certain: Whether that is all.
    """
    if not certain and not total:
        return "estimated cost: not known"
    share = "" if workers is None else f", about {duration(total / workers)} with {workers} at once"
    rest = "" if certain else "; and what is not known"
    return f"estimated cost: {duration(total)} of computing{share}{rest}"


def tally(
    runs: Iterable[Run], finished: set[str], sort: Sort = by_method
) -> dict[Kind, tuple[int, int]]:
    """Numbers of runs, all and done, by kind."""
    found: dict[Kind, tuple[int, int]] = {}
    for run in runs:
        count, done = found.get(sort(run), (0, 0))
        found[sort(run)] = (count + 1, done + (run.id in finished))
    return found


def first(runs: Iterable[Run], sort: Sort = by_method) -> Callable[[Kind], Run]:
    """Finds the first run of a kind."""
    by_kind: dict[Any, Run] = {}
    for run in runs:
        by_kind.setdefault(sort(run), run)
    return by_kind.__getitem__
