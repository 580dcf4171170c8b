"""``gflowout report``, ``study list`` and ``study compare``: the commands that read records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gflowout.cli import options
from gflowout.cli.options import echo, examples
from gflowout.core.atomic_io import write_text
from gflowout.core.text import aligned, counted
from gflowout.runs import records

Format = StrEnum("Format", ["html", "md", "latex", "csv"])
SUFFIXES = {
    ".html": Format.html, ".htm": Format.html, ".md": Format.md, ".markdown": Format.md,
    ".tex": Format.latex, ".csv": Format.csv,
}  # fmt: skip


def register(app: typer.Typer, studies: typer.Typer) -> None:
    """Add the commands to the application and its ``study`` group."""
    studies.command(
        "list", epilog=examples("study list", "study list results/cpu", exits=options.EXITS)
    )(list_)
    studies.command(
        "compare",
        epilog=examples(
            "study compare results/cpu again",
            "study compare results/cpu again --tolerance 1e-3",
            exits="Exit codes: 0 the same, 1 some numbers differ or some records are damaged, "
            "2 wrong usage or nothing to compare.",
        ),
    )(compare)
    app.command(
        epilog=examples(
            "report results/cpu -o report.html",
            "report results/cpu --study ood --format latex",
            "report results --metric 'test/*'",
            "report results -o table.csv",
            exits=options.EXITS,
        )
    )(report)


def list_(
    folder: Annotated[
        Path | None, Argument(metavar="[RESULTS]", help="Folder of the records.")
    ] = None,
) -> None:
    """Show the studies of the paper; or, in a folder, which runs are done, failed and missing."""
    with options.usage():
        from gflowout.cli import study_runs
        from gflowout.studies.framework import files

        if folder is None:
            echo(study_runs.catalogue())
            return
        records.must_be_folder(folder)
        state = files.standing(folder)
        if not state.counts:
            typer.echo(f"{folder}: no runs here")
            return
        rows = [["study", "data", "method", "done", "failed", "missing"]]
        for names, counts in sorted(state.counts.items()):
            rows.append([*names, *(str(counts[word]) for word in rows[0][3:])])
        echo(aligned(rows))
        echo(f"failed: {name}: {why}" for name, why in state.failed.items())
        echo(f"missing: {name}" for name in state.missing)
        if state.failed:
            raise typer.Exit(1)


def compare(
    first: Annotated[Path, Argument(metavar="RESULTS", help="Folder of records.")],
    second: Annotated[Path, Argument(metavar="AGAIN", help="Another folder of records.")],
    tolerance: Annotated[
        float, Option(min=0.0, help="Largest difference at which two numbers count as the same.")
    ] = 0.0,
) -> None:
    """Compare the numbers of runs that are in two folders, except for times.

    To see whether results can be repeated, do a study again in a new folder and compare.
    """
    with options.usage():
        from gflowout.report.summary import TIMES, repeats
        from gflowout.runs import read

        folders = (first, second)
        done, again = (read(folder, "done") for folder in folders)
        groups = repeats(done, again, tolerance)
        mine, theirs = ({record["id"] for record in folder} for folder in (done, again))
        timed = sum(record["id"] in theirs for record in done if record["study"] == TIMES)
        if timed:
            how = "has times alone and was" if timed == 1 else "have times alone and were"
            typer.echo(f"{counted(timed, 'run')} of {TIMES} {how} left out.")
        if not groups:
            raise ValueError(f"no run with numbers to compare is in both {first} and {second}")
        rows = [["study", "data", "in both", "same", "largest difference", "of", "in"]]
        for group in groups:
            numbers = [str(group.runs), str(group.same), f"{group.largest:.3g}"]
            rows.append([group.study, group.data, *numbers, group.metric, group.run])
        echo(aligned(rows))
        if any(group.machines for group in groups):
            typer.echo("Some runs were on another kind of processor, which may round differently.")
        parts = [f"Done in one folder alone: {len(mine - theirs)} and {len(theirs - mine)} runs"]
        for folder, ids in zip(folders, (mine, theirs), strict=True):
            failed = {record["id"] for record in read(folder, "failed")} - ids
            parts.append(f"failed in {folder}: {len(failed)}")
        typer.echo(f"{'; '.join(parts)}.")
        damaged = {folder: len(records.damaged(folder)) for folder in folders}
        for folder, count in damaged.items():
            if count:
                what = "is not a whole record" if count == 1 else "are not whole records"
                typer.echo(f"Damaged: {counted(count, 'file')} in {folder} {what}.")
        same, runs = sum(group.same for group in groups), sum(group.runs for group in groups)
        typer.echo(f"{same} of {runs} runs have the same numbers.")
        if same < runs or any(damaged.values()):
            raise typer.Exit(1)


def report(
    folder: Annotated[Path, Argument(metavar="RESULTS", help="Folder of the records.")],
    format: Annotated[
        Format | None,
        Option(help="Format. Default: from the name of the file; md for the terminal."),
    ] = None,
    study: Annotated[
        list[str] | None, Option(help="Name of a study; repeatable. Default: all.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        Option(
            help="For csv and your own studies: name or pattern of metrics, such as `test/*`; "
            "repeatable."
        ),
    ] = None,
    title: Annotated[str, Option(help="Heading of the page.")] = "",
    out: Annotated[
        Path | None, Option("--out", "-o", help="File to write. Default: the terminal.")
    ] = None,
) -> None:
    """Show results as a page (html), tables (md, latex) or all numbers (csv).

    The page is one file that opens without a network: findings, tables and plots of each study.
    Numbers are means and standard errors over seeds.
    """
    with options.usage():
        kind = _format(format, out)
        from gflowout.report.build import NothingDoneError

        try:
            text, contents = _text(kind, folder, study or [], metric or [], title)
        except NothingDoneError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error
        if out is None:
            typer.echo(text, nl=False)
            return
        _write(out, text)
        typer.echo(f"{out}: {contents}")


def _format(format: Format | None, out: Path | None) -> Format:
    if format is not None:
        return format
    if out is None:
        return Format.md
    if out.is_dir():
        raise ValueError(f"{out}: a folder; name a file in it, such as {out / 'report.html'}")
    if out.suffix.lower() not in SUFFIXES:
        suffixes = ", ".join(SUFFIXES)
        raise ValueError(f"{out}: no format has this ending; use one of {suffixes}, or --format")
    return SUFFIXES[out.suffix.lower()]


def _text(
    kind: Format, folder: Path, studies: list[str], metrics: list[str], title: str
) -> tuple[str, str]:
    """The report, and a few words on what is in it."""
    from gflowout.report import build, html, latex, markdown, summary

    if kind is Format.csv:
        done = build.read(folder, studies)
        groups = summary.groups(done, metrics or ("*",))
        return summary.table(groups), f"{len(groups)} rows from {len(done)} runs"
    content = build.build(folder, studies, metrics)
    if kind is Format.html:
        text = html.page(content, title)
    else:
        text = (markdown if kind is Format.md else latex).document(content)
    count = len(content.parts)
    return text, f"{count} {'study' if count == 1 else 'studies'} from {content.facts.runs} runs"


def _write(out: Path, text: str) -> None:
    """Write a file that appears when it is complete; no folder is made for it."""
    if out.is_dir():
        raise ValueError(f"{out}: cannot be written (is a folder)")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    try:
        write_text(out, text)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written ({error.strerror})") from error
