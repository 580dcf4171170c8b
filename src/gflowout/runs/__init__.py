"""Many runs: studies, engines that do their runs, one record for each; see docs/guides/scale.md."""

from __future__ import annotations

from gflowout.runs.engines import Engine, Inline, Pool
from gflowout.runs.locks import BusyError
from gflowout.runs.ray import Ray
from gflowout.runs.records import RecordWarning, frame, read
from gflowout.runs.spec import Run, grid
from gflowout.runs.study import Summary, engine, run_study
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
