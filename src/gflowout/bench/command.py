"""Measure the chosen tables, compare them with their targets, show them and write them down."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gflowout.bench.adapters import LORA, MEMORY, TARGETED, lora_tables
from gflowout.bench.compaction import compact_tables
from gflowout.bench.comparisons import (
    DEPTHS,
    data_tables,
    depth_tables,
    export_tables,
    fit_table,
    memory_format_tables,
)
from gflowout.bench.decisions import DETECTORS, KNN, PREDICT, SCORES, ood_tables
from gflowout.bench.features import BOOSTING, FIT, ONE, SECONDS, TEN, features_tables
from gflowout.bench.methods import DRAWS, method_tables
from gflowout.bench.shards import AHEAD, DATA, SHARE, STEP, shard_tables
from gflowout.bench.timing import Table, environment, measure
from gflowout.bench.work import GROWTH, MEMORY_METHODS, memory_table, work_tables
from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import require

FORMAT = 2
MLP_ROUNDS, RESNET_ROUNDS, QUICK_ROUNDS = 50, 15, 3
SHARED = "id-gflowout draws=1"
"""How training steps of ``id-gflowout`` are measured: one mask for each group of examples."""


class Target(NamedTuple):
    """A bound on one number of a case, whose name may end in a comma and more.

    ``figure`` is a reference of the table, for the ratio of median times; or a further number.
    """

    table: str
    case: str
    figure: str
    at_most: float


def _targets(table: str, figure: str, *bounds: float) -> list[Target]:
    shared = SHARED if table.endswith("-step") else "id-gflowout"
    cases = ("gflowout", shared, "concrete", "contextual")
    return [Target(table, case, figure, bound) for case, bound in zip(cases, bounds, strict=True)]


TARGETS: list[Target] = [
    *_targets("mlp-step", "mc", 1.7, 1.4, 1.3, 2.5),
    *_targets("resnet-step", "mc", 1.03, 1.04, 1.10, 2.1),
    *_targets("mlp-predict", "bare", 1.2, 0.3, 1.0, 1.2),
    Target("mlp-predict-1", "gflowout", "bare", 1.0),
    *_targets("resnet-predict", "bare", 1.05, 0.95, 1.05, 1.05),
    *_targets("resnet-predict-last", "bare", 0.40, 0.35, 0.40, 0.40),
    *(Target("memory", f"{method}, 500 draws", GROWTH, 1.2) for method in MEMORY_METHODS),
    *(
        Target(f"depth-{network}{depth}", case, "mc", 1.1)
        for network in ("", "transformer-")
        for depth in DEPTHS
        for case in ("all", "summary")
    ),
    *(Target("ood-scores", score, PREDICT, 0.05) for score in SCORES),
    *(Target("ood-detectors", detector, PREDICT, 0.3) for detector in DETECTORS),
    Target("ood-detectors", KNN, PREDICT, 1.0),
    *(
        Target(f"lora-{layers}", method, figure, bound)
        for layers in ("qv", "all")
        for figure, bound in ((LORA, 1.15), (MEMORY, 1.10))
        for method in TARGETED
    ),
    *(Target("data-vqa", case, STEP, SHARE) for case in (DATA, AHEAD)),
    Target("features-fit", FIT, BOOSTING, 10.0),
    Target("features-chains", TEN, ONE, 3.0),
    Target("features-large", FIT, SECONDS, 60.0),
]
"""All bounds, in the order in which they are shown."""


def tables(width: int, mlp_repeats: int, resnet_repeats: int, quick: bool = False) -> list[Table]:
    """All tables; ``quick`` leaves out the largest batch of ResNet-18 and most of the images."""
    return [
        *method_tables(width, mlp_repeats, resnet_repeats, 16 if quick else 256),
        *depth_tables(resnet_repeats, width),
        memory_table(-(-mlp_repeats // 5)),
        *memory_format_tables(resnet_repeats, quick),
        *work_tables(width),
        *data_tables(mlp_repeats, resnet_repeats, 10 if quick else 1),
        *shard_tables(quick),
        fit_table(-(-resnet_repeats // 3), 6_000 if quick else 60_000),
        *export_tables(mlp_repeats, resnet_repeats, quick),
        *ood_tables(mlp_repeats),
        *lora_tables(resnet_repeats, quick),
        *compact_tables(width, resnet_repeats, quick),
        *features_tables(quick),
    ]


def run(
    *,
    quick: bool = False,
    width: int = 64,
    repeats: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    only: Sequence[str] = (),
    resume: bool = False,
    cpu: bool = False,
) -> None:
    """Measure the tables, show them, compare them with the targets and write them to a file.

    The file, ``bench.json`` by default, is written anew after each table. Ratios are those of
    median times; the quartiles beside them are of the ratios within a round. Options are those of
    ``gflowout bench``. Rounds (``repeats``) are 50 for the MLP and 15 for ResNet-18, or 3 if
    ``quick``; tables that take long have a fraction of these. ``only`` names tables, or how their
    names start up to a hyphen.
    """
    checks.integer("width", width, low=1)
    if repeats is not None:
        checks.integer("repeats", repeats, low=1)
    out = Path("bench.json") if out is None else Path(out)
    for target in (out, plot):
        if target is not None and not Path(target).parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(Path(target).parent)!r} to write to")
    progress, console = screen()
    rounds = (QUICK_ROUNDS, QUICK_ROUNDS) if quick else (MLP_ROUNDS, RESNET_ROUNDS)
    width = min(width, 8) if quick else width
    everything = tables(width, *(rounds if repeats is None else (repeats, repeats)), quick)
    chosen, names = _chosen(everything, only), [table.name for table in everything]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        record = {
            "format": FORMAT,
            "environment": environment(),
            "settings": {"quick": quick, "width": width, "draws": DRAWS, "cpu": cpu},
        }
        results = _kept(out, record, everything) if resume else {}
        left = [table for table in chosen if table.name not in results]
        with torch.random.fork_rng(devices=[]), progress:
            # `measure` reports the start and every round.
            total = sum(table.cost * (1 + table.repeats) for table in left)
            task = progress.add_task("", total=total)
            for table in left:
                progress.update(task, description=table.name)
                done = partial(progress.advance, task, table.cost)
                results[table.name] = measure(table, done, cpu=cpu)
                ordered = {name: results[name] for name in names if name in results}
                record |= {"tables": ordered, "targets": reached(ordered)}
                write_text(out, json.dumps(record, indent=2) + "\n")
    finally:
        torch.set_num_threads(threads)
    shown = {table.name: results[table.name] for table in chosen}
    for result in shown.values():
        console.print(table_grid(result))
    console.print("Ratios are of medians; in brackets, quartiles of the ratios within a round.")
    rows = reached(shown)
    if rows:
        console.print(targets_grid(rows))
    console.print(f"All numbers, with quartiles: {out}", highlight=False)
    with contextlib.nullcontext() if plot is not None else contextlib.suppress(ImportError):
        draw_plot(shown, out.with_suffix(".png") if plot is None else Path(plot))


def _chosen(everything: Sequence[Table], only: Sequence[str]) -> list[Table]:
    """The tables of a name; or, where no table has it, of names that start with it.

    Without names, all that this machine has the packages for, but for large ones.
    """
    names = [table.name for table in everything]
    wanted: set[str] = set()
    for name in only:
        group = {table for table in names if table.startswith(f"{name}-")}
        if name not in names and not group:
            checks.choice("only", name, names)
        wanted |= {name} if name in names else group
    if only:
        return [table for table in everything if table.name in wanted]
    fitting = [table for table in everything if not table.large]
    return [table for table in fitting if all(map(find_spec, table.needs))]


def _kept(out: Path, record: dict[str, Any], everything: Sequence[Table]) -> dict[str, Any]:
    """Tables of an earlier run with the same settings."""
    if not out.exists():
        return {}
    try:
        earlier = json.loads(out.read_text(encoding="utf-8"))
        results: dict[str, Any] = earlier["tables"]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{out} is no file of this benchmark: remove it, or name another"
        raise ValueError(message) from error
    for key, value in record.items():
        if earlier.get(key) != value:
            raise ValueError(
                f"{out} cannot be resumed: its {key} is {earlier.get(key)}, that of this run is "
                f"{value}"
            )
    kinds = {table.name: (table.title, table.repeats) for table in everything}
    return {
        name: result
        for name, result in results.items()
        if (result["title"], result["repeats"]) == kinds.get(name)
    }


def reached(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare measured tables with their targets: one row per target of these tables."""
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
        row = {**target._asdict(), "case": name, "measured": value}
        rows.append({**row, **quartiles, "met": value <= target.at_most})
    return rows


def screen() -> tuple[Any, Any]:
    """A progress bar and its console."""
    rich = require("rich.progress", extra="cli", purpose="the benchmark")
    console = require("rich.console", extra="cli", purpose="the benchmark").Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a file has no edge to break lines at
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(), rich.TextColumn("left:"), rich.TimeRemainingColumn(),
    )  # fmt: skip
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


def draw_plot(results: dict[str, Any], path: Path) -> None:
    """Bars of the ratios to the reference that a table's targets are for, or its first one.

    A line on a bar reaches from quartile to quartile, a red mark is a target.
    """
    figures = require("matplotlib.figure", extra="demo", purpose="the plot")
    firsts = ((name, next(iter(result["cases"].values()))) for name, result in results.items())
    compared = {name: list(case["ratio_to"]) for name, case in firsts if case["ratio_to"]}
    if not compared:
        return
    figure = figures.Figure(figsize=(9, 2.2 * len(compared)), layout="constrained")
    grid = figure.subplots(len(compared), squeeze=False)[:, 0]
    for axes, (table, references) in zip(grid, compared.items(), strict=True):
        result = results[table]
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
