"""What the report says of the study of questions about pictures, from its records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.compare import by_arm, by_seed, compare_all, pair_by_pair, sentence
from gflowout.studies.framework.content import (
    PAPER,
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
from gflowout.studies.framework.summary import mean_error, numbers
from gflowout.studies.framework.verdicts import (
    MATCHES,
    NONE,
    SLACK,
    Margin,
    cell,
    choices,
    differences,
    matches,
    overview,
)

TITLES = {label: arm.title for label, arm in ARMS.items()}
DATA = {"vqa-v2": "VQA v2", "vqa-rad": "VQA-RAD", "easy-vqa": "easy-VQA"}
KINDS = ("all", "yes/no", "number", "other")
PUBLISHED = {
    "clean": {
        "id-gflowout": (66.66, 84.21, 48.99, 58.42),
        "gflowout": (66.12, 83.91, 49.01, 58.33),
        "contextual": (66.89, 84.48, 49.04, 58.24),
        "concrete": (66.92, 84.51, 48.66, 58.38),
    },
    "noisy": {
        "id-gflowout": (50.27, 74.01, 32.16, 36.12),
        "gflowout": (50.33, 73.31, 32.64, 40.17),
        "contextual": (49.72, 73.81, 32.40, 35.97),
        "concrete": (50.20, 73.50, 31.45, 37.39),
    },
}
"""Table 2 of the paper, on VQA v2: all, yes/no, number, other."""
OURS = "gflowout"
FEW = 30
"""Questions of a kind below which its column says little."""


def section(records: Sequence[Record]) -> Section:
    """Tables, curves against noise, findings and claims.

    Args:
        records: Of the study's runs that are done.
    """
    records = list(records)
    found = [name for name in DATA if any(record["data"] == name for record in records)]
    if not found:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = []
    findings: list[str] = []
    claims: list[Claim] = []
    sentences: list[str] = []
    for name in found:
        arms = [arm for arm in TITLES if by_seed(records, name, arm, "clean/all")]
        blocks.append(Text(_about(records, name)))
        blocks += [_table(records, name, arms, test) for test in ("clean", "noisy")]
        blocks.append(_curves(records, name, arms))
        blocks.append(choices(records, name, DATA[name], {arm: TITLES[arm] for arm in arms}))
        for test in ("noisy", "clean"):
            metric = f"accuracy on {test} features ({DATA[name]})"
            compared = compare_all(records, name, f"{test}/all", "high", OURS)
            if compared:
                findings.append(overview(compared, TITLES, TITLES[OURS], metric))
            sentences += [
                sentence(each, TITLES[OURS], TITLES[arm], metric, percent=True)
                for arm, each in compared.items()
            ]
        claims += _claims(records, name)
    blocks += [Text([MATCHES.format(slack="1 point")]), *pair_by_pair(sentences)]
    return Section(findings, blocks, claims, found)


def _about(records: Sequence[Record], name: str) -> list[str]:
    own = [record for record in records if record["data"] == name]
    seeds = len({record["seed"] for record in own})
    counts = _counts(own)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    text = [
        f"{DATA[name]}: {sum(counts.values()):,} test questions ({listed}), {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}. A seed chooses training and validation questions "
        "and starting weights; test questions and noise are the same for all. Options are chosen "
        "by the NLL on validation questions."
    ]
    if name == "vqa-v2":
        return text
    text.append(
        f"This is not the paper's data, and not its network: {_network(own)}, on fixed features "
        "of a grid of cells (colours and edges) in place of a detector's regions. Noise is in "
        "units of the features' standard deviation; the paper does not state its own."
    )
    if name == "vqa-rad":
        text.append(
            "All pictures of VQA-RAD's test questions also have training questions, so its "
            "accuracy says nothing about new patients."
        )
    else:
        text.append(
            "easy-VQA has no questions for a number, and most of its questions for yes or no can "
            "be answered without the picture: see the row of the question alone."
        )
    return text


def _table(records: Sequence[Record], name: str, arms: Sequence[str], test: str) -> Table:
    own = [record for record in records if record["data"] == name]
    counts = _counts(own)
    kinds = [kind for kind in KINDS if kind == "all" or counts.get(kind)]
    columns = [Column(f"{kind.capitalize()}", "high", 1, True) for kind in kinds]
    columns.append(Column("NLL", "low"))
    rows = [
        Row(
            TITLES[arm],
            [cell(by_arm(own, name, f"{test}/{kind}").get(arm, [])) for kind in (*kinds, "nll")],
        )
        for arm in arms
    ]
    alone = [_per_seed(own, f"question/{kind}") for kind in kinds]
    if any(alone):
        rows.append(Row("Question alone", [*map(cell, alone), Cell(text=NONE)]))
    rows += [
        Row(
            f"{TITLES[arm]}, VQA v2",
            [*(Cell(values[KINDS.index(kind)] / 100) for kind in kinds), Cell(text=NONE)],
            PAPER,
        )
        for arm, values in PUBLISHED[test].items()
    ]
    levels = sorted({float(record["options"]["noisy"]) for record in own if "options" in record})
    at = f" of standard deviation {levels[0]:g}" if test == "noisy" and len(levels) == 1 else ""
    few = [f"{counts[kind]} for {kind}" for kind in kinds if 0 < counts.get(kind, FEW) < FEW]
    caption = "Official accuracy. Question alone: the most "
    caption += "frequent training answer to the same words. The paper's rows are on VQA v2."
    if few:
        caption += f" Few questions: {', '.join(few)}."
    features = "clean visual features" if test == "clean" else f"Gaussian noise{at} on features"
    return Table(f"{DATA[name]}: {features}", "Method", columns, rows, caption)


def _curves(records: Sequence[Record], name: str, arms: Sequence[str]) -> Curves:
    series = []
    for arm in arms:
        own = [record for record in records if (record["data"], record["method"]) == (name, arm)]
        levels = sorted(
            {
                float(metric.removeprefix("noise-").removesuffix("/all"))
                for record in own
                for metric in record["metrics"]
                if metric.startswith("noise-") and metric.endswith("/all")
            }
        )
        x, y, errors = [], [], []
        for level in [0.0, *levels]:
            metric = f"noise-{level:g}/all" if level else "clean/all"
            values = list(by_seed(own, name, arm, metric).values())
            if values:
                mean, error = mean_error(values)
                x.append(level)
                y.append(mean)
                errors.append(error)
        series.append(Series(TITLES[arm], x, y, None if any(map(math.isnan, errors)) else errors))
    return Curves(
        f"{DATA[name]}: accuracy against noise on visual features",
        "standard deviation of the noise",
        "accuracy",
        series,
        "All questions. Padded regions stay padding.",
        percent=True,
    )


def _claims(records: Sequence[Record], name: str) -> list[Claim]:
    made = []
    table = PUBLISHED["noisy"]
    for arm in ("contextual", "concrete"):
        each = Margin("noisy/all", "accuracy", (table[OURS][0] - table[arm][0]) / 100)
        found = differences(records, name, OURS, arm, [each])[each.metric]
        verdict, why = matches(found, each, SLACK, scale=100)
        claim = f"With noisy visual features GFlowOut outperforms or matches {TITLES[arm].lower()}."
        made.append(Claim(claim, verdict, f"{DATA[name]}, in points: {why}"))
    return made


def _network(own: Sequence[Record]) -> str:
    """The backbone and its training, as the runs' options have them."""
    options = next((record["options"] for record in own if "net.width" in record["options"]), None)
    if options is None:
        return "a small MCAN"
    layers, steps = options["net.layers"], options["train"] / options["batch"]
    return (
        f"an MCAN of width {options['net.width']} with {layers} "
        f"{'layer' if layers == 1 else 'layers'} each way, trained for "
        f"{round(options['fit.epochs'] * steps):,} steps at most"
    )


def _counts(own: Sequence[Record]) -> dict[str, int]:
    """Test questions by kind."""
    for record in own:
        if "questions" in record["metrics"]:
            return {kind: int(n) for kind, n in record["metrics"]["questions"].items() if n}
    return {}


def _per_seed(own: Sequence[Record], metric: str) -> list[float]:
    """A figure that does not depend on the arm."""
    found: dict[int, float] = {}
    for record in own:
        value = numbers(record["metrics"]).get(metric)
        if value is not None:
            found.setdefault(record["seed"], value)
    return [found[seed] for seed in sorted(found)]
