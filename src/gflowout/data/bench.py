"""What data cost: the time of the pipeline beside the time of the training step it feeds.

One process, one thread. In every round both are timed on the same number of batches, one after the
other, so noise of the machine hits both alike. Knows the library's models; nothing else in this
package does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout import checks
from gflowout.backbones import MLP, ResNet18
from gflowout.data.batches import Batches
from gflowout.data.transforms import Augment, Normalize

BOUND = 0.1
"""What the pipeline may take of a training step's time."""

_CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A pipeline and the network that it feeds.

    Attributes:
        name: Key of the result.
        title: What is measured, for people.
        shape: Of one image.
        rows: Images in memory.
        augment: Of the training images.
        backbone: Makes the network.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    rows: int
    augment: Augment | None
    backbone: Callable[[], MLP | ResNet18]


CASES = (
    Case(
        "mnist",
        "MNIST, normalise; MLP 784-300-100-10",
        (1, 28, 28),
        60_000,
        None,
        MLP,
    ),
    Case(
        "cifar",
        "CIFAR, crop, flip and normalise; ResNet-18 of width 16",
        (3, 32, 32),
        50_000,
        Augment(pad=4, flip=True),
        lambda: ResNet18(classes=_CLASSES, width=16),
    ),
)


def share(
    *,
    rounds: int = 5,
    steps: dict[str, int] | None = None,
    rows: int | None = None,
    batch_size: int = 128,
    method: str = "mc",
    images: dict[str, Tensor] | None = None,
    seed: int = 0,
    show: bool = True,
) -> dict[str, Any]:
    """Measure how much time data take beside training, for each of :data:`CASES`.

    Args:
        rounds: Measurements; their median is reported.
        steps: Batches per measurement, by case; by default an epoch of MNIST, 10 of CIFAR.
        rows: Images in memory; by default as many as the data set has.
        batch_size: Images per batch.
        method: Of :func:`gflowout.wrap`.
        images: Real images by case, uint8 [N, C, H, W]; random bytes otherwise.
        seed: Of data, weights and order.
        show: Print the table.

    Returns:
        For each case the seconds per batch of ``data`` and ``step`` and their ``ratio``, medians
        over the rounds, with ``steps``, ``rows`` and ``real``; and ``threads`` and ``torch``.
    """
    checks.integer("rounds", rounds, low=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            result: dict[str, Any] = {
                case.name: _measure(
                    case,
                    rounds=rounds,
                    steps=(steps or {}).get(case.name),
                    rows=rows,
                    batch_size=batch_size,
                    method=method,
                    images=(images or {}).get(case.name),
                    seed=seed,
                )
                for case in CASES
            }
    finally:
        torch.set_num_threads(threads)
    result |= {"threads": 1, "torch": torch.__version__, "bound": BOUND}
    if show:
        print(table(result))
    return result


def table(result: dict[str, Any]) -> str:
    """Write the result of :func:`share` as a Markdown table."""
    lines = [
        "| pipeline and network | data, ms a batch | training step, ms | data / step |",
        "|---|---|---|---|",
    ]
    for case in CASES:
        row = result[case.name]
        lines.append(
            f"| {case.title}{'' if row['real'] else ' (random bytes)'} | {1e3 * row['data']:.3f} "
            f"| {1e3 * row['step']:.2f} | {100 * row['ratio']:.1f} % |"
        )
    return "\n".join(lines)


def _measure(
    case: Case,
    *,
    rounds: int,
    steps: int | None,
    rows: int | None,
    batch_size: int,
    method: str,
    images: Tensor | None,
    seed: int,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    real = images is not None
    if images is None:
        size = (rows or case.rows, *case.shape)
        images = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    labels = torch.randint(_CLASSES, (len(images),), generator=generator)
    batches = Batches(
        images,
        labels,
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
        transform=Normalize.fit(images),
        augment=case.augment,
        drop_last=True,
    )
    count = min(steps or (len(batches) if case.name == "mnist" else 10), len(batches))
    step = _training(case, next(iter(batches)), method)
    step()
    data_times, step_times = [], []
    for _ in range(rounds):
        gc.collect()
        data_times.append(_seconds(lambda: _drain(batches, count)) / count)
        step_times.append(_seconds(lambda: [step() for _ in range(count)]) / count)
    ratios = [data / training for data, training in zip(data_times, step_times, strict=True)]
    return {
        "data": median(data_times),
        "step": median(step_times),
        "ratio": median(ratios),
        "ratios": ratios,
        "steps": count,
        "rows": len(images),
        "real": real,
    }


def _training(case: Case, batch: tuple[Tensor, ...], method: str) -> Callable[[], None]:
    x, y = batch
    backbone = case.backbone()
    sites = list(backbone.sites)
    model: nn.Module = gfo.wrap(
        backbone,
        method=method,
        sites=sites,
        likelihood=gfo.Categorical(_CLASSES),
        example=(x[:2],),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x, y=y).total.backward()
        optimizer.step()

    return step


def _drain(batches: Batches, count: int) -> None:
    for index, _ in enumerate(batches):
        if index + 1 == count:
            break


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
