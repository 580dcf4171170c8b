"""Saved models with damaged bytes and edited configurations: an error with the path, or a model."""

from __future__ import annotations

import copy
import json
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

import gflowout as gfo
from fuzzing.checks import Problem, Refused, attempt, finite, unchanged
from fuzzing.models import Wrapped, wrapped

VALUES = (
    None, True, False, -1, 0, 1, 2, 7, 10**9, 2**63, 10**30, 0.5, -0.5, 1e308, "", "x", "mc", "0",
    [], [0], [1, 1], {}, {"a": 1}, [[[[]]]], "a" * 10_000,
)  # fmt: skip


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a configuration."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [leaf for key in keys for leaf in [(*path, key), *_leaves(value[key], (*path, key))]]


def edited(content: bytes, rng: random.Random) -> bytes:
    """A file of safetensors with some values of its configuration changed, dropped or added."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    target = header if rng.random() < 0.2 else json.loads(header["__metadata__"]["gflowout"])
    for _ in range(rng.randint(1, 2)):
        *where, last = rng.choice(_leaves(target))
        holder = target
        for key in where:
            holder = holder[key]
        way = rng.random()
        if way < 0.15:
            del holder[last]
            break
        if way < 0.25 and isinstance(holder, dict):
            holder["more"] = rng.choice(VALUES)
        else:
            holder[last] = copy.deepcopy(rng.choice(VALUES))
    if target is not header:
        text = json.dumps(target) if rng.random() < 0.9 else "[" * rng.choice([3, 100_000])
        header["__metadata__"]["gflowout"] = text
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + content[8 + size :]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The bytes of a file after an accident."""
    way = rng.choice(["flip", "flip", "cut", "longer", "zeros", "bytes"])
    if way == "cut":
        return content[: rng.randrange(len(content))]
    if way == "longer":
        return content + rng.randbytes(rng.randint(1, 99))
    start = rng.choice([0, 8, rng.randrange(len(content))])
    if way == "zeros":
        length = rng.randint(1, 64)
        return content[:start] + bytes(length) + content[start + length :]
    if way == "bytes":
        return rng.randbytes(rng.randint(0, 200))
    bits = bytearray(content)
    for _ in range(rng.choice([1, 1, 5])):
        at = rng.randrange(start, min(len(bits), start + rng.choice([8, 400, len(bits)])))
        bits[at] ^= 1 << rng.randrange(8)
    return bytes(bits)


def load(rng: random.Random) -> None:
    """Load a damaged file into a new backbone, which is unchanged after an error."""
    w: Wrapped = wrapped(rng)
    backbone = copy.deepcopy(w.case.net)
    args, kwargs = w.case.call(max(2, w.case.smallest))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        gfo.save(w.model, path, backbone=rng.random() < 0.8)
        change = edited if rng.random() < 0.6 else damaged
        path.write_bytes(change(path.read_bytes(), rng))
        try:
            with _intact(backbone):
                model = attempt(lambda: gfo.load(path, backbone), str(path), path.name)
        except Refused:
            raise
        if not all(tensor.isfinite().all() for tensor in model.state_dict().values()):
            raise Problem("nan", "weights that are NaN or infinite were loaded without an error")
        names = [*(site.name for site in model.sites), "output", "x", "weights"]

        def predict() -> None:
            samples = model.predict(*args, samples=3, **kwargs).samples
            finite("prediction of a loaded model", samples)

        attempt(predict, *names)


class _intact:  # noqa: N801
    """Raise if a backbone was changed and an error was raised."""

    def __init__(self, backbone: nn.Module) -> None:
        self._watch = unchanged(backbone, but=("random state",))

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._watch.__exit__(kind, error, trace)
