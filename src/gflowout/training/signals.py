"""Ctrl-C and SIGTERM during training: an exception, raised where the run can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE = 5.0  # after SIGTERM, seconds that the epoch may need to its end; otherwise it is given up


class TerminatedError(KeyboardInterrupt):
    """SIGTERM ended the training; all complete epochs are in the folder of the run.

    A ``KeyboardInterrupt``, so that ``except Exception`` does not swallow it.

    Examples:
        >>> try:
        ...     raise TerminatedError("ended by SIGTERM")
        ... except KeyboardInterrupt as error:
        ...     print(error)
        ended by SIGTERM
    """


class Termination:
    """Counts SIGTERM instead of ending the process, and decides when to end the run."""

    def __init__(self) -> None:
        self.signals = 0

    def __call__(self, number: int, frame: Any) -> None:
        """Handle the signal."""
        self.signals += 1

    def listen(self) -> None:
        """Replace the handler of Lightning, which does not wait for the end of the epoch."""
        if _in_main_thread():
            signal.signal(signal.SIGTERM, self)

    def after_batch(self, seconds_left: float) -> None:
        """End the run if the epoch takes long to its end, or at the second signal."""
        if self.signals > 1 or (self.signals and seconds_left > GRACE):
            raise TerminatedError

    def after_checkpoint(self) -> None:
        """End the run if there was a signal."""
        if self.signals:
            raise TerminatedError


@contextmanager
def interruptible(saved: str) -> Iterator[Termination]:
    """Raise ``KeyboardInterrupt`` after Ctrl-C and ``TerminatedError`` after SIGTERM.

    Lightning ends the process after both, and ignores Ctrl-C from then on: undo this. A handler of
    SIGTERM that was there before is called when training has ended. ``saved`` tells the user what
    is saved.
    """
    termination = Termination()
    numbers = (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ()
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    termination.listen()
    try:
        yield termination
    except SystemExit as error:
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        terminated = termination.signals or isinstance(error, SIGTERMException)
        if not terminated and isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if not terminated:
            raise
        termination.signals += 1  # of several processes, one may know from another
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if termination.signals:
        earlier = before.get(signal.SIGTERM)
        if callable(earlier):
            earlier(signal.SIGTERM, None)
        raise TerminatedError(f"training was ended by SIGTERM; {saved}")


@contextmanager
def terminable() -> Iterator[None]:
    """Raise ``TerminatedError`` at once after SIGTERM; while ``fit`` trains, it decides when."""
    if not _in_main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
