"""Tables of work: what a training step and a prediction of each method make PyTorch do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.backbones import MLP, ResNet18
from gflowout.bench.methods import (
    BARE,
    CLASSES,
    DRAWS,
    adam_step,
    bare_step,
    models,
    plain_passes,
    prediction,
)
from gflowout.bench.timing import Case, Table
from gflowout.bench.work import Work, count, figures


def work_tables(width: int) -> list[Table]:
    """What is counted for users, on the networks that the other tables time.

    Args:
        width: Channels of the first stage of ResNet-18.
    """
    mlp, resnet = "MLP 784-300-100-10", f"ResNet-18 of width {width}"

    def net() -> ResNet18:
        return ResNet18(CLASSES, width)

    def table(name: str, title: str, cost: float, works: Callable[[], dict[str, Work]]) -> Table:
        def counted(*_: object) -> dict[str, dict[str, float]]:
            return {case: figures(work) for case, work in works().items()}

        return Table(name, title, (), 0, dict, further=counted, cost=cost)

    scale = (width / 64) ** 2
    return [
        table(
            "work-mlp-step",
            f"Work of a training step, {mlp}, batch 128",
            1,
            lambda: steps(MLP, torch.randn(128, 784)),
        ),
        table(
            "work-mlp-predict",
            f"Work of a prediction with {DRAWS} draws, {mlp}, batch 128",
            1,
            lambda: predictions(MLP, torch.randn(128, 784)),
        ),
        table(
            "work-resnet-step",
            f"Work of a training step, {resnet}, batch 32",
            2 + 60 * scale,
            lambda: steps(net, torch.randn(32, 3, 32, 32)),
        ),
        table(
            "work-resnet-predict",
            f"Work of a prediction with {DRAWS} draws, {resnet}, batch 16",
            2 + 100 * scale,
            lambda: predictions(net, torch.randn(16, 3, 32, 32)),
        ),
    ]


def steps(
    build: Callable[[], Any], x: Tensor, methods: Sequence[str] | None = None
) -> dict[str, Work]:
    """Work of a step of Adam, for the bare backbone and each method.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        methods: Labels of ``METHODS``; all if not given.
    """
    y = torch.randint(CLASSES, (len(x),))
    bare = bare_step(build(), x, y)
    bare()
    works = {BARE: _bare(bare, 1)}
    for name, model in models(build, x, methods=methods).items():
        step = adam_step(model, x, y)
        step()  # Adam makes its state in the first
        works[name] = count(step, model)
    return works


def predictions(
    build: Callable[[], Any], x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> dict[str, Work]:
    """Work of a prediction with 20 draws, and of as many plain passes.

    Args:
        build: Makes a backbone with ``sites``.
        x: A batch.
        last: Mask only so many sites, the last ones; 0 for all.
        methods: Labels of ``METHODS``; all if not given.
    """
    works = {BARE: _bare(plain_passes(build(), x), DRAWS)}
    for name, model in models(build, x, last, methods).items():
        works[name] = count(prediction(model, x), model)
    return works


def _bare(case: Case, passes: int) -> Work:
    """Work of a backbone on its own, where nothing but the case itself knows of passes."""
    work = count(case)
    work.passes = passes
    return work
