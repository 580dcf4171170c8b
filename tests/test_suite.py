"""No test is hidden by one that crashes or hangs; no function of the source is too long."""

import ast
import subprocess
import sys
import tomllib
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


def only_re_exports(source: str) -> bool:
    """Whether a module only imports names of others, below a docstring perhaps."""
    return all(
        isinstance(statement, ast.ImportFrom)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in ast.parse(source).body
    )


def test_what_is_at_the_top_of_the_package_is_a_layer_or_a_re_export() -> None:
    """So that import-linter sees every package, and no module lies beside them."""
    layers, _ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    rooms = {name for layer in layers["layers"] for name in layer.split(" | ")}
    package = ROOT / "src" / "gflowout"
    others = [
        source
        for source in package.rglob("*.py")
        if source.relative_to(package).parts[0] not in rooms | {"__init__.py"}
    ]
    assert len(rooms) == 16
    assert len(others) > 10
    for source in others:
        assert only_re_exports(source.read_text()), source.relative_to(package)
    assert not only_re_exports('"""Doc."""\nfrom a import b\nVALUE = 1\n')
