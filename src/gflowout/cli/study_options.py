"""What ``gflowout tune`` and ``gflowout study run`` share: options, engines, errors in words."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gflowout.cli.console import explained

if TYPE_CHECKING:
    from gflowout.runs import Engine

EXITS = "Exit codes: 0 all is well, 1 some runs failed, 2 wrong usage, 130 interrupted."


class EngineName(StrEnum):
    """Engines by name."""

    inline = "inline"
    pool = "pool"
    ray = "ray"


class Preset(StrEnum):
    """Sizes of the studies of the paper."""

    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


def _folder(text: str) -> Path:
    """A folder that is there or can be made; refused at the door otherwise."""
    path = Path(text)
    if not text:
        raise typer.BadParameter("must name a folder, got nothing")
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise typer.BadParameter(f"{place} is a file, not a folder")
    return path


def _above_zero(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be a number above 0, got {value:g}")
    return value


DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory of all data sets. Default: $GFLOWOUT_DATA, or the user's cache."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
]
EngineOption = Annotated[
    EngineName, typer.Option(help="Where runs are done: here, in processes, on a Ray cluster.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. Default: one per core.")]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster, with --engine ray.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="Seconds after which a run is stopped as failed."),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="GiB of memory beyond which a run is."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and what it will cost; do nothing.")
]
Out = Annotated[
    Path, typer.Option(parser=_folder, metavar="DIRECTORY", help="Folder of the records.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No table of progress.")]


@contextmanager
def usage() -> Iterator[None]:
    """Turn errors of what the user asked for into a message and exit code 2."""
    from gflowout.runs import BusyError

    with explained():
        try:
            yield
        except (ValueError, FileNotFoundError, BusyError) as error:
            for line in str(error).splitlines():
                typer.echo(line, err=True)
            raise typer.Exit(2) from error


@contextmanager
def resumable() -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on where this one stopped") from None


def overrides(given: Mapping[str, Any], more: list[str] | None) -> list[str]:
    """Options of their own as ``key=value``, before those of ``--set``."""
    own = [
        f"{key}={json.dumps(value if isinstance(value, int) else str(value))}"
        for key, value in given.items()
        if value is not None
    ]
    return [*own, *(more or ())]


def check_data(names: Iterable[str], data_dir: Path | None) -> None:
    """Refuse data sets that are not there, before any work.

    Args:
        names: Of data sets in the catalogue.
        data_dir: What ``--data-dir`` got.

    Raises:
        ValueError: With a line for each that is missing.
    """
    from gflowout.data import catalog, store

    missing = [name for name in dict.fromkeys(names) if not store.is_there(name, data_dir)]
    if not missing:
        return
    given, named = f"--data-dir {data_dir}", data_dir
    if data_dir is None:
        variable = os.environ.get(store.VARIABLE)
        given = f"${store.VARIABLE} {variable}" if variable else str(store.root())
        named = Path(variable) if variable else None
    nowhere = named is not None and not named.expanduser().is_dir()
    said = "no such folder, and so no" if nowhere else "no"
    lines = [
        f"{given}: {said} {name}. {store.how_to_get(catalog.entry(name), (), data_dir)}"
        for name in missing
    ]
    raise ValueError("\n".join([*lines, "nothing was run"]))


def make_engine(name: EngineName, jobs: int | None, address: str | None) -> Engine:
    """The engine that the options ask for."""
    from gflowout.runs import engine

    if address is not None and name is not EngineName.ray:
        raise ValueError(f"--address is for --engine ray, got --engine {name.value}")
    if name is EngineName.ray:
        return engine("ray", address=address, jobs=jobs)
    if name is EngineName.pool:
        return engine("pool", jobs=jobs)
    if jobs not in (None, 1):
        raise ValueError(f"--jobs must be 1 with --engine inline, got {jobs}")
    return engine("inline")


def workers(name: EngineName, jobs: int | None) -> int | None:
    """Runs at once; ``None`` if only the cluster knows."""
    from gflowout.runs.environment import cores

    if name is EngineName.inline:
        return 1
    return jobs if jobs is not None or name is EngineName.ray else cores()
