"""Sentences of four kinds that people have rated from negative to positive (VADER).

The archive is in the repository and in the source distribution of the package ``vaderSentiment``,
not in its wheel.
"""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data import store
from gflowout.data.errors import DataError, reading

NAME = "vader"
"""In the catalogue."""
DOMAINS = {
    "movies": "movieReviewSnippets",
    "products": "amazonReviewSnippets",
    "news": "nytEditorialSnippets",
    "tweets": "tweets",
}
"""Kinds of text, with the names of their files in the archive."""
ARCHIVE = "hutto_ICWSM_2014.tar.gz"
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, KeyError, ValueError)


@dataclass(frozen=True)
class Ratings:
    """Rated sentences.

    Attributes:
        texts: The sentences.
        values: Mean rating of each by about twenty people, from -4 to 4, float32 [N].
        sources: Number of the review or article that each is from, int64 [N]; every tweet and
            film review has its own.

    Examples:
        >>> ratings = Ratings(("Good.", "Bad."), torch.tensor([2.0, -2.0]), torch.tensor([1, 1]))
        >>> len(ratings)
        2
    """

    texts: tuple[str, ...]
    values: Tensor
    sources: Tensor

    def __len__(self) -> int:
        return len(self.texts)


def load_ratings(domain: str, data_dir: str | Path | None = None) -> Ratings:
    """Read the rated sentences of one kind: ``"movies"``, ``"products"``, ``"news"``, ``"tweets"``.

    Args:
        domain: The kind.
        data_dir: The data directory, or the folder of the data set; see
            :func:`gflowout.data.store.root`.

    Raises:
        MissingDataError: If the archive is not there.
        DataError: If it is damaged.
    """
    checks.choice("domain", domain, DOMAINS)
    folder = store.locate(NAME, data_dir)
    path = store.files(store.entry(NAME), folder)[ARCHIVE]
    assert path is not None  # it is the only file by which a folder is found
    with reading(path, "is not the archive of VADER", _DAMAGE), tarfile.open(path) as archive:
        stream = archive.extractfile(f"hutto_ICWSM_2014/{DOMAINS[domain]}_GroundTruth.txt")
        content = b"" if stream is None else stream.read()
        rows = [line.split("\t") for line in content.decode("utf-8").splitlines() if line.strip()]
        wrong = next((row for row in rows if len(row) != 3), None)
        if not rows or wrong is not None:
            raise DataError(
                f"{path}: {domain} must have lines of number, rating and text with tabs between "
                f"them, got {wrong or 'nothing'}; get the file again"
            )
        return Ratings(
            tuple(text for _, _, text in rows),
            torch.tensor([float(value) for _, value, _ in rows]),
            torch.tensor([int(number.partition("_")[0]) for number, _, _ in rows]),
        )


def summarise(data_dir: str | Path | None = None) -> dict[str, int]:
    """Number of sentences of each kind."""
    return {domain: len(load_ratings(domain, data_dir)) for domain in DOMAINS}
