"""Many runs: studies, engines that do their runs, and one record for each.

A run is a name and a function; it may do any work. See ``docs/guides/runs.md``.
"""

from __future__ import annotations

from gflowout.runs.engines import Engine, Inline, Pool, Ray, engine
from gflowout.runs.locks import BusyError
from gflowout.runs.records import RecordWarning, frame, read
from gflowout.runs.spec import Run, grid
from gflowout.runs.study import Summary, run_study
from gflowout.runs.work import Context, Result

__all__ = [
    "BusyError",
    "Context",
    "Engine",
    "Inline",
    "Pool",
    "Ray",
    "RecordWarning",
    "Result",
    "Run",
    "Summary",
    "engine",
    "frame",
    "grid",
    "read",
    "run_study",
]
