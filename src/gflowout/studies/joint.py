"""Labels with many parts: which methods say what goes together. Not in the paper.

Every arm may train for as much computing time, stops early by the joint log-likelihood of
validation rows, and has the same number of trials on such rows. Test rows of real data are the same
for all seeds, and no trial sees them. ``paper`` is a larger ``cpu``.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.core.optional import require
from gflowout.core.random import generator
from gflowout.runs import Context, Result, Run
from gflowout.studies import joint_fit, joint_scores
from gflowout.studies.framework import content, sections
from gflowout.studies.framework.arms import Options
from gflowout.studies.framework.claims import columns, entry, template
from gflowout.studies.framework.content import Block, Claim, Column, Section, Table, Text
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Comparison, Record, by_arm, by_seed, pair
from gflowout.studies.framework.study import TUNING, Chosen, Study
from gflowout.studies.joint_data import PROBLEMS, TABLES, Problem, load
from gflowout.studies.joint_fit import ARMS, TRUTH, Arm

NAME = "joint"
PRESETS: dict[str, dict[str, Any]] = TABLES["presets"]
TITLES = {label: arm.title for label, arm in ARMS.items()}
TRIAL_SEED = 100
"""Of the trials, which serve all seeds: no run has it."""
OURS, BOUND, CONTROL = "gflowout-bound", "mc-bound", "control-bound"
JUDGED = ("digits", "drugs")
"""Problems that a distance was promised of."""
MARGINS = {"mc": 1.0, "ensemble": 1.5}
"""Nats by which ours was promised to be above."""
LEAST_SEEDS = 5
"""With fewer nothing is judged."""
SCORE = "test/joint"
_SHOWN, _DRAWN = 4, 8
"""Pictures whose lower halves are drawn, and how often."""
_HOW = ("batch", "every", "patience", "valid_draws", "draws")


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation rows."""
    wanted = PRESETS[preset]
    return [
        Run(TUNING, arm.label, data, TRIAL_SEED, {**_options(preset, data, arm), "tuned": tuned})
        for data in wanted["problems"]
        if not PROBLEMS[data].like
        for arm in _arms(data)
        if not arm.like and arm.method != TRUTH
        for tuned in arm.trials[: wanted["trials"]]
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every problem, seed by seed."""
    return [
        Run(NAME, arm.label, data, seed, {**_options(preset, data, arm), "tuned": tuned})
        for seed in range(PRESETS[preset]["seeds"])
        for data in PRESETS[preset]["problems"]
        for arm in _arms(data)
        for like in [arm.like or arm.label]
        for tuned in [chosen.get((PROBLEMS[data].like or data, like), ARMS[like].trials[0])]
    ]


def _arms(data: str) -> list[Arm]:
    return [arm for arm in ARMS.values() if not arm.only or data in arm.only]


def _options(preset: str, data: str, arm: Arm) -> Options:
    """Options of a run; an arm whose steps are dear gets fewer."""
    wanted, source = PRESETS[preset], PROBLEMS[data]
    steps = round(source.steps * wanted.get("steps", 1.0) / max(arm.cost, 1.0))
    sizes = {"rows": wanted.get("rows", source.rows), "hidden": wanted.get("hidden", source.hidden)}
    return {**{key: wanted[key] for key in _HOW}, **sizes, "steps": max(1, steps)}


def work(run: Run, context: Context) -> Result:
    """A trial: train and score validation rows. A run: train, then score test rows."""
    arm, options = ARMS[run.method], run.options
    problem = load(run.data, run.seed, tuple(options["rows"]))
    trial = run.study == TUNING
    if arm.method == TRUTH:
        assert problem.exact is not None
        score = float(problem.exact(*problem.test).double().mean())
        exact = {SCORE: score, "test/bias": 0.0}
        return {"metrics": exact, "data": problem.checksums(test=True)}
    fitted = joint_fit.fit(
        arm, options["tuned"], problem, options["hidden"], options, run.seed, context.progress
    )
    steps, seconds, curve = zip(*fitted.curve, strict=True)
    metrics: dict[str, Any] = {
        "cost/train": fitted.seconds,
        "cost/curve": [round(second, 3) for second in seconds],
        "steps": fitted.steps,
        "stopped": int(fitted.stopped),
        "curve/steps": list(steps),
        "curve/valid": [round(value, 4) for value in curve],
    }
    rows = problem.valid if trial else problem.test
    began = time.process_time()
    answers = joint_fit.answers(fitted.model, rows, options["draws"], generator(run.seed, "test"))
    scores, bins = joint_scores.measure(answers, generator(run.seed, "labels"))
    metrics["cost/predict"] = time.process_time() - began
    if trial:
        metrics["valid/nll"] = -scores["joint"]
        return {"metrics": metrics, "data": problem.checksums(test=False)}
    metrics |= {f"test/{name}": value for name, value in scores.items()}
    metrics["pairs/bins"] = bins
    if problem.side and run.seed == 0:
        metrics["pictures"] = completions(fitted.model, problem)
    return {"metrics": metrics, "data": problem.checksums(test=True)}


def seconds(run: Run) -> float:
    """What a trial or a run takes on one core at most; tiny ones a part of a second."""
    source = PROBLEMS[run.data]
    arm = ARMS[run.method]
    if arm.method == TRUTH:
        return 2.0
    share = float(run.options["steps"]) * max(arm.cost, 1.0) / source.steps
    return max(0.2, source.seconds * share)


@torch.no_grad()
def completions(model: joint_fit.Model, problem: Problem) -> str:
    """Test pictures with lower halves that the model draws, as base64 of a PNG.

    A row for each picture: the real one, then drawn ones.
    """
    x, y = (part[:_SHOWN] for part in problem.test)
    source = generator(0, "pictures")
    answer = model.answer(x, _DRAWN, source)
    outputs = answer.outputs
    if answer.exact:
        shares = torch.ones(len(outputs), len(x)) / len(outputs)
        shares = shares if answer.log_weights is None else answer.log_weights.exp()
        chosen = torch.multinomial(shares.T, _DRAWN, replacement=True, generator=source).T
        outputs = outputs.gather(0, chosen.unsqueeze(-1).expand(-1, -1, outputs.shape[-1]))
    lower = joint_scores.draw_labels(answer.likelihood, outputs, source)
    halves = torch.cat([y.unsqueeze(0), lower])
    whole = torch.cat([x.expand(len(halves), -1, -1), halves], -1)
    return _png(whole.transpose(0, 1).reshape(_SHOWN, _DRAWN + 1, -1, problem.side))


def _png(pictures: Tensor) -> str:
    """Pictures [rows, columns, height, width] of 0 and 1 in a grid with grey lines between."""
    image_file = require("matplotlib.image", extra="demo", purpose="pictures of the study joint")
    framed = torch.nn.functional.pad(pictures, (0, 1, 0, 1), value=0.5)
    grid = framed.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:-1, :-1]
    buffer = io.BytesIO()
    image_file.imsave(buffer, grid.unsqueeze(-1).expand(-1, -1, 3).numpy())
    return base64.b64encode(buffer.getvalue()).decode()


# What the report says

_COLUMNS = columns(NAME)["scores"]
_TEXTS = entry(f"{NAME}.texts")


def section(records: Sequence[Record]) -> Section:
    """Tables, curves, calibration of pairs, drawn pictures, comparisons and claims."""
    names = sections.present(records, PROBLEMS)
    if not names:
        return Section(findings=("No run of this study is done yet.",))
    titles = {name: PROBLEMS[name].title for name in names}
    joint = {name: by_arm(records, name, SCORE) for name in names}
    overview = Table(
        "Joint log-likelihood of a test label, in nats",
        "Method",
        [Column(title, "high", digits=2) for title in titles.values()],
        sections.rows(TITLES, names, lambda arm, name: sections.cell(joint[name].get(arm, []))),
        _TEXTS["overview"],
    )
    compared = [Compared(name, SCORE, f"joint log-likelihood ({titles[name]})") for name in names]
    findings: list[str] = []
    details: list[str] = []
    if OURS in TITLES:
        findings, details = sections.against_others(records, compared, _rivals(), OURS)
    blocks: list[Block] = [Text(_TEXTS["about"]), overview]
    for name in names:
        blocks += _problem(records, name)
    none = ["GFlowOut with the marginal bound cannot be compared yet."]
    blocks.append(Text(details or none, "Every comparison in joint log-likelihood"))
    for name, title in titles.items():
        chosen = f"{title}: chosen on validation rows"
        blocks.append(sections.choices(records, {name: "Options"}, chosen, TITLES))
    return Section(findings or none, blocks, claims(records, names), names)


def _rivals() -> dict[str, str]:
    return {label: title for label, title in TITLES.items() if ARMS[label].method != TRUTH}


def _problem(records: Sequence[Record], data: str) -> list[Block]:
    source, own = PROBLEMS[data], [record for record in records if record["data"] == data]
    rows = sections.arm_rows(own, data, list(_COLUMNS), TITLES)
    caption = _TEXTS["made"] if source.synthetic else ""
    return [
        Text([f"{source.title}: {source.about}."]),
        Table(f"{source.title}: scores", "Method", list(_COLUMNS.values()), rows, caption),
        *_curves(own, data),
        *_pictures(own, data),
    ]


def _first(own: Sequence[Record], key: str) -> dict[str, Mapping[str, Any]]:
    """By arm the metrics of seed 0 that have some key, in the order of the arms."""
    metrics = {
        record["method"]: record["metrics"]
        for record in own
        if record["seed"] == 0 and key in record["metrics"]
    }
    return {arm: metrics[arm] for arm in TITLES if arm in metrics}


def _curves(own: Sequence[Record], data: str) -> list[Block]:
    """Validation score against computing time, and the calibration of pairs, of seed 0."""
    learning = [
        content.Series(TITLES[arm], metrics["cost/curve"], metrics["curve/valid"])
        for arm, metrics in _first(own, "curve/valid").items()
        if ARMS[arm].members == 1
    ]
    pairs = [content.Series("exact", [0.0, 1.0], [0.0, 1.0])]
    for arm, metrics in _first(own, "pairs/bins").items():
        said, both, _ = zip(*metrics["pairs/bins"], strict=True)
        pairs.append(content.Series(TITLES[arm], said, both))
    title = PROBLEMS[data].title
    axes = ("seconds of training", "joint log-likelihood, validation rows")
    blocks: list[Block] = []
    if learning:
        caption = _TEXTS["learning"]
        blocks.append(content.Curves(f"{title}: training, seed 0", *axes, learning, caption))
    if len(pairs) > 1:
        axes, caption = ("probability that both occur", "how often both do"), _TEXTS["pairs"]
        blocks.append(content.Curves(f"{title}: pairs, seed 0", *axes, pairs, caption))
    return blocks


def _pictures(own: Sequence[Record], data: str) -> list[Block]:
    drawn = _first(own, "pictures")
    if not drawn:
        return []
    pictures = [content.Picture(drawn[arm]["pictures"], TITLES[arm], ()) for arm in drawn]
    title = f"{PROBLEMS[data].title}: drawn by each method"
    return [content.Pictures(title, (), pictures, _TEXTS["pictures"].format(drawn=_DRAWN))]


# What was promised


def claims(records: Sequence[Record], names: Sequence[str]) -> list[Claim]:
    """All that was promised, and what was found."""
    if OURS not in TITLES:
        return []
    above = [
        _claim_above(records, data, other, margin)
        for data in JUDGED
        if data in names
        for other, margin in MARGINS.items()
    ]
    real = [_claim_above(records, data, CONTROL, 0.0) for data in JUDGED if data in names]
    return [*above, *real, *_claims_bound(records, names)]


def _against(records: Sequence[Record], data: str, other: str) -> Comparison:
    ours, theirs = (by_seed(records, data, arm, SCORE) for arm in (OURS, other))
    return pair(ours, theirs, "high")


def _claim_above(records: Sequence[Record], data: str, other: str, margin: float) -> Claim:
    """At least so many nats above another arm, the whole paired 95 % interval."""
    gap = _against(records, data, other)
    texts: dict[str, Any] = {
        "problem": PROBLEMS[data].title, "other": TITLES[other], "margin": margin,
        "seeds": gap.seeds, "gap": _shown(gap),
        "least": f", by {margin:g} nats at least" if margin else "",
    }  # fmt: skip
    outcome = None
    if gap.seeds >= LEAST_SEEDS:
        outcome = True if gap.low > margin else False if gap.high < margin else None
    key = "few" if gap.seeds < LEAST_SEEDS else "why"
    return template(f"{NAME}.above", outcome, key, **texts)


def _claims_bound(records: Sequence[Record], names: Sequence[str]) -> list[Claim]:
    """Against MC dropout with the bound: below it nowhere, above it on two problems."""
    gaps = {data: _against(records, data, BOUND) for data in names}
    judged = {data: gap for data, gap in gaps.items() if gap.seeds >= LEAST_SEEDS}
    listed = "; ".join(f"{PROBLEMS[data].title} {_shown(gap)}" for data, gap in judged.items())
    worse = [data for data, gap in judged.items() if gap.verdict == "worse"]
    better = [data for data, gap in judged.items() if gap.verdict == "better"]
    whole = set(judged) >= set(PRESETS["cpu"]["problems"])
    nowhere = False if worse else True if whole else None
    twice = True if len(better) >= 2 else False if whole else None
    texts = {"gaps": listed or "no problem has five paired seeds yet"}
    return [
        template(f"{NAME}.nowhere", nowhere, "why", **texts, count=len(worse)),
        template(f"{NAME}.twice", twice, "why", **texts, count=len(better)),
    ]


def _shown(gap: Comparison) -> str:
    mean, low, high = gap.shown(1.0, 2)
    return f"{mean} ({low} to {high})"


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.joint:work",
    tuning=tuning,
    runs=runs,
    section=section,
    seconds=seconds,
    needs=lambda run: filter(None, [PROBLEMS[run.data].needs]),
)
