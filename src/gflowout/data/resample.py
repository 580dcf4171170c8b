"""Separable interpolation as matrices: resizing as OpenCV does it, zooming as SciPy does it.

Both are linear in the pixels, so one [out, in] matrix per axis says everything. Knows nothing of
corruptions.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["linear", "cubic"]

_A = -0.75  # OpenCV's bicubic kernel; Pillow and others have -0.5


def weights(positions: Tensor, size: int, mode: Mode = "linear") -> Tensor:
    """Interpolation weights of each position; beyond the ends, the end pixel goes on.

    Args:
        positions: Where to read, in pixels of the input, [out].
        size: Number of input pixels.
        mode: Two taps, or the four of the bicubic kernel.

    Returns:
        float64 [out, size]; rows sum to one.

    Examples:
        >>> weights(torch.tensor([0.25, -1.0]), 3)
        tensor([[0.7500, 0.2500, 0.0000],
                [1.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    positions = positions.double()
    base = positions.floor()
    t = positions - base
    if mode == "linear":
        taps = torch.stack([1 - t, t], 1)
    else:
        outer = [_A * (((d - 5) * d + 8) * d - 4) for d in (t + 1, 2 - t)]
        inner = [((_A + 2) * d - (_A + 3)) * d * d + 1 for d in (t, 1 - t)]
        taps = torch.stack([outer[0], *inner, outer[1]], 1)
    first = 0 if mode == "linear" else -1
    columns = base.long()[:, None] + torch.arange(first, first + taps.shape[1])
    matrix = torch.zeros(len(positions), size, dtype=torch.float64)
    return matrix.scatter_add_(1, columns.clamp_(0, size - 1), taps)


def resize(
    image: Tensor, size: tuple[int, int], step: float | None = None, *, mode: Mode
) -> Tensor:
    """Resize one image as ``cv2.resize`` with ``INTER_LINEAR`` or ``INTER_CUBIC``.

    Pixel i of the output is read at (i + 1/2) step - 1/2. Shrinking does not average: pixels
    between two reading points are skipped, as in OpenCV.

    Args:
        image: uint8 [C, H, W].
        size: Height and width of the output.
        step: Input pixels per output pixel; by default the ratio of the sizes, per axis.
        mode: Interpolation.

    Returns:
        uint8 [C, *size].

    Examples:
        >>> row = torch.tensor([[[0, 100, 200]]], dtype=torch.uint8)
        >>> resize(row, (1, 6), mode="linear")
        tensor([[[  0,  25,  75, 125, 175, 200]]], dtype=torch.uint8)
    """
    matrices = []
    for before, after in zip(image.shape[1:], size, strict=True):
        ratio = before / after if step is None else step
        # float32 as in OpenCV, so that both round a position to the same side
        positions = ((torch.arange(after, dtype=torch.float64) + 0.5) * ratio - 0.5).float()
        matrices.append(weights(positions, before, mode))
    rows, columns = matrices
    return (rows @ image.double() @ columns.T).round_().clamp_(0, 255).to(torch.uint8)


def zoom_size(size: int, factor: float) -> tuple[int, int]:
    """How many central pixels a clipped zoom takes, and how many it makes of them.

    Examples:
        >>> zoom_size(32, 2.25)
        (15, 34)
    """
    taken = math.ceil(size / factor)
    return taken, round(taken * factor)


def clipped_zoom(layers: Tensor, factor: float) -> Tensor:
    """Blow up the centre of each layer linearly, as ``scipy.ndimage.zoom`` with ``order=1``.

    Corners are kept: pixel i of the output is read at i (taken - 1) / (made - 1).

    Args:
        layers: float64 [N, H, W].
        factor: At least 1.

    Returns:
        float64, at least as large as the input along both axes.

    Examples:
        >>> clipped_zoom(torch.arange(4.0, dtype=torch.float64).expand(1, 4, 4), 2.0)[0, 0]
        tensor([1.0000, 1.3333, 1.6667, 2.0000], dtype=torch.float64)
    """
    if factor == 1:
        return layers
    matrices = []
    for axis in (1, 2):
        size = layers.shape[axis]
        taken, made = zoom_size(size, factor)
        layers = layers.narrow(axis, (size - taken) // 2, taken)
        step = (taken - 1) / max(made - 1, 1)
        positions = torch.arange(made, dtype=torch.float64) * step
        matrices.append(weights(positions, taken))
    rows, columns = matrices
    return rows @ layers @ columns.T
