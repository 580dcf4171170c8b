"""``gflowout tune``: search for the best options of each method."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gflowout.cli import study_options as options
from gflowout.cli.console import plain_records

if TYPE_CHECKING:
    from gflowout.runs import Engine
    from gflowout.tuning import Space, Tuned
    from gflowout.tuning.plan import Plan

_ENDINGS = (".yaml", ".yml")


class SearchName(StrEnum):
    """Ways to search."""

    grid = "grid"
    random = "random"
    optuna = "optuna"


class Direction(StrEnum):
    """What is better."""

    minimize = "minimize"
    maximize = "maximize"


def tune(
    space: Annotated[
        list[str],
        typer.Option(
            metavar="[METHOD:]OPTION=VALUES | FILE.yaml",
            help="What to search; may be repeated. VALUES: `a,b,c`, `log:LOW:HIGH`, "
            "`uniform:LOW:HIGH`, `int:LOW:HIGH`.",
        ),
    ],
    out: options.Out,
    config: Annotated[
        Path | None, typer.Option(help="YAML file; every key of it can be overridden.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, or a CSV, Parquet, NPZ file or image folder.")
    ] = None,
    data_dir: options.DataDir = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every trial at most.")] = None,
    set_: options.Set = None,
    methods: Annotated[
        str | None, typer.Option(help="With commas between. Default: that of the configuration.")
    ] = None,
    search: Annotated[SearchName, typer.Option(help="Way to search.")] = SearchName.random,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each method.")] = 20,
    score: Annotated[str, typer.Option(help="A metric of validation data.")] = "valid/nll",
    direction: Annotated[Direction, typer.Option(help="Of the score.")] = Direction.minimize,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    parallel: Annotated[
        int, typer.Option(min=1, help="Optuna: trials of a method that are proposed at once.")
    ] = 2,
    subset: Annotated[
        bool, typer.Option("--subset", help="Grid: leave out some at random if there are more.")
    ] = False,
    engine: options.EngineOption = options.EngineName.pool,
    jobs: options.Jobs = None,
    address: options.Address = None,
    retries: Annotated[int, typer.Option(min=0, help="Of a trial that failed.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Try those again that failed in an earlier start.")
    ] = False,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Search for the best options of each method, on validation data, with one budget for all.

    Every trial is a run with a record; a search that was stopped goes on where it was. Writes
    `best-METHOD.yaml` for `gflowout train --config`, all trials to `tuned.yaml`, and a plot.
    """
    with options.usage(), plain_records():
        from gflowout.app import config as configs
        from gflowout.tuning import tune as tuning
        from gflowout.tuning.plan import agree, make_plan

        given = {"data.source": data, "data.directory": data_dir, "fit.epochs": epochs}
        base = configs.read(config, options.overrides(given, set_))
        names = [base.method.name] if methods is None else _words(methods)
        found = _space(space)
        arguments: dict[str, Any] = {
            "methods": names,
            "search": search.value,
            "trials": trials,
            "score": score,
            "direction": direction.value,
            "seed": seed,
            "parallel": parallel,
            "subset": subset,
        }
        plan = make_plan(base, found, **arguments)
        agree(plan, out)
        where = options.make_engine(engine, jobs, address)
        if dry_run:
            for line in _tuning_plan(plan, out, options.workers(engine, jobs), where):
                typer.echo(line)
            return
        with options.resumable():
            tuned = tuning(
                base,
                found,
                folder=out,
                engine=where,
                retries=retries,
                again=again,
                time_limit=time_limit,
                memory_limit=memory_limit,
                progress=not quiet,
                **arguments,
            )
        for line in _write_tuned(tuned, out):
            typer.echo(line)
        if tuned.failed:
            raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _space(parts: list[str]) -> Space:
    from gflowout.tuning import read_space, space

    return space(
        *(
            read_space(part) if "=" not in part and part.endswith(_ENDINGS) else space(part)
            for part in parts
        )
    )


def _tuning_plan(plan: Plan, out: Path, workers: int | None, engine: Engine) -> list[str]:
    from gflowout.studies.framework import plan as estimates
    from gflowout.tuning.plan import STUDY, known

    lines = [
        f"{plan.search} search, {plan.trials} trials for each of {', '.join(plan.base)}; "
        f"{plan.score} {plan.direction}d, seed {plan.seed}, records in {out}",
        *(f"  {line}" for line in plan.space.lines()),
    ]
    done = {method: min(len(spent), plan.trials) for method, spent in known(plan, out).items()}
    typical = {
        method: plan.run(
            method, {name: domain.at(0.5) for name, domain in plan.space.of(method).items()}
        )
        for method in plan.base
    }
    kinds = {(method, each.data): (plan.trials, done[method]) for method, each in typical.items()}
    prices = estimates.from_records(out, [STUDY])
    price = estimates.first(typical.values())
    return lines + estimates.report(
        kinds, prices, lambda kind: estimates.measure(price(kind), plan.work, engine), workers
    )


def _write_tuned(tuned: Tuned, out: Path) -> Iterator[str]:
    from gflowout.core.atomic_io import write_file
    from gflowout.core.optional import MissingExtraError
    from gflowout.tuning.configs import write_best

    yield tuned.table()
    for trial in tuned.failed:
        yield f"failed: {trial.method} trial {trial.number}: {trial.error}"
    write_file(out / "tuned.yaml", lambda stream: stream.write(tuned.to_yaml().encode()))
    written = [out / "tuned.yaml", *write_best(tuned, out)]
    try:
        tuned.plot(out / "tuned.png")
        written.append(out / "tuned.png")
    except MissingExtraError:
        pass  # a picture is not worth failing for
    yield f"written: {', '.join(map(str, written))}"
