"""GPUs of this machine, and which of them each run of a pool may use."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from itertools import takewhile

from gflowout.core import checks
from gflowout.runs.environment import output_of

VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices() -> list[str]:
    """GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    CUDA itself is not asked: that would take memory on every GPU and make later forks unsafe.
    """
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return list(_all_devices())
    names = (name.strip() for name in listed.split(","))
    # As CUDA does: what follows the first name that is none is not visible.
    return list(
        takewhile(lambda name: name.isdecimal() or name.startswith(("GPU-", "MIG-")), names)
    )


@functools.cache
def _all_devices() -> tuple[str, ...]:
    # Not their numbers, whose order differs between nvidia-smi and CUDA.
    listed = output_of("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    return tuple(line.strip() for line in (listed or "").splitlines() if line.strip())


def check_gpus(gpus: float) -> float:
    """GPUs per run: a part of one, or a whole number.

    Examples:
        >>> check_gpus(1.5)
        Traceback (most recent call last):
            ...
        ValueError: gpus must be a part of 1 or a whole number, got 1.5
    """
    gpus = checks.number("gpus", gpus, low=0)
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"gpus must be a part of 1 or a whole number, got {gpus:g}")
    return gpus


def slots(names: Sequence[str], gpus: float) -> list[str]:
    """The devices of each of the runs that fit at once, if a run needs so many ``gpus`` > 0.

    Examples:
        >>> slots(["0", "1"], 1), slots(["0", "1"], 0.5), slots(["0", "1", "2"], 2)
        (['0', '1'], ['0', '1', '0', '1'], ['0,1'])
    """
    if gpus < 1:
        return list(names) * int(1 / gpus + 1e-9)
    size = int(gpus)
    starts = range(0, len(names) - size + 1, size)
    return [",".join(names[start : start + size]) for start in starts]
