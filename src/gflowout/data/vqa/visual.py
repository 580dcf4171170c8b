"""Pictures and region features of pictures, read from disk."""

from __future__ import annotations

import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import MissingExtraError, require
from gflowout.data.errors import DataError, MissingDataError

REGIONS, FEATURES = 100, 2048
"""Regions per picture and features per region of the published bottom-up features."""
FITS = ("pad", "squash")
"""How a picture becomes square: with a black border, or stretched."""
_SLOW = 200  # pictures that take about a second


def decode(
    paths: Sequence[Path], *, size: int, fit: str = "pad", channels: int = 3, progress: bool = True
) -> Tensor:
    """Read pictures into one tensor, uint8 [M, channels, size, size].

    Args:
        paths: The files.
        size: Height and width of the result.
        fit: ``"pad"`` keeps the proportions, with a black border; ``"squash"`` stretches to a
            square.
        channels: 3 for colour, 1 for grey.
        progress: Show a bar on a terminal if there are many pictures and rich is installed.
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
        square = image.new(picture.mode, (size, size))
        corner = ((size - inner[0]) // 2, (size - inner[1]) // 2)
        square.paste(picture.resize(inner, image.Resampling.BILINEAR), corner)
        picture = square
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
    options = {"console": screen, "transient": True, "disable": not screen.is_terminal}
    bar: Iterable[Path] = rich.track(paths, "reading pictures", **options)
    return bar


class Regions:
    """Region features of pictures, indexed like a tensor [M, regions, features].

    Each picture has an ``.npz`` file with the features of 10 to 100 regions under the key ``x``, as
    in the published MCAN code. Files are read on demand; the last ones used stay in memory. Missing
    rows are zero, which models take for padding; regions beyond ``regions`` are cut.

    Args:
        paths: One file per picture.
        regions: Rows per picture.
        features: Numbers per region, along the first axis in the published files, along the last in
            others; the axis of this size is taken.
        cache_bytes: Memory for files that were read.

    Examples:
        >>> import tempfile
        >>> import numpy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "1.npz"
        ...     numpy.savez(path, x=numpy.ones((8, 3), "float32"))  # three regions of eight numbers
        ...     Regions([path], regions=4, features=8)[torch.tensor([0])].sum(-1)
        tensor([[8., 8., 8., 0.]])
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        regions: int = REGIONS,
        features: int = FEATURES,
        cache_bytes: int = 1 << 29,
    ) -> None:
        self.paths = tuple(paths)
        self.regions = checks.integer("regions", regions, low=1)
        self.features = checks.integer("features", features, low=1)
        self.cache_bytes = checks.integer("cache_bytes", cache_bytes, low=0)
        self._cache: OrderedDict[int, Tensor] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.paths)

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """Return features, float32 [B, regions, features], of picture numbers [B]."""
        out = torch.zeros(len(pictures), self.regions, self.features)
        for row, picture in enumerate(pictures.tolist()):
            features = self._get(picture)
            out[row, : len(features)] = features
        return out

    def _get(self, picture: int) -> Tensor:
        if picture in self._cache:
            self._cache.move_to_end(picture)
            return self._cache[picture]
        features = read_regions(self.paths[picture], self.features)[: self.regions].clone()
        self._cache[picture] = features
        self._size += features.nbytes
        while self._size > self.cache_bytes:
            self._size -= self._cache.popitem(last=False)[1].nbytes
        return features


def read_regions(path: Path, features: int = FEATURES) -> Tensor:
    """Read the features of one picture, float32 [its regions, features]."""
    numpy = require("numpy", extra="data", purpose="reading region features")
    if not path.is_file():
        raise MissingDataError(
            f"{path}: no such file of region features; extract or download the features of all "
            "pictures into this folder"
        )
    try:
        # Opened here, since numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as stream, numpy.load(stream, allow_pickle=False) as archive:
            array = archive["x"]
    except KeyError as error:
        raise DataError(
            f"{path}: has no array 'x'; write the features under that name, as published"
        ) from error
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    # zipfile raises the last where a damaged header asks for an unknown compression or a password.
    except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DataError(f"{path}: is damaged ({error}); get the file again") from error
    if array.ndim != 2 or features not in array.shape or array.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: 'x' must be numbers [{features}, regions] or [regions, {features}], got "
            f"{array.dtype} {list(array.shape)}; name another size with features="
        )
    rows = array.T if array.shape[0] == features else array
    if len(rows) == 0 or not numpy.isfinite(rows).all():
        raise DataError(f"{path}: 'x' is empty or not finite; get the file again")
    return torch.from_numpy(numpy.ascontiguousarray(rows, dtype=numpy.float32))
