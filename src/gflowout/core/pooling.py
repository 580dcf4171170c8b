"""Averages over real positions, padding left out. Knows tensors only."""

from __future__ import annotations

import torch
from torch import Tensor

from gflowout.core import tree


def mean_of_real(values: Tensor, real: Tensor, batch_axis: int, axis: int) -> Tensor:
    """Average over one axis, for every example over its real positions alone.

    Args:
        values: Any number of copies of the batch, one after the other on ``batch_axis``.
        real: Which positions are no padding, [batch or 1, positions] of bool.
        batch_axis: Axis of the batch.
        axis: Axis of the positions.

    Returns:
        ``values`` without ``axis``; 0 for an example that has no real position.

    Examples:
        >>> values = torch.tensor([[1.0, 3.0, 8.0], [1.0, 3.0, 8.0]])
        >>> real = torch.tensor([[True, True, False], [False, False, False]])
        >>> mean_of_real(values, real, batch_axis=0, axis=1)
        tensor([2., 0.])
    """
    rows = tree.repeat(real, values.shape[batch_axis] // real.shape[0])
    shape = [1] * values.dim()
    shape[batch_axis], shape[axis] = rows.shape
    where = (rows if batch_axis < axis else rows.T).reshape(shape)
    precise = torch.promote_types(values.dtype, torch.float32)  # sums of half precision overflow
    # Not a product: what stands at padded positions may be NaN.
    sums = values.masked_fill(~where, 0).sum(axis, dtype=precise)
    return (sums / where.sum(axis).clamp(min=1)).to(values.dtype)
