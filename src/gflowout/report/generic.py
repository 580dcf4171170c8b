"""The section of a study that the report does not know: all its numbers, in tables and plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gflowout.studies.framework.content import (
    Bars,
    Better,
    Block,
    Cell,
    Column,
    Curves,
    Row,
    Section,
    Series,
    Table,
)
from gflowout.studies.framework.summary import Group, mean_error, numbers

PLOTTED = 4
"""Metrics that get a plot; all are in the tables."""

_HIGH = ("accuracy", "auroc", "aupr", "auprc", "f1", "precision", "recall")
_LOW = ("nll", "loss", "ece", "brier", "fpr95", "error", "rmse", "mae")
_EPOCHS = ("valid/nll", "valid/accuracy")
"""Metrics of an epoch that get a curve."""


def section(records: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> Section:
    """The section of a study.

    Args:
        records: Of its runs that are done.
        groups: The same in groups, from :func:`gflowout.studies.framework.summary.groups`.
    """
    data = list(dict.fromkeys(group.data for group in groups))
    tables = [_table(name, [group for group in groups if group.data == name]) for name in data]
    return Section(blocks=[*tables, *_bars(groups, data), *_epochs(records, data)], data=data)


def better(metric: str) -> Better | None:
    """Whether high or low values of a metric are good, as far as its name tells.

    Examples:
        >>> better("snow-3/accuracy"), better("test/nll"), better("seconds")
        ('high', 'low', None)
    """
    last = metric.replace(".", "/").rsplit("/", 1)[-1].lower().replace("_", "-")
    words = last.split("-")
    if any(word in _LOW for word in words):
        return "low"
    return "high" if any(word in _HIGH for word in words) else None


def _table(data: str, groups: Sequence[Group]) -> Table:
    metrics = list(dict.fromkeys(metric for group in groups for metric in group.metrics))
    columns = [Column(metric, better(metric), digits=4) for metric in metrics]
    rows = [
        Row(_name(group), [_cell(group.metrics.get(metric, [])) for metric in metrics])
        for group in groups
    ]
    return Table(data, "method", columns, rows)


def _name(group: Group) -> str:
    options = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in group.options.items()
    )
    return f"{group.method} ({options})" if options else group.method


def _cell(values: Sequence[float]) -> Cell:
    if not values:
        return Cell()
    mean, error = mean_error(list(values))
    return Cell(mean, None if math.isnan(error) else error, len(values))


def _bars(groups: Sequence[Group], data: Sequence[str]) -> list[Block]:
    names = dict.fromkeys(name for group in groups for name in group.metrics if better(name))
    metrics = sorted(names, key=lambda name: not name.startswith("test"))[:PLOTTED]
    values = {(_name(group), group.data): group.metrics for group in groups}
    methods = list(dict.fromkeys(method for method, _ in values))
    if len(methods) < 2:
        return []

    def cells(method: str, metric: str) -> list[Cell]:
        return [_cell(values.get((method, name), {}).get(metric, [])) for name in data]

    return [
        Bars(metric, metric, data, [(method, cells(method, metric)) for method in methods])
        for metric in metrics
    ]


def _epochs(records: Sequence[Mapping[str, Any]], data: Sequence[str]) -> list[Block]:
    """Curves over epochs: the mean over runs of a method that have kept the epoch."""
    values: dict[tuple[str, str], dict[str, dict[float, list[float]]]] = {}
    for record in records:
        for line in record["epochs"]:
            kept = numbers(line) if isinstance(line, Mapping) else {}
            if "epoch" not in kept:
                continue
            for metric in kept.keys() & _EPOCHS:
                methods = values.setdefault((record["data"], metric), {})
                points = methods.setdefault(record["method"], {})
                points.setdefault(kept["epoch"], []).append(kept[metric])
    curves: list[Block] = []
    for name in data:
        for metric in _EPOCHS:
            series = [
                _mean_curve(method, points)
                for method, points in values.get((name, metric), {}).items()
                if len(points) > 1
            ]
            if series:
                curves.append(Curves(f"{name}: {metric} by epoch", "epoch", metric, series))
    return curves


def _mean_curve(title: str, points: Mapping[float, list[float]]) -> Series:
    epochs = sorted(points)
    means, errors = zip(*(mean_error(points[epoch]) for epoch in epochs), strict=True)
    return Series(title, epochs, means, None if any(map(math.isnan, errors)) else errors)
