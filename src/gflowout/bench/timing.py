"""Timing the cases of a table, round robin, and putting the times in relation."""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

import gflowout as gfo

_SHORTEST = 0.01  # seconds; faster calls are repeated within one measurement

Case = Callable[[], object]


@dataclass(frozen=True)
class Table:
    """One comparison.

    Attributes:
        name: Key in the JSON file.
        title: What is measured, for people.
        references: Cases that the others are compared with.
        repeats: Rounds.
        build: Makes the cases, by name. Called when the table's turn comes, so that only one
            table's models are in memory.
    """

    name: str
    title: str
    references: Sequence[str]
    repeats: int
    build: Callable[[], dict[str, Case]]


def measure(table: Table, done: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Time every case of a table, round robin.

    Args:
        table: What to time.
        done: Called after each round.

    Returns:
        Seconds per call and ratios to the references, by case, each as median and quartiles.
    """
    torch.manual_seed(0)
    cases = table.build()
    numbers = {name: math.ceil(_SHORTEST / _warm(case)) for name, case in cases.items()}
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(table.repeats):
        first = turn % len(names)  # no case always follows the same neighbour
        for name in names[first:] + names[:first]:
            rounds[name].append(_time(cases[name], numbers[name]))
        done()
    del cases
    gc.collect()
    return {
        "title": table.title,
        "repeats": table.repeats,
        "cases": {
            name: {
                "seconds": summary(times),
                "ratio_to": {
                    reference: summary(
                        [own / other for own, other in zip(times, rounds[reference], strict=True)]
                    )
                    for reference in table.references
                },
            }
            for name, times in rounds.items()
        },
    }


def environment() -> dict[str, Any]:
    """Versions, threads and the class of machine: what a reader needs to compare figures."""
    return {
        "gflowout": gfo.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _warm(case: Case) -> float:
    """Run a case twice and return the seconds of the second call."""
    case()
    return _time(case, 1)


def _time(case: Case, number: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    for _ in range(number):
        case()
    return (time.perf_counter() - start) / number


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = (
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    )
    return {"median": median, "quartile_1": low, "quartile_3": high}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
