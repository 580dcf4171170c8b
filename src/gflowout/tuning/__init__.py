"""Search over any option on validation data, one budget for all; see docs/guides/experiments.md."""

from __future__ import annotations

from gflowout.tuning.results import Trial, Tuned, write_best
from gflowout.tuning.spaces import Choice, Integers, Numbers, Space, read_space, space
from gflowout.tuning.tune import tune

__all__ = [
    "Choice",
    "Integers",
    "Numbers",
    "Space",
    "Trial",
    "Tuned",
    "read_space",
    "space",
    "tune",
    "write_best",
]
