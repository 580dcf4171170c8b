"""The README's Python code runs as it stands, block after block in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> str:
    text = (ROOT / name).read_text()
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


PAGES = ("README.md", *(f"docs/{page}.md" for page in ("gotchas", "ensembles", "training")))


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # on loaders without workers
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own
@pytest.mark.parametrize("name", [*PAGES, "docs/lightning.md"])
def test_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(name)
    assert code.count("gfo.") >= 2
    exec(compile(code, name, "exec"), {"__name__": "readme"})


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
