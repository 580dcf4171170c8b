"""Random numbers that are a function of a seed and a place: no state, integer operations alone.

A number follows from (seed, source, call, draw, row, unit), so that one seed gives one answer on
every machine and in every format, and a row gets the same numbers whatever batch it is in. All is
worked out in int64 without overflow, which PyTorch and ONNX do alike. Not for cryptography. Knows
nothing of models or files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.core.noise import Noise

WORD = 0xFFFFFFFF
TOP = 0xFFFFFF00
"""The upper bits of a product's low word: exactly uniform, and dependent on all bits below."""
FIRST, SECOND = 0x7FEB352D, 0x4C957F2D  # odd and below 2**31: products stay below 2**63
BETWEEN = 0x05A308D3

SEEDS = (0x243F6A88, 0x05A308D3)  # digits of pi: for the two words of a key of seed and row,
DRAWS = (0x13198A2E, 0x03707344)  # for those of a draw, which must not be a row's,
UNITS = 0x24093822  # and for the word of a unit


class Hashed(Noise):
    """Numbers from a hash of seed, source, call, draw, row and unit.

    Every call of :meth:`uniform` or :meth:`normal` gives other numbers, so the calls of a pass must
    come in a fixed order.

    Args:
        seed: A scalar of int64; any value.
        draws: Numbers of the draws in the pass, one copy of the batch each.
        source: What tells this source from others of the same seed, such as an ensemble's member.
        opaque: Use an operator of our own, which the exporter to ONNX knows, for fewer steps.

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
        self.seed = seed
        self._hashed = _hashed if opaque else hashed

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return [copies * rows, units] numbers in [0, 1), multiples of 2**-24.

        Args:
            rows: Rows per copy of the batch.
            units: Columns.
            like: Gives the device.
        """
        self.calls += 1
        places = torch.arange(rows, device=like.device).unsqueeze(-1)
        columns = torch.tensor([mixed(unit, UNITS) for unit in range(units)], device=like.device)
        first, second = (self._draw_words(tag, like.device) for tag in DRAWS)
        return self._hashed(self.seed, places, first, second, columns).flatten(0, 1)

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return as many standard normal numbers, by the method of Box and Muller."""
        half = -(-units // 2)
        radius, angle = self.uniform(rows, 2 * half, like).chunk(2, -1)
        radius = torch.sqrt(-2 * torch.log(1 - radius))  # of numbers from 2**-24 to 1
        angle = 2 * math.pi * angle
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], -1)[:, :units]

    def _draw_words(self, tag: int, device: torch.device) -> Tensor:
        """Words of source, call and draw, which are known beforehand, [copies, 1, 1]."""
        before = mixed(mixed(self.source, tag) ^ self.calls, tag)
        words = [mixed(before ^ draw, tag) for draw in self.draws]
        return torch.tensor(words, device=device).reshape(-1, 1, 1)


def hashed(seed: Tensor, rows: Tensor, first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    """Numbers in [0, 1) for every draw, row and column.

    Args:
        seed: A scalar.
        rows: Numbers of the rows, [rows, 1].
        first: A word for every draw, [draws, 1, 1].
        second: Another.
        columns: A word for every column, [columns].

    Returns:
        [draws, rows, columns] of float32.
    """
    keys = []
    for draws, seeds_tag, draws_tag in zip((first, second), SEEDS, DRAWS, strict=True):
        key = mixed(mixed(seed & WORD, seeds_tag) ^ ((seed >> 32) & WORD), seeds_tag)
        keys.append(mixed(mixed(key ^ rows, seeds_tag) ^ draws, draws_tag))
    words = (fold((keys[0] ^ columns) * FIRST) ^ keys[1]) * SECOND
    numbers: Tensor = (words & TOP).to(torch.float32) * 2.0**-32
    return numbers


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


@torch.library.custom_op("gflowout::hashed", mutates_args=())
def _hashed(seed: Tensor, rows: Tensor, first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    return hashed(seed, rows, first, second, columns)


@_hashed.register_fake
def _(seed: Tensor, rows: Tensor, first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    return (rows ^ first ^ columns).to(torch.float32)
