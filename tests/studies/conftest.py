import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from gflowout.data.store import entry
from gflowout.studies.framework.study import STUDIES, Study, get

HANGS = 3000
"""Seconds after which a command is given up. On two free cores it takes a minute or two."""


@pytest.fixture(scope="session")
def gflowout() -> Callable[..., None]:
    """Run the command in a process of its own."""
    return _gflowout


def _gflowout(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gflowout.cli", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=HANGS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="session")
def smoke(
    tmp_path_factory: pytest.TempPathFactory, real_data: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Folder with the records of studies at preset ``smoke``, run once for all that ask for them.

    The processes of pytest share the folder: what one has run, the others find.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, data = shared / "smoke", shared / "smoke-data"

    def run(name: str) -> Path:
        names = STUDIES if name == "all" else (name,)
        with FileLock(shared / "smoke.lock"):
            for source in sorted({source for one in names for source in _needed(get(one))}):
                place = data / entry(source).folders[0]
                if not place.is_symlink():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.symlink_to(real_data(source))
            data.mkdir(exist_ok=True)
            _gflowout("study", "run", name, "--preset", "smoke", "--out", out, "--data-dir", data)
        return out

    return run


def _needed(study: Study) -> Iterator[str]:
    for run in (*study.tuning("smoke"), *study.runs("smoke", {})):
        yield from study.needs(run)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads as a run of a study has: more of them round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
