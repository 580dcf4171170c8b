"""``gflowout tune``, ``gflowout study run``, ``gflowout study list`` and ``gflowout report``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gflowout.console import explained

if TYPE_CHECKING:
    from gflowout.pipeline.config import Config
    from gflowout.runs import Engine
    from gflowout.tuning import Space, Tuned
    from gflowout.tuning.tune import Plan

_EXITS = "Exit codes: 0 all is well, 1 some runs failed, 2 wrong usage, 130 interrupted."
_ENDINGS = (".yaml", ".yml")


class EngineName(StrEnum):
    """Engines by name."""

    inline = "inline"
    pool = "pool"
    ray = "ray"


class SearchName(StrEnum):
    """Ways to search."""

    grid = "grid"
    random = "random"
    optuna = "optuna"


class Direction(StrEnum):
    """What is better."""

    minimize = "minimize"
    maximize = "maximize"


class Format(StrEnum):
    """Formats of a report."""

    md = "md"
    csv = "csv"


_DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory of all data sets. Default: $GFLOWOUT_DATA, or the user's cache."),
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
]
_Engine = Annotated[
    EngineName, typer.Option(help="Where runs are done: here, in processes, on a Ray cluster.")
]
_Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. Default: one per core.")]
_Address = Annotated[str | None, typer.Option(help="Of the Ray cluster, with --engine ray.")]
_TimeLimit = Annotated[
    float | None, typer.Option(min=0, help="Seconds after which a run is stopped as failed.")
]
_MemoryLimit = Annotated[
    float | None, typer.Option(min=0, help="GiB of memory beyond which a run is.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and what it will cost; do nothing.")
]
_Out = Annotated[Path, typer.Option(file_okay=False, help="Folder of the records.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No table of progress.")]


def register(app: typer.Typer, study: typer.Typer) -> None:
    """Add the commands of this file to the application and its ``study`` group."""
    app.command(
        epilog="Examples:\n\n- `gflowout tune --config mnist.yaml --space fit.lr=log:1e-4:1e-2 "
        "--space gflowout:method.options.beta=0.1,1 --methods mc,gflowout --trials 20 --out "
        "tuned`\n\n- `gflowout tune --config mnist.yaml --epochs 5 --space space.yaml --search "
        f"optuna --out tuned`\n\n{_EXITS}"
    )(tune)
    study.command(
        "run",
        epilog="Examples:\n\n- `gflowout study run study.yaml --out results`\n\n- `gflowout study "
        "run study.yaml --set fit.epochs=1 --out quick`\n\n- `gflowout study run study.yaml --out "
        f"results --engine ray --address auto`\n\n{_EXITS}",
    )(run)
    study.command("list", epilog=f"Example:\n\n- `gflowout study list results`\n\n{_EXITS}")(list_)
    app.command(
        epilog="Examples:\n\n- `gflowout report results`\n\n- `gflowout report results --metric "
        "'test/*'`\n\n- `gflowout report results --format "
        f"csv --out table.csv`\n\n{_EXITS}"
    )(report)


def tune(
    space: Annotated[
        list[str],
        typer.Option(
            metavar="[METHOD:]OPTION=VALUES | FILE.yaml",
            help="What to search; may be repeated. VALUES: `a,b,c`, `log:LOW:HIGH`, "
            "`uniform:LOW:HIGH`, `int:LOW:HIGH`.",
        ),
    ],
    out: _Out,
    config: Annotated[
        Path | None, typer.Option(help="YAML file; every key of it can be overridden.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, or a CSV, Parquet, NPZ file or image folder.")
    ] = None,
    data_dir: _DataDir = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every trial at most.")] = None,
    set_: _Set = None,
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
    engine: _Engine = EngineName.pool,
    jobs: _Jobs = None,
    address: _Address = None,
    retries: Annotated[int, typer.Option(min=0, help="Of a trial that failed.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Try those again that failed in an earlier start.")
    ] = False,
    time_limit: _TimeLimit = None,
    memory_limit: _MemoryLimit = None,
    dry_run: _DryRun = False,
    quiet: _Quiet = False,
) -> None:
    """Search for the best options of each method, on validation data, with one budget for all.

    Every trial is a run with a record; a search that was stopped goes on where it was. Writes
    `best-METHOD.yaml` for `gflowout train --config`, all trials to `tuned.yaml`, and a plot.
    """
    with _usage():
        from gflowout.pipeline import config as configs
        from gflowout.tuning import tune as tuning
        from gflowout.tuning.tune import make_plan

        given = {"data.source": data, "data.directory": data_dir, "fit.epochs": epochs}
        base = configs.read(config, _overrides(given, set_))
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
        options = _bases(base, names)
        plan = make_plan(options, found, **arguments)
        _probe(plan)
        where = _engine(engine, jobs, address)
        if dry_run:
            for line in _tuning_plan(plan, out, _workers(engine, jobs)):
                typer.echo(line)
            return
        with _resumable():
            tuned = tuning(
                options,
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


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The study.")],
    out: _Out,
    data_dir: _DataDir = None,
    set_: _Set = None,
    engine: _Engine = EngineName.pool,
    jobs: _Jobs = None,
    address: _Address = None,
    retries: Annotated[int, typer.Option(min=0, help="Of a run that failed.")] = 1,
    time_limit: _TimeLimit = None,
    memory_limit: _MemoryLimit = None,
    dry_run: _DryRun = False,
    quiet: _Quiet = False,
) -> None:
    """Do those runs of a study that have no record yet: methods x data x seeds x options.

    A file has the keys name, base (a configuration), methods, data, seeds, options, test. What
    `--set` says goes before all of it.
    """
    with _usage():
        from gflowout.experiments import cost, files
        from gflowout.runs import records, run_study

        study = files.read_study(file, _overrides({"data.directory": data_dir}, set_))
        where = _engine(engine, jobs, address)
        if dry_run:
            typer.echo(f"{study.name}: {len(study.runs)} runs, records in {out}")
            kinds = cost.tally(study.runs, records.finished(out))
            pick = cost.first(study.runs)
            known = cost.from_records(out, [study.name])
            lines = cost.report(
                kinds,
                known,
                lambda kind: cost.measure(pick(kind), study.work),
                _workers(engine, jobs),
            )
            for line in lines:
                typer.echo(line)
            return
        files.remember(out, study.runs)
        with _resumable():
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
    with _usage():
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
    with _usage():
        from gflowout.experiments import summary
        from gflowout.runs import records

        _must_be_folder(folder)
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


@contextmanager
def _usage() -> Iterator[None]:
    """Turn errors of what the user asked for into a message and exit code 2."""
    from gflowout.runs import BusyError

    with explained(BusyError):
        try:
            yield
        except BusyError:
            raise
        except (ValueError, FileNotFoundError) as error:
            for line in str(error).splitlines():
                typer.echo(line, err=True)
            raise typer.Exit(2) from error


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on where this one stopped") from None


def _overrides(given: Mapping[str, Any], more: list[str] | None) -> list[str]:
    """Options of their own as ``key=value``, before those of ``--set``."""
    own = [
        f"{key}={json.dumps(value if isinstance(value, int) else str(value))}"
        for key, value in given.items()
        if value is not None
    ]
    return [*own, *(more or ())]


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


def _bases(base: Config, methods: list[str]) -> dict[str, Any]:
    """The options of all methods; those of a method's own have its name before them."""
    from gflowout.experiments.files import for_method
    from gflowout.pipeline.config import flat

    found: dict[str, Any] = {}
    for method in methods:
        for key, value in flat(for_method(base, method)).items():
            found[f"{method}:{key}" if key.startswith("method.") else key] = value
    return found


def _probe(plan: Plan) -> None:
    """Refuse values that a method does not take before a trial fails for it."""
    from gflowout.pipeline.config import ConfigError, from_flat
    from gflowout.tuning import Choice

    problems: dict[str, None] = {}
    for method, base in plan.base.items():
        domains = plan.space.of(method)
        middle = {name: domain.at(0.5) for name, domain in domains.items()}
        for name, domain in domains.items():
            values = domain.options if isinstance(domain, Choice) else (domain.low, domain.high)
            for value in values:
                try:
                    from_flat(_config_only({**base, **middle, name: value}))
                except ConfigError as error:
                    problems |= dict.fromkeys(f"{method}: {line}" for line in error.problems)
    if problems:
        raise ConfigError(list(problems))


def _config_only(options: Mapping[str, Any]) -> dict[str, Any]:
    from gflowout.tuning.tune import TEST

    return {key: value for key, value in options.items() if key != TEST}


def _engine(name: EngineName, jobs: int | None, address: str | None) -> Engine:
    from gflowout.runs import engine

    if address is not None and name is not EngineName.ray:
        raise ValueError(f"--address is for --engine ray, got --engine {name.value}")
    if name is EngineName.ray:
        return engine("ray", address=address, jobs=jobs)
    if name is EngineName.pool:
        return engine("pool", jobs=jobs)
    if jobs not in (None, 1):
        raise ValueError(f"--jobs must be 1 with --engine inline, got {jobs}")
    return engine("inline")


def _workers(name: EngineName, jobs: int | None) -> int | None:
    from gflowout.runs.environment import cores

    if name is EngineName.inline:
        return 1
    return jobs if jobs is not None or name is EngineName.ray else cores()


def _tuning_plan(plan: Plan, out: Path, workers: int | None) -> list[str]:
    from gflowout.experiments import cost
    from gflowout.tuning.tune import STUDY, known

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
    prices = cost.from_records(out, [STUDY])
    price = cost.first(typical.values())
    return lines + cost.report(
        kinds, prices, lambda kind: cost.measure(price(kind), plan.work), workers
    )


def _write_tuned(tuned: Tuned, out: Path) -> Iterator[str]:
    from gflowout.extras import MissingExtraError
    from gflowout.pipeline.config import from_flat, write

    yield tuned.table()
    for trial in tuned.failed:
        yield f"failed: {trial.method} trial {trial.number}: {trial.error}"
    (out / "tuned.yaml").write_text(tuned.to_yaml(), encoding="utf-8")
    written = [out / "tuned.yaml"]
    for method in tuned.best:
        path = out / f"best-{method}.yaml"
        write(from_flat(_config_only(tuned.options(method))), path)
        written.append(path)
    try:
        tuned.plot(out / "tuned.png")
        written.append(out / "tuned.png")
    except MissingExtraError:
        pass  # a picture is not worth failing for
    yield f"written: {', '.join(map(str, written))}"


def _must_be_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
