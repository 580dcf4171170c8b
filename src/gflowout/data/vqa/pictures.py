"""Pictures from disk as one uint8 tensor, all of one size.

Knows nothing of questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import MissingExtraError, require
from gflowout.data.errors import DataError, MissingDataError

FITS = ("pad", "squash")
"""How a picture becomes square: with a black border, or stretched."""
_SLOW = 200  # pictures that take about a second


def decode(
    paths: Sequence[Path],
    *,
    size: int,
    fit: str = "pad",
    channels: int = 3,
    progress: bool = True,
) -> Tensor:
    """Read pictures into one tensor, uint8 [M, channels, size, size].

    Args:
        paths: The files.
        size: Height and width of the result.
        fit: ``"pad"`` keeps the proportions, with black beside or above and below the picture;
            ``"squash"`` stretches it to a square.
        channels: 3 for colours, 1 for grey.
        progress: Show a bar on a terminal if there are many pictures and rich is installed.

    Raises:
        MissingDataError: If a file is not there.
        DataError: If a file is no picture or is cut off.
    """
    checks.integer("size", size, low=1)
    checks.choice("fit", fit, FITS)
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels!r}")
    checks.boolean("progress", progress)
    pictures = torch.empty(len(paths), channels, size, size, dtype=torch.uint8)
    for position, path in enumerate(_tracked(paths, progress)):
        pictures[position] = _read(path, size, fit, channels)
    return pictures


def _read(path: Path, size: int, fit: str, channels: int) -> Tensor:
    image = require("PIL.Image", extra="data", purpose="reading pictures")
    numpy = require("numpy", extra="data", purpose="reading pictures")
    if not path.is_file():
        raise MissingDataError(f"{path}: no such picture, but a question asks about it; get it")
    try:
        with image.open(path) as opened:
            picture = opened.convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: cannot be read as a picture ({error}); the file is damaged: get it again"
        ) from error
    if fit == "squash":
        picture = picture.resize((size, size), image.Resampling.BILINEAR)
    else:
        scale = size / max(picture.size)
        inner = tuple(max(1, round(side * scale)) for side in picture.size)
        whole = image.new(picture.mode, (size, size))
        corner = ((size - inner[0]) // 2, (size - inner[1]) // 2)
        whole.paste(picture.resize(inner, image.Resampling.BILINEAR), corner)
        picture = whole
    pixels = torch.from_numpy(numpy.array(picture)).reshape(size, size, channels)
    return pixels.permute(2, 0, 1)


def _tracked(paths: Sequence[Path], progress: bool) -> Iterable[Path]:
    if not progress or len(paths) < _SLOW:
        return paths
    try:
        rich: Any = require("rich.progress", extra="data", purpose="the progress bar")
        console: Any = require("rich.console", extra="data", purpose="the progress bar")
    except MissingExtraError:
        return paths
    screen = console.Console(stderr=True)
    bar: Iterable[Path] = rich.track(
        paths,
        description="reading pictures",
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    return bar
