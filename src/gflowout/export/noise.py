"""Random numbers that are a function of a seed and a place: no state, integer operations alone.

A number follows from (seed, source, call, draw, row, unit), so that one seed gives one answer on
every machine and in every format, and a row gets the same numbers whatever batch it is in. All is
worked out in int64 without overflow, which PyTorch and ONNX do alike. Not for cryptography. Knows
nothing of models or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.trajectory import Noise

WORD = 0xFFFFFFFF
TOP = 0xFFFFFF00
"""The upper bits of a product's low word: exactly uniform, and dependent on all bits below."""
FIRST, SECOND = 0x7FEB352D, 0x4C957F2D  # odd and below 2**31: products stay below 2**63
BETWEEN = 0x05A308D3

_SEEDS = (0x243F6A88, 0x05A308D3)  # digits of pi: for the two words of a key of seed and row,
_DRAWS = (0x13198A2E, 0x03707344)  # for those of a draw, which must not be a row's,
_UNITS = 0x24093822  # and for the word of a unit


class Hashed(Noise):
    """Numbers from a hash of seed, source, call, draw, row and unit.

    Every call of :meth:`uniform` or :meth:`normal` gives other numbers, so the calls of a pass must
    come in a fixed order.

    Args:
        seed: A scalar of int64; any value.
        draws: Numbers of the draws in the pass, one copy of the batch each.
        source: What tells this source from others of the same seed, such as an ensemble's member.
        opaque: Use operators of our own, which the exporter to ONNX knows: few large steps take it
            a fraction of the time that many small ones do.

    Examples:
        >>> seed, like = torch.tensor(7), torch.zeros(())
        >>> both = Hashed(seed, range(2)).uniform(3, 4, like)
        >>> torch.equal(both[3:], Hashed(seed, range(1, 2)).uniform(3, 4, like))
        True
        >>> torch.equal(both[:2], Hashed(seed, range(1)).uniform(2, 4, like))
        True
    """

    def __init__(
        self, seed: Tensor, draws: Sequence[int], source: int = 0, opaque: bool = False
    ) -> None:
        super().__init__(copies=len(draws))
        self.draws = draws
        self.source = source
        self.calls = 0
        self._mixed: Callable[[Tensor, int], Tensor] = _mixed if opaque else mixed
        self._spread: Callable[[Tensor, Tensor, Tensor], Tensor] = _spread if opaque else spread
        low, high = seed & WORD, (seed >> 32) & WORD
        self._seeds = [self._mixed(self._mixed(low, tag) ^ high, tag) for tag in _SEEDS]
        self._rows: tuple[Any, list[Tensor]] | None = None

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return [copies * rows, units] numbers in [0, 1), multiples of 2**-24.

        Args:
            rows: Rows per copy of the batch.
            units: Columns.
            like: Gives the device.
        """
        self.calls += 1
        first, second = (
            self._mixed(row ^ self._draw_keys(tag, like.device), tag)
            for row, tag in zip(self._row_keys(rows, like.device), _DRAWS, strict=True)
        )
        places = [mixed(unit, _UNITS) for unit in range(units)]
        return self._spread(first, second, torch.tensor(places, device=like.device)).flatten(0, 1)

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return as many standard normal numbers, by the method of Box and Muller."""
        half = -(-units // 2)
        radius, angle = self.uniform(rows, 2 * half, like).chunk(2, -1)
        radius = torch.sqrt(-2 * torch.log(1 - radius))  # of numbers from 2**-24 to 1
        angle = 2 * math.pi * angle
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], -1)[:, :units]

    def _row_keys(self, rows: Any, device: torch.device) -> list[Tensor]:
        """Words of seed and row, [rows, 1] each; the same for all calls with so many rows."""
        # Compared by identity: asking whether unknown numbers are equal would decide them.
        if self._rows is None or self._rows[0] is not rows:
            places = torch.arange(rows, device=device).unsqueeze(-1)
            pairs = zip(self._seeds, _SEEDS, strict=True)
            self._rows = rows, [self._mixed(seed ^ places, tag) for seed, tag in pairs]
        return self._rows[1]

    def _draw_keys(self, tag: int, device: torch.device) -> Tensor:
        """Words of source, call and draw, which are known beforehand, [copies, 1, 1]."""
        before = mixed(mixed(self.source, tag) ^ self.calls, tag)
        words = [mixed(before ^ draw, tag) for draw in self.draws]
        return torch.tensor(words, device=device).reshape(-1, 1, 1)


def mixed(word: Any, tag: int) -> Any:
    """A word of 32 bits that depends on every bit of another.

    Args:
        word: A number, or a tensor of int64, from 0 to 2**32 - 1.
        tag: Tells one such function from others.

    Examples:
        >>> mixed(1, tag=0) == mixed(torch.tensor(1), tag=0).item() != mixed(2, tag=0)
        True
    """
    return fold((fold((word ^ tag) * FIRST) ^ BETWEEN) * SECOND)


def fold(product: Any) -> Any:
    """Both words of a product in one."""
    return (product & WORD) ^ (product >> 32)


def spread(first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    """Numbers in [0, 1) for every row and column.

    Args:
        first: One word of the rows' keys, [..., 1].
        second: The other.
        columns: The columns' words, [units].

    Returns:
        [..., units] of float32.
    """
    words = (fold((first ^ columns) * FIRST) ^ second) * SECOND
    return (words & TOP).to(torch.float32) * 2.0**-32


@torch.library.custom_op("gflowout::mixed", mutates_args=())
def _mixed(word: Tensor, tag: int) -> Tensor:
    result: Tensor = mixed(word, tag)
    return result


@_mixed.register_fake
def _(word: Tensor, tag: int) -> Tensor:
    return torch.empty_like(word)


@torch.library.custom_op("gflowout::spread", mutates_args=())
def _spread(first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    return spread(first, second, columns)


@_spread.register_fake
def _(first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    return (first ^ columns).to(torch.float32)
