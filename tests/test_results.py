"""What README and docs say was measured is what the records in ``results/cpu`` say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gflowout.report import build, markdown
from gflowout.runs import read

ROOT = Path(__file__).parents[1]
AGAIN = "write it again: gflowout report results/cpu --format md > docs/results/results.md"


def test_tables_of_the_docs_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = markdown.document(build.build("results/cpu"))
    same = made.strip() == (ROOT / "docs/results/results.md").read_text().strip()
    assert same, AGAIN  # a difference of a thousand lines helps nobody


def test_the_readme_has_the_main_table_of_the_records() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "img" / "results.py"))
    begin, end = script["MARKS"]
    said = (ROOT / "README.md").read_text().split(begin)[1].split(end)[0]
    made = script["table"](read(ROOT / "results" / "cpu", "done"))
    assert said.strip() == made, "write it again: python docs/img/results.py"


def test_no_failure_is_among_the_records() -> None:
    assert not read(ROOT / "results" / "cpu", "failed")
