"""Death in intensive care, in hospitals that were not trained on: Table 4.

The first 48 hours' drugs of a stay, an MLP of three hidden layers, all methods and a logistic
regression. ``cpu`` takes the open demo of eICU, where each seed draws other test hospitals, and
tunes anew for each draw: else a patient on whom an option was chosen could be in another seed's
test. ``paper`` takes the full database, twice: all other hospitals to the one that the paper's
appendix names (``eicu``), and one hospital to another, as in its main text (``eicu-pair``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.app import config as configs
from gflowout.app import evaluation as scores
from gflowout.app import sources
from gflowout.app.preprocess import Target
from gflowout.app.sources import Part, Task
from gflowout.core.optional import require
from gflowout.core.text import counted
from gflowout.runs import Context, Result, Run
from gflowout.studies import elbo, images
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import content, keep_rates, sections
from gflowout.studies.framework.arms import (
    ARMS,
    GRID,
    Arm,
    Options,
    choices,
    of_preset,
    spaced,
    trials,
)
from gflowout.studies.framework.content import Block, Claim, Column, Section, Table, Text
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_seed, holm, pair, prefixed
from gflowout.studies.framework.study import TUNING, Chosen, Study

_PENALTIES = (30.0, 10.0, 100.0, 1.0, 3.0, 300.0, 1000.0, 0.3, 3000.0)
LOGISTIC = Arm("logistic", "logistic", "Logistic regression", own=("penalty", _PENALTIES))
"""Not of the paper: what a hospital would try first."""
ALL = {**ARMS, LOGISTIC.label: LOGISTIC}

BATCH = 500
COVERAGES = tuple(round(0.05 * step, 2) for step in range(1, 21))
"""Shares of patients that are not deferred, at which curves are kept."""
_DECIMALS = 6
"""Uncertainties that agree to here are equal: further digits are rounding."""
PRESETS = images.PRESETS["clinical"]
TITLES = {label: arm.title for label, arm in ALL.items()}
DATA = {"eicu-demo": "eICU demo", "eicu": "eICU", "eicu-pair": "eICU, one hospital to another"}
PUBLISHED = judged.paper("clinical")
"""Table 4 of the paper: macro F1, precision, recall. Its "Random" is MC dropout here."""
_TEXTS = judged.entry("clinical.texts")
_MACRO = {"f1": "macro F1", "precision": "macro precision", "recall": "macro recall"}
_COLUMNS = judged.columns("clinical")["risk"]


def protocols(preset: str) -> dict[str, Options]:
    """By name of the data, the options that say which hospitals are trained on and tested."""
    source: str = PRESETS[preset]["options"]["data.source"]
    own: dict[str, Options] = PRESETS[preset].get("protocols", {source: {}})
    return own


def place(preset: str, seed: int, data: str = "eicu-demo") -> str:
    """What the trials for a seed are called: one set of trials for each draw of test hospitals."""
    return data if preset == "paper" else f"{data} draw {seed}"


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation data of the hospitals that are trained on."""
    seeds = range(1 if preset == "paper" else PRESETS[preset]["seeds"])
    return [
        Run(TUNING, arm.label, name, seed, {**_options(preset, arm, data), "tuned": tuned})
        for data in protocols(preset)
        for seed in seeds
        for name in [place(preset, seed, data)]
        for arm in of_preset(preset, ALL.values())
        for tuned in _trials(preset, arm)
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every draw of hospitals, seed by seed."""

    def choice(data: str, seed: int, label: str) -> Options:
        return chosen.get((place(preset, seed, data), label), _trials(preset, ALL[label])[0])

    return [
        Run("clinical", arm.label, data, seed, {**_options(preset, arm, data), **own})
        for seed in range(PRESETS[preset]["seeds"])
        for data in protocols(preset)
        for arm in of_preset(preset, ALL.values())
        for own in [choices(arm, functools.partial(choice, data, seed))]
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: train and score on validation data. A run: train, then score the test hospitals."""
    trial = run.study == TUNING
    arm = ALL[run.method]
    metrics: dict[str, Any] = {}
    epochs: list[Mapping[str, Any]] = []
    if arm is LOGISTIC:
        settings = {**images.dotted(run), "method.name": "none", "seed": run.seed}
        task = sources.load(configs.from_flat(settings).data, run.seed)
        risk = logistic(task.train.x, task.train.y, run.options["tuned"]["penalty"])

        def answer(part: Part) -> scores.Answers:
            return _linear_answers(risk(part.x), part.y)
    else:
        # Of an ensemble one member is tuned: what is good for it is good for all.
        wanted = dataclasses.replace(arm, members=1) if trial else arm
        # Members differ in their seed, not in their hospitals.
        base = {**images.dotted(run), "data.seed": run.seed}
        options = run.options
        fitted = images.fitted(
            wanted, base, options["tuned"], run.seed, context, options.get("partner")
        )
        task, epochs, metrics = fitted.task, fitted.epochs, dict(fitted.facts)
        metrics |= keep_rates.as_metric(images.keep_rate(fitted))

        if not trial:
            bound = elbo.elbo(fitted.model, images.labelled(fitted, task.part("test")), run.seed)
            metrics |= {} if bound is None else {"test/elbo": bound}

        def answer(part: Part) -> scores.Answers:
            batches = part.batches(fitted.problem, BATCH)
            samples = run.options["samples"]
            return scores.collect(fitted.model, task.target, batches, samples, run.seed)

    valid = answer(task.part("valid"))
    metrics |= prefixed("valid", _proper(task.target, valid))
    if trial:
        used = {name: task.fingerprints[name] for name in ("train", "valid")}
        return {"metrics": metrics, "epochs": epochs, "data": used}
    metrics |= in_test_hospitals(task, valid, answer(task.part("test")))
    return {"metrics": metrics, "epochs": epochs, "data": task.fingerprints}


def in_test_hospitals(task: Task, valid: scores.Answers, test: scores.Answers) -> dict[str, Any]:
    """All that is reported of the test hospitals, from answers on validation and on test data.

    ``chosen/f1`` and so on are at the threshold with the best macro F1 on validation data.
    ``share/f1`` and so on are at the share of deaths in training: who is above it is more likely to
    die than a patient of whom nothing is known, and it is what one half is after training on
    classes made equally frequent. ``half/f1`` and so on are at one half. ``risk/...`` are areas
    under the curves of deferral by entropy, ``risk-mi/...`` by mutual information.
    """
    risk, died = test["probabilities"][:, 1].double(), test["labels"].long()
    share = float(task.train.y.double().mean())
    threshold = best_threshold(valid["probabilities"][:, 1].double(), valid["labels"].long())
    metrics: dict[str, Any] = prefixed("test", _proper(task.target, test))
    for name, value in (("share", share), ("chosen", threshold), ("half", 0.5)):
        metrics |= prefixed(name, macro(risk, died, value))
    metrics |= {"threshold/share": share, "threshold/chosen": threshold}
    wrong = ((risk >= 0.5).long() != died).double()
    losses = {"error": wrong, "brier": (risk - died).square()}
    for name, doubt in (("risk", "entropy"), ("risk-mi", "mutual_information")):
        if doubt not in test or not bool(test[doubt].any()):
            continue  # nothing that draws could disagree on
        for kind, loss in losses.items():
            curve = risk_coverage(test[doubt], loss)
            metrics[f"{name}/{kind}"] = float(curve.mean())
            metrics[f"curve/{name}/{kind}"] = at_coverages(curve)
    metrics["curve/coverage"] = list(COVERAGES)
    for part in ("train", "valid", "test"):
        metrics[f"stays/{part}"] = len(task.part(part))
        metrics[f"deaths/{part}"] = int(task.part(part).y.sum())
    return metrics


def _proper(target: Target, answers: scores.Answers) -> dict[str, float]:
    """NLL, Brier score of the risk, calibration error, AUROC and AUPRC."""
    risk = answers["probabilities"][:, 1].double()
    brier = float((risk - answers["labels"].double()).square().mean())
    return {**scores.measure(target, answers), "brier": brier}


def _linear_answers(risk: Tensor, died: Tensor) -> scores.Answers:
    """What a logistic regression says, as :func:`gflowout.app.evaluation.collect` has it."""
    logits = torch.logit(risk.clamp(1e-12, 1 - 1e-12))
    both = torch.stack([1 - risk, risk], -1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, died.double(), reduction="none"
    )
    return {
        "probabilities": both,
        "entropy": torch.special.entr(both).sum(-1),
        "log_prob": -loss,
        "labels": died,
    }


def _trials(preset: str, arm: Arm) -> list[Options]:
    rates, own = PRESETS[preset]["rates"], PRESETS[preset]["own"]
    if arm is not LOGISTIC:
        return trials(arm, rates, own)
    # No learning rate: as many penalties as the others have trials.
    count = len(trials(ARMS["mc"], rates, own))
    penalties = spaced(_PENALTIES, count) if own == GRID else _PENALTIES[:count]
    return [{"penalty": value} for value in penalties]


def _options(preset: str, arm: Arm, data: str) -> Options:
    options: Options = {**PRESETS[preset]["options"], **protocols(preset)[data]}
    if arm is LOGISTIC:
        return {key: options[key] for key in options if key.startswith(("data.", "samples"))}
    return options


# Scores


def macro(risk: Tensor, died: Tensor, threshold: float) -> dict[str, float]:
    """F1, precision and recall, each the mean over the two outcomes.

    A class that is never predicted has precision and F1 of 0. Patients at or above the threshold
    are expected to die.
    """
    expected, truth = risk >= threshold, died == 1
    f1, precision, recall = [], [], []
    for predicted, real in ((expected, truth), (~expected, ~truth)):
        hits = float((predicted & real).sum())
        precision.append(hits / max(1.0, float(predicted.sum())))
        recall.append(hits / max(1.0, float(real.sum())))
        f1.append(2 * hits / max(1.0, float(predicted.sum() + real.sum())))
    return {"f1": sum(f1) / 2, "precision": sum(precision) / 2, "recall": sum(recall) / 2}


def best_threshold(risk: Tensor, died: Tensor) -> float:
    """The threshold with the best macro F1; of equals the lowest."""
    values = torch.unique(risk.double())
    between = ((values[1:] + values[:-1]) / 2).tolist()
    places: list[float] = [float(values[0]), *between, float(values[-1]) + 1e-6]
    return max(places, key=lambda place: (macro(risk.double(), died, place)["f1"], -place))


def risk_coverage(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Mean loss among the k most certain patients, for k = 1, 2, ... [patients].

    Among patients who are equally uncertain any may be deferred first: the expected value over
    their orders is taken.
    """
    levels = (uncertainty.double() * 10**_DECIMALS).round()
    _, place = torch.unique(levels, return_inverse=True)
    total, size = torch.bincount(place, loss.double()), torch.bincount(place)
    expected = (total / size)[place.sort().values]
    return expected.cumsum(0) / torch.arange(1, len(loss) + 1)


def at_coverages(curve: Tensor) -> list[float]:
    """A curve of :func:`risk_coverage` at :data:`COVERAGES`."""
    kept = [max(1, -(-round(100 * share) * len(curve) // 100)) for share in COVERAGES]
    return [round(float(curve[count - 1]), 6) for count in kept]


def logistic(x: Tensor, y: Tensor, penalty: float) -> Callable[[Tensor], Tensor]:
    """Fit a logistic regression; returns the map from inputs to risks, [rows].

    Minimises the summed log loss plus penalty / 2 times the squared weights; the intercept is free.
    """
    linear = require("sklearn.linear_model", extra="studies", purpose="the study clinical")
    model = linear.LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-8)
    model.fit(x.double().numpy(), y.numpy())
    return lambda rows: torch.from_numpy(model.predict_proba(rows.double().numpy())[:, 1])


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, curves of deferral, findings and claims from the records that there are."""
    names = sections.present(records, DATA)
    if not names:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = []
    findings: list[str] = []
    claims: list[Claim] = []
    for source in names:
        own, title = [record for record in records if record["data"] == source], DATA[source]
        rows = sections.arm_rows(own, source, list(_COLUMNS), TITLES)
        proper = f"{title}: the risk as a number, and deferral"
        chosen = f"{title}: chosen on validation data"
        blocks += [
            Text(_about(own, source)),
            _table(own, source),
            Table(proper, "Method", list(_COLUMNS.values()), rows, _TEXTS["areas"]),
            _curves(own, source, "error", "share of kept patients judged wrongly"),
            _curves(own, source, "brier", "Brier score of kept patients"),
            sections.choices(own, {source: "Options"}, chosen, TITLES),
        ]
        compared = [
            Compared(source, metric, row["what"].format(data=title), row["better"])
            for metric, row in judged.entry("clinical.compared").items()
        ]
        more, details = sections.against_others(own, compared, TITLES)
        findings += more
        rule = judged.entry("clinical.superior")["rule"]
        blocks += [Text([rule]), *sections.pair_by_pair(details)]
        blocks += sections.at_equal_rates(own, compared)
        claims += [_claim(own, source, arm) for arm in PUBLISHED if arm != "gflowout"]
    return Section(findings, blocks, claims, names)


def _about(own: Sequence[Record], source: str) -> list[str]:
    def span(name: str) -> str:
        values = sorted(int(r["metrics"][name]) for r in own if name in r["metrics"])
        ends = dict.fromkeys(f"{value:,}" for value in values[:1] + values[-1:])
        return " to ".join(ends) or "?"

    names = [f"{kind}/{part}" for kind in ("stays", "deaths") for part in ("train", "test")]
    values = {name.replace("/", "_"): span(name) for name in names}
    values |= {"data": DATA[source], "seeds": counted(len({r["seed"] for r in own}), "seed")}
    about = [text.format(**values) for text in _TEXTS["about"]]
    more = {"eicu-demo": "demo", "eicu-pair": "pair"}.get(source)
    return about if more is None else [*about, _TEXTS[more]]


def _table(own: Sequence[Record], source: str) -> Table:
    heads = ["F1 (macro)", "Precision", "Recall"]
    heads += [f"{name}, above base rate" for name in ("F1", "precision", "recall")]
    metrics = [f"{kind}/{name}" for kind in ("chosen", "share") for name in _MACRO]
    rows = sections.arm_rows(own, source, metrics, TITLES)
    none = [None] * 3
    published = {arm: [*values, *none] for arm, values in PUBLISHED.items()}
    rows += sections.paper_rows(published, {**sections.NAMES, "mc": "Random"})
    half = (by_seed(own, source, "mc", f"half/{name}").values() for name in ("f1", "recall"))
    f1, recall = (sections.cell(values).mean for values in half)
    caption = _TEXTS["table"]
    if f1 is not None and recall is not None and abs(recall - 0.5) < 0.005:
        caption += _TEXTS["half"].format(f1=f1)
    columns = [Column(head, "high") for head in heads]
    return Table(f"{DATA[source]}: who will die", "Method", columns, rows, caption)


def _curves(own: Sequence[Record], source: str, kind: str, title: str) -> content.Curves:
    lines = []
    for arm, name in TITLES.items():
        metrics = [record["metrics"] for record in own if record["method"] == arm]
        curves = [m[f"curve/risk/{kind}"] for m in metrics if m.get(f"curve/risk/{kind}")]
        if curves:
            x = next(m["curve/coverage"] for m in metrics if m.get("curve/coverage"))
            points = zip(x, zip(*curves, strict=True), strict=True)
            lines.append(sections.line(name, points))
    heading = f"{DATA[source]}: {title}, if the others are left to a doctor"
    axes, caption = ("share of patients kept", title), _TEXTS["curves"]
    return content.Curves(heading, *axes, lines, caption, percent=kind == "error")


def _claim(own: Sequence[Record], source: str, arm: str) -> Claim:
    """GFlowOut against one of the paper's baselines, in the paper's three metrics."""
    margins, comparisons = {}, {}
    for place, (name, title) in enumerate(_MACRO.items()):
        margins[title] = round(PUBLISHED["gflowout"][place] - PUBLISHED[arm][place], 3)
        ours, other = (by_seed(own, source, a, f"chosen/{name}") for a in ("gflowout", arm))
        comparisons[title] = pair(ours, other, "high")
    outcome, why = judged.by_margins(holm(comparisons), margins, judged.superior)
    name = sections.NAMES[arm]
    title = "random dropout" if arm == "mc" else name if "GFlowOut" in name else name.lower()
    replaced = judged.stand_in(source)
    values = {"other": title, "data": DATA[source], "margins": why}
    return judged.template("clinical.superior", outcome, replaced=replaced, **values)


STUDY = Study(
    name="clinical",
    **judged.entry("clinical.study"),
    work="gflowout.studies.clinical:work",
    tuning=tuning,
    runs=runs,
    section=section,
)
