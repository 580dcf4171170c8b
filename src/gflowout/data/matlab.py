"""Arrays of numbers in MATLAB files of version 5.

``scipy.io.loadmat`` runs C code on whatever a file says, and a damaged file can crash the process.
Here every size is compared with the bytes that are there, and zlib verifies its checksums.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gflowout.core.optional import require
from gflowout.data.errors import DataError, check_unpacked, reading

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"
}  # fmt: skip
"""NumPy's types by MATLAB's number of a type of stored data."""
_CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), 6))
"""NumPy's types by MATLAB's number of a class of arrays; others are cells, texts and so on."""
_COMPLEX = 0x800


def read_matlab(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read the variables of these names that a file has, as NumPy arrays."""
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
