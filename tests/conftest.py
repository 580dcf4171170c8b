import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Some virtual machines announce AMX, which oneDNN uses in bfloat16, and stop at its instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from gflowout.data import store
from gflowout.data.errors import MissingDataError

# Machines differ; how long an example takes says nothing about whether it is right.
settings.register_profile("gflowout", deadline=None, derandomize=True)
settings.load_profile("gflowout")

# A shell's background job ignores Ctrl-C, and so would the interrupts that tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Real copies of the data sets: $GFLOWOUT_DATA, or a folder beside the checkout.
REAL = Path(os.environ.get(store.VARIABLE) or Path(__file__).parents[2] / "shared" / "data")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let processes take neighbouring tests: most fixtures of a module are then made only once.

    By default xdist deals tests out one by one, so that each process makes all of them.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that take longest, so that none of them runs alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the developer's own data directory unless it names it."""
    monkeypatch.delenv(store.VARIABLE, raising=False)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a real copy of a data set by its name, or a skip that names it."""

    def folder(name: str) -> Path:
        if not REAL.is_dir():
            pytest.skip(f"real data: no folder {REAL}; name one with ${store.VARIABLE}")
        try:
            return store.locate(name, REAL)
        except MissingDataError:
            unpacked = _unpacked(name, tmp_path_factory.getbasetemp().parent)
            if unpacked is None:
                pytest.skip(f"real data: no {name} in {REAL}")
            return store.locate(name, unpacked)

    return folder


def _unpacked(name: str, temporary: Path) -> Path | None:
    """Copies of CIFAR may be packed tighter than published; a script beside them unpacks."""
    script = REAL / "unpack-cifar"
    if name not in ("cifar10", "cifar100") or not script.is_file():
        return None
    target = temporary / f"unpacked-{name}"
    if not target.exists():
        half = temporary / f"unpacked-{name}-{os.getpid()}"
        half.mkdir()
        subprocess.run([sys.executable, script, name, half], check=True, capture_output=True)
        try:
            half.rename(target)
        except OSError:  # another worker was faster
            assert target.exists()
    return target
