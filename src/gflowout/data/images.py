"""Image sets in memory, read from their published files: idx, pickle, MATLAB and .npy."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import io
import math
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError, describe, reading
from gflowout.data.store import ENTRIES, entry

IMAGE_SETS = tuple(name for name, listed in ENTRIES.items() if listed.classes)
"""Names that :func:`load_images` takes."""

SEVERITIES = 5
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_DIGITS = 10


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images.

    Examples:
        >>> some = ImageSet(
        ...     torch.zeros(3, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 1]),
        ...     ("cat", "dog"), "pets", "train",
        ... )
        >>> some
        ImageSet(pets, train: 3 of 1x28x28, 2 classes)
        >>> some.subset(some.labels == 1).labels
        tensor([1, 1])
    """

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N], indices of classes
    classes: tuple[str, ...]
    name: str  # of the data set
    split: str

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(f"images must be uint8 [N, C, H, W], got {describe(self.images)}")
        count, classes = len(self.images), len(self.classes)
        if self.labels.dtype != torch.int64 or self.labels.shape != (count,):
            raise ValueError(f"labels must be int64 [{count}], got {describe(self.labels)}")
        if count:
            low, high = (int(bound) for bound in self.labels.aminmax())
            if low < 0 or high >= classes:
                allowed = f"in [0, {classes - 1}] for {classes} classes"
                raise ValueError(f"labels must be {allowed}, got labels from {low} to {high}")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        size = f"{len(self)} of {'x'.join(map(str, self.images.shape[1:]))}"
        return f"ImageSet({self.name}, {self.split}: {size}, {len(self.classes)} classes)"

    def subset(self, index: Tensor | slice) -> ImageSet:
        """Select images by indices, a boolean mask or a slice."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def relabelled(self, labels: Tensor) -> ImageSet:
        """The same images with other labels, such as noisy ones."""
        return replace(self, labels=labels)

    def fingerprint(self) -> str:
        """SHA-256 of images and labels, by which the record of a run names its data."""
        state = hashlib.sha256()
        for tensor in (self.images, self.labels):
            state.update(str(list(tensor.shape)).encode())
            whole = tensor.contiguous()
            state.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
        return state.hexdigest()


def load_images(
    name: str,
    split: str,
    data_dir: str | Path | None = None,
    *,
    partial: bool = False,
    coarse: bool = False,
    verify: bool = False,
) -> ImageSet:
    """Read one split of an image set, for instance ``load_images("mnist", "train")``.

    Args:
        name: One of :data:`IMAGE_SETS`.
        split: ``"train"`` or ``"test"``; SVHN has ``"extra"``, too.
        data_dir: Directory of the data sets. Default: ``$GFLOWOUT_DATA``, or the user's cache.
        partial: Take what there is if some of CIFAR-10's training files are missing.
        coarse: The 20 coarse classes of CIFAR-100 instead of its 100 fine ones.
        verify: Compare the files with the published checksums first. Reading notices files that
            are cut short or of another format, but not, for instance, other pictures.

    Raises:
        MissingDataError: If it is not there; the message says how to get it.
        DataError: If a file is damaged.
    """
    if name in ("cifar10-c", "cifar100-c"):
        raise ValueError(f"name {name!r} has corruptions for parts: use load_corrupted")
    checks.choice("name", name, IMAGE_SETS)
    checks.choice("split", split, entry(name).splits)
    if coarse and name != "cifar100":
        raise ValueError(f"coarse=True is for 'cifar100' only, got name {name!r}")
    folder = store.locate(name, data_dir)
    paths = _paths(name, split, folder, partial=partial)
    if verify:
        store.verify_files(entry(name), paths)
    classes = entry(name).classes
    if name == "svhn":
        images, labels = read_mat(paths[0])
    elif name.startswith("cifar"):
        images, labels, classes = _load_cifar(name, folder, paths, coarse)
    else:
        images, labels = _load_idx(name, folder, paths)
    return _image_set(folder, images, labels, classes, name, split)


def load_corrupted(
    name: str, corruption: str, severity: int, data_dir: str | Path | None = None
) -> ImageSet:
    """Read one corruption and severity (1 to 5) of CIFAR-10-C or CIFAR-100-C as published.

    ``corruption`` is the name of its file, such as ``"snow"``. To make corruptions from clean
    pictures instead, see :func:`gflowout.data.corruptions.corrupt`.
    """
    checks.choice("name", name, ("cifar10-c", "cifar100-c"))
    if checks.integer("severity", severity, low=1) > SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity}")
    folder = store.locate(name, data_dir)
    checks.choice("corruption", corruption, published_corruptions(folder))
    path, labels_path = (folder / f"{stem}.npy" for stem in (corruption, "labels"))
    if not labels_path.is_file():
        raise MissingDataError(f"{labels_path}: not there; {store.how_to_get(entry(name))}")
    images, labels = read_severity(path, severity), read_severity(labels_path, severity)
    if images.dtype != torch.uint8 or images.shape[1:] != (_SIDE, _SIDE, 3):
        shape = [SEVERITIES * len(images), *images.shape[1:]]
        raise DataError(f"{path}: must be bytes [5 N, 32, 32, 3], got {images.dtype} {shape}")
    pictures = images.permute(0, 3, 1, 2).contiguous()
    classes = entry(name.removesuffix("-c")).classes
    return _image_set(folder, pictures, labels.long(), classes, name, f"{corruption}-{severity}")


def published_corruptions(folder: Path) -> list[str]:
    """Names of the corruptions in a folder of CIFAR-10-C or CIFAR-100-C."""
    return sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")


def _image_set(folder: Path, *fields: Any) -> ImageSet:
    try:
        return ImageSet(*fields)
    except ValueError as error:
        raise DataError(f"{folder}: {error}; the files do not belong together") from error


def _paths(name: str, split: str, folder: Path, *, partial: bool) -> list[Path]:
    names = [file.name for file in entry(name).files if file.split == split]
    located = store.files(entry(name), folder)
    paths = [path for file in names if (path := located[file]) is not None]
    missing = [file for file in names if located[file] is None]
    if missing and not (partial and paths and name == "cifar10"):
        advice = store.how_to_get(entry(name), missing)
        if paths and name == "cifar10":
            advice += "; partial=True reads the files that are there"
        raise MissingDataError(f"{folder}: misses {', '.join(missing)}. {advice}")
    return paths


def _load_idx(name: str, folder: Path, paths: list[Path]) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if images.shape[1:] != (28, 28):
        shape = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{paths[0]}: pictures of {name} must be 28x28, got {shape}")
    if len(images) != len(labels):
        both = f"{len(images)} pictures in {paths[0].name}, {len(labels)} labels in {paths[1].name}"
        raise DataError(f"{folder}: {both}; the files do not belong together")
    return images.unsqueeze(1), labels.long()


def _load_cifar(
    name: str, folder: Path, paths: list[Path], coarse: bool
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    if name == "cifar10":
        key, meta, names = "labels", folder / "batches.meta", "label_names"
    else:
        kind = "coarse" if coarse else "fine"
        key, meta, names = f"{kind}_labels", folder / "meta", f"{kind}_label_names"
    if not meta.is_file():
        raise MissingDataError(f"{meta}: not there; {store.how_to_get(entry(name))}")
    parts = [read_cifar(path, key) for path in paths]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return images, labels, read_cifar_classes(meta, names)


def read_picture(path: Path, mode: str = "RGB") -> Any:
    """Read a PNG, JPEG or the like as a Pillow image, in colour or in grey (mode ``"L"``)."""
    pillow = require("PIL.Image", extra="data", purpose="reading pictures")
    errors = (OSError, ValueError, SyntaxError, EOFError, pillow.DecompressionBombError)
    with (
        reading(path, "cannot be read as a picture", errors, missing="no such picture"),
        pillow.open(path) as file,
    ):
        return file.convert(mode)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read the idx format of MNIST and its relatives: an array of bytes, plain or in gzip.

    The header is two zero bytes, the type (8: unsigned byte), the number of axes (``dimensions``: 3
    for images, 1 for labels), then the size of each axis as a big-endian 32-bit integer.
    """
    with reading(path, "damaged gzip", (EOFError, gzip.BadGzipFile, zlib.error)):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with bytes {content[:4].hex(' ') or '(none)'}, an idx file with "
            f"{dimensions} axes of bytes starts with {magic.hex(' ')}; get the file again"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    shape = "x".join(map(str, sizes))
    expected, actual = math.prod(sizes), len(content) - header
    if actual != expected:
        raise DataError(
            f"{path}: {'cut short' if actual < expected else 'too long'}; its header says {shape} "
            f"= {expected} bytes, it has {max(actual, 0)}; get the file again"
        )
    if not expected:
        raise DataError(f"{path}: holds no data; its header says {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(sizes)


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of SVHN: images uint8 [N, 3, 32, 32] and digits int64 [N].

    The file has the pictures in ``X`` [32, 32, 3, N] and the labels in ``y``, 10 for the digit 0.
    """
    scipy_io = require("scipy.io", extra="data", purpose="reading SVHN")
    with reading(path, "not a MATLAB file of version 5, or cut short", Exception):
        content: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    for key in ("X", "y"):
        if key not in content:
            raise DataError(f"{path}: has no variable {key!r}; SVHN's cropped digits have X and y")
    pixels, labels = content["X"], content["y"]
    square = pixels.ndim == 4 and pixels.shape[:3] == (_SIDE, _SIDE, 3) and pixels.shape[3] > 0
    if not square or str(pixels.dtype) != "uint8":
        got = f"{pixels.dtype} {list(pixels.shape)}"
        raise DataError(f"{path}: X must be bytes of shape [32, 32, 3, N], got {got}")
    if labels.size != pixels.shape[3]:
        raise DataError(f"{path}: has {pixels.shape[3]} pictures and {labels.size} labels")
    if labels.dtype.kind not in "iuf" or bool((labels != labels.round()).any()):
        raise DataError(f"{path}: y must hold whole numbers, got {labels.dtype}")
    digits = torch.from_numpy(labels.reshape(-1).astype("int64"))
    if int(digits.min()) < 1 or int(digits.max()) > _DIGITS:
        raise DataError(f"{path}: y must hold 1 to {_DIGITS}, got {sorted(set(digits.tolist()))}")
    images = torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy())
    return images, digits % _DIGITS


def read_severity(path: Path, severity: int) -> Tensor:
    """Read the rows of one severity (1 to 5) from an .npy file of CIFAR-10-C or CIFAR-100-C.

    The file has five severities of the test set in a row, [5 N, ...]; only the rows [N, ...] asked
    for are read.
    """
    numpy = require("numpy", extra="data", purpose="reading .npy files")
    with reading(path, "not an .npy array, or cut short", (ValueError, EOFError, OSError)):
        rows: Any = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if rows.ndim == 0 or not len(rows) or len(rows) % SEVERITIES:
        raise DataError(f"{path}: must have rows for {SEVERITIES} severities, got {rows.shape}")
    count = len(rows) // SEVERITIES
    if rows.dtype.kind not in "iu":
        raise DataError(f"{path}: must hold whole numbers, got {rows.dtype}")
    part = rows[(severity - 1) * count : severity * count]
    return torch.from_numpy(part.astype(rows.dtype.newbyteorder("=")))


def read_cifar(path: Path, labels: str) -> tuple[Tensor, Tensor]:
    """Read a pickle of CIFAR, images uint8 [N, 3, 32, 32] and labels int64 [N].

    ``labels`` is the key of the labels: ``"labels"``, ``"fine_labels"`` or ``"coarse_labels"``. No
    code that the pickle names is run.
    """
    content = _dictionary(path, ("data", labels))
    pixels = content["data"]
    if not isinstance(pixels, _Array):
        raise DataError(f"{path}: 'data' must be an array, got {type(pixels).__name__}")
    images = pixels.tensor(path)
    if images.dim() != 2 or images.shape[1] != _PIXELS:
        raise DataError(f"{path}: 'data' must be [N, {_PIXELS}], got {list(images.shape)}")
    classes = content[labels]
    if not isinstance(classes, list) or not all(type(label) is int for label in classes):
        raise DataError(f"{path}: {labels!r} must be a list of integers")
    if len(classes) != len(images) or not classes:
        raise DataError(f"{path}: has {len(images)} pictures and {len(classes)} {labels}")
    return images.view(-1, 3, _SIDE, _SIDE), torch.tensor(classes)


def read_cifar_classes(path: Path, key: str) -> tuple[str, ...]:
    """Read the names of the classes from ``batches.meta`` of CIFAR-10 or ``meta`` of CIFAR-100."""
    names = _dictionary(path, (key,))[key]
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(_text(name) for name in names)


def _dictionary(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    with reading(path, "not a pickle, or cut short", Exception):
        try:
            content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except _RefusedError as error:
            raise DataError(
                f"{path}: names {error}, which no published CIFAR file does; it was not run. Do "
                "not trust this file: get it again from its home page. (If you wrote it yourself, "
                "write it with pickle protocol 2)"
            ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must hold a dictionary, got {type(content).__name__}")
    named = {_text(key): value for key, value in content.items() if isinstance(key, bytes | str)}
    for key in keys:
        if key not in named:
            raise DataError(f"{path}: has no {key!r}, only {', '.join(map(repr, sorted(named)))}")
    return named


def _text(name: bytes | str) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else name


# A pickle may name functions to call. Those in CIFAR's files build NumPy arrays; the stand-ins here
# only keep what they are given, and any other name is refused.


class _RefusedError(Exception):
    """A pickle names something that these files do not need."""


class _StandIn:
    """Keeps the arguments and the state that a pickle gives to a NumPy object."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type(_StandIn):
    """Stands in for a NumPy type; its first argument is its code, such as ``u1``."""


class _Array(_StandIn):
    """Stands in for a NumPy array; its state is version, shape, type, order, bytes."""

    def tensor(self, path: Path) -> Tensor:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise DataError(f"{path}: 'data' is not an array as NumPy writes it")
        _, shape, kind, fortran, raw = self.state
        code = kind.arguments[0] if isinstance(kind, _Type) and kind.arguments else None
        if code not in ("u1", "uint8", b"u1", b"uint8") or fortran:
            raise DataError(f"{path}: 'data' must be bytes (uint8) in C order")
        sizes = isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape)
        if not sizes or not isinstance(raw, bytes) or len(raw) != math.prod(shape):
            raise DataError(f"{path}: 'data' has a shape that does not fit its bytes")
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)


class _Bytes(_StandIn):
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: Any, encoding: Any) -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError(f"the encoding {encoding!r}")
        return text.encode("latin1")


# All are classes with __setstate__: a pickle can set attributes on what has none.
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _RefusedError(f"the outside object {pid!r}")
