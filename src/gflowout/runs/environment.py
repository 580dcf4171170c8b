"""Where and with what a run is done: package versions, commit of the code, machine class.

No host name, user name or path: records are meant to be shared. Knows nothing of runs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "gflowout",
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "pillow",
    "lightning",
    "torchmetrics",
    "scikit-learn",
    "optuna",
    "ray",
)
"""Packages whose versions a record names, if they are installed."""


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of those of :data:`PACKAGES` that are installed.

    Examples:
        >>> "torch" in versions()
        True
    """
    return dict(_versions())


def commit(file: Path | None) -> dict[str, Any] | None:
    """Commit of the working tree that a source file is part of.

    Args:
        file: The source file, or ``None`` if there is none.

    Returns:
        ``{"id": ..., "dirty": ...}``, or ``None`` where there is no git, no working tree or the
        tree ignores the file (as it does with installed packages). Dirty means that tracked files
        have changes.
    """
    if file is None or shutil.which("git") is None:
        return None
    here = file.resolve().parent
    head = _git(here, "rev-parse", "HEAD")
    if head is None or _git(here, "check-ignore", "-q", str(file.resolve())) is not None:
        return None
    changes = _git(here, "status", "--porcelain", "--untracked-files=no")
    return {"id": head, "dirty": changes is None or bool(changes)}


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *command],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": _memory(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def machine() -> dict[str, Any]:
    """Class of the machine: processor, cores, memory, GPUs, system.

    Examples:
        >>> sorted(machine())
        ['cores', 'cpu', 'gpus', 'memory_gb', 'system']
    """
    found = _machine()
    return {**found, "gpus": list(found["gpus"])}


def cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return round(size / 2**30, 1)


def _gpus() -> list[str]:
    # Asking CUDA itself would take memory on every card and spoil later forks.
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return listed.stdout.strip().splitlines() if listed.returncode == 0 else []
