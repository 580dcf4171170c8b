"""The number of training examples, counted by ``fit`` where a method needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import gflowout as gfo

X, Y = torch.randn(24, 4), torch.arange(24) % 3
DATA = TensorDataset(X, Y)
QUICK: dict[str, Any] = {"options": gfo.FitOptions(epochs=1), "progress": False}


class Sized:
    """Batches of no known kind, with a length."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((X[:12], Y[:12]), (X[12:], Y[12:]))


def wrapped(method: str = "concrete", **options: Any) -> gfo.MaskedModel:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    likelihood, example = gfo.Categorical(3), (X[:2],)
    return gfo.wrap(net, method, ["1"], likelihood=likelihood, example=example, **options)


@pytest.mark.parametrize(
    ("train", "size"),
    [
        (gfo.Batches(X, Y, batch_size=5, shuffle=True, seed=0), 24),
        (DataLoader(DATA, batch_size=5, drop_last=True), 24),
        (DataLoader(DATA, batch_size=5, sampler=SubsetRandomSampler(range(10))), 10),
        (DataLoader(DATA, batch_size=5, sampler=WeightedRandomSampler([1.0] * 24, 7)), 24),
        ([(X[:12], Y[:12]), (X[12:20], Y[12:20])], 20),
    ],
    ids=["Batches", "loader", "subset", "weighted", "list"],
)
def test_fit_counts_the_examples(train: Any, size: int) -> None:
    model = wrapped()
    gfo.fit(model, train, **QUICK)
    assert model.method.options == gfo.Concrete(train_size=size)


def test_further_training_counts_again_and_a_given_number_stays() -> None:
    counted, given = wrapped(), wrapped(train_size=1000)
    for rows in (24, 8):
        for model in (counted, given):
            gfo.fit(model, [(X[:rows], Y[:rows])], **QUICK)
        assert counted.method.options.train_size == rows
    assert given.method.options.train_size == 1000


@pytest.mark.parametrize("train", [Sized(), DataLoader(DATA, batch_size=5)], ids=["own", "loader"])
def test_methods_that_need_no_number_train_on_anything(train: Any) -> None:
    model = wrapped("mc")
    gfo.fit(model, train, **QUICK)
    assert model.method.options == gfo.MC()


def test_what_cannot_be_counted_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"examples of a Sized cannot be counted.*train_size="):
        gfo.fit(wrapped(), Sized(), **QUICK)
    model = wrapped(train_size=24)
    gfo.fit(model, Sized(), **QUICK)
    assert model.method.options.train_size == 24
