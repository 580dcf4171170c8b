"""Image sets in memory."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data import formats, store
from gflowout.data.errors import DataError, MissingDataError, describe
from gflowout.data.store import ENTRIES, entry

IMAGE_SETS = tuple(name for name, listed in ENTRIES.items() if listed.classes)
"""Names that :func:`load_images` takes."""


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
        images, labels = formats.read_mat(paths[0])
    elif name.startswith("cifar"):
        images, labels, classes = _load_cifar(name, folder, paths, coarse)
    else:
        images, labels = _load_idx(name, folder, paths)
    return _image_set(folder, images, labels, classes, name, split)


def find_idx(path: Path) -> Path | None:
    """The idx file of pictures that a path is or, as a folder, has; ``None`` if there is none.

    Such a file has ``idx3`` in its name, like ``t10k-images-idx3-ubyte.gz``. Where a folder has
    several, that of test pictures counts: ``t10k`` or ``test`` in its name.

    Raises:
        DataError: If it is not clear which of several files is meant.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    named = [file for file in files if file.is_file() and "idx3" in file.name]
    tests = [file for file in named if "t10k" in file.name or "test" in file.name]
    chosen = tests if len(named) > 1 and tests else named
    if len(chosen) > 1:
        names = ", ".join(file.name for file in chosen)
        raise DataError(f"{path}: has several idx files of pictures, name one of {names}")
    return chosen[0] if chosen else None


def load_corrupted(
    name: str, corruption: str, severity: int, data_dir: str | Path | None = None
) -> ImageSet:
    """Read one corruption and severity (1 to 5) of CIFAR-10-C or CIFAR-100-C as published.

    ``corruption`` is the name of its file, such as ``"snow"``. To make corruptions from clean
    pictures instead, see :func:`gflowout.data.corruptions.corrupt`.
    """
    checks.choice("name", name, ("cifar10-c", "cifar100-c"))
    if checks.integer("severity", severity, low=1) > formats.SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity}")
    folder = store.locate(name, data_dir)
    checks.choice("corruption", corruption, published_corruptions(folder))
    path, labels_path = (folder / f"{stem}.npy" for stem in (corruption, "labels"))
    if not labels_path.is_file():
        raise MissingDataError(f"{labels_path}: not there; {store.how_to_get(entry(name))}")
    images, labels = (
        formats.read_severity(path, severity),
        formats.read_severity(labels_path, severity),
    )
    if images.dtype != torch.uint8 or images.shape[1:] != (formats.SIDE, formats.SIDE, 3):
        shape = [formats.SEVERITIES * len(images), *images.shape[1:]]
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
    images, labels = formats.read_idx(paths[0], 3), formats.read_idx(paths[1], 1)
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
    parts = [formats.read_cifar(path, key) for path in paths]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return images, labels, formats.read_cifar_classes(meta, names)
