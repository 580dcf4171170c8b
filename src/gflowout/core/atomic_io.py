"""Writing files: whole or not at all; and tensors in the safetensors format.

The format is that of https://github.com/huggingface/safetensors, whose own writer needs NumPy,
which the core does without. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What the format calls the types of tensors that it has."""


def put(target: Path, blocks: Iterable[bytes]) -> None:
    """Write a file beside its place, and move it there when it is complete.

    Args:
        target: The file; replaced if it exists.
        blocks: What it holds.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     put(Path(folder) / "a", [b"one ", b"two"])
        ...     print((Path(folder) / "a").read_text(), len(list(Path(folder).iterdir())))
        one two 1
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            for block in blocks:
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # as any file, not as a secret one
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """The parts of a safetensors file: size of the header, header, tensors one by one.

    Args:
        tensors: By name.
        metadata: Texts of the header.

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


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    if flat.numel() == 0:
        return b""
    size = flat.element_size()
    if sys.byteorder == "big" and size > 1:
        flat = flat.reshape(-1, 1).view(torch.uint8).flip(-1).contiguous()
    return ctypes.string_at(flat.data_ptr(), tensor.numel() * size)
