"""CIFAR's published pickles, read without running any code that a pickle names.

A pickle may name functions to call. The ones in these files build NumPy arrays; they are replaced
by stand-ins here that only keep what they are given, and any other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.data.errors import DataError, read_bytes

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


def read_images(path: Path, labels: str) -> tuple[Tensor, Tensor]:
    """Read pictures and their labels.

    Args:
        path: A batch of CIFAR-10, or the training or test file of CIFAR-100.
        labels: Key of the labels: ``"labels"``, ``"fine_labels"`` or ``"coarse_labels"``.

    Returns:
        Images uint8 [N, 3, 32, 32] and labels int64 [N].

    Raises:
        DataError: If the file is damaged, names other code, or holds something else.
    """
    content = _dictionary(path, ("data", labels))
    pixels = content["data"]
    if not isinstance(pixels, _Array):
        raise DataError(f"{path}: 'data' must be an array, got {type(pixels).__name__}")
    images = pixels.tensor(path)
    if images.dim() != 2 or images.shape[1] != _PIXELS:
        raise DataError(f"{path}: 'data' must be [N, {_PIXELS}], got {list(images.shape)}")
    classes = content[labels]
    if not isinstance(classes, list) or not all(type(label) is int for label in classes):
        raise DataError(f"{path}: {labels!r} must be a list of integers")
    if len(classes) != len(images) or not classes:
        raise DataError(f"{path}: has {len(images)} pictures and {len(classes)} {labels}")
    return images.view(-1, 3, _SIDE, _SIDE), torch.tensor(classes)


def read_names(path: Path, key: str) -> tuple[str, ...]:
    """Read the names of the classes from a file of meta data.

    Args:
        path: ``batches.meta`` of CIFAR-10 or ``meta`` of CIFAR-100.
        key: ``"label_names"``, ``"fine_label_names"`` or ``"coarse_label_names"``.
    """
    names = _dictionary(path, (key,))[key]
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(_text(name) for name in names)


def _dictionary(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    raw = read_bytes(path)
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except _RefusedError as error:
        raise DataError(
            f"{path}: names {error}, which no published CIFAR file does; it was not run. Do not "
            "trust this file: get it again from its home page. (If you wrote it yourself, write it "
            "with pickle protocol 2)"
        ) from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{path}: not a pickle, or cut short ({type(error).__name__}: {error}); get the file "
            "again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must hold a dictionary, got {type(content).__name__}")
    named = {_text(key): value for key, value in content.items() if isinstance(key, bytes | str)}
    for key in keys:
        if key not in named:
            raise DataError(f"{path}: has no {key!r}, only {', '.join(map(repr, sorted(named)))}")
    return named


def _text(name: bytes | str) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else name


class _RefusedError(Exception):
    """A pickle names something that these files do not need."""


class _Type:
    """Stands in for a NumPy type; keeps its code, such as ``u1``."""

    def __init__(self, code: bytes | str = "", *_: Any) -> None:
        self.code = _text(code) if isinstance(code, bytes | str) else ""

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands in for a NumPy array; keeps its state: version, shape, type, order, bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self, path: Path) -> Tensor:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise DataError(f"{path}: 'data' is not an array as NumPy writes it")
        _, shape, kind, fortran, raw = self.state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "uint8") or fortran:
            raise DataError(f"{path}: 'data' must be bytes (uint8) in C order")
        sizes = isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape)
        if not sizes or not isinstance(raw, bytes) or len(raw) != math.prod(shape):
            raise DataError(f"{path}: 'data' has a shape that does not fit its bytes")
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)


class _Bytes:
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: Any, encoding: Any) -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError(f"the encoding {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        pass


# All are classes with __setstate__: a pickle can set attributes on what has none.
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _RefusedError(f"the outside object {pid!r}")
