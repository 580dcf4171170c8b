"""Nested containers of tensors: the arguments and the outputs of arbitrary modules.

Tuples, named tuples, lists, dicts and dataclasses are walked; everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor in ``value`` with its path.

    Examples:
        >>> import torch
        >>> [path for path, _ in tensors({"ids": torch.zeros(2), "rest": (torch.zeros(1),)})]
        ['ids', 'rest.0']
    """
    if isinstance(value, Tensor):
        return [(path, value)]
    return [
        leaf
        for key, child in _children(value)
        for leaf in tensors(child, f"{path}.{key}" if path else str(key))
    ]


def map_tensors(function: Callable[[str, Tensor], Tensor], value: Any, path: str = "") -> Any:
    """Return ``value`` with ``function(path, tensor)`` in place of every tensor.

    Containers keep their type; containers without tensors are returned as they are.

    Examples:
        >>> import torch
        >>> map_tensors(lambda path, t: t + 1, [torch.zeros(1), "x"])
        [tensor([1.]), 'x']
    """
    if isinstance(value, Tensor):
        return function(path, value)
    children = _children(value)
    mapped = {
        key: map_tensors(function, child, f"{path}.{key}" if path else str(key))
        for key, child in children
    }
    if all(mapped[key] is child for key, child in children):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*mapped.values())
    if isinstance(value, tuple | list):
        return type(value)(mapped.values())
    clone = copy.copy(value)
    for key, child in mapped.items():
        if isinstance(clone, dict):
            clone[key] = child
        else:
            object.__setattr__(clone, key, child)
    return clone


def clone(value: Any) -> Any:
    """Return ``value`` with every tensor cloned."""
    return map_tensors(lambda _, tensor: tensor.clone(), value)


def repeat(tensor: Tensor, copies: int) -> Tensor:
    """Stack ``copies`` of a batch along its first axis: [B, ...] to [copies * B, ...].

    Examples:
        >>> import torch
        >>> repeat(torch.tensor([1, 2]), 2)
        tensor([1, 2, 1, 2])
    """
    return tensor if copies == 1 else tensor.repeat(copies, *(1 for _ in tensor.shape[1:]))


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []
