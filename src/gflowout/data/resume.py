"""A downloader for pooch that goes on where it stopped.

What has come is kept in a partial file. The next attempt asks the server for the rest only, and
only if the file is still the same there. Knows nothing of data sets or checksums.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gflowout.core.optional import require
from gflowout.data.errors import DataError

TRIES = 4  # attempts in a row that bring nothing new
PAUSE = 0.5  # seconds before the second attempt; doubles with every further one
TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces
_PIECE = 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be better next time

Progress = Callable[[int, int | None], None]


class Resuming:
    """Fetch a URL into a file by way of a partial file, as pooch's downloaders do.

    Args:
        partial: Where to keep what has come so far. Beside it, ``<name>.json`` notes which version
            of the file that was.
        progress: Called with the bytes that are there, and of how many, or ``None`` if the server
            does not say.
    """

    def __init__(self, partial: Path, progress: Progress | None = None) -> None:
        self.partial = partial
        self._notes = partial.with_name(partial.name + ".json")
        self._progress = progress or (lambda done, total: None)

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Download ``url``, then move it to ``output_file``.

        Raises:
            DataError: If the server refuses, or the connection is lost again and again. What has
                come stays in the partial file.
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
                    # Only ground never covered counts, or a server that cannot resume and
                    # always cuts would keep us here for ever.
                    failures = 1 if self._have() > furthest else failures + 1
                    furthest = max(furthest, self._have())
                    if failures >= TRIES:
                        raise DataError(self._gave_up(url, error)) from error
                    time.sleep(PAUSE * 2 ** (failures - 1))
        os.replace(self.partial, output_file)
        self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete what has come."""
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
            self._refused(url, response)
            if response.status_code == 416:  # more is here than there: another file
                self.discard()
                raise _CutError("the server has a shorter file than what was kept")
            total = _total(response)
            other = notes.get("total") not in (None, total)
            if response.status_code == 206 and (other or _start(response) != have):
                self.discard()
                raise _CutError("the server sent a part of something else")
            if response.status_code != 206:
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

    def _refused(self, url: str, response: Any) -> None:
        status = response.status_code
        if status in _PASSING:
            raise _CutError(f"the server answered {status} {response.reason}")
        if status >= 400 and status != 416:
            raise DataError(f"{url}: the server answered {status} {response.reason}")

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
    """The connection ended too early; another attempt may go on."""


def _total(response: Any) -> int | None:
    """Size of the whole file, of which the answer may be a part."""
    part = response.headers.get("Content-Range", "")
    size = part.rpartition("/")[2] if part else response.headers.get("Content-Length", "")
    return int(size) if size.isdecimal() else None


def _start(response: Any) -> int:
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    return int(first) if first.isdecimal() else -1


def _validator(response: Any) -> str | None:
    """What tells one version of the file from another; weak tags may not be asked for."""
    tag = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return str(tag)
    changed = response.headers.get("Last-Modified")
    return str(changed) if changed else None


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words, without the addresses of objects."""
    seen = error
    while (inner := getattr(seen, "reason", None)) is not None and isinstance(inner, BaseException):
        seen = inner
    if seen.args and isinstance(seen.args[0], BaseException):
        return _reason(seen.args[0])
    return re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(seen)) or type(seen).__name__
