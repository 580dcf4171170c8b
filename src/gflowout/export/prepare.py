"""What is done to raw inputs before a network, as modules that are traced with it.

Images come as bytes; tables as numbers, with codes for names. Knows nothing of files or pandas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScaledImages(nn.Module):
    """Images as bytes to what a network takes: (x / 255 - mean) / std per channel.

    Args:
        mean: Of each channel, images in [0, 1].
        std: Likewise.

    Examples:
        >>> ScaledImages([0.5], [0.5])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        means, deviations = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("factor", (1 / (255 * deviations))[:, None, None])
        self.register_buffer("offset", (-means / deviations)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, channels, height, width] to float32."""
        return images.to(torch.float32) * self.factor + self.offset


class EncodedRows(nn.Module):
    """Rows of a table to what a network takes: numbers standardised, kinds of things one-hot.

    A row has one number per column: that of a column of numbers as it is; that of a column of names
    the place of the name among its levels, -1 for one that is not among them; NaN where missing.
    In double precision, as tables are read.

    Args:
        columns: For every column its mean, its standard deviation, its levels (0 for numbers), and
            whether missing values have an input of their own.

    Examples:
        >>> encode = EncodedRows([(30.0, 10.0, 0, True), (0.0, 1.0, 2, False)])
        >>> encode(torch.tensor([[20.0, 0.0], [torch.nan, 1.0], [40.0, -1.0]]).double())
        tensor([[-1.,  0.,  1.,  0.],
                [ 0.,  1.,  0.,  1.],
                [ 1.,  0.,  0.,  0.]])
    """

    column: Tensor
    mean: Tensor
    std: Tensor
    code: Tensor
    number: Tensor
    absent: Tensor

    def __init__(self, columns: Sequence[tuple[float, float, int, bool]]) -> None:
        super().__init__()
        # Column, mean, standard deviation, code, whether a number, whether "missing", per input.
        inputs: list[tuple[int, float, float, float, bool, bool]] = []
        for place, (mean, std, levels, missing) in enumerate(columns):
            if levels:
                inputs += [(place, 0.0, 1.0, code, False, False) for code in range(levels)]
            else:
                inputs.append((place, mean, std, -1.0, True, False))
            if missing:
                inputs.append((place, 0.0, 1.0, -1.0, False, True))
        names = ("column", "mean", "std", "code", "number", "absent")
        for name, values in zip(names, zip(*inputs, strict=True), strict=True):
            kind = None if name in ("column", "number", "absent") else torch.float64
            self.register_buffer(name, torch.tensor(values, dtype=kind))

    def forward(self, rows: Tensor) -> Tensor:
        """Map float64 [batch, columns] to float32 [batch, inputs]."""
        values = rows.index_select(1, self.column)
        gone = values.isnan()
        numbers = torch.where(gone, torch.zeros_like(values), (values - self.mean) / self.std)
        # Not torch.where: onnxruntime has none of booleans.
        flags = (self.absent & gone) | (~self.absent & (values == self.code))
        return torch.where(self.number, numbers, flags.to(values.dtype)).to(torch.float32)
