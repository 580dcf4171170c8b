"""Statistics of masks: correlation with the reward, distances, information about the label.

Pure functions of tensors. Masks are [draws, points, units] of 0 and 1. Knows nothing of models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.optional import require


@dataclass(frozen=True)
class Correlation:
    """Correlation over the masks of each point, and over all of them together.

    Attributes:
        pearson: Mean over points.
        spearman: Mean over points.
        significant: Share of points whose Pearson correlation is positive with p <= 0.05.
        pooled: Pearson correlation of all masks, each point's mean taken out.
        p: Of the pooled one, two-sided.
        points: Points in which both values vary; the others are left out.
        masks: Of each point.
    """

    pearson: float
    spearman: float
    significant: float
    pooled: float
    p: float
    points: int
    masks: int


def correlate(first: Tensor, second: Tensor) -> Correlation:
    """Correlate two values of masks within each point.

    Values of different points are never compared: each has its own normalising constant.

    Args:
        first: [masks, points].
        second: [masks, points].

    Examples:
        >>> first = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, -1.0]])
        >>> found = correlate(first, 10 * first + torch.tensor([5.0, -7.0]))
        >>> round(found.pearson, 6), round(found.spearman, 6), found.points
        (1.0, 1.0, 2)
    """
    first, second = (values.double() for values in (first, second))
    varies = [(values.max(0).values > values.min(0).values) for values in (first, second)]
    rows = varies[0] & varies[1]
    first, second = first[:, rows], second[:, rows]
    masks, points = first.shape
    if masks < 3 or not points:
        none = math.nan
        return Correlation(none, none, none, none, none, points, masks)
    r = _pearson(first, second)
    rho = _pearson(ranks(first), ranks(second))
    centred = [values - values.mean(0) for values in (first, second)]
    pooled = float(_pearson(*(values.flatten().unsqueeze(1) for values in centred))[0])
    each = [p_value(value, masks - 2) for value in r.tolist()]
    hits = [p <= 0.05 and value > 0 for p, value in zip(each, r.tolist(), strict=True)]
    # Every point has spent one degree of freedom on its mean.
    free = points * (masks - 1) - 1
    return Correlation(
        float(r.mean()),
        float(rho.mean()),
        sum(hits) / points,
        pooled,
        p_value(pooled, free),
        points,
        masks,
    )


def p_value(correlation: float, free: int) -> float:
    """Two-sided p-value of a Pearson correlation.

    Args:
        correlation: In [-1, 1].
        free: Degrees of freedom: the number of pairs less 2.
    """
    if abs(correlation) >= 1:
        return 0.0
    t = abs(correlation) * math.sqrt(free / (1 - correlation**2))
    stats = require("scipy.stats", extra="studies", purpose="a p-value")
    return float(2 * stats.t(free).sf(t))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the first axis from 1; equal values share the mean of theirs.

    Examples:
        >>> ranks(torch.tensor([[3.0], [1.0], [3.0]])).flatten().tolist()
        [2.5, 1.0, 2.5]
    """
    below = (values.unsqueeze(0) < values.unsqueeze(1)).sum(1)
    same = (values.unsqueeze(0) == values.unsqueeze(1)).sum(1)
    return below.double() + (same + 1) / 2


def manhattan(first: Tensor, second: Tensor) -> float:
    """Mean distance between rows, per unit: 0 for equal ones, 1 for opposite ones.

    Args:
        first: Mean masks, [points, units].
        second: Mean masks of the same points elsewhere.

    Examples:
        >>> manhattan(torch.tensor([[1.0, 0.5]]), torch.tensor([[0.0, 0.5]]))
        0.5
    """
    return float((first - second).abs().mean())


def pair_distances(means: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean Manhattan distance per unit over pairs of points of one class, and of two.

    Args:
        means: Mean masks, [points, units].
        labels: Classes, [points].

    Examples:
        >>> means = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> pair_distances(means, torch.tensor([0, 0, 1]))
        (0.5, 0.75)
    """
    far = torch.cdist(means.double(), means.double(), p=1) / means.shape[1]
    first, second = torch.triu_indices(len(means), len(means), offset=1)
    far, same = far[first, second], labels[first] == labels[second]
    return _mean(far[same]), _mean(far[~same])


def keep_by_class(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Share of points and draws that keep a unit, by class: [classes, units]; NaN without points.

    Args:
        masks: [draws, points, units].
        labels: [points].
        classes: How many there are.
    """
    kept, sizes = _kept(masks, labels, classes)
    return kept / sizes.unsqueeze(1)


def information(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    r"""Mutual information between each unit's bit and the label, plug-in estimate in bits.

    .. math:: I(z; y) = H(z) - \sum_y p(y) H(z | y)

    with shares for probabilities. It is too large with few points; see :func:`beyond_chance`.

    Args:
        masks: [draws, points, units].
        labels: [points].
        classes: How many there are.

    Returns:
        [units], between 0 and 1.

    Examples:
        >>> masks = torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
        >>> information(masks, torch.tensor([0, 1]), classes=2).tolist()
        [1.0, 0.0]
    """
    return _information(*_kept(masks, labels, classes))


@dataclass(frozen=True)
class Information:
    """Mutual information between units and label, less what shuffled labels give.

    Attributes:
        bits: Of each unit, with the mean over shuffled labels taken off, [units]; about 0 for a
            unit that knows nothing, and then as often below as above.
        above: Whether the unit's information is larger than with any shuffling, [units]. With
            99 of them, 1 % of units that know nothing are.
    """

    bits: Tensor
    above: Tensor


def beyond_chance(
    masks: Tensor, labels: Tensor, classes: int, *, shuffles: int = 99, seed: int = 0
) -> Information:
    """Mutual information beyond what finite data give, by a permutation null.

    Labels are shuffled among points, not among draws: draws of one point belong together.

    Args:
        masks: [draws, points, units].
        labels: [points].
        classes: How many there are.
        shuffles: How often labels are shuffled.
        seed: Of the shuffles.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = masks.double().sum(0)
    null = torch.stack(
        [
            _information(
                *_by_class(kept, len(masks), labels[_shuffled(len(labels), generator)], classes)
            )
            for _ in range(shuffles)
        ]
    )
    found = information(masks, labels, classes)
    return Information(found - null.mean(0), found > null.max(0).values)


def _shuffled(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator)


def _kept(masks: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    return _by_class(masks.double().sum(0), len(masks), labels, classes)


def _by_class(kept: Tensor, draws: int, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How often units were kept by class, [classes, units], and of how many times, [classes]."""
    member = F.one_hot(labels.long(), classes).double()
    return member.T @ kept, member.sum(0) * draws


def _information(kept: Tensor, sizes: Tensor) -> Tensor:
    there = sizes > 0
    kept, sizes = kept[there], sizes[there]
    whole = _entropy(kept.sum(0) / sizes.sum())
    parts = _entropy(kept / sizes.unsqueeze(1))
    return (whole - (sizes / sizes.sum()) @ parts).clamp(min=0).abs()  # no -0


def _entropy(keep: Tensor) -> Tensor:
    """Of a bit, in bits."""
    return -(torch.xlogy(keep, keep) + torch.xlogy(1 - keep, 1 - keep)) / math.log(2)


def _pearson(first: Tensor, second: Tensor) -> Tensor:
    """Of each column."""
    first, second = first - first.mean(0), second - second.mean(0)
    scale = (first.square().sum(0) * second.square().sum(0)).sqrt()
    return ((first * second).sum(0) / scale).clamp(-1, 1)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
