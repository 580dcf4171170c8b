"""What the report says of the regimes: which of them decide, tables, comparisons, claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gflowout.studies.framework import content, sections
from gflowout.studies.framework.arms import RATE
from gflowout.studies.framework.claims import columns, entry, template
from gflowout.studies.framework.content import Block, Cell, Claim, Column, Row, Section, Table, Text
from gflowout.studies.framework.statistics import (
    Comparison,
    Record,
    by_seed,
    crossed,
    holm,
    pair,
    paired,
    sentence,
)
from gflowout.studies.regimes_arms import CONTROLS, KEEPS, RIVALS, TITLES
from gflowout.studies.regimes_data import REGIMES

NAME = "regimes"
BLOCKS = 20
"""Of test images, for intervals that include the error of the test sample."""
COMPARED: dict[str, tuple[str, content.Better, bool]] = {
    "test/nll": ("NLL", "low", False),
    "test/accuracy": ("accuracy", "high", True),
    "digits/auroc": ("AUROC of entropy, held-out digits", "high", True),
    "notmnist/auroc": ("AUROC of entropy, notMNIST", "high", True),
}
"""Metrics of the comparisons: what sentences call them, which values are good, and percent."""
LEAST_SEEDS = 3
_TEXTS = entry(f"{NAME}.texts")


@dataclass(frozen=True)
class Admission:
    """Whether dropout can matter in a regime, and the numbers that say so.

    The rule: the mean validation NLL of the plain network rises again before the last epoch, by
    the 95 % interval over seeds; and the keep rate that trials chose for MC dropout is neither the
    lowest nor the highest of the grid.
    """

    best: int  # epoch of the lowest mean validation NLL, from 1
    epochs: int
    rise: Comparison  # validation NLL of the last epoch against that of the best
    keep: float  # that MC dropout has chosen

    @property
    def overfits(self) -> bool:
        """Whether the plain network gets worse before the end."""
        return self.best < self.epochs and self.rise.low > 0

    @property
    def inside(self) -> bool:
        """Whether the keep rate of MC dropout is inside the grid."""
        return min(KEEPS) < self.keep < max(KEEPS)

    @property
    def admitted(self) -> bool:
        """Whether arms are ranked."""
        return self.overfits and self.inside


def admission(records: Sequence[Record], data: str) -> Admission | None:
    """The rule for a regime; ``None`` before plain networks and MC dropout have enough seeds."""
    curves = [
        record["metrics"]["curve/valid"]
        for record in records
        if (record["data"], record["method"]) == (data, "none")
    ]
    rates = [
        record["options"]["tuned"].get(RATE)
        for record in records
        if (record["data"], record["method"]) == (data, "mc")
    ]
    if len(curves) < 2 or not rates:
        return None
    means = [fmean(values) for values in zip(*curves, strict=True)]
    best = means.index(min(means))
    last, lowest = [curve[-1] for curve in curves], [curve[best] for curve in curves]
    return Admission(best + 1, len(means), paired(last, lowest, "low"), round(1 - rates[0], 6))


def section(records: Sequence[Record]) -> Section:
    """The admission table; for each regime its numbers, and comparisons where arms are ranked."""
    there = sections.present(records, REGIMES)
    rules = {name: admission(records, name) for name in there}
    findings: list[str] = []
    blocks: list[Block] = [Text(_TEXTS["about"]), _admissions(rules)] if there else []
    claims: list[Claim] = []
    for name in there:
        rule, title = rules[name], REGIMES[name].title
        ranked = rule is not None and rule.admitted
        blocks += [_table(records, name, ranked), *_shifted(records, name, ranked)]
        if rule is None:
            findings.append(f"{title}: not enough seeds to say whether dropout matters.")
        elif not ranked:
            findings.append(f"{title}: dropout does not matter here, nothing is ranked.")
        else:
            family = comparisons(records, name)
            findings += _found(family, title)
            blocks += _pairs(family, title)
            claims += _claims(family, title)
        chosen = f"{title}: chosen on validation data"
        blocks.append(sections.choices(records, {name: "Options"}, chosen, TITLES))
    return Section(findings, blocks, claims, tuple(there))


def _admissions(rules: Mapping[str, Admission | None]) -> Table:
    heads = ("Best epoch of the plain network", "Validation NLL from there to the end",
             "Best keep rate of MC dropout", "Dropout matters")  # fmt: skip
    rows = []
    for name, rule in rules.items():
        texts = ["-"] * len(heads)
        if rule is not None:
            mean, low, high = rule.rise.shown(1.0, 3)
            texts = [
                f"{rule.best} of {rule.epochs}",
                f"{mean} ({low} to {high}, {rule.rise.seeds} seeds)",
                f"{rule.keep:g}",
                "yes" if rule.admitted else "no",
            ]
        rows.append(Row(REGIMES[name].title, [Cell(text=text) for text in texts]))
    return Table("Where dropout matters", "Regime", [*map(Column, heads)], rows, _TEXTS["rule"])


def _table(records: Sequence[Record], data: str, ranked: bool) -> Table:
    table = columns(NAME)["scores"]
    wanted = {metric: column for metric, column in table.items() if _has(records, data, metric)}
    rows = sections.arm_rows(records, data, list(wanted), TITLES)
    heads = [column if ranked else replace(column, better=None) for column in wanted.values()]
    caption = f"{sections.seeds_done(records, data)}. {'' if ranked else _TEXTS['unranked']}"
    return Table(f"{REGIMES[data].title}: scores", "Method", heads, rows, caption.strip())


def _has(records: Sequence[Record], data: str, metric: str) -> bool:
    return any(record["data"] == data and metric in record["metrics"] for record in records)


def _shifted(records: Sequence[Record], data: str, ranked: bool) -> list[Block]:
    """Corrupted images, and adaptation to clean labels, where a regime has them."""
    blocks: list[Block] = []
    names = {"snow": "snow", "frost": "frost", "gaussian_noise": "Gaussian noise"}
    sizes = {p for r in records if r["data"] == data for p in r["options"].get("points", ())}
    kinds = {
        "corrupted": {f"{kind}/{m}": f"{title}, {m}" for kind, title in names.items()
                      for m in ("accuracy", "nll")},
        "adapted to clean labels": {f"points-{p}/accuracy": f"{p:,} points" for p in sorted(sizes)},
    }  # fmt: skip
    for what, metrics in kinds.items():
        wanted = [metric for metric in metrics if _has(records, data, metric)]
        if not wanted:
            continue
        heads = [
            Column(metrics[m], (("low" if "nll" in m else "high") if ranked else None),
                   percent="accuracy" in m) for m in wanted
        ]  # fmt: skip
        rows = sections.arm_rows(records, data, wanted, TITLES)
        blocks.append(Table(f"{REGIMES[data].title}: {what}", "Method", heads, rows))
    return blocks


# Comparisons

Key = tuple[str, str, str]
"""Learned arm, other arm, metric."""


def comparisons(records: Sequence[Record], data: str) -> dict[Key, Comparison]:
    """All comparisons of a regime: one family, with Holm correction over all of them.

    Every learned arm against tuned rivals and its own controls, in every metric there is.
    """
    own = [record for record in records if record["data"] == data]
    return holm(
        {
            (learned, other, metric): _compare(own, data, metric, learned, other)
            for learned, controls in CONTROLS.items()
            for other in (*RIVALS, *controls)
            for metric in COMPARED
            if by_seed(own, data, learned, metric) and by_seed(own, data, other, metric)
        }
    )


def _compare(own: Sequence[Record], data: str, metric: str, ours: str, other: str) -> Comparison:
    """By seed and block of test images where the records have blocks, else by seed."""
    better = COMPARED[metric][1]
    first, second = (_blocks(own, arm, metric) for arm in (ours, other))
    if first and second:
        return crossed(first, second, better)
    return pair(by_seed(own, data, ours, metric), by_seed(own, data, other, metric), better)


def _blocks(own: Sequence[Record], arm: str, metric: str) -> dict[int, list[float]]:
    values: dict[int, Any] = {
        record["seed"]: record["metrics"].get("blocks", {}).get(metric)
        for record in sorted(own, key=lambda record: str(record.get("started", "")))
        if record["method"] == arm
    }
    return {seed: list(row) for seed, row in sorted(values.items()) if row is not None}


def _found(family: Mapping[Key, Comparison], title: str) -> list[str]:
    """One sentence for each learned arm and metric."""
    lines = []
    for learned in CONTROLS:
        for metric, (what, _, _) in COMPARED.items():
            own = {o: c for (l, o, m), c in family.items() if (l, m) == (learned, metric)}  # noqa: E741
            lines += sections.overview(own, f"{title}, {what}", TITLES, TITLES[learned])
    return lines


def _pairs(family: Mapping[Key, Comparison], title: str) -> list[Text]:
    lines = [
        sentence(c, TITLES[ours], TITLES[other], COMPARED[metric][0], percent=COMPARED[metric][2])
        for (ours, other, metric), c in family.items()
    ]
    together = next(iter(family.values())).together if family else 0
    about = _TEXTS["family"].format(count=together)
    return [Text([about, *lines], f"{title}, pair by pair: {len(lines)} comparisons")]


def _claims(family: Mapping[Key, Comparison], title: str) -> list[Claim]:
    """Does learning masks help: in NLL, against tuned and against equal random dropout."""
    claims = []
    for learned in CONTROLS:
        others = ("mc", f"mc-at-{learned}")
        gaps = {o: family[learned, o, "test/nll"] for o in others
                if (learned, o, "test/nll") in family}  # fmt: skip
        if len(gaps) < len(others):
            continue
        enough = all(gap.seeds >= LEAST_SEEDS for gap in gaps.values())
        outcome = None
        if enough and all(gap.firm == "better" for gap in gaps.values()):
            outcome = True
        elif enough and any(gap.firm == "worse" or not _open(gap) for gap in gaps.values()):
            outcome = False
        shown = "; ".join(
            "against {}: {} ({} to {})".format(TITLES[o], *gap.shown(1.0, 3))
            for o, gap in gaps.items()
        )
        values: dict[str, Any] = {
            "regime": title,
            "arm": TITLES[learned],
            "gaps": shown,
            "slack": SLACK,
        }
        claims.append(template(f"{NAME}.helps", outcome, "why", **values))
    return claims


SLACK = 0.01
"""Nats per image that count as no gain."""


def _open(gap: Comparison) -> bool:
    """Whether the interval still allows a gain of more than :data:`SLACK`."""
    return math.isnan(gap.low) or gap.interval[1] > SLACK
