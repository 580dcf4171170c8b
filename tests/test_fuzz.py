"""A slice of ``tools/fuzz.py``: made-up networks, arguments and files, every result checked."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "tools" / "fuzz.py"


@pytest.mark.long
def test_calls_with_made_up_networks_arguments_and_files() -> None:
    command = [sys.executable, FUZZ, "--calls", "250", "--seed", "19", "--timeout", "300"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_call_can_be_repeated_alone() -> None:
    command = [sys.executable, FUZZ, "--seed", "19", "--only", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"call": 3' in done.stdout
