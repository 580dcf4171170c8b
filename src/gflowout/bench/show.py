"""Showing and keeping what was measured: tables on the screen, a file, a plot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def screen() -> tuple[Any, Any]:
    """A progress bar and the console it lives on."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError as error:
        raise ImportError("the benchmark needs rich: pip install 'gflowout[cli]'") from error
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True), console


def shown(result: dict[str, Any]) -> Any:
    """A table's figures for the screen."""
    from rich.table import Table as Grid

    references = list(next(iter(result["cases"].values()))["ratio_to"])
    grid = Grid(title=result["title"], title_justify="left")
    for heading in ["", "ms", *(f"÷ {reference}" for reference in references)]:
        grid.add_column(heading, justify="left" if not heading else "right")
    for name, case in result["cases"].items():
        cells = [_cell(case["seconds"], 1e3)]
        cells += [_cell(case["ratio_to"][reference]) for reference in references]
        grid.add_row(name, *cells)
    return grid


def _cell(summary: dict[str, float], scale: float = 1.0) -> str:
    values = (scale * summary[key] for key in ("median", "quartile_1", "quartile_3"))
    median, low, high = (f"{one:.0f}" if one >= 100 else f"{one:.3g}" for one in values)
    return f"{median} ({low}-{high})"


def plot(results: dict[str, Any], path: Path) -> None:
    """Bars of the ratios to each table's first reference."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the plot needs matplotlib: pip install 'gflowout[demo]'") from error
    figure = Figure(figsize=(9, 2.2 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), squeeze=False)[:, 0]
    for axes, result in zip(grid, results.values(), strict=True):
        reference = next(iter(next(iter(result["cases"].values()))["ratio_to"]))
        ratios = {name: case["ratio_to"][reference] for name, case in result["cases"].items()}
        medians = [ratio["median"] for ratio in ratios.values()]
        errors = [
            [ratio["median"] - ratio["quartile_1"] for ratio in ratios.values()],
            [ratio["quartile_3"] - ratio["median"] for ratio in ratios.values()],
        ]
        axes.barh(list(ratios), medians, xerr=errors)
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set_title(result["title"], loc="left", fontsize=10)
        axes.set_xlabel(f"times the cost of: {reference}")
    figure.savefig(path)
