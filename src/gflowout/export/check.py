"""Whether a file answers as PyTorch does: the same inputs to both, on batches of several sizes.

Knows nothing of file formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gflowout.export.deployed import SEED, Deployed, ExportError
from gflowout.export.noise import Hashed

Answer = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Maps inputs by name to outputs by name."""

_SEEDS = (0, 1, 2)
_ROUNDING = 1e-3
_ONE_ROW = "the backbone does something else with a batch of one row than with several"


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
    rows = deployed.rows
    # The example, more rows of it in another order, and one row.
    batches = (range(rows), [place % rows for place in range(rows, -1, -1)], [0])
    gap, name = _worst(deployed, answer, batches, tolerance)
    if gap > tolerance:
        raise ExportError(
            f"the file differs from PyTorch by {gap:.2g} in {name!r}, more than tolerance="
            f"{tolerance:g}"
        )
    return gap


def check_one_row(deployed: Deployed, traced: Answer) -> None:
    """Refuse a model that does something else with one row than with several.

    Args:
        deployed: The model as PyTorch runs it.
        traced: What a trace of several rows does.

    Raises:
        ExportError: If one row fails, or the two differ by more than rounding.
    """
    try:
        with torch.no_grad():
            gap, name = _worst(deployed, traced, ([0],), _ROUNDING)
    except ExportError as error:
        raise ExportError(f"{_ONE_ROW}: {error}") from error
    except Exception as error:  # whatever the backbone does
        raise ExportError(f"the model fails on a batch of one row: {error}") from error
    if gap > _ROUNDING:
        raise ExportError(f"{_ONE_ROW}: {name!r} differs by {gap:.2g}")


def _worst(
    deployed: Deployed, answer: Answer, batches: Sequence[Sequence[int]], enough: float
) -> tuple[float, str]:
    """Largest difference and where, of the first seed whose is small enough, or of the last."""
    worst = (0.0, "")
    for seed in _SEEDS:
        worst = max(
            gap
            for places in batches
            for inputs in [_call(deployed, seed, places)]
            for gap in _gaps(deployed.run(inputs), answer(inputs))
        )
        if worst[0] <= enough:
            break
    return worst


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


def _call(deployed: Deployed, seed: int, places: Sequence[int]) -> dict[str, Tensor]:
    """These rows of the example."""
    chosen = torch.tensor(places)
    call = {
        name: each.index_select(deployed.batched[name], chosen)
        if name in deployed.batched
        else each
        for name, each in deployed.example.items()
    }
    if SEED in call:
        call[SEED] = torch.tensor(seed)
    for number, name in enumerate(deployed.masks):
        noise = Hashed(torch.tensor(seed), range(1), number)
        numbers = noise.uniform(call[name].shape[0] * len(places), call[name].shape[-1], call[name])
        call[name] = (numbers < 0.5).to(call[name]).reshape(call[name].shape)
    return call
