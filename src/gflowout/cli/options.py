"""What commands share: options, examples in help pages, early checks, and errors as messages."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option
from typer.core import TyperGroup

from gflowout.core.optional import MissingExtraError
from gflowout.data import store
from gflowout.runs import BusyError, Engine, Inline, Pool, Ray, RecordWarning
from gflowout.runs.study import RunOptions
from gflowout.training import TerminatedError

EXITS = "Exit codes: 0 all is well, 1 some runs failed, 2 wrong usage, 130 interrupted."
YAML = (".yaml", ".yml")  # endings of configuration, study and space files
EngineName = StrEnum("EngineName", ["inline", "pool", "ray"])
Preset = StrEnum("Preset", ["smoke", "cpu", "paper"])  # sizes of the studies of the paper


class Commands(TyperGroup):
    """Commands whose errors show the value that was given, and whose flags show no type."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the errors of pydantic leave out the value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            details: Any = getattr(error.__cause__, "errors", list)()
            if details and repr(details[0]["input"]) not in error.message:
                error.message += f", got {details[0]['input']!r}"
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of the group itself."""
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types(command.get_params(ctx))
        return command


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _folder(text: str) -> Path:
    """A folder that exists or can be made."""
    path = Path(text)
    if not text:
        raise typer.BadParameter("must name a folder, got nothing")
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise typer.BadParameter(f"{place} is a file, not a folder")
    return path


def above_zero(value: float | None) -> float | None:
    """Refuse a number that is not above 0."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be a number above 0, got {value:g}")
    return value


# Data and models
Config = Annotated[Path | None, Option(help="YAML file; every key of it can be overridden.")]
Data = Annotated[
    str | None, Option(help="Data set, or a CSV, Parquet or NPZ file, or an image folder.")
]
DataDir = Annotated[
    Path | None,
    Option(help="Directory of all data sets. Default: $GFLOWOUT_DATA, or the user's cache."),
]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Set any key of the configuration; repeatable."),
]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder that `train` wrote.")]
Samples = Annotated[int, Option(min=1, help="Number of draws of masks.")]
Force = Annotated[bool, Option("--force", help="Replace the file if it exists.")]
NoBar = Annotated[bool, Option("--quiet", help="Show no progress bar.")]
Quiet = Annotated[bool, Option("--quiet", help="Print only warnings and errors.")]

# Runs
Out = Annotated[Path, Option(parser=_folder, metavar="DIRECTORY", help="Folder of the records.")]
EngineOption = Annotated[
    EngineName, Option(help="Do runs in this process, in a pool of processes or on a Ray cluster.")
]
Jobs = Annotated[
    int | None, Option(min=1, help="Runs at once. Default: one per GPU, or per core without any.")
]
Gpus = Annotated[
    float | None,
    Option(
        min=0,
        help="GPUs per run; 0.5: two runs share one; 0: none. Default: 1 where there are some.",
    ),
]
Address = Annotated[str | None, Option(help="Address of the Ray cluster, with --engine ray.")]
WorkingDir = Annotated[
    Path | None,
    Option(
        metavar="DIRECTORY",
        help="With --engine ray: folder that is copied to every node, where runs start. Default: "
        "this folder, where a node has one of its name.",
    ),
]
Retries = Annotated[int, Option(min=0, help="How often a run that fails is tried again.")]
TimeLimit = Annotated[
    float | None,
    Option(callback=above_zero, help="Stop a run that takes more than this many seconds."),
]
MemoryLimit = Annotated[
    float | None, Option(callback=above_zero, help="Stop a run that uses more than this many GiB.")
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Print the plan and its estimated cost; do and write nothing.")
]
NoTable = Annotated[bool, Option("--quiet", help="Show no table of progress.")]


def examples(*commands: str, exits: str = "") -> str:
    """The end of a help page: examples, each without ``gflowout``, and exit codes."""
    lines = [f"- `gflowout {command}`" for command in commands]
    return "\n\n".join(["Examples:", *lines, *([exits] if exits else [])])


def writable(out: Path, option: str = "--out", *, force: bool = True) -> None:
    """Refuse a file that could not be written, or exists and needs force, before any work."""
    folder = out.parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist", param_hint=option)
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"no permission to write into {folder}", param_hint=option)
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force replaces it", param_hint=option)


def words(option: str, text: str | None) -> list[str] | None:
    """The words of a comma-separated list; ``None`` if the option is not given."""
    if text is None:
        return None
    listed = [word.strip() for word in text.split(",") if word.strip()]
    if not listed:
        raise ValueError(f"{option} must name at least one, got {text!r}")
    return listed


def overrides(values: Mapping[str, Any], more: list[str] | None) -> list[str]:
    """Options of their own as ``key=value``, before those of ``--set``."""
    own = [
        f"{key}={json.dumps(value if isinstance(value, int) else str(value))}"
        for key, value in values.items()
        if value is not None
    ]
    return [*own, *(more or ())]


def check_data(names: Iterable[str], data_dir: Path | None, engine: Engine | None = None) -> None:
    """Raise ``ValueError``, with a line for each, if data sets of the catalogue are not there.

    With Ray every node that can do a run is asked, since each has a disk of its own.
    """
    names = list(dict.fromkeys(names))
    if isinstance(engine, Ray) and names:
        from gflowout.studies.framework.study import data_directory

        try:
            with data_directory(data_dir):
                by_node = engine.everywhere(store.problems, names)
        finally:
            engine.close()
        lines = [f"node {node}: {line}" for node, part in by_node.items() for line in part]
    else:
        lines = store.problems(names, data_dir)
    if lines:
        raise ValueError("\n".join([*lines, "nothing was run"]))


def run_options(
    name: EngineName,
    jobs: int | None,
    gpus: float | None,
    address: str | None,
    working_dir: Path | None,
    quiet: bool,
    **limits: Any,
) -> RunOptions:
    """How to do runs: an engine, retries, limits and progress, as the options say."""
    if working_dir is not None and name is not EngineName.ray:
        raise ValueError(f"--working-dir is for --engine ray, got --engine {name.value}")
    if gpus is not None and name is EngineName.inline:
        raise ValueError("--gpus is for --engine pool and ray, got --engine inline")
    if address is not None and name is not EngineName.ray:
        raise ValueError(f"--address is for --engine ray, got --engine {name.value}")
    if name is EngineName.inline and jobs not in (None, 1):
        raise ValueError(f"--jobs must be 1 with --engine inline, got {jobs}")
    engine: Engine
    if name is EngineName.inline:
        engine = Inline()
    elif name is EngineName.pool:
        engine = Pool(jobs, gpus=gpus)
    else:
        runtime_env = None if working_dir is None else {"working_dir": str(working_dir)}
        engine = Ray(address, jobs=jobs, gpus=gpus, runtime_env=runtime_env)
    return RunOptions(engine, progress=not quiet, **limits)


def workers(engine: Engine) -> int | None:
    """Runs at once; ``None`` if only the cluster knows."""
    jobs: int | None = getattr(engine, "jobs", 1)  # the inline engine has no such option
    return jobs


def echo(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        typer.echo(line)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"warning: {text}", err=True)


def console(**options: Any) -> Console:
    """A console of rich that does not colour numbers and paths."""
    return Console(highlight=False, **options)


def plain_table(*heads: str, **options: Any) -> Table:
    """A table of rich without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), **options)
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table


@contextmanager
def plain_warnings(*categories: type[Warning]) -> Iterator[None]:
    """Show warnings of these kinds as one line each, once, without lines of Python."""
    show_others, messages = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, categories):
            show_others(message, category, *rest, **more)
        elif str(message) not in messages:
            messages.add(str(message))
            warn(str(message))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = show_others


@contextmanager
def explained(*errors: type[Exception], code: int = 1) -> Iterator[None]:
    """Turn these errors, a missing extra, Ctrl-C and SIGTERM into a message and an exit code."""
    expected: tuple[type[Exception], ...] = (MissingExtraError, *errors)
    try:
        yield
    except expected as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1 if isinstance(error, MissingExtraError) else code) from error
    except KeyboardInterrupt as error:
        terminated = isinstance(error, TerminatedError)
        word = "terminated" if terminated else "interrupted"
        typer.echo(f"{word}: {error}" if str(error) else word, err=True)
        raise typer.Exit(143 if terminated else 130) from error


@contextmanager
def usage() -> Iterator[None]:
    """Turn wrong usage into a message and exit code 2; damaged records are warned of in a line."""
    expected = (ValueError, FileNotFoundError, BusyError)
    with explained(*expected, code=2), plain_warnings(RecordWarning):
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)("the same command goes on where this one stopped") from None
