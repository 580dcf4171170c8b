"""The notebooks in examples/ run, and their outputs are kept: the same but for the numbers."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def shape(outputs: list[dict[str, Any]]) -> list[str]:
    """Texts without their numbers, and the types of all else."""
    return [
        NUMBER.sub("#", " ".join("".join(each["text"]).split()))
        if each["output_type"] == "stream"
        else " ".join(each["data"])
        for each in outputs
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_outputs_are_kept(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    run = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))["run"]
    with torch.random.fork_rng():
        outputs = run(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    kept = [shape(cell["outputs"]) for cell in cells]
    assert [shape(own) for own in outputs] == kept, "write it again: python tools/notebooks.py"
    assert any("image/png" in texts for texts in kept)


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["decision", "inputs", "quickstart"]
