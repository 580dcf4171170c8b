"""Checkpoints of a run: written whole or not at all, loaded without running code."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from gflowout.core import atomic_io
from gflowout.core.model import MaskedModel
from gflowout.data.batches import Batches
from gflowout.training.options import FitOptions

RUN = "run.json"  # what the run of a folder was begun with
HISTORY = "gflowout_history"  # key of a checkpoint with the numbers of every epoch
MONITOR = "valid/nll"
_NAME = re.compile(r"epoch-\d+\.ckpt")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, which appears when it is complete."""
    atomic_io.write_file(path, lambda stream: torch.save(dict(content), stream))


def read(path: Path, device: Any = None) -> dict[str, Any]:
    """Read a checkpoint; anything but tensors and plain values is refused."""
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content


def history(path: Path) -> list[dict[str, float]]:
    """Numbers of every epoch up to a checkpoint."""
    return [dict(numbers) for numbers in read(path)[HISTORY]]


def scores(history: Iterable[Mapping[str, float]]) -> dict[int, float]:
    """What epochs are ranked by: the validation loss, or the training loss without one."""
    return {
        int(numbers["epoch"]): numbers.get(MONITOR, numbers.get("train/nll", math.nan))
        for numbers in history
    }


def last(folder: Path) -> Path | None:
    """The latest checkpoint that can be read, if any; damaged ones are left out with a warning."""
    for _, path in sorted(epochs(folder).items(), reverse=True):
        try:
            read(path)
            return path
        except Exception as error:  # a damaged file can raise nearly anything
            message = f"{path}: cannot be read ({type(error).__name__})"
            warnings.warn(f"{message}; going on from an earlier epoch", stacklevel=2)
    return None


def epochs(folder: Path) -> dict[int, Path]:
    """All checkpoints of a folder by their epoch."""
    paths = folder.glob("epoch-*.ckpt")
    return {epoch_of(path): path for path in paths if _NAME.fullmatch(path.name)}


def epoch_of(path: Path) -> int:
    """The epoch of a checkpoint, from its name."""
    return int(path.stem.removeprefix("epoch-"))


def path_of(folder: Path, epoch: int) -> Path:
    """Path of the checkpoint of an epoch."""
    return folder / f"epoch-{epoch:05d}.ckpt"


def best_epochs(scores: Mapping[int, float], keep: int) -> list[int]:
    """The epochs with the least scores, best first; earlier ones win ties, NaN comes last."""
    by_score = sorted(scores.items(), key=lambda item: (math.isnan(item[1]), item[1], item[0]))
    return [epoch for epoch, _ in by_score[:keep]]


def prune(folder: Path, scores: Mapping[int, float], keep: int) -> None:
    """Delete the checkpoints that are neither the last nor among the best."""
    paths = epochs(folder)
    kept = {*best_epochs(scores, keep), max(paths, default=-1)}
    for epoch, path in paths.items():
        if epoch not in kept:
            path.unlink(missing_ok=True)


def identity(model: MaskedModel, options: FitOptions, train: Any, valid: Any) -> dict[str, Any]:
    """What tells this run from another in the same folder."""
    return {
        "options": dataclasses.asdict(options),
        "method": {"name": model.method.name, **dataclasses.asdict(model.method.options)},
        "sites": {site.name: site.units for site in model.sites},
        "train": _fingerprint(train),
        "valid": None if valid is None else _fingerprint(valid),
    }


def _fingerprint(batches: Any) -> dict[str, Any]:
    """Number of batches and, where its order is known, what the first one holds."""
    facts: dict[str, Any] = {"batches": len(batches)}
    if isinstance(batches, Batches):
        batches.set_epoch(0)
        state = hashlib.sha256()
        for tensor in next(iter(batches)):
            whole = tensor.detach().cpu().contiguous()
            state.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
        batches.set_epoch(0)
        facts["first batch"] = state.hexdigest()[:16]
    return facts


def prepare(folder: Path, saved: Path, run: dict[str, Any], resume: bool) -> Path | None:
    """Prepare the folder for the run; return the checkpoint to start from."""
    from lightning.pytorch.utilities import rank_zero_only

    first = not getattr(rank_zero_only, "rank", 0)  # the others must not clean up after it
    wanted: dict[str, Any] = json.loads(json.dumps(run))
    if first:
        saved.mkdir(parents=True, exist_ok=True)
        atomic_io.remove_unfinished(saved)
        atomic_io.remove_unfinished(folder)
    if first and not resume:
        for path in epochs(saved).values():
            path.unlink()
    start = last(saved) if resume else None
    if start is not None:
        _compare(folder, wanted)
    if first:
        atomic_io.write_text(folder / RUN, json.dumps(wanted, indent=1))
    return start


def _compare(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse to go on with what is not the same run."""
    try:
        saved = json.loads((folder / RUN).read_text())
        pairs = [(name, dict(saved[name] or {}), dict(now or {})) for name, now in wanted.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / RUN}: missing or damaged: take another folder or give resume=False"
        ) from error
    changed = [
        f"{part}.{name} (was {before.get(name)!r}, is {now.get(name)!r})"
        for part, before, now in pairs
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"folder {folder} holds another run: {', '.join(changed)}. Take another folder, go on "
            "as it began, or resume=False to start anew"
        )
