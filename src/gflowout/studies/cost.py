"""What the methods cost: a training step and a prediction, relative to random (MC) dropout.

All methods are timed in one process, in turns, so that whatever slows the machine slows all of
them; what counts is the ratio of neighbours. Still the machine should have nothing else to do: runs
of this study wait for one another, but cannot see other programs. What comes out is said in
:mod:`gflowout.studies.cost_section`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.methods import adam_step
from gflowout.bench.timing import Case, Table, measure
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.model import MaskedModel
from gflowout.runs import Context, Result, Run, locks
from gflowout.studies.cost_section import DATA, REFERENCE, section
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.study import Chosen, Options, Study

NAME = "cost"
ALL = "all"
"""Instead of a method: one run times them all."""
CLASSES, TRAIN_SIZE = 10, 50_000


@dataclass(frozen=True)
class Timed:
    """What is timed under a label.

    Attributes:
        method: Name of the method.
        options: Of the method.
        members: Networks of an ensemble; 1 for a single one.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1


_SIZED = {"train_size": TRAIN_SIZE}
TIMED = {
    "none": Timed("none"),
    "mc": Timed("mc"),
    "concrete": Timed("concrete", _SIZED),
    "contextual": Timed("contextual"),
    "id-gflowout": Timed("id-gflowout", _SIZED),
    "id-gflowout-1": Timed("id-gflowout", {**_SIZED, "draws": 1}),
    "gflowout": Timed("gflowout"),
    "combined": Timed("combined", _SIZED),
    "combined-1": Timed("combined", {**_SIZED, "draws": 1}),
    "ensemble": Timed("none", members=ARMS["ensemble"].members),
}
"""By label. ID-GFlowOut and the combined method score four masks in a step unless told otherwise,
the paper's ID-GFlowOut one: ``-1`` is for that."""

SIZES: dict[str, dict[str, Options]] = {
    "smoke": {
        "mlp": {"batch": 16, "rounds": 2, "draws": 5},
        "resnet18": {"batch": 2, "rounds": 1, "draws": 2, "width": 2},
    },
    "cpu": {
        "mlp": {"batch": 128, "rounds": 50, "draws": 20},
        "resnet18": {"batch": 32, "rounds": 8, "draws": 20, "width": 16},
    },
    "paper": {
        "mlp": {"batch": 128, "rounds": 200, "draws": 20},
        "resnet18": {"batch": 128, "rounds": 20, "draws": 20, "width": 64},
    },
}
SEEDS = {"smoke": 1, "cpu": 3, "paper": 5}
"""Processes: what changes from one to the next is not seen within one."""


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """A run of each network, several times."""
    return [
        Run(NAME, ALL, data, seed, SIZES[preset][data])
        for seed in range(SEEDS[preset])
        for data in DATA
    ]


def work(run: Run, context: Context) -> Result:
    """Time all methods on one network."""
    waited = context.folder.parent / f"{NAME}.lock"
    waited.parent.mkdir(parents=True, exist_ok=True)
    with locks.hold(waited, wait=True):
        wall, processor = time.perf_counter(), time.process_time()
        metrics = _timed(run, context)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    # One thread that has a core for itself has a share of 1.
    metrics["share"] = processor / (wall * torch.get_num_threads())
    return {"metrics": metrics}


def tables(data: str, options: Mapping[str, Any]) -> dict[str, Table]:
    """What is timed on a network: ``"train"``, a step of Adam, and ``"predict"``.

    Args:
        data: ``"mlp"`` or ``"resnet18"``.
        options: ``batch``, ``rounds``, ``draws``; ``width`` of a ResNet-18.
    """
    batch, draws = options["batch"], options["draws"]

    def inputs() -> Tensor:
        return torch.randn(batch, 784) if data == "mlp" else torch.randn(batch, 3, 32, 32)

    def network() -> Any:
        if data == "mlp":
            return MLP()
        return to_fastest_format(ResNet18(CLASSES, options["width"]))  # as the other studies do

    def steps() -> dict[str, Case]:
        x, y = inputs(), torch.randint(CLASSES, (batch,))
        return {label: adam_step(_model(label, network, x), x, y) for label in TIMED}

    def predictions() -> dict[str, Case]:
        x = inputs()
        return {label: _prediction(_model(label, network, x), x, draws) for label in TIMED}

    return {
        name: Table(
            name=name,
            title=name,
            references=(REFERENCE,),
            repeats=options["rounds"],
            build=build,
        )
        for name, build in (("train", steps), ("predict", predictions))
    }


def _timed(run: Run, context: Context) -> dict[str, Any]:
    rounds, done = int(run.options["rounds"]), 0
    metrics: dict[str, Any] = {}

    def tell() -> None:
        nonlocal done
        done += 1
        context.progress(done, 2 * rounds, "rounds")

    with torch.random.fork_rng(devices=[]):
        for name, table in tables(run.data, run.options).items():
            for label, case in measure(table, tell)["cases"].items():
                ratio = case["ratio_to"][REFERENCE]
                metrics[f"{name}/{label}"] = ratio["median"]
                metrics[f"{name}_quartiles/{label}"] = [ratio["quartile_1"], ratio["quartile_3"]]
                metrics[f"{name}_ms/{label}"] = 1000 * case["seconds"]["median"]
    return metrics


def _model(label: str, network: Callable[[], Any], x: Tensor) -> Any:
    """An untrained model, or an ensemble of them."""
    timed = TIMED[label]

    def one() -> MaskedModel:
        net = network()
        return gfo.wrap(
            net,
            timed.method,
            net.sites,
            likelihood=gfo.Categorical(CLASSES),
            example=(x[:2],),
            **timed.options,
        )

    if timed.members == 1:
        return one()
    return gfo.Ensemble([one() for _ in range(timed.members)])


def _prediction(model: Any, x: Tensor, draws: int) -> Case:
    return lambda: model.predict(x, samples=draws).mean


STUDY = Study(
    name=NAME,
    title="What the methods cost",
    question="How much longer than random dropout do the methods take to train and to predict?",
    paper="appendix on computational efficiency",
    work="gflowout.studies.cost:work",
    runs=runs,
    section=section,
)
