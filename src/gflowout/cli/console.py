"""What all commands share: refusing bad paths early, and short messages instead of tracebacks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from gflowout.core.optional import MissingExtraError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def writable(out: Path, option: str = "--out") -> None:
    """Refuse a file that could not be written, before any work is done."""
    folder = out.parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist", param_hint=option)
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"no permission to write into {folder}", param_hint=option)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"warning: {text}", err=True)


@contextmanager
def plain_warnings(*categories: type[Warning]) -> Iterator[None]:
    """Show warnings of some kinds as one line each, once, without lines of Python.

    Args:
        categories: Warnings whose message is meant for the user.
    """
    shown, told = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, categories):
            shown(message, category, *rest, **more)
        elif str(message) not in told:
            told.add(str(message))
            warn(str(message))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


@contextmanager
def plain_records() -> Iterator[None]:
    """Show warnings about records as one line each."""
    from gflowout.runs import RecordWarning

    with plain_warnings(RecordWarning):
        yield


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
