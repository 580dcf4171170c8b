"""Whether a file answers as PyTorch does: the same inputs to both, on batches of several sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gflowout.export.deployed import SEED, Deployed, ExportError
from gflowout.export.formats import Answer
from gflowout.export.noise import Hashed

_SEEDS = (0, 1, 2)


def largest_difference(deployed: Deployed, answer: Answer, tolerance: float) -> float:
    """Largest difference of any output, relative to numbers above 1.

    A unit whose keep rate depends on the input is kept or dropped by a comparison, which rounding
    can turn where the random number equals the rate in all but its last bits. Such a draw is
    another draw and no error: a seed may fail if another one passes.

    Args:
        deployed: The model as PyTorch runs it.
        answer: What the file does.
        tolerance: Largest difference that is allowed.

    Raises:
        ExportError: If it is exceeded with every seed.
    """
    worst = (0.0, "")
    for seed in _SEEDS:
        worst = max(
            gap
            for inputs in _calls(deployed, seed)
            for gap in _gaps(deployed.run(inputs), answer(inputs))
        )
        if worst[0] <= tolerance:
            return worst[0]
    raise ExportError(
        f"the file differs from PyTorch by {worst[0]:.2g} in {worst[1]!r}, more than tolerance="
        f"{tolerance:g}"
    )


def _gaps(expected: dict[str, Tensor], found: dict[str, Tensor]) -> Iterator[tuple[float, str]]:
    for name, value in expected.items():
        if found[name].shape != value.shape:
            raise ExportError(
                f"the file gives {name!r} of shape {list(found[name].shape)}, PyTorch "
                f"{list(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise ExportError(f"the model gives {name!r} that is not finite on the example")
        gap = float(((found[name] - value).abs() / value.abs().clamp(min=1)).max())
        yield (float("inf") if gap != gap else gap), name


def _calls(deployed: Deployed, seed: int) -> Iterator[dict[str, Tensor]]:
    """The example, more rows of it in another order, and one row."""
    rows = deployed.rows
    for places in (torch.arange(rows), torch.arange(rows + 1).flip(0) % rows, torch.zeros(1).int()):
        call = {
            name: each.index_select(deployed.batched[name], places)
            if name in deployed.batched
            else each
            for name, each in deployed.example.items()
        }
        if SEED in call:
            call[SEED] = torch.tensor(seed)
        for number, name in enumerate(deployed.masks):
            noise = Hashed(torch.tensor(seed), range(1), number)
            numbers = noise.uniform(
                call[name].shape[0] * len(places), call[name].shape[-1], call[name]
            )
            call[name] = (numbers < 0.5).to(call[name]).reshape(call[name].shape)
        yield call
