"""``gflowout study run`` and ``study list``; adds them and ``tune`` to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gflowout import study_options as options
from gflowout.console import plain_records
from gflowout.tune_commands import tune


def register(app: typer.Typer, study: typer.Typer) -> None:
    """Add the commands of this file to the application and its ``study`` group."""
    app.command(
        epilog="Examples:\n\n- `gflowout tune --config mnist.yaml --space fit.lr=log:1e-4:1e-2 "
        "--space gflowout:method.options.beta=0.1,1 --methods mc,gflowout --trials 20 --out "
        "tuned`\n\n- `gflowout tune --config mnist.yaml --epochs 5 --space space.yaml --search "
        f"optuna --out tuned`\n\n{options.EXITS}"
    )(tune)
    study.command(
        "run",
        epilog="Examples:\n\n- `gflowout study run study.yaml --out results`\n\n- `gflowout study "
        "run study.yaml --set fit.epochs=1 --out quick`\n\n- `gflowout study run study.yaml --out "
        f"results --engine ray --address auto`\n\n{options.EXITS}",
    )(run)
    study.command("list", epilog=f"Example:\n\n- `gflowout study list results`\n\n{options.EXITS}")(
        list_
    )


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The study.")],
    out: options.Out,
    data_dir: options.DataDir = None,
    set_: options.Set = None,
    engine: options.EngineOption = options.EngineName.pool,
    jobs: options.Jobs = None,
    address: options.Address = None,
    retries: Annotated[int, typer.Option(min=0, help="Of a run that failed.")] = 1,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Do those runs of a study that have no record yet: methods x data x seeds x options.

    A file has the keys name, base (a configuration), methods, data, seeds, options, test. What
    `--set` says goes before all of it.
    """
    with options.usage(), plain_records():
        from gflowout.experiments import estimates, files
        from gflowout.runs import records, run_study

        study = files.read_study(file, options.overrides({"data.directory": data_dir}, set_))
        where = options.make_engine(engine, jobs, address)
        if dry_run:
            typer.echo(f"{study.name}: {len(study.runs)} runs, records in {out}")
            kinds = estimates.tally(study.runs, records.finished(out))
            pick = estimates.first(study.runs)
            known = estimates.from_records(out, [study.name])
            lines = estimates.report(
                kinds,
                known,
                lambda kind: estimates.measure(pick(kind), study.work),
                options.workers(engine, jobs),
            )
            for line in lines:
                typer.echo(line)
            return
        files.remember(out, study.runs)
        with options.resumable():
            summary = run_study(
                study.runs,
                study.work,
                out,
                engine=where,
                retries=retries,
                time_limit=time_limit,
                memory_limit=memory_limit,
                progress=not quiet,
            )
        typer.echo(str(summary))
        if summary.exit_code:
            raise typer.Exit(summary.exit_code)


def list_(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="Folder of the records.")],
) -> None:
    """Show which runs are done, failed and missing."""
    with options.usage(), plain_records():
        from gflowout.experiments import files

        _must_be_folder(folder)
        found = files.standing(folder)
        if not found.counts:
            typer.echo(f"{folder}: no runs here")
            return
        rows = [["study", "data", "method", "done", "failed", "missing"]]
        for (study, data, method), counts in sorted(found.counts.items()):
            numbers = [str(counts[state]) for state in ("done", "failed", "missing")]
            rows.append([study, data, method, *numbers])
        for line in _aligned(rows):
            typer.echo(line)
        for name, why in found.failed.items():
            typer.echo(f"failed: {name}: {why}")
        for name in found.missing:
            typer.echo(f"missing: {name}")
        if found.failed:
            raise typer.Exit(1)


def _must_be_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
