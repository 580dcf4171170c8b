"""What one forward pass draws: masks and their log-probabilities, site after site.

Sizes of batches are read off ``shape``, here and in methods, not by ``len``: they are symbols while
a model is traced into a file (:mod:`gflowout.export`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.noise import Noise


@dataclass(eq=False)
class Conditions:
    """What a pass is run under: set by who runs it.

    Attributes:
        noise: Source of random numbers.
        given: Masks to score instead of drawing, one [rows, units] per site.
        batch: Examples in one copy of the batch, set at the first site.
        real: Which positions are real tokens, [batch or 1, tokens] of bool, in one copy of the
            batch; ``None`` if all count.
        label: Encoded labels, [batch, label size]; in training passes only.
        copies: Copies of the batch in the pass.
    """

    noise: Noise = field(default_factory=Noise)
    given: Sequence[Tensor] | None = None
    batch: int = 0
    real: Tensor | None = None
    label: Tensor = field(init=False, repr=False)
    copies: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Read the number of copies off the noise."""
        self.copies = self.noise.copies


@dataclass(eq=False)
class Trajectory(Conditions):
    """Masks of one pass, with their log-probabilities: set by the method while the pass runs.

    A row is one drawn set of masks. Often each example has its own; where examples share masks,
    ``index`` tells which row an example uses.

    Attributes:
        masks: One [rows, units] per site so far.
        index: Row of every example, [batch]; ``None`` when row and example are the same, or when
            one row serves all, or one each copy of the batch.
        log_q: Log-probability of the masks under the posterior, [rows]; set by :meth:`add`.
        log_p: Log-probability of the masks under the prior, [rows]; set by :meth:`add`.
        log_drawn: Log-probability of the masks under the distribution that drew them, without
            gradient, [rows], where the method weights draws.
        log_z: Estimate of the log evidence, [rows], where the method learns one.
        context: What else the mask generators see, [rows, size].
        summaries: Running summaries of the masks so far, by the name of who keeps them.
        shared: Masks shared by several examples, for methods that multiply them with these.
        terms: Further tensors that a method's losses need, [rows, ...], by name and site.
    """

    masks: list[Tensor] = field(default_factory=list)
    index: Tensor | None = None
    log_q: Tensor = field(init=False, repr=False)
    log_p: Tensor = field(init=False, repr=False)
    log_drawn: Tensor = field(init=False, repr=False)
    log_z: Tensor | None = None
    context: Tensor | None = None
    summaries: dict[str, Tensor] = field(default_factory=dict)
    shared: Trajectory | None = None
    terms: dict[str, list[Tensor]] = field(default_factory=dict)

    def mask(self, site: int, draw: Callable[[], Tensor]) -> Tensor:
        """Take the given mask of a site, or draw it, and keep it."""
        mask = draw() if self.given is None else self.given[site]
        self.masks.append(mask)
        return mask

    def add(self, log_q: Tensor, log_p: Tensor, **terms: Tensor) -> None:
        """Add the log-probabilities, [rows] each, of the mask that was kept last.

        Also keep ``terms``, [rows, ...] or those of one copy of the batch, for the losses.
        """
        self.record(**{name: self.every_copy(value) for name, value in terms.items()})
        if len(self.masks) > 1:
            log_q, log_p = self.log_q + log_q, self.log_p + log_p
        self.log_q, self.log_p = log_q, log_p

    def record(self, **terms: Tensor) -> None:
        """Keep tensors of the latest site, [rows, ...], for the losses."""
        for name, value in terms.items():
            self.terms.setdefault(name, []).append(value)

    def total(self, name: str) -> Tensor | None:
        """Sum over sites of the tensors of a name; ``None`` if there are none."""
        parts = self.terms.get(name)
        return functools.reduce(torch.add, parts) if parts else None

    def earlier(self, like: Tensor, history: nn.Module | None = None, name: str = "") -> Tensor:
        """What a generator sees of the masks of all sites before this one, [rows, size].

        The masks side by side, or what ``history``, a
        :class:`gflowout.core.generators.MaskHistory`, makes of them; posterior and prior, by
        ``name``, each have one, trained by their own loss. ``like`` gives rows and dtype. The size
        is 0 at the first site.
        """
        if not self.masks:
            return like.new_zeros(like.shape[0], 0)
        if history is not None:
            self.summaries[name] = history(self.masks, self.summaries.get(name))
            return self.summaries[name]
        masks = torch.cat(self.masks, -1) if len(self.masks) > 1 else self.masks[0]
        return masks.to(like.dtype)

    def every_copy(self, values: Tensor) -> Tensor:
        """Repeat values of one copy of the batch for all copies; leave those of all alone."""
        if self.copies == 1 or values.shape[0] > self.batch:
            return values
        return tree.repeat(values, self.copies)

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
        masks = [self.per_example(mask).expand(examples, -1) for mask in self.masks]
        if self.shared is None:
            return masks
        shared = self.shared.full_masks(examples)
        return [first * second for first, second in zip(shared, masks, strict=True)]


@dataclass(eq=False)
class Scored(Trajectory):
    """A trajectory with log p(y | x, z), [batch], which is set when the pass is over."""

    log_likelihood: Tensor = field(init=False, repr=False)

    def each_by_draw(self, *values: Tensor) -> list[Tensor]:
        """:meth:`by_draw` of several."""
        return [self.by_draw(value) for value in values]

    def by_draw(self, values: Tensor) -> Tensor:
        """Reshape [draws * batch, ...] to [draws, batch, ...]; unchanged for one draw."""
        return values if self.copies == 1 else values.reshape(self.copies, -1, *values.shape[1:])

    def masks_by_draw(self) -> list[Tensor]:
        """Masks per example, [batch, units] or [draws, batch, units], without gradient."""
        masks = self.full_masks(self.log_likelihood.shape[0])
        return [self.by_draw(mask).detach() for mask in masks]


Kind = TypeVar("Kind", bound=Trajectory)


def merge(parts: Sequence[Kind]) -> Kind:
    """Join the trajectories of several passes over the same batch into one, copy after copy."""
    first = parts[0]
    if len(parts) == 1:
        return first
    merged = type(first)(Noise(copies=len(parts)), batch=first.batch, real=first.real)
    merged.masks = _join([part.masks for part in parts])
    if first.given is not None:
        merged.given = _join([part.given for part in parts if part.given is not None])
    if first.index is not None:
        rows = len(first.masks[0])
        indices = [part.index for part in parts if part.index is not None]
        merged.index = torch.cat([index + at * rows for at, index in enumerate(indices)])
    for name in ("label", "log_q", "log_p", "log_drawn", "log_z", "log_likelihood", "context"):
        if getattr(first, name, None) is not None:
            setattr(merged, name, torch.cat([getattr(part, name) for part in parts]))
    for name in first.terms:
        merged.terms[name] = _join([part.terms[name] for part in parts])
    if first.shared is not None:
        merged.shared = merge([part.shared for part in parts if part.shared is not None])
    return merged


def _join(masks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.cat(of_site) for of_site in zip(*masks, strict=True)]
