"""Run the notebooks in ``examples`` and write their outputs: ``python tools/notebooks.py [NAME]``.

Cells run in this process, one after the other; what they print and the plots they leave open are
their outputs. No Jupyter is needed.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parents[1] / "examples"


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of every code cell, in the notebook format 4."""
    names: dict[str, Any] = {"__name__": "notebook"}
    outputs = []
    plt.close("all")  # a figure that was left open is no output
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        said = io.StringIO()
        with redirect_stdout(said):
            exec(compile("".join(cell["source"]), "cell", "exec", dont_inherit=True), names)
        own: list[dict[str, Any]] = []
        if said.getvalue():
            text = said.getvalue().splitlines(keepends=True)
            own.append({"name": "stdout", "output_type": "stream", "text": text})
        own += [_figure(number) for number in plt.get_fignums()]
        plt.close("all")
        outputs.append(own)
    return outputs


def _figure(number: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    plt.figure(number).savefig(buffer, format="png", dpi=80, metadata={"Software": None})
    data = {"image/png": base64.b64encode(buffer.getvalue()).decode()}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def main() -> None:
    """Run all notebooks, or those of some names, and write them back."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, own) in enumerate(zip(cells, run(notebook), strict=True), 1):
            cell.update(execution_count=number, outputs=own)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(cells)} cells")


if __name__ == "__main__":
    main()
