"""What must not change by accident, as small files: ``python tests/golden/content.py`` writes them.

- ``runs.json``: ids of all runs of every study at every preset, as a count and a digest.
- ``draws.json``: masks and predictions of every method with two seeds.
- ``saved/``: a model of every method, written by ``gfo.save``, and what it predicts.
- ``help.txt``: ``--help`` of every command.

The report of ``results/cpu`` is ``docs/results/results.md``; ``tests/test_results.py`` holds it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo

FOLDER = Path(__file__).parent
SAVED = FOLDER / "saved"
SEEDS = (0, 1)

OPTIONS: dict[str, dict[str, Any]] = {
    "gflowout": {"preset": "paper", "prior_keep": 0.7, "hidden": (8,), "temperature": 1.5},
    "id-gflowout": {"prior_keep": 0.5, "train_size": 40, "log_z": "learned", "draws": 2},
    "combined": {"prior_keep": 0.7, "train_size": 40, "hidden": (8,), "draws": 2},
    "mc": {"rate": 0.3},
    "contextual": {"prior_keep": 0.7, "reduction": 2},
    "concrete": {"train_size": 40, "rate": 0.3, "per_unit": True},
    "variational": {"train_size": 40, "alpha": 0.5},
    "gates": {"start": 0.3, "strength": 0.01, "noise": 0.4, "shared": True},
    "masksembles": {"members": 3, "scale": 1.5},
    "modes": {"modes": 3, "scale": 1.5, "rate": 0.2},
    "none": {},
}


def backbone() -> nn.Module:
    """Two sites, with BatchNorm between them."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    )


def inputs() -> tuple[Tensor, Tensor]:
    """Six inputs and their labels."""
    return torch.linspace(-1, 1, 24).reshape(6, 4).sin(), torch.tensor([0, 1, 2, 0, 1, 2])


def model(method: str, seed: int = 0) -> gfo.MaskedModel:
    """A wrapped model after two steps of training."""
    torch.manual_seed(seed)
    x, y = inputs()
    wrapped = gfo.wrap(
        backbone(),
        method,
        ["1", "4"],
        likelihood=gfo.Categorical(3),
        example=(x,),
        **OPTIONS[method],
    )
    optimizer = torch.optim.SGD(wrapped.parameter_groups(lr=0.1, generator_lr=0.01, log_z_lr=0.01))
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(x, y=y).total.backward()
        optimizer.step()
    return wrapped.eval()


def prediction(wrapped: gfo.MaskedModel) -> dict[str, Any]:
    """Masks and samples of three draws, with as many digits as all CPUs agree on."""
    generator = torch.Generator().manual_seed(5)
    pred = wrapped.predict(inputs()[0], samples=3, generator=generator, return_masks=True)
    assert pred.masks is not None
    return {
        "masks": [_rounded(mask) for mask in pred.masks],
        "samples": _rounded(pred.samples),
    }


def draws() -> dict[str, Any]:
    """By method and seed, the losses' masks of a training pass and a prediction."""
    x, y = inputs()
    content: dict[str, Any] = {}
    for method in OPTIONS:
        for seed in SEEDS:
            wrapped = model(method, seed)
            torch.manual_seed(3)
            losses = wrapped(x, y=y)
            content[f"{method} seed={seed}"] = {
                "nll": round(losses.nll.item(), 5),
                "train_masks": [_rounded(mask) for mask in losses.masks],
                **prediction(wrapped),
            }
    return content


def runs() -> dict[str, Any]:
    """By study and preset, how many trials and runs there are, and a digest of their ids."""
    from gflowout.studies.framework.plan import plan
    from gflowout.studies.framework.study import PRESETS, STUDIES, get

    content = {}
    for name in STUDIES:
        for preset in PRESETS:
            planned = plan(get(name), preset, FOLDER / "no such folder")
            for kind in ("trials", "runs"):
                ids = sorted(run.id for run in getattr(planned, kind))
                digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]
                content[f"{name} {preset} {kind}"] = [len(ids), digest, *ids[:1]]
    return content


def help_pages() -> str:
    """``--help`` of every command, one after the other."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from gflowout.cli.commands import app

    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})
    pages = []

    def add(command: Any, names: list[str]) -> None:
        output = runner.invoke(app, [*names, "--help"]).output
        pages.append("\n".join(line.rstrip() for line in output.splitlines()).strip())
        for name, below in getattr(command, "commands", {}).items():
            add(below, [*names, name])

    add(get_command(app), [])
    return "\n\n".join(pages) + "\n"


def _rounded(values: Tensor) -> list[Any]:
    """Nested lists; one string of digits for each row of zeros and ones."""
    if values.dim() > 1:
        return [_rounded(row) for row in values]
    if ((values == 0) | (values == 1)).all():
        return ["".join(str(int(value)) for value in values)]
    return [round(value, 5) for value in values.double().tolist()]


def _write(name: str, content: Any) -> None:
    text = content
    if not isinstance(content, str):
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write("runs.json", runs())
    _write("draws.json", draws())
    _write("help.txt", help_pages())
    SAVED.mkdir(exist_ok=True)
    for name in OPTIONS:
        file = SAVED / f"{name}.safetensors"
        if not file.exists():  # written once: later versions must still read it
            saved = model(name)
            gfo.save(saved, file)
            _write(f"saved/{name}.json", prediction(saved))
