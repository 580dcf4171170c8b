"""What one forward pass draws: masks and their log-probabilities, site after site.

A trajectory is filled by a method while the backbone runs and read by it afterwards. It does not
know how masks are chosen. Sizes of batches are read off ``shape``, here and in methods, not by
``len``: they are symbols while a model is traced into a file (:mod:`gflowout.export`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gflowout.core import tree

_MANY = 2**12
"""Numbers of one draw and site from which :func:`from_words` is faster than PyTorch's own."""


class Noise:
    """Random numbers that do not depend on how draws are split into passes.

    Args:
        generators: One per copy of the batch in the pass, or ``None`` for PyTorch's own state.
        copies: Copies of the batch in the pass.

    Examples:
        >>> both = Noise([torch.Generator().manual_seed(seed) for seed in (1, 2)])
        >>> second = Noise([torch.Generator().manual_seed(2)])
        >>> like = torch.zeros(())
        >>> torch.equal(both.uniform(3, 4, like)[3:], second.uniform(3, 4, like))
        True
    """

    def __init__(
        self, generators: Sequence[torch.Generator] | None = None, copies: int = 1
    ) -> None:
        self.generators = generators
        self.copies = copies if generators is None else len(generators)

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """Return [copies * rows, units] numbers in [0, 1), on the device of ``like``.

        Always in single precision: half would be too coarse, and one seed gives one set of masks
        whatever the precision of the model. A CPU makes random bits one word after the other, so
        many numbers are made of fewer bits; see :func:`from_words`.

        Args:
            rows: Rows per copy of the batch.
            units: Columns.
            like: Gives the device.
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


def from_words(words: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1), four from each random word of 64 bits.

    A number has 16 bits of its own; the 8 below them are common to its row, from the row's last
    word. So each is uniform over the multiples of 2**-24, as those of ``torch.rand`` are, and rare
    events keep their probability. Two numbers of a row are independent but for the common
    bits: probabilities of pairs of events u < a and u' < b are a * b within 2**-32.

    Args:
        words: [rows, at least count / 4 + 1] of int64.
        count: Numbers per row.

    Returns:
        [rows, count].

    Examples:
        >>> from_words(torch.tensor([[0, 0], [2**62, 128]]), 4)
        tensor([[0.5000, 0.5000, 0.5000, 0.5000],
                [0.5000, 0.5000, 0.5000, 0.7500]])
    """
    own = words[:, :-1].view(torch.int16)[:, :count]  # from -2**15 on
    common = (words[:, -1:] & 255).to(torch.float32)
    # All sums and products are exact: they need 24 bits.
    return own.to(torch.float32).mul_(2**-16).add_(common.add_(2**23).mul_(2**-24))


class Recorded(Noise):
    """Uniform numbers that were drawn before, handed out in the order in which they were.

    Args:
        numbers: One [copies * rows, units] per call of ``uniform``.
        copies: Copies of the batch in the pass.

    Examples:
        >>> noise = Recorded([torch.tensor([[0.25, 0.75]])], copies=1)
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


@dataclass
class Trajectory:
    """Masks of one pass, with what their method says of them.

    A row is one drawn set of masks. Often each example has its own; where examples share masks,
    ``index`` tells which row an example uses.

    Attributes:
        noise: Source of random numbers.
        given: Masks to score instead of drawing, one [rows, units] per site.
        label: Encoded labels, [batch, label size].
        index: Row of every example, [batch]; ``None`` when row and example are the same, or when
            one row serves all, or one each copy of the batch.
        masks: One [rows, units] per site so far.
        log_q: Log-probability of the masks under the posterior, [rows].
        log_p: Log-probability of the masks under the prior, [rows].
        log_z: Estimate of the log evidence, [rows].
        log_likelihood: log p(y | x, z), [batch], once the pass is over.
        batch: Examples in one copy of the batch, known from the first site on.
        real: Which positions are no padding, [batch or 1, tokens] of bool, in one copy of the
            batch; ``None`` if all count.
        context: What else the mask generators see, [rows, size].
        summaries: Running summaries of the masks so far, by the name of who keeps them.
        shared: Masks shared by several examples, for methods that multiply them with these.
    """

    noise: Noise = field(default_factory=Noise)
    given: Sequence[Tensor] | None = None
    label: Tensor | None = None
    index: Tensor | None = None
    masks: list[Tensor] = field(default_factory=list)
    log_q: Tensor | None = None
    log_p: Tensor | None = None
    log_z: Tensor | None = None
    log_likelihood: Tensor | None = None
    batch: int = 0
    real: Tensor | None = None
    context: Tensor | None = None
    summaries: dict[str, Tensor] = field(default_factory=dict)
    shared: Trajectory | None = None

    @property
    def copies(self) -> int:
        """Copies of the batch in the pass."""
        return self.noise.copies

    def mask(self, site: int, draw: Callable[[], Tensor]) -> Tensor:
        """Take the given mask of a site, or draw it, and keep it."""
        mask = draw() if self.given is None else self.given[site]
        self.masks.append(mask)
        return mask

    def earlier(self, like: Tensor) -> Tensor:
        """Masks of all sites before this one, side by side: [rows, units so far]."""
        if not self.masks:
            return like.new_zeros(like.shape[0], 0)
        masks = torch.cat(self.masks, -1) if len(self.masks) > 1 else self.masks[0]
        return masks.to(like.dtype)

    def add(self, log_q: Tensor, log_p: Tensor) -> None:
        """Add one site's log-probabilities, [rows] each."""
        self.log_q = log_q if self.log_q is None else self.log_q + log_q
        self.log_p = log_p if self.log_p is None else self.log_p + log_p

    def every_copy(self, values: Tensor) -> Tensor:
        """Repeat values of one copy of the batch for all copies; leave those of all alone."""
        return values if values.shape[0] > self.batch else tree.repeat(values, self.copies)

    def per_example(self, rows: Tensor) -> Tensor:
        """Map a value per row to a value per example."""
        if self.index is not None:
            return rows[self.index]
        one_per_copy = rows.shape[0] == self.copies > 1
        return rows.repeat_interleave(self.batch, 0) if one_per_copy else rows

    def rows_in_use(self, rows: Tensor) -> Tensor:
        """Rows as they are if there is one per copy of the batch, else a row per example."""
        return rows if rows.shape[0] == self.copies else self.per_example(rows)

    def full_masks(self, examples: int) -> list[Tensor]:
        """Masks as they act on every example, [examples, units] per site."""
        own = [self.per_example(mask).expand(examples, -1) for mask in self.masks]
        if self.shared is None:
            return own
        shared = self.shared.full_masks(examples)
        return [one * other for one, other in zip(shared, own, strict=True)]


def known(value: Tensor | None) -> Tensor:
    """Return a value that the pass must have set."""
    assert value is not None
    return value


def merge(parts: Sequence[Trajectory]) -> Trajectory:
    """Join the trajectories of several passes over the same batch into one, copy after copy."""
    if len(parts) == 1:
        return parts[0]

    def join(values: Sequence[Tensor | None]) -> Tensor | None:
        present = [value for value in values if value is not None]
        return torch.cat(present) if present else None

    rows = len(parts[0].masks[0]) if parts[0].masks else 0
    given = [part.given for part in parts if part.given is not None]
    return Trajectory(
        noise=Noise(copies=len(parts)),
        given=[torch.cat(masks) for masks in zip(*given, strict=True)] if given else None,
        label=join([part.label for part in parts]),
        index=join(
            [
                None if part.index is None else part.index + number * rows
                for number, part in enumerate(parts)
            ]
        ),
        masks=[torch.cat(masks) for masks in zip(*(part.masks for part in parts), strict=True)],
        log_q=join([part.log_q for part in parts]),
        log_p=join([part.log_p for part in parts]),
        log_z=join([part.log_z for part in parts]),
        log_likelihood=join([part.log_likelihood for part in parts]),
        batch=parts[0].batch,
        real=parts[0].real,
        context=join([part.context for part in parts]),
        shared=merge([part.shared for part in parts if part.shared]) if parts[0].shared else None,
    )
