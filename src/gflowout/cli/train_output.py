"""What ``gflowout train``, ``evaluate`` and ``predict`` print: plans, tables, progress."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from gflowout.app.config import Config
    from gflowout.app.run import Trained


def show_plan(settings: Config, out: Path | None) -> None:
    """Print what a run would do and cost."""
    from gflowout.app import sources
    from gflowout.app.build import plan
    from gflowout.core.text import duration
    from gflowout.training import checkpoints

    task = sources.load(settings.data, settings.seed)
    found = plan(settings, task)
    lines = list(found.lines)
    if out is not None:
        done = checkpoints.last(out / "checkpoints")
        state = "new" if done is None else f"goes on after epoch {checkpoints.epoch_of(done) + 1}"
        lines.append(("folder", f"{out} ({state})"))
    lines.append(
        ("cost", f"about {duration(found.total)} in all: {duration(found.epoch)} an epoch, "
                 f"{duration(found.step)} a step, measured here on a few steps")
    )  # fmt: skip
    for word, text in lines:
        typer.echo(f"{word:<12}{text}")
    typer.echo("nothing was written")


def show_training(trained: Trained, notes: Iterable[str]) -> None:
    """Print how training went."""
    from gflowout.core.text import duration

    result = trained.result
    assert result is not None
    best = result.history[result.best_epoch]
    for note in notes:
        typer.echo(f"note: {note}")
    figures = f"validation NLL {best['valid/nll']:.4f}"
    if not trained.problem.target.classes:
        figures += " (of standardised values)"
    if "valid/accuracy" in best:
        figures += f", accuracy {100 * best['valid/accuracy']:.2f} %"
    epochs = len(result.history)
    how = "stopped early, no better for a while" if result.stopped == "patience" else "all done"
    went_on = f", {result.resumed} of them before" if result.resumed else ""
    count = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    typer.echo(f"{count} ({how}{went_on}) in {duration(result.seconds)}")
    typer.echo(f"best epoch {result.best_epoch + 1}: {figures}")
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
    plain: dict[str, dict[str, float]] = {}
    unlike: dict[str, dict[str, float]] = {}
    for key, value in scores.items():
        head, _, metric = key.rpartition("/")
        if "/" in head:
            unlike.setdefault(head, {})[metric] = value
        else:
            plain.setdefault(head or facts["part"], {})[metric] = value
    _print_table(["data"], {(name,): row for name, row in plain.items()})
    if unlike:
        typer.echo(f"\ntold from {facts['part']} by uncertainty:")
        rows: dict[tuple[str, ...], dict[str, float]] = {
            (name, score.replace("_", "-")): row
            for key, row in unlike.items()
            for name, _, score in [key.rpartition("/")]
        }
        _print_table(["data", "score"], rows)


def _print_table(heads: list[str], rows: dict[tuple[str, ...], dict[str, float]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, no_wrap=True)
    metrics = list(next(iter(rows.values())))
    for metric in metrics:
        table.add_column(_NAMES.get(metric, metric), justify="right", no_wrap=True)
    for names, row in rows.items():
        table.add_row(*names, *(_figure(metric, row[metric]) for metric in metrics))
    _console().print(table)


def _figure(metric: str, value: float) -> str:
    if value != value:
        return "-"
    return f"{100 * value:.2f}" if metric in _PERCENT else f"{value:.4f}"


def show_predictions(frame: Any, notes: Iterable[str], out: Path) -> None:
    """Print what was predicted and what is least sure."""
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{out}: {len(frame):,} rows; columns {_columns(frame)}")
    score = "mutual_information" if "mutual_information" in frame else "std"
    if score == "mutual_information" and not frame[score].any():
        score = "entropy"
    label = frame.columns[0]
    unsure = frame.nlargest(3, score)
    pairs = zip(unsure[label], unsure[score], strict=True)
    listed = ", ".join(f"{name} ({value:.3g})" for name, value in pairs)
    typer.echo(f"most unsure by {score}, {label}: {listed}")


def _columns(frame: Any) -> str:
    names = list(frame.columns)
    classes = [name for name in names if name.startswith("p_")]
    if len(classes) > 2:
        first = names.index(classes[0])
        names[first : first + len(classes)] = [f"{classes[0]} ... {classes[-1]}"]
    return ", ".join(names)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write scores to a file; NaN becomes null."""
    from gflowout.core.atomic_io import write_file
    from gflowout.runs.values import pack

    text = json.dumps(pack(content)[0], indent=1, allow_nan=False).encode()
    write_file(path, lambda stream: stream.write(text))
    typer.echo(f"{path}: written")


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


@contextmanager
def bar_of(quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error, if that is a terminal."""
    from rich import progress

    console = _console(stderr=True)
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
    """What puts batches on a progress bar as they are used."""
    with bar_of(quiet) as bar:
        yield lambda what, batches: bar.track(batches, total=len(batches), description=what)
