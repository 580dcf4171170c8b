"""The command: which tables to measure, and where the figures go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gflowout import checks
from gflowout.bench.depth import depth_tables
from gflowout.bench.methods import DRAWS, method_tables
from gflowout.bench.overhead import data_tables, fit_table
from gflowout.bench.show import plot as draw
from gflowout.bench.show import screen, shown, write
from gflowout.bench.timing import Table, environment, measure

FORMAT = 1


def tables(width: int, mlp_repeats: int, resnet_repeats: int) -> list[Table]:
    """All comparisons.

    Args:
        width: Channels of the first stage of ResNet-18.
        mlp_repeats: Rounds of the tables with the MLP.
        resnet_repeats: Rounds of the tables with ResNet-18.
    """
    return [
        *method_tables(width, mlp_repeats, resnet_repeats),
        *depth_tables(resnet_repeats),
        *data_tables(mlp_repeats, resnet_repeats),
        fit_table(resnet_repeats),
    ]


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
    progress, console = screen()
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
    write(out, json.dumps(record, indent=2) + "\n")
    for result in results.values():
        console.print(shown(result))
    console.print(f"All figures, with quartiles: {out}", highlight=False)
    if plot is not None:
        draw(results, Path(plot))


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
