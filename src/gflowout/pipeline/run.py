"""Train from a configuration, load what was trained, score it; and the same as work of a study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.model import MaskedModel
from gflowout.pipeline.config import Config
from gflowout.training import FitResult

if TYPE_CHECKING:
    from gflowout.runs import Context, Result, Run


@dataclass(frozen=True)
class Trained:
    """A trained model and all that is needed to use it.

    Attributes:
        config: What it was trained from.
        model: Of the best epoch.
        folder: Where all of it is.
        result: How training went; ``None`` for a model that was loaded.
    """

    config: Config
    model: MaskedModel
    folder: Path
    result: FitResult | None = None


def train(
    config: Config,
    folder: str | Path,
    *,
    progress: bool = True,
    resume: bool = True,
    report: Callable[[int, int, str], None] | None = None,
) -> Trained:
    """Train, or go on where an earlier call was stopped."""
    raise NotImplementedError


def load(folder: str | Path) -> Trained:
    """Rebuild what :func:`train` left in a folder."""
    raise NotImplementedError


def evaluate(
    trained: Trained, *, split: str = "test", samples: int = 20, **shift: Any
) -> dict[str, float]:
    """Scores on one part of the data, perhaps shifted."""
    raise NotImplementedError


def work(run: Run, context: Context) -> Result:
    """One run of a study.

    ``run.options`` is a flat configuration (see :func:`gflowout.pipeline.config.flat`); what it
    leaves out of method, data source and seed is the run's own. ``"test": True`` adds test scores.
    Metrics are called ``valid/nll``, ``valid/accuracy`` and so on, ``test/...`` for the test part.
    """
    raise NotImplementedError
