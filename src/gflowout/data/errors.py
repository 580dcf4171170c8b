"""What can be wrong with data on disk. Every message starts with the path and says what to do."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """A file that is damaged, or is not what its name says."""


class MissingDataError(DataError, FileNotFoundError):
    """A file or folder that is not there."""


def read_bytes(path: Path) -> bytes:
    """Content of a file.

    Raises:
        MissingDataError: If it is not there.
        DataError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingDataError(f"{path}: no such file") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """What to raise for a file or folder that the system does not let us read."""
    return DataError(f"{path}: cannot be read ({error.strerror}); check its permissions")
