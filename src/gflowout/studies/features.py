"""Which inputs matter: masks on inputs against networks, gates, trees and L1. Not in the paper.

Problems with a known answer, and real data with and without noise columns. All arms have the same
number of trials on rows that are held out from the training rows, anew for every seed: seeds draw
other rows, and a row on which an option was chosen could be another seed's test row. Then one fit
to all training rows, and one look at the test rows. ``paper`` is a larger ``cpu``.

Then rivals as they come, without trials, on published problems and real tables: see
``features_compare``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflowout.runs import Context, Result, Run
from gflowout.studies import features_compare, features_fit
from gflowout.studies.features_data import JUDGED, PROBLEMS, load, prediction
from gflowout.studies.features_fit import ARMS, Arm, fit
from gflowout.studies.features_section import section
from gflowout.studies.features_tables import ORIGINS
from gflowout.studies.framework.arms import Options
from gflowout.studies.framework.claims import entry
from gflowout.studies.framework.statistics import prefixed
from gflowout.studies.framework.study import TUNING, Chosen, Study

TRIALS = {"smoke": 1, "cpu": 3, "paper": 6}
SEEDS = {"smoke": 1, "cpu": 5, "paper": 20}
_DATA = {"smoke": ("independent", "digits"), "cpu": (*PROBLEMS,), "paper": (*PROBLEMS,)}
_SMALL: Options = {"rows": 120, "test": 60, "members": 2, "share": 0.02}
_CHAINS: Options = {"members": 5}
"""Of ``cpu`` where nothing was promised: half of the chains, half of the time."""
_BATCH = 100
_SMOKE_STEPS = 6
_TEN_CLASSES = 7.0
"""How much longer boosting takes on digits: ten classes are ten trees a round."""


def place(data: str, seed: int) -> str:
    """What the trials of a problem and a seed are called."""
    return f"{data} draw {seed}"


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on held-out rows of each draw of each problem.

    ``smoke`` tunes on its first problem only.
    """
    return [
        Run(TUNING, arm.label, place(data, seed), seed, _options(preset, data, arm, tuned))
        for seed in range(SEEDS[preset])
        for data in (_DATA[preset][:1] if preset == "smoke" else _DATA[preset])
        for arm in ARMS.values()
        if not arm.like
        for tuned in arm.trials[: TRIALS[preset]]
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every problem, seed by seed; then every rival on every table."""
    own = [
        Run("features", arm.label, data, seed, _options(preset, data, arm, tuned))
        for seed in range(SEEDS[preset])
        for data in _DATA[preset]
        for arm in ARMS.values()
        if not arm.only or data in arm.only
        for like in [arm.like or arm.label]
        for tuned in [chosen.get((place(data, seed), like), ARMS[like].trials[0])]
    ]
    return own + features_compare.runs(preset, SEEDS[preset])


def work(run: Run, context: Context) -> Result:
    """A trial: fit to a part of the training rows, score the rest. A run: fit to all, then test."""
    del context  # nothing is kept: a run is a minute
    if run.data in ORIGINS:
        return features_compare.work(run)
    arm, options, tuned = ARMS[run.method], run.options, run.options["tuned"]
    data = run.data.partition(" draw ")[0]
    problem = load(data, run.seed, options.get("rows"), options.get("test"))
    classes = int(max(problem.y.max(), problem.y_test.max())) + 1
    share, epochs = options.get("share", 1.0), options["fit.epochs"]
    how = {"classes": classes, "epochs": epochs, "seed": run.seed, "share": share}
    if run.study == TUNING:
        valid, train = problem.valid, ~problem.valid
        fitted = fit(arm, tuned, problem.x[train], problem.y[train], members=1, **how)
        scores = prediction(fitted.proba(problem.x[valid]), problem.y[valid])
        metrics = {**prefixed("valid", scores), "cost/train": fitted.seconds}
        return {"metrics": metrics, "data": problem.checksums(test=False)}
    members = min(arm.members, options.get("members", arm.members))
    fitted = fit(arm, tuned, problem.x, problem.y, members=members, apart=problem.valid, **how)
    metrics = features_fit.on_test_rows(problem, fitted)
    metrics |= features_fit.about_features(problem, fitted, run.seed == 0)
    return {"metrics": metrics, "data": problem.checksums(test=True)}


def seconds(run: Run) -> float:
    """What a trial or a run takes on one core, by arm and problem; tiny ones a second."""
    if run.data in ORIGINS:
        return features_compare.seconds(run)
    if "share" in run.options:
        return 1.0
    trial, all_of_it = ARMS[run.method].seconds
    data = run.data.partition(" draw ")[0]
    if run.study != TUNING and "members" in run.options and ARMS[run.method].members > 5:
        all_of_it *= run.options["members"] / ARMS[run.method].members
    many = (data, run.method) == ("digits", "boosting")
    scale = _TEN_CLASSES if many else PROBLEMS[data].scale
    return scale * (trial if run.study == TUNING else all_of_it)


def _options(preset: str, data: str, arm: Arm, tuned: Mapping[str, Any]) -> Options:
    """Options of a run; a dry run reads its price from two of the epochs."""
    small = _SMALL if preset == "smoke" else {}
    if preset == "cpu" and data not in JUDGED:
        small = _CHAINS
    rows = min(small.get("rows", PROBLEMS[data].rows), PROBLEMS[data].rows)
    batches = -(-rows * 4 // (5 * _BATCH))
    steps = _SMOKE_STEPS if preset == "smoke" else arm.steps
    return {**small, "fit.epochs": -(-steps // batches), "tuned": dict(tuned)}


STUDY = Study(
    name="features",
    **entry("features.study"),
    work="gflowout.studies.features:work",
    tuning=tuning,
    runs=runs,
    section=section,
    seconds=seconds,
    needs=lambda run: ["eicu-demo"] if run.data.startswith("eicu") else [],
    lacks=features_compare.lacks,
)
