"""Readers of the files in which image sets are published: idx, pickle, MATLAB and .npy.

Nothing in a file is executed, and every size that it states is compared with the bytes that are
there.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.data.errors import DataError, check_unpacked, reading

SEVERITIES = 5
SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_DIGITS = 10
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"
}  # fmt: skip
"""NumPy's types by MATLAB's number of a type of stored data."""
_CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), 6))
"""NumPy's types by MATLAB's number of a class of arrays; others are cells, texts and so on."""
_COMPLEX = 0x800


def read_picture(path: Path, mode: str = "RGB") -> Any:
    """Read a PNG, JPEG or the like as a Pillow image, in colour or in grey (mode ``"L"``)."""
    pillow = require("PIL.Image", extra="data", purpose="reading pictures")
    errors = (OSError, ValueError, SyntaxError, EOFError, pillow.DecompressionBombError)
    with (
        reading(path, "cannot be read as a picture", errors, missing="no such picture"),
        pillow.open(path) as file,
    ):
        return file.convert(mode)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read the idx format of MNIST and its relatives: an array of bytes, plain or in gzip.

    The header is two zero bytes, the type (8: unsigned byte), the number of axes (``dimensions``: 3
    for images, 1 for labels), then the size of each axis as a big-endian 32-bit integer.
    """
    with reading(path, "damaged gzip", (EOFError, gzip.BadGzipFile, zlib.error)):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with bytes {content[:4].hex(' ') or '(none)'}, an idx file with "
            f"{dimensions} axes of bytes starts with {magic.hex(' ')}; get the file again"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    shape = "x".join(map(str, sizes))
    expected, actual = math.prod(sizes), len(content) - header
    if actual != expected:
        raise DataError(
            f"{path}: {'cut short' if actual < expected else 'too long'}; its header says {shape} "
            f"= {expected} bytes, it has {max(actual, 0)}; get the file again"
        )
    if not expected:
        raise DataError(f"{path}: holds no data; its header says {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(sizes)


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of SVHN: images uint8 [N, 3, 32, 32] and digits int64 [N].

    The file has the pictures in ``X`` [32, 32, 3, N] and the labels in ``y``, 10 for the digit 0.
    """
    content = read_matlab(path, ("X", "y"))
    for key in ("X", "y"):
        if key not in content:
            raise DataError(f"{path}: has no variable {key!r}; SVHN's cropped digits have X and y")
    pixels, labels = content["X"], content["y"]
    square = pixels.ndim == 4 and pixels.shape[:3] == (SIDE, SIDE, 3) and pixels.shape[3] > 0
    if not square or str(pixels.dtype) != "uint8":
        got = f"{pixels.dtype} {list(pixels.shape)}"
        raise DataError(f"{path}: X must be bytes of shape [32, 32, 3, N], got {got}")
    if labels.size != pixels.shape[3]:
        raise DataError(f"{path}: has {pixels.shape[3]} pictures and {labels.size} labels")
    if bool((labels != labels.round()).any()):
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
    with reading(path, "not an .npy array, or cut short", Exception):
        rows: Any = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if rows.ndim == 0 or not len(rows) or len(rows) % SEVERITIES:
        raise DataError(f"{path}: must have rows for {SEVERITIES} severities, got {rows.shape}")
    count = len(rows) // SEVERITIES
    if rows.dtype.kind not in "iu":
        raise DataError(f"{path}: must hold whole numbers, got {rows.dtype}")
    part = rows[(severity - 1) * count : severity * count]
    return torch.from_numpy(part.astype(rows.dtype.newbyteorder("=")))


def read_cifar(path: Path, labels: str) -> tuple[Tensor, Tensor]:
    """Read a pickle of CIFAR, images uint8 [N, 3, 32, 32] and labels int64 [N].

    ``labels`` is the key of the labels: ``"labels"``, ``"fine_labels"`` or ``"coarse_labels"``. No
    code that the pickle names is run.
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
    return images.view(-1, 3, SIDE, SIDE), torch.tensor(classes)


def read_cifar_classes(path: Path, key: str) -> tuple[str, ...]:
    """Read the names of the classes from ``batches.meta`` of CIFAR-10 or ``meta`` of CIFAR-100."""
    names = _dictionary(path, (key,))[key]
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(_text(name) for name in names)


def _dictionary(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    with reading(path, "not a pickle, or cut short", Exception):
        try:
            content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except _RefusedError as error:
            raise DataError(
                f"{path}: names {error}, which no published CIFAR file does; it was not run. Do "
                "not trust this file: get it again from its home page. (If you wrote it yourself, "
                "write it with pickle protocol 2)"
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


class _StandIn:
    """Keeps the arguments and the state that a pickle gives to a NumPy object."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type(_StandIn):
    """Stands in for a NumPy type; its first argument is its code, such as ``u1``."""


class _Array(_StandIn):
    """Stands in for a NumPy array; its state is version, shape, type, order, bytes."""

    def tensor(self, path: Path) -> Tensor:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise DataError(f"{path}: 'data' is not an array as NumPy writes it")
        _, shape, kind, fortran, raw = self.state
        code = kind.arguments[0] if isinstance(kind, _Type) and kind.arguments else None
        if code not in ("u1", "uint8", b"u1", b"uint8") or fortran:
            raise DataError(f"{path}: 'data' must be bytes (uint8) in C order")
        sizes = isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape)
        if not sizes or not isinstance(raw, bytes) or len(raw) != math.prod(shape):
            raise DataError(f"{path}: 'data' has a shape that does not fit its bytes")
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)


class _Bytes(_StandIn):
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: Any, encoding: Any) -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError(f"the encoding {encoding!r}")
        return text.encode("latin1")


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


def read_matlab(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read the variables of these names that a file has, as NumPy arrays.

    ``scipy.io.loadmat`` runs C code on whatever a file says, and a damaged file can crash the
    process.
    """
    with reading(path, "not a MATLAB file of version 5, or cut short", Exception):
        content = memoryview(path.read_bytes())
        order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
        if order is None or struct.unpack_from(f"{order}H", content, 124) != (0x100,):
            raise ValueError("its header is of another format")
        arrays: dict[str, Any] = {}
        at = _HEADER
        while at < len(content):
            kind, body, at = _element(content, at, order)
            if kind == _COMPRESSED:
                whole = _unpacked(path, body, order, len(content))
                kind, body, _ = _element(memoryview(whole), 0, order)
            if kind != _MATRIX:
                raise ValueError(f"an element of type {kind}, no variable")
            _add_array(path, body, order, names, arrays)
    return arrays


def _element(content: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at a position, and the position of the next."""
    kind, size = struct.unpack_from(f"{order}II", content, at)
    start = at + 8
    following = start + size + (0 if kind == _COMPRESSED else -size % 8)
    if kind >> 16:  # a small element: size and type in the first word, the bytes in the second
        kind, size, start, following = kind & 0xFFFF, kind >> 16, at + 4, start
    if size > following - start or start + size > len(content):
        raise ValueError(f"an element of {size} bytes, of which {len(content) - start} are there")
    return kind, content[start : start + size], following


def _unpacked(path: Path, packed: memoryview, order: str, file_size: int) -> bytes:
    """An element that was compressed, whole and with the right checksum."""
    stream = zlib.decompressobj()
    head = stream.decompress(packed, 8)
    size = 8 + struct.unpack(f"{order}II", head)[1]
    check_unpacked(path, file_size, size)
    whole = head + stream.decompress(stream.unconsumed_tail, size - 8)
    if len(whole) != size or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
        raise ValueError(f"compressed data of {len(whole)} bytes instead of {size}")
    return whole


def _add_array(
    path: Path, matrix: memoryview, order: str, names: Sequence[str], arrays: dict[str, Any]
) -> None:
    """Add the array of a variable by its name, if it is one of ``names``."""
    numpy = require("numpy", extra="data", purpose="reading MATLAB files")
    _, flags, at = _element(matrix, 0, order)
    _, sizes, at = _element(matrix, at, order)
    _, letters, at = _element(matrix, at, order)
    name = bytes(letters).decode("latin1")
    if name not in names:
        return
    (flag,) = struct.unpack_from(f"{order}I", flags)
    if flag & 0xFF not in _CLASSES or flag & _COMPLEX:
        raise DataError(f"{path}: {name} must hold numbers, got MATLAB's class {flag & 0xFF}")
    stored, values, _ = _element(matrix, at, order)
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    array = numpy.frombuffer(values, f"{order}{_STORED[stored]}")
    if min(shape) < 0 or math.prod(shape) != array.size:
        raise ValueError(f"{name} of shape {list(shape)} with {array.size} numbers")
    arrays[name] = array.reshape(shape, order="F").astype(_CLASSES[flag & 0xFF], copy=False)
