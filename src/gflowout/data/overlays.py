"""Frost overlays: read, resize and crop them; and the interpolation that corruptions share.

Resizing is that of OpenCV and zooming that of SciPy. Both are linear in the pixels and separable:
one [out, in] matrix per axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gflowout.data import store
from gflowout.data.errors import check_tensor, describe
from gflowout.data.formats import read_picture

Mode = Literal["linear", "cubic"]

_A = -0.75  # OpenCV's bicubic kernel; Pillow and others have -0.5

OVERLAYS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
"""Files of the overlays, in the published order."""


def load_overlays(data_dir: str | Path | None = None) -> list[Tensor]:
    """Read the six frost overlays, uint8 [3, h, w]; transparency is dropped, as published."""
    folder = store.locate("frost", data_dir)
    overlays = []
    for name in OVERLAYS:
        image = read_picture(folder / name)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        overlays.append(pixels.view(image.height, image.width, 3).permute(2, 0, 1).contiguous())
    return overlays


def fit_overlays(
    overlays: Sequence[Tensor], size: tuple[int, int], shrink: float | None
) -> list[Tensor]:
    """Resize overlays, uint8 [3, h, w] each, so that they cover images of a height and width.

    ``shrink`` is a factor of their own size, linear. None enlarges them, bicubic, to 1.1 times what
    covers the image, and to at least 1.1 times their own size.
    """
    if len(overlays) == 0:
        raise ValueError("overlays must hold at least one image of frost, got none")
    fitted = []
    for index, overlay in enumerate(overlays):
        expected = "uint8 [3, h, w]"
        check_tensor(f"overlays[{index}]", overlay, expected)
        if overlay.dtype != torch.uint8 or overlay.ndim != 3 or overlay.shape[0] != 3:
            raise ValueError(f"overlays[{index}] must be {expected}, got {describe(overlay)}")
        height, width = overlay.shape[1:]
        if shrink is not None:
            new = round(height * shrink), round(width * shrink)
            overlay = resize(overlay, new, 1 / shrink, mode="linear")
        else:
            factor = max(1.0, size[0] / height, size[1] / width) * 1.1
            new = math.ceil(height * factor), math.ceil(width * factor)
            overlay = resize(overlay, new, mode="cubic")
        if new[0] < size[0] or new[1] < size[1]:
            raise ValueError(
                f"overlays[{index}] is {new[0]} x {new[1]} after resizing and does not cover "
                f"images of {size[0]} x {size[1]}; take constants='imagenet-c' or larger overlays"
            )
        fitted.append(overlay)
    return fitted


def crop_overlays(overlays: Sequence[Tensor], places: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop a window for each image, uint8 [N, 3, *size].

    ``places`` [N, 3] holds numbers in [0, 1) for overlay, top and left.
    """
    crops = torch.empty(len(places), 3, *size, dtype=torch.uint8)
    which = (places[:, 0] * len(overlays)).long()
    for index, overlay in enumerate(overlays):
        chosen = which == index
        # The last row and column are never reached, as published.
        room = [max(have - need, 1) for have, need in zip(overlay.shape[1:], size, strict=True)]
        top, left = (places[chosen, 1:] * torch.tensor(room)).long().unbind(1)
        rows = top[:, None, None] + torch.arange(size[0])[:, None]
        columns = left[:, None, None] + torch.arange(size[1])
        crops[chosen] = overlay[:, rows, columns].transpose(0, 1)
    return crops


def interpolation(positions: Tensor, size: int, mode: Mode = "linear") -> Tensor:
    """Interpolation weights, float64 [out, size], of positions [out] in pixels of the input.

    Rows sum to one. Positions beyond the ends read the end pixel.
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
    """Resize uint8 [C, H, W] as ``cv2.resize`` with ``INTER_LINEAR`` or ``INTER_CUBIC``.

    Pixel i of the output is read at (i + 1/2) step - 1/2. Shrinking does not average: pixels
    between two reading points are skipped, as in OpenCV. ``step`` is the number of input pixels per
    output pixel; by default the ratio of the sizes, per axis.
    """
    matrices = []
    for before, after in zip(image.shape[1:], size, strict=True):
        ratio = before / after if step is None else step
        # float32 as in OpenCV, so that both round a position to the same side
        positions = ((torch.arange(after, dtype=torch.float64) + 0.5) * ratio - 0.5).float()
        matrices.append(interpolation(positions, before, mode))
    rows, columns = matrices
    return (rows @ image.double() @ columns.T).round_().clamp_(0, 255).to(torch.uint8)


def clipped_zoom(layers: Tensor, factor: float) -> Tensor:
    """Enlarge the centre of each layer linearly, as ``scipy.ndimage.zoom`` with ``order=1``.

    Corners are kept: of ``taken`` central pixels, pixel i of ``new`` is read at
    i (taken - 1) / (new - 1). The result is at least as large as the layers, float64 [N, H, W].
    """
    if factor == 1:
        return layers
    matrices = []
    for axis in (1, 2):
        size = layers.shape[axis]
        taken = math.ceil(size / factor)
        new = round(taken * factor)
        layers = layers.narrow(axis, (size - taken) // 2, taken)
        step = (taken - 1) / max(new - 1, 1)
        positions = torch.arange(new, dtype=torch.float64) * step
        matrices.append(interpolation(positions, taken))
    rows, columns = matrices
    return rows @ layers @ columns.T
