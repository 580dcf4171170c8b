"""Showing and keeping what was measured: tables on the screen, a file, a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gflowout.bench.targets import reached

_WIDTH = 120


def screen() -> tuple[Any, Any]:
    """A progress bar and the console it lives on."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError as error:
        raise ImportError("the benchmark needs rich: pip install 'gflowout[cli]'") from error
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)  # a file has no edge to break lines at
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    # The rounds of a slow table take minutes; its pace is that of more than the last half one.
    pace = 1800.0
    bar = Progress(*columns, console=console, transient=True, speed_estimate_period=pace)
    return bar, console


def shown(result: dict[str, Any]) -> Any:
    """A table's figures for the screen."""
    cases = result["cases"]
    first = next(iter(cases.values()))
    references, further = list(first["ratio_to"]), list(first.get("figures", {}))
    timed = "seconds" in first
    headings = [*(["ms"] if timed else []), *(f"÷ {name}" for name in references), *further]
    grid = _grid(result["title"], ["", *headings])
    for name, case in cases.items():
        cells = [_cell(case["seconds"], "median", 1e3)] if timed else []
        cells += [_cell(case["ratio_to"][reference], "of_medians") for reference in references]
        cells += [_number(case["figures"][figure]) for figure in further]
        grid.add_row(name, *cells)
    return grid


def targets(rows: Sequence[dict[str, Any]]) -> Any:
    """What was to be reached, and what was."""
    grid = _grid("Targets", ["", "method", "compared with", "at most", "measured", "met"])
    for row in rows:
        measured = _number(row["measured"])
        if "quartile_1" in row:
            measured = _cell(row, "measured")
        cells = (row["figure"], f"{row['at_most']:g}", measured, "yes" if row["met"] else "NO")
        grid.add_row(row["table"], row["case"], *cells)
    return grid


def _grid(title: str, headings: Sequence[str]) -> Any:
    from rich.table import Table as Grid

    grid = Grid(title=title, title_justify="left")
    for heading in headings:
        if heading:
            grid.add_column(heading, justify="right", overflow="fold")
        else:
            grid.add_column(no_wrap=True)
    return grid


def _cell(summary: dict[str, Any], middle: str, scale: float = 1.0) -> str:
    values = (_number(scale * summary[key]) for key in (middle, "quartile_1", "quartile_3"))
    return "{} ({}-{})".format(*values)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def plot(results: dict[str, Any], path: Path) -> None:
    """Bars of the ratios to the reference that a table's targets are for, or its first one.

    A line on a bar reaches from quartile to quartile, a red mark is a target.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the plot needs matplotlib: pip install 'gflowout[demo]'") from error
    results = {
        name: result
        for name, result in results.items()
        if next(iter(result["cases"].values()))["ratio_to"]  # else there is no bar to draw
    }
    if not results:
        return
    figure = Figure(figsize=(9, 2.2 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), squeeze=False)[:, 0]
    for axes, (table, result) in zip(grid, results.items(), strict=True):
        references = list(next(iter(result["cases"].values()))["ratio_to"])
        bounds = {row["case"]: row for row in reached({table: result})}
        aimed = [row["figure"] for row in bounds.values() if row["figure"] in references]
        reference = [*aimed, *references][0]
        ratios = {name: case["ratio_to"][reference] for name, case in result["cases"].items()}
        axes.barh(list(ratios), [ratio["of_medians"] for ratio in ratios.values()])
        for place, (name, ratio) in enumerate(ratios.items()):
            axes.hlines(place, ratio["quartile_1"], ratio["quartile_3"], color="black")
            if name in bounds:
                axes.vlines(bounds[name]["at_most"], place - 0.4, place + 0.4, color="red")
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set_title(result["title"], loc="left", fontsize=10)
        axes.set_xlabel(f"times the cost of: {reference}")
    figure.savefig(path)
