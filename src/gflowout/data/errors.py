"""What can be wrong with data on disk. Every message starts with the path and says what to do."""

from __future__ import annotations


class DataError(ValueError):
    """A file that is damaged, or is not what its name says."""


class MissingDataError(DataError, FileNotFoundError):
    """A file or folder that is not there."""
