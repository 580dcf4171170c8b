"""What the methods cost: training steps and predictions, as ratios to the bare backbone.

Everything runs in one process on one thread. In every round each case of a table is timed once, and
a ratio compares two times of the same round, so noise of the machine hits both sides alike. A new
method is a name in ``METHODS``; a new table is an entry in :func:`tables`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout import checks
from gflowout.backbones import MLP, ResNet18

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "mc": {},
    "contextual": {},
    "concrete": {"train_size": 50_000},
    "variational": {"train_size": 50_000},
    "masksembles": {},
    "id-gflowout": {"train_size": 50_000},
    "id-gflowout draws=1": {"train_size": 50_000, "draws": 1},
    "gflowout": {},
    "combined draws=1": {"train_size": 50_000, "draws": 1},
}
"""What is timed, in the order of the tables: a label that starts with the method, and options."""

BARE = "bare"
"""The backbone on its own, without this library."""

DRAWS = 20
FORMAT = 1
_CLASSES = 10
_SHORTEST = 0.01  # seconds; faster calls are repeated within one measurement

Case = Callable[[], object]


@dataclass(frozen=True)
class Table:
    """One comparison.

    Attributes:
        name: Key in the JSON file.
        title: What is measured, for people.
        references: Cases that the others are compared with.
        repeats: Rounds.
        build: Makes the cases, by name. Called when the table's turn comes, so that only one
            table's models are in memory.
    """

    name: str
    title: str
    references: Sequence[str]
    repeats: int
    build: Callable[[], dict[str, Case]]


def tables(width: int, mlp_repeats: int, resnet_repeats: int) -> list[Table]:
    """All comparisons.

    Args:
        width: Channels of the first stage of ResNet-18.
        mlp_repeats: Rounds of the tables with the MLP.
        resnet_repeats: Rounds of the tables with ResNet-18.
    """
    mlp, resnet = "MLP 784-300-100-10", f"ResNet-18 of width {width}"

    def images(batch: int) -> Tensor:
        return torch.randn(batch, 3, 32, 32)

    def net() -> ResNet18:
        return ResNet18(_CLASSES, width)

    return [
        Table(
            "mlp-step",
            f"Training step, {mlp}, batch 128",
            (BARE, "mc"),
            mlp_repeats,
            lambda: training_steps(MLP, torch.randn(128, 784)),
        ),
        Table(
            "mlp-predict",
            f"Prediction with {DRAWS} draws, {mlp}, batch 128",
            (BARE,),
            mlp_repeats,
            lambda: predictions(MLP, torch.randn(128, 784)),
        ),
        Table(
            "resnet-step",
            f"Training step, {resnet}, batch 32",
            (BARE, "mc"),
            resnet_repeats,
            lambda: training_steps(net, images(32)),
        ),
        Table(
            "resnet-predict",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16)),
        ),
        Table(
            "resnet-predict-last",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16, sites in the last two blocks",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16), last=2),
        ),
    ]


def training_steps(build: Callable[[], Any], x: Tensor) -> dict[str, Case]:
    """Cases that take one step of Adam: the bare backbone with cross entropy, and each method.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
    """
    y = torch.randint(_CLASSES, (len(x),))

    def step(loss: Callable[[], Tensor], parameters: Any) -> Case:
        optimizer = torch.optim.Adam(parameters, lr=1e-3)

        def run() -> None:
            optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return run

    def bare(net: nn.Module) -> Case:
        return step(lambda: F.cross_entropy(net(x), y), net.parameters())

    def wrapped(model: gfo.MaskedModel) -> Case:
        def loss() -> Tensor:
            total: Tensor = model(x, y=y).total
            return total

        return step(loss, model.parameter_groups())

    return {
        BARE: bare(build()),
        **{name: wrapped(model) for name, model in _models(build, x).items()},
    }


def predictions(build: Callable[[], Any], x: Tensor, last: int = 0) -> dict[str, Case]:
    """Cases that predict with 20 draws; for the bare backbone, 20 plain passes.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
    """
    net: nn.Module = build().eval()

    @torch.no_grad()
    def plain() -> None:
        for _ in range(DRAWS):
            net(x)

    def wrapped(model: gfo.MaskedModel) -> Case:
        return lambda: model.predict(x, samples=DRAWS).mean

    return {
        BARE: plain,
        **{name: wrapped(model) for name, model in _models(build, x, last).items()},
    }


def measure(table: Table, done: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Time every case of a table, round robin.

    Args:
        table: What to time.
        done: Called after each round.

    Returns:
        Seconds per call and ratios to the references, by case, each as median and quartiles.
    """
    torch.manual_seed(0)
    cases = table.build()
    numbers = {name: math.ceil(_SHORTEST / _warm(case)) for name, case in cases.items()}
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(table.repeats):
        first = turn % len(names)  # no case always follows the same neighbour
        for name in names[first:] + names[:first]:
            rounds[name].append(_time(cases[name], numbers[name]))
        done()
    del cases
    gc.collect()
    return {
        "title": table.title,
        "repeats": table.repeats,
        "cases": {
            name: {
                "seconds": _summary(times),
                "ratio_to": {
                    reference: _summary(
                        [own / other for own, other in zip(times, rounds[reference], strict=True)]
                    )
                    for reference in table.references
                },
            }
            for name, times in rounds.items()
        },
    }


def run(
    *,
    quick: bool = False,
    width: int = 64,
    repeats: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    only: Sequence[str] = (),
) -> None:
    """Measure the tables, show them and write them to a file.

    Args:
        quick: A few rounds on the MLP and a narrow ResNet-18, in seconds instead of minutes.
        width: Channels of the first stage of ResNet-18; not above 8 if ``quick``.
        repeats: Rounds per table. ``None``: 50 for the MLP and 5 for ResNet-18, or 3 if ``quick``.
        out: JSON file with all figures; ``None`` for ``bench.json`` in the current folder.
        plot: File for a bar plot of the ratios, such as ``bench.png``; ``None`` for none.
        only: Names of tables to measure; all if empty.
    """
    checks.integer("width", width, low=1)
    if repeats is not None:
        checks.integer("repeats", repeats, low=1)
    out = Path("bench.json") if out is None else Path(out)
    for target in (out, plot):
        if target is not None and not Path(target).parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(Path(target).parent)!r} to write to")
    progress, console = _screen()
    defaults = (3, 3) if quick else (50, 5)
    width = min(width, 8) if quick else width
    chosen = tables(width, *(defaults if repeats is None else (repeats, repeats)))
    for name in only:
        checks.choice("only", name, [table.name for table in chosen])
    chosen = [table for table in chosen if not only or table.name in only]
    results: dict[str, Any] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), progress:
            task = progress.add_task("", total=sum(table.repeats for table in chosen))
            for table in chosen:
                progress.update(task, description=table.name)
                results[table.name] = measure(table, lambda: progress.advance(task))
        record = {
            "format": FORMAT,
            "environment": environment(),
            "settings": {"quick": quick, "width": width, "draws": DRAWS},
            "tables": results,
        }
    finally:
        torch.set_num_threads(threads)
    _write(out, json.dumps(record, indent=2) + "\n")
    for result in results.values():
        console.print(_shown(result))
    console.print(f"All figures, with quartiles: {out}", highlight=False)
    if plot is not None:
        _plot(results, Path(plot))


def environment() -> dict[str, Any]:
    """Versions, threads and the class of machine: what a reader needs to compare figures."""
    return {
        "gflowout": gfo.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line: ``python -m gflowout.bench``.

    Args:
        arguments: Of the command; ``None`` for those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m gflowout.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds of small models")
    parser.add_argument("--width", type=int, default=64, help="of ResNet-18 (default: 64)")
    parser.add_argument("--repeats", type=int, help="rounds (default: 50 MLP, 5 ResNet-18)")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench.json)")
    parser.add_argument("--plot", type=Path, help="file for a bar plot, such as bench.png")
    parser.add_argument("--only", action="append", default=[], help="a table; may be repeated")
    run(**vars(parser.parse_args(arguments)))


def _models(build: Callable[[], Any], x: Tensor, last: int = 0) -> dict[str, gfo.MaskedModel]:
    models = {}
    for name, options in METHODS.items():
        net = build()
        models[name] = gfo.wrap(
            net,
            name.split()[0],
            net.sites[-last:],
            likelihood=gfo.Categorical(_CLASSES),
            example=(x[:2],),
            **options,
        )
    return models


def _warm(case: Case) -> float:
    """Run a case twice and return the seconds of the second call."""
    case()
    return _time(case, 1)


def _time(case: Case, number: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    for _ in range(number):
        case()
    return (time.perf_counter() - start) / number


def _summary(values: Sequence[float]) -> dict[str, float]:
    low, median, high = (
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    )
    return {"median": median, "quartile_1": low, "quartile_3": high}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _screen() -> tuple[Any, Any]:
    """A progress bar and the console it lives on."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError as error:
        raise ImportError("the benchmark needs rich: pip install 'gflowout[cli]'") from error
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True), console


def _shown(result: dict[str, Any]) -> Any:
    from rich.table import Table as Grid

    references = list(result["cases"][BARE]["ratio_to"])
    grid = Grid(title=result["title"], title_justify="left")
    for heading in ["method", "ms", *(f"÷ {reference}" for reference in references)]:
        grid.add_column(heading, justify="left" if heading == "method" else "right")
    for name, case in result["cases"].items():
        cells = [_cell(case["seconds"], 1e3)]
        cells += [_cell(case["ratio_to"][reference]) for reference in references]
        grid.add_row(name, *cells)
    return grid


def _cell(summary: dict[str, float], scale: float = 1.0) -> str:
    values = (scale * summary[key] for key in ("median", "quartile_1", "quartile_3"))
    median, low, high = (f"{one:.0f}" if one >= 100 else f"{one:.3g}" for one in values)
    return f"{median} ({low}-{high})"


def _plot(results: dict[str, Any], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the plot needs matplotlib: pip install 'gflowout[demo]'") from error
    figure = Figure(figsize=(9, 2.2 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), squeeze=False)[:, 0]
    for axes, result in zip(grid, results.values(), strict=True):
        ratios = {name: case["ratio_to"][BARE] for name, case in result["cases"].items()}
        medians = [ratio["median"] for ratio in ratios.values()]
        errors = [
            [ratio["median"] - ratio["quartile_1"] for ratio in ratios.values()],
            [ratio["quartile_3"] - ratio["median"] for ratio in ratios.values()],
        ]
        axes.barh(list(ratios), medians, xerr=errors)
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set_title(result["title"], loc="left", fontsize=10)
        axes.set_xlabel("times the cost of the bare backbone")
    figure.savefig(path)


if __name__ == "__main__":
    main()
