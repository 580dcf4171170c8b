"""Runs as tasks of a Ray cluster, on this machine or on many.

On its node each run has a process of its own, watched there just as the pool does it. Its record
comes back to the driver. Progress goes through an actor that keeps only the latest report of each
run, which the driver asks for now and then: no run waits for it.

Runs have the driver's variables that gflowout and PyTorch read (:data:`PASSED_ON`), such as
``$GFLOWOUT_DATA``, and its working directory where the node has a folder of that name.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.runs import records
from gflowout.runs.child import Limits, supervise
from gflowout.runs.devices import VISIBLE, check_gpus
from gflowout.runs.engines import Ended, Engine, Event, Listener, Progress, Started
from gflowout.runs.work import Task, surroundings

_POLL = 0.2  # seconds to wait for results before the next look at the progress
_REPORTS = 1.0  # seconds between two reports of a run
_PATIENCE = 5.0  # seconds for runs to stop when asked to
_MOST = 2000  # tasks handed to Ray at once; the others wait here
PASSED_ON = ("GFLOWOUT_", "HF_", "TORCH_", "PYTORCH_", "CUBLAS_WORKSPACE_CONFIG")
"""Beginnings of the names of variables that runs take from the driver, where it has them."""
T = TypeVar("T")


class Ray(Engine):
    """Runs as tasks of a Ray cluster.

    A run whose node dies is done again on another.

    Args:
        address: ``"auto"`` for the cluster this machine belongs to, ``"host:port"`` for one it
            can join; ``None`` for ``$RAY_ADDRESS`` or else a cluster of this machine alone, which
            ends with the study. Where this process is connected already, that is used.
        jobs: Cores of a cluster of this machine alone; by default all.
        cpus: CPUs per run; a run has as many threads, at least one.
        gpus: GPUs per run: a whole number, or a part of one that several runs share; by default one
            if the cluster has GPUs. A run sees its own ones only; 0 hides them.
        lost: How often a run is done again because its node or its Ray worker died, apart from
            the retries of runs that failed.
        runtime_env: Environment of the runs, as Ray takes it (packages, variables). A
            ``"working_dir"`` is copied to every node, and runs start in it instead of the folder
            that has the name of the driver's. Where this process is connected already, Ray takes
            no folder here: name it in ``ray.init``.

    Examples:
        >>> Ray("auto", cpus=2).cpus
        2.0
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        cpus: float = 1.0,
        gpus: float | None = None,
        lost: int = 3,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        if address is not None and not isinstance(address, str):
            raise TypeError(f"address must be a string or None, got {address!r}")
        self.address = address
        self.jobs = None if jobs is None else checks.integer("jobs", jobs, low=1)
        self.cpus = checks.number("cpus", cpus, low=0, open_low=True)
        self.gpus = None if gpus is None else check_gpus(gpus)
        self.lost = checks.integer("lost", lost, low=0)
        self.runtime_env = None if runtime_env is None else dict(runtime_env)
        self._ours = False
        # Of single tasks, for which Ray uploads no folder: that of the job has it where it can.
        self._task_env = self.runtime_env
        self._ray: Any = None
        self._board: Any = None
        self._news: Any = None
        self._tasks: dict[Any, _Pending] = {}

    def __repr__(self) -> str:
        gpus = "" if self.gpus is None else f", gpus={self.gpus:g}"
        return f"Ray(address={self.address!r}, cpus={self.cpus:g}{gpus})"

    def open(self, limits: Limits, listen: Listener) -> None:
        """Connect, or start a cluster of this machine."""
        self._connect()
        self._limits = limits
        self._board = self._ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._remote = self._ray.remote(max_retries=self.lost, **self._needs())(_do)
        self._variables = self._for_runs()
        uploaded = "working_dir" in (self.runtime_env or {})
        self._cwd = None if uploaded else os.getcwd()

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> dict[str, T]:
        """Call a function on every node that can do a run; results by address of the node.

        It is called with the variables that runs will have. :meth:`close` is left to the caller.
        """
        self._connect()
        ray, needs = self._ray, self._needs()
        able = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"]}
        calls = {}
        for node in ray.nodes():
            if not node["Alive"] or any(node["Resources"].get(k, 0) < able[k] for k in able):
                continue
            place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            remote = ray.remote(
                num_cpus=0,
                runtime_env=self._task_env,
                scheduling_strategy=place(node["NodeID"], soft=False),
            )(_call)
            name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
            calls[name] = remote.remote(function, arguments, self._for_runs())
        if not calls:
            raise ValueError(
                f"no node of the Ray cluster has the {able['CPU']:g} CPUs and {able['GPU']:g} GPUs "
                "that a run needs"
            )
        return dict(zip(calls, ray.get(list(calls.values())), strict=True))

    def room(self) -> bool:
        """See the base class."""
        return len(self._tasks) < _MOST

    def begin(self, task: Task) -> None:
        """See the base class."""
        task = replace(task, threads=max(1, int(self.cpus)))
        path = [os.path.abspath(folder) for folder in sys.path]
        reference = self._remote.remote(
            task, self._limits, self._board, path, self._variables, self._cwd
        )
        self._tasks[reference] = _Pending(task)

    def poll(self) -> Iterator[Event]:
        """See the base class."""
        wait = self._ray.wait
        wait(list(self._tasks), num_returns=1, timeout=_POLL)
        ready, _ = wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        yield from self._progress()
        for reference in ready:
            pending = self._tasks.pop(reference)
            record = self._record(reference, pending)
            if not pending.begun:
                yield Started(pending.task)
            yield Ended(pending.task, record)

    def close(self) -> None:
        """Cancel what runs; end the cluster if it was started here."""
        if self._ray is None or not self._ray.is_initialized():
            return
        # First as Ctrl-C, which lets nodes end the processes of their runs and all these started.
        left = list(self._tasks)
        for force in (False, True):
            for reference in left:
                with contextlib.suppress(Exception):
                    self._ray.cancel(reference, force=force)
            if left and not force:
                with contextlib.suppress(Exception):
                    _, left = self._ray.wait(left, num_returns=len(left), timeout=_PATIENCE)
        self._tasks.clear()
        if self._board is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(self._board)
        self._board = self._news = None
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def _needs(self) -> dict[str, Any]:
        """What Ray is asked for each run."""
        gpus = self.gpus
        if gpus is None:
            gpus = float(self._ray.cluster_resources().get("GPU", 0) >= 1)
        return {"num_cpus": self.cpus, "num_gpus": gpus, "runtime_env": self._task_env}

    def _for_runs(self) -> dict[str, str]:
        """Variables of the runs: the driver's, and without GPUs one that hides those of a node."""
        return variables() | ({VISIBLE: ""} if self.gpus == 0 else {})

    def _connect(self) -> None:
        self._ray = require("ray", extra="ray", purpose="the ray engine")
        if self._ray.is_initialized():
            return
        self._ours = True
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False}
        options["runtime_env"], self._task_env = self.runtime_env, None
        if address == "local":
            # A cluster that lives for one study has no dashboard and reports no usage.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"num_cpus": self.jobs, "include_dashboard": False}
        try:
            self._ray.init(logging_level="error", **options)
        except ConnectionError as error:
            raise ConnectionError(
                f"address must name a Ray cluster that runs, got {address!r}: {error}; start one "
                "with `ray start --head`"
            ) from error

    def _progress(self) -> Iterator[Event]:
        """Runs that were started or went on, if the actor has answered."""
        if self._news is not None:
            if not self._ray.wait([self._news], timeout=0)[0]:
                return
            news: dict[str, tuple[int, int, str] | None] = {}
            with contextlib.suppress(self._ray.exceptions.RayError):  # it is being restarted
                news = self._ray.get(self._news)
            for pending in self._tasks.values():
                if pending.task.run.id in news:
                    if not pending.begun:
                        pending.begun = True
                        yield Started(pending.task)
                    step = news[pending.task.run.id]
                    if step is not None:
                        yield Progress(pending.task, *step)
        self._news = self._board.take.remote()

    def _record(self, reference: Any, pending: _Pending) -> dict[str, Any]:
        try:
            return dict(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            task, seconds = pending.task, time.monotonic() - pending.clock
            # It is not known any more on which machine it was.
            environment = {**surroundings(task.work, task.threads), "machine": None}
            message = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            lost = records.error("lost", message, str(error))
            return task.record(pending.started, seconds, environment=environment, error=lost)


@dataclass
class _Pending:
    """A task that was handed to Ray."""

    task: Task
    begun: bool = False
    started: datetime = field(default_factory=records.now)
    clock: float = field(default_factory=time.monotonic)


class _Board:
    """Keeps the latest report of each run until the driver takes them."""

    def __init__(self) -> None:
        self._news: dict[str, tuple[int, int, str] | None] = {}

    def note(self, run: str, step: tuple[int, int, str] | None) -> None:
        self._news[run] = step

    def take(self) -> dict[str, tuple[int, int, str] | None]:
        taken, self._news = self._news, {}
        return taken


def variables() -> dict[str, str]:
    """Variables of this process that runs on other machines must have, too."""
    return {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}


def _call(function: Callable[..., T], arguments: Sequence[Any], variables: Mapping[str, str]) -> T:
    """Call a function on a node; not in a process of its own."""
    os.environ.update(variables)
    return function(*arguments)


def _do(
    task: Task,
    limits: Limits,
    board: Any,
    path: list[str],
    variables: Mapping[str, str],
    cwd: str | None,
) -> dict[str, Any]:
    """What Ray calls on a node."""
    # Ray itself passes on the folder of the script only.
    sys.path += [folder for folder in path if folder not in sys.path and os.path.exists(folder)]
    last = 0.0

    def progress(*step: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORTS:
            last = time.monotonic()
            board.note.remote(task.run.id, step)

    board.note.remote(task.run.id, None)
    return supervise(task, limits, progress, variables, cwd)
