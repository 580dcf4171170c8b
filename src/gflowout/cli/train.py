"""``gflowout train``, ``evaluate``, ``predict`` and ``export``: a model from data to use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gflowout.cli import coverage as conformal
from gflowout.cli import options
from gflowout.cli.options import examples, explained, plain_warnings, warn, writable
from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.corruptions import KINDS
from gflowout.data.errors import DataError
from gflowout.export import ExportError, formats
from gflowout.runs import BusyError, RecordWarning
from gflowout.training import DivergedError, TrainingWarning, checkpoints
from gflowout.training.signals import terminable

_EXITS = (
    "Exit codes: 0 all is well, 1 a problem with data, files or training, 2 wrong usage or "
    "configuration, 130 interrupted."
)
_Seed = Annotated[int, Option(min=0, help="Seed of the draws.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(
        epilog=examples(
            "train --data mnist --out runs/mnist",
            "train --data patients.csv --set data.target=died --out runs/patients",
            "train --config c.yaml --method mc --set fit.lr=3e-4 --out runs/mc",
            "train --config c.yaml --dry-run",
            exits=f"{_EXITS.removesuffix('.')}, 143 terminated.",
        )
    )(train)
    app.command(
        epilog=examples(
            "evaluate runs/mnist",
            "evaluate runs/mnist --rotate --ood notmnist --json scores.json",
            "evaluate runs/patients --on other-hospital.csv",
            "evaluate runs/cifar10 --corruption snow --corruption frost --severity 3",
            exits=_EXITS,
        )
    )(evaluate)
    app.command(
        epilog=examples(
            "predict runs/mnist digits/ -o predictions.csv",
            "predict runs/patients new.csv -o predictions.parquet --samples 50",
            "predict runs/patients new.csv --coverage 0.9",
            exits=_EXITS,
        )
    )(predict)
    app.command(
        epilog=examples(
            "export runs/mnist -o digits.onnx",
            "export runs/mnist -o digits.pt2 --samples 50",
            "export runs/mnist -o digits.onnx --coverage 0.9",
            exits="Exit codes: 0 all is well, 1 a problem with files or the export, 2 wrong usage, "
            "130 interrupted.",
        )
    )(export)


def train(
    config: options.Config = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    method: Annotated[str | None, Option(help="Method. Default: gflowout.")] = None,
    backbone: Annotated[str | None, Option(help="Backbone: auto, mlp or resnet18.")] = None,
    epochs: Annotated[
        int | None,
        Option(help="Maximum number of epochs. Default: 20; tables: 1000, and early stopping."),
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of everything random. Default: 0.")] = None,
    set_: options.Set = None,
    out: Annotated[
        Path | None, Option(file_okay=False, help="Folder of the run; created if missing.")
    ] = None,
    dry_run: options.DryRun = False,
    restart: Annotated[
        bool, Option("--restart", help="Start again from scratch in a folder that holds a run.")
    ] = False,
    tensorboard: Annotated[
        bool, Option("--tensorboard", help="Write logs for TensorBoard, too.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model on a data set or on your own files.

    Call it again with the same folder to resume. These options override the
    configuration file, and `--set` overrides both. docs/reference/command-line.md has every key.
    """
    if out is None and not dry_run:
        raise typer.BadParameter("is needed, unless with --dry-run", param_hint="--out")
    given = {"data.source": data, "data.directory": data_dir, "fit.epochs": epochs, "seed": seed}
    given |= {"method.name": method, "backbone.name": backbone}
    with _explained(out):
        from gflowout.app import config as configs
        from gflowout.app import run, sources
        from gflowout.cli import train_output as output

        if tensorboard:
            require("tensorboard", extra="train", purpose="--tensorboard")
        settings = configs.read(config, options.overrides(given, set_))
        if out is not None and not restart:
            run.check_folder(settings, out)
        if dry_run:
            output.show_plan(settings, out)
            return
        assert out is not None
        place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        if not place.is_dir():
            raise typer.BadParameter(f"{place} is a file, not a folder", param_hint="--out")
        if not os.access(place, os.W_OK):
            raise typer.BadParameter(f"no permission to write into {place}", param_hint="--out")
        task = sources.load(settings.data, settings.seed)
        trained = run.train(
            settings,
            out,
            progress=not quiet,
            resume=not restart,
            task=task,
            loggers="tensorboard" if tensorboard else (),
        )
        if os.environ.get("LOCAL_RANK", "0") == "0" and not quiet:
            output.show_training(trained, task.notes)


def evaluate(
    run: options.RunFolder,
    data_dir: options.DataDir = None,
    split: Annotated[
        str | None, Option(help="Part to score: train, valid or test. Default: test.")
    ] = None,
    on: Annotated[
        Path | None, Option(help="Score this file or folder, with labels, instead.")
    ] = None,
    rotate: Annotated[bool, Option("--rotate", help="Score randomly rotated images, too.")] = False,
    corruption: Annotated[
        list[str] | None,
        Option(metavar="KIND", help="Score snow, frost or gaussian_noise, too; repeatable."),
    ] = None,
    severity: Annotated[int, Option(min=1, max=5, help="Severity of corruptions.")] = 3,
    ood: Annotated[
        list[str] | None,
        Option(metavar="DATA", help="Score the detection of these data, too; repeatable."),
    ] = None,
    samples: options.Samples = 20,
    seed: _Seed = 0,
    json_out: Annotated[Path | None, Option("--json", help="File to write the scores to.")] = None,
    quiet: options.NoBar = False,
) -> None:
    """Score a trained model: accuracy, calibration, shifted images, out-of-distribution data."""
    if json_out is not None:
        writable(json_out, "--json")
    with _explained():
        from gflowout.app import evaluation, sources
        from gflowout.app import run as runs
        from gflowout.cli import train_output as output

        if split is not None:
            _choice("--split", split, sources.SPLITS)
            if on is not None:
                raise typer.BadParameter("cannot be used with --split", param_hint="--on")
        for kind in corruption or ():
            _choice("--corruption", kind, KINDS)
        trained = runs.load(run)
        if on is not None:
            name = on.name
            part, notes = sources.labelled(trained.problem, on)
            options.echo(f"note: {note}" for note in notes)
        else:
            name = split or "test"
            task, changed = runs.data(trained, data_dir)
            part = task.part(name)
            if name in changed:
                warn(f"the {name} part is not what it was in training: the data have changed")
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
    run: options.RunFolder,
    inputs: Annotated[
        list[Path],
        Argument(
            metavar="INPUTS", help="A CSV, Parquet or NPZ file, a folder of images, or images."
        ),
    ],
    out: Annotated[Path, Option("--out", "-o", help="CSV, Parquet or NPZ file to write.")] = Path(
        "predictions.csv"
    ),
    force: options.Force = False,
    samples: options.Samples = 20,
    seed: _Seed = 0,
    coverage: conformal.Coverage = None,
    calibrate_on: conformal.CalibrateOn = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
) -> None:
    """Predict with uncertainty: one row per input, prepared exactly as in training."""
    writable(out, force=force)
    with _explained():
        from gflowout.app import predict as predicting
        from gflowout.app import run as runs
        from gflowout.cli import train_output as output

        conformal.check(coverage, calibrate_on)
        if out.suffix.lower() not in predicting.FORMATS:
            allowed = ", ".join(predicting.FORMATS)
            raise typer.BadParameter(f"must end in {allowed}, got {out}", param_hint="--out")
        trained = runs.load(run)
        more: dict[str, Any] = {}
        if coverage is not None:
            fitted = conformal.fitted(trained, coverage, calibrate_on, data_dir, samples, seed)
            more["decide"] = predicting.covering(fitted, trained.problem.target)
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
                **more,
            )
        predicting.write(frame, out)
        if not quiet:
            output.show_predictions(frame, notes, out)


def export(
    run: options.RunFolder,
    out: Annotated[Path, Option("--out", "-o", help="File to write.")],
    format: Annotated[
        str | None,
        Option(
            "--format",
            "-f",
            help="onnx or torch-export. By default torch-export if the file ends in .pt2, else "
            "onnx.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, Option(min=1, help="Draws of masks, fixed in the file.")] = 20,
    masks: Annotated[
        bool, Option("--masks", help="Take masks as inputs instead of a seed.")
    ] = False,
    coverage: conformal.Coverage = None,
    calibrate_on: conformal.CalibrateOn = None,
    data_dir: options.DataDir = None,
    force: options.Force = False,
    no_check: Annotated[
        bool, Option("--no-check", help="Do not run the file and compare it with PyTorch.")
    ] = False,
    tolerance: Annotated[
        float, Option(min=0, help="Largest difference from PyTorch that is allowed.")
    ] = 1e-4,
    quiet: options.Quiet = False,
) -> None:
    """Write a trained model as one file that predicts with uncertainty, without this library.

    It takes inputs as they are stored (images as bytes, rows of a table) and a seed, for batches of
    one row or more. See docs/guides/deployment.md.
    """
    writable(out, force=force)
    try:
        format = formats.chosen(out, format)
    except ValueError as error:
        message = str(error).removeprefix("format ")
        raise typer.BadParameter(message, param_hint="--format") from error
    with _explained():
        from gflowout.app import run as runs
        from gflowout.cli import train_output as output
        from gflowout.export.runs import export_run

        conformal.check(coverage, calibrate_on)
        formats.need(format)
        trained = runs.load(run)
        decisions = []
        if coverage is not None:
            fitted = conformal.fitted(trained, coverage, calibrate_on, data_dir, samples)
            decisions.append(fitted)
        try:
            exported = export_run(
                trained,
                out,
                format=format,
                samples=samples,
                masks=masks,
                decisions=decisions,
                overwrite=force,
                check=not no_check,
                tolerance=tolerance,
            )
        except ExportError as error:
            typer.echo(f"{error}; nothing was written", err=True)
            raise typer.Exit(1) from error
        if not quiet:
            output.show_export(exported)


@contextmanager
def _explained(out: Path | None = None) -> Iterator[None]:
    """Turn problems into short messages and exit codes; when interrupted, say how to go on."""
    stopping = nullcontext() if out is None else terminable()
    with explained(DataError, BusyError):
        for module in ("pydantic", "yaml", "pandas", "lightning", "torchmetrics"):
            if find_spec(module) is None:  # importing the last two takes seconds
                require(module, extra="studies", purpose="this command")
        from gflowout.app.config import ConfigError

        shown = plain_warnings(TrainingWarning, RecordWarning)
        with explained(ConfigError, code=2), explained(DivergedError, OSError), shown, stopping:
            try:
                yield
            except DataError:
                raise
            except DivergedError as error:
                raise DivergedError(f"training failed: {error}") from error
            except OSError as error:
                raise OSError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
            except KeyboardInterrupt as error:
                raise type(error)(_how_to_go_on(out)) from error


def _how_to_go_on(out: Path | None) -> str:
    if out is None:
        return "nothing was written"
    from gflowout.app.run import CONFIG

    if not (out / CONFIG).is_file():
        return "nothing was trained yet"
    done = len(checkpoints.epochs(out / "checkpoints"))
    saved = "all complete epochs are saved" if done else "no epoch was complete"
    return f"{saved}; go on with: gflowout train --config {out / CONFIG} --out {out}"


def _choice(option: str, value: str, allowed: Iterable[str]) -> None:
    try:
        checks.choice("it", value, allowed)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("it "), param_hint=option) from error
