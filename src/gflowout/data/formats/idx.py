"""The idx format of MNIST and its relatives: a short header, then bytes; often inside gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from gflowout.data.errors import DataError, read_bytes

_UNSIGNED_BYTE = 0x08
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read an array of bytes.

    The header is two zero bytes, the type (8: unsigned byte), the number of axes, then the size
    of each axis as a big-endian 32-bit integer.

    Args:
        path: The file, plain or in gzip.
        dimensions: Number of axes that it must have: 3 for images, 1 for labels.

    Returns:
        The array, uint8.

    Raises:
        DataError: If the file is not such an array, or is cut short.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with bytes {content[:4].hex(' ') or '(none)'}, an idx file with "
            f"{dimensions} axes of bytes starts with {magic.hex(' ')}; get the file again"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    expected, found = math.prod(sizes), len(content) - header
    if found != expected:
        what = "cut short" if found < expected else "too long"
        raise DataError(
            f"{path}: {what}; its header says {'x'.join(map(str, sizes))} = {expected} bytes, it "
            f"has {max(found, 0)}; get the file again"
        )
    if not expected:
        raise DataError(f"{path}: holds no data; its header says {'x'.join(map(str, sizes))}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(sizes)


def _content(path: Path) -> bytes:
    raw = read_bytes(path)
    if not raw.startswith(_GZIP):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip ({error}); get the file again") from error
