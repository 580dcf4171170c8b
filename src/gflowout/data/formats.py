"""Readers of single files: idx (MNIST), pickle (CIFAR), MATLAB (SVHN) and .npy (CIFAR-10-C).

Each takes a path, returns tensors, and raises :class:`DataError` for a damaged or unexpected file.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.data.errors import DataError, read_bytes

SEVERITIES = 5
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_DIGITS = 10
_UNSIGNED_BYTE = 0x08
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read the idx format of MNIST and its relatives: an array of bytes, plain or in gzip.

    The header is two zero bytes, the type (8: unsigned byte), the number of axes, then the size
    of each axis as a big-endian 32-bit integer.

    Args:
        path: The file.
        dimensions: Number of axes that it must have: 3 for images, 1 for labels.
    """
    content = read_bytes(path)
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip ({error}); get the file again") from error
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with bytes {content[:4].hex(' ') or '(none)'}, an idx file with "
            f"{dimensions} axes of bytes starts with {magic.hex(' ')}; get the file again"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    shape = "x".join(map(str, sizes))
    expected, actual = math.prod(sizes), len(content) - header
    if actual != expected:
        what = "cut short" if actual < expected else "too long"
        raise DataError(
            f"{path}: {what}; its header says {shape} = {expected} bytes, it has "
            f"{max(actual, 0)}; get the file again"
        )
    if not expected:
        raise DataError(f"{path}: holds no data; its header says {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(sizes)


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of SVHN: images uint8 [N, 3, 32, 32] and digits int64 [N].

    The file has the pictures in ``X`` [32, 32, 3, N] and the labels in ``y``, 10 for the digit 0.
    """
    scipy_io = require("scipy.io", extra="data", purpose="reading SVHN")
    try:
        content: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a damaged file can raise nearly anything
        raise DataError(
            f"{path}: not a MATLAB file of version 5, or cut short ({type(error).__name__}: "
            f"{error}); get the file again"
        ) from error
    for key in ("X", "y"):
        if key not in content:
            raise DataError(f"{path}: has no variable {key!r}; SVHN's cropped digits have X and y")
    pixels, labels = content["X"], content["y"]
    square = pixels.ndim == 4 and pixels.shape[:3] == (_SIDE, _SIDE, 3) and pixels.shape[3] > 0
    if not square or str(pixels.dtype) != "uint8":
        raise DataError(
            f"{path}: X must be bytes of shape [{_SIDE}, {_SIDE}, 3, N], got {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    if labels.size != pixels.shape[3]:
        raise DataError(f"{path}: has {pixels.shape[3]} pictures and {labels.size} labels")
    if labels.dtype.kind not in "iuf" or bool((labels != labels.round()).any()):
        raise DataError(f"{path}: y must hold whole numbers, got {labels.dtype}")
    digits = torch.from_numpy(labels.reshape(-1).astype("int64"))
    if int(digits.min()) < 1 or int(digits.max()) > _DIGITS:
        raise DataError(f"{path}: y must hold 1 to {_DIGITS}, got {sorted(set(digits.tolist()))}")
    images = torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy())
    return images, digits % _DIGITS


def read_severity(path: Path, severity: int) -> Tensor:
    """Read the rows of one severity (1 to 5) from an .npy file of CIFAR-10-C or CIFAR-100-C.

    The file has five severities of the test set in a row, [5 N, ...]; only the rows [N, ...] asked
    for are read.
    """
    numpy = require("numpy", extra="data", purpose="reading .npy files")
    try:
        rows: Any = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: not an .npy array, or cut short ({error})") from error
    if rows.ndim == 0 or not len(rows) or len(rows) % SEVERITIES:
        raise DataError(f"{path}: must have rows for {SEVERITIES} severities, got {rows.shape}")
    count = len(rows) // SEVERITIES
    if rows.dtype.kind not in "iu":
        raise DataError(f"{path}: must hold whole numbers, got {rows.dtype}")
    part = rows[(severity - 1) * count : severity * count]
    return torch.from_numpy(part.astype(rows.dtype.newbyteorder("=")))


def read_cifar(path: Path, labels: str) -> tuple[Tensor, Tensor]:
    """Read a pickle of CIFAR without running any code that it names.

    Args:
        path: A batch of CIFAR-10, or the training or test file of CIFAR-100.
        labels: Key of the labels: ``"labels"``, ``"fine_labels"`` or ``"coarse_labels"``.

    Returns:
        Images uint8 [N, 3, 32, 32] and labels int64 [N].

    Raises:
        DataError: If the file is damaged, names other code, or has other contents.
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


def read_cifar_classes(path: Path, key: str) -> tuple[str, ...]:
    """Read the names of the classes.

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


# A pickle may name functions to call. Those in CIFAR's files build NumPy arrays; the stand-ins here
# only keep what they are given, and any other name is refused.


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
