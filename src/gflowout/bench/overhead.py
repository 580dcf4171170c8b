"""What surrounds a training step: the data pipeline that feeds it, and the loop that takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Table
from gflowout.data.batches import Batches
from gflowout.data.transforms import Augment, Normalize
from gflowout.training import FitOptions, fit

STEP = "training step"
LOOP = "loop by hand"
_BATCH = 128
_CLASSES = 10
_EPOCHS = 2


def data_tables(mlp_repeats: int, resnet_repeats: int, part: int = 1) -> list[Table]:
    """A batch of data beside the training step that it is for; both with method ``mc``.

    Args:
        mlp_repeats: Rounds of MNIST with the MLP.
        resnet_repeats: Rounds of CIFAR with ResNet-18.
        part: Take one in so many images, and divide the width of ResNet-18 by as much.
    """
    mnist, cifar, width = 60_000 // part, 50_000 // part, max(16 // part, 1)
    return [
        Table(
            "data-mnist",
            f"A batch of {mnist:,} images of MNIST's shape, normalised; step of the MLP, batch 128",
            (STEP,),
            mlp_repeats,
            lambda: _data_cases(MLP, (1, 28, 28), mnist, None),
            cost=0.03,
        ),
        Table(
            "data-cifar",
            f"A batch of {cifar:,} images of CIFAR's shape, cropped, flipped and normalised; step "
            f"of ResNet-18 of width {width}, batch 128",
            (STEP,),
            resnet_repeats,
            lambda: _data_cases(
                lambda: ResNet18(_CLASSES, width), (3, 32, 32), cifar, Augment(pad=4, flip=True)
            ),
            cost=1 / part,
        ),
    ]


def fit_table(repeats: int, rows: int = 60_000) -> Table:
    """Epochs of :func:`gflowout.training.fit`, set-up included, beside a loop written by hand.

    Args:
        repeats: Rounds.
        rows: Images in an epoch.
    """
    return Table(
        "fit-epochs",
        f"{_EPOCHS} epochs of {rows:,} images, MLP 784-300-100-10, batch 128",
        tuple(f"{LOOP}, {method}" for method in ("mc", "gflowout")),
        repeats,
        lambda: _fit_cases(rows),
        cost=30 * rows / 60_000,
    )


def _data_cases(
    build: Callable[[], Any], shape: tuple[int, ...], rows: int, augment: Augment | None
) -> dict[str, Case]:
    batches = _batches(shape, rows, augment)
    stream = _endless(batches)
    x, y = next(stream)
    model, optimiser = _training(build(), "mc", x)
    return {STEP: lambda: _step(model, optimiser, x, y), "data": lambda: next(stream)}


def _fit_cases(rows: int) -> dict[str, Case]:
    batches = _batches((1, 28, 28), rows, None)
    example = next(iter(batches))[0]

    def by_hand(method: str) -> Case:
        def run() -> None:
            model, optimiser = _training(MLP(), method, example)
            for epoch in range(_EPOCHS):
                batches.set_epoch(epoch)
                for x, y in batches:
                    _step(model, optimiser, x, y)

        return run

    def through_fit(method: str) -> Case:
        def run() -> None:
            model, _ = _training(MLP(), method, example)
            fit(model, batches, options=FitOptions(epochs=_EPOCHS), progress=False)

        return run

    methods = ("mc", "gflowout")
    return {
        **{f"{LOOP}, {method}": by_hand(method) for method in methods},
        **{f"fit, {method}": through_fit(method) for method in methods},
    }


def _batches(shape: tuple[int, ...], rows: int, augment: Augment | None) -> Batches:
    images = torch.randint(256, (rows, *shape), dtype=torch.uint8)
    return Batches(
        images,
        torch.randint(_CLASSES, (rows,)),
        batch_size=_BATCH,
        shuffle=True,
        seed=0,
        transform=Normalize.fit(images),
        augment=augment,
        drop_last=True,
    )


def _endless(batches: Batches) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from batches


def _training(net: Any, method: str, x: Tensor) -> tuple[gfo.MaskedModel, torch.optim.Optimizer]:
    model = gfo.wrap(net, method, net.sites, likelihood=gfo.Categorical(_CLASSES), example=(x[:2],))
    return model, torch.optim.Adam(model.parameter_groups())


def _step(model: Any, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimiser.zero_grad()
    model(x, y=y).total.backward()
    optimiser.step()
