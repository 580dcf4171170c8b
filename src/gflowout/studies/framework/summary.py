"""Folders of records as tables: means over seeds of all groups, and repeated runs compared."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gflowout.core import checks
from gflowout.core.text import markdown_table
from gflowout.runs.spec import canonical
from gflowout.studies.framework.statistics import Record, mean_error, numbers

__all__ = ["TIMES", "Group", "Repeat", "difference", "groups", "markdown", "mean_error", "numbers"]
__all__ += ["repeats", "table"]

SEEDS = ("seed", "data.seed")
"""Options that do not make another group."""
SHOWN = 8
"""Metrics that an error message names, if there are more."""
TIMES = "cost"
"""The study whose metrics are times; elsewhere the first part of the names of such metrics."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        study: Name of the study.
        data: Name of the data.
        method: Name of the method.
        options: Those that differ between groups of this method on these data.
        seeds: Of its runs.
        metrics: Values by name, one for each run that has it.
    """

    study: str
    data: str
    method: str
    options: dict[str, Any]
    seeds: list[int]
    metrics: dict[str, list[float]]


def groups(records: Iterable[Record], metrics: Sequence[str] = ("*",)) -> list[Group]:
    """Records of runs that are done, in groups, in the order of their names.

    Args:
        records: From :func:`gflowout.runs.read`, with status ``"done"``.
        metrics: Names or patterns of those to take.

    Raises:
        ValueError: If there is none of such a name.
    """
    runs: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for record in records:
        parts = runs.setdefault((record["study"], record["data"], record["method"]), {})
        parts.setdefault(canonical(_options(record)), []).append(record)
    made, available = list[Group](), dict[str, None]()
    for (study, data, method), parts in sorted(runs.items()):
        choices = [_options(part[0]) for part in parts.values()]
        names = sorted({name for options in choices for name in options})
        differ = [n for n in names if len({canonical(options.get(n)) for options in choices}) > 1]
        ordered = sorted(
            zip(choices, parts.values(), strict=True),
            key=lambda pair: [_order(pair[0].get(name)) for name in differ],
        )
        for options, part in ordered:
            values: dict[str, list[float]] = {}
            part.sort(key=lambda record: int(record["seed"]))
            for record in part:
                for name, value in numbers(record["metrics"]).items():
                    available.setdefault(name)
                    if any(fnmatchcase(name, pattern) for pattern in metrics):
                        values.setdefault(name, []).append(value)
            chosen = {name: options[name] for name in differ if name in options}
            seeds = [record["seed"] for record in part]
            made.append(Group(study, data, method, chosen, seeds, values))
    for pattern in metrics:
        if not any(fnmatchcase(name, pattern) for name in available):
            listed = ", ".join(available)
            if len(available) > SHOWN:
                near = difflib.get_close_matches(pattern, available, n=SHOWN, cutoff=0.0)
                listed = f"{len(available)}, such as {', '.join(near)} (all: `--format csv`)"
            raise ValueError(
                f"metric must be one of {listed}, got {pattern!r}"
                f"{checks.suggest(pattern, available)}"
            )
    return made


def markdown(rows: Sequence[Group]) -> str:
    """A table for people: ``mean ± standard error``."""
    names = _names(rows)
    lines = [["study", "data", "method", "options", "seeds", *names]]
    for group in rows:
        options = ", ".join(
            f"{name}={f'{value:.4g}' if isinstance(value, float) else value}"
            for name, value in group.options.items()
        )
        head = [group.study, group.data, group.method, options, str(len(group.seeds))]
        lines.append([*head, *(_cell(group.metrics.get(name, [])) for name in names)])
    for place in (3, 0):  # columns that say nothing
        values = {line[place] for line in lines[1:]}
        if values == {""} or (place == 0 and len(values) == 1):
            lines = [line[:place] + line[place + 1 :] for line in lines]
    return markdown_table(lines)


def table(rows: Sequence[Group]) -> str:
    """The same as CSV, with every digit and a column each for mean, error and number."""
    names = _names(rows)
    differ = list(dict.fromkeys(name for group in rows for name in group.options))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = [f"{name} {part}" for name in names for part in ("mean", "error", "runs")]
    writer.writerow(["study", "data", "method", *differ, "seeds", *parts])
    for group in rows:
        row: list[Any] = [group.study, group.data, group.method]
        row += [str(group.options.get(name, "")) for name in differ]
        row.append(" ".join(map(str, group.seeds)))
        for name in names:
            values = group.metrics.get(name, [])
            pair = mean_error(values) if values else (math.nan, math.nan)
            row += ["" if math.isnan(value) else repr(value) for value in pair]
            row.append(len(values))
        writer.writerow(row)
    return stream.getvalue()


def _options(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record["options"].items() if name not in SEEDS}


def _order(value: Any) -> tuple[float, str]:
    """Numbers by their size, then all else by its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (float(value), "") if is_number else (math.inf, canonical(value))


def _names(rows: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in rows for name in group.metrics))


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    mean, error = mean_error(values)
    return f"{mean:.4f}" if math.isnan(error) else f"{mean:.4f} ± {error:.4f}"


@dataclass(frozen=True)
class Repeat:
    """Runs of one study on one data set that are in both of two folders.

    A run is the same if its id is, which is made of study, method, data, seed and options.

    Attributes:
        study: Name of the study.
        data: Name of the data.
        runs: How many there are.
        same: How many of them have numbers within the tolerance.
        largest: Largest difference of a number; infinite if only one of the two has it.
        metric: Name of that number; empty if there is no difference.
        run: Id of its run.
        machines: Whether some of the runs were on two kinds of processor, which may round
            differently.
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
    first: Iterable[Record], second: Iterable[Record], tolerance: float = 0.0
) -> list[Repeat]:
    """Compare runs that are in both folders; times are left out.

    Args:
        first: Records of runs that are done, from :func:`gflowout.runs.read`.
        second: Those of another folder.
        tolerance: Largest difference of a number that still counts as the same.

    Examples:
        >>> record = {"id": "a", "study": "s", "data": "d", "metrics": {"nll": 0.5}}
        >>> repeats([record], [record])[0].same
        1
        >>> repeat = repeats([record], [{**record, "metrics": {"nll": 0.75}}])[0]
        >>> repeat.same, repeat.largest, repeat.metric
        (0, 0.25, 'nll')
    """
    others = {record["id"]: record for record in second}
    pairs: dict[tuple[str, str], list[tuple[float, str, str, bool]]] = {}
    for record in first:
        other = others.get(record["id"])
        if other is not None and record["study"] != TIMES:
            largest, metric = difference(record["metrics"], other["metrics"])
            cpus = {(each.get("machine") or {}).get("cpu") for each in (record, other)}
            runs = pairs.setdefault((record["study"], record["data"]), [])
            runs.append((largest, metric, record["id"] if metric else "", len(cpus) > 1))
    made = []
    for (study, data), runs in sorted(pairs.items()):
        same = sum(run[0] <= tolerance for run in runs)
        worst = max(runs, key=lambda run: run[0])
        moved = any(run[3] for run in runs)
        made.append(Repeat(study, data, len(runs), same, *worst[:3], moved))
    return made


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, str]:
    """The largest difference between two sets of metrics, and the name of the metric.

    Values that are both NaN, or the same infinity, are the same.

    Examples:
        >>> difference({"nll": 0.5, "cost/train": 3.0}, {"nll": 0.5, "cost/train": 4.0})
        (0.0, '')
    """
    ours, theirs = numbers(_curves(first)), numbers(_curves(second))
    largest, where = 0.0, ""
    for name in dict.fromkeys((*ours, *theirs)):
        gap = _gap(ours.get(name), theirs.get(name))
        if gap > largest and not name.startswith(f"{TIMES}/"):
            largest, where = gap, name
    return largest, where


def _curves(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with lists as mappings, so that points of curves are numbers, too."""
    nested = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            value = {str(place): point for place, point in enumerate(value)}
        nested[name] = _curves(value) if isinstance(value, Mapping) else value
    return nested


def _gap(ours: float | None, theirs: float | None) -> float:
    if ours is None or theirs is None or math.isnan(ours) != math.isnan(theirs):
        return math.inf
    return 0.0 if ours == theirs or math.isnan(ours) else abs(ours - theirs)
