"""Plots of a report as plain data for the script of the page. Knows nothing of HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
_DIGITS = 6


def names(section: Section) -> list[str]:
    """What the plots of a section draw, each once: methods, mostly.

    Points are not among them: their groups are something else in every plot.
    """
    found: dict[str, None] = {}
    for block in section.blocks:
        if isinstance(block, Curves):
            found |= dict.fromkeys(series.title for series in block.series)
        elif isinstance(block, Bars):
            found |= dict.fromkeys(title for title, _ in block.series)
    return list(found)


def has_paper(section: Section) -> bool:
    """Whether a plot shows figures of the paper."""
    return any(
        series.source == PAPER
        for block in section.blocks
        if isinstance(block, Curves | Points)
        for series in block.series
    )


def data(plot: Plot, slots: Mapping[str, int]) -> dict[str, Any]:
    """A plot as JSON has it.

    Args:
        plot: Curves, points, bars or a heat map.
        slots: Colours of what is drawn, from :func:`gflowout.report.colours.slots`.
    """
    if isinstance(plot, Heat):
        return {
            "kind": "heat",
            "title": plot.title,
            "x": plot.x,
            "y": plot.y,
            "values": [_numbers(row) for row in plot.values],
            "columns": [str(each) for each in plot.columns],
            "rows": [str(each) for each in plot.rows],
            "low": _number(plot.low),
            "high": _number(plot.high),
        }
    if isinstance(plot, Bars):
        return {
            "kind": "bars",
            "title": plot.title,
            "x": "",
            "y": plot.y,
            "labels": [str(each) for each in plot.labels],
            "series": [
                {
                    "name": title,
                    "label": title,
                    "slot": slots[title],
                    "y": _numbers(cell.mean for cell in cells),
                    "low": _numbers(_ends(cell)[0] for cell in cells),
                    "high": _numbers(_ends(cell)[1] for cell in cells),
                    "error": _numbers(None if cell.interval else cell.error for cell in cells),
                }
                for title, cells in plot.series
            ],
        }
    return {
        "kind": "points" if isinstance(plot, Points) else "curves",
        "title": plot.title,
        "x": plot.x,
        "y": plot.y,
        "percent": isinstance(plot, Curves) and plot.percent,
        "series": [_series(series, slots) for series in plot.series],
    }


def to_json(value: Any) -> str:
    r"""JSON that can stand inside a script element, whatever texts are in it.

    Examples:
        >>> print(to_json({"name": "</script>"}))
        {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def rows(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks in groups: plots that follow each other stand side by side."""
    found: list[list[Block]] = []
    for block in blocks:
        beside = found and isinstance(block, PLOTS) and isinstance(found[-1][-1], PLOTS)
        if beside:
            found[-1].append(block)
        else:
            found.append([block])
    return found


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


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [_number(value) for value in values]


def _ends(cell: Cell) -> tuple[float | None, float | None]:
    """From where to where the whisker of a bar reaches."""
    if cell.interval is not None:
        return cell.interval
    if cell.mean is None or cell.error is None:
        return None, None
    return cell.mean - cell.error, cell.mean + cell.error
