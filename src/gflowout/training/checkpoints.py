"""Checkpoints of a run: written whole or not at all, loaded without running code."""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import hashlib
import io
import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from gflowout.core import atomic_io
from gflowout.core.disagreement import Disagreement
from gflowout.core.method import METHODS
from gflowout.core.model import MaskedModel
from gflowout.core.renamed import renamed
from gflowout.data.batches import Batches
from gflowout.training.monitoring import TrainingWarning
from gflowout.training.options import FitOptions

RUN = "run.json"  # what the run of a folder started with
HISTORY = "gflowout_history"  # key of a checkpoint with the numbers of every epoch
MONITOR = "valid/nll"
TABLE = "metrics.csv"
_NAME = re.compile(r"epoch-\d+\.ckpt")
_SEAL = b"gflowout sha256:"  # before the checksum of all bytes, at the end of the file
_SEALED = "gflowout_sealed"  # key of a checkpoint that has such an end
_DIGEST = hashlib.sha256().digest_size


class ChecksumError(ValueError):
    """A checkpoint does not have the bytes that were written."""


class _Hashing:
    """A stream that passes bytes on and computes their checksum."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.state = stream, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.state.update(data)
        return self.stream.write(data)

    def flush(self) -> None:
        self.stream.flush()


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, plain values and a checksum to a file, which appears when it is complete."""

    def sealed(stream: IO[bytes]) -> None:
        hashing: Any = _Hashing(stream)
        torch.save({**content, _SEALED: True}, hashing)
        stream.write(_SEAL + hashing.state.digest())

    atomic_io.write_file(path, sealed)


def read(path: Path, device: Any = None) -> dict[str, Any]:
    """Read a checkpoint; anything but tensors and plain values is refused.

    Those of earlier versions have no checksum.

    Raises:
        ChecksumError: If the file is damaged.
    """
    with path.open("rb") as stream:
        sealed = _verify(stream, path)
        stream.seek(0)
        content: dict[str, Any] = torch.load(stream, map_location=device, weights_only=True)
    if bool(content.pop(_SEALED, False)) is not sealed:
        raise ChecksumError(f"{path}: damaged, its checksum is missing")
    return content


def _verify(stream: IO[bytes], path: Path) -> bool:
    """Whether a file has a checksum; raise if it is wrong."""
    state, rest = hashlib.sha256(), max(0, path.stat().st_size - len(_SEAL) - _DIGEST)
    while rest and (data := stream.read(min(rest, 1 << 20))):
        state.update(data)
        rest -= len(data)
    end = stream.read()
    if not end.startswith(_SEAL):
        return False
    if end != _SEAL + state.digest():
        raise ChecksumError(f"{path}: damaged, its checksum is wrong")
    return True


def history(path: Path) -> list[dict[str, float]]:
    """Numbers of every epoch up to a checkpoint."""
    return [dict(numbers) for numbers in read(path, "cpu")[HISTORY]]


def write_table(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Write the numbers of all epochs to ``metrics.csv``."""
    atomic_io.write_text(folder / TABLE, as_csv(history))


def complete(folder: Path, saved: Path, path: Path, keep: int) -> None:
    """Do what a run that was killed after its last checkpoint did not: the table, deletions."""
    numbers = history(path)
    write_table(folder, numbers)
    prune(saved, scores(numbers), keep)


def scores(history: Iterable[Mapping[str, float]]) -> dict[int, float]:
    """What epochs are ranked by: the validation loss, or the training loss without one."""
    return {
        int(numbers["epoch"]): numbers.get(MONITOR, numbers.get("train/nll", math.nan))
        for numbers in history
    }


def last(folder: Path) -> Path | None:
    """The latest checkpoint in a folder that a run can go on from, if there is one.

    It and the best epoch before it must be undamaged. Damage, which a disk or a copy may do, is
    warned of.
    """
    checkpoint = latest(folder)
    return None if checkpoint is None else checkpoint[0]


def latest(folder: Path) -> tuple[Path, list[dict[str, float]], dict[str, Any]] | None:
    """The checkpoint of :func:`last`, its history, and the best epoch's weights on the CPU.

    Each file is read once.
    """
    chosen, problems = None, dict[Path, str]()
    for epoch, path in sorted(epochs(folder).items(), reverse=True):
        needed = path
        try:
            content = read(path, "cpu")
            history = [dict(numbers) for numbers in content.get(HISTORY, ())]
            for best in best_epochs(scores(history), 1):
                needed = path_of(folder, best)
                if best != epoch:
                    content = read(needed, "cpu")
            chosen = path, history, content.get("state_dict", {})
            break
        except Exception as error:  # a damaged file can raise nearly anything
            problems[needed] = type(error).__name__
    rest = "starting anew" if chosen is None else f"going on after epoch {epoch_of(chosen[0]) + 1}"
    for path, reason in problems.items():
        warnings.warn(f"{path}: cannot be read ({reason}); {rest}", TrainingWarning, stacklevel=2)
    return chosen


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
    """Delete the checkpoints that are neither among the last two nor among the best."""
    paths = epochs(folder)
    kept = {*best_epochs(scores, keep), *sorted(paths)[-2:]}
    for epoch, path in paths.items():
        if epoch not in kept:
            path.unlink(missing_ok=True)


def identity(
    model: MaskedModel,
    options: FitOptions,
    train: Any,
    valid: Any,
    disagreement: Disagreement | None = None,
) -> dict[str, Any]:
    """What tells this run from another in the same folder."""
    return {
        "options": dataclasses.asdict(options),
        "method": {"name": model.method.name, **dataclasses.asdict(model.method.options)},
        "sites": {site.name: site.units for site in model.sites},
        "train": _fingerprint(train),
        "valid": None if valid is None else _fingerprint(valid),
        "loss": {
            "label_noise": model.likelihood.config().get("label_noise"),
            "disagreement": None if disagreement is None else disagreement.config(),
        },
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
    if resume and epochs(saved):
        _compare(folder, wanted)
    start = last(saved) if resume else None
    if first:
        done = -1 if start is None else epoch_of(start)
        for epoch, path in epochs(saved).items():
            if epoch > done:  # damaged, or of a run that is not wanted any more
                path.unlink(missing_ok=True)
        if start is None:
            (folder / TABLE).unlink(missing_ok=True)
        atomic_io.write_text(folder / RUN, json.dumps(wanted, indent=1))
    return start


def _compare(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse to go on with what is not the same run."""
    try:
        saved = json.loads((folder / RUN).read_text())
        saved.setdefault("loss", {})  # of runs that were begun before it was recorded
        spellings = METHODS[wanted["method"]["name"]].Options.RENAMED
        saved["method"] = renamed(saved["method"], spellings, str(folder), warn=False)
        pairs = [(name, dict(saved[name] or {}), dict(now or {})) for name, now in wanted.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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


def as_csv(history: Sequence[Mapping[str, float]]) -> str:
    """A table with one row per epoch and one column per number that any epoch has.

    Examples:
        >>> print(as_csv([{"epoch": 0, "train/nll": 2.5}, {"epoch": 1, "valid/nll": 2.25}]))
        epoch,train/nll,valid/nll
        0,2.5,
        1,,2.25
        <BLANKLINE>
    """
    columns = list(dict.fromkeys(name for numbers in history for name in numbers))
    stream = io.StringIO()
    table = csv.DictWriter(stream, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(history)
    return stream.getvalue()
