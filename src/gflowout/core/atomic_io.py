"""Write files that are complete or not there, and tensors in the safetensors format.

The writer of the package ``safetensors`` needs NumPy, which the core does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What the format calls the types of tensors that it has."""

UNFINISHED = ".unfinished-"
"""In the name of a file while it is written."""


SHA256 = "gflowout.sha256"
_NO_SUM = "0" * 64


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place, and move it there when it is complete and on disk.

    ``write`` writes the content to a binary stream. A file that exists is replaced.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_file(Path(folder) / "a", lambda stream: stream.write(b"one"))
        ...     print((Path(folder) / "a").read_text(), len(list(Path(folder).iterdir())))
        one 1
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}{UNFINISHED}")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file that appears when it is complete."""
    write_file(path, lambda stream: stream.write(text.encode()))


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a loss of power."""
    with contextlib.suppress(OSError):  # not every file system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left unfinished in a folder."""
    for path in folder.glob(f"*{UNFINISHED}*"):
        path.unlink(missing_ok=True)


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """The parts of a safetensors file: size of the header, header, tensors one by one.

    Raises:
        TypeError: If the format has no such type of tensor.

    Examples:
        >>> size, header, data = safetensors({"a": torch.tensor([1, 2])}, {"by": "hand"})
        >>> json.loads(header)["a"], len(data)
        ({'dtype': 'I64', 'shape': [2], 'data_offsets': [0, 16]}, 16)
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"state {name!r} cannot be saved, its type is {tensor.dtype}")
    # Large elements first, so that all are aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, tensor in ordered:
        yield _bytes(tensor)


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file with a checksum of its bytes in its metadata; see :func:`intact`.

    Tensors are read once, so that the checksum is right even if another thread changes them.
    """

    def write(stream: IO[bytes]) -> None:
        digest = hashlib.sha256()
        at = 0
        for number, block in enumerate(safetensors(tensors, {**metadata, SHA256: _NO_SUM})):
            if number == 1:  # the header
                key = f'"{SHA256}": "'.encode()
                at = stream.tell() + block.index(key) + len(key)
            digest.update(block)
            stream.write(block)
        stream.seek(at)
        stream.write(digest.hexdigest().encode())

    write_file(path, write)


def intact(path: Path, checksum: str) -> bool:
    """Whether a file of :func:`write_safetensors` has the bytes that were written."""
    with path.open("rb") as stream:
        size = stream.read(8)
        header = stream.read(int.from_bytes(size, "little"))
        digest = hashlib.sha256(size + header.replace(checksum.encode(), _NO_SUM.encode()))
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == checksum


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    if flat.numel() == 0:
        return b""
    size = flat.element_size()
    if sys.byteorder == "big" and size > 1:
        flat = flat.reshape(-1, 1).view(torch.uint8).flip(-1).contiguous()
    return ctypes.string_at(flat.data_ptr(), tensor.numel() * size)
