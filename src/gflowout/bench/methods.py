"""What the methods cost: training steps and predictions, relative to the bare backbone.

A new method is a name in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Further, Table
from gflowout.training.options import training_step

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

Build = Callable[[], Any]
"""Makes a backbone with ``sites``."""


@dataclass(frozen=True)
class Network:
    """A backbone of the tables: its name in titles, how to build it, and the shape of an input."""

    title: str
    build: Build
    shape: tuple[int, ...]

    def batch(self, size: int) -> Tensor:
        """Random inputs, [size, *shape]."""
        return torch.randn(size, *self.shape)


MLP_784 = Network("MLP 784-300-100-10", MLP, (784,))


def resnet(width: int) -> Network:
    """ResNet-18 with so many channels in its first stage."""
    return Network(f"ResNet-18 of width {width}", lambda: ResNet18(CLASSES, width), (3, 32, 32))


def method_tables(
    width: int, mlp_repeats: int, resnet_repeats: int, largest: int = 256
) -> list[Table]:
    """Training steps and predictions of all methods.

    Args:
        width: Channels of the first stage of ResNet-18.
        mlp_repeats: Rounds of the tables with the MLP.
        resnet_repeats: Rounds of the tables with ResNet-18.
        largest: Batch of the last table, which takes longest; its rounds are a fifth as many.
    """
    mlp, net = MLP_784, resnet(width)
    second = 0.05 + (width / 64) ** 2  # a step of ResNet-18 takes about two, 20 passes four
    rounds, fewer = resnet_repeats, -(-resnet_repeats // 5)
    cost = second * len(METHODS) / 3
    few_cost = second * len(FEW) * largest / 3
    return [
        _step_table("mlp-step", mlp, 128, mlp_repeats, 0.15),
        _prediction_table("mlp-predict", mlp, 128, mlp_repeats, 0.2),
        *(
            _prediction_table(f"mlp-predict-{batch}", mlp, batch, mlp_repeats, 0.1 + batch / 500)
            for batch in (1, 16, 256)
        ),
        _step_table("resnet-step", net, 32, rounds, 27 * second),
        _prediction_table("resnet-predict", net, 16, rounds, 48 * second),
        _prediction_table("resnet-predict-last", net, 16, rounds, 15 * second, last=2),
        _prediction_table("resnet-predict-1", net, 1, rounds, cost),
        _prediction_table(f"resnet-predict-{largest}", net, largest, fewer, few_cost, methods=FEW),
    ]


def _step_table(name: str, network: Network, batch: int, repeats: int, cost: float) -> Table:
    return Table(
        name,
        f"Training step, {network.title}, batch {batch}",
        (BARE, "mc"),
        repeats,
        lambda: _cases(step_cases(network.build, network.batch(batch))),
        cost=cost,
    )


def _prediction_table(
    name: str,
    network: Network,
    batch: int,
    repeats: int,
    cost: float,
    *,
    last: int = 0,
    methods: Sequence[str] | None = None,
) -> Table:
    title = f"Prediction with {DRAWS} draws, {network.title}, batch {batch}"
    title += " (ms: latency)" if batch == 1 else ""
    title += ", sites in the last two blocks" if last else ""
    return Table(
        name,
        title,
        (BARE,),
        repeats,
        lambda: _cases(prediction_cases(network.build, network.batch(batch), last, methods)),
        further=_throughput(batch),
        cost=cost,
    )


def _throughput(batch: int) -> Further:
    """Further numbers of a table of predictions: examples per second, on one core."""
    return lambda _, seconds: {
        name: {"examples/s": batch / taken} for name, taken in seconds.items()
    }


Modelled = dict[str, tuple[Case, gfo.MaskedModel | None]]
"""Cases by name with the model that each uses; ``None`` for the bare backbone."""


def _cases(modelled: Modelled) -> dict[str, Case]:
    return {name: case for name, (case, _) in modelled.items()}


def step_cases(build: Build, x: Tensor, methods: Sequence[str] | None = None) -> Modelled:
    """One step of Adam: the bare backbone with cross entropy, and methods (all by default)."""
    y = torch.randint(CLASSES, (len(x),))
    return {
        BARE: (bare_step(build(), x, y), None),
        **{
            name: (adam_step(model, x, y), model)
            for name, model in models(build, x, methods=methods).items()
        },
    }


def prediction_cases(
    build: Build, x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> Modelled:
    """A prediction with 20 draws; for the bare backbone, 20 plain passes.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
        methods: Labels of ``METHODS``; all if not given.
    """
    return {
        BARE: (_plain_passes(build(), x), None),
        **{
            name: (prediction(model, x), model)
            for name, model in models(build, x, last, methods).items()
        },
    }


def bare_step(net: nn.Module, x: Tensor, y: Tensor) -> Case:
    """A case that takes one step of Adam with a backbone on its own."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def adam_step(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> Case:
    """A case that takes one step of Adam with a wrapped model."""
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=1e-3)
    return lambda: training_step(model, [optimizer], x, y)


def prediction(model: gfo.MaskedModel, x: Tensor, draws: int | None = None) -> Case:
    """A case that predicts with a wrapped model; ``None`` for 20 draws."""
    return lambda: model.predict(x, samples=draws or DRAWS).mean


def _plain_passes(net: nn.Module, x: Tensor) -> Case:
    net.eval()

    @torch.no_grad()
    def plain() -> None:
        for _ in range(DRAWS):
            net(x)

    return plain


def models(
    build: Build, x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> dict[str, gfo.MaskedModel]:
    """A wrapped backbone for each method; arguments as in :func:`prediction_cases`."""
    wrapped = {}
    for name in METHODS if methods is None else methods:
        net = build()
        wrapped[name] = wrap(net, name.split()[0], x, net.sites[-last:], **METHODS[name])
    return wrapped


def wrap(
    net: Any, method: str, x: Tensor, sites: Sequence[str] | None = None, **options: Any
) -> gfo.MaskedModel:
    """A classifier wrapped at its own sites, or at those given."""
    return gfo.wrap(
        net,
        method,
        list(net.sites if sites is None else sites),
        likelihood=gfo.Categorical(CLASSES),
        example=(x[:2],),
        **options,
    )
