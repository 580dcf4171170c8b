"""What the methods cost: training steps and predictions, relative to the bare backbone.

A new method is a name in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Further, Table

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
CLASSES = 10
FEW = ("mc", "id-gflowout", "gflowout")
"""Methods of tables that take long."""


def method_tables(
    width: int, mlp_repeats: int, resnet_repeats: int, largest: int = 256
) -> list[Table]:
    """All comparisons.

    Args:
        width: Channels of the first stage of ResNet-18.
        mlp_repeats: Rounds of the tables with the MLP.
        resnet_repeats: Rounds of the tables with ResNet-18.
        largest: Batch of the last table, which takes longest; its rounds are a fifth as many.
    """
    mlp, resnet = "MLP 784-300-100-10", f"ResNet-18 of width {width}"
    second = 0.05 + (width / 64) ** 2  # a step of ResNet-18 takes about two, 20 passes four

    def images(batch: int) -> Tensor:
        return torch.randn(batch, 3, 32, 32)

    def net() -> ResNet18:
        return ResNet18(CLASSES, width)

    def mlp_batch(batch: int) -> Table:
        return Table(
            f"mlp-predict-{batch}",
            f"Prediction with {DRAWS} draws, {mlp}, batch {batch}{_latency(batch)}",
            (BARE,),
            mlp_repeats,
            lambda: predictions(MLP, torch.randn(batch, 784)),
            further=throughput(batch),
            cost=0.1 + batch / 500,
        )

    def resnet_batch(batch: int, repeats: int, methods: Sequence[str] | None) -> Table:
        return Table(
            f"resnet-predict-{batch}",
            f"Prediction with {DRAWS} draws, {resnet}, batch {batch}{_latency(batch)}",
            (BARE,),
            repeats,
            lambda: predictions(net, images(batch), methods=methods),
            further=throughput(batch),
            cost=second * len(methods or METHODS) * batch / 3,
        )

    return [
        Table(
            "mlp-step",
            f"Training step, {mlp}, batch 128",
            (BARE, "mc"),
            mlp_repeats,
            lambda: training_steps(MLP, torch.randn(128, 784)),
            cost=0.15,
        ),
        Table(
            "mlp-predict",
            f"Prediction with {DRAWS} draws, {mlp}, batch 128",
            (BARE,),
            mlp_repeats,
            lambda: predictions(MLP, torch.randn(128, 784)),
            further=throughput(128),
            cost=0.2,
        ),
        *(mlp_batch(batch) for batch in (1, 16, 256)),
        Table(
            "resnet-step",
            f"Training step, {resnet}, batch 32",
            (BARE, "mc"),
            resnet_repeats,
            lambda: training_steps(net, images(32)),
            cost=27 * second,
        ),
        Table(
            "resnet-predict",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16)),
            further=throughput(16),
            cost=48 * second,
        ),
        Table(
            "resnet-predict-last",
            f"Prediction with {DRAWS} draws, {resnet}, batch 16, sites in the last two blocks",
            (BARE,),
            resnet_repeats,
            lambda: predictions(net, images(16), last=2),
            further=throughput(16),
            cost=15 * second,
        ),
        resnet_batch(1, resnet_repeats, None),
        resnet_batch(largest, -(-resnet_repeats // 5), FEW),
    ]


def throughput(batch: int) -> Further:
    """Further figures of a table of predictions: examples per second, on one core.

    Args:
        batch: Examples per prediction.
    """

    def figures(_: object, seconds: dict[str, float]) -> dict[str, dict[str, float]]:
        return {name: {"examples/s": batch / taken} for name, taken in seconds.items()}

    return figures


def _latency(batch: int) -> str:
    return " (ms: latency)" if batch == 1 else ""


def training_steps(build: Callable[[], Any], x: Tensor) -> dict[str, Case]:
    """Cases that take one step of Adam: the bare backbone with cross entropy, and each method.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
    """
    y = torch.randint(CLASSES, (len(x),))

    return {
        BARE: bare_step(build(), x, y),
        **{name: adam_step(model, x, y) for name, model in models(build, x).items()},
    }


def bare_step(net: nn.Module, x: Tensor, y: Tensor) -> Case:
    """A case that takes one step of Adam with a backbone on its own."""
    return _step(lambda: F.cross_entropy(net(x), y), net.parameters())


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


def predictions(
    build: Callable[[], Any], x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> dict[str, Case]:
    """Cases that predict with 20 draws; for the bare backbone, 20 plain passes.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
        methods: Labels of ``METHODS``; all if not given.
    """
    wrapped = models(build, x, last, methods)
    return {
        BARE: plain_passes(build(), x),
        **{name: prediction(model, x) for name, model in wrapped.items()},
    }


def prediction(model: gfo.MaskedModel, x: Tensor, draws: int | None = None) -> Case:
    """A case that predicts with a wrapped model; ``None`` for 20 draws."""
    return lambda: model.predict(x, samples=draws or DRAWS).mean


def plain_passes(net: nn.Module, x: Tensor) -> Case:
    """A case that runs a backbone 20 times on its own."""
    net.eval()

    @torch.no_grad()
    def plain() -> None:
        for _ in range(DRAWS):
            net(x)

    return plain


def models(
    build: Callable[[], Any], x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> dict[str, gfo.MaskedModel]:
    """A wrapped backbone for each method.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
        methods: Labels of ``METHODS``; all if not given.
    """
    wrapped = {}
    for name in METHODS if methods is None else methods:
        net = build()
        wrapped[name] = gfo.wrap(
            net,
            name.split()[0],
            net.sites[-last:],
            likelihood=gfo.Categorical(CLASSES),
            example=(x[:2],),
            **METHODS[name],
        )
    return wrapped
