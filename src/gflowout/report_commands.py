"""``gflowout report``: what came out of studies, as a page or tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gflowout import study_options as options
from gflowout.console import plain_records


class Format(StrEnum):
    """Formats of a report."""

    md = "md"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """Add the command of this file to the application."""
    app.command(
        epilog="Examples:\n\n- `gflowout report results`\n\n- `gflowout report results --metric "
        "'test/*'`\n\n- `gflowout report results --format "
        f"csv --out table.csv`\n\n{options.EXITS}"
    )(report)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="Folder of the records.")],
    format: Annotated[Format, typer.Option(help="Markdown or CSV.")] = Format.md,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Name or pattern of metrics, such as `test/*`; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the terminal.")] = None,
) -> None:
    """Show final metrics: mean and standard error over seeds, per method and data."""
    with options.usage(), plain_records():
        from gflowout.experiments import summary
        from gflowout.runs import records

        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
        done = records.read(folder, records.DONE)
        if not done:
            typer.echo(f"{folder}: no run is done here", err=True)
            raise typer.Exit(1)
        found = summary.groups(done, metric or ("*",))
        text = summary.markdown(found) + "\n" if format is Format.md else summary.table(found)
        if out is None:
            typer.echo(text, nl=False)
        else:
            try:
                out.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ValueError(f"{out}: cannot be written ({error.strerror})") from error
            typer.echo(f"{out}: {len(found)} rows from {len(done)} runs")
