"""Where data lie on disk. Finds folders and files, checks checksums; never writes.

One root at a time: the directory the caller names, else ``$GFLOWOUT_DATA``, else the user's cache.
Inside it a data set has a folder of its own, under any of the names in
:mod:`gflowout.data.catalog`.
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
_BLOCK = 1 << 20


def root(data_dir: str | Path | None = None) -> Path:
    """The directory that holds all data sets.

    Args:
        data_dir: The directory, or ``None`` for ``$GFLOWOUT_DATA`` or else the user's cache.

    Raises:
        MissingDataError: If a directory was named that is not there.
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
    """The folder that holds a data set.

    Args:
        name: Name of the data set.
        data_dir: Directory of all data sets; the folder of this one is good, too.

    Raises:
        MissingDataError: If there is none; the message says where it was looked for and how to
            get it.
    """
    wanted = entry(name)
    base = root(data_dir)
    tried = list(_candidates(wanted, base))
    telling = [file.name for file in wanted.files if file.split or not wanted.splits]
    for folder in tried:
        found = files(wanted, folder)
        if any(found[file] is not None for file in telling):
            return folder
    raise MissingDataError(
        f"{base}: no {name} here; looked for {_listed(telling)} in the sub-folders "
        f"{_listed(list(wanted.folders))}. {how_to_get(wanted)}"
    )


def files(wanted: Entry, folder: Path) -> dict[str, Path | None]:
    """Each file of a data set and where it is in a folder: as published, or unpacked, or None.

    Upper and lower case count as the same, since copies of eICU come in both.

    Raises:
        DataError: If the folder cannot be read.
    """
    found: dict[str, Path | None] = {}
    for file in wanted.files:
        spelled = Path(file.name).name.lower()
        for inside in wanted.inside:
            here = _files_in((folder / inside / file.name).parent)
            path = here.get(spelled) or here.get(spelled.removesuffix(".gz"))
            if path is not None:
                break
        found[file.name] = path
    return found


def verify_files(wanted: Entry, paths: list[Path]) -> None:
    """Compare files with the checksums of their data set; unpacked ones have none.

    Raises:
        DataError: If one differs.
    """
    known = {Path(file.name).name.lower(): file.checksum for file in wanted.files}
    for path in paths:
        checksum = known.get(path.name.lower())
        if checksum is not None:
            verify(path, checksum)


def verify(path: Path, checksum: str) -> None:
    """Compare a file with its published checksum.

    Args:
        path: The file.
        checksum: ``"md5:..."`` or ``"sha256:..."``.

    Raises:
        DataError: If they differ.
    """
    algorithm, expected = checksum.split(":", 1)
    found = digest(path, algorithm)
    if found != expected:
        raise DataError(
            f"{path}: {algorithm} is {found}, the published file has {expected}; the file is "
            "damaged or was changed: delete it and get it again"
        )


def matches(path: Path, checksum: str) -> bool:
    """Whether a file is the published one."""
    algorithm, expected = checksum.split(":", 1)
    return digest(path, algorithm) == expected


def digest(path: Path, algorithm: str) -> str:
    """Checksum of a file as hexadecimal digits."""
    state = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                state.update(block)
    except OSError as error:
        raise unreadable(path, error) from error
    return state.hexdigest()


def is_there(name: str, data_dir: str | Path | None = None) -> bool:
    """Whether a data set is in the data directory, or comes with a package.

    Args:
        name: Name of the data set.
        data_dir: Directory of all data sets.
    """
    try:
        locate(name, data_dir)
    except MissingDataError:
        folder = package_folder(entry(name))
        return folder is not None and any(files(entry(name), folder).values())
    return True


def how_to_get(
    wanted: Entry, missing: Sequence[str] = (), data_dir: str | Path | None = None
) -> str:
    """One sentence on how to come by a data set.

    Args:
        wanted: The data set.
        missing: Files that are wanted; all if empty.
        data_dir: Directory that the command shall name; by default none.
    """
    name = f"data directory: data_dir=..., --data-dir or ${VARIABLE}"
    optional = {file.name for file in wanted.files if file.optional}
    if missing and optional.issuperset(missing):
        return (
            f"`gflowout data get` leaves this part out: see {wanted.home}, or name another {name}"
        )
    if wanted.downloads:
        by_hand = f" ({wanted.by_hand})" if wanted.by_hand else ""
        where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
        return f"Run `gflowout data get {wanted.name}{where}`{by_hand}, or name another {name}"
    return f"Get it by hand: {wanted.by_hand} ({wanted.home}), or name another {name}"


def _files_in(folder: Path) -> dict[str, Path]:
    """Files by their names in lower case."""
    try:
        return {path.name.lower(): path for path in folder.iterdir() if path.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise unreadable(folder, error) from error


def _candidates(wanted: Entry, base: Path) -> Iterator[Path]:
    if _is_its_own(wanted, base):
        yield base
    for folder in wanted.folders:
        yield base / folder
    package = package_folder(wanted)
    if package is not None:
        yield package


def package_folder(wanted: Entry) -> Path | None:
    """Where an installed package keeps a data set, if there is one that does."""
    if wanted.package is None:
        return None
    module, inside = wanted.package
    spec = importlib.util.find_spec(module)
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location) / inside
    return None


def _is_its_own(wanted: Entry, base: Path) -> bool:
    """Whether a directory is the folder of a data set rather than of all of them.

    Files of the same names can be MNIST or one of its relatives: there the directory's name
    decides, or a checksum.
    """
    parts = base.resolve().parts
    if any(parts[-len(Path(folder).parts) :] == Path(folder).parts for folder in wanted.folders):
        return True
    found = files(wanted, base)
    for other in ENTRIES.values():
        alike = {file.name for file in wanted.files} & {file.name for file in other.files}
        if other is not wanted and alike:
            return any(
                path is not None and file.checksum is not None and matches(path, file.checksum)
                for file in wanted.files
                for path in (found[file.name],)
            )
    return True


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]
