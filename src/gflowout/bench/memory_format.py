"""What ``channels_last`` is worth: a training step of ResNet-18 in either memory format."""

from __future__ import annotations

import torch

from gflowout.backbones import ResNet18
from gflowout.bench.methods import CLASSES, bare_step
from gflowout.bench.timing import Case, Table

WIDTHS = (8, 16, 32)
_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def memory_format_tables(repeats: int, quick: bool = False) -> list[Table]:
    """One table for each width; narrower networks are not safe in ``channels_last``.

    Args:
        repeats: Rounds.
        quick: Only the narrowest network.
    """

    def table(width: int) -> Table:
        return Table(
            f"channels-last-{width}",
            f"Training step without masks, ResNet-18 of width {width}, batch 32",
            ("contiguous",),
            repeats,
            lambda: _cases(width),
            cost=0.03 * width,
        )

    return [table(width) for width in (WIDTHS[:1] if quick else WIDTHS)]


def _cases(width: int) -> dict[str, Case]:
    x, y = torch.randn(32, 3, 32, 32), torch.randint(CLASSES, (32,))
    networks = {name: ResNet18(CLASSES, width) for name in _FORMATS}
    return {
        name: bare_step(network.to(memory_format=_FORMATS[name]), x, y)  # type: ignore[call-overload]
        for name, network in networks.items()
    }
