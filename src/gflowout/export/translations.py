"""Operators that we write as ONNX ourselves: those of the random numbers, and one that is broken.

Only for the exporter; needs the extra ``onnx``.
"""

from __future__ import annotations

from typing import Any

import torch

from gflowout.core.optional import require
from gflowout.export import noise


def translations() -> dict[Any, Any]:
    """What makes ONNX of an operator, by operator."""
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
        low = op.BitwiseAnd(product, number(noise.WORD))
        return op.BitwiseXor(low, op.Cast(high, to=kinds.INT64))

    def mixed(word: Any, tag: int) -> Any:
        once = fold(op.Mul(op.BitwiseXor(word, number(tag)), number(noise.FIRST)))
        return fold(op.Mul(op.BitwiseXor(once, number(noise.BETWEEN)), number(noise.SECOND)))

    def hashed(seed: Any, rows: Any, first: Any, second: Any, columns: Any) -> Any:
        word = number(noise.WORD)
        low = op.BitwiseAnd(seed, word)
        # Exact, so that it does not matter how a division rounds.
        high = op.Div(op.Sub(seed, low), number(2**32))
        high = op.BitwiseAnd(high, word)
        keys = []
        pairs = zip((first, second), noise.SEEDS, noise.DRAWS, strict=True)
        for draws, seeds_tag, draws_tag in pairs:
            key = mixed(op.BitwiseXor(mixed(low, seeds_tag), high), seeds_tag)
            key = mixed(op.BitwiseXor(key, rows), seeds_tag)
            keys.append(mixed(op.BitwiseXor(key, draws), draws_tag))
        words = fold(op.Mul(op.BitwiseXor(keys[0], columns), number(noise.FIRST)))
        words = op.Mul(op.BitwiseXor(words, keys[1]), number(noise.SECOND))
        bits = op.Cast(op.BitwiseAnd(words, number(noise.TOP)), to=kinds.FLOAT)
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

    return {
        torch.ops.gflowout.hashed.default: hashed,
        torch.ops.aten.repeat_interleave.self_int: repeat_interleave,
    }
