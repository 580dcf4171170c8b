"""Training steps and predictions of the methods in ``METHODS``, beside the bare backbone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Table
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

BARE = "bare"  # the backbone on its own, without this library
FEW = ("mc", "id-gflowout", "gflowout")  # methods of tables that take long
DRAWS, CLASSES = 20, 10

Build = Callable[[], Any]
"""Makes a backbone with ``sites``."""

Modelled = dict[str, tuple[Case, gfo.MaskedModel | None]]
"""Cases by name with the model that each uses; ``None`` for the bare backbone."""


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
    """Training steps and predictions of all methods on the MLP and on ResNet-18 of this width.

    The last table, of batches of ``largest``, takes longest; it has a fifth of the rounds.
    """
    mlp, net = MLP_784, resnet(width)
    second = 0.05 + (width / 64) ** 2  # a step of ResNet-18 takes about two, 20 passes four
    rounds, fewer = resnet_repeats, -(-resnet_repeats // 5)
    few_cost = second * len(FEW) * largest / 3
    return [
        _table("mlp-step", mlp, 128, mlp_repeats, 0.15),
        _table("mlp-predict", mlp, 128, mlp_repeats, 0.2),
        *(
            _table(f"mlp-predict-{batch}", mlp, batch, mlp_repeats, 0.1 + batch / 500)
            for batch in (1, 16, 256)
        ),
        _table("resnet-step", net, 32, rounds, 27 * second),
        _table("resnet-predict", net, 16, rounds, 48 * second),
        _table("resnet-predict-last", net, 16, rounds, 15 * second, last=2),
        _table("resnet-predict-1", net, 1, rounds, second * len(METHODS) / 3),
        _table(f"resnet-predict-{largest}", net, largest, fewer, few_cost, methods=FEW),
    ]


def _table(
    name: str,
    network: Network,
    batch: int,
    repeats: int,
    cost: float,
    *,
    last: int = 0,
    methods: Sequence[str] | None = None,
) -> Table:
    """A table of training steps or of predictions, as its name says."""
    step = name.endswith("-step")
    action = "Training step" if step else f"Prediction with {DRAWS} draws"
    title = f"{action}, {network.title}, batch {batch}"
    title += " (ms: latency)" if batch == 1 else ""
    title += ", sites in the last two blocks" if last else ""

    def cases() -> dict[str, Case]:
        modelled = action_cases(step, network.build, network.batch(batch), last, methods)
        return {case_name: case for case_name, (case, _) in modelled.items()}

    def throughput(_: object, seconds: dict[str, float]) -> dict[str, dict[str, float]]:
        return {case: {"examples/s": batch / taken} for case, taken in seconds.items()}

    references, further = ((BARE, "mc"), None) if step else ((BARE,), throughput)
    return Table(name, title, references, repeats, cases, further, cost)


def action_cases(
    step: bool, build: Build, x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> Modelled:
    """A step of Adam, or a prediction with 20 draws: by the bare backbone and by methods (or all).

    The bare backbone learns by cross entropy, and predicts by 20 plain passes. ``last`` masks only
    so many sites, the last ones; 0 all.
    """
    y = torch.randint(CLASSES, (len(x),))
    bare = bare_step(build(), x, y) if step else _plain_passes(build(), x)
    cases: Modelled = {BARE: (bare, None)}
    for name, model in models(build, x, last, methods).items():
        cases[name] = (adam_step(model, x, y) if step else prediction(model, x), model)
    return cases


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
    """A case that predicts with a wrapped model in eval mode; ``None`` for 20 draws."""
    model.eval()
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
    """A wrapped backbone for each method; arguments as in :func:`action_cases`."""
    return {
        name: wrap(build(), name.split()[0], x, last, **METHODS[name])
        for name in (METHODS if methods is None else methods)
    }


def wrap(net: Any, method: str, x: Tensor, last: int = 0, **options: Any) -> gfo.MaskedModel:
    """A classifier wrapped at its own sites, or at the last few of them."""
    likelihood = gfo.Categorical(CLASSES)
    sites = list(net.sites[-last:])
    return gfo.wrap(net, method, sites, likelihood=likelihood, example=(x[:2],), **options)
