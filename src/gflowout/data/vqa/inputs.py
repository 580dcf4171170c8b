"""Inputs of a model: questions as token ids, pictures, and region features of pictures."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import MissingExtraError, require
from gflowout.data.errors import DataError, MissingDataError, check_texts, reading
from gflowout.data.formats import read_picture

PAD, UNKNOWN = 0, 1
"""Token ids of padding and of words that training did not have."""
LENGTH = 14
"""Tokens per question in the published model; later words are cut off."""

_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_SPACED = re.compile(r"[-/]")
REGIONS, FEATURES = 100, 2048
"""Regions per picture and features per region of the published bottom-up features."""
FITS = ("pad", "squash")
"""How a picture becomes square: with a black border, or stretched."""
_SLOW = 200  # pictures that take about a second


def words(question: str) -> list[str]:
    """Split a question into lower-case words, as the published MCAN code does."""
    return _SPACED.sub(" ", _DROPPED.sub("", question.lower())).split()


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary of words that maps questions to token ids.

    Attributes:
        vocabulary: The words; the first has id 2, after padding (0) and unknown words (1).
        length: Tokens per question.

    Examples:
        >>> tokenizer = Tokenizer.fit(["Is there a dog?", "Is it red?"], length=5)
        >>> tokenizer.encode(["Is there a cat?"])
        tensor([[2, 3, 4, 1, 0]])
    """

    vocabulary: tuple[str, ...]
    length: int = LENGTH

    def __post_init__(self) -> None:
        checks.integer("length", self.length, low=1)
        if len(set(self.vocabulary)) != len(self.vocabulary):
            twice = Counter(self.vocabulary).most_common(1)[0][0]
            raise ValueError(f"vocabulary must hold each word once, got {twice!r} twice")

    @classmethod
    def fit(
        cls, questions: Iterable[str], *, length: int = LENGTH, min_count: int = 1
    ) -> Tokenizer:
        """Collect the words of the training questions, in the order of their first appearance.

        Args:
            questions: Texts of the training questions, and of no others.
            length: Tokens per question.
            min_count: Rarer words are unknown.
        """
        check_texts("questions", questions)
        checks.integer("min_count", min_count, low=1)
        counts = Counter(word for question in questions for word in words(question))
        return cls(tuple(word for word, count in counts.items() if count >= min_count), length)

    def __len__(self) -> int:
        """Number of token ids, padding and unknown included."""
        return len(self.vocabulary) + 2

    @cached_property
    def index(self) -> dict[str, int]:
        """Token id of every word."""
        return {word: position + 2 for position, word in enumerate(self.vocabulary)}

    def encode(self, questions: Sequence[str]) -> Tensor:
        """Return token ids, int64 [N, T].

        A question without any word becomes one unknown word, since a row of padding alone has
        nothing to attend to.
        """
        check_texts("questions", questions)
        rows = []
        for question in questions:
            ids = [self.index.get(word, UNKNOWN) for word in words(question)[: self.length]]
            ids = ids or [UNKNOWN]
            rows.append(ids + [PAD] * (self.length - len(ids)))
        return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), self.length)

    def decode(self, tokens: Tensor) -> list[str]:
        """Return the words of token ids [N, T], with ``?`` for unknown ones."""
        return [
            " ".join("?" if i == UNKNOWN else self.vocabulary[i - 2] for i in row if i != PAD)
            for row in tokens.tolist()
        ]

    def to_json(self) -> str:
        """Return the tokenizer as JSON text."""
        return json.dumps({"length": self.length, "vocabulary": self.vocabulary})

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Return the tokenizer that :meth:`to_json` wrote."""
        try:
            fields = json.loads(text)
            vocabulary, length = fields["vocabulary"], fields["length"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"text must come from Tokenizer.to_json, got {text[:40]!r}") from error
        return cls(tuple(map(str, vocabulary)), length)

    def embeddings(self, path: str | Path) -> Tensor:
        """Read word vectors from a GloVe text file into a table, float32 [V, D].

        Rows of padding and of words that the file does not have are zero. The row of unknown words
        is the file's ``<unk>`` or ``unk``, if it has one.

        Args:
            path: A file of lines ``word number number ...``, such as ``glove.6B.300d.txt``.

        Raises:
            MissingDataError: If there is no such file.
            DataError: If it has another format, is cut off, or has no word of the vocabulary.
        """
        path = Path(path)
        if not path.is_file():
            raise MissingDataError(f"{path}: no such file; name a GloVe text file that you have")
        ids = {"unk": UNKNOWN, "<unk>": UNKNOWN} | self.index
        vectors: dict[int, list[float]] = {}
        size = 0
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1:  # the header of word2vec's text format
                    continue
                size = size or len(numbers)
                if len(numbers) > size:  # a "word" with spaces, as glove.840B has some
                    continue
                if len(numbers) < size or not size:
                    raise DataError(
                        f"{path}: line {number} has {len(numbers)} numbers, the first has {size}; "
                        "the file is cut off or no GloVe text file: get it again"
                    )
                row = ids.get(word)
                if row is None or row in vectors:
                    continue
                try:
                    vectors[row] = [float(value) for value in numbers]
                except ValueError as error:
                    problem = f"line {number} is not a word and numbers; name a GloVe text file"
                    raise DataError(f"{path}: {problem}") from error
        if not vectors.keys() - {UNKNOWN}:
            none = f"has none of the {len(self.vocabulary)} words of the vocabulary"
            raise DataError(f"{path}: {none}; name a GloVe text file of the same language")
        table = torch.zeros(len(self), size)
        table[list(vectors)] = torch.tensor(list(vectors.values()))
        return table


def decode(
    paths: Sequence[Path], *, size: int, fit: str = "pad", channels: int = 3, progress: bool = True
) -> Tensor:
    """Read pictures into one tensor, uint8 [M, channels, size, size].

    ``fit="pad"`` keeps the proportions, with a black border; ``"squash"`` stretches to a square.
    There are 3 channels for colour, 1 for grey. ``progress`` shows a bar on a terminal if there are
    many pictures and rich is installed.
    """
    checks.integer("size", size, low=1)
    checks.choice("fit", fit, FITS)
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels!r}")
    checks.boolean("progress", progress)
    pictures = torch.empty(len(paths), channels, size, size, dtype=torch.uint8)
    for position, path in enumerate(tracked(paths, progress)):
        pictures[position] = _read_square(path, size, fit, channels)
    return pictures


def _read_square(path: Path, size: int, fit: str, channels: int) -> Tensor:
    image = require("PIL.Image", extra="data", purpose="reading pictures")
    numpy = require("numpy", extra="data", purpose="reading pictures")
    picture = read_picture(path, "RGB" if channels == 3 else "L")
    if fit == "squash":
        picture = picture.resize((size, size), image.Resampling.BILINEAR)
    else:
        scale = size / max(picture.size)
        inner = tuple(max(1, round(side * scale)) for side in picture.size)
        square = image.new(picture.mode, (size, size))
        corner = ((size - inner[0]) // 2, (size - inner[1]) // 2)
        square.paste(picture.resize(inner, image.Resampling.BILINEAR), corner)
        picture = square
    pixels = torch.from_numpy(numpy.array(picture)).reshape(size, size, channels)
    return pixels.permute(2, 0, 1)


def tracked(paths: Sequence[Path], progress: bool) -> Iterable[Path]:
    """Paths one by one, with a bar on a terminal if they are many and rich is installed."""
    if not progress or len(paths) < _SLOW:
        return paths
    try:
        rich: Any = require("rich.progress", extra="data", purpose="the progress bar")
        console: Any = require("rich.console", extra="data", purpose="the progress bar")
    except MissingExtraError:
        return paths
    screen = console.Console(stderr=True)
    options = {"console": screen, "transient": True, "disable": not screen.is_terminal}
    bar: Iterable[Path] = rich.track(paths, "reading pictures", **options)
    return bar


class Regions:
    """Region features of pictures, indexed like a tensor [M, regions, features].

    Each picture has an ``.npz`` file with the features of 10 to 100 regions under the key ``x``, as
    in the published MCAN code. Files are read on demand; the last ones used stay in memory. Missing
    rows are zero, which models take for padding; regions beyond ``regions`` are cut.

    Args:
        paths: One file per picture.
        regions: Rows per picture.
        features: Numbers per region, along the first axis in the published files, along the last in
            others; the axis of this size is taken.
        cache_bytes: Memory for files that were read.

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
        self._cache: OrderedDict[int, Tensor] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """Return features, float32 [B, regions, features], of picture numbers [B]."""
        out = torch.zeros(len(pictures), self.regions, self.features)
        for row, picture in enumerate(pictures.tolist()):
            features = self._get(picture)
            out[row, : len(features)] = features
        return out

    def _get(self, picture: int) -> Tensor:
        if picture in self._cache:
            self._cache.move_to_end(picture)
            return self._cache[picture]
        features = read_regions(self.paths[picture], self.features)[: self.regions].clone()
        self._cache[picture] = features
        self._size += features.nbytes
        while self._size > self.cache_bytes:
            self._size -= self._cache.popitem(last=False)[1].nbytes
        return features


def read_regions(path: Path, features: int = FEATURES) -> Tensor:
    """Read the features of one picture, float32 [its regions, features]."""
    numpy = require("numpy", extra="data", purpose="reading region features")
    # zipfile raises RuntimeError for an unknown compression or a password in a damaged header.
    zipped = (zipfile.BadZipFile, zlib.error, RuntimeError)
    errors = (OSError, ValueError, EOFError, TypeError, AttributeError, *zipped)
    # Opened here, since numpy leaves a file open that turns out to be damaged.
    with (
        reading(path, errors=errors, missing="no such file of region features"),
        path.open("rb") as stream,
        numpy.load(stream, allow_pickle=False) as archive,
    ):
        if "x" not in archive:
            raise DataError(f"{path}: has no array 'x'; write the features under that name")
        array = archive["x"]
    if array.ndim != 2 or features not in array.shape or array.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: 'x' must be numbers [{features}, regions] or [regions, {features}], got "
            f"{array.dtype} {list(array.shape)}; name another size with features="
        )
    rows = array.T if array.shape[0] == features else array
    if len(rows) == 0 or not numpy.isfinite(rows).all():
        raise DataError(f"{path}: 'x' is empty or not finite; get the file again")
    return torch.from_numpy(numpy.ascontiguousarray(rows, dtype=numpy.float32))
