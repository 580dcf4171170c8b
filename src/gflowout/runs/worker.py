"""What a process of its own does for one run.

It talks with whoever started it through one socket, a JSON text per line. First it reads the
task; then it tells its progress, and at last its record. It ends at once when the other side does,
so that no run outlives its study.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from gflowout.runs.work import Task, execute

_PAUSE = 0.1  # seconds between two reports of progress


def main(channel: socket.socket) -> None:
    """Do the task that comes through the channel."""
    faulthandler.disable()  # in a fork it may be on already, its handlers replaced by others
    faulthandler.enable()
    channel.set_inheritable(False)
    reader = channel.makefile("r", encoding="utf-8")
    order = json.loads(reader.readline())
    threading.Thread(target=_watch, args=[channel], daemon=True).start()
    sys.path[:] = order["path"]
    last = 0.0

    def progress(step: int, steps: int, message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            _send(channel, {"progress": [int(step), int(steps), str(message)]})

    _send(channel, {"record": execute(Task.from_dict(order["task"]), progress)})


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _watch(channel: socket.socket) -> None:
    try:
        while channel.recv(1024):
            pass
    except OSError:
        pass
    finally:
        # The whole group: what this run has started ends with it.
        os.killpg(0, signal.SIGKILL)
