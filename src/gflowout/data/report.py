"""What is there of a data set, whether it is as published, and what is in it.

Collects facts as text and numbers; printing them is the business of
:mod:`gflowout.cli.data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gflowout.data import store
from gflowout.data.catalog import ENTRIES, Entry, File, entry
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.images import ImageSet, load_corrupted, load_images

MATCHES = "matches the published file"
DIFFERS = "differs from the published file"
UNKNOWN = "no checksum to compare with"
UNPACKED = "unpacked; no checksum to compare with"
UNREADABLE = "cannot be read"
MISSING = "missing"
ABSENT = "not there; not needed"


@dataclass(frozen=True)
class Presence:
    """Whether a data set is there.

    Attributes:
        entry: The data set.
        folder: Its folder, or None.
        missing: Files it should have.
        size: Bytes of all files in the folder.
        problem: Why it could not be looked at, if so.
    """

    entry: Entry
    folder: Path | None
    missing: tuple[str, ...] = ()
    size: int = 0
    problem: str = ""

    @property
    def packaged(self) -> bool:
        """Whether a Python package brings it, rather than the data directory."""
        return self.folder is not None and self.folder == store.package_folder(self.entry)


@dataclass(frozen=True)
class Checked:
    """One file of a data set.

    Attributes:
        name: Its published name.
        size: Bytes, or None if it is not there.
        verdict: One of the constants of this module.
    """

    name: str
    size: int | None
    verdict: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.verdict not in (MISSING, DIFFERS, UNREADABLE)


@dataclass(frozen=True)
class Report:
    """Everything ``gflowout data check`` says about a data set.

    Attributes:
        entry: The data set.
        folder: Its folder.
        files: Its files.
        contents: What was found when it was read.
        problems: What is wrong; empty if nothing is.
    """

    entry: Entry
    folder: Path
    files: tuple[Checked, ...]
    contents: dict[str, str]
    problems: tuple[str, ...]


def survey(data_dir: str | Path | None = None) -> list[Presence]:
    """Look for every data set in a data directory."""
    found = []
    for wanted in ENTRIES.values():
        try:
            folder = store.locate(wanted.name, data_dir)
            there = store.files(wanted, folder)
        except MissingDataError:
            found.append(Presence(wanted, None))
            continue
        except DataError as error:  # the others can be looked at all the same
            found.append(Presence(wanted, None, problem=str(error)))
            continue
        lacking = (file.name for file in wanted.files if not file.optional)
        missing = tuple(name for name in lacking if there[name] is None)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        found.append(Presence(wanted, folder, missing, size))
    return found


def check(name: str, data_dir: str | Path | None = None) -> Report:
    """Compare all files of a data set with the published ones, and read it.

    A file that differs is a problem, but does not keep the rest from being read.

    Raises:
        MissingDataError: If it is not there at all.
    """
    wanted = entry(name)
    folder = store.locate(name, data_dir)
    there = store.files(wanted, folder)
    files = tuple(_checked(file, there[file.name]) for file in wanted.files)
    problems = [f"{file.name} {_short(file)}" for file in files if not file.ok]
    try:
        contents, more = _contents(wanted, folder, data_dir)
        problems += more
    except DataError as error:
        contents = {}
        problems.append(str(error))
    return Report(wanted, folder, files, contents, tuple(problems))


def _short(file: Checked) -> str:
    return "is missing" if file.verdict == MISSING else file.verdict


def _checked(file: File, path: Path | None) -> Checked:
    if path is None:
        return Checked(file.name, None, ABSENT if file.optional else MISSING)
    size = path.stat().st_size
    if file.checksum is None:
        return Checked(file.name, size, UNKNOWN)
    if path.suffix.lower() != Path(file.name).suffix.lower():
        return Checked(file.name, size, UNPACKED)
    try:
        same = store.matches(path, file.checksum)
    except DataError:
        return Checked(file.name, size, UNREADABLE)
    return Checked(file.name, size, MATCHES if same else DIFFERS)


def _contents(
    wanted: Entry, folder: Path, data_dir: str | Path | None
) -> tuple[dict[str, str], list[str]]:
    """What is in a data set, and what is wrong with single parts of it."""
    if wanted.kind == "images":
        corrupted = wanted.name.endswith("-c")
        return _corruptions(wanted, folder, data_dir) if corrupted else _images(wanted, folder)
    if wanted.kind == "overlays":
        from gflowout.data.overlays import load_overlays

        sizes = [f"{image.shape[2]}x{image.shape[1]}" for image in load_overlays(data_dir)]
        return {"overlays": f"{len(sizes)} of {', '.join(sizes)} pixels"}, []
    if wanted.kind == "clinical":
        from gflowout.data import clinical

        counts = clinical.summarise(folder)
    else:
        from gflowout.data import vqa

        counts = vqa.summarise(wanted.name, folder)
    return {key: f"{number:,}" if isinstance(number, int) else number
            for key, number in counts.items()}, []  # fmt: skip


def _images(wanted: Entry, folder: Path) -> tuple[dict[str, str], list[str]]:
    contents: dict[str, str] = {}
    problems: list[str] = []
    there = store.files(wanted, folder)
    classes: tuple[str, ...] = ()
    for split in wanted.splits:
        files = [file.name for file in wanted.files if file.split == split]
        found = [name for name in files if there[name] is not None]
        if not found:
            continue
        try:
            images = load_images(wanted.name, split, folder, partial=True)
        except DataError as error:
            problems.append(str(error))
            continue
        classes = images.classes
        part = f"; {len(found)} of {len(files)} files" if len(found) < len(files) else ""
        contents[split] = _described(images) + part
    if classes:
        contents["classes"] = f"{len(classes)}: {', '.join(classes)}"
    return contents, problems


def _corruptions(
    wanted: Entry, folder: Path, data_dir: str | Path | None
) -> tuple[dict[str, str], list[str]]:
    contents: dict[str, str] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.npy")):
        if path.stem == "labels":
            continue
        try:
            images = load_corrupted(wanted.name, path.stem, 5, data_dir)
        except DataError as error:
            problems.append(str(error))
            continue
        contents[path.stem] = f"5 severities of {_described(images)}"
    return contents, problems


def _described(images: ImageSet) -> str:
    shape = "x".join(map(str, images.images.shape[1:]))
    counts = torch.bincount(images.labels, minlength=len(images.classes))
    low, high = int(counts.min()), int(counts.max())
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{len(images):,} images {shape}, {each} of each class"
