"""Region features of many pictures in a few large files, which are memory-mapped when read.

One small compressed file per picture, as published, costs more to open and unpack than a training
step on a GPU takes. :func:`pack` writes them once, regions one after the other, and
:class:`PackedRegions` reads any picture by its place, without unpacking anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.atomic_io import write_file, write_text
from gflowout.data.errors import DataError, MissingDataError, reading
from gflowout.data.vqa.inputs import FEATURES, REGIONS, Regions

INDEX = "index.json"
"""File of a folder of shards that says what is where; it is written last."""
FORMAT = 1
DTYPE = torch.float16
"""Type of the numbers in shards: a relative error of at most 1/2048, in half the bytes."""
SHARD_BYTES = 1 << 30


def pack(
    names: Sequence[str],
    features: Iterable[Tensor],
    folder: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write the region features of pictures into shards; returns their folder.

    Args:
        names: Of the pictures, such as ``train2014/COCO_train2014_000000000009.jpg.npz``.
        features: Of each picture, [its regions, features], in the order of the names; may be a
            generator.
        folder: Where to write; shards in it are replaced.
        shard_bytes: Largest size of a file, unless a single picture needs more.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pack(["a", "b"], [torch.ones(3, 8), torch.ones(1, 8)], folder)
        ...     packed = PackedRegions(folder, ["b", "a"], regions=2, features=8)
        ...     packed[torch.tensor([0, 1])].sum(-1)
        tensor([[8., 0.],
                [8., 8.]])
    """
    checks.integer("shard_bytes", shard_bytes, low=1)
    folder = Path(folder)
    (folder / INDEX).unlink(missing_ok=True)
    packed = _Packed(iter(features), shard_bytes)
    while packed.next is not None:
        write_file(_shard(folder, len(packed.shards)), packed.write)
    if len(packed.rows) != len(names):
        raise ValueError(
            f"features must be as many as names, {len(names)}, got {len(packed.rows)} of them"
        )
    index = {
        "format": FORMAT, "features": packed.width, "names": list(names),
        "rows": packed.rows, "shards": packed.shards,
    }  # fmt: skip
    write_text(folder / INDEX, json.dumps(index))
    return folder


class _Packed:
    """Writes features one after the other, and counts them."""

    def __init__(self, features: Iterator[Tensor], shard_bytes: int) -> None:
        self.features, self.most = features, shard_bytes
        self.rows: list[int] = []  # by picture
        self.shards: list[int] = []  # pictures in each
        self.width = 0
        self.next = self._take()

    def _take(self) -> Tensor | None:
        picture = next(self.features, None)
        if picture is None:
            return None
        self.width = self.width or picture.shape[-1]
        if picture.dim() != 2 or picture.shape[1] != self.width or not len(picture):
            raise ValueError(
                f"features of picture {len(self.rows)} must have shape [regions, {self.width}], "
                f"got {list(picture.shape)}"
            )
        rounded = picture.to(DTYPE)
        if not rounded.isfinite().all():
            raise ValueError(
                f"features of picture {len(self.rows)} must be finite in half precision, got a "
                f"largest size of {picture.abs().max():g}"
            )
        return rounded.contiguous()

    def write(self, stream: IO[bytes]) -> None:
        """Write one shard: pictures up to the largest size, and one at least."""
        size = count = 0
        while self.next is not None and (not count or size + self.next.nbytes <= self.most):
            stream.write(self.next.numpy().tobytes())
            size, count = size + self.next.nbytes, count + 1
            self.rows.append(len(self.next))
            self.next = self._take()
        self.shards.append(count)


class PackedRegions(Regions):
    """Region features in the shards of :func:`pack`, indexed as :class:`Regions` are.

    Nothing is read before it is asked for, and the operating system keeps what was read. Copies for
    the workers of a loader open the files anew.

    Args:
        folder: Of the shards.
        names: Of the pictures wanted, which get the numbers 0, 1, ...
        regions: Rows per picture; missing ones are zero, those beyond are cut.
        features: Numbers per region.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pack(["a", "b"], [torch.ones(2, 4), torch.zeros(1, 4)], folder)
        ...     PackedRegions(folder, ["a"], regions=3, features=4)[torch.tensor([0])].shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        folder: str | Path,
        names: Sequence[str],
        *,
        regions: int = REGIONS,
        features: int = FEATURES,
    ) -> None:
        super().__init__((), regions=regions, features=features, cache_bytes=0)
        self.folder = Path(folder)
        index = _read_index(self.folder / INDEX)
        if index["features"] != self.features:
            raise DataError(
                f"{self.folder}: has {index['features']} numbers per region, not {features}; name "
                "this size with features="
            )
        place = {name: number for number, name in enumerate(index["names"])}
        if missing := next((name for name in names if name not in place), None):
            raise MissingDataError(
                f"{self.folder}: has no picture {missing!r}; pack the features of all pictures"
            )
        self._shard_rows = _rows_of_shards(index)
        self._places = _places(index)[[place[name] for name in names]]
        self._open: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # else the contents of the files would be copied

    def _get(self, picture: int) -> Tensor:
        shard, start, rows = self._places[picture].tolist()
        if shard not in self._open:
            self._open[shard] = self._mapped(shard)
        return self._open[shard][start : start + min(rows, self.regions)]

    def _mapped(self, shard: int) -> Tensor:
        """A shard as a tensor whose bytes are those of the file, [its rows, features]."""
        path, count = _shard(self.folder, shard), self._shard_rows[shard] * self.features
        with reading(path, missing="no such shard"):
            size = path.stat().st_size
        if size != count * DTYPE.itemsize:
            raise DataError(
                f"{path}: must have {count * DTYPE.itemsize} bytes, has {size}; pack it again"
            )
        # Not shared: a write would stay in this process.
        numbers = torch.from_file(str(path), shared=False, size=count, dtype=DTYPE)
        return numbers.view(-1, self.features)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.f16"


def _read_index(path: Path) -> dict[str, Any]:
    keys = ("format", "features", "names", "rows", "shards")
    with reading(path, errors=(ValueError, KeyError, TypeError)):
        read = json.loads(path.read_text(encoding="utf-8"))
        index = {key: read[key] for key in keys}
    count = len(index["names"])
    if index["format"] != FORMAT or len(index["rows"]) != count or sum(index["shards"]) != count:
        raise DataError(f"{path}: is no index of format {FORMAT}; pack the features again")
    return index


def _rows_of_shards(index: dict[str, Any]) -> list[int]:
    ends = [0, *accumulate(index["shards"])]
    return [sum(index["rows"][a:b]) for a, b in pairwise(ends)]


def _places(index: dict[str, Any]) -> Tensor:
    """Of each picture its shard, its first row there and its number of rows, int64 [M, 3]."""
    shards = torch.tensor(index["shards"])
    rows = torch.tensor(index["rows"])
    before = rows.cumsum(0) - rows
    number = torch.repeat_interleave(torch.arange(len(shards)), shards)
    first = before[shards.cumsum(0) - shards]
    return torch.stack([number, before - first[number], rows], 1)
