"""What the report says of the clinical study, from its records. Knows nothing of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.compare import by_arm, by_seed, compare_all, pair_by_pair, sentence
from gflowout.studies.framework.content import (
    PAPER,
    Better,
    Block,
    Cell,
    Claim,
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
from gflowout.studies.framework.verdicts import (
    NONE,
    SUPERIOR,
    Margin,
    cell,
    choices,
    differences,
    overview,
    superior,
)

TITLES = {**{label: arm.title for label, arm in ARMS.items()}, "logistic": "Logistic regression"}
DATA = {"eicu-demo": "eICU demo", "eicu": "eICU"}
PUBLISHED = {
    "mc": (0.490, 0.500, 0.499),
    "concrete": (0.528, 0.524, 0.641),
    "contextual": (0.521, 0.518, 0.659),
    "id-gflowout": (0.499, 0.506, 0.534),
    "gflowout": (0.536, 0.528, 0.681),
}
"""Table 4 of the paper: macro F1, precision, recall. Its "Random" is MC dropout here."""
OURS = "gflowout"

_MACRO = {"f1": "macro F1", "precision": "macro precision", "recall": "macro recall"}
_PROPER: dict[str, tuple[str, Better]] = {
    "test/auroc": ("AUROC", "high"),
    "test/aupr": ("AUPRC", "high"),
    "test/brier": ("Brier score", "low"),
    "test/nll": ("NLL", "low"),
    "test/ece": ("ECE", "low"),
    "risk/error": ("error, area", "low"),
    "risk/brier": ("Brier, area", "low"),
}
_COMPARED: dict[str, tuple[str, Better]] = {
    "chosen/f1": ("macro F1", "high"),
    "test/auroc": ("AUROC", "high"),
    "test/nll": ("NLL", "low"),
    "risk/brier": ("the area under the Brier score against coverage", "low"),
}


def section(records: Sequence[Record]) -> Section:
    """Tables, curves of deferral, findings and claims.

    Args:
        records: Of the study's runs that are done.
    """
    records = list(records)
    sources = [name for name in DATA if any(record["data"] == name for record in records)]
    if not sources:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = []
    findings: list[str] = []
    claims: list[Claim] = []
    for source in sources:
        arms = [arm for arm in TITLES if by_seed(records, source, arm, "chosen/f1")]
        blocks.append(Text(_about(records, source)))
        blocks += [_table(records, source, arms), _proper_table(records, source, arms)]
        blocks += [
            _curves(records, source, arms, "error", "share of kept patients judged wrongly"),
            _curves(records, source, arms, "brier", "Brier score of kept patients"),
        ]
        blocks.append(choices(records, source, DATA[source], {arm: TITLES[arm] for arm in arms}))
        findings += _findings(records, source)
        blocks += [Text([SUPERIOR]), *pair_by_pair(_sentences(records, source))]
        claims += _claims(records, source)
    return Section(findings, blocks, claims, sources)


def _about(records: Sequence[Record], source: str) -> list[str]:
    own = [record for record in records if record["data"] == source]
    counts = {
        name: sorted({int(record["metrics"][name]) for record in own if name in record["metrics"]})
        for name in ("stays/train", "deaths/train", "stays/test", "deaths/test")
    }
    seeds = len({record["seed"] for record in own})
    span = {name: _span(values) for name, values in counts.items()}
    text = [
        f"{DATA[source]}: {span['stays/train']} stays to train on with {span['deaths/train']} "
        f"deaths, and {span['stays/test']} with {span['deaths/test']} in hospitals that are not "
        f"trained on; {seeds} {'seed' if seeds == 1 else 'seeds'}. Inputs are the drugs of the "
        "first 48 hours, the label is death during the stay. Options are chosen by the NLL on "
        "other patients of the training hospitals.",
        "Deaths are rare and networks learn their true frequency, so hardly any risk is above one "
        "half. F1, precision and recall are taken at the threshold with the best macro F1 on "
        "validation data, and once more where a risk is above the share of deaths in training. "
        "All three are means over the two outcomes; the paper says so of F1 only, but "
        "its figures for precision and recall fit.",
    ]
    if source == "eicu-demo":
        text.append(
            "This is the open demo, with 126 deaths in 2,520 stays, not the paper's database, "
            "which needs credentials; its largest hospital has no death, so each seed draws "
            "hospitals that hold 30 % of the stays. A draw changes AUROC by several hundredths, "
            "far more than methods differ by: comparisons are paired by draw, and the demo shows "
            "that the study works rather than which method is better."
        )
    return text


def _table(records: Sequence[Record], source: str, arms: Sequence[str]) -> Table:
    names = [f"{kind}/{name}" for kind in ("chosen", "share") for name in _MACRO]
    columns = [Column(title, "high") for title in ("F1 (macro)", "Precision", "Recall")]
    columns += [
        Column(f"{title}, above base rate", "high") for title in ("F1", "precision", "recall")
    ]
    rows = [
        Row(TITLES[arm], [cell(by_arm(records, source, name).get(arm, [])) for name in names])
        for arm in arms
    ]
    rows += [
        Row(
            "Random" if arm == "mc" else TITLES[arm],
            [*(Cell(value) for value in values), *[Cell(text=NONE)] * 3],
            PAPER,
        )
        for arm, values in PUBLISHED.items()
    ]
    half = by_arm(records, source, "half/f1").get("mc", [])
    found = by_arm(records, source, "half/recall").get("mc", [])
    remark = ""
    if half and found and abs(mean_error(found)[0] - 0.5) < 0.005:
        remark = (
            f" At one half MC dropout has a macro F1 of {mean_error(half)[0]:.3f}, because it "
            "expects hardly anybody to die; the paper's row for random dropout looks like that."
        )
    return Table(
        f"{DATA[source]}: who will die",
        "Method",
        columns,
        rows,
        "Threshold: the one with the best macro F1 on "
        "validation data; 'above base rate': the share of deaths in training. The paper does not "
        f"state its own, and its figures are from the full database.{remark}",
    )


def _proper_table(records: Sequence[Record], source: str, arms: Sequence[str]) -> Table:
    columns = [Column(title, better) for title, better in _PROPER.values()]
    rows = [
        Row(TITLES[arm], [cell(by_arm(records, source, name).get(arm, [])) for name in _PROPER])
        for arm in arms
    ]
    return Table(
        f"{DATA[source]}: the risk as a number, and deferral",
        "Method",
        columns,
        rows,
        "Areas: the least certain patients, by the entropy of their risk, are left to a doctor; "
        "mean over all shares of patients kept. Not in the paper.",
    )


def _curves(
    records: Sequence[Record], source: str, arms: Sequence[str], kind: str, title: str
) -> Curves:
    series = []
    for arm in arms:
        own = [record for record in records if (record["data"], record["method"]) == (source, arm)]
        points = [record["metrics"].get(f"curve/risk/{kind}") for record in own]
        x = [record["metrics"].get("curve/coverage") for record in own]
        known = [list(each) for each in points if each]
        if not known:
            continue
        pairs = [mean_error(list(map(float, values))) for values in zip(*known, strict=True)]
        errors = [error for _, error in pairs]
        series.append(
            Series(
                TITLES[arm],
                [float(value) for value in next(each for each in x if each)],
                [mean for mean, _ in pairs],
                None if any(map(math.isnan, errors)) else errors,
            )
        )
    return Curves(
        f"{DATA[source]}: {title}, if the others are left to a doctor",
        "share of patients kept",
        title,
        series,
        "The most certain patients are kept first. At 1 nobody is left to a doctor.",
        percent=kind == "error",
    )


def _findings(records: Sequence[Record], source: str) -> list[str]:
    found = []
    for metric, (title, better) in _COMPARED.items():
        compared = compare_all(records, source, metric, better, OURS)
        if compared:
            words = f"{title} ({DATA[source]})"
            found.append(overview(compared, TITLES, TITLES[OURS], words))
    return found


def _sentences(records: Sequence[Record], source: str) -> list[str]:
    return [
        sentence(each, TITLES[OURS], TITLES[arm], f"{title} ({DATA[source]})")
        for metric, (title, better) in _COMPARED.items()
        for arm, each in compare_all(records, source, metric, better, OURS).items()
    ]


def _claims(records: Sequence[Record], source: str) -> list[Claim]:
    """GFlowOut against each of the paper's baselines, in the paper's three metrics."""
    made = []
    for arm, theirs in PUBLISHED.items():
        if arm == OURS:
            continue
        margins = [
            Margin(f"chosen/{name}", title, round(mine - other, 3))
            for (name, title), mine, other in zip(
                _MACRO.items(), PUBLISHED[OURS], theirs, strict=True
            )
        ]
        found = differences(records, source, OURS, arm, margins)
        verdict, why = superior(found, margins)
        title = "random dropout" if arm == "mc" else TITLES[arm].replace(" dropout", "")
        title = f"{title.lower()} dropout" if title in ("Concrete", "Contextual") else title
        claim = f"GFlowOut outperforms {title} in macro F1, precision and recall across hospitals."
        made.append(Claim(claim, verdict, f"{DATA[source]}: {why}"))
    return made


def _span(values: Sequence[int]) -> str:
    if not values:
        return "?"
    first, last = f"{values[0]:,}", f"{values[-1]:,}"
    return first if first == last else f"{first} to {last}"
