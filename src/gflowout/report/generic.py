"""What a report says of a study that it knows nothing about: all its numbers, as they are.

Turns groups of records into :mod:`gflowout.studies.framework.content`.
"""

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
_EPOCHS = ("valid/nll", "valid/accuracy", "loss", "train/loss")


def section(records: Sequence[Mapping[str, Any]], found: Sequence[Group]) -> Section:
    """The section of a study.

    Args:
        records: Of its runs that are done.
        found: The same in groups, from :func:`gflowout.studies.framework.summary.groups`.
    """
    blocks: list[Block] = []
    data = list(dict.fromkeys(group.data for group in found))
    for name in data:
        part = [group for group in found if group.data == name]
        metrics = list(dict.fromkeys(key for group in part for key in group.metrics))
        columns = [Column(metric, better(metric), digits=4) for metric in metrics]
        rows = [
            Row(_name(group), [_cell(group.metrics.get(metric, [])) for metric in metrics])
            for group in part
        ]
        blocks.append(Table(name, "method", columns, rows))
    blocks += _bars(found, data)
    blocks += _epochs(records, data)
    return Section(blocks=blocks, data=data)


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


def _bars(found: Sequence[Group], data: Sequence[str]) -> list[Block]:
    names = [name for group in found for name in group.metrics if better(name)]
    metrics = sorted(dict.fromkeys(names), key=lambda name: not name.startswith("test"))[:PLOTTED]
    methods = list(dict.fromkeys(_name(group) for group in found))
    cells = {(_name(group), group.data): group.metrics for group in found}
    return [
        Bars(
            metric,
            metric,
            data,
            [
                (each, [_cell(cells.get((each, name), {}).get(metric, [])) for name in data])
                for each in methods
            ],
        )
        for metric in metrics
        if len(methods) > 1
    ]


def _epochs(records: Sequence[Mapping[str, Any]], data: Sequence[str]) -> list[Block]:
    """Curves over epochs of what training kept, where every run of a method has its epoch."""
    values: dict[tuple[str, str], dict[str, dict[float, list[float]]]] = {}
    for record in records:
        for line in record["epochs"]:
            if not isinstance(line, Mapping):
                continue
            kept = numbers(line)
            epoch = kept.pop("epoch", None)
            if epoch is None:
                continue
            for metric in _EPOCHS:
                if metric in kept:
                    by_method = values.setdefault((record["data"], metric), {})
                    by_method.setdefault(record["method"], {}).setdefault(epoch, []).append(
                        kept[metric]
                    )
    made: list[Block] = []
    for name in data:
        for metric in _EPOCHS[:2]:
            series = [
                _mean_curve(method, points)
                for method, points in values.get((name, metric), {}).items()
                if len(points) > 1
            ]
            if series:
                made.append(Curves(f"{name}: {metric} by epoch", "epoch", metric, series))
    return made


def _mean_curve(title: str, points: Mapping[float, list[float]]) -> Series:
    x = sorted(points)
    pairs = [mean_error(points[each]) for each in x]
    errors = [error for _, error in pairs]
    known = not any(math.isnan(error) for error in errors)
    return Series(title, x, [mean for mean, _ in pairs], errors if known else None)
