"""``gflowout train``, ``evaluate`` and ``predict``: a model from data to predictions on files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from gflowout.cli import train_output as output
from gflowout.cli.console import explained, plain_warnings, warn, writable
from gflowout.core.optional import require
from gflowout.data.errors import DataError

WRONG_USAGE = 2
_EXITS = (
    "Exit codes: 0 all is well, 1 a problem with data, files or training, 2 wrong usage or "
    "configuration, 130 interrupted."
)
_DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory of all data sets. Default: $GFLOWOUT_DATA, or the user's cache."),
]
_Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `train` wrote.")]
_Samples = Annotated[int, typer.Option(min=1, help="Draws of masks.")]
_Seed = Annotated[int, typer.Option(min=0, help="Of the draws.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(
        epilog="Examples:\n\n- `gflowout train --data mnist --out runs/mnist`\n\n"
        "- `gflowout train --data patients.csv --set data.target=died --out runs/patients`\n\n"
        "- `gflowout train --config c.yaml --method mc --set fit.lr=3e-4 --out runs/mc`\n\n"
        f"- `gflowout train --config c.yaml --dry-run`\n\n{_EXITS}"
    )(train)
    app.command(
        epilog="Examples:\n\n- `gflowout evaluate runs/mnist`\n\n"
        "- `gflowout evaluate runs/mnist --rotate --ood notmnist --json scores.json`\n\n"
        "- `gflowout evaluate runs/patients --on other-hospital.csv`\n\n"
        "- `gflowout evaluate runs/cifar10 --corruption snow --corruption frost --severity 3`\n\n"
        f"{_EXITS}"
    )(evaluate)
    app.command(
        epilog="Examples:\n\n- `gflowout predict runs/mnist digits/ -o predictions.csv`\n\n"
        "- `gflowout predict runs/patients new.csv -o predictions.parquet --samples 50`\n\n"
        f"{_EXITS}"
    )(predict)


def train(
    config: Annotated[
        Path | None, typer.Option(help="YAML file; every key of it can be overridden.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, or a CSV, Parquet, NPZ file or image folder.")
    ] = None,
    data_dir: _DataDir = None,
    method: Annotated[str | None, typer.Option(help="Method. Default: gflowout.")] = None,
    backbone: Annotated[str | None, typer.Option(help="auto, mlp or resnet18.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs at most. Default: 20.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random. Default: 0.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of the run; made if missing.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it would cost; write none.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start anew in a folder that holds a run.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write logs for TensorBoard, too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but problems.")] = False,
) -> None:
    """Train a model on a data set or on your own files.

    Call it again with the same folder to go on after an interruption. Options here go before the
    configuration file, `--set` before both. See docs/reference/command-line.md for every key.
    """
    if out is None and not dry_run:
        raise typer.BadParameter("is needed, unless with --dry-run", param_hint="--out")
    overrides = _overrides(
        {
            "data.source": data,
            "data.directory": None if data_dir is None else str(data_dir),
            "method.name": method,
            "backbone.name": backbone,
            "fit.epochs": epochs,
            "seed": seed,
        }
    )
    with _told(out):
        from gflowout.app import config as configs
        from gflowout.app import run, sources

        if tensorboard:
            require("tensorboard", extra="train", purpose="--tensorboard")
        settings = configs.read(config, [*overrides, *(set_ or ())])
        if out is not None and not restart:
            run.check_folder(settings, out)
        if dry_run:
            output.show_plan(settings, out)
            return
        assert out is not None
        _can_make(out)
        task = sources.load(settings.data, settings.seed)
        trained = run.train(
            settings,
            out,
            progress=not quiet,
            resume=not restart,
            task=task,
            loggers="tensorboard" if tensorboard else (),
        )
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        if first and not quiet:
            output.show_training(trained, task.notes)


def evaluate(
    run: _Run,
    data_dir: _DataDir = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test. Default: test.")] = None,
    on: Annotated[
        Path | None, typer.Option(help="Score this file or folder, with labels, instead.")
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Images turned at random, too.")] = False,
    corruption: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="snow, frost or gaussian_noise, too; may be repeated."),
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5, help="Of corruptions.")] = 3,
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA", help="Tell these data from the run's; may be repeated."),
    ] = None,
    samples: _Samples = 20,
    seed: _Seed = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="File to write the scores to.")
    ] = None,
    quiet: _Quiet = False,
) -> None:
    """Score a trained model: accuracy, calibration, shifted images, unlike data."""
    if json_out is not None:
        writable(json_out, "--json")
    with _told():
        from gflowout.app import evaluation, own, tasks
        from gflowout.app import run as runs
        from gflowout.data.corruptions import KINDS

        if split is not None:
            _choice("--split", split, tasks.SPLITS)
            if on is not None:
                raise typer.BadParameter("cannot go with --split", param_hint="--on")
        for kind in corruption or ():
            _choice("--corruption", kind, KINDS)
        trained = runs.load(run)
        if on is not None:
            name = on.name
            part, notes = own.labelled(trained.problem, on)
            for note in notes:
                typer.echo(f"note: {note}")
        else:
            name = split or "test"
            task, changed = runs.data(trained, data_dir)
            part = task.part(name)
            if name in changed:
                warn(f"the {name} part is not what it was in training: other data")
        directory = data_dir if data_dir is not None else trained.config.data.directory
        with output.watching(quiet) as watch:
            scores = evaluation.evaluate(
                trained.model,
                trained.problem,
                part,
                name=name,
                rotate=rotate,
                corrupt=[(kind, severity) for kind in corruption or ()],
                ood=ood or (),
                data_dir=directory,
                samples=samples,
                seed=seed,
                watch=watch,
            )
        facts = {"run": str(run), "part": name, "examples": len(part), "samples": samples}
        output.show_scores(trained, facts, scores)
        if json_out is not None:
            output.write_json(json_out, {**facts, "seed": seed, "scores": scores})


def predict(
    run: _Run,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUTS", help="A CSV, Parquet or NPZ file, a folder of images, or images."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, Parquet or NPZ file to write.")
    ] = Path("predictions.csv"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    samples: _Samples = 20,
    seed: _Seed = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but problems.")] = False,
) -> None:
    """Predict with uncertainty: one row per input, prepared exactly as in training."""
    writable(out)
    with _told():
        from gflowout.app import predict as predicting
        from gflowout.app import run as runs

        if out.suffix.lower() not in predicting.FORMATS:
            allowed = ", ".join(predicting.FORMATS)
            raise typer.BadParameter(f"must end in {allowed}, got {out}", param_hint="--out")
        if out.exists() and not force:
            raise typer.BadParameter(f"{out} exists; --force replaces it", param_hint="--out")
        trained = runs.load(run)
        with output.bar_of(quiet) as bar:
            line = bar.add_task("predicting", total=None)
            frame, notes = predicting.predict(
                trained.model,
                trained.problem,
                inputs,
                samples=samples,
                seed=seed,
                advance=lambda done: bar.advance(line, done),
                started=lambda total: bar.update(line, total=total),
            )
        predicting.write(frame, out)
        if not quiet:
            output.show_predictions(frame, notes, out)


@contextmanager
def _told(out: Path | None = None) -> Iterator[None]:
    """Turn problems into short messages and exit codes; after Ctrl-C say how to go on."""
    with explained(DataError):
        for module in ("pydantic", "yaml", "pandas", "lightning", "torchmetrics"):
            if find_spec(module) is None:  # importing the last two takes seconds
                require(module, extra="studies", purpose="this command")
        from gflowout.app.config import ConfigError
        from gflowout.runs import BusyError, RecordWarning
        from gflowout.training import DivergedError, TrainingWarning

        try:
            with plain_warnings(TrainingWarning, RecordWarning):
                yield
        except ConfigError as error:
            for line in error.problems:
                typer.echo(line, err=True)
            raise typer.Exit(WRONG_USAGE) from error
        except DivergedError as error:
            typer.echo(f"training failed: {error}", err=True)
            raise typer.Exit(1) from error
        except BusyError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error
        except DataError:
            raise
        except OSError as error:
            typer.echo(f"{error.filename or 'a file'}: {error.strerror or error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_how_to_go_on(out)) from error


def _how_to_go_on(out: Path | None) -> str:
    if out is None:
        return "nothing was written"
    from gflowout.app.run import CONFIG
    from gflowout.training import checkpoints

    if not (out / CONFIG).is_file():
        return "nothing was trained yet"
    done = len(checkpoints.epochs(out / "checkpoints"))
    saved = "all complete epochs are saved" if done else "no epoch was complete"
    return f"{saved}; go on with: gflowout train --config {out / CONFIG} --out {out}"


def _overrides(values: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]


def _choice(option: str, value: str, allowed: Iterable[str]) -> None:
    from gflowout.core import checks

    try:
        checks.choice("it", value, allowed)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("it "), param_hint=option) from error


def _can_make(out: Path) -> None:
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise typer.BadParameter(f"{there} is a file, not a folder", param_hint="--out")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"no permission to write into {there}", param_hint="--out")
