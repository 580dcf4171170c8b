"""The report of the study ``features``: tables, plots of inclusion, comparisons and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gflowout.studies import features_claims, features_compare, features_fit
from gflowout.studies.features_data import JUDGED, PROBLEMS, Flags, Floats
from gflowout.studies.features_fit import ARMS, EQUAL
from gflowout.studies.features_tables import ORIGINS
from gflowout.studies.framework import content, sections, statistics
from gflowout.studies.framework.claims import columns, entry, template
from gflowout.studies.framework.content import Block, Cell, Claim, Column, Section, Table, Text
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_arm, by_seed, compare_all

TITLES = {label: arm.title for label, arm in ARMS.items()}
OURS = "id-gflowout"
OWN = (OURS, "gflowout")
"""Arms of this library's method; all others are baselines."""
LEAST_SEEDS = 5
"""With fewer nothing is judged."""
TOP = 12
"""Features in a plot."""
BINS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
"""Edges of the bins of calibration; most probabilities are near 0 or 1."""

_COLUMNS = columns("features")
_TEXTS = entry("features.texts")


def section(records: Sequence[Record]) -> Section:
    """Tables, plots of inclusion and calibration, comparisons and claims."""
    names = sections.present(records, PROBLEMS)
    rivals = features_compare.blocks(records)
    if not names:
        nothing = [] if rivals else ["No run of this study is done yet."]
        own = features_claims.claims(records)
        return Section(nothing, rivals, own, sections.present(records, ORIGINS))
    titles = {name: PROBLEMS[name].title for name in names}
    compared = [Compared(name, "test/nll", f"NLL ({titles[name]})", "low") for name in names]
    findings, details = sections.against_others(records, compared, TITLES, OURS)
    findings += [_drugs(records, name) for name in names if name.startswith("eicu")]
    none = [f"{TITLES[OURS]} cannot be compared yet."]
    nll = {name: by_arm(records, name, "test/nll") for name in names}
    overview = Table(
        "NLL on test rows",
        "Method",
        [Column(title, "low") for title in titles.values()],
        sections.rows(TITLES, names, lambda arm, name: sections.cell(nll[name].get(arm, []))),
    )
    helps = ["Where it helps, and where it does not:", *help_or_not(records, names)]
    blocks: list[Block] = [Text(_TEXTS["about"]), overview, Text(helps)]
    for name in names:
        blocks += _problem(records, name)
    cost = f"{titles[names[0]]}: what it takes"
    caption = _TEXTS["cost"].format(equal=EQUAL)
    blocks += [*_calibration(records), *_table(records, names[0], _COLUMNS["cost"], cost, caption)]
    blocks.append(Text(details or none, "Every comparison in NLL"))
    for name, title in titles.items():
        chosen = f"{title}: chosen on validation data"
        blocks.append(sections.choices(records, {name: "Options"}, chosen, TITLES))
    findings = [*filter(None, findings)] or none
    judged = claims(records, names) + features_claims.claims(records)
    return Section(findings, [*blocks, *rivals], judged, names)


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
    hidden = [] if data == "copies" else ["inclusion/strict"]
    if not source.noisy:
        hidden += ["inclusion/false", "inclusion/noise"]
        hidden += ["shift/nll", "shift/accuracy", "shift/auroc"]
    prediction, features = (
        {name: column for name, column in _COLUMNS[table].items() if name not in hidden}
        for table in ("prediction", "known" if source.known else "noisy")
    )
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
    for arm in filter(own.__contains__, TITLES):
        parts = (own[arm][f"inclusion/{key}"] for key in ("names", "values", "low", "high"))
        cells = {
            str(name): Cell(float(mean), runs=1, interval=(float(low), float(high)))
            for name, mean, low, high in zip(*parts, strict=True)
        }
        bars = [cells.get(label, Cell(text=sections.NONE)) for label in labels]
        series.append((TITLES[arm], bars))
    title = f"{PROBLEMS[data].title}: inclusion probability, seed 0"
    caption = _TEXTS["inclusion"].format(count=len(labels), ours=TITLES[OURS])
    return [content.Bars(title, "inclusion probability", labels, series, caption)]


def _calibration(records: Sequence[Record]) -> list[Block]:
    """Inclusion probabilities against the truth, all seeds and problems with an answer together."""
    series = [content.Series("exact", [0.0, 1.0], [0.0, 1.0])]
    counts = []
    for arm, title in TITLES.items():
        own = [record["metrics"] for record in records if record["method"] == arm]
        own = [metrics for metrics in own if "inclusion/families" in metrics]
        if own:
            likely = np.concatenate([np.asarray(m["inclusion/families"], float) for m in own])
            right = np.concatenate([np.asarray(m["inclusion/relevant"], bool) for m in own])
            x, y, sizes = zip(*reliability(likely, right), strict=True)
            errors = [
                (share * (1 - share) / size) ** 0.5 for share, size in zip(y, sizes, strict=True)
            ]
            series.append(content.Series(title, x, y, errors))
            counts.append(f"{title} {', '.join(map(str, sizes))}")
    caption = _TEXTS["calibration"].format(counts="; ".join(counts))
    axes = ("inclusion probability", "share that matters")
    plot = content.Curves("Are inclusion probabilities calibrated?", *axes, series, caption)
    return [plot] if counts else []


def reliability(probability: Floats, right: Flags) -> list[tuple[float, float, int]]:
    """Of each of :data:`BINS` that is not empty: mean probability, share that is right, count."""
    place = np.clip(np.searchsorted(BINS, probability, side="right") - 1, 0, len(BINS) - 2)
    bins = [place == number for number in np.unique(place)]
    return [
        (float(probability[own].mean()), float(right[own].mean()), int(own.sum())) for own in bins
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
        if float(value) >= features_fit.THRESHOLD
    )
    often = sorted(times.items(), key=lambda item: (-item[1], item[0]))[:6]
    listed = ", ".join(f"{name} ({count} of {len(own)})" for name, count in often) or "none"
    size, error = statistics.mean_error([float(metrics["inclusion/size"]) for metrics in own])
    values = {"size": size, "error": error, "listed": listed}
    text = _TEXTS["drugs"].format(problem=PROBLEMS[data].title, ours=TITLES[OURS], **values)
    if PROBLEMS[data].noisy:
        false = sum(float(metrics["inclusion/false"]) for metrics in own) / len(own)
        text += f"; of 100 noise columns {false:.1f} are found on average"
    return f"{text}."


def help_or_not(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Of each problem: which arms the posterior over features does not beat, and what it finds."""
    sentences = []
    for data in names:
        comparisons = compare_all(records, data, "test/nll", "low", OURS, TITLES)
        arms: dict[str, list[str]] = {}
        for arm, comparison in comparisons.items():
            arms.setdefault(comparison.firm, []).append(TITLES[arm])
        worse, same = (", ".join(arms.get(v, [])) for v in ("worse", "no difference seen"))
        text = "it predicts better than all others. "
        if worse:
            text = f"it does not help: {worse} predict better. "
            text += f"No difference seen from {same}. " if same else ""
        elif same:
            text = f"no gain seen over {same}. "
        if set(arms) == {"not comparable"}:
            sentences.append(f"{PROBLEMS[data].title}: too few seeds to say.")
        elif arms:
            sentences.append(f"{PROBLEMS[data].title}: {text}{_area(records, data)}")
    return sentences or ["Nothing can be said yet."]


def _area(records: Sequence[Record], data: str) -> str:
    """How well it finds the features, where that is known."""
    areas = by_arm(records, data, "inclusion/auroc")
    mean = {arm: sum(values) / len(values) for arm, values in areas.items() if arm in ARMS}
    if OURS not in mean:
        return ""
    best = max((arm for arm in mean if arm not in OWN), key=mean.__getitem__, default=None)
    beside = f", the best other {mean[best]:.2f} ({TITLES[best]})" if best else ""
    return f"AUROC of features {mean[OURS]:.2f}{beside}."


def claims(records: Sequence[Record], names: Sequence[str]) -> list[Claim]:
    """All that was promised, and what was found."""
    return [
        claim(records, data)
        for data in JUDGED
        if data in names
        for claim in (_claim_below, _claim_area, _claim_false)
    ]


def _claim_below(records: Sequence[Record], data: str) -> Claim:
    """Test NLL below that of every baseline, outside the paired 95 % interval."""
    baselines = [label for label in TITLES if label not in OWN]
    compared = compare_all(records, data, "test/nll", "low", OURS, baselines)
    missing = [TITLES[arm] for arm in baselines if arm not in compared and not ARMS[arm].only]
    seeds = min((comparison.seeds for comparison in compared.values()), default=0)
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": seeds}
    if missing or seeds < LEAST_SEEDS:
        reason = f"Only {seeds} paired seeds, {LEAST_SEEDS} are the least."
        reason = f"Not done: {', '.join(missing)}." if missing else reason
        return template("features.below", None, **texts, reason=reason)
    closest = max(compared, key=lambda arm: compared[arm].difference)
    texts["closest"] = f"{TITLES[closest]}: {_gap(compared[closest])}"
    behind = {arm: own for arm, own in compared.items() if own.verdict != "better"}
    listed = ", ".join(f"{TITLES[arm]} ({_gap(own)})" for arm, own in behind.items())
    if any(own.difference >= 0 for own in behind.values()):
        outcome, lead = False, f"Not below {listed}. "
    elif behind:
        outcome, lead = None, f"Lower, but within the interval, for {listed}. "
    else:
        outcome, lead = True, ""
    weak = [TITLES[arm] for arm, own in compared.items() if outcome and own.firm != "better"]
    also = f" Not significant after Holm correction for {', '.join(weak)}." if weak else ""
    return template("features.below", outcome, "why", **texts, lead=lead, weak=also)


def _claim_area(records: Sequence[Record], data: str) -> Claim:
    """Mean AUROC of inclusion at least 0.95."""
    values = list(by_seed(records, data, OURS, "inclusion/auroc").values())
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": len(values)}
    if len(values) < LEAST_SEEDS:
        return template("features.area", None, **texts)
    mean = sum(values) / len(values)
    low, high = min(values), max(values)
    return template("features.area", mean >= 0.95, **texts, mean=mean, low=low, high=high)


def _claim_false(records: Sequence[Record], data: str) -> Claim:
    """At most 10 % of what is found at 0.5 is false, all seeds together."""
    counts, false, true, strict = (
        by_seed(records, data, OURS, f"inclusion/{n}") for n in ("found", "false", "true", "strict")
    )
    texts: dict[str, Any] = {"problem": PROBLEMS[data].title, "seeds": len(counts)}
    if len(counts) < LEAST_SEEDS:
        return template("features.false", None, **texts)
    total, wrong = sum(counts.values()), sum(false.values())
    share = wrong / max(1.0, total)
    texts |= {"found": total, "false": wrong, "true": sum(true.values()) / len(counts)}
    claim = template("features.false", share <= 0.1, **texts, share=share)
    if data == "copies":
        copies = sum(value * counts[seed] for seed, value in strict.items() if seed in counts)
        note = entry("features.false")["note"].format(strict=copies / max(1.0, total))
        return replace(claim, why=claim.why + note)
    return claim


def _gap(comparison: statistics.Comparison) -> str:
    low, high = comparison.low, comparison.high
    return f"{comparison.difference:+.3f} ({low:+.3f} to {high:+.3f})"
