"""The targets of the benchmark, and how results are shown: tables on the screen, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.bench.comparisons import DEPTHS
from gflowout.bench.work import GROWTH, MEMORY_METHODS
from gflowout.core.optional import require

_WIDTH = 120
SHARED = "id-gflowout draws=1"
"""How training steps of ``id-gflowout`` are measured: one mask for each group of examples."""


@dataclass(frozen=True)
class Target:
    """A bound on one number.

    Attributes:
        table: Name of the table.
        case: Of the table; or how its name starts, up to a comma.
        figure: A reference of the table, for the ratio of median times; or a further number.
        at_most: The bound.
    """

    table: str
    case: str
    figure: str
    at_most: float


def _targets(
    table: str, figure: str, gflowout: float, shared: float, concrete: float, contextual: float
) -> list[Target]:
    bounds = {
        "gflowout": gflowout,
        SHARED if table.endswith("-step") else "id-gflowout": shared,
        "concrete": concrete,
        "contextual": contextual,
    }
    return [Target(table, case, figure, at_most) for case, at_most in bounds.items()]


TARGETS: list[Target] = [
    *_targets("mlp-step", "mc", 1.8, 1.4, 1.3, 2.5),
    *_targets("resnet-step", "mc", 1.08, 1.04, 1.10, 2.1),
    *_targets("mlp-predict", "bare", 1.2, 0.3, 1.0, 1.2),
    *_targets("resnet-predict", "bare", 1.05, 0.95, 1.05, 1.05),
    *_targets("resnet-predict-last", "bare", 0.40, 0.35, 0.40, 0.40),
    *(Target("memory", f"{method}, 500 draws", GROWTH, 1.2) for method in MEMORY_METHODS),
    *(
        Target(f"depth-{network}{depth}", case, "mc", 1.1)
        for network in ("", "transformer-")
        for depth in DEPTHS
        for case in ("all", "summary")
    ),
]
"""All bounds, in the order in which they are shown."""


def reached(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare measured tables with their targets.

    Args:
        results: Measured tables, by name. Targets of others are left out.

    Returns:
        One row per target: what was measured, the bound, and whether it was met. A ratio of times
        is that of the medians; its quartiles are those of the ratios within a round.
    """
    rows = []
    for target in TARGETS:
        cases = results.get(target.table, {}).get("cases", {})
        names = (name for name in cases if target.case in (name, name.partition(", ")[0]))
        name = next(names, None)
        if name is None:
            continue
        ratio = cases[name]["ratio_to"].get(target.figure)
        value = cases[name]["figures"][target.figure] if ratio is None else ratio["of_medians"]
        quartiles = {key: ratio[key] for key in ("quartile_1", "quartile_3") if ratio is not None}
        rows.append(
            {
                "table": target.table,
                "case": name,
                "figure": target.figure,
                "at_most": target.at_most,
                "measured": value,
                **quartiles,
                "met": value <= target.at_most,
            }
        )
    return rows


def screen() -> tuple[Any, Any]:
    """A progress bar and its console."""
    rich = require("rich.progress", extra="cli", purpose="the benchmark")
    console = require("rich.console", extra="cli", purpose="the benchmark").Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)  # a file has no edge to break lines at
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left:"),
        rich.TimeRemainingColumn(),
    )
    # The rounds of a slow table take minutes: estimate the pace over the last half hour.
    pace = 1800.0
    bar = rich.Progress(*columns, console=console, transient=True, speed_estimate_period=pace)
    return bar, console


def table_grid(result: dict[str, Any]) -> Any:
    """A table for the screen."""
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


def targets_grid(rows: Sequence[dict[str, Any]]) -> Any:
    """The targets and what was measured, for the screen."""
    grid = _grid("Targets", ["", "method", "compared with", "at most", "measured", "met"])
    for row in rows:
        ratio = "quartile_1" in row
        measured = _cell(row, "measured") if ratio else _number(row["measured"])
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
    figures = require("matplotlib.figure", extra="demo", purpose="the plot")
    results = {
        name: result
        for name, result in results.items()
        if next(iter(result["cases"].values()))["ratio_to"]  # else there is no bar to draw
    }
    if not results:
        return
    figure = figures.Figure(figsize=(9, 2.2 * len(results)), layout="constrained")
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
