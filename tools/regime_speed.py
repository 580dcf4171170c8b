"""Training images per second in the study regimes, and what was tried to have more of them.

``python tools/regime_speed.py`` times, in CPU seconds of one core, with made inputs:

- the loop of :mod:`gflowout.studies.regimes_fit` and :func:`gflowout.training.fit`, validation
  included, for the methods on 784-300-100 with 2,000 training images;
- plain networks of that size, one by one and five stacked in one batched product;
- steps of the networks of the other regimes.

Options: ``--epochs`` (3), ``--only`` mlp, stacked or cnn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.data.batches import Batches
from gflowout.studies import regimes_fit
from gflowout.studies.framework.arms import Arm
from gflowout.studies.regimes_arms import ARMS
from gflowout.studies.regimes_data import REGIMES, Problem
from gflowout.training import FitOptions, fit

IMAGES, BATCH, STACKED = 2000, 100, 5
LABELS = ("none", "mc", "concrete", "contextual", "id-gflowout", "gflowout", "gflowout-credit")


def cpu_and_wall(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor and of the clock."""
    began, clock = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - began, time.perf_counter() - clock


def made(shape: tuple[int, ...], count: int, classes: int = 8) -> Problem:
    """Random inputs and labels."""
    rows = (torch.randn(count, *shape), torch.randint(classes, (count,)))
    valid = (torch.randn(count // 2, *shape), torch.randint(classes, (count // 2,)))
    return Problem(classes, rows, valid, valid, rows)


def of_arm(arm: Arm, epochs: int) -> str:
    """Images per second of the loop and of ``fit`` for an arm."""
    problem, regime = made((1, 28, 28), IMAGES), REGIMES["mnist-clean"]
    how = {"epochs": epochs, "batch": BATCH, "lr": 1e-3, "valid_samples": 3}

    def loop() -> None:
        model = regimes_fit.build(arm, {}, problem, regime, how)
        regimes_fit.train(model, problem, how, 0.0, 0)

    def library() -> None:
        model = regimes_fit.build(arm, {}, problem, regime, how)
        train = Batches(*problem.train, batch_size=BATCH, shuffle=True, seed=0)
        options = FitOptions(epochs=epochs, valid_samples=3)
        with tempfile.TemporaryDirectory() as folder:
            valid = Batches(*problem.valid, batch_size=500)
            fit(model, train, valid, options, folder=folder, progress=False)

    texts = []
    for action in (library, loop):
        cpu, wall = cpu_and_wall(action)
        texts.append(f"{IMAGES * epochs / cpu:7,.0f} ({IMAGES * epochs / wall:7,.0f})")
    return f"{arm.label:16} fit {texts[0]}  loop {texts[1]}"


def stacked(count: int) -> float:
    """Images per second and network of plain networks that are trained in one batched pass."""
    widths = ((784, 300), (300, 100), (100, 10))
    weights = [nn.Parameter(torch.randn(count, a, b) / a**0.5) for a, b in widths]
    biases = [nn.Parameter(torch.zeros(count, 1, b)) for _, b in widths]
    optimizer = torch.optim.Adam([*weights, *biases], fused=True)
    x, y = torch.randn(IMAGES, 784), torch.randint(10, (IMAGES,))

    def forward(h: Tensor) -> Tensor:
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = torch.baddbmm(bias, h.relu() if place else h, weight)
        return h

    def epoch() -> None:
        for rows in torch.randperm(IMAGES).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            logits = forward(x[rows].expand(count, -1, -1)).flatten(0, 1)
            (count * F.cross_entropy(logits, y[rows].repeat(count))).backward()
            optimizer.step()

    epoch()
    return count * IMAGES / cpu_and_wall(epoch)[0]


def of_images(name: str, label: str, count: int = 200) -> float:
    """Images per second of steps of a regime with a ResNet-18, or its last stages."""
    regime = REGIMES[name]
    shape = (32, 16, 16) if regime.stem else (3, 16, 16)
    how = {"epochs": 2, "batch": 50, "lr": 1e-3, "width": 16}
    problem = made(shape, count, 10)
    model = regimes_fit.build(ARMS[label], {}, problem, regime, how)
    steps = regimes_fit.step_through(model, problem.train, how, 0.0, 0)
    next(steps)
    return count / cpu_and_wall(lambda: next(steps))[0]


def main() -> None:
    """Print one line for each measurement."""
    parser = argparse.ArgumentParser(description="Training images per second in the regimes.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", choices=("mlp", "stacked", "cnn"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only in (None, "mlp"):
        of_arm(ARMS["none"], 1)  # loads libraries
        print("images/s by CPU time, and by the clock in brackets")
        for label in LABELS:
            print(of_arm(ARMS[label], arguments.epochs), flush=True)
    if arguments.only in (None, "stacked"):
        for count in (1, STACKED):
            print(f"{count} plain networks in a pass: {stacked(count):,.0f} images x networks/s")
    if arguments.only in (None, "cnn"):
        for name in ("cifar10-16", "cifar10-stem"):
            for label in ("none", "mc", "gflowout-credit"):
                print(f"{name} {label}: {of_images(name, label):,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
