"""Reading the user's own files: CSV, Parquet, NPZ, images. Knows nothing of models.

Every problem is a :class:`~gflowout.data.errors.DataError` that starts with the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.data.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
TABLES = (".csv", ".parquet")
GREY = ("1", "L", "LA", "I", "I;16", "F")
_SPLITS = {"train", "test", "valid", "val", "validation"}


def there(path: Path) -> Path:
    """Return a path that exists, or raise."""
    path = path.expanduser()
    if not path.exists():
        raise MissingDataError(f"{path}: no such file or folder")
    return path


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the path before messages that do not know it."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(str(path)):
            raise
        raise DataError(f"{path}: {error}") from error


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file."""
    path = there(path)
    try:
        if path.suffix.lower() == ".parquet":
            require("pyarrow", extra="studies", purpose="reading Parquet")
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, low_memory=False)
    except (ValueError, OSError, pd.errors.ParserError) as error:
        kind = "Parquet" if path.suffix.lower() == ".parquet" else "CSV with a header"
        raise DataError(f"{path}: cannot be read as {kind} ({_first(error)})") from error
    frame.columns = frame.columns.map(str)
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{path}: has the column {twice[0]!r} twice")
    if not len(frame):
        raise DataError(f"{path}: has no rows")
    return frame.reset_index(drop=True)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an NPZ file; nothing is unpickled."""
    path = there(path)
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (ValueError, OSError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as NPZ ({_first(error)})") from error


def inputs_of(path: Path, arrays: dict[str, NDArray[Any]]) -> Tensor | pd.DataFrame:
    """The array ``x``: images uint8 [N, C, H, W], or a table with the columns x0, x1 ..."""
    if "x" not in arrays:
        raise DataError(f"{path}: must hold an array 'x', got {', '.join(arrays) or 'none'}")
    x = arrays["x"]
    if x.dtype == np.uint8 and x.ndim in (3, 4) and len(x):
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        if x.shape[1] in (1, 3):
            return torch.from_numpy(np.ascontiguousarray(x))
    if x.ndim != 2 or not len(x) or x.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: x must be numbers [N, features], or images as bytes [N, H, W], [N, C, H, W] "
            f"or [N, H, W, C] of 1 or 3 channels, got {x.dtype} {list(x.shape)}"
        )
    return pd.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])])


def find_images(folder: Path) -> list[Path]:
    """All images of a folder and of the folders in it, in the order of their names."""
    found = sorted(
        path
        for path in there(folder).rglob("*")
        if path.suffix.lower() in PICTURES and path.is_file() and not path.name.startswith(".")
    )
    if not found:
        raise DataError(f"{folder}: no image here ({', '.join(PICTURES)})")
    return found


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Images of each class: one sub-folder each."""
    folder = there(folder)
    inside = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    names = {path.name.lower() for path in inside}
    if names and names <= _SPLITS:
        raise DataError(
            f"{folder}: must hold one sub-folder per class, got {', '.join(sorted(names))}; name "
            f"one of these, such as {inside[0]}"
        )
    found = {path.name: find_images(path) for path in inside}
    if len(found) < 2:
        raise DataError(
            f"{folder}: must hold one sub-folder of images per class, two at least, got "
            f"{len(found)} sub-folders"
        )
    return found


def channels_of(paths: Sequence[Path]) -> int:
    """1 if all images are grey, else 3."""
    return 1 if all(_mode(path) in GREY for path in paths) else 3


def read_images(paths: Sequence[Path], shape: tuple[int, int, int]) -> tuple[Tensor, int]:
    """Read images, made grey or coloured, and resized where they have another size.

    Args:
        paths: One image each.
        shape: Channels, height, width.

    Returns:
        uint8 [N, C, H, W], and how many were resized.
    """
    pillow = _pillow()
    channels, height, width = shape
    result = torch.empty(len(paths), *shape, dtype=torch.uint8)
    resized = 0
    for place, path in enumerate(paths):
        with _opened(path) as picture:
            upright = pillow.ImageOps.exif_transpose(picture)
            if upright.mode in ("I", "I;16", "F"):  # 16 bits to 8
                values = np.asarray(upright, dtype="float64")
                scale = 255 / 65535 if values.max() > 255 else 1.0
                upright = pillow.Image.fromarray((values * scale).round().clip(0, 255).astype("u1"))
            made = upright.convert("L" if channels == 1 else "RGB")
        if made.size != (width, height):
            made = made.resize((width, height), pillow.Image.Resampling.BILINEAR)
            resized += 1
        values = np.array(made).reshape(height, width, channels)
        result[place] = torch.from_numpy(values).permute(2, 0, 1)
    return result, resized


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    pillow = _pillow()
    try:
        with pillow.Image.open(path) as picture:
            yield picture
    except FileNotFoundError as error:
        raise MissingDataError(f"{path}: no such file") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: cannot be read as an image ({_first(error)})") from error


def _mode(path: Path) -> str:
    with _opened(path) as picture:
        return str(picture.mode)


def _pillow() -> Any:
    require("PIL.Image", extra="studies", purpose="reading images")
    require("PIL.ImageOps", extra="studies", purpose="reading images")
    return require("PIL", extra="studies", purpose="reading images")


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
