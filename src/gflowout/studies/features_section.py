"""What the report says of the features study, from its records. Knows nothing of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gflowout.studies.features_arms import ARMS, EQUAL
from gflowout.studies.features_claims import OURS, claims, help_or_not
from gflowout.studies.features_data import PROBLEMS
from gflowout.studies.features_scores import reliability
from gflowout.studies.framework.compare import by_arm, compare_all, sentence
from gflowout.studies.framework.content import (
    Bars,
    Better,
    Block,
    Cell,
    Column,
    Curves,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.study import Record
from gflowout.studies.framework.summary import mean_error
from gflowout.studies.framework.verdicts import cell, choices, overview

TITLES = {label: arm.title for label, arm in ARMS.items()}
TOP = 12
"""Features in a plot."""

_PREDICTION: Mapping[str, tuple[str, Better, bool]] = {
    "test/nll": ("NLL", "low", False),
    "test/accuracy": ("accuracy", "high", True),
    "test/auroc": ("AUROC", "high", False),
    "shift/nll": ("NLL, shifted", "low", False),
    "shift/accuracy": ("accuracy, shifted", "high", True),
    "shift/auroc": ("AUROC, shifted", "high", False),
}
_KNOWN: Mapping[str, tuple[str, Better | None, int]] = {
    "inclusion/auroc": ("AUROC of features", "high", 3),
    "inclusion/true": ("found, true", "high", 1),
    "inclusion/false": ("found, false", "low", 1),
    "inclusion/fdr": ("false share", "low", 3),
    "inclusion/strict": ("false share, copies false", "low", 3),
    "inclusion/brier": ("Brier of inclusion", "low", 4),
    "inclusion/size": ("expected features", None, 1),
}
_NOISY: Mapping[str, tuple[str, Better | None, int]] = {
    "inclusion/found": ("features found", None, 1),
    "inclusion/false": ("noise columns found", "low", 1),
    "inclusion/noise": ("mean inclusion of noise", "low", 3),
    "inclusion/size": ("expected features", None, 1),
}
_COST: Mapping[str, tuple[str, Better | None, int]] = {
    "cost/train": ("training, s", "low", 1),
    "cost/predict": ("test rows, s", "low", 2),
    "cost/networks": ("networks", None, 0),
    "single/nll": ("NLL of one chain", "low", 3),
}


def section(records: Sequence[Record]) -> Section:
    """Tables, what was found, plots of inclusion and calibration, comparisons, claims.

    Args:
        records: Of the study's runs that are done.
    """
    records = list(records)
    names = [name for name in PROBLEMS if any(record["data"] == name for record in records)]
    if not names:
        return Section(findings=("No run of this study is done yet.",))
    told = ["Where it helps, and where it does not:", *help_or_not(records, names)]
    blocks: list[Block] = [Text(_about()), _overview(records, names), Text(told)]
    for name in names:
        blocks += _problem(records, name)
    blocks += _calibration(records, names)
    blocks += [_costs(records, name) for name in names[:1]]
    blocks.append(Text(_sentences(records, names), "Every comparison in NLL"))
    blocks += [
        choices(records, name, PROBLEMS[name].title, _present(records, name)) for name in names
    ]
    return Section(_findings(records, names), blocks, claims(records, names), names)


def _about() -> list[str]:
    return [
        "Not in the paper. Networks have two hidden layers of 64 units. Every arm has the same "
        "number of trials, chosen by NLL on a fifth of the training rows, anew for every seed; "
        "then it is fitted to all training rows, and the test rows are looked at once. A network "
        "keeps a fifth of its training rows for early stopping, each chain another fifth.",
        "Shifted: features that do not matter are three times as large in the test rows. A feature "
        "is found if its inclusion probability is at least 0.5. Trees and L1 have importances, "
        "not probabilities: a feature is found if its weight is not 0 (L1), or if shuffling it "
        "raises the NLL on rows apart by more than two standard errors (trees). Near-copies are a "
        "family that counts once: any of them is right.",
        "Networks without learned masks on their inputs say nothing of features, and are left out "
        "of the tables of features.",
    ]


def _present(records: Sequence[Record], data: str) -> dict[str, str]:
    """Titles of the arms that have a figure."""
    known = by_arm(records, data, "test/nll")
    return {arm: title for arm, title in TITLES.items() if arm in known}


def _overview(records: Sequence[Record], names: Sequence[str]) -> Table:
    figures = {name: by_arm(records, name, "test/nll") for name in names}
    rows = [
        Row(title, [cell(figures[name].get(arm, [])) for name in names])
        for arm, title in TITLES.items()
        if any(arm in figures[name] for name in names)
    ]
    columns = [Column(PROBLEMS[name].title, "low") for name in names]
    return Table("NLL on test rows", "Method", columns, rows)


def _problem(records: Sequence[Record], data: str) -> list[Block]:
    source, arms = PROBLEMS[data], _present(records, data)
    about = (
        f"{source.title}: {source.about}. {'About ' if data.startswith('eicu') else ''}"
        f"{source.rows:,} training rows."
    )
    if source.known:
        about += " A tenth of all labels is flipped."
    made: list[Block] = [Text([about])]
    kept = {
        name: found
        for name, found in _PREDICTION.items()
        if source.noisy or not name.startswith("shift")
    }
    columns = [
        Column(title, better, 1 if percent else 3, percent)
        for title, better, percent in kept.values()
    ]
    rows = [
        Row(title, [cell(by_arm(records, data, name).get(arm, [])) for name in kept])
        for arm, title in arms.items()
    ]
    made.append(Table(f"{source.title}: predictions", "Method", columns, rows))
    wanted = _KNOWN if source.known else _NOISY
    if data != "copies":
        wanted = {name: head for name, head in wanted.items() if name != "inclusion/strict"}
    if not source.noisy:
        wanted = {name: wanted[name] for name in ("inclusion/found", "inclusion/size")}
    made += _figures(records, data, wanted, f"{source.title}: features", arms)
    return [*made, *_plot(records, data)]


def _figures(
    records: Sequence[Record],
    data: str,
    wanted: Mapping[str, tuple[str, Better | None, int]],
    title: str,
    arms: Mapping[str, str],
    caption: str = "",
) -> list[Block]:
    """A table of the arms that have any of the figures; nothing if none has."""
    values = {name: by_arm(records, data, name) for name in wanted}
    rows = [
        Row(shown, [cell(values[name].get(arm, [])) for name in wanted])
        for arm, shown in arms.items()
        if any(arm in found for found in values.values())
    ]
    columns = [Column(head, better, digits) for head, better, digits in wanted.values()]
    return [Table(title, "Method", columns, rows, caption)] if rows else []


def _plot(records: Sequence[Record], data: str) -> list[Block]:
    """Inclusion probabilities with their intervals, of the first seed."""
    own = {
        record["method"]: record["metrics"]
        for record in records
        if record["data"] == data and record["seed"] == 0 and "inclusion/low" in record["metrics"]
    }
    if OURS not in own:
        return []
    labels = [str(name) for name in own[OURS]["inclusion/names"][:TOP]]
    series = []
    for arm, title in TITLES.items():
        if arm not in own:
            continue
        found = own[arm]
        at = {str(name): place for place, name in enumerate(found["inclusion/names"])}
        cells = []
        for label in labels:
            if label not in at:
                cells.append(Cell(text="-"))
                continue
            low, high, mean = (
                float(found[f"inclusion/{key}"][at[label]]) for key in ("low", "high", "values")
            )
            cells.append(Cell(mean, runs=1, interval=(low, high)))
        series.append((title, cells))
    title = f"{PROBLEMS[data].title}: inclusion probability, seed 0"
    caption = (
        f"The {len(labels)} most probable features of {TITLES[OURS]}. Whiskers: the 90 % "
        "interval over masks and chains."
    )
    return [Bars(title, "inclusion probability", labels, series, caption)]


def _calibration(records: Sequence[Record], names: Sequence[str]) -> list[Block]:
    """Inclusion probabilities against the truth, all seeds and problems with an answer together."""
    series = [Series("exact", [0.0, 1.0], [0.0, 1.0])]
    counts = []
    for arm, title in TITLES.items():
        own = [
            record["metrics"]
            for record in records
            if record["method"] == arm
            and record["data"] in names
            and "inclusion/families" in record["metrics"]
        ]
        if not own:
            continue
        said = np.concatenate([np.asarray(found["inclusion/families"], float) for found in own])
        right = np.concatenate([np.asarray(found["inclusion/relevant"], bool) for found in own])
        bins = reliability(said, right)
        errors = [(share * (1 - share) / count) ** 0.5 for _, share, count in bins]
        series.append(
            Series(title, [mean for mean, _, _ in bins], [share for _, share, _ in bins], errors)
        )
        counts.append(f"{title} {', '.join(str(count) for _, _, count in bins)}")
    if len(series) == 1:
        return []
    return [
        Curves(
            "Are inclusion probabilities calibrated?",
            "inclusion probability",
            "share that matters",
            series,
            "Features, or families of copies, of all seeds and problems with a known answer, in "
            f"bins. How many from left to right: {'; '.join(counts)}.",
        )
    ]


def _costs(records: Sequence[Record], data: str) -> Table:
    """What an arm takes on the first problem."""
    caption = (
        f"Trials not counted: each trains one network or model. {EQUAL} MC networks are one for "
        "each mask that the ten chains of ID-GFlowOut score in a step, so that they have no less "
        "computing. Times are of one core; a busy machine is slower."
    )
    title = f"{PROBLEMS[data].title}: what it takes"
    arms = _present(records, data)
    made = _figures(records, data, _COST, title, arms, caption)
    found = made[0] if made else Table(title, "Method", [], [])
    assert isinstance(found, Table)
    return found


def _sentences(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    made = [
        sentence(each, TITLES[OURS], TITLES.get(arm, arm), f"NLL ({PROBLEMS[name].title})")
        for name in names
        for arm, each in compare_all(records, name, "test/nll", "low", OURS).items()
    ]
    return made or [f"{TITLES[OURS]} has no figure yet."]


def _findings(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        compared = compare_all(records, name, "test/nll", "low", OURS)
        if compared:
            words = f"NLL ({PROBLEMS[name].title})"
            found.append(overview(compared, TITLES, TITLES[OURS], words))
    for name in names:
        found += _drugs(records, name) if name.startswith("eicu") else []
    return found or [f"{TITLES[OURS]} has no figure yet."]


def _drugs(records: Sequence[Record], data: str) -> list[str]:
    """What the posterior says of the drugs, over all draws of hospitals."""
    own = [
        record["metrics"]
        for record in records
        if record["data"] == data
        and record["method"] == OURS
        and "inclusion/names" in record["metrics"]
    ]
    if not own:
        return []
    times: dict[str, int] = {}
    for found in own:
        pairs = zip(found["inclusion/names"], found["inclusion/values"], strict=True)
        for name, value in pairs:
            if float(value) >= 0.5:
                times[str(name)] = times.get(str(name), 0) + 1
    often = sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))[:6]
    listed = ", ".join(f"{name} ({count} of {len(own)})" for name, count in often) or "none"
    size, error = mean_error([float(found["inclusion/size"]) for found in own])
    text = (
        f"{PROBLEMS[data].title}: {TITLES[OURS]} expects {size:.1f} ± {error:.1f} features to be "
        f"needed; found, in how many draws of hospitals: {listed}"
    )
    if PROBLEMS[data].noisy:
        false = [float(found["inclusion/false"]) for found in own]
        text += f"; of 100 noise columns {sum(false) / len(false):.1f} are found on average"
    return [f"{text}."]
