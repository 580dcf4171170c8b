"""The Python code of the README and of guides runs, block after block in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(name: str, language: str = "python") -> str:
    text = (ROOT / name).read_text()
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def without_numbers(text: str) -> str:
    """Other CPUs round differently: the numbers may differ, the rest may not."""
    return re.sub(r"[\d.]+", "#", text)


GUIDES = ("gotchas", "training")
PAGES = ("README.md", *(f"docs/guides/{page}.md" for page in GUIDES))


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # on loaders without workers
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own
@pytest.mark.parametrize("name", PAGES)
def test_code_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(name)
    assert code.count("gfo.") >= 2
    exec(compile(code, name, "exec"), {"__name__": "readme"})
    if name == "README.md":
        assert without_numbers(capsys.readouterr().out) == without_numbers(blocks(name, "text"))


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
