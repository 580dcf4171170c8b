"""Fetching one file: resumed download, published lists of checksums, unpacking of archives."""

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
from gflowout.data.catalog import Download
from gflowout.data.errors import DataError

TRIES = 4  # attempts in a row that bring nothing new
PAUSE = 0.5  # seconds before the second attempt; doubles with every further one
TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces
_PIECE = 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be better next time

_SUM = re.compile(r"\\?([0-9a-fA-F]{64})[ \t]+\*?(.+)")  # a line that sha256sum wrote
# What a damaged archive can raise; zipfile raises a plain RuntimeError for a file with a password.
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
)

Progress = Callable[[int, int | None], None]


class Resuming:
    """A downloader that resumes where it stopped.

    The bytes received so far stay in a partial file. The next attempt asks the server for the rest
    only, and only if the file on the server is still the same.

    Args:
        partial: The partial file. Beside it, ``<name>.json`` notes the version of the file.
        progress: Called with the number of bytes received and the total, ``None`` if not known.
    """

    def __init__(self, partial: Path, progress: Progress | None = None) -> None:
        self.partial = partial
        self._notes = partial.with_name(partial.name + ".json")
        self._progress = progress or (lambda done, total: None)

    def __call__(self, url: str, target: Path) -> None:
        """Download ``url``, then move the file to ``target``.

        Raises:
            DataError: If the server refuses, or the connection is lost again and again. The partial
                file stays.
        """
        requests = require("requests", extra="data", purpose="downloading data")
        urllib3 = require("urllib3", extra="data", purpose="downloading data")
        lost = (requests.RequestException, urllib3.exceptions.HTTPError, _CutError)
        failures, furthest = 0, self._have()
        with requests.Session() as session:
            while True:
                try:
                    self._attempt(session, url)
                    break
                except lost as error:
                    # Only new bytes count as progress, or a server that cannot resume and
                    # always cuts the connection would keep us here for ever.
                    failures = 1 if self._have() > furthest else failures + 1
                    furthest = max(furthest, self._have())
                    if failures >= TRIES:
                        raise DataError(self._gave_up(url, error)) from error
                    time.sleep(PAUSE * 2 ** (failures - 1))
        os.replace(self.partial, target)
        self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the partial file and its notes."""
        self.partial.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def _attempt(self, session: Any, url: str) -> None:
        have, notes = self._have(), self._noted(url)
        if have and notes.get("total") == have:
            return
        headers = {"Accept-Encoding": "identity"}  # a compressed copy could not be resumed
        if have:
            headers["Range"] = f"bytes={have}-"
            if notes.get("validator"):
                headers["If-Range"] = notes["validator"]
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            status = response.status_code
            answer = f"the server answered {status} {response.reason}"
            if status in _PASSING:
                raise _CutError(answer)
            if status == 416:  # more is here than there: another file
                self.discard()
                raise _CutError("the server has a shorter file than what was kept")
            if status >= 400:
                raise DataError(f"{url}: {answer}")
            total = _total(response)
            changed = notes.get("total") not in (None, total)
            if status == 206 and (changed or _start(response) != have):
                self.discard()
                raise _CutError("the server sent a part of something else")
            if status != 206:
                have = 0
            self._note(url, _validator(response), total)
            self._progress(have, total)
            with self.partial.open("ab" if have else "wb") as file:
                # Undecoded: some servers call a .gz file an encoding, and it must stay one.
                for piece in response.raw.stream(_PIECE, decode_content=False):
                    file.write(piece)
                    have += len(piece)
                    self._progress(have, total)
        if total is not None and have != total:
            raise _CutError(f"{have} of {total} bytes came")

    def _gave_up(self, url: str, error: Exception) -> str:
        kept = self._have()
        again = f"; {kept:,} bytes are kept, run it again to go on" if kept else ""
        return f"{url}: no connection, or it broke {TRIES} times ({_reason(error)}){again}"

    def _have(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def _noted(self, url: str) -> dict[str, Any]:
        try:
            notes = json.loads(self._notes.read_text())
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) and notes.get("url") == url else {}

    def _note(self, url: str, validator: str | None, total: int | None) -> None:
        notes = {"url": url, "validator": validator, "total": total}
        self._notes.write_text(json.dumps(notes))


class _CutError(Exception):
    """The connection ended too early; another attempt may resume."""


def _total(response: Any) -> int | None:
    """Size of the whole file, of which the response may be a part."""
    part = response.headers.get("Content-Range", "")
    size = part.rpartition("/")[2] if part else response.headers.get("Content-Length", "")
    return int(size) if size.isdecimal() else None


def _start(response: Any) -> int:
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    return int(first) if first.isdecimal() else -1


def _validator(response: Any) -> str | None:
    """What identifies a version of the file; weak tags cannot be used with ``If-Range``."""
    tag = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return str(tag)
    changed = response.headers.get("Last-Modified")
    return str(changed) if changed else None


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words, without the addresses of objects."""
    for inner in (getattr(error, "reason", None), *error.args[:1]):
        if isinstance(inner, BaseException):
            return _reason(inner)
    return re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__


def published_hash(download: Download) -> str:
    """The checksum of a download, ``"md5:..."`` or ``"sha256:..."``, fetched if it is in a list."""
    if not download.checksum.startswith("sums:"):
        return download.checksum
    requests = require("requests", extra="data", purpose="downloading data")
    url = download.checksum.removeprefix("sums:")
    try:
        response = requests.get(url, timeout=TIMEOUT)
    except requests.RequestException as error:
        raise DataError(f"{url}: no connection, so no checksums") from error
    if not response.ok:
        raise DataError(f"{url}: the server answered {response.status_code} {response.reason}")
    sums = parse_sums(response.text)
    path = download.url.removeprefix(url.rpartition("/")[0] + "/")
    if path not in sums:
        raise DataError(f"{url}: does not list {path}")
    return f"sha256:{sums[path]}"


def parse_sums(text: str) -> dict[str, str]:
    """SHA-256 by path, from a list that ``sha256sum`` wrote.

    Examples:
        >>> parse_sums("0" * 64 + "  ./tables/stays.csv.gz")["tables/stays.csv.gz"][:4]
        '0000'
    """
    matches = (_SUM.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2].removeprefix("./"): match[1].lower() for match in matches if match}


def unpack(archive: Path, folder: Path, strip: int = 0) -> None:
    """Unpack a tar file, compressed or not, or a zip file into a folder, and nowhere else.

    Args:
        archive: The file; its content decides which kind it is.
        folder: Target; created if it does not exist.
        strip: Number of leading folders to drop from every path.

    Raises:
        DataError: If the archive is damaged, or holds links, devices or paths that lead out of the
            folder. It is refused before anything is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, strip)
        else:
            _untar(archive, folder, strip)
    except _BROKEN as error:
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
            name = _stripped(member.filename, strip)
            if member.is_dir() or not name:
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)


def _inside(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    drive = bool(path.parts) and path.parts[0].endswith(":")
    if path.is_absolute() or ".." in path.parts or drive:
        raise DataError(f"{archive}: refused, {name!r} leads out of the folder")


def _stripped(name: str, strip: int) -> str:
    return "/".join(PurePosixPath(name).parts[strip:])
