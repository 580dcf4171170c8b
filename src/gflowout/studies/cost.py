"""What the methods cost: a training step and a prediction, relative to random (MC) dropout.

All methods are timed in one process, in turns, so that whatever slows the machine slows all of
them; what counts is the ratio of neighbours. Still the machine should have nothing else to do: runs
of this study wait for one another, but cannot see other programs.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench import timing
from gflowout.bench.methods import CLASSES, adam_step, prediction, wrap
from gflowout.core.memory_format import to_fastest_format
from gflowout.runs import Context, Result, Run, locks
from gflowout.studies.framework import content, sections
from gflowout.studies.framework.arms import ARMS, CONTROLS, Options
from gflowout.studies.framework.claims import entry, stand_in, template
from gflowout.studies.framework.content import Cell, Section
from gflowout.studies.framework.statistics import Record, by_seed
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import PRESETS

NAME = "cost"
ALL = "all"
"""Instead of a method: one run times them all."""
TEXTS = entry(f"{NAME}.texts")
REFERENCE = "mc"
DATA = {"mlp": "MLP", "resnet18": "ResNet-18"}
"""Networks, in place of the data of other studies."""
ACTIONS = {"train": "training step", "predict": "prediction"}
_CONTROLS = {label for labels in CONTROLS.values() for label in labels}  # cost what others do
TITLES = {
    **{label: arm.title for label, arm in ARMS.items() if label not in _CONTROLS},
    "id-gflowout-1": "ID-GFlowOut, 1 mask per step",
    "combined-1": "GFlowOut + ID, 1 mask per step",
}
"""What is timed, by label. By default ID-GFlowOut and the combined method score four masks in a
step; with ``-1`` they score one, as the paper's ID-GFlowOut does."""
SIZED = ("concrete", "id-gflowout", "combined")
"""Methods that need the number of training examples."""
LEARNED = ("gflowout", "contextual-paper", "concrete")
"""The paper's learned methods."""
LEAST = 2
"""Processes without which no claim is judged."""
ALONE = 0.9
"""Least share of its core that a run should have had."""

SIZES = PRESETS[NAME]
"""By preset and network: batch, rounds of the timing, draws of a prediction, width."""
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


def device_of(options: Mapping[str, Any]) -> torch.device:
    """Where methods are timed: ``"auto"`` is the device that training takes, else the CPU."""
    auto = options.get("device") == "auto" and torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if auto else None
    return torch.device("cpu") if device is None else device


def tables(data: str, options: Mapping[str, Any]) -> dict[str, timing.Table]:
    """What is timed on a network: ``"train"``, a step of Adam, and ``"predict"``."""
    shape, device = (784,) if data == "mlp" else (3, 32, 32), device_of(options)

    def network() -> Any:
        if data == "mlp":
            return MLP()
        return to_fastest_format(ResNet18(CLASSES, options["width"]))  # as the other studies do

    def cases(action: str) -> dict[str, timing.Case]:
        x, y = torch.randn(options["batch"], *shape), torch.randint(CLASSES, (options["batch"],))
        models = {label: _model(label, network, x[:2]).to(device) for label in TITLES}
        x, y = x.to(device), y.to(device)
        if action == "train":
            timed = {label: adam_step(model, x, y) for label, model in models.items()}
        else:
            timed = {label: prediction(m, x, options["draws"]) for label, m in models.items()}
        return {label: _finished(case, device) for label, case in timed.items()}

    return {
        action: timing.Table(
            action, action, (REFERENCE,), options["rounds"], functools.partial(cases, action)
        )
        for action in ACTIONS
    }


def _finished(case: timing.Case, device: torch.device) -> timing.Case:
    """A case that waits for its device: an accelerator works on while Python goes ahead."""
    if device.type == "cpu":
        return case

    def finished() -> object:
        result = case()
        torch.accelerator.synchronize(device)
        return result

    return finished


def _timed(run: Run, context: Context) -> dict[str, Any]:
    rounds, done = int(run.options["rounds"]), 0
    metrics: dict[str, Any] = {"device": device_of(run.options).type}

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


def _model(label: str, network: Callable[[], Any], example: Tensor) -> Any:
    """An untrained model, or an ensemble of them."""
    arm = ARMS[label.removesuffix("-1")]
    options: Options = {key.rpartition(".")[2]: value for key, value in arm.options.items()}
    if label.endswith("-1"):
        options["draws"] = 1
    if arm.method in SIZED:
        options["train_size"] = 50_000
    members = [wrap(network(), arm.method, example, **options) for _ in range(arm.members)]
    return members[0] if arm.members == 1 else gfo.Ensemble(members)


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, plots, findings and claims from the records that there are."""
    networks = sections.present(records, DATA)
    if not networks:
        return Section(claims=_claims(records))
    pairs = [(action, network) for action in ACTIONS for network in networks]
    heads = [f"{ACTIONS[action]}, {DATA[network]}" for action, network in pairs]
    columns = [content.Column(head, "low", 2) for head in heads]

    def of(label: str, pair: tuple[str, str], unit: str = "") -> Cell:
        return sections.cell(_values(records, pair[1], f"{pair[0]}{unit}/{label}"))

    title = "Time relative to MC dropout"
    rows = [*sections.rows(TITLES, pairs, of), *_paper(pairs)]
    bars = [(name, [of(label, pair) for pair in pairs]) for label, name in TITLES.items()]
    times = sections.rows(TITLES, pairs, lambda label, pair: of(label, pair, "_ms"))
    blocks: list[content.Block] = [
        content.Text(_preface(records)),
        content.Table(title, "method", columns, rows, TEXTS["ratios"]),
        content.Bars(title, "times MC dropout", heads, bars),
        content.Table("Time in milliseconds", "method", columns, times, TEXTS["times"]),
    ]
    return Section(_findings(records, networks), blocks, _claims(records))


def _values(records: Sequence[Record], network: str, metric: str) -> list[float]:
    return list(by_seed(records, network, ALL, metric).values())


def _mean(records: Sequence[Record], network: str, metric: str, least: int = 1) -> float | None:
    """Mean over processes, if there are enough."""
    values = _values(records, network, metric)
    return math.fsum(values) / len(values) if len(values) >= least else None


def _preface(records: Sequence[Record]) -> list[str]:
    lines = [TEXTS["about"]]
    shares = [1.0]
    for name, title in DATA.items():
        record = next((record for record in records if record["data"] == name), None)
        if record is not None:
            options = record["options"]
            width = f" of width {options['width']}" if "width" in options else ""
            own = _values(records, name, "share")
            if record["metrics"].get("device", "cpu") == "cpu":
                shares += own
            lines.append(
                f"{title}{width}: batch {options['batch']}, {options['rounds']} rounds, "
                f"{options['draws']} draws, {_processor(record)}; {len(own)} processes."
            )
    if min(shares) < ALONE:
        lines.append(TEXTS["busy"].format(share=100 * min(shares)))
    return lines


def _processor(record: Record) -> str:
    """The device that was timed, in words."""
    machine = record.get("machine", {})
    if record["metrics"].get("device", "cpu") != "cpu":
        return ", ".join(machine.get("gpus") or ["an unknown GPU"])
    threads = record.get("threads", 1)
    return f"{threads} thread, {machine.get('cpu', 'unknown processor')}"


def _paper(pairs: Sequence[tuple[str, str]]) -> list[content.Row]:
    """What the paper says of ResNet-18."""
    learned = {("train", "resnet18"): "about 2", ("predict", "resnet18"): "alike"}
    times = {REFERENCE: {("train", "resnet18"): "1"}, **dict.fromkeys(LEARNED, learned)}
    cells = {
        label: [Cell(text=own.get(pair, sections.NONE)) for pair in pairs]
        for label, own in times.items()
    }
    return sections.paper_rows(cells)


def _findings(records: Sequence[Record], networks: Sequence[str]) -> list[str]:
    lines = []
    for action, words in ACTIONS.items():
        parts = [
            f"{mean:.2f} times as long with the {DATA[name]}"
            for name in networks
            if (mean := _mean(records, name, f"{action}/gflowout")) is not None
        ]
        if parts:
            paper = " (paper: about twice, on a GPU)" if action == "train" else ""
            lines.append(
                f"A {words} of GFlowOut takes {' and '.join(parts)} as one of MC dropout{paper}."
            )
    return lines


def _claims(records: Sequence[Record]) -> list[content.Claim]:
    train, predict = (
        {label: _mean(records, "resnet18", f"{action}/{label}", LEAST) for label in LEARNED}
        for action in ACTIONS
    )
    ours = train["gflowout"]
    same = [_alike([ours, train[label]]) for label in LEARNED[1:]]
    twice = None if ours is None else 1.5 <= ours <= 2.5
    devices = {record["metrics"].get("device", "cpu") for record in records}
    judge = functools.partial(template, replaced=stand_in("cpu") if "cpu" in devices else "")
    return [
        judge("cost.twice", twice, time=ours),
        judge("cost.same", None if None in same else all(same), times=_listed(train)),
        judge("cost.predictions", _alike(predict.values()), times=_listed(predict)),
        template("cost.hours", None),
    ]


def _alike(times: Iterable[float | None]) -> bool | None:
    """Whether times are within a factor of 4/3; ``None`` if one is missing."""
    values = [math.nan if value is None else value for value in times]
    return None if any(map(math.isnan, values)) else max(values) / min(values) <= 4 / 3


def _listed(times: Mapping[str, float | None]) -> str:
    parts = [
        f"{TITLES[label]} {sections.NONE if value is None else f'{value:.2f}'}"
        for label, value in times.items()
    ]
    return f"Relative to MC dropout: {', '.join(parts)}."


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.cost:work",
    runs=runs,
    section=section,
)
