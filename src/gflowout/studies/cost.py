"""What the methods cost: a training step and a prediction, relative to random (MC) dropout.

All methods are timed in one process, in turns, so that whatever slows the machine slows all of
them; what counts is the ratio of neighbours. Still the machine should have nothing else to do: runs
of this study wait for one another, but cannot see other programs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench import timing
from gflowout.bench.methods import adam_step
from gflowout.bench.timing import Case
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.model import MaskedModel
from gflowout.runs import Context, Result, Run, locks
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import template
from gflowout.studies.framework.content import (
    PAPER,
    Bars,
    Block,
    Cell,
    Claim,
    Column,
    Row,
    Section,
    Table,
    Text,
)
from gflowout.studies.framework.statistics import by_seed
from gflowout.studies.framework.study import ARMS, Chosen, Options, Record, Study

NAME = "cost"
ALL = "all"
"""Instead of a method: one run times them all."""
CLASSES, TRAIN_SIZE = 10, 50_000
REFERENCE = "mc"
DATA = {"mlp": "MLP", "resnet18": "ResNet-18"}
"""Networks, which stand where other studies have data."""
ACTIONS = {"train": "training step", "predict": "prediction"}
TITLES = {
    **{label: arm.title for label, arm in ARMS.items() if label != "control"},
    "id-gflowout-1": "ID-GFlowOut, 1 mask per step",
    "combined-1": "GFlowOut + ID, 1 mask per step",
}
LEARNED = ("gflowout", "contextual", "concrete")
"""The paper's learned methods."""
LEAST = 2
"""Processes without which no claim is judged."""
ALONE = 0.9
"""Least share of its core that a run should have had."""


class Timed(NamedTuple):
    """What is timed under a label: a method with options, or an ensemble of several members."""

    method: str
    options: Mapping[str, Any] = {}
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
"""By label. By default ID-GFlowOut and the combined method score four masks in a step, the paper's
ID-GFlowOut one: ``-1`` is for that."""

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
    lock = context.folder.parent / f"{NAME}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locks.hold(lock, wait=True):
        wall, processor = time.perf_counter(), time.process_time()
        metrics = _timed(run, context)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    # One thread that has a core for itself has a share of 1.
    metrics["share"] = processor / (wall * torch.get_num_threads())
    return {"metrics": metrics}


def tables(data: str, options: Mapping[str, Any]) -> dict[str, timing.Table]:
    """What is timed on a network: ``"train"``, a step of Adam, and ``"predict"``."""
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

        def case(model: Any) -> Case:
            return lambda: model.predict(x, samples=draws).mean

        return {label: case(_model(label, network, x)) for label in TIMED}

    return {
        name: timing.Table(
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

    def report() -> None:
        nonlocal done
        done += 1
        context.progress(done, 2 * rounds, "rounds")

    with torch.random.fork_rng(devices=[]):
        for name, table in tables(run.data, run.options).items():
            for label, case in timing.measure(table, report)["cases"].items():
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


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, plots, findings and claims from the records that there are."""
    networks = sections.present(records, DATA)
    if not networks:
        return Section(claims=_claims(records))
    pairs = [(action, network) for action in ACTIONS for network in networks]
    heads = [f"{ACTIONS[action]}, {DATA[network]}" for action, network in pairs]
    columns = [Column(head, "low", 2) for head in heads]

    def of(label: str, pair: tuple[str, str], unit: str = "") -> Cell:
        return sections.cell(_values(records, pair[1], f"{pair[0]}{unit}/{label}"))

    title = "Time relative to MC dropout"
    ratios = sections.rows(TITLES, pairs, of)
    blocks: list[Block] = [
        Text(_preface(records)),
        Table(title, "method", columns, [*ratios, *_paper(pairs)], _PAPER_TIMES),
        Bars(
            title,
            "times MC dropout",
            heads,
            [(name, [of(label, pair) for pair in pairs]) for label, name in TITLES.items()],
        ),
        Table(
            "Time in milliseconds",
            "method",
            columns,
            sections.rows(TITLES, pairs, lambda label, pair: of(label, pair, "_ms")),
            "Median over rounds, mean over processes.",
        ),
    ]
    return Section(_findings(records, networks), blocks, _claims(records))


_PAPER_TIMES = (
    "The paper's are of training on one RTX8000 GPU; it says of predictions only that the three "
    "learned methods are alike."
)


def _values(records: Sequence[Record], network: str, metric: str) -> list[float]:
    return list(by_seed(records, network, ALL, metric).values())


def _mean(records: Sequence[Record], network: str, metric: str, least: int = 1) -> float | None:
    """Mean over processes, if there are enough."""
    values = _values(records, network, metric)
    return math.fsum(values) / len(values) if len(values) >= least else None


def _preface(records: Sequence[Record]) -> list[str]:
    lines = [
        "All methods are timed in one process, in turns; each number is the median over rounds of "
        "the ratio to MC dropout in the same round, then the mean over processes. A step is one of "
        "Adam; predictions have the number of draws given below, on networks as they are before "
        "training. Without dropout all draws are the same and one pass serves; an ensemble has one "
        "pass for each member."
    ]
    shares = [1.0]
    for name, title in DATA.items():
        record = next((record for record in records if record["data"] == name), None)
        if record is not None:
            options, machine = record["options"], record.get("machine", {})
            width = f" of width {options['width']}" if "width" in options else ""
            own = _values(records, name, "share")
            shares += own
            lines.append(
                f"{title}{width}: batch {options['batch']}, {options['rounds']} rounds, "
                f"{options['draws']} draws, {record.get('threads', 1)} thread, "
                f"{machine.get('cpu', 'unknown processor')}; {len(own)} processes."
            )
    if min(shares) < ALONE:
        lines.append(
            f"The machine had other work: a run got {100 * min(shares):.0f} % of its core. Ratios "
            "suffer less than times, but take both with care."
        )
    return lines


def _paper(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """What the paper says of ResNet."""
    rows = []
    for label in (REFERENCE, *LEARNED):
        times = {("train", "resnet18"): "about 2", ("predict", "resnet18"): "alike"}
        if label == REFERENCE:
            times = {("train", "resnet18"): "1"}
        cells = [Cell(text=times.get(pair, sections.NONE)) for pair in pairs]
        rows.append(Row(TITLES[label], cells, PAPER))
    return rows


def _findings(records: Sequence[Record], networks: Sequence[str]) -> list[str]:
    made = []
    for action, words in ACTIONS.items():
        means = {name: _mean(records, name, f"{action}/gflowout") for name in networks}
        parts = [
            f"{mean:.2f} times as long with the {DATA[name]}"
            for name, mean in means.items()
            if mean is not None
        ]
        if parts:
            beside = " (paper: about twice, on a GPU)" if action == "train" else ""
            made.append(
                f"A {words} of GFlowOut takes {' and '.join(parts)} as one of MC dropout{beside}."
            )
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    train, predict = (
        {label: _mean(records, "resnet18", f"{action}/{label}", LEAST) for label in LEARNED}
        for action in ACTIONS
    )
    ours = train["gflowout"]
    same = [_alike([ours, train[label]]) for label in LEARNED[1:]]
    return [
        template("cost.twice", None if ours is None else 1.5 <= ours <= 2.5, time=ours),
        template("cost.same", None if None in same else all(same), times=_listed(train)),
        template("cost.predictions", _alike(predict.values()), times=_listed(predict)),
        template("cost.hours", None),
    ]


def _alike(times: Iterable[float | None]) -> bool | None:
    """Whether times are within a factor of 4/3."""
    values = list(times)
    known = [value for value in values if value is not None]
    return max(known) / min(known) <= 4 / 3 if len(known) == len(values) else None


def _listed(times: Mapping[str, float | None]) -> str:
    parts = [
        f"{TITLES[label]} {sections.NONE if value is None else f'{value:.2f}'}"
        for label, value in times.items()
    ]
    return f"Relative to MC dropout: {', '.join(parts)}."


STUDY = Study(
    name=NAME,
    title="What the methods cost",
    question="How much longer than random dropout do the methods take to train and to predict?",
    paper="appendix on computational efficiency",
    work="gflowout.studies.cost:work",
    runs=runs,
    section=section,
)
