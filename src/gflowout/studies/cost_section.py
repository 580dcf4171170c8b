"""What the report says of the study on cost, from its records. Knows nothing of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.compare import by_seed
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
    Verdict,
)
from gflowout.studies.framework.study import Record
from gflowout.studies.framework.summary import mean_error

REFERENCE = "mc"
DATA = {"mlp": "MLP", "resnet18": "ResNet-18"}
"""Networks, which stand where other studies have data."""
ACTIONS = {"train": "training step", "predict": "prediction"}
TITLES = {
    **{label: arm.title for label, arm in ARMS.items() if label != "control"},
    "id-gflowout-1": "ID-GFlowOut, 1 mask per step",
    "combined-1": "GFlowOut + ID, 1 mask per step",
}
OTHERS = ("contextual", "concrete")
LEARNED = ("gflowout", *OTHERS)
"""The paper's learned methods."""
CLOSE = 4 / 3
"""Times within this factor count as about the same."""
TWICE = (1.5, 2.5)
"""What counts as around twice."""
LEAST = 2
"""Processes without which no claim is judged."""
ALONE = 0.9
"""Least share of its core that a run should have had."""


def section(records: Sequence[Record]) -> Section:
    """Tables, plots, findings and claims from the records that there are."""
    networks = [name for name in DATA if any(record["data"] == name for record in records)]
    if not networks:
        return Section(claims=_claims(records))
    blocks: list[Block] = [Text(_preface(records)), _ratios(records, networks)]
    blocks += [_bars(records, networks), _milliseconds(records, networks)]
    return Section(_findings(records, networks), blocks, _claims(records))


def _values(records: Sequence[Record], network: str, metric: str) -> list[float]:
    return list(by_seed(records, network, "all", metric).values())


def _mean(records: Sequence[Record], network: str, metric: str) -> float | None:
    values = _values(records, network, metric)
    return math.fsum(values) / len(values) if values else None


def _cell(records: Sequence[Record], network: str, metric: str) -> Cell:
    values = _values(records, network, metric)
    if not values:
        return Cell(text="-")
    mean, error = mean_error(values)
    return Cell(mean, None if math.isnan(error) else error, len(values))


def _preface(records: Sequence[Record]) -> list[str]:
    lines = [
        "All methods are timed in one process, in turns; a figure is the median over rounds of the "
        "ratio to MC dropout in the same round, then the mean over processes. A step is one of "
        "Adam; predictions have the number of draws given below, on networks as they are before "
        "training. Without dropout all draws are the same and one pass serves; an ensemble has one "
        "pass for each member."
    ]
    for name, title in DATA.items():
        for record in records:
            if record["data"] == name:
                options, machine = record["options"], record.get("machine", {})
                width = f" of width {options['width']}" if "width" in options else ""
                lines.append(
                    f"{title}{width}: batch {options['batch']}, {options['rounds']} rounds, "
                    f"{options['draws']} draws, {record.get('threads', 1)} thread, "
                    f"{machine.get('cpu', 'unknown processor')}; "
                    f"{len(_values(records, name, 'share'))} processes."
                )
                break
    low = min(value for name in DATA for value in _values(records, name, "share") or [1.0])
    if low < ALONE:
        lines.append(
            f"The machine had other work: a run got {100 * low:.0f} % of its core. Ratios suffer "
            "less than times, but take both with care."
        )
    return lines


def _ratios(records: Sequence[Record], networks: Sequence[str]) -> Table:
    pairs = [(action, network) for action in ACTIONS for network in networks]
    rows = []
    for label, title in TITLES.items():
        cells = [_cell(records, network, f"{action}/{label}") for action, network in pairs]
        if any(cell.runs for cell in cells):
            rows.append(Row(title, cells))
    for label in ("mc", *LEARNED):
        about = "1" if label == REFERENCE else "about 2"
        said = {("train", "resnet18"): about, ("predict", "resnet18"): "alike"}
        if label == REFERENCE:
            said[("predict", "resnet18")] = "-"
        rows.append(Row(TITLES[label], [Cell(text=said.get(pair, "-")) for pair in pairs], PAPER))
    return Table(
        "Time relative to MC dropout",
        "method",
        [Column(f"{ACTIONS[action]}, {DATA[network]}", "low", 2) for action, network in pairs],
        rows,
        "The paper's are of training on one RTX8000 GPU; it says of predictions only that the "
        "three learned methods are alike.",
    )


def _bars(records: Sequence[Record], networks: Sequence[str]) -> Bars:
    pairs = [(action, network) for action in ACTIONS for network in networks]
    return Bars(
        "Time relative to MC dropout",
        "times MC dropout",
        [f"{ACTIONS[action]}, {DATA[network]}" for action, network in pairs],
        [
            (title, [_cell(records, network, f"{action}/{label}") for action, network in pairs])
            for label, title in TITLES.items()
        ],
    )


def _milliseconds(records: Sequence[Record], networks: Sequence[str]) -> Table:
    pairs = [(action, network) for action in ACTIONS for network in networks]
    rows = [
        Row(title, [_cell(records, network, f"{action}_ms/{label}") for action, network in pairs])
        for label, title in TITLES.items()
    ]
    return Table(
        "Time in milliseconds",
        "method",
        [Column(f"{ACTIONS[action]}, {DATA[network]}", "low", 2) for action, network in pairs],
        [row for row in rows if any(cell.runs for cell in row.cells)],
        "Median over rounds, mean over processes.",
    )


def _findings(records: Sequence[Record], networks: Sequence[str]) -> list[str]:
    made = []
    for action, words in ACTIONS.items():
        parts: list[str] = []
        for network in networks:
            value = _mean(records, network, f"{action}/gflowout")
            if value is not None:
                parts.append(f"{value:.2f} times as long with the {DATA[network]}")
        if parts:
            beside = " (paper: about twice, on a GPU)" if action == "train" else ""
            made.append(
                f"A {words} of GFlowOut takes {' and '.join(parts)} as one of MC dropout{beside}."
            )
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    network = "resnet18"
    train, predict = (
        {label: _judgeable(records, network, f"{action}/{label}") for label in LEARNED}
        for action in ACTIONS
    )
    return [
        _judged(
            "Training with GFlowOut takes around twice the time of random dropout (ResNet, GPU).",
            None if train["gflowout"] is None else TWICE[0] <= train["gflowout"] <= TWICE[1],
            f"Rule: a step of ResNet-18 takes {TWICE[0]} to {TWICE[1]} times one of MC dropout. "
            f"It takes {_said(train['gflowout'])} times, on a CPU.",
        ),
        _judged(
            "Training with GFlowOut takes around the same time as with Contextual and Concrete "
            "dropout.",
            _all(_alike({"gflowout": train["gflowout"], other: train[other]}) for other in OTHERS),
            f"Rule: a step of ResNet-18 is within a factor of {CLOSE:.2f} of each of theirs. "
            f"{_listed(train)}",
        ),
        _judged(
            "The three learned methods are similar in the time of predictions.",
            _alike(predict),
            f"Rule: predictions of ResNet-18 of all three are within a factor of {CLOSE:.2f}. "
            f"{_listed(predict)}",
        ),
        Claim(
            "Training takes 7 hours (ResNet) and 16 hours (MCAN) on one RTX8000.",
            "not testable here",
            "There is no such GPU here; hours depend on it and on the number of epochs.",
        ),
    ]


def _judgeable(records: Sequence[Record], network: str, metric: str) -> float | None:
    enough = len(_values(records, network, metric)) >= LEAST
    return _mean(records, network, metric) if enough else None


def _judged(claim: str, holds: bool | None, why: str) -> Claim:
    if holds is None:
        return Claim(claim, "not testable here", f"Fewer than {LEAST} processes have been timed.")
    verdict: Verdict = "reproduced" if holds else "not reproduced"
    return Claim(claim, verdict, why)


def _alike(times: Mapping[str, float | None]) -> bool | None:
    values = [value for value in times.values() if value is not None]
    return max(values) / min(values) <= CLOSE if len(values) == len(times) else None


def _all(outcomes: Iterable[bool | None]) -> bool | None:
    known = list(outcomes)
    return None if None in known else all(known)


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _listed(times: Mapping[str, float | None]) -> str:
    parts = [f"{TITLES[label]} {_said(value)}" for label, value in times.items()]
    return f"Relative to MC dropout: {', '.join(parts)}."
