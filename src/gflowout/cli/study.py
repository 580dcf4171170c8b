"""``gflowout tune`` and ``gflowout study run``: the commands that do many runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gflowout import tuning
from gflowout.cli import options
from gflowout.cli.options import echo, examples
from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import MissingExtraError
from gflowout.data.store import ENTRIES
from gflowout.runs import Engine, records
from gflowout.tuning.tune import STUDY, Plan, agree, do_search, make_plan

SearchName = StrEnum("SearchName", ["grid", "random", "optuna"])
Direction = StrEnum("Direction", ["minimize", "maximize"])


def register(app: typer.Typer, studies: typer.Typer) -> None:
    """Add the commands to the application and its ``study`` group."""
    app.command(
        epilog=examples(
            "tune --config mnist.yaml --space fit.lr=log:1e-4:1e-2 --space "
            "gflowout:method.options.beta=0.1,1 --methods mc,gflowout --trials 20 --out tuned",
            "tune --config mnist.yaml --epochs 5 --space space.yaml --search optuna --out tuned",
            exits=options.EXITS,
        )
    )(tune)
    studies.command(
        "run",
        epilog=examples(
            "study run all --preset smoke --out results/smoke",
            "study run robustness --preset cpu --out results/cpu --methods mc,gflowout "
            "--data mnist",
            "study run study.yaml --set fit.epochs=1 --out quick",
            "study run ood --preset cpu --data mnist --against my/idx-folder --out results/ood",
            "study run masks --preset paper --out results/paper --engine ray --address auto "
            "--gpus 0.5",
            exits=options.EXITS,
        ),
    )(run)
    studies.command(
        "plan", epilog=examples("study plan", "study plan vqa --tflops 60 --price 1.5")
    )(plan)


def tune(
    space: Annotated[
        list[str],
        Option(
            metavar="[METHOD:]OPTION=VALUES | FILE.yaml",
            help="What to search; repeatable. VALUES: `a,b,c`, `log:LOW:HIGH`, "
            "`uniform:LOW:HIGH`, `int:LOW:HIGH`.",
        ),
    ],
    out: options.Out,
    config: options.Config = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    epochs: Annotated[int | None, Option(help="Maximum number of epochs of every trial.")] = None,
    set_: options.Set = None,
    methods: Annotated[
        str | None,
        Option(help="Methods to tune (comma-separated). Default: that of the configuration."),
    ] = None,
    search: Annotated[SearchName, Option(help="Way to search.")] = SearchName.random,
    trials: Annotated[int, Option(min=1, help="Trials of each method.")] = 20,
    score: Annotated[str, Option(help="Metric of validation data to compare.")] = "valid/nll",
    direction: Annotated[
        Direction, Option(help="Whether a good score is small or large.")
    ] = Direction.minimize,
    seed: Annotated[int, Option(min=0, help="Seed of the search.")] = 0,
    parallel: Annotated[
        int, Option(min=1, help="Optuna: how many trials of a method are proposed at once.")
    ] = 2,
    subset: Annotated[bool, Option("--subset", help="Grid: try a random subset.")] = False,
    engine: options.EngineOption = options.EngineName.pool,
    jobs: options.Jobs = None,
    gpus: options.Gpus = None,
    address: options.Address = None,
    working_dir: options.WorkingDir = None,
    retries: options.Retries = 0,
    again: Annotated[bool, Option("--again", help="Retry trials that failed before.")] = False,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    dry_run: options.DryRun = False,
    quiet: options.NoTable = False,
) -> None:
    """Search for the best options of each method, on validation data, with one budget for all.

    Every trial is a run with a record; a search that was stopped goes on where it was. Writes
    `best-METHOD.yaml` for `gflowout train --config`, all trials to `tuned.yaml`, and a plot.
    """
    with options.usage():
        from gflowout.app import config as configs

        given = {"data.source": data, "data.directory": data_dir, "fit.epochs": epochs}
        base = configs.read(config, options.overrides(given, set_))
        plan = make_plan(
            base,
            _space(space),
            methods=options.words("--methods", methods) or [base.method.name],
            search=search.value,
            trials=trials,
            score=score,
            direction=direction.value,
            seed=seed,
            parallel=parallel,
            subset=subset,
        )
        agree(plan, out)
        how = options.run_options(
            engine, jobs, gpus, address, working_dir, quiet,
            retries=retries, time_limit=time_limit, memory_limit=memory_limit,
        )  # fmt: skip
        if dry_run:
            echo(_tuning_plan(plan, out, how.engine))
            return
        named = [base.data.source] if base.data.source in ENTRIES else []
        directory = base.data.directory
        options.check_data(named, None if directory is None else Path(directory), how.engine)
        with options.resumable():
            tuned = do_search(plan, out, how, again)
        echo(_write_tuned(tuned, out))
        if tuned.failed:
            raise typer.Exit(1)


def _space(words: list[str]) -> tuning.Space:
    """The space of several options, files among them."""
    return tuning.space(
        *(
            tuning.read_space(word) if "=" not in word and word.endswith(options.YAML) else word
            for word in words
        )
    )


def _tuning_plan(plan: Plan, out: Path, engine: Engine) -> Iterator[str]:
    """What a search will do and cost."""
    from gflowout.studies.framework import plan as planning

    yield (
        f"{plan.search} search, {plan.trials} trials for each of {', '.join(plan.base)}; "
        f"{plan.score} {plan.direction}d, seed {plan.seed}, records in {out}"
    )
    yield from (f"  {line}" for line in plan.space.lines())
    trials = records.read(out, records.DONE) if out.is_dir() else []
    done = Counter(trial["method"] for trial in trials if trial["study"] == STUDY)
    typical = [
        plan.run(method, {name: domain.at(0.5) for name, domain in plan.space.of(method).items()})
        for method in plan.base
    ]
    pick, count = planning.first(typical), plan.trials
    yield from planning.report(
        {(run.method, run.data): (count, min(done[run.method], count)) for run in typical},
        planning.from_records(out, [STUDY]),
        lambda kind: planning.measure(pick(kind), plan.work, engine),
        options.workers(engine),
    )


def _write_tuned(tuned: tuning.Tuned, out: Path) -> Iterator[str]:
    """Write the files of a search that is done; yields what to print."""
    yield tuned.table()
    for trial in tuned.failed:
        yield f"failed: {trial.method} trial {trial.number}: {trial.error}"
    write_text(out / "tuned.yaml", tuned.to_yaml())
    written = [out / "tuned.yaml", *tuning.write_best(tuned, out)]
    with contextlib.suppress(MissingExtraError):  # the plot is optional
        tuned.plot(out / "tuned.png")
        written.append(out / "tuned.png")
    yield f"written: {', '.join(map(str, written))}"


def run(
    study: Annotated[
        str,
        Argument(
            metavar="STUDY",
            help="A study, `all` of them (at preset paper: those of the paper), or a study file.",
        ),
    ],
    out: options.Out,
    preset: Annotated[
        options.Preset | None,
        Option(
            help="Size of a study of the paper: smoke (seconds to minutes), cpu (hours on two "
            "cores) or paper (GPUs)."
        ),
    ] = None,
    methods: Annotated[
        str | None, Option(help="Only these methods (comma-separated), for example `mc,gflowout`.")
    ] = None,
    data: Annotated[
        str | None, Option(help="Only these data sets (comma-separated), for example `mnist`.")
    ] = None,
    seeds: Annotated[
        str | None, Option(help="Only these seeds (comma-separated), for example `0,1`.")
    ] = None,
    against: Annotated[
        str | None,
        Option(
            help="Study ood: test against these data, too (comma-separated): names of data sets, "
            "idx files of images or folders with one, folders of images."
        ),
    ] = None,
    data_dir: options.DataDir = None,
    set_: options.Set = None,
    engine: options.EngineOption = options.EngineName.pool,
    jobs: options.Jobs = None,
    gpus: options.Gpus = None,
    address: options.Address = None,
    working_dir: options.WorkingDir = None,
    retries: options.Retries = 1,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    dry_run: options.DryRun = False,
    quiet: options.NoTable = False,
) -> None:
    """Do those runs of a study that have no record yet: methods x data x seeds x options.

    `gflowout study list` names the studies of the paper. A study file has the keys name, base (a
    configuration), methods, data, seeds, options and test; `--set` overrides all of them.
    """
    with options.usage():
        from gflowout.cli import study_runs

        names = study_runs.names_of(study, preset)
        how = options.run_options(
            engine, jobs, gpus, address, working_dir, quiet,
            retries=retries, time_limit=time_limit, memory_limit=memory_limit,
        )  # fmt: skip
        if names is None:
            given = {
                "--preset": preset, "--methods": methods, "--data": data, "--seeds": seeds,
                "--against": against,
            }  # fmt: skip
            for option, value in given.items():
                if value is not None:
                    raise ValueError(f"{option} is for studies of the paper: write it into {study}")
            code = study_runs.run_file(Path(study), out, data_dir, set_, dry_run, how)
        else:
            if set_:
                raise ValueError("--set is for study files; studies of the paper have presets")
            if preset is None:
                raise ValueError(
                    f"{study} is a study of the paper: say how large with --preset smoke (seconds "
                    "to minutes), cpu (two cores, hours) or paper (GPUs)"
                )
            part = study_runs.part_of(methods, data, seeds)
            others = study_runs.others_of(names, against)
            code = study_runs.run(names, preset, part, out, data_dir, dry_run, how, others)
        if code:
            raise typer.Exit(code)


def plan(
    study: Annotated[
        str, Argument(metavar="[STUDY]", help="A study of the paper, or `all` of them.")
    ] = "all",
    preset: Annotated[options.Preset, Option(help="Only `paper`.")] = options.Preset.paper,
    tflops: Annotated[
        float,
        Option(
            callback=options.above_zero,
            help="Floating-point operations per second that training reaches, in 10^12. Default: a "
            "tenth of the peak of an A100 in bfloat16.",
        ),
    ] = 31.0,
    launch: Annotated[
        float, Option(min=0, help="Microseconds from one operation of PyTorch to the next.")
    ] = 10.0,
    price: Annotated[float, Option(min=0, help="Price of an hour of a GPU.")] = 2.0,
) -> None:
    """Plan the studies of the paper on paper: GPU hours, storage and cost, from counted work.

    Nothing is trained and no data are read. `study run --dry-run` measures on this machine instead.
    """
    with options.usage():
        from gflowout.cli import study_runs
        from gflowout.studies import paper_plan

        if preset is not options.Preset.paper:
            raise ValueError(
                f"--preset must be paper, got {preset.value}: `gflowout study run {study} --preset "
                f"{preset.value} --dry-run` measures what it takes here"
            )
        paper = study_runs.names_of(study_runs.ALL, preset.value) or []
        names = paper if study == study_runs.ALL else [study]
        checks.choice("STUDY", names[0], paper)
        echo(paper_plan.lines(names, paper_plan.Device(tflops, launch, price)))
