"""``gflowout study run``, ``list`` and ``compare``; adds them and ``tune`` to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gflowout.cli import paper_studies
from gflowout.cli import study_options as options
from gflowout.cli.console import plain_records
from gflowout.cli.tune import tune
from gflowout.core.text import aligned


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
        epilog="Examples:\n\n- `gflowout study run all --preset smoke --out results/smoke`\n\n- "
        "`gflowout study run robustness --preset cpu --out results/cpu --methods mc,gflowout "
        "--data mnist`\n\n- `gflowout study run study.yaml --set fit.epochs=1 --out quick`\n\n- "
        "`gflowout study run masks --preset paper --out results/paper --engine ray --address auto`"
        f"\n\n{options.EXITS}",
    )(run)
    study.command(
        "list",
        epilog="Examples:\n\n- `gflowout study list`\n\n- `gflowout study list results/cpu`\n\n"
        f"{options.EXITS}",
    )(list_)
    study.command(
        "compare",
        epilog="Examples:\n\n- `gflowout study compare results/cpu again`\n\n- `gflowout study "
        "compare results/cpu again --tolerance 1e-3`\n\nExit codes: 0 the same, 1 some figures "
        "differ or some records are damaged, 2 wrong usage or nothing to compare.",
    )(compare)


def run(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="A study of the paper, `all` of them, or a study file."
        ),
    ],
    out: options.Out,
    preset: Annotated[
        options.Preset | None,
        typer.Option(help="Of the paper's studies: seconds, two cores for hours, or GPUs."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Of the paper's studies, these only: `mc,gflowout`.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Likewise: `mnist`.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Likewise: `0,1`.")] = None,
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

    `gflowout study list` names the studies of the paper. A study file has the keys name, base (a
    configuration), methods, data, seeds, options, test; what `--set` says goes before all of it.
    """
    with options.usage(), plain_records():
        names = paper_studies.names_of(study)
        where = options.make_engine(engine, jobs, address)
        here = engine is not options.EngineName.ray  # a cluster has disks of its own
        how = {
            "engine": where,
            "retries": retries,
            "time_limit": time_limit,
            "memory_limit": memory_limit,
            "progress": not quiet,
        }
        if names is None:
            given = {"--preset": preset, "--methods": methods, "--data": data, "--seeds": seeds}
            for option, value in given.items():
                if value is not None:
                    raise ValueError(f"{option} is for studies of the paper; a file says it itself")
            workers = options.workers(engine, jobs)
            code = _run_file(Path(study), out, data_dir, set_, dry_run, workers, here, how)
        else:
            if set_:
                raise ValueError("--set is for study files; studies of the paper have presets")
            if preset is None:
                raise ValueError(
                    f"{study} is a study of the paper: say how large with --preset smoke (seconds "
                    "to minutes), cpu (two cores, hours) or paper (GPUs)"
                )
            part = paper_studies.part_of(methods, data, seeds)
            if dry_run:
                paper_studies.dry_run(
                    names,
                    preset,
                    part,
                    out,
                    data_dir=data_dir,
                    workers=options.workers(engine, jobs),
                    engine=where,
                    here=here,
                )
                return
            with options.resumable():
                code = paper_studies.run(
                    names, preset, part, out, data_dir=data_dir, here=here, **how
                )
        if code:
            raise typer.Exit(code)


def _run_file(
    file: Path,
    out: Path,
    data_dir: Path | None,
    set_: list[str] | None,
    dry_run: bool,
    workers: int | None,
    here: bool,
    how: dict[str, Any],
) -> int:
    from gflowout.core.text import counted
    from gflowout.runs import records, run_study
    from gflowout.studies.framework import files
    from gflowout.studies.framework import plan as estimates
    from gflowout.studies.framework.study import sources

    study = files.read_study(file, options.overrides({"data.directory": data_dir}, set_))
    finished = records.finished(out)
    if here and study.work == files.WORK:
        ours = (None, str(data_dir))  # another directory is the file's own affair
        options.check_data(
            (
                name
                for run in study.runs
                if run.id not in finished and run.options["data.directory"] in ours
                for name in sources(run)
            ),
            data_dir,
        )
    if dry_run:
        typer.echo(f"{study.name}: {counted(len(study.runs), 'run')}, records in {out}")
        pick = estimates.first(study.runs)
        lines = estimates.report(
            estimates.tally(study.runs, finished),
            estimates.from_records(out, [study.name]),
            lambda kind: estimates.measure(pick(kind), study.work, how["engine"]),
            workers,
        )
        for line in lines:
            typer.echo(line)
        return 0
    files.remember(out, study.runs)
    with options.resumable():
        summary = run_study(study.runs, study.work, out, **how)
    typer.echo(str(summary))
    return summary.exit_code


def list_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[RESULTS]", help="Folder of the records.")
    ] = None,
) -> None:
    """Show the studies of the paper; or, in a folder, which runs are done, failed and missing."""
    with options.usage(), plain_records():
        from gflowout.runs import records
        from gflowout.studies.framework import files

        if folder is None:
            for line in paper_studies.catalogue():
                typer.echo(line)
            return
        records.must_be_folder(folder)
        found = files.standing(folder)
        if not found.counts:
            typer.echo(f"{folder}: no runs here")
            return
        rows = [["study", "data", "method", "done", "failed", "missing"]]
        for (study, data, method), counts in sorted(found.counts.items()):
            numbers = [str(counts[state]) for state in ("done", "failed", "missing")]
            rows.append([study, data, method, *numbers])
        for line in aligned(rows):
            typer.echo(line)
        for name, why in found.failed.items():
            typer.echo(f"failed: {name}: {why}")
        for name in found.missing:
            typer.echo(f"missing: {name}")
        if found.failed:
            raise typer.Exit(1)


def compare(
    first: Annotated[Path, typer.Argument(metavar="RESULTS", help="Folder of records.")],
    second: Annotated[Path, typer.Argument(metavar="AGAIN", help="Another one.")],
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest difference of a figure that is the same.")
    ] = 0.0,
) -> None:
    """Tell whether runs that are in two folders have the same figures, times apart.

    To see whether results can be repeated, do a study again in a new folder and compare.
    """
    with options.usage(), plain_records():
        from gflowout.core.text import counted
        from gflowout.runs import read, records
        from gflowout.studies.framework.summary import TIMES, repeats

        folders = (first, second)
        for folder in folders:
            records.must_be_folder(folder)
        done, again = (read(folder, "done") for folder in folders)
        found = repeats(done, again, tolerance)
        mine, theirs = ({record["id"] for record in each} for each in (done, again))
        timed = sum(record["id"] in theirs for record in done if record["study"] == TIMES)
        if timed:
            what = f"{counted(timed, 'run')} of {TIMES}"
            how = "has times alone and was" if timed == 1 else "have times alone and were"
            typer.echo(f"{what} {how} left out.")
        if not found:
            raise ValueError(f"no run with figures to compare is in both {first} and {second}")
        rows = [["study", "data", "in both", "same", "largest difference", "of", "in"]]
        for each in found:
            told = [str(each.runs), str(each.same), f"{each.largest:.3g}", each.metric, each.run]
            rows.append([each.study, each.data, *told])
        for line in aligned(rows):
            typer.echo(line)
        same, runs = sum(each.same for each in found), sum(each.runs for each in found)
        if any(each.machines for each in found):
            typer.echo("Some runs were on another kind of processor, which may round otherwise.")
        failed = [
            f"failed in {folder}: {len({each['id'] for each in read(folder, 'failed')} - known)}"
            for folder, known in zip(folders, (mine, theirs), strict=True)
        ]
        alone = f"Done in one folder alone: {len(mine - theirs)} and {len(theirs - mine)} runs"
        typer.echo(f"{'; '.join([alone, *failed])}.")
        hurt = {folder: len(records.damaged(folder)) for folder in folders}
        for folder, count in hurt.items():
            if count:
                what = "is not a whole record" if count == 1 else "are not whole records"
                typer.echo(f"Damaged: {counted(count, 'file')} in {folder} {what}.")
        typer.echo(f"{same} of {runs} runs have the same figures.")
        if same < runs or any(hurt.values()):
            raise typer.Exit(1)
