"""The same runs in two folders: are their figures the same?

``gflowout study compare`` prints what this finds. A run is the same if its id is, which is made of
study, method, data, seed and options. Knows records by their fields only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gflowout.studies.framework.summary import numbers

TIMES = "cost"
"""The study whose figures are times, and in others the first part of the names of such figures."""


@dataclass(frozen=True)
class Repeat:
    """Runs of one study on one data set that are in both folders.

    Attributes:
        study: Name of the study.
        data: Name of the data.
        runs: How many there are.
        same: How many of them have figures within the tolerance.
        largest: Largest difference of a figure; infinite if only one of the two has it.
        metric: Name of that figure; empty if there is no difference.
        run: Id of its run.
        machines: Whether some of the runs were on two kinds of processor, which may round
            otherwise.
    """

    study: str
    data: str
    runs: int
    same: int
    largest: float = 0.0
    metric: str = ""
    run: str = ""
    machines: bool = False


def repeats(
    first: Iterable[Mapping[str, Any]],
    second: Iterable[Mapping[str, Any]],
    tolerance: float = 0.0,
) -> list[Repeat]:
    """Compare runs that are in both; times are left out.

    Args:
        first: Records of runs that are done, from :func:`gflowout.runs.read`.
        second: Those of another folder.
        tolerance: Largest difference of a figure that still counts as the same.

    Examples:
        >>> one = {"id": "a", "study": "s", "data": "d", "metrics": {"nll": 0.5}}
        >>> repeats([one], [one])[0].same
        1
        >>> found = repeats([one], [{**one, "metrics": {"nll": 0.75}}])[0]
        >>> found.same, found.largest, found.metric
        (0, 0.25, 'nll')
    """
    others = {record["id"]: record for record in second}
    found: dict[tuple[str, str], list[tuple[float, str, str, bool]]] = {}
    for record in first:
        other = others.get(record["id"])
        if other is None or record["study"] == TIMES:
            continue
        largest, metric = difference(record["metrics"], other["metrics"])
        moved = _processor(record) != _processor(other)
        place = found.setdefault((record["study"], record["data"]), [])
        place.append((largest, metric, record["id"], moved))
    made = []
    for (study, data), runs in sorted(found.items()):
        largest, metric, run, _ = max(runs, key=lambda each: each[0])
        made.append(
            Repeat(
                study,
                data,
                len(runs),
                sum(each[0] <= tolerance for each in runs),
                largest,
                metric,
                run if metric else "",
                any(each[3] for each in runs),
            )
        )
    return made


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, str]:
    """The largest difference between two sets of metrics, and the name of the figure.

    Figures that are both NaN, or the same infinity, are the same.

    Examples:
        >>> difference({"nll": 0.5, "cost/train": 3.0}, {"nll": 0.5, "cost/train": 4.0})
        (0.0, '')
    """
    ours, theirs = numbers(_curves(first)), numbers(_curves(second))
    largest, where = 0.0, ""
    for name in dict.fromkeys((*ours, *theirs)):
        if name.startswith(f"{TIMES}/"):
            continue
        one, other = ours.get(name), theirs.get(name)
        apart = _apart(one, other)
        if apart > largest:
            largest, where = apart, name
    return largest, where


def _curves(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with lists as mappings, so that points of curves are figures, too."""
    found = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            value = {str(place): each for place, each in enumerate(value)}
        found[name] = _curves(value) if isinstance(value, Mapping) else value
    return found


def _processor(record: Mapping[str, Any]) -> Any:
    return (record.get("machine") or {}).get("cpu")


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None or math.isnan(one) != math.isnan(other):
        return math.inf
    return 0.0 if one == other or math.isnan(one) else abs(one - other)
