"""``gflowout data``: what is there, getting it, checking it, looking at it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gflowout.cli.console import explained, writable
from gflowout.data.catalog import entry
from gflowout.data.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from rich.console import Console

    from gflowout.data.report import Presence, Report

data = typer.Typer(
    help="Data sets: what is there, getting, checking and looking at them.", no_args_is_help=True
)


def _known(names: list[str]) -> list[str]:
    for name in names:
        _named(name)
    return names


def _named(name: str) -> str:
    try:
        return entry(name).name
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory of all data sets. Default: $GFLOWOUT_DATA, or the user's cache."),
]
_EXITS = "Exit codes: 0 all is well, 1 it is not, 2 wrong usage, 130 interrupted."


@data.command(
    "list",
    epilog="Examples:\n\n- `gflowout data list`\n\n- `gflowout data list --data-dir ~/data`",
)
def list_(data_dir: _DataDir = None) -> None:
    """List all data sets: whether and where they are, their size and licence."""
    with explained(DataError):
        from rich.table import Table

        from gflowout.data import report, store
        from gflowout.data.download import readable

        base = store.root(data_dir)
        console = _console()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("data set", no_wrap=True)
        table.add_column("there", no_wrap=True)
        table.add_column("size", no_wrap=True, justify="right")
        table.add_column("what", ratio=1, overflow="fold")
        for found in report.survey(data_dir):
            lines, facts = [found.entry.title], [f"licence: {found.entry.licence}"]
            if found.folder is None:
                state = "no" if found.entry.downloads else "by hand"
            else:
                state = "in part" if found.missing else "yes"
                facts.append(_place(found, base))
            lines.append(f"[dim]{'; '.join(facts)}[/dim]")
            if found.missing:
                lines.append(f"missing: {', '.join(found.missing)}")
            if found.problem:
                state = "?"
                lines.append(found.problem)
            size = readable(found.size) if found.folder is not None else "-"
            if found.folder is None and found.entry.size:
                size = f"({readable(found.entry.size)})"
            table.add_row(found.entry.name, state, size, "\n".join(lines))
        _line(console, f"data directory: {base}")
        console.print(table)
        _line(console, "size: on disk; in brackets, what `gflowout data get NAME` fetches")
        _line(console, "by hand: `gflowout data get NAME` says how")


@data.command(
    epilog="Examples:\n\n- `gflowout data get mnist`\n\n- `gflowout data get cifar10 frost "
    f"--data-dir ~/data`\n\n{_EXITS}"
)
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", callback=_known, help="Data sets.")],
    data_dir: _DataDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch again; replace files that differ.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Download data sets; what is there already is not fetched again.

    A download that was broken off goes on where it stopped. Checksums are compared with the
    published ones before anything appears in the folder of a data set.
    """
    with explained(DataError):
        from gflowout.data import download

        failed = False
        for name in names:
            wanted = entry(name)
            if wanted.downloads and not quiet:
                size = download.readable(wanted.size)
                typer.echo(f"{name}: {size} at most; licence: {wanted.licence}", err=True)
            try:
                folder = download.get(name, data_dir, progress=not quiet, force=force)
                typer.echo(f"{name}: {folder}")
            except DataError as error:  # the others may be on other servers
                typer.echo(str(error), err=True)
                failed = True
        if failed:
            raise typer.Exit(1)


@data.command(
    epilog="Examples:\n\n- `gflowout data check mnist`\n\n- `gflowout data check --data-dir "
    f"~/data`\n\n{_EXITS}"
)
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]",
            callback=lambda names: _known(names or []),
            help="Data sets. Default: all that are there.",
        ),
    ] = None,
    data_dir: _DataDir = None,
) -> None:
    """Compare all files with the published checksums, read the data, and say what is in them."""
    with explained(DataError):
        from gflowout.data import report, store

        chosen = names or [
            each.entry.name
            for each in report.survey(data_dir)
            if (each.folder and not each.packaged) or each.problem
        ]
        if not chosen:
            raise MissingDataError(
                f"{store.root(data_dir)}: no data set here that is known by the names of its "
                "folder and files; `gflowout data list` says what there could be"
            )
        console, bad = _console(), []
        for place, name in enumerate(chosen):
            if place:
                console.print()
            try:
                found = report.check(name, data_dir)
            except DataError as error:
                missing = isinstance(error, MissingDataError)
                _line(console, f"{name}: {'missing. ' if missing else ''}{error}")
                bad.append(name)
                continue
            _print(console, found)
            if found.problems:
                bad.append(name)
        if bad:
            if len(chosen) > 1:
                _line(console, f"\nnot as published, or incomplete: {', '.join(bad)}")
            raise typer.Exit(1)


@data.command(
    epilog="Examples:\n\n- `gflowout data show mnist --out digits.png`\n\n- `gflowout data show "
    "cifar10 --corruption snow --out snow.png`\n\n- `gflowout data show cifar10 "
    "--all-corruptions --out all.png`\n\n- `gflowout data show mnist --rotate --out turned.png`"
    f"\n\n{_EXITS}"
)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=_named, help="Data set.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")],
    data_dir: _DataDir = None,
    split: Annotated[str | None, typer.Option(help="Part of the data. Default: test.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, max=100, help="Rows of examples.")] = None,
    columns: Annotated[int | None, typer.Option(min=1, max=100, help="Examples in a row.")] = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="snow, frost or gaussian_noise; may be repeated."),
    ] = None,
    all_corruptions: Annotated[
        bool, typer.Option("--all-corruptions", help="Show all corruptions.")
    ] = False,
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="One severity only. Default: all.")
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Show random rotations.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of examples, corruptions, angles.")] = 0,
) -> None:
    """Draw a contact sheet: images with their classes, or questions with their answers."""
    writable(out)
    with explained(DataError):
        from gflowout.data.corruptions import KINDS
        from gflowout.data.sheets import contact_sheet

        kinds = KINDS if all_corruptions and not name.endswith("-c") else tuple(corruption or ())
        from PIL import Image

        if out.suffix.lower() not in Image.registered_extensions():
            raise typer.BadParameter(
                f"{out.name!r} must end in .png, .jpg, .webp or another that Pillow writes",
                param_hint="--out",
            )
        try:
            drawn = contact_sheet(
                name,
                data_dir,
                split=split,
                rows=rows,
                columns=columns,
                corruptions=kinds,
                severity=severity,
                rotated=rotate,
                seed=seed,
            )
            drawn.save(out)
        except DataError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except OSError as error:
            raise DataError(f"{out}: cannot be written ({error})") from error
        typer.echo(f"{out}: {drawn.width}x{drawn.height} pixels")


def _print(console: Console, found: Report) -> None:
    from rich.table import Table

    from gflowout.data.download import readable

    _line(console, f"{found.entry.name} - {found.entry.title}")
    _line(console, f"in {found.folder}")
    files = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    files.add_column("file", overflow="fold")
    files.add_column("size", justify="right", no_wrap=True)
    files.add_column("checksum", overflow="fold")
    for file in found.files:
        size = "-" if file.size is None else readable(file.size)
        files.add_row(file.name, size, file.verdict)
    console.print(files)
    facts = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    facts.add_column(overflow="fold")
    facts.add_column(overflow="fold")
    for fact, value in found.contents.items():
        facts.add_row(fact, value)
    console.print(facts)
    for word in ("licence", "home", "citation"):
        _line(console, f"{word}: {getattr(found.entry, word)}")
    if not found.problems:
        _line(console, "all is well")
    for problem in found.problems:
        _line(console, f"problem: {problem}")
    if found.problems and found.entry.downloads:
        _line(console, f"try: gflowout data get {found.entry.name} (--force replaces files)")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _line(console: Console, text: str) -> None:
    """Print a line as it is: a path that is cut in two cannot be copied."""
    console.print(text, markup=False, soft_wrap=True)


def _place(found: Presence, base: Path) -> str:
    folder, package = found.folder, found.entry.package
    if folder is None:
        return ""
    if folder.is_relative_to(base):
        return f"in {folder.relative_to(base)}"
    return f"in the package {package[0]}" if package else f"in {folder}"
