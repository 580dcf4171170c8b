"""Mask sites: what their activations look like, and how masks are applied to them.

A site is a submodule whose output is multiplied by a mask, or the backbone's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.shared_product import SharedProduct
from gflowout.core.units import Layout

INPUT = "input"
"""The site name that stands for the backbone's own input."""

DROPOUTS = nn.modules.dropout._DropoutNd
"""The base of all ``nn.Dropout*`` modules."""


@dataclass(frozen=True)
class Site:
    """One place in the backbone that is masked.

    Attributes:
        name: Name of the submodule, or ``"input"``.
        units: Number of units that a mask switches: features or channels, or groups of them.
        axis: Axis of the units in the activation; the first of several.
        rank: Number of axes of the activation.
        batch_axis: Axis of the batch in the activation: 0, or 1 for sequence-first modules.
        rate: Drop rate of the ``nn.Dropout`` that stood here, if one did.
        consumer: Name of the linear or convolutional layer that reads the units, if one was seen.
        layout: Which unit every element belongs to; ``None`` for one unit per place on ``axis``.
        keep: Keep rate of every unit before training, if the user gave any.
        tokens: Axis of the positions that may be padding, if there is one; see :meth:`pool`.
        folded: What the first axis of the submodule's output has instead of the batch: several rows
            of one example after the other, ``"examples"``, such as the frames of videos; or rows
            of the ``"batch"`` as a whole, such as nodes of graphs, which one mask serves. All axes
            above are then those of the activation as [batch or 1, rows, ...]; see :meth:`unfold`.

    Examples:
        >>> Site("conv1", units=8, axis=1, rank=4).spread(torch.ones(5, 8)).shape
        torch.Size([5, 8, 1, 1])
    """

    name: str
    units: int
    axis: int
    rank: int
    batch_axis: int = 0
    rate: float | None = None
    consumer: str | None = None
    layout: Layout | None = None
    keep: tuple[float, ...] | None = None
    tokens: int | None = None
    folded: str | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes that the units lie on."""
        return (self.axis,) if self.layout is None else self.layout.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes on these axes."""
        return (self.units,) if self.layout is None else self.layout.shape

    def pool(self, activation: Tensor, real: Tensor | None = None) -> Tensor:
        """Average an activation over all that a unit stands for: [batch, units].

        Padding is left out where ``tokens`` is known: at sites that in the example call had, beside
        batch and units, one axis, of as many positions as the padding. All other sites are averaged
        over everything, since what they have there is something else: regions of a picture,
        or nothing. A site that had the axis and comes with another number of positions is an error:
        averaging over all of them would let masks depend on padding again, unseen.

        Args:
            activation: Any number of copies of the batch, one after the other.
            real: Which positions are real tokens, [batch or 1, tokens] of bool. The average
                of a row without any is 0.

        Examples:
            >>> site = Site("encoder", units=1, axis=2, rank=3, tokens=1)
            >>> h = torch.tensor([[[1.0], [3.0], [8.0]]])
            >>> site.pool(h, torch.tensor([[True, True, False]]))
            tensor([[2.]])
        """
        if real is not None and self.tokens is not None:
            if activation.shape[self.tokens] != real.shape[1]:
                raise ValueError(
                    f"site {self.name!r} gives shape {list(activation.shape)}: axis {self.tokens} "
                    f"must have the {real.shape[1]} positions of the padding, as in `example`"
                )
            pooled = mean_of_real(activation, real, self.batch_axis, self.tokens)
        else:
            pooled = activation.mean(self._others) if self._others else activation
        if self.layout is None:
            return pooled
        if self.batch_axis > self.axis:  # the batch comes first
            pooled = pooled.movedim(self.batch_axis, 0)
        return self.layout.narrow(pooled.flatten(1))

    @property
    def _others(self) -> list[int]:
        """Axes of neither batch nor units."""
        return [axis for axis in range(self.rank) if axis not in (self.batch_axis, *self.axes)]

    def with_tokens(self, shape: Sequence[int], tokens: int) -> Site:
        """This site, with its axis of positions if an example of it has one.

        ``shape`` is that of the activation in the example, ``tokens`` its number of positions.
        """
        others = self._others
        if len(others) != 1 or shape[others[0]] != tokens:
            return self
        return dataclasses.replace(self, tokens=others[0])

    def spread(self, mask: Tensor) -> Tensor:
        """View a mask, [batch or 1, elements], so that it broadcasts against the activation."""
        if self.rank == 2:
            return mask
        shape = [1] * self.rank
        shape[self.batch_axis] = mask.shape[0]
        for axis, size in zip(self.axes, self.shape, strict=True):
            shape[axis] = size
        return mask.reshape(shape)

    def apply(
        self,
        activation: Tensor,
        mask: Tensor,
        copies: int = 1,
        parting: bool = False,
        lazy: bool = False,
    ) -> Tensor:
        """Multiply an activation by a mask.

        Args:
            activation: Copies of the batch, one after the other; a single one if ``parting``.
            mask: One row for all examples, one per copy of the batch, or one per example of every
                copy, [rows, units].
            copies: Copies of the batch in the result.
            parting: Whether the copies part here, and are the same up to here.
            lazy: Whether a linear layer will read the product and no gradient is wanted: then
                masks of whole copies are left to that layer (:mod:`gflowout.core.shared_product`).

        Examples:
            >>> site = Site("fc", units=2, axis=1, rank=2)
            >>> masks = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
            >>> site.apply(torch.ones(1, 2), masks, copies=2, parting=True)
            tensor([[1., 0.],
                    [0., 1.]])
        """
        mask = mask.to(activation.dtype)
        if self.layout is not None:
            mask = self.layout.widen(mask)
        count = mask.shape[0]
        if copies == 1 or (count == 1 and not parting):
            return activation * self.spread(mask)
        present = 1 if parting else copies
        batch = activation.shape[self.batch_axis] // present
        if self.batch_axis != 0:
            rows = mask if count == copies * batch else mask.repeat_interleave(batch, 0)
            return activation * self.spread(rows)
        if lazy and parting and count == copies and batch > 1 and self.rank == 2:
            return SharedProduct(activation, mask)
        rows = self.spread(mask.expand(copies, -1) if count == 1 else mask)
        rows = rows.reshape(copies, -1, *rows.shape[1:])
        return (activation.reshape(present, batch, *activation.shape[1:]) * rows).flatten(0, 1)

    def unfold(self, activation: Tensor, examples: int | None) -> Tensor:
        """View what a submodule gives so that the batch has an axis of its own, if it is folded.

        ``examples`` are those of all copies of the batch; ``None``: every row is one.

        Examples:
            >>> site = Site("frame", units=8, axis=2, rank=5, folded="examples")
            >>> site.unfold(torch.ones(6, 8, 5, 5), examples=2).shape
            torch.Size([2, 3, 8, 5, 5])
        """
        if self.folded is None or activation.dim() == 0:
            return activation
        rows = activation.shape[0]
        count = 1 if self.folded == "batch" else rows if examples is None else examples
        if rows % count:
            raise ValueError(
                f"site {self.name!r} gives shape {list(activation.shape)}: axis 0 must have the "
                f"same number of rows for each of {count} examples, as in `example`"
            )
        return activation.reshape(count, rows // count, *activation.shape[1:])

    def one_row(self, mask: Tensor) -> Tensor:
        """The mask of a site whose rows are of no single example; an error if there are several."""
        if mask.shape[0] > 1 and not bool((mask == mask[:1]).all()):
            raise ValueError(
                f"site {self.name!r} has rows of the batch as a whole, and its masks must be the "
                f"same for all examples, got {mask.shape[0]} that differ"
            )
        return mask[:1]

    def check(self, activation: Tensor) -> None:
        """Raise a ``ValueError`` if an activation is not of the shape that was learned."""
        shape = tuple(activation.shape)
        if activation.dim() != self.rank or tuple(shape[axis] for axis in self.axes) != self.shape:
            if self.layout is None:
                what = f"{self.units} units on axis {self.axis}"
            else:
                what = f"sizes {list(self.shape)} on axes {list(self.axes)}"
            raise ValueError(
                f"site {self.name!r} changed its shape: got {list(shape)}, expected {self.rank} "
                f"axes with {what}, as in `example`"
            )

    def check_mask(self, mask: Any, rows: int, copies: int) -> None:
        """Raise an error if a mask that a method drew is none that :meth:`apply` takes.

        Args:
            mask: What the method's ``draw`` returned.
            rows: Examples in all copies of the batch together.
            copies: Copies of the batch.

        Examples:
            >>> Site("fc", units=2, axis=1, rank=2).check_mask(torch.ones(4, 2), 8, 2)
            Traceback (most recent call last):
                ...
            ValueError: the method drew a mask of shape [4, 2] for site 'fc', which has 2 units: ...
        """
        if not isinstance(mask, Tensor):
            raise TypeError(
                f"the method's draw must return a tensor for site {self.name!r}, got {mask!r}"
            )
        counts = sorted({1, copies, rows})
        if mask.dim() != 2 or mask.shape[1] != self.units or mask.shape[0] not in counts:
            raise ValueError(
                f"the method drew a mask of shape {list(mask.shape)} for site {self.name!r}, which "
                f"has {self.units} units: it must be [rows, {self.units}] with rows one of "
                f"{', '.join(map(str, counts))} (for all examples, for each copy of the batch, for "
                "each example of every copy); trajectory.noise gives numbers of that many rows"
            )


def input_size(module: nn.Module) -> int | None:
    """Features or channels that a linear or convolutional layer reads; ``None`` for all others."""
    if isinstance(module, nn.Linear):
        return module.in_features
    return module.in_channels if isinstance(module, nn.modules.conv._ConvNd) else None


def weights_by_unit(module: nn.Module, units: int) -> Tensor:
    """View the weights of a linear or convolutional layer by the unit that they read, [units, ...].

    Its :func:`input_size` is ``units``, or a multiple for a linear layer that reads flattened maps.

    Examples:
        >>> weights_by_unit(nn.Linear(12, 5), 3).shape
        torch.Size([3, 5, 4])
        >>> weights_by_unit(nn.Conv2d(4, 6, 3, groups=2), 4).shape
        torch.Size([4, 3, 3, 3])
    """
    weight = module.weight
    assert isinstance(weight, Tensor)
    if isinstance(module, nn.modules.conv._ConvNd):
        if module.transposed:
            return weight
        grouped = weight.reshape(module.groups, -1, *weight.shape[1:])
        return grouped.transpose(1, 2).flatten(0, 1)
    return weight.reshape(len(weight), units, -1).transpose(0, 1)


def mean_of_real(values: Tensor, real: Tensor, batch_axis: int, axis: int) -> Tensor:
    """Average over one axis, for every example over its real positions alone; 0 without any.

    ``values`` are any number of copies of the batch, one after the other on ``batch_axis``;
    ``real`` is true where a position is a real token, [batch or 1, positions].

    Examples:
        >>> values = torch.tensor([[1.0, 3.0, 8.0], [1.0, 3.0, 8.0]])
        >>> real = torch.tensor([[True, True, False], [False, False, False]])
        >>> mean_of_real(values, real, batch_axis=0, axis=1)
        tensor([2., 0.])
    """
    rows = tree.repeat(real, values.shape[batch_axis] // real.shape[0])
    shape = [1] * values.dim()
    shape[batch_axis], shape[axis] = rows.shape
    where = (rows if batch_axis < axis else rows.T).reshape(shape)
    precise = torch.promote_types(values.dtype, torch.float32)  # sums of half precision overflow
    # Not a product: what stands at padded positions may be NaN.
    sums = values.masked_fill(~where, 0).sum(axis, dtype=precise)
    return (sums / where.sum(axis).clamp(min=1)).to(values.dtype)
