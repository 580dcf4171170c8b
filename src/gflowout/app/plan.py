"""What a run would do and cost: sizes, parameters, options, and time from a few real steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gflowout.app import build
from gflowout.app.config import Config
from gflowout.app.preprocess import Images
from gflowout.app.run import example
from gflowout.app.tasks import Task
from gflowout.core.model import MaskedModel
from gflowout.training.options import optimisers

_SECONDS = 1.0
_MOST = 20
_SCORED = 50


@dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        lines: What will be done: a word, and what it is.
        step: Seconds of one training step.
        epoch: Seconds of one epoch with its validation.
        total: Seconds of all epochs, without early stopping.
    """

    lines: list[tuple[str, str]]
    step: float
    epoch: float
    total: float


def plan(config: Config, task: Task) -> Plan:
    """Measure a few steps on the data themselves; nothing is kept of them.

    Args:
        config: The configuration.
        task: Its data.
    """
    model = build.model(config, task.problem, example(task))
    lines = _lines(config, task, model)
    batches = task.training(config.data, config.seed)
    steppers = optimisers(model, config.fit)
    model.train()
    stream = iter(batches)

    def step() -> None:
        nonlocal stream
        try:
            x, y = next(stream)
        except StopIteration:
            stream = iter(batches)
            x, y = next(stream)
        for stepper in steppers:
            stepper.zero_grad()
        model(x, y=y).total.backward()
        for stepper in steppers:
            stepper.step()

    x = next(iter(task.valid.batches(task.problem, _SCORED)))[0]
    with torch.random.fork_rng(devices=[]):
        seconds = _median(step)
        scoring = _median(lambda: model.predict(x, samples=config.fit.valid_samples)) / len(x)
    epoch = seconds * len(batches) + scoring * len(task.valid)
    return Plan(lines, seconds, epoch, epoch * config.fit.epochs)


def _lines(config: Config, task: Task, model: MaskedModel) -> list[tuple[str, str]]:
    problem, target, fit = task.problem, task.target, config.fit
    shape = "x".join(map(str, problem.shape))
    kind = "images" if isinstance(problem.inputs, Images) else "inputs from a table"
    sizes = ", ".join(f"{len(task.part(name)):,} {name}" for name in task.splits)
    labels = f"{len(target.classes)} classes" if target.classes else "numbers"
    counts = build.parameters(model)
    name = build.backbone_name(config.backbone, problem)
    extra = ", ".join(f"{group} {count:,}" for group, count in counts.items())
    options = dataclasses.asdict(model.method.options)
    listed = ", ".join(f"{option} {_short(value)}" for option, value in options.items())
    steps = len(task.training(config.data, config.seed))
    return [
        ("data", f"{problem.source}: {sizes}"),
        ("inputs", f"{shape} {kind}"),
        ("target", f"{target.name}: {labels}, {target.likelihood}"),
        *(("note", note) for note in task.notes),
        ("network", f"{name}, sites {', '.join(site.name for site in model.sites)}"),
        ("parameters", f"{sum(counts.values()):,}: {extra}"),
        ("method", f"{config.method.name}: {listed or 'no options'}"),
        ("training", f"{fit.epochs} epochs at most, {steps:,} steps of {config.data.batch_size}, "
                     f"{fit.optimizer}, lr {fit.lr:g}, {fit.schedule}, seed {config.seed}"),
    ]  # fmt: skip


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _median(action: Callable[[], object]) -> float:
    """Seconds of an action; one that takes long is done once."""
    times: list[float] = []
    while len(times) <= _MOST and (sum(times) < _SECONDS or not times):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    times = times[1:] or times  # the first one warms up
    return sorted(times)[len(times) // 2]
