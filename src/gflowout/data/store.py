"""Where data lie on disk. Finds folders and files, checks checksums; never writes.

One root at a time: the directory the caller names, else ``$GFLOWOUT_DATA``, else the user's cache.
Inside it a data set has a folder of its own, under any of the names in
:mod:`gflowout.data.catalog`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from gflowout.data.catalog import Entry, entry
from gflowout.data.errors import DataError, MissingDataError
from gflowout.extras import require

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
    """
    found: dict[str, Path | None] = {}
    for file in wanted.files:
        parent = folder / Path(file.name).parent
        here = {path.name.lower(): path for path in parent.iterdir()} if parent.is_dir() else {}
        spelled = Path(file.name).name.lower()
        found[file.name] = here.get(spelled) or here.get(spelled.removesuffix(".gz"))
    return found


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


def digest(path: Path, algorithm: str) -> str:
    """Checksum of a file as hexadecimal digits."""
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def how_to_get(wanted: Entry) -> str:
    """One sentence on how to come by a data set."""
    name = f"data directory: data_dir=..., --data-dir or ${VARIABLE}"
    if wanted.downloads:
        by_hand = f" ({wanted.by_hand})" if wanted.by_hand else ""
        return f"Run `gflowout data get {wanted.name}`{by_hand}, or name another {name}"
    return f"Get it by hand: {wanted.by_hand} ({wanted.home}), or name another {name}"


def _candidates(wanted: Entry, base: Path) -> Iterator[Path]:
    if base.name in {Path(folder).name for folder in wanted.folders}:
        yield base
    for folder in wanted.folders:
        yield base / folder
    if wanted.package is not None:
        module, inside = wanted.package
        spec = importlib.util.find_spec(module)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location) / inside


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]
