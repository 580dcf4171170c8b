"""What the commands on one model print; slow to import, so commands import it when they run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import progress

from gflowout.app import sources
from gflowout.app.build import plan
from gflowout.app.config import Config
from gflowout.app.run import Trained
from gflowout.cli import options
from gflowout.core.atomic_io import write_text
from gflowout.core.text import counted, duration
from gflowout.export import Exported
from gflowout.runs.spec import pack
from gflowout.training import checkpoints


def show_plan(settings: Config, out: Path | None) -> None:
    """Print what a run would do and cost."""
    planned = plan(settings, sources.load(settings.data, settings.seed))
    lines = list(planned.lines)
    if out is not None:
        done = checkpoints.last(out / "checkpoints")
        state = "new" if done is None else f"goes on after epoch {checkpoints.epoch_of(done) + 1}"
        lines.append(("folder", f"{out} ({state})"))
    most = "about" if settings.fit.patience is None else "at most"
    lines.append(
        ("cost", f"{most} {duration(planned.total)} in all: {duration(planned.epoch)} an epoch, "
                 f"{duration(planned.step)} a step, measured here on a few steps")
    )  # fmt: skip
    for word, text in lines:
        typer.echo(f"{word:<12}{text}")
    typer.echo("nothing was written")


def show_training(trained: Trained, notes: Iterable[str]) -> None:
    """Print how training went."""
    result = trained.result
    assert result is not None
    best = result.history[result.best_epoch]
    options.echo(f"note: {note}" for note in notes)
    scores = f"validation NLL {best['valid/nll']:.4f}"
    if not trained.problem.target.classes:
        scores += " (of standardised values)"
    if "valid/accuracy" in best:
        scores += f", accuracy {100 * best['valid/accuracy']:.2f} %"
    how = "stopped early, no better for a while" if result.stopped == "patience" else "all done"
    before = f", {result.resumed} of them before" if result.resumed else ""
    epochs = counted(len(result.history), "epoch")
    typer.echo(f"{epochs} ({how}{before}) in {duration(result.seconds)}")
    typer.echo(f"best epoch {result.best_epoch + 1}: {scores}")
    done = len(result.history)
    if result.stopped == "epochs" and result.best_epoch == done - 1:
        typer.echo(
            f"note: the best epoch is the last: train longer, with --epochs {2 * done} and another "
            "--out or --restart"
        )
    typer.echo(f"{trained.folder}: model, configuration, checkpoints, metrics.csv, record.json")
    typer.echo(f"next: gflowout evaluate {trained.folder}")


_NAMES = {
    "accuracy": "accuracy %", "nll": "NLL", "brier": "Brier", "ece": "ECE", "auroc": "AUROC",
    "aupr": "AUPR", "fpr95": "FPR95", "rmse": "RMSE", "mae": "MAE",
    "coverage90": "in 90 % interval, %",
}  # fmt: skip
_PERCENT = ("accuracy", "coverage90")


def show_scores(trained: Trained, facts: dict[str, Any], scores: dict[str, float]) -> None:
    """Print tables of scores."""
    config = trained.config
    typer.echo(
        f"{facts['run']}: {config.method.name} on {config.data.source}; {facts['part']}: "
        f"{facts['examples']:,} examples, {facts['samples']} draws"
    )
    tables: dict[str, dict[tuple[str, ...], dict[str, float]]] = {"parts": {}, "ood": {}}
    for key, value in scores.items():
        head, _, metric = key.rpartition("/")
        name, slash, score = head.rpartition("/")
        row = (name, score.replace("_", "-")) if slash else (head or facts["part"],)
        tables["ood" if slash else "parts"].setdefault(row, {})[metric] = value
    _print_table(["data"], tables["parts"])
    if tables["ood"]:
        typer.echo(f"\nother data against {facts['part']}, detected by uncertainty:")
        _print_table(["data", "score"], tables["ood"])


def _print_table(heads: list[str], rows: dict[tuple[str, ...], dict[str, float]]) -> None:
    table = options.plain_table(*heads)
    metrics = list(next(iter(rows.values())))
    for metric in metrics:
        table.add_column(_NAMES.get(metric, metric), justify="right", no_wrap=True)
    for names, row in rows.items():
        table.add_row(*names, *(_shown(metric, row[metric]) for metric in metrics))
    options.console().print(table)


def _shown(metric: str, value: float) -> str:
    if value != value:
        return "-"
    return f"{100 * value:.2f}" if metric in _PERCENT else f"{value:.4f}"


def show_predictions(frame: Any, notes: Iterable[str], out: Path) -> None:
    """Print what was predicted and what is least sure."""
    options.echo(f"note: {note}" for note in notes)
    typer.echo(f"{out}: {len(frame):,} rows; columns {_columns(frame)}")
    score = "mutual_information" if "mutual_information" in frame else "std"
    if score == "mutual_information" and not frame[score].any():
        score = "entropy"
    label = frame.columns[0]
    unsure = frame.nlargest(3, score)
    pairs = zip(unsure[label], unsure[score], strict=True)
    listed = ", ".join(f"{name} ({value:.3g})" for name, value in pairs)
    typer.echo(f"least certain by {score}, {label}: {listed}")


def _columns(frame: Any) -> str:
    names = list(frame.columns)
    classes = [name for name in names if name.startswith("p_")]
    if len(classes) > 2:
        first = names.index(classes[0])
        names[first : first + len(classes)] = [f"{classes[0]} ... {classes[-1]}"]
    return ", ".join(names)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write scores to a file; NaN becomes null."""
    write_text(path, json.dumps(pack(content)[0], indent=1, allow_nan=False))
    typer.echo(f"{path}: written")


def show_export(exported: Exported) -> None:
    """Print inputs, outputs and size of an exported file, and how it compares with PyTorch."""
    table = options.plain_table("", "name", "type", "shape")
    for kind, ports in (("input", exported.inputs), ("output", exported.outputs)):
        for port in ports:
            table.add_row(kind, port.name, port.dtype, f"[{', '.join(map(str, port.shape))}]")
    options.console(markup=False).print(table)
    size = exported.size
    readable = f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    draws = exported.metadata["samples"]
    typer.echo(f"{exported.path}: {exported.format}, {readable}, {draws} draws")
    if exported.difference is None:
        typer.echo("not compared with PyTorch (--no-check)")
    else:
        typer.echo(f"largest difference from PyTorch: {exported.difference:.1e}")


@contextmanager
def bar_of(quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error, if that is a terminal."""
    console = options.console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bar:
        yield bar


@contextmanager
def watching(quiet: bool) -> Iterator[Any]:
    """A function that shows batches on a progress bar as they are used."""
    with bar_of(quiet) as bar:
        yield lambda what, batches: bar.track(batches, total=len(batches), description=what)
