"""Random splits of points into disjoint parts, as indices: of exact size and reproducible."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks, random

_INTEGRAL: Any = Integral  # NumPy's integers, too


def split(
    n: int,
    fractions: Sequence[float] | Sequence[int],
    *,
    seed: int,
    groups: Sequence[Hashable] | Tensor | None = None,
    stratify: Sequence[Hashable] | Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Split the points 0 .. n - 1 at random: indices of each part, int64 and ascending.

    Args:
        n: Number of points.
        fractions: Size of each part. Floats are shares of n that sum to at most 1; integers are
            counts that sum to at most n. What is left over is in no part.
        seed: Seed of the split.
        groups: Group of each point, [n]. All points of a group go to the same part, so sizes are
            as near to the fractions as the groups allow.
        stratify: Class of each point, [n]. Each part has the class shares of the whole, up to
            rounding. Not together with groups.

    Examples:
        >>> train, validation = split(10, (0.8, 0.2), seed=0)
        >>> len(train), len(validation), sorted([*train.tolist(), *validation.tolist()])
        (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        >>> one, other = split(6, (4, 2), seed=0, groups="aabbcc")  # two of the three letters, one
        >>> bool((one // 2).unique().numel() == 2 and (other // 2).unique().numel() == 1)
        True
    """
    n = checks.integer("n", n, low=1)
    sizes = _sizes(n, fractions)
    generator = random.generator(seed, "split")
    # What is left over is a part of its own until the end.
    quotas = [*sizes, n - sum(sizes)]
    if groups is not None and stratify is not None:
        raise ValueError("groups and stratify cannot both be given: take one of them")
    if groups is not None:
        owner = _by_group(_codes("groups", groups, n), quotas, generator)
    elif stratify is not None:
        owner = _by_class(_codes("stratify", stratify, n), quotas, generator)
    else:
        owner = torch.empty(n, dtype=torch.int64)
        owner[torch.randperm(n, generator=generator)] = _runs(quotas)
    result = tuple((owner == part).nonzero().flatten() for part in range(len(sizes)))
    for part, (indices, size) in enumerate(zip(result, sizes, strict=True)):
        if size and not len(indices):
            empty = f"no group is left for part {part} of fractions={list(fractions)!r}"
            raise ValueError(f"groups are too few or too large: {empty}")
    return result


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a whole number in shares of any sum by the largest remainder.

    The parts sum to ``total``; each is less than one from its exact share.
    """
    exact = [total * share / sum(shares) for share in shares]
    counts = [math.floor(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _sizes(n: int, fractions: Any) -> list[int]:
    wanted = "shares that sum to at most 1, or counts that sum to at most n"
    if isinstance(fractions, str) or not isinstance(fractions, Sequence) or not fractions:
        raise TypeError(f"fractions must be a list of {wanted}, got {fractions!r}")
    if all(isinstance(value, _INTEGRAL) for value in fractions):
        sizes = [checks.integer("fractions", value, low=0) for value in fractions]
        if sum(sizes) > n:
            raise ValueError(f"fractions must be {wanted}={n}, got {list(fractions)!r}")
        return sizes
    shares = [checks.number("fractions", value, low=0, high=1) for value in fractions]
    left = 1 - sum(shares)
    if left < -1e-9:
        raise ValueError(f"fractions must be {wanted}, got {list(fractions)!r}")
    sizes = apportion(n, [*shares, max(left, 0.0) if left > 1e-9 else 0.0])[:-1]
    for share, size in zip(shares, sizes, strict=True):
        if share > 0 and not size:
            raise ValueError(f"fractions: a share of {share:g} of n={n} points holds no point")
    return sizes


def _codes(name: str, values: Any, n: int) -> Tensor:
    """Number the distinct values in the order of their first appearance."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != n:
        expected = f"one value for each of the n={n} points"
        raise ValueError(f"{name} must have {expected}, got {len(listed)}")
    if any(value is None or value != value for value in listed):
        raise ValueError(f"{name} must have a value for each point, got None or NaN among them")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in listed])


def _runs(sizes: Sequence[int] | Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.as_tensor(sizes))


def _by_group(codes: Tensor, quotas: Sequence[int], generator: torch.Generator) -> Tensor:
    """Give each group, in random order, to the part that lacks most."""
    weights = torch.bincount(codes).tolist()
    lacking = list(quotas)
    part_of_group = torch.empty(len(weights), dtype=torch.int64)
    for group in torch.randperm(len(weights), generator=generator).tolist():
        part = max(range(len(lacking)), key=lambda part: lacking[part])
        part_of_group[group] = part
        lacking[part] -= weights[group]
    return part_of_group[codes]


def _by_class(codes: Tensor, quotas: Sequence[int], generator: torch.Generator) -> Tensor:
    """Divide each class by its largest remainders, and hold the parts' sizes at the same time."""
    counts, sizes = torch.bincount(codes), torch.tensor(quotas)
    exact = torch.outer(counts.double(), sizes.double()) / len(codes)
    table = (exact + 1e-9).floor().long()  # [classes, parts]
    rows, columns = (counts - table.sum(1)).tolist(), (sizes - table.sum(0)).tolist()
    # Ties in random order, or the same classes would gain every time.
    cells = torch.randperm(exact.numel(), generator=generator)
    cells = cells[(table - exact).flatten()[cells].argsort(stable=True)]
    by_remainder = [divmod(cell, len(quotas)) for cell in cells.tolist()]
    while any(rows):  # a second round is needed only where the first one led into a corner
        for group, part in by_remainder:
            if rows[group] and columns[part]:
                table[group, part] += 1
                rows[group] -= 1
                columns[part] -= 1
    owner = torch.empty_like(codes)
    for group, count in enumerate(counts.tolist()):
        members = (codes == group).nonzero().flatten()
        owner[members[torch.randperm(count, generator=generator)]] = _runs(table[group])
    return owner
