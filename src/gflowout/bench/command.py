"""Which tables to measure, and where the numbers go."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gflowout.bench.comparisons import (
    data_tables,
    depth_tables,
    export_tables,
    fit_table,
    memory_format_tables,
)
from gflowout.bench.methods import DRAWS, method_tables
from gflowout.bench.results import plot as draw
from gflowout.bench.results import reached, screen, table_grid, targets_grid
from gflowout.bench.timing import Table, environment, measure
from gflowout.bench.work import memory_table, work_tables
from gflowout.core import checks
from gflowout.core.atomic_io import write_text

FORMAT = 2
MLP_ROUNDS, RESNET_ROUNDS, QUICK_ROUNDS = 50, 15, 3


def tables(width: int, mlp_repeats: int, resnet_repeats: int, quick: bool = False) -> list[Table]:
    """All tables; ``quick`` leaves out the largest batch of ResNet-18 and most of the images."""
    return [
        *method_tables(width, mlp_repeats, resnet_repeats, 16 if quick else 256),
        *depth_tables(resnet_repeats, width),
        memory_table(-(-mlp_repeats // 5)),
        *memory_format_tables(resnet_repeats, quick),
        *work_tables(width),
        *data_tables(mlp_repeats, resnet_repeats, 10 if quick else 1),
        fit_table(-(-resnet_repeats // 3), 6_000 if quick else 60_000),
        *export_tables(mlp_repeats, resnet_repeats, quick),
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

    The file is written anew after each table. Ratios are those of median times; the quartiles
    beside them are of the ratios within a round.

    Args:
        quick: A few rounds on the MLP and a narrow ResNet-18, in two minutes instead of an hour.
        width: Channels of the first stage of ResNet-18; not above 8 if ``quick``.
        repeats: Rounds per table. ``None``: 50 for the MLP and 15 for ResNet-18, or 3 if ``quick``.
            Tables that take long have a fraction of these.
        out: JSON file with all numbers; ``None`` for ``bench.json`` in the current folder.
        plot: File for a bar plot of the ratios; ``None`` for that of ``out`` with the ending
            ``.png``, if matplotlib is there.
        only: Tables to measure, by name or by its start up to a hyphen; all if empty.
        resume: Keep the tables of ``out`` that were measured with the same settings on the same
            kind of machine.
        cpu: Measure CPU time, for a machine that does other work, too; waiting for files does not
            count then.
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
            task = progress.add_task("", total=sum(table.cost * table.turns for table in left))
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
    console.print(f"All figures, with quartiles: {out}", highlight=False)
    with contextlib.nullcontext() if plot is not None else contextlib.suppress(ImportError):
        draw(shown, out.with_suffix(".png") if plot is None else Path(plot))


def _chosen(everything: Sequence[Table], only: Sequence[str]) -> list[Table]:
    """The tables of a name; or, where no table has it, of names that start with it.

    Without names, all that this machine has the packages for.
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
    return [table for table in everything if all(map(find_spec, table.needs))]


def _kept(out: Path, record: dict[str, Any], everything: Sequence[Table]) -> dict[str, Any]:
    """Tables of an earlier run with the same settings."""
    if not out.exists():
        return {}
    try:
        earlier = json.loads(out.read_text(encoding="utf-8"))
        results: dict[str, Any] = earlier["tables"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{out} is no file of this benchmark: remove it, or name another"
        ) from error
    for key, value in record.items():
        if earlier.get(key) != value:
            raise ValueError(
                f"{out} cannot be resumed, its {key} is another: {earlier.get(key)} and not {value}"
            )
    return {
        table.name: results[table.name]
        for table in everything
        if table.name in results
        and (results[table.name]["title"], results[table.name]["repeats"])
        == (table.title, table.repeats)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line: ``python -m gflowout.bench``."""
    parser = argparse.ArgumentParser(prog="python -m gflowout.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds of small models")
    parser.add_argument("--width", type=int, default=64, help="of ResNet-18 (default: 64)")
    parser.add_argument("--repeats", type=int, help="rounds (default: 50 MLP, 15 ResNet-18)")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench.json)")
    parser.add_argument("--plot", type=Path, help="picture (default: like --out, .png)")
    parser.add_argument("--only", action="append", default=[], help="a table; may be repeated")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    parser.add_argument("--cpu", action="store_true", help="CPU time, not wall-clock time")
    run(**vars(parser.parse_args(arguments)))
