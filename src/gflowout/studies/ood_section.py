"""What the study on unknown inputs says: what to use, every score by method, and Table 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from gflowout.core.text import counted
from gflowout.studies import images_section
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import sections
from gflowout.studies.framework.content import Better, Cell, Claim, Column, Row, Section, Table
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_seed
from gflowout.studies.images import CIFAR, DATA, TITLES

NAME = "ood"
SCORES = {
    "dempster_shafer": "Dempster-Shafer",
    "dempster_shafer-draws": "Dempster-Shafer, mean over draws",
    "entropy": "entropy",
    "mutual_information": "mutual information",
}
"""Scores of the table beside the paper's."""
DRAWS = {
    "logit_disagreement": "logit disagreement",
    "mutual_information": "mutual information",
    "variation_ratio": "variation ratio",
    "entropy": "entropy",
    "gen": "generalised entropy",
    "max_logit": "largest logit",
    "energy": "energy",
    "dempster_shafer": "Dempster-Shafer",
    "dempster_shafer-draws": "Dempster-Shafer, mean over draws",
}
"""Scores from draws: methods of :class:`gflowout.Predictive`, of mean logits unless said."""
NEW = "dempster_shafer-draws"
"""A score that records from before it do not have."""
FEATURES = {
    "mahalanobis": "Mahalanobis",
    "mahalanobis_first": "Mahalanobis, first site",
    "relative_mahalanobis": "relative Mahalanobis",
    "knn": "kNN",
    "vim": "ViM",
    "fdbd": "fDBD",
}
"""Scores from features, of what the last linear layer reads but for one."""
PAPER = judged.paper(NAME)
"""AUROC, its error, AUPR, its error against SVHN: Table 3 of the paper."""
_OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}
_CAPTION = (
    "Detectors are fitted on the training images, at what the last linear layer reads in one "
    "deterministic pass; of an ensemble, the members' scores are averaged."
)
_MEASURES: dict[str, Better] = {"auroc": "high", "aupr": "high", "fpr95": "low"}


def section(records: Sequence[Record]) -> Section:
    """What to use, tables for each pair, comparisons and claims."""

    def describe(data: str) -> tuple[list[Table], list[Compared]]:
        others = _others(records, data)
        # Where SVHN was not run, the rows of the paper are shown on their own.
        shown = others if data not in PAPER or "svhn" in others else ["svhn", *others]
        tables = [table for other in others for table in _all_scores(records, data, other)]
        return [*tables, *(_table(records, data, other) for other in shown)], [
            Compared(data, _auroc(other), f"AUROC of {_pair(data, other)}") for other in others
        ]

    plain = images_section.by_data(records, DATA, NAME, describe, claims(records))
    advice = [
        sentence
        for data in sections.present(records, DATA)
        for other in _others(records, data)
        for sentence in recommend(records, data, other)
    ]
    return replace(plain, findings=[*advice, *plain.findings])


def recommend(records: Sequence[Record], data: str, other: str) -> list[str]:
    """Which score to use for a pair of data, if all scores were measured."""
    names = (*FEATURES, *DRAWS)
    by_score = {name: _by_arm(records, data, f"{other}/{name}/auroc") for name in names}
    if not by_score[NEW]:  # records from before
        del by_score[NEW]
    arms = set.intersection(*(set(by_arm) for by_arm in by_score.values()))
    if not arms:
        return []
    auroc = {name: fmean(own[arm] for arm in arms) for name, own in by_score.items()}
    groups = ([name for name in group if name in auroc] for group in (FEATURES, DRAWS))
    best, drawn = (max(group, key=auroc.__getitem__) for group in groups)
    first, second = (best, drawn) if auroc[best] >= auroc[drawn] else (drawn, best)
    missed = _by_arm(records, data, f"{other}/{first}/fpr95")
    return [
        f"To tell {_title(other)} from {_title(data)}, use {_score(first)}: AUROC "
        f"{auroc[first]:.3f}, FPR95 {fmean(missed[arm] for arm in arms):.3f}, averaged over "
        f"{counted(len(arms), 'method')} with draws. The best score from "
        f"{'draws' if second == drawn else 'features'} is {_score(second)}, {auroc[second]:.3f}; "
        f"Dempster-Shafer, the paper's measure, has {auroc['dempster_shafer']:.3f}."
    ]


def _score(name: str) -> str:
    """A score in a sentence."""
    return f"{FEATURES[name]} (features)" if name in FEATURES else f"{DRAWS[name]} (draws)"


def _by_arm(records: Sequence[Record], data: str, metric: str) -> dict[str, float]:
    """Means over seeds of the arms that have the metric, and not as NaN."""
    values = {arm: by_seed(records, data, arm, metric).values() for arm in sections.TITLES}
    means = {arm: fmean(own) for arm, own in values.items() if own}
    return {arm: mean for arm, mean in means.items() if not math.isnan(mean)}


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of detection, and what was found."""
    # SVHN where it was run, else the other CIFAR.
    used = {d: "svhn" if "svhn" in _others(records, d) else _OTHER[d] for d in CIFAR}
    scale = images_section.scale(records)
    absent = "" if "svhn" in used.values() else " SVHN is not among the data that were run."
    return [
        _judge("svhn", records, dict.fromkeys(CIFAR, "svhn"), absent + scale),
        _judge("other", records, _OTHER, scale),
        _judge("ensembles", records, used, scale),
        _judge("id", records, {"cifar10": used["cifar10"]}, scale),
    ]


def _judge(name: str, records: Sequence[Record], unknown: dict[str, str], note: str) -> Claim:
    """A claim on some pairs of data; the paper has SVHN alone, and margins for it."""
    ours = judged.entry(f"ood.{name}").get("ours", "gflowout")
    margins = {
        _pair(data, other): {
            arm: PAPER[data][ours][0] - numbers[0] for arm, numbers in PAPER[data].items()
        }
        for data, other in unknown.items()
        if other == "svhn"
    }
    pairs = {_pair(data, other): (data, _auroc(other)) for data, other in unknown.items()}
    replaced = "" if set(unknown.values()) == {"svhn"} else judged.stand_in("svhn")
    weak = images_section.weak(records, unknown, arm=ours)
    return judged.judge(f"ood.{name}", records, pairs, margins, note, replaced, weak)


def _title(data: str) -> str:
    return TITLES.get(data, data)


def _pair(data: str, other: str) -> str:
    return f"{_title(data)} against {_title(other)}"


def _auroc(other: str) -> str:
    return f"{other}/dempster_shafer/auroc"


def _others(records: Sequence[Record], data: str) -> list[str]:
    """What these data were tested against, SVHN first."""
    names = {
        key.split("/")[0]
        for record in records
        if record["data"] == data
        for key in record["metrics"]
        if key.endswith("/auroc") and key.count("/") == 2
    }
    return sorted(names, key=lambda name: (name != "svhn", name))


def _all_scores(records: Sequence[Record], data: str, other: str) -> list[Table]:
    """AUROC and FPR95 of every score by method; nothing if the records are from before them."""
    own = [record for record in records if record["data"] == data]
    there = [key for record in own for key in record["metrics"]]
    if not any(f"{other}/{score}/auroc" in there for score in FEATURES):
        return []
    arms = [arm for arm in sections.TITLES if any(record["method"] == arm for record in own)]
    tables = []
    for measure in ("auroc", "fpr95"):
        columns = [Column(sections.TITLES[arm], _MEASURES[measure]) for arm in arms]
        rows = []
        for score in (*FEATURES, *DRAWS):
            name = f"{other}/{score}/{measure}"
            cells = [sections.cell(by_seed(own, data, arm, name).values()) for arm in arms]
            if score != NEW or any(cell.runs for cell in cells):
                rows.append(Row(_score(score), cells))
        title = f"{measure.upper()} of every score, {_pair(data, other)}"
        tables.append(Table(title, "Score", columns, rows, _CAPTION))
    return tables


def _table(records: Sequence[Record], data: str, other: str) -> Table:
    columns = {
        f"{other}/{score}/{name}": Column(f"{name.upper()}, {title}", better)
        for score, title in SCORES.items()
        if score != NEW or any(f"{other}/{NEW}/auroc" in record["metrics"] for record in records)
        for name, better in _MEASURES.items()
    }
    count = next(record["options"]["test"] for record in records if record["data"] == data)
    caption = f"Up to {count:,} images of each."
    if other not in _others(records, data):
        columns = dict(list(columns.items())[:2])  # what the paper has
        caption = f"Numbers of the paper; {_title(other)} is not among the data that were run."
    rows = sections.arm_rows(records, data, list(columns))
    if other == "svhn":
        none = [None] * (len(columns) - 2)
        paper = {
            arm: [Cell(auroc, first), Cell(aupr, second), *none]
            for arm, (auroc, first, aupr, second) in PAPER[data].items()
        }
        rows += sections.paper_rows(paper)
    return Table(_pair(data, other), "Method", list(columns.values()), rows, caption)
