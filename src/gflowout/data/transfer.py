"""Downloads that resume, and archives that are unpacked."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from gflowout.core.optional import require
from gflowout.data.errors import DataError

TRIES = 4  # attempts in a row that bring nothing new
PAUSE = 0.5  # seconds before the second attempt; doubles with every further one
TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces
_PIECE = 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be better next time
# What a damaged archive can raise; zipfile raises a plain RuntimeError for a file with a password.
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)

Progress = Callable[[int, int | None], None]


def resume(url: str, target: Path, partial: Path, progress: Progress) -> None:
    """Download ``url`` to ``target``, starting from where the last attempt stopped.

    The bytes received so far stay in the file ``partial``; ``<name>.json`` beside it notes the
    version of the file. The next attempt asks the server for the rest only, and only if the file on
    the server is still the same. ``progress`` is called with the number of bytes received and the
    total, ``None`` if not known.
    """
    requests = require("requests", extra="data", purpose="downloading data")
    urllib3 = require("urllib3", extra="data", purpose="downloading data")
    lost = (requests.RequestException, urllib3.exceptions.HTTPError, _CutError)
    notes = partial.with_name(partial.name + ".json")
    failures, furthest = 0, size_of(partial)
    with requests.Session() as session:
        while True:
            try:
                _attempt(session, url, partial, notes, progress)
                break
            except lost as error:
                # Only new bytes count as progress, or a server that cannot resume and always cuts
                # the connection would keep us here for ever.
                kept = size_of(partial)
                failures = 1 if kept > furthest else failures + 1
                furthest = max(furthest, kept)
                if failures >= TRIES:
                    cause = f"no connection, or it broke {TRIES} times ({_reason(error)})"
                    again = f"; {kept:,} bytes are kept, run it again to go on" if kept else ""
                    raise DataError(f"{url}: {cause}{again}") from error
                time.sleep(PAUSE * 2 ** (failures - 1))
    os.replace(partial, target)
    delete(notes)


def _attempt(session: Any, url: str, partial: Path, notes: Path, progress: Progress) -> None:
    """Ask the server once for the rest of a file."""
    have, noted = size_of(partial), _read_notes(notes, url)
    if have and noted.get("total") == have:
        return
    headers = {"Accept-Encoding": "identity"}  # a compressed copy could not be resumed
    if have:
        headers["Range"] = f"bytes={have}-"
        if noted.get("validator"):
            headers["If-Range"] = noted["validator"]
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        status = response.status_code
        answer = f"the server answered {status} {response.reason}"
        if status in _PASSING:
            raise _CutError(answer)
        if status == 416:  # more is here than there: another file
            delete(partial, notes)
            raise _CutError("the server has a shorter file than what was kept")
        if status >= 400:
            raise DataError(f"{url}: {answer}")
        start, total = _range(response)
        changed = noted.get("total") not in (None, total)
        if status == 206 and (changed or start != have):
            delete(partial, notes)
            raise _CutError("the server sent a part of something else")
        if status != 206:
            have = 0
        tag = response.headers.get("ETag", "W/")  # a weak one cannot be used with If-Range
        version = response.headers.get("Last-Modified") if tag.startswith("W/") else tag
        notes.write_text(json.dumps({"url": url, "validator": version, "total": total}))
        progress(have, total)
        with partial.open("ab" if have else "wb") as file:
            # Undecoded: some servers call a .gz file an encoding, and it must stay one.
            for piece in response.raw.stream(_PIECE, decode_content=False):
                file.write(piece)
                have += len(piece)
                progress(have, total)
    if total is not None and have != total:
        raise _CutError(f"{have} of {total} bytes came")


def _read_notes(path: Path, url: str) -> dict[str, Any]:
    try:
        notes = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) and notes.get("url") == url else {}


class _CutError(Exception):
    """The connection ended too early; another attempt may resume."""


def _range(response: Any) -> tuple[int, int | None]:
    """First byte of the response, -1 if unknown, and size of the whole file, None if unknown."""
    part, _, size = response.headers.get("Content-Range", "").rpartition("/")
    start = part.removeprefix("bytes ").split("-")[0]
    size = size or response.headers.get("Content-Length", "")
    return int(start) if start.isdecimal() else -1, int(size) if size.isdecimal() else None


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words, without the addresses of objects."""
    for inner in (getattr(error, "reason", None), *error.args[:1]):
        if isinstance(inner, BaseException):
            return _reason(inner)
    return re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__


def unpack(archive: Path, folder: Path, strip: int = 0) -> None:
    """Unpack a tar file, compressed or not, or a zip file into a folder, and nowhere else.

    ``strip`` leading folders are dropped from every path. An archive that holds links, devices or
    paths that lead out of the folder is refused before anything is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, strip)
        else:
            _untar(archive, folder, strip)
    except (*_DAMAGED, RuntimeError) as error:
        raise DataError(f"{archive}: not an archive that can be unpacked ({error})") from error


def _untar(archive: Path, folder: Path, strip: int) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _inside(archive, member.name)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{archive}: refused, {member.name!r} is a link or a device")
        wanted = [
            member.replace(name=name)
            for member in members
            if member.isfile() and (name := _stripped(member.name, strip))
        ]
        # Python before 3.11.4 has no filter; links, devices and ways out are refused above already.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, members=wanted, **safe)


def _unzip(archive: Path, folder: Path, strip: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            # Zip files made on Windows may have backslashes, which are names elsewhere.
            _inside(archive, member.filename.replace("\\", "/"))
        needed, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
        if free < needed:
            raise DataError(f"{folder}: unpacking needs {needed:,} bytes, {free:,} are free")
        for member in members:
            if not member.is_dir() and (name := _stripped(member.filename, strip)):
                member.filename = name
                packed.extract(member, folder)


def _inside(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    drive = bool(path.parts) and path.parts[0].endswith(":")
    if path.is_absolute() or ".." in path.parts or drive:
        raise DataError(f"{archive}: refused, {name!r} leads out of the folder")


def _stripped(name: str, strip: int) -> str:
    return "/".join(PurePosixPath(name).parts[strip:])


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if it is not there."""
    return path.stat().st_size if path.exists() else 0


def delete(*paths: Path) -> None:
    """Delete files, if they are there."""
    for path in paths:
        path.unlink(missing_ok=True)
