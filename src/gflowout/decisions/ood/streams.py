"""What a fit remembers of features that come batch by batch: moments, and a random sample."""

from __future__ import annotations

import torch
from torch import Tensor

from gflowout.core import random


class Moments:
    """Class means and covariances in one pass (Chan et al. 1979), in double precision.

    Memory does not grow with the number of rows: a mean for every class, and one matrix. Rows
    without labels are all of class 0.

    Attributes:
        classes: Labels, [classes].
        counts: Rows of every class, [classes].
        means: [classes, features].
        scatter: Sum of the squares about the class means, [features, features].

    Examples:
        >>> moments = Moments()
        >>> moments.add(torch.tensor([[0.0], [2.0]]), torch.tensor([7, 7]))
        >>> moments.add(torch.tensor([[4.0], [9.0]]), torch.tensor([7, 3]))
        >>> moments.classes, moments.means.flatten(), moments.within
        (tensor([7, 3]), tensor([2., 9.], dtype=torch.float64), tensor([[2.]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self.counts, self.means, self.scatter = torch.empty(0), torch.empty(0), torch.empty(0)

    def add(self, features: Tensor, labels: Tensor | None = None) -> None:
        """Add rows.

        Args:
            features: [rows, features].
            labels: Whole numbers, [rows].
        """
        z = double(features)
        if not self._places:
            self.counts, self.means = z.new_zeros(0), z.new_zeros(0, z.shape[1])
            self.scatter = z.new_zeros(z.shape[1], z.shape[1])
        if labels is None:
            labels = torch.zeros(len(z), dtype=torch.int64)
        values, place = torch.unique(labels.to(z.device), return_inverse=True)
        counts = torch.bincount(place, minlength=len(values)).to(z.dtype)
        means = z.new_zeros(len(values), z.shape[1]).index_add_(0, place, z) / counts[:, None]
        rows = self._rows(values)
        before, change = self.counts[rows], means - self.means[rows]
        after = before + counts
        centred = z - means[place]
        self.scatter += centred.T @ centred
        self.scatter += (change * (before * counts / after)[:, None]).T @ change
        self.means[rows] += change * (counts / after)[:, None]
        self.counts[rows] = after

    def _rows(self, values: Tensor) -> Tensor:
        """Where the classes are, new ones behind the others."""
        rows = [self._places.setdefault(int(label), len(self._places)) for label in values]
        new = len(self._places) - len(self.means)
        self.means = torch.cat([self.means, self.means.new_zeros(new, self.means.shape[1])])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])
        return torch.tensor(rows, device=values.device)

    @property
    def classes(self) -> Tensor:
        """Labels in the order in which they came."""
        return torch.tensor(list(self._places), dtype=torch.int64)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    @property
    def mean(self) -> Tensor:
        """Of all rows, [features]."""
        return self.counts @ self.means / self.rows

    @property
    def within(self) -> Tensor:
        """Covariance about the class means, [features, features]."""
        return self.scatter / self.rows

    def about(self, point: Tensor) -> Tensor:
        """Mean product of all rows' differences to a point, [features, features]."""
        away = self.means - point
        return (self.scatter + (away * self.counts[:, None]).T @ away) / self.rows


class Reservoir:
    """A random sample of at most ``size`` of all rows, each as likely as the others.

    Every row gets a random number, and those with the smallest stay.

    Examples:
        >>> reservoir = Reservoir(size=100)
        >>> for start in range(0, 1000, 50):
        ...     reservoir.add(torch.arange(start, start + 50.0)[:, None])
        >>> reservoir.stored.shape
        torch.Size([100, 1])
    """

    def __init__(self, size: int) -> None:
        self._size, self._generator = size, random.generator(0, "reservoir")
        self._keys = torch.empty(0, dtype=torch.float64)
        self.stored = torch.empty(0)

    def add(self, features: Tensor) -> None:
        """Add rows, [rows, features]."""
        keys = torch.rand(len(features), generator=self._generator, dtype=torch.float64)
        if len(self._keys):
            # Of a batch few rows are kept in the end: leave the others out at once.
            full = len(self._keys) >= self._size
            chosen = torch.nonzero(keys < self._keys.max()).flatten() if full else slice(None)
            keys, features = (
                torch.cat([self._keys, keys[chosen]]),
                torch.cat([self.stored, features[chosen].to(self.stored)]),
            )
        if len(keys) > self._size:
            kept = keys.topk(self._size, largest=False).indices.sort().values
            keys, features = keys[kept], features[kept.to(features.device)]
        self._keys, self.stored = keys, features


def shrinkage(covariance: Tensor, rows: int) -> float:
    """Weight of the identity in a covariance of few rows: oracle approximating shrinkage, 0 to 1.

    Chen et al. (2010), *Shrinkage algorithms for MMSE covariance estimation*, for large dimensions:
    ``(tr S^2 + tr^2 S) / ((n + 1) (tr S^2 - tr^2 S / d))``.

    Args:
        covariance: S of n rows, [d, d].
        rows: n.

    Examples:
        >>> round(shrinkage(torch.diag(torch.tensor([9.0, 1.0, 1.0])), rows=100), 4)
        0.0473
    """
    square, trace = float(covariance.square().sum()), float(covariance.trace())
    spread = (rows + 1) * (square - trace**2 / len(covariance))
    weight = square + trace**2
    return 1.0 if spread <= weight else weight / spread


def shrunk(covariance: Tensor, rows: int, weight: float | None) -> Tensor:
    """``(1 - w) S + w (tr S / d) I``; ``None`` is the weight of :func:`shrinkage`.

    Examples:
        >>> shrunk(torch.diag(torch.tensor([3.0, 1.0])), rows=10, weight=0.5)
        tensor([[2.5000, 0.0000],
                [0.0000, 1.5000]])
    """
    w = shrinkage(covariance, rows) if weight is None else weight
    scale = covariance.trace() / len(covariance)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - w) * covariance + w * scale * identity


def double(values: Tensor) -> Tensor:
    """In double precision, on a CPU if the device has none."""
    return values.cpu().double() if values.device.type == "mps" else values.double()
