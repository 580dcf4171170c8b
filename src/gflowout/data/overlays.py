"""Images of frost: reading them, fitting them to the size of images, cutting windows out of them.

Knows nothing of how frost is mixed with an image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core import optional
from gflowout.data import arrays, resample, store
from gflowout.data.errors import DataError, MissingDataError

OVERLAYS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
"""Files of the overlays, in the published order."""


def load_overlays(data_dir: str | Path | None = None) -> list[Tensor]:
    """Read the six frost overlays.

    Args:
        data_dir: Directory of data sets; by default the usual one.

    Returns:
        Six images, uint8 [3, h, w]; a transparency channel is dropped, as published.

    Raises:
        MissingDataError: If they are not there.
        DataError: If one of them cannot be read.
    """
    folder = store.locate("frost", data_dir)
    pillow = optional.require("PIL.Image", extra="data", purpose="reading frost overlays")
    overlays = []
    for name in OVERLAYS:
        path = folder / name
        try:
            with pillow.open(path) as file:
                image = file.convert("RGB")
        except FileNotFoundError as error:
            raise MissingDataError(f"{path}: no such overlay; get 'frost' again") from error
        except (OSError, SyntaxError) as error:
            raise DataError(
                f"{path}: not an image that can be read ({error}); get it again"
            ) from error
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        overlays.append(pixels.view(image.height, image.width, 3).permute(2, 0, 1).contiguous())
    return overlays


def fit_overlays(
    overlays: Sequence[Tensor], size: tuple[int, int], shrink: float | None
) -> list[Tensor]:
    """Bring overlays to the scale that fits images of a size.

    Args:
        overlays: uint8 [3, h, w] each.
        size: Height and width of the images.
        shrink: Factor of their own size, linear; None enlarges them, bicubic, to 1.1 times what
            covers the image, and to at least 1.1 times their own size.

    Returns:
        uint8 [3, h', w'] each, at least as large as the images.
    """
    if len(overlays) == 0:
        raise ValueError("overlays must hold at least one image of frost, got none")
    fitted = []
    for index, overlay in enumerate(overlays):
        wanted = "uint8 [3, h, w]"
        arrays.tensor(f"overlays[{index}]", overlay, wanted)
        if overlay.dtype != torch.uint8 or overlay.ndim != 3 or overlay.shape[0] != 3:
            raise ValueError(f"overlays[{index}] must be {wanted}, got {arrays.describe(overlay)}")
        height, width = overlay.shape[1:]
        if shrink is not None:
            made = round(height * shrink), round(width * shrink)
            overlay = resample.resize(overlay, made, 1 / shrink, mode="linear")
        else:
            factor = max(1.0, size[0] / height, size[1] / width) * 1.1
            made = math.ceil(height * factor), math.ceil(width * factor)
            overlay = resample.resize(overlay, made, mode="cubic")
        if made[0] < size[0] or made[1] < size[1]:
            raise ValueError(
                f"overlays[{index}] is {made[0]} x {made[1]} after resizing and does not cover "
                f"images of {size[0]} x {size[1]}; take constants='imagenet-c' or larger overlays"
            )
        fitted.append(overlay)
    return fitted


def crop_overlays(overlays: Sequence[Tensor], places: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window out of an overlay for each image.

    Args:
        overlays: uint8 [3, h, w] each.
        places: Numbers in [0, 1) for overlay, top and left, [N, 3].
        size: Height and width of the windows.

    Returns:
        uint8 [N, 3, *size].
    """
    crops = torch.empty(len(places), 3, *size, dtype=torch.uint8)
    which = (places[:, 0] * len(overlays)).long()
    for index, overlay in enumerate(overlays):
        mine = which == index
        # The last row and column are never reached, as published.
        room = [max(have - need, 1) for have, need in zip(overlay.shape[1:], size, strict=True)]
        top, left = (places[mine, 1:] * torch.tensor(room)).long().unbind(1)
        rows = top[:, None, None] + torch.arange(size[0])[:, None]
        columns = left[:, None, None] + torch.arange(size[1])
        crops[mine] = overlay[:, rows, columns].transpose(0, 1)
    return crops
