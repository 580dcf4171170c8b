"""What tensors of data must look like: checks at the door, in one wording.

Knows nothing of where the tensors come from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def images(name: str, value: Any) -> Tensor:
    """Return ``value`` if it holds images, uint8 [N, C, H, W] with 1 or 3 channels.

    Examples:
        >>> images("images", torch.zeros(2, 28, 28, dtype=torch.uint8))
        Traceback (most recent call last):
            ...
        ValueError: images must be uint8 [N, C, H, W] with C = 1 or 3, got uint8 [2, 28, 28]
    """
    wanted = "uint8 [N, C, H, W] with C = 1 or 3"
    array = tensor(name, value, wanted)
    fits = array.dtype == torch.uint8 and array.ndim == 4 and array.shape[1] in (1, 3)
    if not fits or 0 in array.shape[2:]:
        raise ValueError(f"{name} must be {wanted}, got {describe(array)}")
    return array


def labels(name: str, value: Any) -> Tensor:
    """Return ``value`` if it holds class labels, int64 [N] and none negative.

    Examples:
        >>> labels("labels", torch.tensor([1, -1]))
        Traceback (most recent call last):
            ...
        ValueError: labels must be int64 [N] and none negative, got -1 among them
    """
    wanted = "int64 [N] and none negative"
    array = tensor(name, value, wanted)
    if array.dtype != torch.int64 or array.ndim != 1:
        raise ValueError(f"{name} must be {wanted}, got {describe(array)}")
    if len(array) and int(array.min()) < 0:
        raise ValueError(f"{name} must be {wanted}, got {int(array.min())} among them")
    return array


def tensor(name: str, value: Any, wanted: str) -> Tensor:
    """Return ``value`` if it is a tensor, or raise an error that says what is wanted."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, {wanted}, got {type(value).__name__}")
    return value


def describe(value: Tensor) -> str:
    """Say type and shape of a tensor.

    Examples:
        >>> describe(torch.zeros(2, 3))
        'float32 [2, 3]'
    """
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
