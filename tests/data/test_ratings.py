"""Rated sentences: the archive as published, damaged and missing."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from data_files import write_vader

from gflowout.data import ratings, report, sheets
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.ratings import load_ratings


def test_sentences_ratings_and_sources(tmp_path: Path) -> None:
    write_vader(tmp_path / "vader", 6)
    products = load_ratings("products", tmp_path)
    assert products.texts[:2] == (
        "the products were bad awful, said people.", "the products were plain usual, said people.",
    )  # fmt: skip
    assert torch.allclose(products.values, torch.tensor([-2.1, 0.1, 1.9, -2.1, 0.1, 1.9]))
    assert products.sources.tolist() == [1, 1, 2, 2, 3, 3]  # sentences of one review
    assert load_ratings("tweets", tmp_path / "vader").sources.tolist() == [1, 2, 3, 4, 5, 6]
    contents = report.check("vader", tmp_path).contents
    assert contents == dict.fromkeys(ratings.DOMAINS, "6")


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"domain must be one of 'movies', .* got 'film'"):
        load_ratings("film", tmp_path)
    with pytest.raises(MissingDataError, match="gflowout data get vader"):
        load_ratings("movies", tmp_path)
    write_vader(tmp_path / "vader", 6)
    with pytest.raises(DataError, match=r"no images to show; .* counts sentences"):
        sheets.contact_sheet("vader", tmp_path)
    path = tmp_path / "vader" / ratings.ARCHIVE
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no archive", gzip.compress(b"no archive")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"hutto_ICWSM_2014\.tar\.gz: is not the archive"):
            load_ratings("movies", tmp_path)


def test_the_published_sentences(real_data: Callable[[str], Path]) -> None:
    products = load_ratings("products", real_data("vader").parent)
    assert len(products) == 3708
    assert len(products.sources.unique()) == 300
    assert -4 <= float(products.values.min()) < float(products.values.max()) <= 4
