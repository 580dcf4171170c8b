"""``gflowout report``: what came out of studies, as a page or tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gflowout.cli import study_options as options
from gflowout.cli.console import plain_records


class Format(StrEnum):
    """Formats of a report."""

    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


SUFFIXES = {
    ".html": Format.html,
    ".htm": Format.html,
    ".md": Format.md,
    ".markdown": Format.md,
    ".tex": Format.latex,
    ".csv": Format.csv,
}


def register(app: typer.Typer) -> None:
    """Add the command of this file to the application."""
    app.command(
        epilog="Examples:\n\n- `gflowout report results/cpu -o report.html`\n\n- `gflowout report "
        "results/cpu --study ood --format latex`\n\n- `gflowout report results --metric 'test/*'`"
        f"\n\n- `gflowout report results -o table.csv`\n\n{options.EXITS}"
    )(report)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="Folder of the records.")],
    format: Annotated[
        Format | None,
        typer.Option(help="Default: from the name of the file; md for the terminal."),
    ] = None,
    study: Annotated[
        list[str] | None, typer.Option(help="Name of a study; may be repeated. Default: all.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="For csv and your own studies: name or pattern of metrics, such as `test/*`; may "
            "be repeated."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: the terminal.")
    ] = None,
) -> None:
    """Show what came out: a page (html), tables (md, latex) or all numbers (csv).

    The page is one file that opens without a network: findings, tables and plots of each study.
    Figures are means and standard errors over seeds.
    """
    with options.usage(), plain_records():
        kind = _format(format, out)
        from gflowout.report.build import NothingDoneError

        try:
            text, told = _text(kind, folder, study or [], metric or [], title)
        except NothingDoneError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error
        if out is None:
            typer.echo(text, nl=False)
            return
        _write(out, text)
        typer.echo(f"{out}: {told}")


def _format(format: Format | None, out: Path | None) -> Format:
    if format is not None:
        return format
    if out is None:
        return Format.md
    if out.is_dir():
        raise ValueError(f"{out}: a folder; name a file in it, such as {out / 'report.html'}")
    if out.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ValueError(f"{out}: no format has this ending; use one of {known}, or --format")
    return SUFFIXES[out.suffix.lower()]


def _text(
    kind: Format, folder: Path, studies: list[str], metrics: list[str], title: str
) -> tuple[str, str]:
    """The report, and a few words on what is in it."""
    from gflowout.report import build, html, latex, markdown
    from gflowout.studies.framework import summary

    if kind is Format.csv:
        done = build.read(folder, studies)
        found = summary.groups(done, metrics or ("*",))
        return summary.table(found), f"{len(found)} rows from {len(done)} runs"
    made = build.build(folder, studies, metrics)
    if kind is Format.html:
        text = html.page(made, title)
    else:
        text = markdown.document(made) if kind is Format.md else latex.document(made)
    count = len(made.parts)
    return text, f"{count} {'study' if count == 1 else 'studies'} from {made.facts.runs} runs"


def _write(out: Path, text: str) -> None:
    """Write a file that appears when it is complete; no folder is made for it."""
    from gflowout.core.atomic_io import write_text

    if out.is_dir():
        raise ValueError(f"{out}: cannot be written (is a folder)")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    try:
        write_text(out, text)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written ({error.strerror})") from error
