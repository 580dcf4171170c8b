"""``gflowout data``: list, download, check and show data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gflowout.cli import options
from gflowout.cli.options import Commands, examples, explained, writable
from gflowout.data import download, report, store
from gflowout.data.corruptions import KINDS
from gflowout.data.download import readable
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.sheets import contact_sheet
from gflowout.data.store import entry

data = typer.Typer(
    help="List, download, check and show data sets.", cls=Commands, no_args_is_help=True
)


def _catalogued(names: list[str] | None) -> list[str]:
    return [_name(name) for name in names or ()]


def _name(name: str) -> str:
    try:
        return entry(name).name
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_EXITS = "Exit codes: 0 all is well, 1 there are problems, 2 wrong usage, 130 interrupted."


@data.command("list", epilog=examples("data list", "data list --data-dir ~/data"))
def list_(data_dir: options.DataDir = None) -> None:
    """List all data sets: whether and where they are, their size and licence."""
    with explained(DataError):
        base = store.root(data_dir)
        table = options.plain_table("data set", "there")
        table.add_column("size", no_wrap=True, justify="right")
        table.add_column("what", ratio=1, overflow="fold")
        for dataset in report.survey(data_dir):
            lines, facts = [dataset.entry.title], [f"licence: {dataset.entry.licence}"]
            if dataset.folder is None:
                state = "no" if dataset.entry.downloads else "by hand"
                size = f"({readable(dataset.entry.size)})" if dataset.entry.size else "-"
            else:
                state, size = "in part" if dataset.missing else "yes", readable(dataset.size)
                facts.append(_place(dataset, base))
            lines.append(f"[dim]{'; '.join(facts)}[/dim]")
            if dataset.missing:
                lines.append(f"missing: {', '.join(dataset.missing)}")
            if dataset.problem:
                state = "?"
                lines.append(dataset.problem)
            table.add_row(dataset.entry.name, state, size, "\n".join(lines))
        typer.echo(f"data directory: {base}")
        options.console().print(table)
        typer.echo("size: on disk; in brackets, what `gflowout data get NAME` downloads")
        typer.echo("by hand: `gflowout data get NAME` says how")


@data.command(
    epilog=examples("data get mnist", "data get cifar10 frost --data-dir ~/data", exits=_EXITS)
)
def get(
    names: Annotated[list[str], Argument(metavar="NAME", callback=_catalogued, help="Data sets.")],
    data_dir: options.DataDir = None,
    force: Annotated[
        bool, Option("--force", help="Download again; replace files that differ.")
    ] = False,
    quiet: options.NoBar = False,
) -> None:
    """Download data sets that are not there yet.

    A download that was interrupted goes on where it stopped. Checksums are compared with the
    published ones before anything appears in the folder of a data set.
    """
    with explained(DataError):
        failed = False
        for name in names:
            dataset = entry(name)
            if dataset.downloads and not quiet:
                size = readable(dataset.size)
                typer.echo(f"{name}: {size} at most; licence: {dataset.licence}", err=True)
            try:
                folder = download.get(name, data_dir, progress=not quiet, force=force)
                typer.echo(f"{name}: {folder}")
            except DataError as error:  # the others may be on other servers
                typer.echo(str(error), err=True)
                failed = True
        if failed:
            raise typer.Exit(1)


@data.command(epilog=examples("data check mnist", "data check --data-dir ~/data", exits=_EXITS))
def check(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="[NAME]", callback=_catalogued, help="Data sets. Default: all that are there."
        ),
    ] = None,
    data_dir: options.DataDir = None,
) -> None:
    """Compare all files with the published checksums, read the data, and say what is in them."""
    with explained(DataError):
        chosen = names or [
            dataset.entry.name
            for dataset in report.survey(data_dir)
            if (dataset.folder and not dataset.packaged) or dataset.problem
        ]
        if not chosen:
            raise MissingDataError(
                f"{store.root(data_dir)}: no data set here that is recognised by the names of its "
                "folder and files; `gflowout data list` lists all data sets"
            )
        bad = []
        for place, name in enumerate(chosen):
            if place:
                typer.echo()
            try:
                checked = report.check(name, data_dir)
            except DataError as error:
                missing = isinstance(error, MissingDataError)
                typer.echo(f"{name}: {'missing. ' if missing else ''}{error}")
                bad.append(name)
                continue
            _print(checked)
            if checked.problems:
                bad.append(name)
        if bad:
            if len(chosen) > 1:
                typer.echo(f"\nnot as published, or incomplete: {', '.join(bad)}")
            raise typer.Exit(1)


@data.command(epilog=examples("data pack --data-dir data", exits=_EXITS))
def pack(
    data_dir: options.DataDir = None,
    features_dir: Annotated[
        Path | None,
        Option(help="Folder of the files, one per picture. Default: as for loading VQA v2."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Folder of the shards. Default: `packed` in the folder of VQA v2."),
    ] = None,
    quiet: options.NoBar = False,
) -> None:
    """Write the region features of VQA v2 into a few files that training can read fast."""
    with explained(DataError, ValueError):
        from gflowout.data.vqa import v2

        folder = v2.pack(data_dir, features_dir=features_dir, out=out, progress=not quiet)
        size = sum(path.stat().st_size for path in folder.iterdir())
        typer.echo(f"{folder}: {readable(size)}")


@data.command(
    epilog=examples(
        "data show mnist --out digits.png",
        "data show cifar10 --corruption snow --out snow.png",
        "data show cifar10 --all-corruptions --out all.png",
        "data show mnist --rotate --out turned.png",
        exits=_EXITS,
    )
)
def show(
    name: Annotated[str, Argument(metavar="NAME", callback=_name, help="Data set.")],
    out: Annotated[Path, Option(help="Picture to write.")],
    data_dir: options.DataDir = None,
    split: Annotated[str | None, Option(help="Part of the data. Default: test.")] = None,
    rows: Annotated[int | None, Option(min=1, max=100, help="Rows of examples.")] = None,
    columns: Annotated[int | None, Option(min=1, max=100, help="Examples in a row.")] = None,
    corruption: Annotated[
        list[str] | None,
        Option(metavar="KIND", help="Show snow, frost or gaussian_noise; repeatable."),
    ] = None,
    all_corruptions: Annotated[
        bool, Option("--all-corruptions", help="Show all corruptions.")
    ] = False,
    severity: Annotated[
        int | None, Option(min=1, max=5, help="One severity only. Default: all.")
    ] = None,
    rotate: Annotated[bool, Option("--rotate", help="Show random rotations.")] = False,
    seed: Annotated[int, Option(min=0, help="Seed of examples, corruptions and angles.")] = 0,
) -> None:
    """Draw a contact sheet: images with their classes, or questions with their answers."""
    writable(out)
    with explained(DataError):
        from PIL import Image

        kinds = KINDS if all_corruptions and not name.endswith("-c") else tuple(corruption or ())
        if out.suffix.lower() not in Image.registered_extensions():
            raise typer.BadParameter(
                f"{out.name!r} must end in .png, .jpg, .webp or another that Pillow writes",
                param_hint="--out",
            )
        try:
            sheet = contact_sheet(
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
            sheet.save(out)
        except DataError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except OSError as error:
            raise DataError(f"{out}: cannot be written ({error})") from error
        typer.echo(f"{out}: {sheet.width}x{sheet.height} pixels")


def _print(checked: report.Report) -> None:
    console = options.console()
    typer.echo(f"{checked.entry.name} - {checked.entry.title}")
    typer.echo(f"in {checked.folder}")
    files = options.plain_table()
    files.add_column("file", overflow="fold")
    files.add_column("size", justify="right", no_wrap=True)
    files.add_column("checksum", overflow="fold")
    for file in checked.files:
        size = "-" if file.size is None else readable(file.size)
        files.add_row(file.name, size, file.verdict)
    console.print(files)
    facts = options.plain_table(show_header=False)
    facts.add_column(overflow="fold")
    facts.add_column(overflow="fold")
    for fact, value in checked.contents.items():
        facts.add_row(fact, value)
    console.print(facts)
    for word in ("licence", "home", "citation"):
        typer.echo(f"{word}: {getattr(checked.entry, word)}")
    if not checked.problems:
        typer.echo("all is well")
    for problem in checked.problems:
        typer.echo(f"problem: {problem}")
    if checked.problems and checked.entry.downloads:
        typer.echo(f"try: gflowout data get {checked.entry.name} (--force replaces files)")


def _place(dataset: report.Presence, base: Path) -> str:
    folder, package = dataset.folder, dataset.entry.package
    assert folder is not None
    if folder.is_relative_to(base):
        return f"in {folder.relative_to(base)}"
    return f"in the package {package[0]}" if package else f"in {folder}"
