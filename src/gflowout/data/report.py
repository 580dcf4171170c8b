"""Which data sets are on disk, whether they are as published, and what they contain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.images import ImageSet, load_corrupted, load_images, published_corruptions
from gflowout.data.store import ENTRIES, Entry, File, entry

MATCHES = "matches the published file"
DIFFERS = "differs from the published file"
UNKNOWN = "no checksum to compare with"
UNPACKED = "unpacked; no checksum to compare with"
UNREADABLE = "cannot be read"
MISSING = "missing"
ABSENT = "not there; not needed"

Contents = tuple[dict[str, str], list[str]]
"""What is in a data set, and problems with parts of it."""


@dataclass(frozen=True)
class Presence:
    """Whether a data set is on disk."""

    entry: Entry
    folder: Path | None
    missing: tuple[str, ...] = ()  # required files that are not there
    size: int = 0  # bytes of all files in the folder
    problem: str = ""  # why the folder cannot be read, if so

    @property
    def packaged(self) -> bool:
        """Whether it comes with a Python package."""
        return self.folder is not None and self.folder == store.package_folder(self.entry)


@dataclass(frozen=True)
class Checked:
    """One file: its published name, bytes (None if missing), and a constant of this module."""

    name: str
    size: int | None
    verdict: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.verdict not in (MISSING, DIFFERS, UNREADABLE)


@dataclass(frozen=True)
class Report:
    """Everything that ``gflowout data check`` says about a data set."""

    entry: Entry
    folder: Path
    files: tuple[Checked, ...]
    contents: dict[str, str]
    problems: tuple[str, ...]


def survey(data_dir: str | Path | None = None) -> list[Presence]:
    """Look for every data set in a data directory."""
    return [_presence(wanted, data_dir) for wanted in ENTRIES.values()]


def _presence(wanted: Entry, data_dir: str | Path | None) -> Presence:
    try:
        folder = store.locate(wanted.name, data_dir)
        paths = store.files(wanted, folder)
    except MissingDataError:
        return Presence(wanted, None)
    except DataError as error:  # the other data sets can be surveyed all the same
        return Presence(wanted, None, problem=str(error))
    required = (file.name for file in wanted.files if not file.optional)
    missing = tuple(name for name in required if paths[name] is None)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Presence(wanted, folder, missing, size)


def check(name: str, data_dir: str | Path | None = None) -> Report:
    """Compare all files of a data set with the published ones, and read it.

    A file that differs is a problem, but the rest is read all the same.

    Raises:
        MissingDataError: If the data set is not there at all.
    """
    wanted = entry(name)
    folder = store.locate(name, data_dir)
    paths = store.files(wanted, folder)
    files = tuple(Checked(file.name, *_compare(file, paths[file.name])) for file in wanted.files)
    problems = [
        f"{file.name} {'is missing' if file.verdict == MISSING else file.verdict}"
        for file in files
        if not file.ok
    ]
    contents: dict[str, str] = {}
    try:
        contents, more = _contents(wanted, folder, data_dir)
        problems += more
    except DataError as error:
        problems.append(str(error))
    return Report(wanted, folder, files, contents, tuple(problems))


def _compare(file: File, path: Path | None) -> tuple[int | None, str]:
    """Size and verdict of a file."""
    if path is None:
        return None, ABSENT if file.optional else MISSING
    size = path.stat().st_size
    if file.checksum is None:
        return size, UNKNOWN
    if path.suffix.lower() != Path(file.name).suffix.lower():
        return size, UNPACKED
    try:
        return size, MATCHES if store.matches(path, file.checksum) else DIFFERS
    except DataError:
        return size, UNREADABLE


def _contents(wanted: Entry, folder: Path, data_dir: str | Path | None) -> Contents:
    if wanted.kind == "images":
        return _images(wanted, folder, data_dir)
    if wanted.kind == "overlays":
        from gflowout.data.overlays import load_overlays

        sizes = [f"{image.shape[2]}x{image.shape[1]}" for image in load_overlays(data_dir)]
        return {"overlays": f"{len(sizes)} of {', '.join(sizes)} pixels"}, []
    if wanted.kind == "clinical":
        from gflowout.data import clinical

        counts = clinical.summarise(folder)
    elif wanted.kind == "text":
        from gflowout.data import ratings

        counts = dict(ratings.summarise(folder))
    else:
        from gflowout.data import vqa

        counts = vqa.summarise(wanted.name, folder)
    return {name: f"{n:,}" if isinstance(n, int) else n for name, n in counts.items()}, []


def _images(wanted: Entry, folder: Path, data_dir: str | Path | None) -> Contents:
    """The corruptions of CIFAR-10-C and CIFAR-100-C, the splits of other image sets."""
    contents: dict[str, str] = {}
    problems: list[str] = []
    corrupted = wanted.name.endswith("-c")
    paths = store.files(wanted, folder)
    classes: tuple[str, ...] = ()
    for part in published_corruptions(folder) if corrupted else wanted.splits:
        files = [paths[file.name] for file in wanted.files if file.split == part]
        present = sum(path is not None for path in files)
        try:
            if corrupted:
                images = load_corrupted(wanted.name, part, 5, data_dir)
                contents[part] = f"5 severities of {_describe(images)}"
            elif present:
                images = load_images(wanted.name, part, folder, partial=True)
                some = f"; {present} of {len(files)} files" if present < len(files) else ""
                contents[part] = _describe(images) + some
                classes = images.classes
        except DataError as error:
            problems.append(str(error))
    if classes:
        contents["classes"] = f"{len(classes)}: {', '.join(classes)}"
    return contents, problems


def _describe(images: ImageSet) -> str:
    shape = "x".join(map(str, images.images.shape[1:]))
    counts = torch.bincount(images.labels, minlength=len(images.classes))
    low, high = int(counts.min()), int(counts.max())
    per_class = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{len(images):,} images {shape}, {per_class} of each class"
