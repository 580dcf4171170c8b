"""Random numbers of a pass, which do not depend on how draws are split into passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import torch
from torch import Generator, Tensor

from gflowout.core.lazy import cached_property

_MANY = 2**12
"""Numbers of one draw and site from which :func:`from_words` is faster than PyTorch's own."""


class Noise:
    """Uniform and normal numbers for the masks of one pass over copies of a batch.

    There is one generator per copy; without generators, PyTorch's own state is used.

    Examples:
        >>> both = Noise([torch.Generator().manual_seed(seed) for seed in (1, 2)])
        >>> second = Noise([torch.Generator().manual_seed(2)])
        >>> like = torch.zeros(())
        >>> torch.equal(both.uniform(3, 4, like)[3:], second.uniform(3, 4, like))
        True
    """

    expected: ClassVar[bool] = False
    """Whether masks are to be their mean instead of drawn; see :class:`NoNoise`."""

    def __init__(self, generators: Sequence[Generator] | None = None, copies: int = 1) -> None:
        self.generators = generators
        self.copies = copies if generators is None else len(generators)

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return [copies * rows, units] numbers in [0, 1), on the device of ``like``.

        Always in single precision: half would be too coarse, and one seed gives one set of masks
        whatever the precision of the model. A CPU makes random bits one word after the other, so
        many numbers are made of fewer bits; see :func:`from_words`.
        """
        count = rows * units
        if count < _MANY or like.device.type != "cpu":
            return self._numbers(torch.rand, rows, units, like)
        words = torch.empty(self.copies, -(-count // 4) + 1, dtype=torch.int64)
        if self.generators is None:
            words.random_(-(2**63), None)
        else:
            for part, generator in zip(words, self.generators, strict=True):
                part.random_(-(2**63), None, generator=generator)
        return from_words(words, count).reshape(-1, units)

    def reserve(self, rows: int, units: Sequence[int], like: Tensor) -> None:
        """Announce the next calls of :meth:`uniform`: the same rows, and their units in order."""

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return as many standard normal numbers, also in single precision."""
        return self._numbers(torch.randn, rows, units, like)

    def _numbers(self, draw: Callable[..., Tensor], rows: int, units: int, like: Tensor) -> Tensor:
        if self.generators is None:
            return draw(self.copies * rows, units, device=like.device, dtype=torch.float32)
        parts = [
            draw(rows, units, device=like.device, dtype=torch.float32, generator=generator)
            for generator in self.generators
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class SeededNoise(Noise):
    """Numbers of draws that depend on nothing but the seed of each."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.copies = len(seeds)
        self._seeds, self._device = seeds, device
        self._reserved: list[Tensor] = []

    def reserve(self, rows: int, units: Sequence[int], like: Tensor) -> None:
        """Draw few numbers of all calls at once, which are the same: each draw has its own state.

        Examples:
            >>> one_by_one, at_once = (SeededNoise([3, 4], torch.device("cpu")) for _ in range(2))
            >>> like = torch.zeros(())
            >>> at_once.reserve(1, [5, 2], like)
            >>> [
            ...     torch.equal(one_by_one.uniform(1, units, like), at_once.uniform(1, units, like))
            ...     for units in (5, 2)
            ... ]
            [True, True]
        """
        counts = [rows * count for count in units]
        if max(counts) < _MANY and like.device.type == "cpu":
            numbers = self._numbers(torch.rand, 1, sum(counts), like)
            pairs = zip(torch.split(numbers, counts, -1), units, strict=True)
            self._reserved = [part.reshape(-1, count) for part, count in pairs]

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return numbers of each draw's own, reserved or new."""
        if not self._reserved:
            return super().uniform(rows, units, like)
        numbers = self._reserved.pop(0)
        assert numbers.shape == (self.copies * rows, units), "not the numbers that were reserved"
        return numbers

    @cached_property
    def generators(self) -> Sequence[Generator | None]:  # type: ignore[override]
        """Made when numbers are asked for: not all methods ask. The meta device has no numbers."""
        if self._device.type == "meta":
            return [None] * len(self._seeds)
        return [Generator(self._device).manual_seed(seed) for seed in self._seeds]


class NoNoise(Noise):
    """Stands for no randomness at all: masks are their mean, and normal numbers are 0.

    Examples:
        >>> NoNoise().normal(1, 2, torch.zeros(()))
        tensor([[0., 0.]])
    """

    expected = True

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Refuse: the mean of what is computed from uniform numbers is not known."""
        raise TypeError(
            "the method computes its masks from noise.uniform, so that their mean is not known: "
            "model(x) in eval mode needs policy.bernoulli, or policy.drawing, in its place; call "
            "model.predict(x), which draws, until then"
        )

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return zeros, the mean, in single precision."""
        return torch.zeros(rows, units, device=like.device)


class RecordedNoise(Noise):
    """Uniform numbers that were drawn before, [copies * rows, units] per call of ``uniform``.

    Examples:
        >>> noise = RecordedNoise([torch.tensor([[0.25, 0.75]])], copies=1)
        >>> noise.uniform(1, 2, torch.zeros(()))
        tensor([[0.2500, 0.7500]])
    """

    def __init__(self, numbers: Iterable[Tensor], copies: int) -> None:
        super().__init__(copies=copies)
        self.numbers = iter(numbers)

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return the next numbers, which must have been drawn for this shape."""
        numbers = next(self.numbers)
        assert numbers.shape == (self.copies * rows, units), (numbers.shape, rows, units)
        return numbers


def from_words(words: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1), four from each random word of 64 bits.

    A number has 16 bits of its own; the 8 below them are common to its row, from the row's last
    word. So each is uniform over the multiples of 2**-24, as those of ``torch.rand`` are, and rare
    events keep their probability. Two numbers of a row are independent but for the common
    bits: probabilities of pairs of events u < a and u' < b are a * b within 2**-32.

    ``words`` are int64, [rows, at least count / 4 + 1]; the result is [rows, count].

    Examples:
        >>> from_words(torch.tensor([[0, 0], [2**62, 128]]), 4)
        tensor([[0.5000, 0.5000, 0.5000, 0.5000],
                [0.5000, 0.5000, 0.5000, 0.7500]])
    """
    own = words[:, :-1].view(torch.int16)[:, :count]  # from -2**15 on
    common = (words[:, -1:] & 255).to(torch.float32)
    # All sums and products are exact: they need 24 bits.
    return own.to(torch.float32).mul_(2**-16).add_(common.add_(2**23).mul_(2**-24))
