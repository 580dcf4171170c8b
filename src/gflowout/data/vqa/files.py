"""Reading JSON files of questions: every way they can be wrong is named with the path.

Knows nothing of what the files mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gflowout.data.errors import DataError, MissingDataError

AGAIN = "the file is damaged or of another format: get it again"


def read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        hook: What to make of each object as it is read.

    Raises:
        MissingDataError: If it is not there.
        DataError: If it is cut off or no JSON.
    """
    try:
        with path.open(encoding="utf-8-sig") as stream:
            return json.load(stream, object_hook=hook)
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{path}: no such file; it belongs to the data set: get it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); {AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check its permissions") from error


def entries(path: Path, content: Any, key: str | None = None) -> list[Any]:
    """Return the list in a file's content, under ``key`` if there is one."""
    found = content
    if key is not None:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"{path}: has no {key!r}; {AGAIN}")
        found = content[key]
    if not isinstance(found, list) or not found:
        what = "entries" if key is None else repr(key)
        raise DataError(f"{path}: {what} must be a list that is not empty; {AGAIN}")
    return found


def value(path: Path, position: int, record: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """Return one value of an entry, of the kind that it must have."""
    found = record.get(key) if isinstance(record, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        listed = " or ".join(each.__name__ for each in kinds)
        raise DataError(
            f"{path}: entry {position} must have {key!r} of type {listed}, got {found!r}; {AGAIN}"
        )
    return found
