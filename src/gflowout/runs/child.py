"""A run in a process of its own: start it, watch it, end it; and what that process does.

The process may crash, be killed, run too long or use too much memory: in each case there is a
record that says so. The two sides talk through one socket: the task goes to the process; progress
and at last the record come back, a JSON text per line. The process ends at once when the other side
does, so that no run outlives its study.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.runs import records
from gflowout.runs.work import Report, Task, execute

LOG = "output.log"  # file in a run's folder with what its last attempt printed
_GRACE = 10.0  # seconds from a worker's record to its end
_REPORTS = 0.1  # seconds between two reports of progress
_TAIL = 64_000  # bytes of its output that a record of failure keeps; a crash lists all modules
_CHANNEL = 3  # number of the socket in a forked process
_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Time and memory (GiB, of all its processes) that an attempt may take; ``None``: no limit."""

    seconds: float | None = None
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        if self.memory_gb is not None and not Path("/proc/self/statm").exists():
            raise ValueError("memory_gb must be None on this system: it needs /proc, as on Linux")


class Child:
    """One attempt at a run, in a process of its own; ``start`` as in :class:`~.engines.Pool`.

    ``variables`` are added to its environment. It starts in the working directory ``cwd`` if there
    is one of this name on this machine, else in that of this process.
    """

    def __init__(
        self,
        task: Task,
        limits: Limits,
        start: str = "spawn",
        variables: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.task, self.limits = task, limits
        self.channel, far = socket.socketpair()
        task.folder.mkdir(parents=True, exist_ok=True)
        self._started, self._clock = records.now(), time.monotonic()
        self._unread, self._recorded, self._weighed = b"", 0.0, 0.0
        self._record: dict[str, Any] | None = None
        self.closed = False  # whether the process has closed its side of the channel
        with far, (task.folder / LOG).open("wb") as log:
            launch = _fork if start == "fork" else _spawn
            self._process: _Forked | subprocess.Popen[bytes]
            variables = {**dict.fromkeys(_THREADS, str(task.threads)), **(variables or {})}
            cwd = cwd if cwd is not None and os.path.isdir(cwd) else None
            self._process = launch(far, log.fileno(), variables, cwd)
        path = [os.path.abspath(folder) for folder in sys.path]
        with contextlib.suppress(OSError):  # it may be dead already, which poll() will see
            self.channel.sendall(pickle.dumps((path, task)))
        self.channel.setblocking(False)

    def poll(self, progress: Report) -> dict[str, Any] | None:
        """Read news without waiting; returns the record once the process has ended."""
        code = self._process.poll()
        self._listen(progress)
        now = time.monotonic()
        if self._record is not None:
            # After its record a worker has nothing left to do but to end.
            if code is None and now - self._recorded < _GRACE:
                return None
            return self._close(self._record)
        if code is not None:
            return self._fail("died", _reason(code))
        seconds, memory = self.limits.seconds, self.limits.memory_gb
        if seconds is not None and now - self._clock > seconds:
            return self._fail("time limit", f"killed after {seconds:g} seconds")
        if memory is not None and now - self._weighed > 0.5:
            self._weighed = now
            used = _memory(self._process.pid)
            if used > memory:
                message = f"killed: used {used:.2f} GiB of memory, the limit is {memory:g}"
                return self._fail("memory limit", message)
        return None

    @property
    def ending(self) -> bool:
        """Whether it has sent its record, or cannot send any more."""
        return self.closed or self._record is not None

    def kill(self) -> None:
        """End the process and all it has started; no record."""
        self._close(None)

    def _listen(self, progress: Report) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while block := self.channel.recv(1 << 20):
                    self._unread += block
                self.closed = True
            except ConnectionError:
                self.closed = True
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "record" in message:
                self._record, self._recorded = message["record"], time.monotonic()
            else:
                progress(*message["progress"])

    def _close(self, record: dict[str, Any] | None) -> dict[str, Any] | None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.poll() is None:
            # A forked process has no group of its own for its first moment.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            while self._process.poll() is None:
                time.sleep(0.005)
        self.channel.close()
        if record is not None and record["error"] is not None:
            record["error"]["output"] = self._output()
        return record

    def _fail(self, kind: str, message: str) -> dict[str, Any] | None:
        seconds, error = time.monotonic() - self._clock, records.error(kind, message)
        return self._close(self.task.record(self._started, seconds, error=error))

    def _output(self) -> str | None:
        try:
            with (self.task.folder / LOG).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _TAIL))
                return log.read().decode(errors="replace")
        except OSError:
            return None


def supervise(
    task: Task,
    limits: Limits,
    progress: Report,
    variables: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> dict[str, Any]:
    """Do one run in a process of its own, as :class:`Child` has it, and wait for its record."""
    child = Child(task, limits, variables=variables, cwd=cwd)
    try:
        while (record := child.poll(progress)) is None:
            time.sleep(0.1)
        return record
    except BaseException:
        child.kill()
        raise


def _spawn(
    far: socket.socket, log: int, variables: Mapping[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    start = f"import socket, {__name__} as child\nchild.main(socket.socket(fileno={far.fileno()}))"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", start],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[far.fileno()],
        start_new_session=True,
        env={**os.environ, **variables},
        cwd=cwd,
    )


@dataclass
class _Forked:
    """What is used of ``subprocess.Popen``, for a forked process."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def _fork(far: socket.socket, log: int, variables: Mapping[str, str], cwd: str | None) -> _Forked:
    pid = os.fork()
    if pid:
        return _Forked(pid)
    code = 1
    try:
        _become(far, log)
        os.environ.update(variables)
        os.chdir(cwd or ".")
        main(socket.socket(fileno=_CHANNEL))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _become(far: socket.socket, log: int) -> None:
    """Let go of what belongs to the process this one is a copy of.

    Above all its sockets and locks: they must end with it, and a copy would keep them alive.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing, channel, output = os.open(os.devnull, os.O_RDONLY), far.detach(), os.dup(log)
    sources = [nothing, output, output, channel]  # of the numbers 0, 1, 2 and _CHANNEL
    # First to numbers above all in use, so that no copy overwrites one that is still to be copied.
    above = max(*sources, _CHANNEL) + 1
    for number, source in enumerate(sources):
        os.dup2(source, above + number)
    for number in range(len(sources)):
        os.dup2(above + number, number)
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number > _CHANNEL:
            with contextlib.suppress(OSError):
                os.close(number)
    # Python's own streams may be something else, as they are under a test runner.
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def main(channel: socket.socket) -> None:
    """In the process of the run: do the task that comes through the channel."""
    faulthandler.disable()  # in a fork it may be on already, its handlers replaced by others
    faulthandler.enable()
    channel.set_inheritable(False)
    sys.path[:], task = pickle.load(channel.makefile("rb"))
    threading.Thread(target=_end_with_driver, args=[channel], daemon=True).start()
    last = 0.0

    def progress(step: int, steps: int, message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORTS:
            last = time.monotonic()
            _send(channel, {"progress": [int(step), int(steps), str(message)]})

    _send(channel, {"record": execute(task, progress)})


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _end_with_driver(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while channel.recv(1024):
            pass
    os.killpg(0, signal.SIGKILL)  # the whole group: what this run has started ends with it


def _reason(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}, without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process was killed by {name}"


def _memory(group: int) -> float:
    """Resident memory of a group of processes in GiB."""
    pages = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # After the name, which may hold anything, in brackets: state, parent, group, ...
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
