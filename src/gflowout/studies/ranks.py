"""A posterior over the ranks of LoRA adapters: what it buys, and where masks matter.

Not in the paper. A small BERT is pretrained from scratch on rated sentences of three kinds and
adapted to a fourth. Every arm has the same base, epochs and number of trials on validation
sentences. Beside the arms, one run per seed compares ranks, heads, blocks and features as units of
random masks. ``paper`` is a larger ``cpu``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.core import metrics
from gflowout.data import ratings
from gflowout.runs import Context, Result, Run
from gflowout.studies import images, ranks_fit
from gflowout.studies.framework import sections
from gflowout.studies.framework.arms import Arm, Options, trials
from gflowout.studies.framework.claims import columns, entry
from gflowout.studies.framework.content import Block, Row, Section, Table, Text
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_seed, prefixed
from gflowout.studies.framework.study import TUNING, Chosen, Study
from gflowout.studies.ranks_fit import ADAPTED, TESTED, Problem
from gflowout.studies.ranks_laplace import LastLayer

NAME = "ranks"
PRESETS = images.PRESETS[NAME]
UNITS = {
    "ranks": "LoRA ranks",
    "heads": "Attention heads",
    "blocks": "Blocks",
    "features": "Features",
}
COMPARISON = "units"
"""``Run.method`` of the runs that compare them."""
LAPLACE = "laplace"
_RATES = ("method.options.rate", (0.1, 0.3, 0.5))
_KEEPS = ("method.options.prior_keep", (0.9, 0.7, 0.5))
_DECAYS = ("fit.weight_decay", (0.0, 1e-4, 1e-3))
ARMS = {
    arm.label: arm
    for arm in (
        Arm("none", "none", "Plain LoRA", own=_DECAYS),
        Arm("mc", "mc", "MC dropout", own=_RATES),
        Arm("concrete", "concrete", "Concrete dropout", own=_RATES),
        Arm("id-gflowout", "id-gflowout", "ID-GFlowOut", own=_KEEPS),
        Arm("gflowout", "gflowout", "GFlowOut", own=_KEEPS),
        Arm("control", "gflowout", "GFlowOut (β = 0)", {"method.options.beta": 0.0}, own=_KEEPS),
        Arm(
            "id-control",
            "id-gflowout",
            "ID-GFlowOut (β = 0)",
            {"method.options.beta": 0.0},
            own=_KEEPS,
        ),
        Arm("ensemble", "none", "Ensemble of adapters", own=_DECAYS, members=5),
        Arm(
            LAPLACE,
            "none",
            "Last-layer Laplace",
            {_DECAYS[0]: 0.0},
            own=("precision", (1.0, 10.0, 100.0)),
        ),
    )
}
"""All arms by label. ``control`` and ``id-control`` have no likelihood in the reward of masks."""
TITLES = {label: arm.title for label, arm in ARMS.items()}
LIKE = {"ensemble": "none", "control": "gflowout", "id-control": "id-gflowout"}
"""Arms that take the choice of another one and have no trials."""
OURS = ("gflowout", "id-gflowout")


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation sentences."""
    own = PRESETS[preset]
    return [
        Run(TUNING, arm.label, ADAPTED, own["trial_seed"], _options(preset, tuned))
        for arm in ARMS.values()
        if arm.label not in LIKE
        for tuned in trials(arm, own["rates"], own["own"])
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm and the comparison of units, seed by seed."""
    own = PRESETS[preset]
    rate = {"fit.lr": own["rates"][-1], "method.options.rate": own["units"]["rate"]}
    units = {**_options(preset, rate), "draws": own["units"]["draws"]}
    tuned = {
        arm: chosen.get((ADAPTED, like), trials(ARMS[like], own["rates"], own["own"])[0])
        for arm in ARMS
        for like in [LIKE.get(arm, arm)]
    }
    return [
        Run(NAME, method, ADAPTED, seed, options)
        for seed in range(own["seeds"])
        for method, options in [
            *((arm, _options(preset, tuned[arm])) for arm in ARMS), (COMPARISON, units)
        ]
    ]  # fmt: skip


def _options(preset: str, tuned: Options) -> Options:
    return {**PRESETS[preset]["options"], "tuned": tuned}


def work(run: Run, context: Context) -> Result:
    """A trial: train and score validation sentences. A run: train, then score test sentences."""
    trial, options = run.study == TUNING, run.to_dict()["options"]
    problem = ranks_fit.load(run.seed, options)
    if run.method == COMPARISON:
        return {"metrics": _spreads(run, problem, context), "data": problem.checksums(test=True)}
    arm = ARMS[run.method]
    began = time.process_time()
    fitted = [
        ranks_fit.adapted(arm, problem, options, run.seed, context, member=member)
        for member in range(options["members"] if arm.members > 1 else 1)
    ]
    result = fitted[0][1]
    numbers: dict[str, Any] = {
        "cost/train": time.process_time() - began,
        "epochs_trained": sum(len(own.history) for _, own in fitted),
        "best_epoch": result.best_epoch,
    }
    if "kl" in result.history[result.best_epoch]:
        numbers["posterior/kl"] = result.history[result.best_epoch]["kl"]
    models = [model for model, _ in fitted]
    began = time.process_time()
    parts = {"valid": problem.valid} if trial else problem.tests
    for name, rows in parts.items():
        numbers |= prefixed(name, scored(_predicted(run, models, problem, rows[0]), rows[1]))
    numbers["cost/predict"] = time.process_time() - began
    return {
        "metrics": numbers, "epochs": [*result.history], "data": problem.checksums(test=not trial),
    }  # fmt: skip


def _predicted(
    run: Run, models: Sequence[gfo.MaskedModel], problem: Problem, tokens: Tensor
) -> gfo.Predictive:
    samples, first = run.options["samples"], models[0]
    if run.method == LAPLACE:
        head = LastLayer(
            *ranks_fit.head(first, problem.train[0]), run.options["tuned"]["precision"]
        )
        source = torch.Generator().manual_seed(run.seed)
        draws = head.sample(*ranks_fit.head(first, tokens), samples, source)
        return gfo.Predictive(draws, first.likelihood)
    model = first if len(models) == 1 else gfo.Ensemble(models)
    return ranks_fit.predict(model, tokens, samples, run.seed)


def scored(pred: gfo.Predictive, labels: Tensor) -> dict[str, float]:
    """Scores of a prediction; ``selective`` is the mean accuracy of the k most certain, over k."""
    scores = metrics.classification(pred.mean, labels, pred.log_prob(labels))
    return {**scores, "selective": 1 - gfo.selective.risk_coverage(pred, labels).aurc}


def _spreads(run: Run, problem: Problem, context: Context) -> dict[str, Any]:
    """By kind of unit: train with random masks on them, and vary the masks."""
    numbers: dict[str, Any] = {}
    options = run.to_dict()["options"]
    for place, units in enumerate(UNITS):
        context.progress(place, len(UNITS), units)
        model, _ = ranks_fit.adapted(ARMS["mc"], problem, options, run.seed, context, units=units)
        numbers[f"{units}/count"] = sum(site.units for site in model.sites)
        spread = ranks_fit.spread(model, problem.train, options["draws"], run.seed)
        numbers |= prefixed(units, dict(zip(("label", "all", "fit"), spread, strict=True)))
        tokens, labels = problem.tests[ADAPTED]
        pred = ranks_fit.predict(model, tokens, options["samples"], run.seed)
        numbers[f"{units}/nll"] = scored(pred, labels)["nll"]
    return numbers


def seconds(run: Run) -> float:
    """What a trial or a run takes on one core, about; tiny ones a part of a second."""
    size: float = run.options["net.width"] * run.options["rows"]["train"] / (64 * 2000)
    times = {"id-gflowout": 45.0, "ensemble": 50.0, COMPARISON: 120.0, LAPLACE: 10.0}
    return max(0.2, size * times.get(run.method, 30.0))


# What the report says

_COLUMNS = columns(NAME)
_TEXTS = entry(f"{NAME}.texts")


def section(records: Sequence[Record]) -> Section:
    """Scores of each kind of text, the spread of units, comparisons and choices."""
    own = [record for record in records if record["data"] == ADAPTED]
    if not own:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = [Text(_TEXTS["about"])]
    compared: list[Compared] = []
    for kind, title in TESTED.items():
        names = [f"{kind}/{name}" for name in _COLUMNS["scores"]]
        rows = sections.arm_rows(own, ADAPTED, names, TITLES)
        place = "the kind that adapters were trained on" if kind == ADAPTED else "another kind"
        table = f"{title}, {place}"
        blocks.append(Table(table, "Method", list(_COLUMNS["scores"].values()), rows))
        compared.append(Compared(ADAPTED, f"{kind}/nll", f"NLL on {title.lower()}", "low"))
    learned = sections.arm_rows(own, ADAPTED, list(_COLUMNS["posterior"]), TITLES)
    shown = [*_COLUMNS["posterior"].values()]
    blocks += [
        _units(own),
        Table("Posterior against prior", "Method", shown, learned, _TEXTS["posterior"]),
    ]
    findings: list[str] = []
    details: list[str] = []
    for arm in OURS:
        sentences, pairs = sections.against_others(own, compared, TITLES, arm)
        findings += sentences
        details += pairs
    blocks += [
        *([Text(details, "Every comparison in NLL")] if details else []),
        sections.choices(own, {ADAPTED: "Options"}, "Chosen on validation sentences", TITLES),
    ]
    return Section(findings, blocks, data=(ratings.NAME,))


def _units(own: Sequence[Record]) -> Table:
    """Kinds of units side by side."""
    rows = [
        Row(
            title,
            [
                sections.cell(by_seed(own, ADAPTED, COMPARISON, f"{units}/{name}").values())
                for name in _COLUMNS["units"]
            ],
        )
        for units, title in UNITS.items()
    ]
    there = [row for row in rows if any(cell.runs for cell in row.cells)]
    shown = list(_COLUMNS["units"].values())
    return Table("Where a mask matters", "Unit", shown, there, _TEXTS["units"])


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.ranks:work",
    tuning=tuning,
    runs=runs,
    section=section,
    seconds=seconds,
    needs=lambda run: [ratings.NAME],
)
