"""SVHN's MATLAB files: pictures in ``X`` [32, 32, 3, N], labels in ``y``, 10 for the digit 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.data.errors import DataError

_SIDE = 32
_DIGITS = 10


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read pictures and their digits.

    Args:
        path: ``train_32x32.mat``, ``test_32x32.mat`` or ``extra_32x32.mat``.

    Returns:
        Images uint8 [N, 3, 32, 32] and labels int64 [N], the digits themselves.

    Raises:
        DataError: If the file is damaged or holds something else.
    """
    scipy_io = require("scipy.io", extra="data", purpose="reading SVHN")
    try:
        content: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a damaged file can raise nearly anything
        raise DataError(
            f"{path}: not a MATLAB file of version 5, or cut short ({type(error).__name__}: "
            f"{error}); get the file again"
        ) from error
    for key in ("X", "y"):
        if key not in content:
            raise DataError(f"{path}: has no variable {key!r}; SVHN's cropped digits have X and y")
    pixels, labels = content["X"], content["y"]
    square = pixels.ndim == 4 and pixels.shape[:3] == (_SIDE, _SIDE, 3) and pixels.shape[3] > 0
    if not square or str(pixels.dtype) != "uint8":
        raise DataError(
            f"{path}: X must be bytes of shape [{_SIDE}, {_SIDE}, 3, N], got {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    if labels.size != pixels.shape[3]:
        raise DataError(f"{path}: has {pixels.shape[3]} pictures and {labels.size} labels")
    if labels.dtype.kind not in "iuf" or bool((labels != labels.round()).any()):
        raise DataError(f"{path}: y must hold whole numbers, got {labels.dtype}")
    digits = torch.from_numpy(labels.reshape(-1).astype("int64"))
    if int(digits.min()) < 1 or int(digits.max()) > _DIGITS:
        raise DataError(f"{path}: y must hold 1 to {_DIGITS}, got {sorted(set(digits.tolist()))}")
    images = torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy())
    return images, digits % _DIGITS
