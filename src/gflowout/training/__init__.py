"""Training of wrapped models on Lightning (extra ``train``), which is imported when training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gflowout.training.fit import FitResult, fit
from gflowout.training.monitoring import DivergedError, TrainingWarning
from gflowout.training.options import FitOptions

if TYPE_CHECKING:
    from gflowout.training.module import MaskedDataModule, MaskedModule

__all__ = [
    "DivergedError",
    "FitOptions",
    "FitResult",
    "MaskedDataModule",
    "MaskedModule",
    "TrainingWarning",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name in ("MaskedDataModule", "MaskedModule"):
        from gflowout.core.optional import require

        require("lightning", extra="train", purpose=f"gflowout.training.{name}")
        from gflowout.training import module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
