"""What users rely on is what it was: run ids, masks of a seed, saved files, help pages."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import gflowout as gfo

FOLDER = Path(__file__).parent / "golden"
CONTENT = runpy.run_path(str(FOLDER / "content.py"))
AGAIN = "if this is meant, write it again: python tests/golden/content.py"


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def equal(made: Any, kept: Any) -> bool:
    """Equality but for the last digits of numbers, in which CPUs differ."""
    if isinstance(made, dict):
        return made.keys() == kept.keys() and all(equal(made[name], kept[name]) for name in made)
    if isinstance(made, list):
        return len(made) == len(kept) and all(map(equal, made, kept))
    if isinstance(made, float):
        return made == pytest.approx(kept, abs=1e-4, rel=1e-4)
    return bool(made == kept)


def test_studies_plan_the_same_runs() -> None:
    made, kept = CONTENT["runs"](), read("runs.json")
    assert made.keys() == kept.keys()
    assert {name: kept[name] for name in kept if made[name] != kept[name]} == {}, AGAIN


def test_a_seed_gives_the_same_masks_and_predictions() -> None:
    made, kept = CONTENT["draws"](), read("draws.json")
    assert made.keys() == kept.keys()
    assert [name for name in kept if not equal(made[name], kept[name])] == [], AGAIN


@pytest.mark.parametrize("method", CONTENT["OPTIONS"])
def test_files_of_earlier_versions_load(method: str) -> None:
    model = gfo.load(FOLDER / "saved" / f"{method}.safetensors", CONTENT["backbone"]())
    assert equal(CONTENT["prediction"](model.eval()), read(f"saved/{method}.json"))


def test_help_pages_are_those_that_were_read() -> None:
    made, kept = CONTENT["help_pages"](), (FOLDER / "help.txt").read_text(encoding="utf-8")
    assert made == kept, AGAIN


def test_every_method_is_among_them() -> None:
    from gflowout.methods import METHODS

    assert sorted(CONTENT["OPTIONS"]) == sorted(METHODS)
