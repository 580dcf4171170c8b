"""The wrapped model that a configuration describes, and a plan of what training it would cost."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflowout.app.config import BackboneConfig, Config, ConfigError
from gflowout.app.preprocess import Images, Problem, lists_to_tuples
from gflowout.app.sources import Task
from gflowout.backbones import MLP, ResNet18
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.model import MaskedModel
from gflowout.core.wrap import wrap
from gflowout.methods import METHODS
from gflowout.training.options import optimisers, training_step

_MEASURED_SECONDS = 1.0
_MOST_REPEATS = 20
_SCORED = 50


def backbone_name(config: BackboneConfig, problem: Problem) -> str:
    """The backbone that ``"auto"`` stands for."""
    if config.name != "auto":
        return config.name
    return "resnet18" if len(problem.shape) == 3 and problem.shape[0] == 3 else "mlp"


def backbone(config: BackboneConfig, problem: Problem) -> MLP | ResNet18:
    """A network with random weights of the global random state."""
    shape, outputs = problem.shape, problem.target.outputs
    if backbone_name(config, problem) == "mlp":
        return MLP((int(torch.Size(shape).numel()), *config.hidden, outputs))
    if len(shape) != 3:
        raise ConfigError(
            [f"backbone.name resnet18 takes images, {problem.source!r} is a table: take mlp"]
        )
    return to_fastest_format(ResNet18(outputs, config.width, config.order, in_channels=shape[0]))


def example(task: Task) -> Tensor:
    """Two training inputs as the network takes them."""
    x, transform = task.train.x[:2], task.problem.inputs.transform
    return x if transform is None else transform(x)


def model(config: Config, problem: Problem, example: Tensor) -> MaskedModel:
    """The wrapped model of a configuration; weights follow from its seed alone."""
    options = lists_to_tuples(config.method.options)
    fields = dataclasses.fields(METHODS[config.method.name].Options)
    if any(field.name == "train_size" for field in fields):
        options.setdefault("train_size", problem.train_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = backbone(config.backbone, problem)
        sites: Any = config.backbone.sites
        try:
            return wrap(
                network,
                config.method.name,
                list(network.sites) if sites is None else sites,
                likelihood=problem.target.build(),
                example=(example,),
                preset=config.method.preset,
                **options,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError([f"the method cannot be put on the backbone: {error}"]) from error


@dataclass(frozen=True)
class Plan:
    """What a run would do, as pairs of a word and a text, and the seconds that it would take."""

    lines: list[tuple[str, str]]
    step: float
    epoch: float  # with its validation
    total: float  # without early stopping


def plan(config: Config, task: Task) -> Plan:
    """Measure a few training steps on the data themselves; nothing is kept of them."""
    wrapped = model(config, task.problem, example(task))
    lines = _lines(config, task, wrapped)
    batches = task.training(config.data, config.seed)
    steppers = optimisers(wrapped, config.fit)
    wrapped.train()
    stream = itertools.chain.from_iterable(itertools.repeat(batches))
    x = next(iter(task.valid.batches(task.problem, _SCORED)))[0]
    with torch.random.fork_rng(devices=[]):
        step = _median_seconds(lambda: training_step(wrapped, steppers, *next(stream)))
        samples = config.fit.valid_samples
        scoring = _median_seconds(lambda: wrapped.predict(x, samples=samples)) / len(x)
    epoch = step * len(batches) + scoring * len(task.valid)
    return Plan(lines, step, epoch, epoch * config.fit.epochs)


def _lines(config: Config, task: Task, model: MaskedModel) -> list[tuple[str, str]]:
    problem, target, fit = task.problem, task.target, config.fit
    shape = "x".join(map(str, problem.shape))
    kind = "images" if isinstance(problem.inputs, Images) else "inputs from a table"
    sizes = ", ".join(f"{len(task.part(name)):,} {name}" for name in task.splits)
    labels = f"{len(target.classes)} classes" if target.classes else "numbers"
    counts = {
        str(group["name"]): sum(parameter.numel() for parameter in group["params"])
        for group in model.parameter_groups()
    }
    groups = ", ".join(f"{group} {count:,}" for group, count in counts.items())
    values = dataclasses.asdict(model.method.options)
    options = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
    name = backbone_name(config.backbone, problem)
    steps = len(task.training(config.data, config.seed))
    patience = "" if fit.patience is None else f"stops after {fit.patience} without a better one, "
    return [
        ("data", f"{problem.source}: {sizes}"),
        ("inputs", f"{shape} {kind}"),
        ("target", f"{target.name}: {labels}, {target.likelihood}"),
        *(("note", note) for note in task.notes),
        ("network", f"{name}, sites {', '.join(site.name for site in model.sites)}"),
        ("parameters", f"{sum(counts.values()):,}: {groups}"),
        ("method", f"{config.method.name}: {options or 'no options'}"),
        ("training", f"{fit.epochs} epochs at most, {patience}{steps:,} steps of "
                     f"{config.data.batch_size}, {fit.optimizer}, lr {fit.lr:g}, "
                     f"{fit.schedule}, seed {config.seed}"),
    ]  # fmt: skip


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _median_seconds(action: Callable[[], object]) -> float:
    """Median time of an action over about a second; one that takes long is done once."""
    times: list[float] = []
    while len(times) <= _MOST_REPEATS and (sum(times) < _MEASURED_SECONDS or not times):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:] or times)  # the first one warms up
