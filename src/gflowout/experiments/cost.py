"""What runs will cost: from records that are there, or from one short run of each kind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.runs import Inline, Run, records, run_study
from gflowout.runs.table import span

EPOCHS = "fit.epochs"
Kind = tuple[str, str]
"""Method and data: what runs of about the same cost have in common."""


@dataclass(frozen=True)
class Price:
    """Seconds of one run of a kind, and how they are known."""

    seconds: float | None
    source: str


def from_records(folder: Path, studies: Iterable[str]) -> dict[Kind, Price]:
    """Mean seconds of the runs that are done in a folder, by kind."""
    wanted, spent = set(studies), dict[Kind, list[float]]()
    for record in records.read(folder, records.DONE) if folder.is_dir() else ():
        if record["study"] in wanted:
            spent.setdefault((record["method"], record["data"]), []).append(record["seconds"])
    return {
        kind: Price(sum(each) / len(each), f"mean of {len(each)} done")
        for kind, each in spent.items()
    }


def measure(run: Run, work: str) -> Price:
    """Do one epoch of a run here and now, in a temporary folder, and multiply."""
    epochs = run.options.get(EPOCHS)
    if not isinstance(epochs, int):
        return Price(None, "not known before a run is done")
    short = Run(run.study, run.method, run.data, run.seed, {**run.to_dict()["options"], EPOCHS: 1})
    with tempfile.TemporaryDirectory() as folder:
        summary = run_study(
            [short], work, folder, engine=Inline(), retries=0, time_limit=None, progress=False
        )
        if summary.failed:
            return Price(None, f"a short run failed: {next(iter(summary.failed.values()))}")
        (record,) = records.read(folder, records.DONE)
    return Price(
        record["seconds"] * epochs, f"at most, from one epoch in {record['seconds']:.1f} s"
    )


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
    lines, total, certain = [], 0.0, True
    for kind, (count, done) in kinds.items():
        left = count - done
        each = known.get(kind) or (price(kind) if left else Price(None, "nothing left to do"))
        if each.seconds is not None:
            total += left * each.seconds
        elif left:
            certain = False
        cost = "" if each.seconds is None else f" at {span(each.seconds)}"
        method, data = kind
        lines.append(f"{method} on {data}: {left} of {count} runs to do{cost} ({each.source})")
    if not certain:
        return [*lines, "estimated cost: not known"]
    share = "" if workers is None else f", about {span(total / workers)} with {workers} at once"
    return [*lines, f"estimated cost: {span(total)} of computing{share}"]


def tally(runs: Iterable[Run], finished: set[str]) -> dict[Kind, tuple[int, int]]:
    """Numbers of runs, all and done, by kind."""
    found: dict[Kind, tuple[int, int]] = {}
    for run in runs:
        count, done = found.get((run.method, run.data), (0, 0))
        found[run.method, run.data] = (count + 1, done + (run.id in finished))
    return found


def first(runs: Iterable[Run]) -> Callable[[Kind], Run]:
    """Finds the first run of a kind."""
    by_kind: dict[Any, Run] = {}
    for run in runs:
        by_kind.setdefault((run.method, run.data), run)
    return by_kind.__getitem__
