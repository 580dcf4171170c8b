"""Locks that end with their process, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_RETRY = 1.0
"""Seconds for which a lock is tried again: a fork of a process that was just killed still holds its
locks until it has closed the files it inherited."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class BusyError(RuntimeError):
    """Another process holds the lock.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold(Path(folder) / "lock"):
        ...     with contextlib.suppress(BusyError), hold(Path(folder) / "lock"):
        ...         print("never: it is locked already")
    """


@contextlib.contextmanager
def hold(path: Path, *, wait: bool = False, doing: str = "locked") -> Iterator[None]:
    """Hold the lock of a file, which is made if missing and never removed.

    If another process holds it, wait, or raise a :class:`BusyError` that says what it is ``doing``.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            _take(handle, wait)
        except BlockingIOError:
            owner = os.pread(handle, 100, 0).decode(errors="replace").strip()
            raise BusyError(f"{path.parent}: {doing} ({owner or 'unknown'})") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            message = "this file system has no locks; let only one process work here"
            warnings.warn(f"{path.parent}: {message}", RuntimeWarning, stacklevel=3)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, wait: bool) -> None:
    import fcntl  # not on Windows, where the rest of the package must still import

    end = time.monotonic() + _RETRY
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
