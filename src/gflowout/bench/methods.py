"""What the methods cost: training steps and predictions, relative to the bare backbone.

A new method is a name in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Table

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "mc": {},
    "contextual": {},
    "concrete": {"train_size": 50_000},
    "variational": {"train_size": 50_000},
    "masksembles": {},
    "id-gflowout": {"train_size": 50_000},
    "id-gflowout draws=1": {"train_size": 50_000, "draws": 1},
    "gflowout": {},
    "combined draws=1": {"train_size": 50_000, "draws": 1},
}
"""What is timed, in the order of the tables: a label that starts with the method, and options."""

BARE = "bare"
"""The backbone on its own, without this library."""

DRAWS = 20
_CLASSES = 10


def method_tables(width: int, mlp_repeats: int, resnet_repeats: int) -> list[Table]:
    """All comparisons.

    Args:
        width: Channels of the first stage of ResNet-18.
        mlp_repeats: Rounds of the tables with the MLP.
        resnet_repeats: Rounds of the tables with ResNet-18.
    """
    mlp, resnet = "MLP 784-300-100-10", f"ResNet-18 of width {width}"

    def images(batch: int) -> Tensor:
        return torch.randn(batch, 3, 32, 32)

    def net() -> ResNet18:
        return ResNet18(_CLASSES, width)

    def of_batch(batch: int) -> Table:
        return Table(
            f"mlp-predict-{batch}",
            f"Prediction with {DRAWS} draws, {mlp}, batch {batch}",
            (BARE,),
            mlp_repeats,
            lambda: predictions(MLP, torch.randn(batch, 784)),
        )

    return [
        Table(
            "mlp-step",
            f"Training step, {mlp}, batch 128",
            (BARE, "mc"),
            mlp_repeats,
            lambda: training_steps(MLP, torch.randn(128, 784)),
        ),
        Table(
            "mlp-predict",
            f"Prediction with {DRAWS} draws, {mlp}, batch 128",
            (BARE,),
            mlp_repeats,
            lambda: predictions(MLP, torch.randn(128, 784)),
        ),
        *(of_batch(batch) for batch in (1, 16, 256)),
        Table(
            "resnet-step",
            f"Training step, {resnet}, batch 32",
            (BARE, "mc"),
            resnet_repeats,
            lambda: training_steps(net, images(32)),
        ),
        Table(
            "resnet-predict",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16)),
        ),
        Table(
            "resnet-predict-last",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16, sites in the last two blocks",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16), last=2),
        ),
    ]


def training_steps(build: Callable[[], Any], x: Tensor) -> dict[str, Case]:
    """Cases that take one step of Adam: the bare backbone with cross entropy, and each method.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
    """
    y = torch.randint(_CLASSES, (len(x),))

    def bare(net: nn.Module) -> Case:
        return _step(lambda: F.cross_entropy(net(x), y), net.parameters())

    return {
        BARE: bare(build()),
        **{name: adam_step(model, x, y) for name, model in _models(build, x).items()},
    }


def adam_step(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> Case:
    """A case that takes one step of Adam with a wrapped model."""

    def loss() -> Tensor:
        total: Tensor = model(x, y=y).total
        return total

    return _step(loss, model.parameter_groups())


def _step(loss: Callable[[], Tensor], parameters: Any) -> Case:
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def predictions(build: Callable[[], Any], x: Tensor, last: int = 0) -> dict[str, Case]:
    """Cases that predict with 20 draws; for the bare backbone, 20 plain passes.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
    """
    net: nn.Module = build().eval()

    @torch.no_grad()
    def plain() -> None:
        for _ in range(DRAWS):
            net(x)

    def wrapped(model: gfo.MaskedModel) -> Case:
        return lambda: model.predict(x, samples=DRAWS).mean

    return {
        BARE: plain,
        **{name: wrapped(model) for name, model in _models(build, x, last).items()},
    }


def _models(build: Callable[[], Any], x: Tensor, last: int = 0) -> dict[str, gfo.MaskedModel]:
    models = {}
    for name, options in METHODS.items():
        net = build()
        models[name] = gfo.wrap(
            net,
            name.split()[0],
            net.sites[-last:],
            likelihood=gfo.Categorical(_CLASSES),
            example=(x[:2],),
            **options,
        )
    return models
