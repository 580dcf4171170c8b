"""The catalogue of data sets, where they are on disk, and their published checksums.

``catalog.toml`` beside this module lists names, folders, files, downloads and licences. The data
directory is the one that the caller names, else ``$GFLOWOUT_DATA``, else the user's cache. In it
every data set has its own folder, under any of the names in the catalogue.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.errors import DataError, MissingDataError, reading, unreadable

VARIABLE = "GFLOWOUT_DATA"
ELSEWHERE = f"name another data directory: data_dir=..., --data-dir or ${VARIABLE}"
_SUM = re.compile(r"\\?([0-9a-fA-F]{64})[ \t]+\*?(.+)")  # a line that sha256sum wrote


@dataclass(frozen=True)
class File:
    """A file of a data set; ``checksum`` is ``"md5:..."`` or ``"sha256:..."`` if published."""

    name: str  # path inside the data set's folder; the unpacked file, without .gz, will do
    checksum: str | None = None
    split: str = ""  # the part of the data that it holds; empty if every part needs it
    optional: bool = False  # whether the data set is complete without it


@dataclass(frozen=True)
class Download:
    """A file or archive to fetch for a data set.

    ``checksum`` is ``"md5:..."``, ``"sha256:..."``, or ``"sums:URL"``: a published list of SHA-256
    sums, as ``sha256sum`` writes it, that is fetched as well.
    """

    url: str
    checksum: str
    name: str = ""  # of the file in the folder; by default the last part of the URL
    unpack: bool = False  # whether it is an archive, to be unpacked and then deleted
    strip: int = 0  # number of leading folders to drop from the paths in the archive

    @property
    def filename(self) -> str:
        """Name of the file on disk."""
        return self.name or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Entry:
    """One data set.

    A folder with any file of a split is taken to hold the data set; with any file at all, if no
    file belongs to one split only.
    """

    name: str  # that users type
    title: str  # what it is, in a few words
    kind: str  # "images", "overlays", "vqa", "clinical" or "text"
    folders: tuple[str, ...]  # in the data directory that may hold it; a download goes to the first
    files: tuple[File, ...]
    licence: str
    home: str
    citation: str
    downloads: tuple[Download, ...] = ()  # empty if users must get it by hand
    by_hand: str = ""  # how to get it otherwise
    package: tuple[str, str] | None = None  # that ships the data, and the folder inside it
    size: int = 0  # approximate number of bytes of the downloads
    inside: tuple[str, ...] = ("",)  # sub-folders of the data set's folder that may hold the files
    classes: tuple[str, ...] = ()  # names of the classes, if it is a set of labelled images

    @property
    def splits(self) -> tuple[str, ...]:
        """The parts of the data, in the order of the files."""
        return tuple(dict.fromkeys(file.split for file in self.files if file.split))


def _parse(name: str, fields: dict[str, Any]) -> Entry:
    files = tuple(File(**file) for file in fields.pop("files"))
    downloads = tuple(Download(**download) for download in fields.pop("downloads", ()))
    if mirror := fields.pop("mirror", ""):
        required = [file for file in files if not file.optional]
        downloads = tuple(Download(mirror + f.name, f.checksum) for f in required if f.checksum)
    fields["classes"] = fields.get("classes", "").split()
    rest: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Entry(name=name, files=files, downloads=downloads, **rest)


_CATALOG = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
ENTRIES = {name: _parse(name, fields) for name, fields in _CATALOG.items()}


def entry(name: str) -> Entry:
    """The data set called ``name``; an unknown name raises an error that suggests one."""
    return ENTRIES[checks.choice("name", name, ENTRIES)]


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


def problems(names: Iterable[str], data_dir: str | Path | None = None) -> list[str]:
    """A line for each data set of the catalogue that is not there: where not, and how to get it."""
    missing = [name for name in dict.fromkeys(names) if not is_there(name, data_dir)]
    if not missing:
        return []
    place, directory = f"--data-dir {data_dir}", None if data_dir is None else Path(data_dir)
    if data_dir is None:
        variable = os.environ.get(VARIABLE)
        place = f"${VARIABLE} {variable}" if variable else str(root())
        directory = Path(variable) if variable else None
    nowhere = directory is not None and not directory.expanduser().is_dir()
    fault = "no such folder, and so no" if nowhere else "no"
    return [f"{place}: {fault} {name}. {how_to_get(entry(name), (), data_dir)}" for name in missing]


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
    if (actual := digest(path, algorithm)) != expected:
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
    with reading(path), path.open("rb") as stream:
        new = hashlib.new(algorithm, usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: new).hexdigest()


def published_checksum(download: Download) -> str:
    """The checksum of a download, ``"md5:..."`` or ``"sha256:..."``, fetched if it is in a list."""
    if not download.checksum.startswith("sums:"):
        return download.checksum
    requests = require("requests", extra="data", purpose="downloading data")
    url = download.checksum.removeprefix("sums:")
    try:
        response = requests.get(url, timeout=(10.0, 30.0))
    except requests.RequestException as error:
        raise DataError(f"{url}: no connection, so no checksums") from error
    if not response.ok:
        raise DataError(f"{url}: the server answered {response.status_code} {response.reason}")
    lines = (_SUM.fullmatch(line.strip()) for line in response.text.splitlines())
    sums = {line[2].removeprefix("./"): line[1].lower() for line in lines if line}
    path = download.url.removeprefix(url.rpartition("/")[0] + "/")
    if path not in sums:
        raise DataError(f"{url}: does not list {path}")
    return f"sha256:{sums[path]}"


def how_to_get(
    wanted: Entry, missing: Sequence[str] = (), data_dir: str | Path | None = None
) -> str:
    """One sentence on how to get a data set, or its ``missing`` files, into ``data_dir``."""
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


def package_folder(wanted: Entry) -> Path | None:
    """Where an installed package keeps the data set, if one does."""
    if wanted.package is None:
        return None
    module, inside = wanted.package
    spec = importlib.util.find_spec(module)
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location) / inside
    return None


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
