"""Numbers of any study: means over seeds in tables and plots, and repeated runs compared."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gflowout.core import checks, text
from gflowout.runs.spec import canonical
from gflowout.studies.framework import content, sections
from gflowout.studies.framework.statistics import Record, mean_error, numbers

SEEDS = ("seed", "data.seed")
"""Options that do not make another group."""
SHOWN = 8
"""Metrics that an error message names, if there are more."""
TIMES = "cost"
"""The study whose metrics are times; elsewhere the first part of the names of such metrics."""
PLOTTED = 4
"""Metrics that get a plot; all are in the tables."""
EPOCHS = ("valid/nll", "valid/accuracy")
"""Metrics of an epoch that get a curve."""

_HIGH = {"accuracy", "auroc", "aupr", "auprc", "f1", "precision", "recall"}
_LOW = {"nll", "loss", "ece", "brier", "fpr95", "error", "rmse", "mae"}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    study: str
    data: str
    method: str
    options: dict[str, Any]  # those that differ between groups of this method on these data
    seeds: list[int]
    metrics: dict[str, list[float]]  # by name, one value for each run that has it

    @property
    def settings(self) -> str:
        """The options as text."""
        return ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.options.items()
        )

    @property
    def title(self) -> str:
        """Method and options."""
        return f"{self.method} ({self.settings})" if self.options else self.method


def groups(records: Iterable[Record], metrics: Sequence[str] = ("*",)) -> list[Group]:
    """Records of runs that are done, in groups, in the order of their names.

    Raises:
        ValueError: If no metric has one of the names, or fits one of the patterns.
    """
    runs: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for record in records:
        parts = runs.setdefault((record["study"], record["data"], record["method"]), {})
        parts.setdefault(canonical(_options(record)), []).append(record)
    all_groups, available = list[Group](), dict[str, None]()
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
            all_groups.append(Group(study, data, method, chosen, seeds, values))
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
    return all_groups


def markdown(rows: Sequence[Group]) -> str:
    """A table for people: ``mean ± standard error``."""
    names = _names(rows)
    lines = [["study", "data", "method", "options", "seeds", *names]]
    for group in rows:
        head = [group.study, group.data, group.method, group.settings, str(len(group.seeds))]
        lines.append([*head, *(_cell(group.metrics.get(name, [])) for name in names)])
    for place in (3, 0):  # columns that say nothing
        values = {line[place] for line in lines[1:]}
        if values == {""} or (place == 0 and len(values) == 1):
            lines = [line[:place] + line[place + 1 :] for line in lines]
    return text.markdown_table([list(map(text.markdown, line)) for line in lines])


def table(rows: Sequence[Group]) -> str:
    """The same as CSV, with every digit and a column each for mean, error and number.

    A name that a spreadsheet would run as a formula has an apostrophe before it.
    """
    names = _names(rows)
    differ = list(dict.fromkeys(name for group in rows for name in group.options))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = [f"{name} {part}" for name in names for part in ("mean", "error", "runs")]
    writer.writerow(map(text.inert, ["study", "data", "method", *differ, "seeds", *parts]))
    for group in rows:
        head = [group.study, group.data, group.method]
        head += [str(group.options.get(name, "")) for name in differ]
        row: list[Any] = [*map(text.inert, head), " ".join(map(str, group.seeds))]
        for name in names:
            values = group.metrics.get(name, [])
            row += ["" if math.isnan(value) else repr(value) for value in mean_error(values)]
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


# The section of a study that the report does not know


def section(records: Sequence[Record], groups: Sequence[Group]) -> content.Section:
    """All numbers of a study in tables and plots, from its records and their groups."""
    data = list(dict.fromkeys(group.data for group in groups))
    tables = [_table(name, [group for group in groups if group.data == name]) for name in data]
    plots = [*_bars(groups, data), *_epochs(records, data)]
    return content.Section(blocks=[*tables, *plots], data=data)


def better(metric: str) -> content.Better | None:
    """Whether high or low values of a metric are good, as far as its name tells.

    Examples:
        >>> better("snow-3/accuracy"), better("test/nll"), better("seconds")
        ('high', 'low', None)
    """
    last = metric.replace(".", "/").rsplit("/", 1)[-1].lower()
    words = set(last.replace("_", "-").split("-"))
    return "low" if words & _LOW else "high" if words & _HIGH else None


def _table(data: str, groups: Sequence[Group]) -> content.Table:
    metrics = _names(groups)
    columns = [content.Column(metric, better(metric), digits=4) for metric in metrics]
    rows = [
        content.Row(group.title, [_mean(group.metrics.get(metric, [])) for metric in metrics])
        for group in groups
    ]
    return content.Table(data, "method", columns, rows)


def _mean(values: Sequence[float]) -> content.Cell:
    return content.Cell(*mean_error(values), len(values)) if values else content.Cell()


def _bars(groups: Sequence[Group], data: Sequence[str]) -> list[content.Block]:
    names = filter(better, _names(groups))
    metrics = sorted(names, key=lambda name: not name.startswith("test"))[:PLOTTED]
    values = {(group.title, group.data): group.metrics for group in groups}
    methods = list(dict.fromkeys(method for method, _ in values))
    if len(methods) < 2:
        return []

    def cells(method: str, metric: str) -> list[content.Cell]:
        return [_mean(values.get((method, name), {}).get(metric, [])) for name in data]

    return [
        content.Bars(metric, metric, data, [(method, cells(method, metric)) for method in methods])
        for metric in metrics
    ]


def _epochs(records: Sequence[Record], data: Sequence[str]) -> list[content.Block]:
    """Curves over epochs: the mean over runs of a method that have kept the epoch."""
    values: dict[tuple[str, str, str], dict[float, list[float]]] = {}
    for record in records:
        for line in record["epochs"]:
            kept = numbers(line) if isinstance(line, Mapping) else {}
            if "epoch" not in kept:
                continue
            for metric in kept.keys() & EPOCHS:
                points = values.setdefault((record["data"], metric, record["method"]), {})
                points.setdefault(kept["epoch"], []).append(kept[metric])
    curves: list[content.Block] = []
    for name in data:
        for metric in EPOCHS:
            series = [
                sections.line(method, sorted(points.items()))
                for (*place, method), points in values.items()
                if place == [name, metric] and len(points) > 1
            ]
            if series:
                curves.append(content.Curves(f"{name}: {metric} by epoch", "epoch", metric, series))
    return curves


# Repeated runs


@dataclass(frozen=True)
class Repeat:
    """Runs of one study on one data set that are in both of two folders.

    A run is the same if its id is, which is made of study, method, data, seed and options.
    """

    study: str
    data: str
    runs: int  # how many there are
    same: int  # how many of them have numbers within the tolerance
    largest: float = 0.0  # difference of a number; infinite if only one of the two has it
    metric: str = ""  # name of that number; empty if there is no difference
    run: str = ""  # id of its run
    machines: bool = (
        False  # whether some were on two kinds of processor, which may round differently
    )


def repeats(
    first: Iterable[Record], second: Iterable[Record], tolerance: float = 0.0
) -> list[Repeat]:
    """Compare runs that are done in both of two folders, given their records, except for times.

    Numbers that differ by at most the tolerance count as the same.

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
            cpus = {(run.get("machine") or {}).get("cpu") for run in (record, other)}
            runs = pairs.setdefault((record["study"], record["data"]), [])
            runs.append((largest, metric, record["id"] if metric else "", len(cpus) > 1))
    compared = []
    for (study, data), runs in sorted(pairs.items()):
        same = sum(run[0] <= tolerance for run in runs)
        worst = max(runs, key=lambda run: run[0])
        moved = any(run[3] for run in runs)
        compared.append(Repeat(study, data, len(runs), same, *worst[:3], moved))
    return compared


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, str]:
    """The largest difference between two sets of metrics, and the name of the metric.

    Values that are both NaN, or the same infinity, are the same.

    Examples:
        >>> difference({"nll": 0.5, "cost/train": 3.0}, {"nll": 0.5, "cost/train": 4.0})
        (0.0, '')
    """
    ours, theirs = numbers(_by_name(first)), numbers(_by_name(second))
    largest, metric = 0.0, ""
    for name in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(name, math.nan), theirs.get(name, math.nan)
        both_nan = name in ours and name in theirs and math.isnan(a) and math.isnan(b)
        gap = 0.0 if a == b or both_nan else abs(a - b)
        gap = math.inf if math.isnan(gap) else gap  # only one of the two is a number
        if gap > largest and not name.startswith(f"{TIMES}/"):
            largest, metric = gap, name
    return largest, metric


def _by_name(value: Any) -> Any:
    """Metrics with lists as mappings, so that points of curves are numbers, too."""
    if isinstance(value, list):
        value = {str(place): point for place, point in enumerate(value)}
    if not isinstance(value, Mapping):
        return value
    return {name: _by_name(part) for name, part in value.items()}
