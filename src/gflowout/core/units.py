"""What one unit of a site is: a feature, a group of features, a pixel, a patch, a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.lazy import cached_property

ALWAYS = -1
"""The unit of elements that are never masked."""


@dataclass(frozen=True)
class Units:
    """What is switched on and off as one at a site, and how likely before training.

    Cells are numbered along ``axis``: features of a vector, channels, or, with several axes,
    positions (row by row). Every cell is a unit of its own unless it belongs to a group.

    Attributes:
        axis: Axis of the activation that holds the cells; several, in rising order, for the pixels
            of an image, ``(2, 3)``. ``None``: features (last axis), or channels (axis 1 of an image
            map).
        groups: Cells that live or die together, such as the one-hot columns of one variable.
        patch: Side of the squares that are one cell, on all axes or on each; 1 is a pixel.
        keep: Keep rate that the method starts from, or has as its prior: one number, or one per
            cell, the same within a group. ``None``: the method's own option.
        always: Cells that are never masked.

    Examples:
        >>> import gflowout as gfo
        >>> net = torch.nn.Linear(5, 2)
        >>> sites = {"input": gfo.Units(groups=[[0, 1, 2]], always=[4], keep=0.2)}
        >>> example = (torch.zeros(2, 5),)
        >>> model = gfo.wrap(net, "mc", sites, likelihood=gfo.Categorical(2), example=example)
        >>> model.sites[0].units
        2
    """

    axis: int | tuple[int, ...] | None = None
    groups: Sequence[Sequence[int]] = ()
    patch: int | tuple[int, ...] | None = None
    keep: float | Sequence[float] | None = None
    always: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Check what can be checked without a shape."""
        axes = self.axis if isinstance(self.axis, tuple | list) else (self.axis,)
        for axis in axes:
            lone = axis is None and len(axes) == 1
            if isinstance(axis, bool) or not (lone or isinstance(axis, Integral)):
                raise TypeError(f"axis must be an integer or a tuple of them, got {self.axis!r}")
        if not axes or len(set(axes)) < len(axes):
            raise ValueError(f"axis must name every axis once, got {self.axis!r}")
        if isinstance(self.axis, tuple | list):
            object.__setattr__(self, "axis", tuple(map(int, self.axis)))
        sides = self.patch if isinstance(self.patch, tuple | list) else (self.patch,)
        for side in sides:
            if side is not None:
                checks.integer("patch", side, low=1)
        for name in ("groups", "always"):
            value = getattr(self, name)
            if isinstance(value, str) or not hasattr(value, "__iter__"):
                raise TypeError(f"{name} must be a list, got {value!r}")
        for group in self.groups:
            if not hasattr(group, "__iter__"):
                raise TypeError(f"groups must hold lists of cells, got {group!r}")


@dataclass(frozen=True)
class Layout:
    """The unit of every element of an activation: what :class:`Units` means for a known shape.

    Attributes:
        axes: Of the activation, in rising order.
        shape: Sizes on these axes.
        unit: Of every element, row by row; ``ALWAYS`` for those that are never masked.

    Examples:
        >>> layout = Layout((1,), (4,), (0, 0, 1, ALWAYS))
        >>> layout.widen(torch.tensor([[0.0, 1.0]]))
        tensor([[0., 0., 1., 1.]])
        >>> layout.narrow(torch.tensor([[1.0, 3.0, 5.0, 7.0]]))
        tensor([[2., 5.]])
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    unit: tuple[int, ...]

    @cached_property
    def units(self) -> int:
        """Number of units."""
        return max(self.unit) + 1

    @cached_property
    def _index(self) -> Tensor:
        index = torch.tensor(self.unit)
        return torch.where(index == ALWAYS, self.units, index)

    @cached_property
    def _count(self) -> Tensor:
        return self._index.bincount(minlength=self.units + 1)[: self.units]

    def widen(self, mask: Tensor) -> Tensor:
        """Masks of units, [rows, units], as masks of elements, [rows, elements]."""
        index = self._index.to(mask.device)
        return F.pad(mask, (0, 1), value=1.0).index_select(1, index)

    def narrow(self, values: Tensor) -> Tensor:
        """Values of elements, [rows, elements], averaged over those of every unit."""
        sums = values.new_zeros(values.shape[0], self.units + 1)
        sums = sums.index_add(1, self._index.to(values.device), values)
        return sums[:, : self.units] / self._count.to(values)


def layout_of(units: Units, axes: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """Number the units on some axes, in rising order, of an activation.

    Examples:
        >>> layout_of(Units(patch=2), (2, 3), (2, 4)).unit
        (0, 0, 1, 1, 0, 0, 1, 1)
    """
    cells = _cells(units, shape)
    count = max(cells) + 1
    owner, grouped = list(range(count)), set[int]()
    for group in units.groups:
        members = [_cell("groups", member, count) for member in group]
        if not members:
            raise ValueError("groups must not hold an empty group")
        for member in members:
            if member in grouped:
                raise ValueError(f"groups: cell {member} is named twice")
            grouped.add(member)
            owner[member] = members[0]
    for kept in (_cell("always", cell, count) for cell in units.always):
        if kept in grouped:
            raise ValueError(f"always: cell {kept} is in a group as well; name it once")
        owner[kept] = ALWAYS
    number = {ALWAYS: ALWAYS}
    for first in owner:
        number.setdefault(first, len(number) - 1)
    if len(number) == 1:
        raise ValueError("always holds every cell, so that nothing is left to mask")
    return Layout(axes, shape, tuple(number[owner[cell]] for cell in cells))


def keep_rates(units: Units, layout: Layout) -> tuple[float, ...] | None:
    """Keep rate of every unit, if the user gave any.

    Examples:
        >>> units = Units(groups=[[0, 1]], keep=[0.2, 0.2, 0.9])
        >>> keep_rates(units, layout_of(units, (1,), (3,)))
        (0.2, 0.9)
    """
    if units.keep is None:
        return None
    given: Any = units.keep
    if isinstance(given, Real):
        return (_rate(float(given)),) * layout.units
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise TypeError(f"keep must be a rate, or one for each cell, got {given!r}")
    cells = _cells(units, layout.shape)
    rates, count = [float(rate) for rate in given], max(cells) + 1
    if len(rates) != count:
        raise ValueError(
            f"keep must be one rate or one for each of the {count} cells, got {len(rates)}"
        )
    keep: dict[int, float] = {}
    for cell, unit in zip(cells, layout.unit, strict=True):
        if unit != ALWAYS and keep.setdefault(unit, _rate(rates[cell])) != rates[cell]:
            raise ValueError(
                f"keep must be the same within a group, got {keep[unit]:g} and {rates[cell]:g}"
            )
    return tuple(keep[unit] for unit in range(layout.units))


def _cells(units: Units, shape: tuple[int, ...]) -> list[int]:
    """Cell of every element, row by row."""
    sides = units.patch if isinstance(units.patch, tuple | list) else (units.patch,) * len(shape)
    if len(sides) != len(shape):
        raise ValueError(f"patch must have one side for each of {len(shape)} axes, got {sides}")
    cells = [0]
    for size, side in zip(shape, sides, strict=True):
        step = side or 1
        count = -(-size // step)
        cells = [cell * count + place // step for cell in cells for place in range(size)]
    return cells


def _cell(name: str, cell: int, count: int) -> int:
    cell = checks.integer(f"{name}: a cell", cell, low=0)
    if cell >= count:
        raise ValueError(f"{name}: a cell must be below {count}, their number here, got {cell}")
    return cell


def _rate(rate: float) -> float:
    if isinstance(rate, float) and math.isclose(rate, 1.0):
        raise ValueError("keep must be below 1, got 1; name cells that must stay in always")
    return checks.probability("keep", rate)
