"""The documentation holds together: links, navigation, code, and an example for every name.

``make docs`` builds it; that takes longer than all of this.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "api"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
RUN = [
    "start/five-minutes",
    "guides/own-model",
    "guides/decisions",
    "guides/ood",
    "internals/adding-a-method",
]
NEW_FILE = "src/gflowout/methods/whole_site.py"  # the page says how to write it
AUTO = re.compile(r"^\.\. auto(?:class|function|exception|data):: (\w+)", re.MULTILINE)
MODULE = re.compile(r"^\.\. currentmodule:: (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Targets of a page's headings, as GitHub and MyST make them."""
    heads = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")) for head in heads)
    return {head.replace(" ", "-") for head in plain}


def links() -> Iterator[tuple[Path, str]]:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if "://" not in target:
                yield page, target


def test_links_lead_somewhere() -> None:
    lost = []
    for page, target in links():
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(f"{page.name}: {target}")
    assert not lost, lost
    assert anchors(DOCS / "guides" / "gotchas.md") >= {"seeds-and-repeated-predictions"}


def test_every_page_is_in_the_navigation() -> None:
    listed = set()
    for index in (DOCS / "index.md", API / "index.md"):
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.DOTALL):
            names = [line for line in tree.split("\n") if line and not line.startswith(":")]
            listed |= {(index.parent / f"{name}.md").resolve() for name in names}
    assert listed | {DOCS / "index.md"} == set(PAGES)


@pytest.mark.parametrize("name", RUN)
def test_code_of_pages_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gflowout.core.likelihoods import LIKELIHOODS
    from gflowout.methods import METHODS

    monkeypatch.chdir(tmp_path)
    tables = [(table, dict(table)) for table in (METHODS, LIKELIHOODS)]
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
    code = "\n".join(blocks)
    assert len(blocks) >= 2
    try:
        exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "page"})
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)


def documented() -> dict[str, set[str]]:
    """Names on the pages of the API, by module."""
    found: dict[str, set[str]] = {}
    for page in API.glob("*.md"):
        for module, body in MODULE.findall(page.read_text()):
            found.setdefault(module, set()).update(AUTO.findall(body))
    return found


def public(module: str) -> set[str]:
    """Classes and functions that a module offers."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        # A module that was moved keeps its old path: one line that imports all from the new one.
        moved = re.match(r"from (\S+) import \*", inspect.getsource(loaded))
        origin = moved[1] if moved else module
        own = vars(loaded).items()
        names = [name for name, value in own if getattr(value, "__module__", "") == origin]
    values = {name: getattr(loaded, name) for name in names if not name.startswith("_")}
    return {
        name
        for name, value in values.items()
        if inspect.isclass(value) or (callable(value) and inspect.isfunction(inspect.unwrap(value)))
    }


@pytest.mark.parametrize("module", sorted(documented()))
def test_every_public_name_is_documented_with_an_example(module: str) -> None:
    elsewhere = {"Losses"} if module == "gflowout.methods" else set()  # on gflowout's own page
    names = public(module)
    assert names - elsewhere == documented()[module]
    loaded = importlib.import_module(module)
    without = {
        name
        for name in names
        if not re.search(r"Examples:\n\s+(>>>|\S.*::)", getattr(loaded, name).__doc__ or "")
    }
    assert not without, f"{module}: no example in {', '.join(sorted(without))}"


def test_integrations_are_documented() -> None:
    offered = {
        f"gflowout.integrations.{path.stem}"
        for path in (ROOT / "src" / "gflowout" / "integrations").glob("*.py")
        if path.stem != "__init__" and "\n__all__ = [" in path.read_text()
    }
    assert offered <= set(documented())
    assert {"gflowout", "gflowout.methods", "gflowout.training"} <= set(documented())


def test_every_likelihood_has_a_row() -> None:
    from gflowout.core.likelihoods import LIKELIHOODS, TASKS

    table = re.findall(
        r"^\| (.*?) \|", (DOCS / "guides" / "own-model.md").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`gfo\.(\w+)\(", " ".join(table))) >= LIKELIHOODS.keys()
    assert set(re.findall(r'`"(\w+)"`', " ".join(table))) >= set(TASKS)


@pytest.mark.parametrize("page", ["README.md", "docs/reference/methods.md", "docs/guides/scale.md"])
def test_every_method_has_a_row(page: str) -> None:
    from gflowout.methods import METHODS

    first_cells = re.findall(r"^\| (`\".*?) \|", (ROOT / page).read_text(), re.MULTILINE)
    assert set(re.findall(r'`"(\S+?)"`', " ".join(first_cells))) >= METHODS.keys()


def test_files_that_the_internals_name_exist() -> None:
    lost = []
    for page in (DOCS / "internals").glob("*.md"):
        for name in re.findall(r"`([\w/]+/(?:\w+\.(?:py|toml|json|md|svg))?)`", page.read_text()):
            if name == NEW_FILE:
                continue
            if not any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "gflowout")):
                lost.append(f"{page.name}: {name}")
    assert not lost, lost


def test_the_layers_of_the_design_are_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = "\n".join(settings["contracts"][0]["layers"])
    assert f"```text\n{layers}\n```" in (DOCS / "internals" / "design.md").read_text()


def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return settings


def test_pages_name_the_pythons_that_are_declared() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(project()["classifiers"]))
    assert declared == ["3.11", "3.12", "3.13"]
    assert f"3.{sys.version_info.minor}" in declared
    assert project()["requires-python"] == f">={declared[0]}"
    for page in (ROOT / "README.md", DOCS / "start" / "five-minutes.md"):
        assert "with Python 3.11, 3.12 or 3.13:" in page.read_text()


def test_lower_bounds_are_versions_that_tests_ran_with() -> None:
    extras = project()["optional-dependencies"]
    rivals = extras.pop("rivals")  # too large to be installed for the tests
    lines = [*project()["dependencies"], *itertools.chain(*extras.values())]
    requirements, others = (
        [Requirement(line) for line in part if not line.startswith("gflowout[")]
        for part in (lines, rivals)
    )
    for requirement in [*requirements, *others]:
        assert ">=" in str(requirement.specifier), f"{requirement.name} has no lower bound"
    for requirement in requirements:
        version = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(version, prereleases=True), (requirement, version)
    held = Requirement((ROOT / "constraints.txt").read_text().splitlines()[-1])
    tested = str(held.specifier).removeprefix("==")
    torch = next(line for line in requirements if line.name == held.name)
    assert f">={tested.rpartition('.')[0]}" in str(torch.specifier)


def test_source_files_that_pages_name_exist() -> None:
    lost = []
    for page in (DOCS / "internals").glob("*.md"):
        for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|json|md))`", page.read_text()):
            places = (ROOT, ROOT / "src" / "gflowout")
            if not any((place / name).exists() for place in places) and "whole_site" not in name:
                lost.append(f"{page.name}: {name}")
    assert not lost, lost
