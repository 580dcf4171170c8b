"""Fetching data sets: resume, compare with published checksums, unpack, move into place.

Files arrive in ``.partial`` inside the data directory. Only complete files with the published
checksum are moved to the folder of the data set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gflowout.core.optional import require
from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import Download, Entry, entry
from gflowout.data.transfer import Progress, delete, resume, size_of, unpack

PARTIAL = ".partial"
Bars = Callable[[str], Progress]


def get(
    name: str, data_dir: str | Path | None = None, *, progress: bool = True, force: bool = False
) -> Path:
    """Fetch a data set, unless it is there, and return its folder.

    An interrupted download resumes where it stopped. Nothing appears in the folder of the data set
    before it is complete and has the published checksum. If several processes ask for the same data
    set, one of them fetches it and the others wait.

    Args:
        name: Name of the data set.
        data_dir: Directory of all data sets; created if only its last folder is missing. Default:
            ``$GFLOWOUT_DATA``, or the user's cache.
        progress: Show a progress bar on standard error.
        force: Fetch it again, and replace files that differ from the published ones.

    Raises:
        DataError: If it cannot be fetched, is not what was published, does not fit on the disk,
            or files are there that differ from the published ones and ``force`` is not given.
    """
    wanted = entry(name)
    folder = _locate(name, data_dir)
    if not wanted.downloads:
        if folder is None:
            raise MissingDataError(f"{name}: cannot be downloaded. {store.how_to_get(wanted)}")
        return folder
    if folder is not None and not force and not _to_fetch(wanted, folder):
        return folder
    base = _writable_root(data_dir)
    with _locked(base / PARTIAL / f"{name}.lock", progress), _bars(progress) as bar:
        folder = _locate(name, data_dir) or base / wanted.folders[0]
        # Another process may have fetched it while this one waited.
        missing = list(wanted.downloads) if force else _to_fetch(wanted, folder)
        if missing:
            _fetch_all(wanted, missing, folder.resolve(), base / PARTIAL / name, bar, force)
    return folder


def _locate(name: str, data_dir: str | Path | None) -> Path | None:
    try:
        return store.locate(name, data_dir)
    except MissingDataError:
        return None


def _writable_root(data_dir: str | Path | None) -> Path:
    named = data_dir if data_dir is not None else os.environ.get(store.VARIABLE) or None
    path = Path(named).expanduser() if named is not None else store.root()
    try:
        if named is None or (path.parent.is_dir() and not path.exists()):
            path.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            (path / PARTIAL).mkdir(exist_ok=True)
    except OSError as error:
        reason = f"cannot write here ({error.strerror})"
        raise DataError(f"{path}: {reason}; {store.ELSEWHERE}") from error
    return store.root(data_dir)


def _to_fetch(wanted: Entry, folder: Path) -> list[Download]:
    """Downloads whose files are missing; files with a checksum must be the published ones."""
    paths = store.files(wanted, folder)
    try:
        # The name of an unpacked file differs from the published one: it has no checksum.
        store.verify_files(wanted, [path for path in paths.values() if path is not None])
    except DataError as error:
        raise DataError(f"{error}: `gflowout data get {wanted.name} --force` does both") from error
    complete = all(paths[file.name] is not None for file in wanted.files if not file.optional)
    return [
        download
        for download in wanted.downloads
        if (not complete if download.unpack else paths.get(download.filename) is None)
    ]


def _fetch_all(
    wanted: Entry, downloads: list[Download], folder: Path, staging: Path, bar: Bars, force: bool
) -> None:
    """Fetch everything, and only then move it to the folder."""
    unpacked = folder.with_name(f".{folder.name}.unpacking")  # on the same disk
    paths: list[Path] = []
    try:
        staging.mkdir(exist_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)  # left over from a process that was killed
        _check_space(wanted, downloads, staging)
        folder.parent.mkdir(parents=True, exist_ok=True)
        paths = [_fetch(wanted, item, folder, staging, bar, force) for item in downloads]
        unpacked.mkdir()
        for download, path in zip(downloads, paths, strict=True):
            if download.unpack:
                unpack(path, unpacked, download.strip)
            else:
                shutil.move(path, unpacked / download.filename)
        _place(unpacked, folder)
        delete(*paths)
    except DataError:
        delete(*paths)  # fetched as published, but one of them cannot be unpacked
        raise
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"the part of {wanted.name} that came is kept in {staging}; run it again to go on"
        ) from error
    except OSError as error:
        raise DataError(f"{folder}: cannot write ({error})") from error
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
        with suppress(OSError):  # not empty: there is something to resume
            staging.rmdir()


def _fetch(
    wanted: Entry, download: Download, folder: Path, staging: Path, bar: Bars, force: bool
) -> Path:
    """Fetch one file into the staging folder and verify it."""
    complete, partial = _staged(staging, download)
    if force:
        complete.unlink(missing_ok=True)
    try:
        checksum = store.published_checksum(download)
        if complete.exists() and store.matches(complete, checksum):
            return complete
        resume(download.url, complete, partial, bar(download.filename))
    except DataError as error:
        put = f"put {'the files in it' if download.unpack else 'it'} into {folder}"
        elsewhere = f"Without a network, fetch {download.filename} elsewhere and {put}"
        raise DataError(f"{error}. {elsewhere}") from error
    algorithm, expected = checksum.split(":", 1)
    if (actual := store.digest(complete, algorithm)) != expected:
        complete.unlink()
        raise DataError(
            f"{download.url}: what came is not the published file: its checksum should be "
            f"{checksum} and is {actual}. It was deleted. Try again; if it happens again, the file "
            f"was changed there or on the way: see {wanted.home}"
        )
    return complete


def _staged(staging: Path, download: Download) -> tuple[Path, Path]:
    """Paths of a download in the staging folder: when it is complete, and until then."""
    key = hashlib.sha256(f"{download.url} {download.checksum}".encode()).hexdigest()[:12]
    complete = staging / f"{key}-{download.filename}"
    return complete, complete.with_name(complete.name + ".part")


def _check_space(wanted: Entry, downloads: list[Download], staging: Path) -> None:
    share = len(downloads) / len(wanted.downloads)
    unpacks = any(download.unpack for download in downloads)
    kept = sum(size_of(path) for download in downloads for path in _staged(staging, download))
    needed = max(0, int(wanted.size * share) - kept) + (wanted.size if unpacks else 0)
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise DataError(
            f"{staging.parents[1]}: {wanted.name} needs about {readable(needed)}"
            f"{', archive and content,' if unpacks else ''} and {readable(free)} are free; make "
            f"room, or {store.ELSEWHERE}"
        )


def readable(size: float) -> str:
    """A number of bytes with a unit, such as ``11.6 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _place(unpacked: Path, folder: Path) -> None:
    """Rename the folder into place; if there is one already, move the files one by one."""
    if not folder.exists():
        os.replace(unpacked, folder)
        return
    for path in sorted(unpacked.rglob("*")):
        target = folder / path.relative_to(unpacked)
        if path.is_dir():
            target.mkdir(exist_ok=True)
            continue
        # An existing copy may be spelled in another case; two of them would shadow each other.
        same = [old for old in target.parent.iterdir() if old.name.lower() == path.name.lower()]
        os.replace(path, same[0] if same else target)


@contextmanager
def _locked(path: Path, progress: bool) -> Iterator[None]:
    """Admit one process at a time. The lock ends with its process, however that ends."""
    filelock = require("filelock", extra="data", purpose="downloading data")
    lock = filelock.FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if progress:
                print(f"waiting for another process that fetches {path.stem}", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise DataError(f"{path}: cannot lock ({error.strerror}); {store.ELSEWHERE}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _bars(progress: bool) -> Iterator[Bars]:
    """A progress bar for each file: bytes, speed, time left."""
    if not progress:
        yield lambda title: lambda done, total: None
        return
    rich: Any = require("rich.progress", extra="data", purpose="the progress bar")
    console = require("rich.console", extra="data", purpose="the progress bar")
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=None),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console.Console(stderr=True)) as shown:

        def bar(title: str) -> Progress:
            task = shown.add_task(title, total=None)
            return lambda done, total: shown.update(task, completed=done, total=total)

        yield bar
