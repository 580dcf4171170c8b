"""Finding data sets on disk and comparing files with their published checksums.

The data directory is the one that the caller names, else ``$GFLOWOUT_DATA``, else the user's cache.
In it every data set has its own folder, under any of the names in :mod:`gflowout.data.catalog`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from gflowout.core.optional import require
from gflowout.data.catalog import ENTRIES, Entry, entry
from gflowout.data.errors import DataError, MissingDataError, unreadable

VARIABLE = "GFLOWOUT_DATA"
ELSEWHERE = f"name another data directory: data_dir=..., --data-dir or ${VARIABLE}"


def root(data_dir: str | Path | None = None) -> Path:
    """The directory of all data sets: ``data_dir``, or ``$GFLOWOUT_DATA``, or the user's cache.

    Raises:
        MissingDataError: If a directory was named that does not exist.
    """
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    if named is None:
        pooch = require("pooch", extra="data", purpose="the data cache")
        return Path(pooch.os_cache("gflowout"))
    path = Path(named).expanduser()
    if not path.is_dir():
        source = "data_dir" if data_dir is not None else f"${VARIABLE}"
        raise MissingDataError(f"{path}: {source} must name a directory that exists")
    return path


def locate(name: str, data_dir: str | Path | None = None) -> Path:
    """The folder of a data set; ``data_dir`` may be that folder or the directory of all data sets.

    Raises:
        MissingDataError: If there is none; the message says which names were tried and how to get
            the data set.
    """
    wanted = entry(name)
    base = root(data_dir)
    required = [file.name for file in wanted.files if file.split or not wanted.splits]
    for folder in _candidates(wanted, base):
        paths = files(wanted, folder)
        if any(paths[file] is not None for file in required):
            return folder
    raise MissingDataError(
        f"{base}: no {name} here; looked for {_either(required)} in the sub-folders "
        f"{_either(wanted.folders)}. {how_to_get(wanted)}"
    )


def files(wanted: Entry, folder: Path) -> dict[str, Path | None]:
    """Path of each file of a data set in a folder, packed or unpacked; None if it is not there.

    Case is ignored, since copies of eICU come in both.
    """
    paths: dict[str, Path | None] = {}
    for file in wanted.files:
        spelled = Path(file.name).name.lower()
        for inside in wanted.inside:
            here = _files_in((folder / inside / file.name).parent)
            path = here.get(spelled) or here.get(spelled.removesuffix(".gz"))
            if path is not None:
                break
        paths[file.name] = path
    return paths


def verify_files(wanted: Entry, paths: list[Path]) -> None:
    """Raise :class:`DataError` if a file differs from the published one; unpacked ones may."""
    checksums = {Path(file.name).name.lower(): file.checksum for file in wanted.files}
    for path in paths:
        if checksum := checksums.get(path.name.lower()):
            verify(path, checksum)


def verify(path: Path, checksum: str) -> None:
    """Raise :class:`DataError` unless a file has the checksum ``"md5:..."`` or ``"sha256:..."``."""
    algorithm, expected = checksum.split(":", 1)
    actual = digest(path, algorithm)
    if actual != expected:
        raise DataError(
            f"{path}: {algorithm} is {actual}, the published file has {expected}; the file is "
            "damaged or was changed: delete it and get it again"
        )


def matches(path: Path, checksum: str) -> bool:
    """Whether a file is the published one."""
    algorithm, expected = checksum.split(":", 1)
    return digest(path, algorithm) == expected


def digest(path: Path, algorithm: str) -> str:
    """Checksum of a file as hexadecimal digits."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(
                stream, lambda: hashlib.new(algorithm, usedforsecurity=False)
            ).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def find(name: str, data_dir: str | Path | None = None) -> Path:
    """As :func:`locate`; a package that ships the data set needs no data directory."""
    try:
        return locate(name, data_dir)
    except MissingDataError:
        folder = package_folder(entry(name))
        if folder is None or not any(files(entry(name), folder).values()):
            raise
        return folder


def is_there(name: str, data_dir: str | Path | None = None) -> bool:
    """Whether a data set is in the data directory, or comes with a package."""
    try:
        find(name, data_dir)
    except MissingDataError:
        return False
    return True


def how_to_get(
    wanted: Entry, missing: Sequence[str] = (), data_dir: str | Path | None = None
) -> str:
    """One sentence on how to get a data set.

    Args:
        wanted: The data set.
        missing: The missing files; all if empty.
        data_dir: Directory to name in the command.
    """
    optional = {file.name for file in wanted.files if file.optional}
    if missing and optional.issuperset(missing):
        advice = f"`gflowout data get` leaves this part out: see {wanted.home}"
    elif wanted.downloads:
        by_hand = f" ({wanted.by_hand})" if wanted.by_hand else ""
        where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
        advice = f"Run `gflowout data get {wanted.name}{where}`{by_hand}"
    else:
        advice = f"Get it by hand: {wanted.by_hand} ({wanted.home})"
    return f"{advice}, or {ELSEWHERE}"


def _files_in(folder: Path) -> dict[str, Path]:
    """Files of a folder by their names in lower case."""
    try:
        return {path.name.lower(): path for path in folder.iterdir() if path.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise unreadable(folder, error) from error


def _candidates(wanted: Entry, base: Path) -> Iterator[Path]:
    if _is_its_own(wanted, base):
        yield base
    yield from (base / folder for folder in wanted.folders)
    if package := package_folder(wanted):
        yield package


def package_folder(wanted: Entry) -> Path | None:
    """Where an installed package keeps the data set, if one does."""
    if wanted.package is None:
        return None
    module, inside = wanted.package
    spec = importlib.util.find_spec(module)
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location) / inside
    return None


def _is_its_own(wanted: Entry, base: Path) -> bool:
    """Whether a directory is the folder of this data set rather than that of all of them.

    MNIST and its relatives have files of the same names: there the name of the directory decides,
    or a checksum.
    """
    parts = base.resolve().parts
    if any(parts[-len(Path(folder).parts) :] == Path(folder).parts for folder in wanted.folders):
        return True
    names = {file.name for file in wanted.files}
    others = (other for other in ENTRIES.values() if other is not wanted)
    if all(names.isdisjoint(file.name for file in other.files) for other in others):
        return True
    paths = files(wanted, base)
    return any(
        file.checksum is not None and (path := paths[file.name]) and matches(path, file.checksum)
        for file in wanted.files
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
