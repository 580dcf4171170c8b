"""Agreement between processes that train one model together; nothing in a single process.

With ``torch.distributed`` each process (rank) sees its part of a joint batch. What a loss says of
that batch as a whole must be agreed on: these few functions do it. None of them carries gradient,
none is called while predicting, and all return what they got where a process is alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from torch import Tensor

_DEFAULT = object()
"""The group of all processes; it may not exist yet, so it has no name here."""

_group: ContextVar[object] = ContextVar("group", default=_DEFAULT)


def active() -> bool:
    """Tell whether several processes take part.

    Examples:
        >>> active()
        False
    """
    return size() > 1


def size() -> int:
    """Number of processes that take part, 1 without ``torch.distributed``.

    Examples:
        >>> size()
        1
    """
    if _group.get() is None or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(_chosen())


@contextmanager
def among(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Agree with the processes of a group only, inside ``with``; with ``None``, with no other.

    For models that do not train on all processes: one that has a ``process_group`` of its own, or a
    different one on every rank. This process must be in the group.

    Examples:
        >>> with among(None):
        ...     size()
        1
    """
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def from_first(values: Tensor) -> Tensor:
    """Return the first process's values; all must call this with the same shape.

    Examples:
        >>> from_first(torch.tensor([0.5]))
        tensor([0.5000])
    """
    if not active():
        return values
    group = _chosen()
    values = values.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(values, 0 if group is None else dist.get_global_rank(group, 0), group)
    return values


def mean(values: Tensor, count: int) -> Tensor:
    r"""Return the mean over the joint batch of what each process has averaged over its part.

    .. math:: \frac{\sum_r n_r v_r}{\sum_r n_r}

    ``values`` are means over ``count`` examples of this process, of a shape that all processes
    have; ``count`` may differ between them. The result has no gradient.

    Examples:
        >>> mean(torch.tensor([1.0, 2.0]), 8)
        tensor([1., 2.])
    """
    if not active():
        return values.detach()
    # Counts, and sums of many examples, are too large for half precision.
    wide = values.detach().to(torch.promote_types(values.dtype, torch.float32)).flatten()
    sums = torch.cat([wide * count, wide.new_tensor([count])])
    dist.all_reduce(sums, group=_chosen())
    return (sums[:-1] / sums[-1]).reshape(values.shape).to(values.dtype)


def weight(count: int, device: torch.device | str = "cpu") -> float:
    """Return what this process's loss must be multiplied with if parts differ in size.

    Gradients are averaged over processes, each counting the same; a loss that is a mean over
    ``count`` examples must count in proportion to them. 1 if all parts are equal. ``device`` is
    where the processes' backend works: the GPU of this process with NCCL.

    Examples:
        >>> weight(32)
        1.0
    """
    if not active():
        return 1.0
    total = torch.tensor(float(count), device=device)
    dist.all_reduce(total, group=_chosen())
    return count * size() / total.item()


def _chosen() -> dist.ProcessGroup | None:
    """The group to call, as ``torch.distributed`` takes it: ``None`` for all processes."""
    group = _group.get()
    return group if isinstance(group, dist.ProcessGroup) else None
