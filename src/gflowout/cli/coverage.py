"""``--coverage`` and ``--calibrate-on``: sets or intervals fitted to held-out examples of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from gflowout.cli import options
from gflowout.data.errors import DataError

if TYPE_CHECKING:
    from gflowout.decisions.conformal import Intervals, Sets

Coverage = Annotated[
    float | None,
    Option(
        help="Add sets of classes, or intervals, that hold the truth with this probability, such "
        "as 0.9."
    ),
]
CalibrateOn = Annotated[
    Path | None,
    Option(
        help="File or folder with labels that --coverage is fitted to. Default: the test part of "
        "the run's data."
    ),
]


def check(coverage: float | None, calibrate_on: Path | None) -> None:
    """Refuse values of the two options that make no sense, up front."""
    if calibrate_on is not None and coverage is None:
        raise typer.BadParameter("needs --coverage", param_hint="--calibrate-on")
    if coverage is not None and not 0 < coverage < 1:
        raise typer.BadParameter(
            f"must be between 0 and 1, both excluded, got {coverage:g}", param_hint="--coverage"
        )


def fitted(
    trained: Any,
    coverage: float,
    calibrate_on: Path | None,
    data_dir: Path | None,
    samples: int,
    seed: int = 0,
) -> Sets | Intervals:
    """Sets or intervals of a run, fitted to examples that its model was not trained on."""
    from gflowout.app.predict import conformal

    part = _held_out(trained, calibrate_on, data_dir)
    return conformal(trained.model, trained.problem, part, coverage, samples=samples, seed=seed)


def _held_out(trained: Any, path: Path | None, data_dir: Path | None) -> Any:
    """Labelled examples of a path, or the test part of the run's data."""
    from gflowout.app import run as runs
    from gflowout.app import sources
    from gflowout.app.config import ConfigError

    if path is not None:
        part, notes = sources.labelled(trained.problem, path)
        options.echo(f"note: {note}" for note in notes)
        return part
    task, changed = runs.data(trained, data_dir)
    if task.test is None:
        raise ConfigError(
            ["there is no test part to fit --coverage to (data.test is 0): name a file or folder "
             "with --calibrate-on"]
        )  # fmt: skip
    if changed:
        raise DataError(
            f"the {' and '.join(changed)} part is not what it was in training, so examples for "
            "--coverage may be among those that the model was trained on: name others with "
            "--calibrate-on"
        )
    return task.test
