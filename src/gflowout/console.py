"""What all commands share: refusing bad paths early, and short messages instead of tracebacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from gflowout.cli import INTERRUPTED
from gflowout.extras import MissingExtraError


def writable(out: Path, option: str = "--out") -> None:
    """Refuse a file that could not be written, before any work is done."""
    folder = out.parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist", param_hint=option)
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"no permission to write into {folder}", param_hint=option)


@contextmanager
def explained(*errors: type[Exception]) -> Iterator[None]:
    """Turn a missing extra, Ctrl-C and further errors into a short message and an exit code.

    Args:
        errors: Errors whose message is meant for the user.
    """
    meant: tuple[type[Exception], ...] = (MissingExtraError, *errors)
    try:
        yield
    except meant as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo(f"interrupted: {error}" if str(error) else "interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
