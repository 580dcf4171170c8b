"""Checkpoints that are there whole or not at all, and that load without running code.

A file is written under another name, flushed to disk and renamed. Loading takes tensors and plain
values only. A folder of checkpoints holds the last and the best ones.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gflowout.core import atomic_io

_NAME = re.compile(r"epoch-(\d+)\.ckpt")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, which appears when it is complete."""
    atomic_io.write_file(path, lambda stream: torch.save(dict(content), stream))


def read(path: Path, device: Any = None) -> dict[str, Any]:
    """Read a checkpoint; anything but tensors and plain values is refused."""
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content


def last(folder: Path) -> Path | None:
    """The latest checkpoint in a folder that can be read, if there is one.

    Writing leaves none that cannot; a disk or a copy may. Such a file is left out with a warning.
    """
    for _, path in sorted(epochs(folder).items(), reverse=True):
        try:
            read(path)
        except Exception as error:  # a damaged file can raise nearly anything
            warnings.warn(
                f"{path}: cannot be read ({type(error).__name__}); going on from an earlier epoch",
                stacklevel=2,
            )
            continue
        return path
    return None


def epochs(folder: Path) -> dict[int, Path]:
    """All checkpoints of a folder by their epoch."""
    matches = {path: _NAME.fullmatch(path.name) for path in folder.glob("epoch-*.ckpt")}
    return {int(match[1]): path for path, match in matches.items() if match}


def epoch_of(path: Path) -> int:
    """The epoch of a checkpoint, from its name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not the name of a checkpoint")
    return int(match[1])


def path_of(folder: Path, epoch: int) -> Path:
    """Where the checkpoint of an epoch lies."""
    return folder / f"epoch-{epoch:05d}.ckpt"


def best_epochs(scores: Mapping[int, float], keep: int) -> list[int]:
    """The epochs with the least scores, best first; earlier ones win ties, NaN comes last.

    Examples:
        >>> best_epochs({0: 0.5, 1: 0.3, 2: 0.3, 3: float("nan")}, keep=2)
        [1, 2]
    """

    def rank(epoch: int) -> tuple[float, int]:
        score = scores[epoch]
        return (math.inf if math.isnan(score) else score, epoch)

    return sorted(scores, key=rank)[:keep]


def prune(folder: Path, scores: Mapping[int, float], keep: int) -> None:
    """Delete the checkpoints that are neither the last nor among the best."""
    found = epochs(folder)
    kept = {*best_epochs(scores, keep), max(found, default=-1)}
    for epoch, path in found.items():
        if epoch not in kept:
            path.unlink(missing_ok=True)
