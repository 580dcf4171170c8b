"""Time the cases of a table, round robin, and compare the times."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

import gflowout as gfo
from gflowout.runs.environment import machine, versions

_SHORTEST = 0.01  # seconds; faster calls are repeated within one measurement
_LONG = 1.0  # seconds; slower calls need no second one to get warm

Case = Callable[[], object]
Further = Callable[[dict[str, Case], dict[str, float]], dict[str, dict[str, float]]]
"""``further(cases, median seconds) -> figures by name``, each by case."""


@dataclass(frozen=True)
class Table:
    """One comparison; ``name`` is its key in the JSON file, ``title`` is for people."""

    name: str
    title: str
    references: Sequence[str]  # cases that the others are compared with
    repeats: int  # rounds; 0 for a table that is counted, not timed
    # Makes the cases, by name, when the table's turn comes: models of one table are in memory.
    build: Callable[[], dict[str, Case]]
    further: Further | None = None  # more numbers of the cases, for columns of their own
    cost: float = 1.0  # about how many seconds a round takes, for the progress bar
    needs: Sequence[str] = ()  # packages without which the table is left out, unless asked for
    large: bool = False  # whether it fills the disk, so that it is left out, unless asked for


def measure(
    table: Table, done: Callable[[], object] = lambda: None, *, cpu: bool = False
) -> dict[str, Any]:
    """Time every case of a table, round robin; ``done`` is called at the start and after rounds.

    Returns, by case: seconds per call (with ``cpu``, of CPU time) and their ratios to the
    references, each as median and quartiles; ``of_medians``, the ratio of the median seconds; and
    further numbers. Quartiles of a ratio are those of ratios within a round.
    """
    torch.manual_seed(0)
    cases = table.build()
    clock = time.process_time if cpu else time.perf_counter
    numbers = {name: math.ceil(_SHORTEST / _warm(case)) for name, case in cases.items()}
    done()
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(table.repeats):
        first = turn % len(names)  # no case always follows the same neighbour
        for name in names[first:] + names[:first]:
            rounds[name].append(_time(cases[name], clock, numbers[name]))
        done()
    results: dict[str, dict[str, Any]] = {}
    for name, times in rounds.items():
        ratios = {reference: ratio(times, rounds[reference]) for reference in table.references}
        results[name] = {"seconds": summary(times), "ratio_to": ratios}
    if table.further is not None:
        medians = {name: case["seconds"]["median"] for name, case in results.items()}
        for name, figures in table.further(cases, medians).items():
            results.setdefault(name, {"ratio_to": {}})["figures"] = figures
    del cases
    gc.collect()
    return {"title": table.title, "repeats": table.repeats, "cases": results}


def ratio(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """How the times of a case compare with those of another one, round by round."""
    within = [own / other for own, other in zip(times, others, strict=True)]
    return {**summary(within), "of_medians": median(times) / median(others)}


def environment() -> dict[str, Any]:
    """Versions, threads and the class of machine: what a reader needs to compare numbers."""
    computer = machine()
    return {
        "gflowout": gfo.__version__,
        "torch": str(torch.__version__),
        "python": versions()["python"],
        **{name: computer[name] for name in ("system", "cpu", "cores")},
        "threads": torch.get_num_threads(),
    }


def _warm(case: Case) -> float:
    """Run a case twice, or once if that takes long, and return the seconds of the last call."""
    seconds = _time(case, time.perf_counter)
    return seconds if seconds > _LONG else _time(case, time.perf_counter)


def _time(case: Case, clock: Callable[[], float], number: int = 1) -> float:
    """Seconds per call."""
    start = clock()
    for _ in range(number):
        case()
    return (clock() - start) / number


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = (
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    )
    return {"median": middle, "quartile_1": low, "quartile_3": high}
