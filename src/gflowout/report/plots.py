"""Plots of a report as data for the page's script: numbers, names and colours.

A name has a slot; a slot has a colour for light and one for dark pages, and a shape of marker, so
that colour is never the only difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import (
    PAPER,
    Bars,
    Block,
    Cell,
    Curves,
    Heat,
    Points,
    Section,
    Series,
)

Plot = Curves | Points | Bars | Heat
PLOTS = (Curves, Points, Bars, Heat)

LIGHT = (
    *("#8a8087", "#c89700", "#4899e4", "#008148", "#f14ebf", "#de3210", "#383fcc", "#5d4343"),
    *("#220c35", "#7a3fae", "#7d1d45", "#8f8a1c", "#16848f", "#b59bd6", "#b7b18a", "#3f5a2a"),
)
"""By slot. The first nine began as those of Okabe and Ito, and were moved apart until they differ
for all kinds of colour vision (a test says how much); more than these on one page look alike."""

DARK = (
    *("#a59ea9", "#ffa110", "#74dafd", "#129d68", "#ffb8b9", "#ff5917", "#51a6ff", "#925f31"),
    *("#fef9e7", "#b98ae8", "#d0608f", "#c9c24a", "#3fb6c2", "#d6c6ef", "#e0dcc0", "#8fb073"),
)

_ORDER = (
    "none", "mc", "concrete", "contextual", "id-gflowout", "gflowout", "combined", "control",
    "ensemble",
)  # fmt: skip
_OWN = {name: slot for slot, label in enumerate(_ORDER) for name in (label, ARMS[label].title)}


def slots(names: Iterable[str], beside: Iterable[str] = ()) -> dict[str, int]:
    """The slot of every name: arms have their own, others take the rest in order.

    Args:
        names: Labels or titles of arms, or anything else that is drawn.
        beside: What else is on the page; if an arm is among them, its colour stays free.

    Examples:
        >>> slots(["mc", "MC dropout", "mine", "GFlowOut", "yours"])
        {'mc': 1, 'MC dropout': 1, 'mine': 9, 'GFlowOut': 5, 'yours': 10}
    """
    names = list(dict.fromkeys(names))
    free = list(range(len(_ORDER), len(LIGHT)))
    if _OWN.keys().isdisjoint([*names, *beside]):  # without arms, others get the best colours
        free = [5, 6, 1, 3, 4, 2, 7, 0, 8, *free]
    others = [name for name in names if name not in _OWN]
    return {
        name: _OWN[name] if name in _OWN else free[others.index(name) % len(free)] for name in names
    }


def names(section: Section) -> list[str]:
    """What the plots of a section draw, mostly methods, without duplicates.

    Groups of points are left out: they are different things in every plot.
    """
    titles: list[str] = []
    for block in section.blocks:
        if isinstance(block, Curves):
            titles += [series.title for series in block.series]
        elif isinstance(block, Bars):
            titles += [title for title, _ in block.series]
    return list(dict.fromkeys(titles))


def has_paper(section: Section) -> bool:
    """Whether a plot shows numbers of the paper."""
    return any(
        series.source == PAPER
        for block in section.blocks
        if isinstance(block, Curves | Points)
        for series in block.series
    )


def rows(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks in groups: consecutive plots are shown side by side."""
    groups: list[list[Block]] = []
    for block in blocks:
        if groups and isinstance(block, PLOTS) and isinstance(groups[-1][-1], PLOTS):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def data(plot: Plot, slots: Mapping[str, int]) -> dict[str, Any]:
    """A plot as JSON has it, with colours from :func:`slots`."""
    common = {"kind": type(plot).__name__.lower(), "title": plot.title, "y": plot.y}
    if isinstance(plot, Heat):
        return {
            **common,
            "x": plot.x,
            "values": [_numbers(row) for row in plot.values],
            "columns": [str(name) for name in plot.columns],
            "rows": [str(name) for name in plot.rows],
            "low": _number(plot.low),
            "high": _number(plot.high),
        }
    if isinstance(plot, Bars):
        labels = [str(label) for label in plot.labels]
        series = [_bars(title, cells, slots) for title, cells in plot.series]
        return {**common, "x": "", "labels": labels, "series": series}
    return {
        **common,
        "x": plot.x,
        "percent": isinstance(plot, Curves) and plot.percent,
        "series": [_series(series, slots) for series in plot.series],
    }


def _bars(title: str, cells: Sequence[Cell], slots: Mapping[str, int]) -> dict[str, Any]:
    ends = [_whisker(cell) for cell in cells]
    return {
        "name": title,
        "label": title,
        "slot": slots[title],
        "y": _numbers(cell.mean for cell in cells),
        "low": _numbers(low for low, _ in ends),
        "high": _numbers(high for _, high in ends),
        "error": _numbers(None if cell.interval else cell.error for cell in cells),
    }


def _series(series: Series, slots: Mapping[str, int]) -> dict[str, Any]:
    paper = series.source == PAPER
    return {
        "name": series.title,
        "label": f"{series.title} (paper)" if paper else series.title,
        "slot": slots[series.title],
        "paper": paper,
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        "error": None if series.error is None else _numbers(series.error),
    }


def _whisker(cell: Cell) -> tuple[float | None, float | None]:
    """Lower and upper end of a bar's whisker."""
    if cell.interval is not None:
        return cell.interval
    if cell.mean is None or cell.error is None:
        return None, None
    return cell.mean - cell.error, cell.mean + cell.error


def _number(value: float | None) -> float | None:
    """Six digits of a number; ``None`` for what JSON lacks."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [_number(value) for value in values]
