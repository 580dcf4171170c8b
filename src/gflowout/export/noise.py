"""Random numbers that are a function of a seed and a place: no state, integer operations alone.

A number follows from (seed, stream, draw, row, unit), so that one seed gives one answer on every
machine and in every format, and a row gets the same numbers whatever batch it is in. All is worked
out in int64 without overflow, which PyTorch and ONNX do alike. Not for cryptography. Knows nothing
of models or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.trajectory import Noise

_WORD = 0xFFFFFFFF
_TOP = 0xFFFFFF00
"""The upper bits of a product's low word: exactly uniform, and dependent on all bits below."""
_FIRST, _SECOND = 0x7FEB352D, 0x4C957F2D  # odd and below 2**31: products stay below 2**63
_LANES = (0x243F6A88, 0x05A308D3)  # digits of pi: the two words of a key of seed and row,
_DRAWS = (0x13198A2E, 0x03707344)  # those of a draw, which must not be a row's,
_UNITS = 0x24093822  # and the word of a unit

High = Callable[[Any], Any]
"""The upper word of a product of two."""


@torch.library.custom_op("gflowout::high_word", mutates_args=())
def high_word(values: Tensor) -> Tensor:
    """``values >> 32`` of numbers that are not negative.

    An operator of its own, since the general shift takes seven steps in ONNX and this one three.
    """
    return values >> 32


@high_word.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


class Hashed(Noise):
    """Numbers from a hash of seed, stream, draw, row and unit.

    Every call of :meth:`uniform` or :meth:`normal` opens a new stream, so the calls of a pass must
    come in a fixed order.

    Args:
        seed: A scalar of int64; any value.
        draws: Numbers of the draws in the pass, one copy of the batch each.
        source: What tells this source from others of the same seed, such as an ensemble's member.
        opaque: Use :func:`high_word`, which the exporter to ONNX knows.

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
        self._high: High = high_word if opaque else _shifted
        low, high = seed & _WORD, (seed >> 32) & _WORD
        self._seeds = [
            mixed(mixed(low, start, self._high) ^ high, start, self._high) for start in _LANES
        ]
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
            mixed(row ^ self._draws(start, like.device), start, self._high)
            for row, start in zip(self._row_keys(rows, like.device), _DRAWS, strict=True)
        )
        places = [mixed(unit, _UNITS, _shifted) for unit in range(1, units + 1)]
        columns = torch.tensor(places, device=like.device)
        bits = fold((first ^ columns) * _FIRST, self._high) ^ second
        bits = (bits * _SECOND) & _TOP
        numbers: Tensor = bits.to(torch.float32) * 2.0**-32
        return numbers.flatten(0, 1)

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
            keys = [
                mixed(seed ^ places, start, self._high)
                for seed, start in zip(self._seeds, _LANES, strict=True)
            ]
            self._rows = rows, keys
        return self._rows[1]

    def _draws(self, start: int, device: torch.device) -> Tensor:
        """Words of source, call and draw, which are known beforehand, [copies, 1, 1]."""
        words = []
        for draw in self.draws:
            word = 0
            for place in (self.source, self.calls, draw):
                word = mixed(word ^ place, start, _shifted)
            words.append(word)
        return torch.tensor(words, device=device).reshape(-1, 1, 1)


def mixed(word: Any, start: int, high: High) -> Any:
    """A word of 32 bits that depends on every bit of another.

    Args:
        word: A number, or a tensor of int64, from 0 to 2**32 - 1.
        start: Tells one such function from others.
        high: The upper word of a product.

    Examples:
        >>> mixed(1, 0, lambda product: product >> 32) != mixed(2, 0, lambda product: product >> 32)
        True
    """
    once = fold((word ^ start) * _FIRST, high)
    return fold((once ^ _LANES[1]) * _SECOND, high)


def fold(product: Any, high: High) -> Any:
    """Both words of a product in one."""
    return (product & _WORD) ^ high(product)


def _shifted(values: Any) -> Any:
    return values >> 32
