"""The suite itself: a test that crashes its process or hangs hides no other test."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CRASHES = """
import os
import pytest

@pytest.mark.parametrize("n", range(5))
def test_crashes(n):
    os.abort()

@pytest.mark.timeout(1)
def test_hangs():
    while True:
        pass

@pytest.mark.parametrize("n", range(40))
def test_passes(n):
    pass
"""


def test_every_test_is_reported_when_some_crash_or_hang(tmp_path: Path) -> None:
    (tmp_path / "test_crashes.py").write_text(CRASHES)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-n", "1", "-q", *settings, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "6 failed, 40 passed" in done.stdout, done.stdout + done.stderr
    for name in [*(f"test_crashes[{n}]" for n in range(5)), "test_hangs"]:
        assert f"crashed while running 'test_crashes.py::{name}'" in done.stdout
