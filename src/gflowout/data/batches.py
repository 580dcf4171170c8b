"""Batches of tensors in memory, in an order that depends on a seed and the epoch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.data.errors import check_labels, check_tensor, describe
from gflowout.data.transforms import Augment, Transform, check_transform


class Batches:
    """An iterable over tuples of tensors, with a length, for a training loop or Lightning.

    Each iteration is one epoch. Its order depends on the seed and the number of the epoch only, so
    a resumed run sees the same batches as an uninterrupted one, also in the middle of an epoch:
    save :meth:`state_dict`, or call :meth:`set_epoch`.

    Args:
        tensors: All of the same length; ``transform`` and ``augment`` act on the first.
        batch_size: Rows per batch; the last batch may have fewer.
        shuffle: A new order in each epoch. Without it the rows keep their order.
        seed: Seed of order, weights and augmentation; required with ``shuffle``.
        transform: Maps the first tensor of a batch, for instance ``Normalize.fit(images)``.
        augment: Random changes of the first tensor before ``transform``. For training data: needs
            ``shuffle=True``.
        drop_last: Drop the last batch if it is not full.
        device: Where to move batches, before they are transformed.
        weights: One sampling weight per row: an epoch then draws as many rows as there are, with
            replacement. Needs ``shuffle=True``. See :func:`balanced_weights`.

    Examples:
        >>> x, y = torch.arange(5.0), torch.arange(5)
        >>> [batch.tolist() for _, batch in Batches(x, y, batch_size=2)]
        [[0, 1], [2, 3], [4]]
        >>> train = Batches(x, y, batch_size=2, shuffle=True, seed=0)
        >>> first = [batch.tolist() for _, batch in train]
        >>> train.set_epoch(0)
        >>> first == [batch.tolist() for _, batch in train]
        True
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        transform: Transform | None = None,
        augment: Augment | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self.tensors = _same_length(tensors)
        self.batch_size = checks.integer("batch_size", batch_size, low=1)
        self.shuffle = checks.boolean("shuffle", shuffle)
        self.drop_last = checks.boolean("drop_last", drop_last)
        if seed is not None:
            checks.integer("seed", seed, low=0)
        elif shuffle:
            raise ValueError("seed must be given with shuffle=True, got None")
        self.seed = seed
        self.transform = None if transform is None else check_transform("transform", transform)
        if augment is not None and not isinstance(augment, Augment):
            raise TypeError(f"augment must be an Augment, got {augment!r}")
        for name, value in (("augment", augment), ("weights", weights)):
            if value is not None and not shuffle:
                raise ValueError(f"{name} is for training data: it needs shuffle=True")
        self.augment = augment
        self.device = None if device is None else torch.device(device)
        self.rows = len(self.tensors[0])
        self.weights = None if weights is None else _weights(weights, self.rows)
        if not len(self):
            most = "at most the number of rows with drop_last=True"
            raise ValueError(f"batch_size must be {most}, got {batch_size} for {self.rows} rows")
        self.rank, self.world = 0, 1
        self._epoch = 0  # of the next iteration
        self._batch = 0  # where the next iteration starts
        self._last: tuple[int, int] | None = None  # epoch and next batch of the latest iteration

    def __len__(self) -> int:
        if self.drop_last:
            return self.rows // self.batch_size
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Run the next epoch.

        The epoch counts once its first batch is drawn, since Lightning makes an iterator to see
        whether it can, and throws it away.
        """
        epoch, start = self._epoch, self._batch
        self._epoch, self._batch = epoch + 1, 0
        order, numbers = self.order(epoch), range(start, len(self))
        for batch, rows in zip(numbers, self._read(order, numbers), strict=True):
            last = batch + 1 == len(self)
            self._last = (epoch + 1, 0) if last else (epoch, batch + 1)
            yield self._take(rows, order, epoch, batch)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch."""
        self._epoch = checks.integer("epoch", epoch, low=0)
        self._batch = 0
        self._last = None

    def shard(self, rank: int, world: int) -> Batches:
        """The share of one of several processes that train or evaluate together.

        With ``shuffle``, every batch is divided: together the processes have batch i of a single
        process, except for at most ``world - 1`` rows, so that all parts have the same size.
        Without it, each row goes to one process in turn, and ``batch_size`` counts the rows of one
        process.

        Args:
            rank: Number of this process, from 0.
            world: Number of processes.

        Examples:
            >>> x = torch.arange(7)
            >>> [[rows.tolist() for (rows,) in Batches(x, batch_size=2).shard(rank, 2)]
            ...     for rank in range(2)]
            [[[0, 2], [4, 6]], [[1, 3], [5]]]
        """
        checks.integer("world", world, low=1)
        if checks.integer("rank", rank, low=0) >= world:
            raise ValueError(f"rank must be less than world={world}, got {rank}")
        part = copy.copy(self)
        if not self.shuffle:
            part.tensors = tuple(tensor[rank::world] for tensor in self.tensors)
            part.rows = len(part.tensors[0])
            return part
        smallest = self.batch_size if self.drop_last else self.rows % self.batch_size or world
        if smallest < world:
            raise ValueError(
                f"world must be at most the rows of the smallest batch, {smallest}, got {world}; "
                "take another batch_size, or drop_last=True"
            )
        part.rank, part.world = rank, world
        return part

    def state_dict(self) -> dict[str, int]:
        """Position of the latest iteration: its epoch and its next batch.

        A loop that ends epochs early should call :meth:`set_epoch` at the start of each one: an
        unfinished epoch counts as the one to resume.
        """
        epoch, batch = (self._epoch, self._batch) if self._last is None else self._last
        return {"epoch": epoch, "batch": batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume the next iteration where :meth:`state_dict` was taken."""
        if not isinstance(state, dict) or set(state) != {"epoch", "batch"}:
            raise ValueError(f"state must have the keys 'epoch' and 'batch', got {state!r}")
        batch = checks.integer("state['batch']", state["batch"], low=0)
        if batch >= len(self):
            less = f"less than the {len(self)} batches of an epoch"
            hint = "is the state that of other data or another batch_size?"
            raise ValueError(f"state['batch'] must be {less}, got {batch}; {hint}")
        self.set_epoch(state["epoch"])
        self._batch = batch

    def order(self, epoch: int) -> Tensor:
        """Row numbers of an epoch in order, int64."""
        if not self.shuffle or self.seed is None:
            return torch.arange(self.rows)
        generator = random.generator(self.seed, "order", epoch)
        if self.weights is None:
            return torch.randperm(self.rows, generator=generator)
        return torch.multinomial(self.weights, self.rows, replacement=True, generator=generator)

    def _read(self, order: Tensor, numbers: range) -> Iterator[tuple[Tensor, ...]]:
        """The rows of some batches, one after the other."""
        return (self._rows(order, batch) for batch in numbers)

    def _rows(self, order: Tensor, batch: int) -> tuple[Tensor, ...]:
        """The rows of a batch, before they are moved and transformed."""
        rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        if self.world > 1:
            size = len(rows) // self.world
            rows = rows[self.rank * size : (self.rank + 1) * size]
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors)

    def _take(
        self, rows: tuple[Tensor, ...], order: Tensor, epoch: int, batch: int
    ) -> tuple[Tensor, ...]:
        """Move and transform the rows of a batch."""
        taken = list(rows)
        if self.device is not None:
            taken = [tensor.to(self.device) for tensor in taken]
        if self.augment is not None and self.seed is not None:
            # Every batch has its own generator, so that an epoch can be resumed in the middle.
            generator = random.generator(self.seed, "augment", epoch, batch, self.rank)
            taken[0] = self.augment(taken[0], generator=generator)
        if self.transform is not None:
            taken[0] = self.transform(taken[0])
        return tuple(taken)


def balanced_weights(labels: Tensor) -> Tensor:
    """Sampling weights, float64 [N] of mean 1, that draw all classes of labels [N] equally often.

    Examples:
        >>> balanced_weights(torch.tensor([0, 0, 0, 1]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    check_labels("labels", labels)
    counts = torch.bincount(labels)
    weights = 1 / counts.double()[labels]
    return weights * (len(labels) / weights.sum())


def _same_length(tensors: Any) -> tuple[Tensor, ...]:
    if not tensors:
        raise TypeError("tensors must hold at least one tensor, got none")
    for index, tensor in enumerate(tensors):
        check_tensor(f"tensors[{index}]", tensor, "[N, ...]")
    lengths = [tensor.shape[0] if tensor.ndim else 0 for tensor in tensors]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise ValueError(f"tensors must have the same number of rows, at least one, got {lengths}")
    return tuple(tensors)


def _weights(weights: Any, rows: int) -> Tensor:
    check_tensor("weights", weights, "[N]")
    if weights.shape != (rows,):
        raise ValueError(f"weights must be [{rows}], got {describe(weights)}")
    values: Tensor = weights.double().cpu()
    if not bool(values.isfinite().all() and (values >= 0).all() and values.sum() > 0):
        raise ValueError("weights must be finite, none negative and not all zero")
    return values
