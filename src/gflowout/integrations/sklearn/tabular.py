"""Tables for training: distinct rows with weights, folds, scales, the rows that an epoch visits.

A row that occurs twice and a row of weight 2 are the same thing here, and the order of rows has no
effect: everything starts from the distinct rows, which are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_VISITS = 20
"""An epoch has at most this many times as many visits as there are distinct rows."""


@dataclass(frozen=True)
class Table:
    """Distinct rows of a training set."""

    x: Floats  # features, [rows, features]
    y: Floats  # targets, [rows, outputs]; a class is its number
    weight: Floats  # how often each row counts, [rows]; positive

    def __len__(self) -> int:
        return len(self.x)

    @property
    def total(self) -> float:
        """How many examples the rows stand for.

        Weights count as repetitions. Where they sum to less than one per row they are taken as
        relative, so that weights that sum to 1 do not make one example of a whole table.
        """
        return max(float(self.weight.sum()), float(len(self)))

    def take(self, rows: Ints) -> Table:
        """The table of some of the rows."""
        return Table(self.x[rows], self.y[rows], self.weight[rows])


def targets(table: Table, kind: str) -> Floats:
    """Targets as columns: numbers, or 0 and 1 for classes."""
    if kind != "categorical":
        return table.y
    indicators: Floats = np.eye(int(table.y.max()) + 1)[table.y[:, 0].astype(int)]
    return indicators


def distinct(x: Floats, y: Floats, weight: Floats) -> Table:
    """Join equal rows, adding their weights, and drop those of weight 0; none is negative."""
    used = weight > 0
    # Adding 0 makes 0 of -0, whose bytes differ.
    joined = np.ascontiguousarray(np.hstack([x[used], y[used]]).astype(np.float64) + 0.0)
    # As bytes: sorting whole rows of numbers takes NumPy ten times as long.
    keys = joined.view(np.dtype((np.void, joined.itemsize * joined.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rows = joined[first]
    sums = np.bincount(inverse.ravel(), weights=weight[used]).astype(np.float64)
    return Table(rows[:, : x.shape[1]], rows[:, x.shape[1] :], sums)


def folds(y: Floats, count: int, rng: np.random.RandomState, classes: bool) -> Ints:
    """Number of the fold of every row, from 0 to ``count - 1``, stratified by the targets.

    Rows are dealt out in the order of their targets, those of equal targets in random order. If
    targets are classes, one row of every class is in no fold (-1), so that no class is ever missing
    from the training rows.
    """
    order = np.lexsort((rng.permutation(len(y)), y[:, 0]))
    if classes:
        _, firsts = np.unique(y[order, 0], return_index=True)
        order = np.delete(order, firsts)
    fold = np.full(len(y), -1, dtype=np.int64)
    fold[order] = (np.arange(len(order)) + rng.randint(count)) % count
    return fold


def visits(weight: Floats, total: float, rng: np.random.RandomState) -> Ints:
    """Numbers of the rows that an epoch visits, ``total`` in all, in random order.

    A systematic sample: a row of weight w > 0 occurs floor(w) or ceil(w) times, w on average. Rows
    of weight 1 occur once each.
    """
    count = max(1, round(min(total, MOST_VISITS * len(weight))))
    ends = np.cumsum(weight) * (count / weight.sum())
    reached = np.floor(ends + rng.uniform()).astype(np.int64)
    reached[-1] = max(count, reached[-2] if len(reached) > 1 else 0)
    times = np.diff(reached, prepend=0)
    return rng.permutation(np.repeat(np.arange(len(weight)), times))


@dataclass(frozen=True)
class Scale:
    """Location and scale of columns."""

    mean: Floats  # [columns]
    deviation: Floats  # [columns]; 1 where a column is constant

    @classmethod
    def of(cls, values: Floats, weight: Floats, learned: bool = True) -> Scale:
        """Weighted mean and standard deviation; unless ``learned``, those that change nothing."""
        if not learned:
            return cls(np.zeros(values.shape[1]), np.ones(values.shape[1]))
        mean = np.average(values, axis=0, weights=weight)
        deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
        # The rounding error of a constant column is no scale.
        constant = deviation <= 1e-12 * np.maximum(1e-300, np.abs(mean))
        return cls(mean, np.where(constant, 1.0, deviation))

    def apply(self, values: Floats) -> Floats:
        """Subtract the mean, divide by the deviation."""
        scaled: Floats = (values - self.mean) / self.deviation
        return scaled
