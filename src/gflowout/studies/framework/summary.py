"""Final metrics of a folder of records: mean and standard error over seeds, as one table.

A group is all that differs in the seed only. Knows nothing of what the metrics mean.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gflowout.core import checks
from gflowout.core.text import markdown_table
from gflowout.runs.values import canonical

SEEDS = ("seed", "data.seed")
"""Options that do not make another group."""

SHOWN = 8
"""Of metrics that a message names, if there are more."""


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


def groups(records: Iterable[Mapping[str, Any]], metrics: Sequence[str] = ("*",)) -> list[Group]:
    """Records of runs that are done, in groups, in the order of their names.

    Args:
        records: From :func:`gflowout.runs.read`, with status ``"done"``.
        metrics: Names or patterns of those to take.

    Raises:
        ValueError: If there is none of such a name.
    """
    found: dict[tuple[str, str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for record in records:
        place = found.setdefault((record["study"], record["data"], record["method"]), {})
        place.setdefault(canonical(_options(record)), []).append(record)
    made, known = [], dict[str, None]()
    for (study, data, method), parts in sorted(found.items()):
        choices = [_options(part[0]) for part in parts.values()]
        names = sorted({name for options in choices for name in options})
        differ = [
            name for name in names if len({canonical(each.get(name)) for each in choices}) > 1
        ]
        pairs = zip(choices, parts.values(), strict=True)
        for options, part in sorted(
            pairs, key=lambda pair: [_order(pair[0].get(n)) for n in differ]
        ):
            part = sorted(part, key=lambda record: int(record["seed"]))
            values: dict[str, list[float]] = {}
            for record in part:
                for name, value in numbers(record["metrics"]).items():
                    known.setdefault(name)
                    if any(fnmatchcase(name, pattern) for pattern in metrics):
                        values.setdefault(name, []).append(value)
            chosen = {name: options[name] for name in differ if name in options}
            seeds = [record["seed"] for record in part]
            made.append(Group(study, data, method, chosen, seeds, values))
    for pattern in metrics:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(
                f"metric must be one of {_some(pattern, list(known))}, got {pattern!r}"
                f"{checks.suggest(pattern, known)}"
            )
    return made


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers among metrics, by dotted name.

    Examples:
        >>> numbers({"nll": 0.5, "by": {"snow": 1}, "name": "x", "good": True})
        {'nll': 0.5, 'by.snow': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
    return found


def mean_error(values: list[float]) -> tuple[float, float]:
    """Mean, and standard error of the mean; NaN for one value.

    Examples:
        >>> mean_error([1.0, 3.0])
        (2.0, 1.0)
    """
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    if len(values) < 2 or math.isnan(mean):
        return mean, math.nan
    return mean, statistics.stdev(values) / math.sqrt(len(values))


def markdown(found: list[Group]) -> str:
    """A table for people: ``mean ± standard error``."""
    names = _names(found)
    rows = [["study", "data", "method", "options", "seeds", *names]]
    for group in found:
        options = ", ".join(f"{name}={_text(value)}" for name, value in group.options.items())
        head = [group.study, group.data, group.method, options, str(len(group.seeds))]
        rows.append([*head, *(_cell(group.metrics.get(name, [])) for name in names)])
    for place in (3, 0):  # columns that say nothing
        values = {row[place] for row in rows[1:]}
        if values == {""} or (place == 0 and len(values) == 1):
            rows = [row[:place] + row[place + 1 :] for row in rows]
    return markdown_table(rows)


def table(found: list[Group]) -> str:
    """The same as CSV, with every digit and a column each for mean, error and number."""
    names = _names(found)
    differ = list(dict.fromkeys(name for group in found for name in group.options))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = [f"{name} {part}" for name in names for part in ("mean", "error", "runs")]
    writer.writerow(["study", "data", "method", *differ, "seeds", *parts])
    for group in found:
        row: list[Any] = [group.study, group.data, group.method]
        row += [
            _text(group.options[name], full=True) if name in group.options else ""
            for name in differ
        ]
        row.append(" ".join(map(str, group.seeds)))
        for name in names:
            values = group.metrics.get(name, [])
            mean, error = mean_error(values) if values else (math.nan, math.nan)
            row += [
                *("" if math.isnan(each) else repr(each) for each in (mean, error)),
                len(values),
            ]
        writer.writerow(row)
    return stream.getvalue()


def _options(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record["options"].items() if name not in SEEDS}


def _order(value: Any) -> tuple[float, str]:
    """Numbers by their size, then all else by its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (float(value), "") if is_number else (math.inf, canonical(value))


def _some(pattern: str, known: list[str]) -> str:
    """Names of metrics, or those that are nearest to a pattern where there are many."""
    if len(known) <= SHOWN:
        return ", ".join(known)
    near = difflib.get_close_matches(pattern, known, n=SHOWN, cutoff=0.0)
    return f"{len(known)}, such as {', '.join(near)} (all: `--format csv`)"


def _names(found: list[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in found for name in group.metrics))


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    mean, error = mean_error(values)
    return f"{mean:.4f}" if math.isnan(error) else f"{mean:.4f} ± {error:.4f}"


def _text(value: Any, full: bool = False) -> str:
    if isinstance(value, float):
        return repr(value) if full else f"{value:.4g}"
    return str(value)
