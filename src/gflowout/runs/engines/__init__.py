"""Engines: ways to do many runs. All have the interface of :class:`~.base.Engine`."""

from __future__ import annotations

from typing import Any

from gflowout.core import checks
from gflowout.runs.child import Limits
from gflowout.runs.engines.base import Ended, Engine, Event, Progress, Started, Tick
from gflowout.runs.engines.inline import Inline
from gflowout.runs.engines.pool import Pool
from gflowout.runs.engines.ray import Ray

ENGINES: dict[str, type[Engine]] = {"inline": Inline, "pool": Pool, "ray": Ray}
"""Engines by name."""


def engine(name: str, **options: Any) -> Engine:
    """An engine by its name.

    Args:
        name: ``"inline"``, ``"pool"`` or ``"ray"``.
        options: Arguments of its class.

    Examples:
        >>> engine("pool", jobs=2)
        Pool(jobs=2, start='spawn')
        >>> engine("pol")
        Traceback (most recent call last):
            ...
        ValueError: engine must be one of 'inline', 'pool', 'ray', got 'pol'; did you mean 'pool'?
    """
    return ENGINES[checks.choice("engine", name, ENGINES)](**options)


__all__ = [
    "ENGINES",
    "Ended",
    "Engine",
    "Event",
    "Inline",
    "Limits",
    "Pool",
    "Progress",
    "Ray",
    "Started",
    "Tick",
    "engine",
]
