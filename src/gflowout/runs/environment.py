"""Versions, commit and machine class for records, which are shared: no host, user name or path."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "gflowout", "torch", "numpy", "scipy", "pandas", "pillow", "lightning", "torchmetrics",
    "scikit-learn", "optuna", "ray",
)  # fmt: skip
"""Packages whose versions a record names, if they are installed."""


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of those of :data:`PACKAGES` that are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def commit(file: Path | None) -> dict[str, Any] | None:
    """Commit of the working tree of a source file, and whether tracked files have changes.

    ``None`` without git or a working tree, or if the tree ignores the file (installed packages).
    """
    if file is None:
        return None
    file = file.resolve()
    git = ("git", "--no-optional-locks", "-C", str(file.parent))
    head = output_of(*git, "rev-parse", "HEAD")
    if head is None or output_of(*git, "check-ignore", "-q", str(file)) is not None:
        return None
    changes = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return {"id": head, "dirty": changes is None or bool(changes)}


def output_of(*command: str) -> str | None:
    """What a program prints; ``None`` if there is none, or it fails."""
    try:
        return subprocess.check_output(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=30
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def machine() -> dict[str, Any]:
    """Class of the machine: processor, cores, memory, GPUs, system."""
    # Asking CUDA itself would take memory on every card and make later forks unsafe.
    gpus = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    facts = Path("/proc/cpuinfo")
    cpus = facts.read_text() if facts.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpus, re.M)
    memory = None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        pages = os.sysconf("SC_PHYS_PAGES")
        memory = round(os.sysconf("SC_PAGE_SIZE") * pages / 2**30, 1)
    return {
        "cpu": model[1].strip() if model else platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gb": memory,
        "gpus": (gpus or "").splitlines(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
