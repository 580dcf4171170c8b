"""Random numbers as a hash of seed and position, in PyTorch and as ONNX operators.

A number follows from (seed, source, call, draw, row, unit), so that one seed gives one answer on
every machine and in every format, and a row gets the same numbers in every batch. Everything is
computed in int64 without overflow, which PyTorch and ONNX do alike. Not for cryptography.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.core.noise import Noise
from gflowout.core.optional import require

WORD = 0xFFFFFFFF
TOP = 0xFFFFFF00
"""The upper bits of a product's low word: exactly uniform, and dependent on all bits below."""
FIRST, SECOND = 0x7FEB352D, 0x4C957F2D  # odd and below 2**31: products stay below 2**63
BETWEEN = 0x05A308D3

SEEDS = (0x243F6A88, 0x05A308D3)  # digits of pi: for the two words of a key of seed and row,
DRAWS = (0x13198A2E, 0x03707344)  # for those of a draw, which must not be a row's,
UNITS = 0x24093822  # and for the word of a unit


class Hashed(Noise):
    """Numbers from a hash of seed, source, call, draw, row and unit.

    Every call of :meth:`uniform` or :meth:`normal` gives other numbers, so the calls of a pass must
    come in a fixed order. ``draws`` are the numbers of the draws in the pass, one copy of the batch
    each; ``source`` distinguishes members of an ensemble. With ``opaque``, the custom operator is
    used, which :func:`translations` writes as fewer ONNX nodes.
    """

    def __init__(
        self, seed: Tensor, draws: Sequence[int], source: int = 0, opaque: bool = False
    ) -> None:
        super().__init__(copies=len(draws))
        self.draws = draws
        self.source = source
        self.calls = 0
        self.seed = seed
        self._hashed = _hashed if opaque else hashed

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return [copies * rows, units] numbers in [0, 1), multiples of 2**-24."""
        self.calls += 1
        places = torch.arange(rows, device=like.device).unsqueeze(-1)
        columns = torch.tensor([mixed(unit, UNITS) for unit in range(units)], device=like.device)
        first, second = (self._draw_words(tag, like.device) for tag in DRAWS)
        return self._hashed(self.seed, places, first, second, columns).flatten(0, 1)

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return as many standard normal numbers, by the method of Box and Muller."""
        half = -(-units // 2)
        radius, angle = self.uniform(rows, 2 * half, like).chunk(2, -1)
        radius = torch.sqrt(-2 * torch.log(1 - radius))  # of numbers from 2**-24 to 1
        angle = 2 * math.pi * angle
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], -1)[:, :units]

    def _draw_words(self, tag: int, device: torch.device) -> Tensor:
        """Words of source, call and draw, which are constants of the trace, [copies, 1, 1]."""
        before = mixed(mixed(self.source, tag) ^ self.calls, tag)
        words = [mixed(before ^ draw, tag) for draw in self.draws]
        return torch.tensor(words, device=device).reshape(-1, 1, 1)


def hashed(seed: Tensor, rows: Tensor, first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    """Numbers in [0, 1) for every draw, row and column, [draws, rows, columns] of float32.

    Takes a scalar ``seed``, numbers of the ``rows`` [rows, 1], two words per draw [draws, 1, 1] and
    one per column [columns].
    """
    keys = []
    for draws, seeds_tag, draws_tag in zip((first, second), SEEDS, DRAWS, strict=True):
        key = mixed(mixed(seed & WORD, seeds_tag) ^ ((seed >> 32) & WORD), seeds_tag)
        keys.append(mixed(mixed(key ^ rows, seeds_tag) ^ draws, draws_tag))
    words = (fold((keys[0] ^ columns) * FIRST) ^ keys[1]) * SECOND
    numbers: Tensor = (words & TOP).to(torch.float32) * 2.0**-32
    return numbers


def mixed(word: Any, tag: int) -> Any:
    """A word of 32 bits that depends on every bit of ``word``, a number or a tensor of int64."""
    return fold((fold((word ^ tag) * FIRST) ^ BETWEEN) * SECOND)


def fold(product: Any) -> Any:
    """Both words of a product in one."""
    return (product & WORD) ^ (product >> 32)


_hashed = torch.library.custom_op("gflowout::hashed", hashed, mutates_args=())


@_hashed.register_fake
def _(seed: Tensor, rows: Tensor, first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    return (rows ^ first ^ columns).to(torch.float32)


def translations() -> dict[Any, Any]:
    """Functions that write PyTorch operators as ONNX, for the exporter."""
    op = require("onnxscript", extra="onnx", purpose="exporting to ONNX").opset18
    onnx = require("onnx", extra="onnx", purpose="exporting to ONNX")
    kinds = onnx.TensorProto
    shift = onnx.helper.make_tensor("", kinds.UINT64, [], [32])

    def number(value: int) -> Any:
        return op.Constant(value_int=value)

    def fold(product: Any) -> Any:
        # ONNX shifts unsigned numbers alone; a product is never negative.
        by = op.Constant(value=shift)
        high = op.BitShift(op.Cast(product, to=kinds.UINT64), by, direction="RIGHT")
        low = op.BitwiseAnd(product, number(WORD))
        return op.BitwiseXor(low, op.Cast(high, to=kinds.INT64))

    def mixed(word: Any, tag: int) -> Any:
        once = fold(op.Mul(op.BitwiseXor(word, number(tag)), number(FIRST)))
        return fold(op.Mul(op.BitwiseXor(once, number(BETWEEN)), number(SECOND)))

    def hashed(seed: Any, rows: Any, first: Any, second: Any, columns: Any) -> Any:
        word = number(WORD)
        low = op.BitwiseAnd(seed, word)
        # Exact, so that it does not matter how a division rounds.
        high = op.Div(op.Sub(seed, low), number(2**32))
        high = op.BitwiseAnd(high, word)
        keys = []
        for draws, seeds_tag, draws_tag in zip((first, second), SEEDS, DRAWS, strict=True):
            key = mixed(op.BitwiseXor(mixed(low, seeds_tag), high), seeds_tag)
            key = mixed(op.BitwiseXor(key, rows), seeds_tag)
            keys.append(mixed(op.BitwiseXor(key, draws), draws_tag))
        words = fold(op.Mul(op.BitwiseXor(keys[0], columns), number(FIRST)))
        words = op.Mul(op.BitwiseXor(words, keys[1]), number(SECOND))
        bits = op.Cast(op.BitwiseAnd(words, number(TOP)), to=kinds.FLOAT)
        return op.Mul(bits, op.Constant(value_float=2.0**-32))

    def repeat_interleave(
        values: Any, repeats: Any, dim: int | None = None, output_size: Any = None
    ) -> Any:
        # That of onnxscript puts a number of repeats that is not known on the wrong axis.
        rank = 1 if dim is None else len(values.shape)
        if dim is None:
            values, dim = op.Reshape(values, op.Constant(value_ints=[-1])), 0
        dim %= rank
        one = op.Constant(value_ints=[1])
        if isinstance(repeats, int):
            repeats = op.Constant(value_ints=[repeats])
        else:
            repeats = op.Reshape(repeats, op.Constant(value_ints=[-1]))
        wide = op.Expand(
            op.Unsqueeze(values, op.Constant(value_ints=[dim + 1])),
            op.Concat(*[one] * (dim + 1), repeats, *[one] * (rank - dim - 1), axis=0),
        )
        before, after = op.Shape(values, start=0, end=dim), op.Shape(values, start=dim + 1)
        return op.Reshape(wide, op.Concat(before, op.Constant(value_ints=[-1]), after, axis=0))

    def stable_sort(
        values: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
    ) -> Any:
        # Of equal values, TopK takes the one with the lower index first.
        dim %= len(values.shape)
        size = op.Shape(values, start=dim, end=dim + 1)
        return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)

    return {
        torch.ops.gflowout.hashed.default: hashed,
        torch.ops.aten.sort.stable: stable_sort,
        torch.ops.aten.repeat_interleave.self_int: repeat_interleave,
    }
