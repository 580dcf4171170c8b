"""A plan on paper of the preset ``paper``: hours on a GPU, storage and cost of each study.

Floating-point operations and the number of PyTorch's operations are counted on the meta device, a
training step and a prediction of every method on every network, at full size. What a device does
in a second is assumed: :class:`Device`. No GPU has run any of it, and no data are read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MCAN, MLP, ResNet18
from gflowout.bench.work import count
from gflowout.core import checks
from gflowout.core.text import aligned
from gflowout.data.vqa.inputs import FEATURES, LENGTH, REGIONS
from gflowout.methods import METHODS
from gflowout.runs import Context, Run
from gflowout.studies import images, vqa
from gflowout.studies.clinical import ALL, LOGISTIC
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import ARMS, Options

TERA = 1e12
ROWS = {
    "mnist": (60_000, 10_000), "cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000),
    "notmnist": (0, 10_000), "svhn": (0, 26_032), "vqa-v2": (443_757, 214_354),
    "eicu": (180_000, 4_000), "eicu-pair": (4_500, 4_018),
}  # fmt: skip
"""Examples for training and for tests. Those of eICU are assumed: its 200,859 stays, of which some
are too short."""
OUTPUTS = {
    "mnist": 10, "cifar10": 100, "cifar100": 100, "vqa-v2": 3129, "eicu": 2, "eicu-pair": 2,
}  # fmt: skip
"""CIFAR-10 is counted as CIFAR-100 is."""
COLUMNS = 1500
"""Of eICU, assumed."""
PICTURES = 204_721
"""Of VQA v2."""
WORDS = 20_000
"""Of its questions, assumed."""
_DRAWS = 2  # of the prediction that is counted
_COPIES = 1 + 3 * 3  # of the weights: the model, and three checkpoints with Adam's two means


@dataclass(frozen=True)
class Device:
    """What a device is assumed to do.

    Attributes:
        tflops: Floating-point operations per second that networks reach, in 10^12. Default: a tenth
            of the 312 that NVIDIA states for an A100 in bfloat16.
        launch: Microseconds from one of PyTorch's operations to the next: small networks wait for
            it.
        price: Of an hour, in any currency.

    Examples:
        >>> Device(tflops=10).seconds(Amount(flops=2e13, operations=1000))
        2.0
        >>> Device(launch=5).seconds(Amount(flops=1e3, operations=1000))
        0.005
    """

    tflops: float = 31.0
    launch: float = 10.0
    price: float = 2.0

    def __post_init__(self) -> None:
        checks.number("tflops", self.tflops, low=0, open_low=True)
        checks.number("launch", self.launch, low=0)
        checks.number("price", self.price, low=0)

    def seconds(self, amount: Amount) -> float:
        """Time of an action, whose operations are computed while the next are prepared."""
        return max(amount.flops / (self.tflops * TERA), amount.operations * self.launch * 1e-6)


class Amount(NamedTuple):
    """Work of an action: floating-point operations, and operations of PyTorch."""

    flops: float
    operations: float

    def times(self, factor: float) -> Amount:
        """The same action so many times."""
        return Amount(self.flops * factor, self.operations * factor)


class Counted(NamedTuple):
    """A model: its parameters, its training step, and one draw for one batch."""

    parameters: int
    step: Amount
    draw: Amount


class Network(NamedTuple):
    """A backbone: its kind, what goes in and out, batch, and sizes as keywords."""

    kind: str
    inputs: int
    outputs: int
    batch: int
    sizes: tuple[tuple[str, Any], ...]


class Job(NamedTuple):
    """What a run does: networks to train, by name, and draws of examples to predict."""

    network: Network
    method: str
    options: tuple[tuple[str, Any], ...]
    names: tuple[str, ...]  # of networks; those that other runs train are not trained again
    steps: float  # of training, for each network
    checked: float  # examples x draws of validation, for each network
    scored: float  # examples x draws of tests


@dataclass
class Needed:
    """What a study needs."""

    networks: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    bytes: float = 0.0


def build(network: Network) -> tuple[Any, tuple[Tensor, ...], Any]:
    """A network of a kind, two examples and a likelihood."""
    sizes = {key: value for key, value in network.sizes if key != "hidden_layers"}
    if network.kind == "mcan":
        net = MCAN(WORDS, network.outputs, network.inputs, **sizes)
        # Few regions, so that the example takes no time; batches have all of them.
        example = (torch.rand(2, 8, network.inputs), torch.ones(2, LENGTH, dtype=torch.int64))
        return net, example, gfo.MultiLabel(network.outputs)
    likelihood = gfo.Categorical(network.outputs)
    if network.kind == "mlp":
        hidden = dict(network.sizes)["hidden_layers"]
        widths = (network.inputs, *hidden, network.outputs)
        return MLP(widths), (torch.rand(2, network.inputs),), likelihood
    return ResNet18(network.outputs, **sizes), (torch.rand(2, 3, 32, 32),), likelihood


@functools.cache
def counted(network: Network, method: str, options: tuple[tuple[str, Any], ...]) -> Counted:
    """Count a training step and a draw of a prediction, on the meta device."""
    net, example, likelihood = build(network)
    more = dict(options)
    if "train_size" in METHODS[method].Options.names():
        more["train_size"] = 50_000
    sites = () if method == "none" else list(net.sites)
    model = gfo.wrap(net, method, sites, likelihood=likelihood, example=example, **more)
    model.validate = False  # which reads values
    model.to("meta")
    x = [
        torch.empty((network.batch, *part.shape[1:]), dtype=part.dtype, device="meta")
        for part in example
    ]
    if network.kind == "mcan":
        x[0] = torch.empty((network.batch, REGIONS, network.inputs), device="meta")
    y = torch.zeros(network.batch, dtype=torch.int64, device="meta")
    if isinstance(likelihood, gfo.MultiLabel):
        y = torch.zeros(network.batch, network.outputs, device="meta")
    model.train()
    step = count(lambda: model(*x, y=y).total.backward())
    model.eval()
    drawn = count(lambda: model.predict(*x, samples=_DRAWS, generator=torch.Generator()).mean)
    draws = 1 if model.method.deterministic else _DRAWS
    return Counted(
        sum(parameter.numel() for parameter in model.parameters()),
        Amount(step.flops, step.operations),
        Amount(drawn.flops, drawn.operations).times(1 / draws),
    )


def job(run: Run) -> Job | None:
    """What a run or a trial of the paper's studies does; ``None`` if that is next to nothing."""
    if run.method == LOGISTIC.label:
        return None
    data = run.data if run.data in ROWS else str(run.options["data.source"])
    network, options, fit, names = (_vqa if data == "vqa-v2" else _configured)(run, data)
    train, test = ROWS[data]
    held_out = train * run.options.get("held_out", run.options.get("data.valid", 0.1))
    epochs = fit["epochs"]
    steps = epochs * (train - held_out) / network.batch
    if "finetune" in run.options:  # on few examples, checked as often
        more = run.options["finetune"]["fit.epochs"]
        epochs += more * len(run.options["points"])
        steps += more * sum(run.options["points"]) / network.batch
    method = ALL[run.method].method
    once = METHODS[method].deterministic  # one pass, whatever the draws
    checked = epochs * held_out * (1 if once else fit["valid_samples"])
    scored = 0.0
    if run.study != studies.TUNING:
        tests = _SCORED.get(run.study, _tests)(run, test)
        scored = tests * (1 if once else run.options["samples"])
    return Job(network, method, options, names, steps, checked, scored)


_Described = tuple[Network, tuple[tuple[str, Any], ...], Options, tuple[str, ...]]
_OTHER_WORK = ("draws", "history", "objective")
"""Options of a method that decide how much it computes; widths of generators change little."""


def _configured(run: Run, data: str) -> _Described:
    """Network, options, training and names of what the configuration of a run describes."""
    arm, tuned = ARMS[run.method], run.options["tuned"]
    members = 1 if run.study == studies.TUNING else arm.members
    seeds = [run.seed + images.APART * place for place in range(members)]
    config = images.settings(arm, images.dotted(run), tuned, run.seed)
    settings = [images.settings(arm, images.dotted(run), tuned, seed) for seed in seeds]
    where = Context(Path("no folder") / run.id)
    names = tuple(f"{arm.rate_of} {images.folder_of(setting, where)}" for setting in settings)
    backbone, batch = config.backbone, config.data.batch_size
    if data in images.CIFAR:  # both orders of its layers do the same work
        network = Network("resnet18", 3, OUTPUTS[data], batch, (("width", backbone.width),))
    else:
        inputs = COLUMNS if data.startswith("eicu") else 784
        sizes = (("hidden_layers", tuple(backbone.hidden)),)
        network = Network("mlp", inputs, OUTPUTS[data], batch, sizes)
    return network, _working(config.method.options), dataclasses.asdict(config.fit), names


def _vqa(run: Run, data: str) -> _Described:
    """The same for the study of questions, which has no configuration."""
    arm = ARMS[run.method]
    values = vqa.configuration(arm, run, run.options["tuned"])
    sizes = {k.removeprefix("net."): v for k, v in values.items() if k.startswith("net.")}
    fit = {k.removeprefix("fit."): v for k, v in values.items() if k.startswith("fit.")}
    own = {k.rpartition(".")[2]: v for k, v in values.items() if k.startswith("method.options.")}
    members = 1 if run.study == studies.TUNING else arm.members
    key = f"{arm.rate_of} {arm.method} {sorted(values.items(), key=str)}"
    names = tuple(f"{key} {run.seed + images.APART * place}" for place in range(members))
    network = Network("mcan", FEATURES, OUTPUTS[data], values["batch"], tuple(sizes.items()))
    return network, _working(own), fit, names


def _working(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    chosen = {key: options[key] for key in _OTHER_WORK if key in options}
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(chosen.items()))


# Test examples that runs score, each with all draws


def _tests(run: Run, test: int) -> float:
    return test


def _shifted(run: Run, test: int) -> float:
    """Clean and rotated images, and three corruptions at five severities."""
    return float(2 * run.options["test"] + 15 * run.options["corrupted"])


def _unknown(run: Run, test: int) -> float:
    return test + sum(ROWS[other][1] for other in run.options["against"])


def _adapted(run: Run, test: int) -> float:
    return float(run.options["test"] * (1 + len(run.options["points"])))


def _masked(run: Run, test: int) -> float:
    options = run.options
    scored = options["scored"] * options["masks"] / options["samples"]
    return float(4 * options["points"] + scored)


def _noisy(run: Run, test: int) -> float:
    return test * (1 + len(run.options["noises"]))


_SCORED: dict[str, Callable[[Run, int], float]] = {
    "robustness": _shifted, "block-order": _shifted, "ood": _unknown, "adaptation": _adapted,
    "masks": _masked, "vqa": _noisy,
}  # fmt: skip


# The plan


def needed(name: str, device: Device, trained: set[str]) -> Needed:
    """What a study needs; networks that are in ``trained`` are there, its own are added."""
    whole = planning.plan(studies.get(name), "paper", Path("no such folder"))
    total = Needed()
    for run in (*whole.trials, *whole.runs):
        if name == "cost":
            _add_cost(total, run, device)
            continue
        work = job(run)
        if work is None:
            continue
        model = counted(work.network, work.method, work.options)
        new = [name for name in work.names if name not in trained]
        trained.update(new)
        batches = (len(new) * work.checked + len(work.names) * work.scored) / work.network.batch
        for action, times in ((model.step, len(new) * work.steps), (model.draw, batches)):
            total.flops += times * action.flops
            total.seconds += times * device.seconds(action)
        total.networks += len(new)
        total.bytes += len(new) * 4 * model.parameters * _COPIES
    if name == "vqa":  # features in shards, with 100 regions at most
        total.bytes += PICTURES * REGIONS * FEATURES * 2
    return total


def _add_cost(total: Needed, run: Run, device: Device) -> None:
    """Rounds of steps and predictions of the study of cost."""
    options, width = run.options, run.options.get("width")
    network = Network("mlp", 784, 10, options["batch"], (("hidden_layers", (300, 100)),))
    if width:
        network = Network("resnet18", 3, 100, options["batch"], (("width", width),))
    for method in ("none", "mc", "concrete", "contextual", "id-gflowout", "gflowout", "combined"):
        model = counted(network, method, ())
        for action, times in ((model.step, 1), (model.draw, options["draws"])):
            total.flops += times * options["rounds"] * action.flops
            total.seconds += times * options["rounds"] * device.seconds(action)


def lines(names: Sequence[str], device: Device) -> Iterator[str]:
    """The plan as a table, a line for each study and a sum, and what it assumes."""
    rows = [["study", "networks", "PFLOP", "hours", "GB", "cost"]]
    trained: set[str] = set()
    every = [needed(name, device, trained) for name in names]
    total = Needed(*(sum(getattr(own, key) for own in every) for key in vars(Needed())))
    for name, own in zip([*names, "all"], [*every, total], strict=True):
        hours = own.seconds / 3600
        rows.append([
            name, f"{own.networks:,}", f"{own.flops / 1e15:,.0f}", f"{math.ceil(hours):,}",
            f"{own.bytes / 1e9:,.0f}", f"{math.ceil(hours * device.price):,}",
        ])  # fmt: skip
    yield from aligned(rows)
    yield ""
    yield (
        f"Assumed of a GPU: {device.tflops:g} TFLOP per second reached, {device.launch:g} µs from "
        f"operation to operation, {device.price:g} for an hour. Work is counted, on no data; "
        "no training stops early; networks that studies share count once, for the first of them."
    )
    yield "This is a plan on paper: no GPU has run these studies yet."
