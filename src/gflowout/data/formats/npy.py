"""The .npy files of CIFAR-10-C and CIFAR-100-C: five severities of the test set in a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.data.errors import DataError

SEVERITIES = 5


def read_severity(path: Path, severity: int) -> Tensor:
    """Read one fifth of an array whose rows are ordered by severity.

    Args:
        path: The array, [5 N, ...]. Only the rows asked for are read.
        severity: 1 to 5.

    Returns:
        The rows [N, ...], whole numbers in the array's own type.

    Raises:
        DataError: If the file is damaged or its rows cannot be five severities.
    """
    numpy = require("numpy", extra="data", purpose="reading .npy files")
    try:
        rows: Any = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: not an .npy array, or cut short ({error})") from error
    if rows.ndim == 0 or not len(rows) or len(rows) % SEVERITIES:
        raise DataError(f"{path}: must have rows for {SEVERITIES} severities, got {rows.shape}")
    count = len(rows) // SEVERITIES
    if rows.dtype.kind not in "iu":
        raise DataError(f"{path}: must hold whole numbers, got {rows.dtype}")
    part = rows[(severity - 1) * count : severity * count]
    return torch.from_numpy(part.astype(rows.dtype.newbyteorder("=")))
