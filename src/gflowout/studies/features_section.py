"""What the report says of the features study, and what was promised of it; not the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gflowout.studies.features_data import PROBLEMS, Flags, Floats
from gflowout.studies.features_fit import ARMS, EQUAL
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import entry, template
from gflowout.studies.framework.content import (
    Bars,
    Block,
    Cell,
    Claim,
    Column,
    Curves,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import (
    Comparison,
    Record,
    by_arm,
    by_seed,
    compare_all,
    mean_error,
)

TITLES = {label: arm.title for label, arm in ARMS.items()}
OURS = "id-gflowout"
OWN = (OURS, "gflowout")
"""Arms of this library's method; all others are baselines."""
JUDGED = ("independent", "copies")
"""Problems that something was promised of."""
SEEDS = 5
"""With fewer nothing is judged."""
TOP = 12
"""Features in a plot."""
BINS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
"""Edges of the bins of calibration; most probabilities are near 0 or 1."""

_PREDICTION = {
    "test/nll": Column("NLL", "low"),
    "test/accuracy": Column("accuracy", "high", 1, percent=True),
    "test/auroc": Column("AUROC", "high"),
    "shift/nll": Column("NLL, shifted", "low"),
    "shift/accuracy": Column("accuracy, shifted", "high", 1, percent=True),
    "shift/auroc": Column("AUROC, shifted", "high"),
}
_KNOWN = {
    "inclusion/auroc": Column("AUROC of features", "high"),
    "inclusion/true": Column("found, true", "high", 1),
    "inclusion/false": Column("found, false", "low", 1),
    "inclusion/fdr": Column("false share", "low"),
    "inclusion/strict": Column("false share, copies false", "low"),
    "inclusion/brier": Column("Brier of inclusion", "low", 4),
    "inclusion/size": Column("expected features", None, 1),
}
_NOISY = {
    "inclusion/found": Column("features found", None, 1),
    "inclusion/false": Column("noise columns found", "low", 1),
    "inclusion/noise": Column("mean inclusion of noise", "low"),
    "inclusion/size": Column("expected features", None, 1),
}
_COST = {
    "cost/train": Column("training, s", "low", 1),
    "cost/predict": Column("test rows, s", "low", 2),
    "cost/networks": Column("networks", None, 0),
    "single/nll": Column("NLL of one chain", "low"),
}
_ABOUT = (
    "Not in the paper. Networks have two hidden layers of 64 units. Every arm has the same number "
    "of trials, chosen by NLL on a fifth of the training rows, anew for every seed; then it is "
    "fitted to all training rows, and the test rows are looked at once. A network keeps a fifth of "
    "its training rows for early stopping, each chain another fifth.",
    "Shifted: features that do not matter are three times as large in the test rows. A feature is "
    "found if its inclusion probability is at least 0.5. Trees and L1 have importances, not "
    "probabilities: a feature is found if its weight is not 0 (L1), or if shuffling it raises the "
    "NLL on rows apart by more than two standard errors (trees). Near-copies are a family that "
    "counts once: any of them is right.",
    "Networks without learned masks on their inputs say nothing of features, and are left out of "
    "the tables of features.",
)
_COST_CAPTION = (
    f"Trials not counted: each trains one network or model. {EQUAL} MC networks are one for each "
    "mask that the ten chains of ID-GFlowOut score in a step, so that they have no less computing. "
    "Times are of one core; a busy machine is slower."
)


def section(records: Sequence[Record]) -> Section:
    """Tables, plots of inclusion and calibration, comparisons and claims."""
    records = list(records)
    names = sections.present(records, PROBLEMS)
    if not names:
        return Section(findings=("No run of this study is done yet.",))
    compared = [
        Compared(name, "test/nll", f"NLL ({PROBLEMS[name].title})", "low") for name in names
    ]
    findings, details = sections.against_others(records, compared, TITLES, OURS)
    findings += [_drugs(records, name) for name in names if name.startswith("eicu")]
    none = [f"{TITLES[OURS]} cannot be compared yet."]
    helps = ["Where it helps, and where it does not:", *help_or_not(records, names)]
    nll = {name: by_arm(records, name, "test/nll") for name in names}
    overview = Table(
        "NLL on test rows",
        "Method",
        [Column(PROBLEMS[name].title, "low") for name in names],
        sections.rows(TITLES, names, lambda arm, name: sections.cell(nll[name].get(arm, []))),
    )
    blocks: list[Block] = [Text(_ABOUT), overview, Text(helps)]
    for name in names:
        blocks += _problem(records, name)
    title = f"{PROBLEMS[names[0]].title}: what it takes"
    blocks += [*_calibration(records), *_table(records, names[0], _COST, title, _COST_CAPTION)]
    blocks.append(Text(details or none, "Every comparison in NLL"))
    for name in names:
        title = f"{PROBLEMS[name].title}: chosen on validation data"
        blocks.append(sections.choices(records, {name: "Options"}, title, TITLES))
    return Section([*filter(None, findings)] or none, blocks, claims(records, names), names)


def _table(
    records: Sequence[Record],
    data: str,
    columns: Mapping[str, Column],
    title: str,
    caption: str = "",
) -> list[Block]:
    """A table of the arms that have any of the metrics; nothing if none has."""
    rows = sections.arm_rows(records, data, list(columns), TITLES)
    return [Table(title, "Method", list(columns.values()), rows, caption)] if rows else []


def _problem(records: Sequence[Record], data: str) -> list[Block]:
    source = PROBLEMS[data]
    about = (
        f"{source.title}: {source.about}. {'About ' if data.startswith('eicu') else ''}"
        f"{source.rows:,} training rows."
    ) + (" A tenth of all labels is flipped." if source.known else "")
    prediction = {n: c for n, c in _PREDICTION.items() if source.noisy or n.startswith("test")}
    features = _KNOWN if source.known else _NOISY
    if data != "copies":
        features = {name: features[name] for name in features if name != "inclusion/strict"}
    if not source.noisy:
        features = {name: features[name] for name in ("inclusion/found", "inclusion/size")}
    return [
        Text([about]),
        *_table(records, data, prediction, f"{source.title}: predictions"),
        *_table(records, data, features, f"{source.title}: features"),
        *_plot(records, data),
    ]


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
        if arm in own:
            parts = (own[arm][f"inclusion/{key}"] for key in ("names", "values", "low", "high"))
            cells = {
                str(name): Cell(float(mean), runs=1, interval=(float(low), float(high)))
                for name, mean, low, high in zip(*parts, strict=True)
            }
            series.append((title, [cells.get(label, Cell(text=sections.NONE)) for label in labels]))
    title = f"{PROBLEMS[data].title}: inclusion probability, seed 0"
    caption = (
        f"The {len(labels)} most probable features of {TITLES[OURS]}. Whiskers: the 90 % "
        "interval over masks and chains."
    )
    return [Bars(title, "inclusion probability", labels, series, caption)]


def _calibration(records: Sequence[Record]) -> list[Block]:
    """Inclusion probabilities against the truth, all seeds and problems with an answer together."""
    series = [Series("exact", [0.0, 1.0], [0.0, 1.0])]
    counts = []
    for arm, title in TITLES.items():
        own = [record["metrics"] for record in records if record["method"] == arm]
        own = [metrics for metrics in own if "inclusion/families" in metrics]
        if own:
            likely = np.concatenate([np.asarray(m["inclusion/families"], float) for m in own])
            right = np.concatenate([np.asarray(m["inclusion/relevant"], bool) for m in own])
            bins = reliability(likely, right)
            x, y, sizes = ([part[place] for part in bins] for place in range(3))
            errors = [(share * (1 - share) / size) ** 0.5 for _, share, size in bins]
            series.append(Series(title, x, y, errors))
            counts.append(f"{title} {', '.join(map(str, sizes))}")
    caption = (
        "Features, or families of copies, of all seeds and problems with a known answer, in "
        f"bins. How many from left to right: {'; '.join(counts)}."
    )
    plot = Curves(
        "Are inclusion probabilities calibrated?",
        "inclusion probability",
        "share that matters",
        series,
        caption,
    )
    return [plot] if counts else []


def reliability(probability: Floats, right: Flags) -> list[tuple[float, float, int]]:
    """Of each of :data:`BINS` that is not empty: mean probability, share that is right, how many.

    Examples:
        >>> reliability(np.array([0.0, 0.02, 0.9, 1.0]), np.array([False, True, True, True]))
        [(0.01, 0.5, 2), (0.9, 1.0, 1), (1.0, 1.0, 1)]
    """
    place = np.clip(np.searchsorted(BINS, probability, side="right") - 1, 0, len(BINS) - 2)
    members = [place == number for number in range(len(BINS) - 1)]
    return [
        (float(probability[own].mean()), float(right[own].mean()), int(own.sum()))
        for own in members
        if own.any()
    ]


def _drugs(records: Sequence[Record], data: str) -> str:
    """What the posterior says of the drugs, over all draws of hospitals; empty without records."""
    own = [
        record["metrics"]
        for record in records
        if (record["data"], record["method"]) == (data, OURS)
        and "inclusion/names" in record["metrics"]
    ]
    if not own:
        return ""
    times = Counter(
        str(name)
        for metrics in own
        for name, value in zip(metrics["inclusion/names"], metrics["inclusion/values"], strict=True)
        if float(value) >= 0.5
    )
    often = sorted(times.items(), key=lambda item: (-item[1], item[0]))[:6]
    listed = ", ".join(f"{name} ({count} of {len(own)})" for name, count in often) or "none"
    size, error = mean_error([float(metrics["inclusion/size"]) for metrics in own])
    text = (
        f"{PROBLEMS[data].title}: {TITLES[OURS]} expects {size:.1f} ± {error:.1f} features to be "
        f"needed; found, in how many draws of hospitals: {listed}"
    )
    if PROBLEMS[data].noisy:
        false = sum(float(metrics["inclusion/false"]) for metrics in own) / len(own)
        text += f"; of 100 noise columns {false:.1f} are found on average"
    return f"{text}."


def help_or_not(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Of each problem: which arms the posterior over features does not beat, and what it finds."""
    made = []
    for data in names:
        compared = compare_all(records, data, "test/nll", "low", OURS, TITLES)
        arms: dict[str, list[str]] = {}
        for arm, one in compared.items():
            arms.setdefault(one.firm, []).append(TITLES[arm])
        worse, same = (", ".join(arms.get(v, [])) for v in ("worse", "no difference seen"))
        text = "it predicts better than all others. "
        if worse:
            text = f"it does not help: {worse} predict better. "
            text += f"No difference seen from {same}. " if same else ""
        elif same:
            text = f"no gain seen over {same}. "
        if set(arms) == {"not comparable"}:
            made.append(f"{PROBLEMS[data].title}: too few seeds to say.")
        elif arms:
            made.append(f"{PROBLEMS[data].title}: {text}{_area(records, data)}")
    return made or ["Nothing can be said yet."]


def _area(records: Sequence[Record], data: str) -> str:
    """How well it finds the features, where that is known."""
    areas = by_arm(records, data, "inclusion/auroc")
    mean = {arm: sum(values) / len(values) for arm, values in areas.items() if arm in ARMS}
    if OURS not in mean:
        return ""
    others = {arm: value for arm, value in mean.items() if arm not in OWN}
    best = max(others, key=others.__getitem__, default=None)
    beside = f", the best other {others[best]:.2f} ({TITLES[best]})" if best else ""
    return f"AUROC of features {mean[OURS]:.2f}{beside}."


def claims(records: Sequence[Record], names: Sequence[str]) -> list[Claim]:
    """All that was promised, and what became of it."""
    judged = [data for data in JUDGED if data in names]
    return [
        claim(records, data)
        for data in judged
        for claim in (_claim_below, _claim_area, _claim_false)
    ]


def _claim_below(records: Sequence[Record], data: str) -> Claim:
    """Test NLL below that of every baseline, outside the paired 95 % interval."""
    baselines = [label for label in TITLES if label not in OWN]
    found = compare_all(records, data, "test/nll", "low", OURS, baselines)
    missing = [TITLES[arm] for arm in baselines if arm not in found and not ARMS[arm].only]
    seeds = min((one.seeds for one in found.values()), default=0)
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": seeds}
    if missing or seeds < SEEDS:
        reason = f"Only {seeds} paired seeds, {SEEDS} are the least."
        reason = f"Not done: {', '.join(missing)}." if missing else reason
        return template("features.below", None, **texts, reason=reason)
    closest = max(found, key=lambda arm: found[arm].difference)
    texts["closest"] = f"{TITLES[closest]}: {_gap(found[closest])}"
    behind = {arm: one for arm, one in found.items() if one.verdict != "better"}
    listed = ", ".join(f"{TITLES[arm]} ({_gap(one)})" for arm, one in behind.items())
    if any(one.difference >= 0 for one in behind.values()):
        held, lead = False, f"Not below {listed}. "
    elif behind:
        held, lead = None, f"Lower, but within the interval, for {listed}. "
    else:
        held, lead = True, ""
    weak = [TITLES[arm] for arm, one in found.items() if held and one.firm != "better"]
    also = f" Not significant after Holm correction for {', '.join(weak)}." if weak else ""
    return template("features.below", held, "why", **texts, lead=lead, weak=also)


def _claim_area(records: Sequence[Record], data: str) -> Claim:
    """Mean AUROC of inclusion at least 0.95."""
    values = list(by_seed(records, data, OURS, "inclusion/auroc").values())
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": len(values)}
    if len(values) < SEEDS:
        return template("features.area", None, **texts)
    mean = sum(values) / len(values)
    low, high = min(values), max(values)
    return template("features.area", mean >= 0.95, **texts, mean=mean, low=low, high=high)


def _claim_false(records: Sequence[Record], data: str) -> Claim:
    """At most 10 % of what is found at 0.5 is false, all seeds together."""
    found, false, true, strict = (
        by_seed(records, data, OURS, f"inclusion/{n}") for n in ("found", "false", "true", "strict")
    )
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": len(found)}
    if len(found) < SEEDS:
        return template("features.false", None, **texts)
    total, wrong = sum(found.values()), sum(false.values())
    share = wrong / max(1.0, total)
    texts |= {"found": total, "false": wrong, "true": sum(true.values()) / len(found)}
    claim = template("features.false", share <= 0.1, **texts, share=share)
    if data == "copies":
        copies = sum(value * found[seed] for seed, value in strict.items() if seed in found)
        note = entry("features.false")["note"].format(strict=copies / max(1.0, total))
        return replace(claim, why=claim.why + note)
    return claim


def _gap(comparison: Comparison) -> str:
    low, high = comparison.low, comparison.high
    return f"{comparison.difference:+.3f} ({low:+.3f} to {high:+.3f})"
