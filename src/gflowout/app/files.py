"""Read the user's own files (CSV, Parquet, NPZ, images), also as the inputs of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from gflowout.app.preprocess import Images, Problem, Remarks, Table
from gflowout.core.optional import require
from gflowout.data.errors import DataError, MissingDataError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
TABLES = (".csv", ".parquet")
CHUNK = 1000  # examples that are read and predicted at once
_GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")
_SPLITS = {"train", "test", "valid", "val", "validation"}


def existing(path: Path) -> Path:
    """Return a path that exists, or raise."""
    path = path.expanduser()
    if not path.exists():
        raise MissingDataError(f"{path}: no such file or folder")
    return path


@contextmanager
def error_context(path: Path) -> Iterator[None]:
    """Put the path before messages of errors that do not name it."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(str(path)):
            raise
        raise DataError(f"{path}: {error}") from error


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file."""
    path = existing(path)
    parquet = path.suffix.lower() == ".parquet"
    if parquet:
        require("pyarrow", extra="studies", purpose="reading Parquet")
    try:
        frame = pd.read_parquet(path) if parquet else pd.read_csv(path, low_memory=False)
    except (ValueError, OSError, pd.errors.ParserError) as error:
        kind = "Parquet" if parquet else "CSV with a header"
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
    path = existing(path)
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
    paths = sorted(
        path
        for path in existing(folder).rglob("*")
        if path.suffix.lower() in PICTURES and path.is_file() and not path.name.startswith(".")
    )
    if not paths:
        raise DataError(f"{folder}: no image here ({', '.join(PICTURES)})")
    return paths


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Images of each class: one sub-folder each."""
    visible = (path for path in existing(folder).iterdir() if not path.name.startswith("."))
    subfolders = sorted(path for path in visible if path.is_dir())
    names = {path.name.lower() for path in subfolders}
    if names and names <= _SPLITS:
        listed = ", ".join(sorted(names))
        raise DataError(
            f"{folder}: must hold classes, got {listed}; name one of these, such as {subfolders[0]}"
        )
    if len(subfolders) < 2:
        raise DataError(
            f"{folder}: must hold one sub-folder of images per class, two at least, got "
            f"{len(subfolders)}"
        )
    return {path.name: find_images(path) for path in subfolders}


def channels_of(paths: Sequence[Path]) -> int:
    """1 if all images are grey, else 3."""
    for path in paths:
        with _opened(path) as image:
            if image.mode not in _GREY_MODES:
                return 3
    return 1


def read_images(paths: Sequence[Path], shape: tuple[int, int, int]) -> tuple[Tensor, int]:
    """Read images as uint8 [N, *shape], resized where needed; also tells how many were resized."""
    pil_image, pil_ops = (_pillow(name) for name in ("Image", "ImageOps"))
    channels, height, width = shape
    result = torch.empty(len(paths), *shape, dtype=torch.uint8)
    resized = 0
    for place, path in enumerate(paths):
        with _opened(path) as stored:
            image = pil_ops.exif_transpose(stored)
            if image.mode in ("I", "I;16", "F"):  # 16 bits to 8
                values = np.asarray(image, dtype="float64")
                scale = 255 / 65535 if values.max() > 255 else 1.0
                image = pil_image.fromarray((values * scale).round().clip(0, 255).astype("u1"))
            image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            image = image.resize((width, height), pil_image.Resampling.BILINEAR)
            resized += 1
        values = np.array(image).reshape(height, width, channels)
        result[place] = torch.from_numpy(values).permute(2, 0, 1)
    return result, resized


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with _pillow("Image").open(path) as image:
            yield image
    except FileNotFoundError as error:
        raise MissingDataError(f"{path}: no such file") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: cannot be read as an image ({_first(error)})") from error


def _pillow(module: str) -> Any:
    return require(f"PIL.{module}", extra="studies", purpose="reading images")


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a trained model that are read in chunks, as they are stored."""

    label: str  # of the names: "row" or "file"
    names: Sequence[Any]
    take: Callable[[slice], Tensor]
    remarks: Remarks  # complete when all inputs have been read

    def __len__(self) -> int:
        return len(self.names)

    def chunks(self, size: int = CHUNK) -> Iterator[Tensor]:
        """All examples, some at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def notes(self) -> list[str]:
        """What a user should know, once all have been read."""
        return self.remarks.lines(len(self))


def open_inputs(problem: Problem, paths: Sequence[Path]) -> Inputs:
    """Open a table, an NPZ file, a folder of images or image files, prepared as in training."""
    first = existing(paths[0])
    suffix = first.suffix.lower()
    if first.is_dir() or suffix in PICTURES:
        return _image_inputs(problem.inputs, [existing(path) for path in paths])
    if len(paths) > 1:
        raise DataError(f"{paths[1]}: only images can be given as several files")
    if suffix not in (*TABLES, ".npz"):
        raise DataError(f"{first}: must be CSV, Parquet, NPZ, a folder of images or an image")
    x = read_table(first) if suffix in TABLES else inputs_of(first, read_arrays(first))
    takes_images = isinstance(problem.inputs, Images)
    if isinstance(x, pd.DataFrame):
        if isinstance(problem.inputs, Images):
            raise DataError(f"{first}: the model takes images, this is a table")
        return _table_inputs(problem.inputs, first, x)
    if not takes_images or x.shape[1:] != torch.Size(problem.shape):
        raise DataError(
            f"{first}: the model takes {'images' if takes_images else 'rows'} "
            f"{list(problem.shape)}, x has images {list(x.shape[1:])}"
        )
    return Inputs("row", range(len(x)), lambda part: x[part], Remarks())


def _table_inputs(table: Table, path: Path, frame: pd.DataFrame) -> Inputs:
    remarks = Remarks()

    def take(part: slice) -> Tensor:
        with error_context(path):
            return table.encode(frame.iloc[part], remarks)

    with error_context(path):
        table.encode(frame.iloc[:1], Remarks())  # a column that is missing shows at once
    return Inputs("row", range(len(frame)), take, remarks)


def _image_inputs(takes: Images | Table, paths: Sequence[Path]) -> Inputs:
    if not isinstance(takes, Images):
        raise DataError(f"{paths[0]}: the model takes a table, not images")
    images: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            images += [(file.relative_to(path).as_posix(), file) for file in find_images(path)]
        else:
            images.append((str(path), path))
    remarks = Remarks()

    def take(part: slice) -> Tensor:
        tensors, resized = read_images([path for _, path in images[part]], takes.shape)
        remarks.resized += resized
        return tensors

    return Inputs("file", [name for name, _ in images], take, remarks)
