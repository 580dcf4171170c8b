"""Region features on disk, one ``.npz`` file per picture, read when they are asked for.

The layout of the published MCAN code: key ``x`` with the features of 10 to 100 regions. Knows
nothing of questions.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.errors import DataError, MissingDataError

REGIONS, FEATURES = 100, 2048
"""Regions per picture and features per region of the published bottom-up features."""


class Regions:
    """Features of pictures' regions, indexed as a tensor [M, regions, features] would be.

    Files are read on demand; the last ones used stay in memory. Rows beyond a picture's own regions
    are zero, which models take for padding; regions beyond ``regions`` are cut off.

    Args:
        paths: One file per picture.
        regions: Rows per picture.
        features: Numbers per region. The published files have them along the first axis, others
            along the last; whichever axis has this size is taken.
        cache_bytes: How much of what was read to keep.

    Examples:
        >>> import tempfile
        >>> import numpy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "1.npz"
        ...     numpy.savez(path, x=numpy.ones((8, 3), "float32"))  # three regions of eight numbers
        ...     Regions([path], regions=4, features=8)[torch.tensor([0])].sum(-1)
        tensor([[8., 8., 8., 0.]])
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        regions: int = REGIONS,
        features: int = FEATURES,
        cache_bytes: int = 1 << 29,
    ) -> None:
        self.paths = tuple(paths)
        self.regions = checks.integer("regions", regions, low=1)
        self.features = checks.integer("features", features, low=1)
        self.cache_bytes = checks.integer("cache_bytes", cache_bytes, low=0)
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.paths)

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """Return features, float32 [B, regions, features], of picture numbers [B]."""
        out = torch.zeros(len(pictures), self.regions, self.features)
        for row, picture in enumerate(pictures.tolist()):
            found = self._get(picture)
            out[row, : len(found)] = found
        return out

    def _get(self, picture: int) -> Tensor:
        if picture in self._kept:
            self._kept.move_to_end(picture)
            return self._kept[picture]
        found = read_regions(self.paths[picture], self.features)[: self.regions].clone()
        self._kept[picture] = found
        self._size += found.nbytes
        while self._size > self.cache_bytes:
            self._size -= self._kept.popitem(last=False)[1].nbytes
        return found


def read_regions(path: Path, features: int = FEATURES) -> Tensor:
    """Read the features of one picture, float32 [its regions, features].

    Raises:
        MissingDataError: If there is no such file.
        DataError: If it is cut off, or has no ``x`` of numbers in two axes, one of which has the
            size ``features``.
    """
    numpy = require("numpy", extra="data", purpose="reading region features")
    if not path.is_file():
        raise MissingDataError(
            f"{path}: no such file of region features; extract or download the features of all "
            "pictures into this folder"
        )
    try:
        # Opened here, since numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as stream, numpy.load(stream, allow_pickle=False) as archive:
            found = archive["x"]
    except KeyError as error:
        raise DataError(
            f"{path}: has no array 'x'; write the features under that name, as published"
        ) from error
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    # zipfile raises the last where a damaged header asks for an unknown compression or a password.
    except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DataError(f"{path}: is damaged ({error}); get the file again") from error
    if found.ndim != 2 or features not in found.shape or found.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: 'x' must be numbers [{features}, regions] or [regions, {features}], got "
            f"{found.dtype} {list(found.shape)}; name another size with features="
        )
    rows = found.T if found.shape[0] == features else found
    if len(rows) == 0 or not numpy.isfinite(rows).all():
        raise DataError(f"{path}: 'x' is empty or not finite; get the file again")
    return torch.from_numpy(numpy.ascontiguousarray(rows, dtype=numpy.float32))
