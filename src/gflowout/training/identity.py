"""Which run a folder belongs to: what it was begun with, and whether this is the same.

Knows nothing of Lightning's trainer; :mod:`gflowout.training.fit` asks before it starts one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from gflowout.core import atomic_io
from gflowout.core.model import MaskedModel
from gflowout.data.batches import Batches
from gflowout.training import checkpoints

RUN = "run.json"
"""File of a folder that says what its run was begun with."""


def identity(model: MaskedModel, train: Any, valid: Any) -> dict[str, Any]:
    """What tells this run from another in the same folder, beside the options."""
    return {
        "method": {"name": model.method.name, **dataclasses.asdict(model.method.options)},
        "sites": {site.name: site.units for site in model.sites},
        "train": fingerprint(train),
        "valid": None if valid is None else fingerprint(valid),
    }


def fingerprint(batches: Any) -> dict[str, Any]:
    """Number of batches and, where its order is known, what the first one holds."""
    known: dict[str, Any] = {"batches": len(batches)}
    if isinstance(batches, Batches):
        batches.set_epoch(0)
        state = hashlib.sha256()
        for tensor in next(iter(batches)):
            whole = tensor.detach().cpu().contiguous()
            state.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
        batches.set_epoch(0)
        known["first batch"] = state.hexdigest()[:16]
    return known


def prepare(folder: Path, saved: Path, run: dict[str, Any], resume: bool) -> Path | None:
    """Make the folder fit for the run; return the checkpoint to start from."""
    from lightning.pytorch.utilities import rank_zero_only

    first = not getattr(rank_zero_only, "rank", 0)  # the others must not clean up after it
    wanted: dict[str, Any] = json.loads(json.dumps(run))
    if first:
        saved.mkdir(parents=True, exist_ok=True)
        atomic_io.remove_unfinished(saved)
        atomic_io.remove_unfinished(folder)
    if first and not resume:
        for path in checkpoints.epochs(saved).values():
            path.unlink()
    start = checkpoints.last(saved) if resume else None
    if start is not None:
        compare(folder, wanted)
    if first:
        text = json.dumps(wanted, indent=1).encode()
        atomic_io.write_file(folder / RUN, lambda stream: stream.write(text))
    return start


def compare(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse to go on with what is not the same run."""
    try:
        had = json.loads((folder / RUN).read_text())
        pairs = [(name, dict(had[name] or {}), dict(value or {})) for name, value in wanted.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / RUN}: missing or damaged, so it cannot be told which run the checkpoints "
            "beside it belong to; take another folder, or resume=False to start anew"
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
