"""One model in many threads at once; a longer run is ``python tools/threads.py``."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gflowout.core.lazy import cached_property

THREADS = Path(__file__).parents[2] / "tools" / "threads.py"


@pytest.mark.long
def test_threads_predict_train_copy_pickle_save_and_fork() -> None:
    command = [sys.executable, THREADS, "--seconds", "5", "--threads", "16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cached_property_holds_no_lock() -> None:
    """A lock of all objects of a class, as Python 3.11 has it, stays locked in a fork."""
    others_are_free = threading.Event()

    class Slow:
        def __init__(self, waits: bool) -> None:
            self.waits, self.times = waits, 0

        @cached_property
        def value(self) -> bool:
            self.times += 1
            return others_are_free.wait(60) if self.waits else True

    slow, quick, results = Slow(True), Slow(False), []
    thread = threading.Thread(target=lambda: results.append(slow.value))
    thread.start()
    while not slow.times:  # it computes its value now
        pass
    assert quick.value
    others_are_free.set()
    thread.join()
    assert results == [True]
    assert (quick.value, quick.times) == (True, 1)
