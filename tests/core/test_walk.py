"""A reader who follows one batch through the package does not change files too often."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "tools" / "trace_walk.py"


@pytest.mark.parametrize(("name", "most"), [("training batch", 150), ("prediction", 120)])
def test_switches_between_files(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("trace_walk", FILE)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trace_walk", tool)
    spec.loader.exec_module(tool)
    action = tool.actions()[name]
    action()
    walk = tool.walk(action)
    assert 50 < walk.switches <= most
    assert len(walk.files) <= 18
    assert walk.steps[0][1] == "core/model.py"
    # The training batch ends in the backward pass, the prediction where it began.
    ends = {"training batch": "core/generators.py", "prediction": "core/model.py"}
    assert walk.steps[-1][1] == ends[name]
