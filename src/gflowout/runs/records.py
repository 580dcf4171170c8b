"""Records of runs: one file each, written once, whole or not at all.

``<id>.json`` is the record of a run that is done, ``<id>.failed-<attempt>.json`` of an attempt
that failed. A record has a checksum over all the rest of it, so that damage is seen. Several
processes may write into one folder: of two records with one name the first stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.atomic_io import sync_folder
from gflowout.core.optional import require
from gflowout.runs.spec import canonical, pack, plain, unpack

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1  # number of the format; a change that old readers would misread raises it
DONE, FAILED = "done", "failed"
_NAME = re.compile(r"(?P<id>.+?)(?:\.failed-(?P<attempt>[1-9][0-9]*))?\.json")
_HALF = ".half-"  # start of the names of files still being written
_OLD = 60.0  # seconds after which such a file has no writer any more
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class RecordWarning(UserWarning):
    """Files among the records that are not, or no longer, records.

    Examples:
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", RecordWarning)  # stop at the first damaged record
    """


def error(kind: str, message: str, traceback: str | None = None) -> dict[str, Any]:
    """Why an attempt failed, as a record has it; the end of its output is added later."""
    return {"kind": kind, "message": message, "traceback": traceback, "output": None}


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def filename(record: Mapping[str, Any]) -> str:
    """Name of the file of a record."""
    failed = record["status"] == FAILED
    return f"{record['id']}.failed-{record['attempt']}.json" if failed else f"{record['id']}.json"


def write(folder: str | Path, record: Mapping[str, Any]) -> bool:
    """Add a record to a folder, which is made if missing; it is on disk when this returns.

    Returns ``False`` if there is one of that name already, which stays.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / filename(record)
    half = folder / f"{_HALF}{secrets.token_hex(8)}"
    try:
        with half.open("x", encoding="utf-8") as stream:
            stream.write(to_text(record))
            stream.flush()
            os.fsync(stream.fileno())
        written = _publish(half, path)
    finally:
        half.unlink(missing_ok=True)
    sync_folder(folder)
    return written


def to_text(record: Mapping[str, Any]) -> str:
    """The text of a record: JSON, one line per key, the checksum last."""
    body, nonfinite = pack(plain("record", record))
    body["nonfinite"] = nonfinite
    body["sha256"] = _checksum(body)
    lines = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in body.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_text(text: str) -> dict[str, Any]:
    """The record of a text; a ``ValueError`` if it is not a complete one of this format."""
    body = json.loads(text)
    if not isinstance(body, dict) or "sha256" not in body or "format" not in body:
        raise ValueError("not a record")
    if body.pop("sha256") != _checksum(body):
        raise ValueError("checksum is wrong")
    if body["format"] != FORMAT:
        raise ValueError(f"format {body['format']} is not known here, only {FORMAT}")
    record: dict[str, Any] = unpack(body, body.pop("nonfinite"))
    return record


def read(folder: str | Path, status: str | None = None) -> list[dict[str, Any]]:
    """All records of a folder, in the order of their file names.

    JSON files that are half-written, damaged or something else are left out, with one warning
    that names them. Files of other kinds and subfolders are not looked at.

    Args:
        folder: Where records are.
        status: ``"done"`` or ``"failed"`` for these only.

    Raises:
        FileNotFoundError: If there is no such folder.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     read(folder)
        []
    """
    if status is not None:
        checks.choice("status", status, (DONE, FAILED))
    must_be_folder(folder)
    records, skipped = [], []
    for path in _files(folder):
        if status is None or (".failed-" in path.name) == (status == FAILED):
            record, fault = _load(path)
            if record is not None:
                records.append(record)
            else:
                skipped.append(f"{path.name} ({fault})")
    if skipped:
        message = f"left out {len(skipped)} files that are not whole records: {', '.join(skipped)}"
        warnings.warn(f"{folder}: {message}", RecordWarning, stacklevel=2)
    return records


def must_be_folder(folder: str | Path) -> None:
    """Raise ``FileNotFoundError`` if there is no such folder, or a file in its place."""
    if not Path(folder).is_dir():
        fault = "not a folder, but a file" if Path(folder).exists() else "no such folder"
        raise FileNotFoundError(f"{folder}: {fault}")


def damaged(folder: str | Path) -> list[str]:
    """Names of the JSON files of a folder that are not whole records."""
    return [path.name for path in _files(folder) if _load(path)[0] is None]


def frame(folder: str | Path, status: str | None = None) -> pd.DataFrame:
    """All records of a folder as a table, a row each.

    What is nested has columns such as ``metrics.accuracy`` and ``options.rate``; ``epochs`` is a
    column of lists.

    Args:
        folder: Where records are.
        status: ``"done"`` or ``"failed"`` for these only.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(frame(folder, "done"))
        0
    """
    pandas = require("pandas", extra="studies", purpose="a table of records")
    table: pd.DataFrame = pandas.json_normalize(read(folder, status))
    return table


def finished(folder: str | Path) -> set[str]:
    """Ids of the runs that have a good record of success."""
    return {record["id"] for record in read(folder, DONE)} if Path(folder).is_dir() else set()


def failures(folder: str | Path) -> dict[str, int]:
    """For each run with records of failure the number of its last attempt."""
    attempts: dict[str, int] = {}
    for path in _files(folder) if Path(folder).is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name and name["attempt"]:
            attempts[name["id"]] = max(attempts.get(name["id"], 0), int(name["attempt"]))
    return attempts


def clean(folder: str | Path) -> None:
    """Remove half-written files of processes that were killed."""
    for half in Path(folder).glob(f"{_HALF}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - half.stat().st_mtime > _OLD:
                half.unlink()


def _files(folder: str | Path) -> Iterator[Path]:
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".json" and not path.name.startswith(".") and path.is_file():
            yield path


def _load(path: Path) -> tuple[dict[str, Any] | None, str]:
    """A record, or what is wrong with its file."""
    try:
        record = from_text(path.read_text(encoding="utf-8"))
        if filename(record) != path.name:
            return None, f"is the record {filename(record)} under another name"
    except json.JSONDecodeError:
        return None, "half-written, or not JSON"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, str(error)
    return record, ""


def _publish(half: Path, path: Path) -> bool:
    """Give a whole file its name, unless that is taken by a good record."""
    try:
        os.link(half, path)
        return True
    except FileExistsError:
        pass
    except OSError as error:
        # Some file systems have no links. The lock of the study keeps others away there.
        if error.errno not in _NO_LINKS:
            raise
    if path.exists():
        if _load(path)[0] is not None:
            return False
        aside = path.with_name(f"{path.name}.damaged")
        shutil.copyfile(path, aside)
        message = f"{path}: damaged; kept as {aside.name} and written anew"
        warnings.warn(message, RecordWarning, stacklevel=3)
    half.replace(path)
    return True


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body).encode()).hexdigest()
