import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from data_files import write_first, write_vader
from filelock import FileLock

from gflowout.data.store import entry
from gflowout.studies.framework.study import STUDIES, Study, get

HANGS = 3000
"""Seconds after which a command is given up. On two free cores it takes a minute or two."""

MANY = ("mnist", "notmnist", "cifar10", "cifar100")
FIRST = 1000
"""Pictures of each file of them: all classes, each in several of them."""
RATED, SENTENCES = "vader", 120


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
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest have."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def real_data(real_data: Callable[[str], Path], shared: Path) -> Callable[[str], Path]:
    """As everywhere, but of many pictures the first ones: a study at preset ``smoke`` takes 200.

    Rated sentences are made up: few copies of the data have them.
    """

    def folder(name: str) -> Path:
        whole = None if name == RATED else real_data(name)
        if whole is not None and name not in MANY:
            return whole
        place = shared / "first" / entry(name).folders[0]
        with FileLock(shared / "first.lock"):
            if not place.exists():
                half = shared / "first-half" / name
                if whole is None:
                    write_vader(half, SENTENCES)
                else:
                    write_first(half, whole, FIRST)
                place.parent.mkdir(exist_ok=True)
                half.rename(place)
        return place

    return folder


@pytest.fixture(scope="session")
def smoke(shared: Path, real_data: Callable[[str], Path]) -> Callable[[str], Path]:
    """Folder with the records of studies at preset ``smoke``, run once for all that ask for them.

    The processes of pytest share the folder: what one has run, the others find.
    """
    out, data = shared / "smoke", shared / "smoke-data"

    def run(name: str) -> Path:
        names = STUDIES if name == "all" else (name,)
        with FileLock(shared / "smoke.lock"):
            if all((shared / f"smoke-done-{one}").exists() for one in names):
                return out
            for source in sorted({source for one in names for source in _needed(get(one))}):
                place = data / entry(source).folders[0]
                if not place.is_symlink():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.symlink_to(real_data(source))
            data.mkdir(exist_ok=True)
            _gflowout("study", "run", name, "--preset", "smoke", "--out", out, "--data-dir", data)
            for one in names:
                (shared / f"smoke-done-{one}").touch()
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
