"""No test is hidden by one that crashes or hangs; no function of the source is too long."""

import ast
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


def long_functions(source: str, most: int) -> list[str]:
    """Names of functions with more lines than ``most``, decorators not counted."""
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= most
    ]


def test_no_function_has_more_than_80_lines() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 100
    for source in sources:
        assert not long_functions(source.read_text(), most=80), source.relative_to(ROOT)


def test_long_functions_are_found_inside_classes_and_functions() -> None:
    inner = "class A:\n    async def long(self):\n" + "        pass\n" * 80
    assert long_functions(inner, most=80) == ["long: 81 lines"]
    assert long_functions(inner, most=81) == []
