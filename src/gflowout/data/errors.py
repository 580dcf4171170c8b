"""Errors of data files, and checks of tensors: each message says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class DataError(ValueError):
    """A file that is damaged, or is not what its name says."""


class MissingDataError(DataError, FileNotFoundError):
    """A file or folder that is not there."""


@contextmanager
def reading(
    path: Path,
    damage: str = "cannot be read",
    errors: type[Exception] | tuple[type[Exception], ...] = (),
    missing: str = "no such file",
) -> Iterator[None]:
    """Turn every error while a file is read into a :class:`DataError` that names the file.

    ``errors`` are those that a damaged file raises; their message says ``damage``.
    """
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"{path}: {missing}; get it again") from error
    except PermissionError as error:
        raise unreadable(path, error) from error
    except errors as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: {damage} ({reason}); get the file again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The error to raise for a file or folder that the system does not let us read."""
    return DataError(f"{path}: cannot be read ({error.strerror or error}); check its permissions")


def check_images(name: str, value: Any) -> Tensor:
    """Return ``value`` if it holds images, uint8 [N, C, H, W] with 1 or 3 channels."""
    expected = "uint8 [N, C, H, W] with C = 1 or 3"
    images = check_tensor(name, value, expected)
    fits = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] in (1, 3)
    if not fits or 0 in images.shape[2:]:
        raise ValueError(f"{name} must be {expected}, got {describe(images)}")
    return images


def check_labels(name: str, value: Any) -> Tensor:
    """Return ``value`` if it holds class labels, int64 [N] and none negative."""
    expected = "int64 [N] and none negative"
    labels = check_tensor(name, value, expected)
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(f"{name} must be {expected}, got {describe(labels)}")
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(f"{name} must be {expected}, got {int(labels.min())} among them")
    return labels


def check_tensor(name: str, value: Any, expected: str) -> Tensor:
    """Return ``value`` if it is a tensor, or raise an error that says what is expected."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, {expected}, got {type(value).__name__}")
    return value


def check_texts(name: str, value: Any) -> None:
    """Raise an error if ``value`` is one text where a list of them is expected."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of texts, got the text {value!r}")


def describe(value: Tensor) -> str:
    """Type and shape of a tensor, such as ``float32 [2, 3]``."""
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
