"""The search itself: ask for options, do the trials that have no record yet, tell the scores."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.runs import Engine, Run, records
from gflowout.runs.study import RunOptions, as_engine, do_runs
from gflowout.tuning import searches
from gflowout.tuning.plan import WORK, Plan, make_plan, of_test, remember
from gflowout.tuning.results import Trial, Tuned
from gflowout.tuning.spaces import Space

if TYPE_CHECKING:
    from gflowout.app.config import Config


def tune(
    base: Config | Mapping[str, Any],
    space: Space | str | Mapping[str, Any] | Sequence[str],
    *,
    methods: Sequence[str],
    folder: str | Path,
    search: str = "random",
    trials: int = 20,
    engine: str | Engine = "pool",
    parallel: int = 2,
    seed: int = 0,
    score: str = "valid/nll",
    direction: str = "minimize",
    work: str = WORK,
    subset: bool = False,
    retries: int = 0,
    again: bool = False,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    progress: bool = True,
) -> Tuned:
    """Search for the best options of each method, on validation data only.

    Every method gets the same number of trials, all different, and the same training budget. A
    trial that fails counts, too, and stops nothing. A search that was stopped goes on when it is
    started again, and its result is that of a search that was never stopped.

    Args:
        base: A configuration; or options of all trials, by dotted key, where ``"METHOD:KEY"`` is
            for that method only. ``method.name`` is filled in, and ``test``, which is always false.
        space: What to search, as :func:`gflowout.tuning.space` takes it.
        methods: Methods to tune.
        folder: Folder of the trials' records.
        search: ``"grid"`` for all combinations, ``"random"``, or ``"optuna"`` (TPE).
        trials: Trials of each method. A grid may have fewer.
        engine: ``"inline"``, ``"pool"``, ``"ray"`` or an engine; see :mod:`gflowout.runs`.
        parallel: With Optuna, how many trials of a method are proposed before the score of any of
            them is known. The result depends on it, not on how many really run at once.
        seed: Of the search; of the trials, too, if ``base`` has none.
        score: Name of a metric that trials return, measured on validation data.
        direction: ``"minimize"`` or ``"maximize"`` it.
        work: The function that does a trial, ``"package.module:function"``. Its run's options are
            those of the trial; with ``"test": False`` it must not use test data.
        subset: Cut grids that are too large at random instead of raising an error.
        retries: How often a trial that fails is tried again.
        again: Try trials again that failed in an earlier start. What Optuna proposes after them
            may change.
        time_limit: Seconds after which a trial is stopped and counts as failed.
        memory_limit: Stop a trial that uses more than this many GiB.
        progress: Show progress on standard error.

    Returns:
        All trials and the best of each method.

    Raises:
        ValueError: If methods could not have the same budget, the score is not one of a trial's
            metrics or not one of validation data, or the folder has another search.

    Examples:
        >>> tuned = tune(  # doctest: +SKIP
        ...     {"data.source": "mnist"}, "fit.lr=log:3e-4:1e-2", methods=["mc"], folder="tuned"
        ... )
        >>> print(tuned.best["mc"].options)  # doctest: +SKIP
    """
    plan = make_plan(
        base,
        space,
        methods=methods,
        search=search,
        trials=trials,
        parallel=parallel,
        seed=seed,
        score=score,
        direction=direction,
        work=work,
        subset=subset,
    )
    options = RunOptions(as_engine(engine), retries, time_limit, memory_limit, progress)
    return do_search(plan, Path(folder), options, again)


def do_search(plan: Plan, folder: Path, options: RunOptions, again: bool = False) -> Tuned:
    """As :func:`tune`, with a plan that is made already."""
    remember(plan, folder)
    methods = list(plan.base)
    search = {
        method: searches.make(
            plan.search,
            plan.space,
            method,
            plan.trials,
            seed=plan.seed,
            direction=plan.direction,
        )
        for method in methods
    }
    # Only a search that learns gains from doing its trials a few at a time.
    size = plan.parallel if plan.search == "optuna" else plan.trials
    trials: dict[str, list[Trial]] = {method: [] for method in methods}
    for first in range(0, plan.trials, size):
        count = min(size, plan.trials - first)
        if options.progress and size < plan.trials:
            last = first + count - 1
            print(f"trials {first} to {last} of {plan.trials} per method", file=sys.stderr)
        asked = {method: search[method].ask(count) for method in methods}
        # Methods take turns, so that a search that is cut short has tried all of them.
        turns = [(method, place) for place in range(count) for method in methods]
        runs = {turn: plan.run(turn[0], asked[turn[0]][turn[1]]) for turn in turns}
        for left, group in _missing(list(runs.values()), folder, options.retries, again):
            do_runs(group, plan.work, folder, replace(options, retries=left))
        outcomes = _outcomes(folder, {run.id for run in runs.values()})
        for method in methods:
            for place, values in enumerate(asked[method]):
                run = runs[method, place]
                trial = _trial(plan, method, first + place, values, run, outcomes.get(run.id))
                trials[method].append(trial)
            search[method].tell([trial.score for trial in trials[method][first:]])
    return Tuned(
        tuple(trial for method in methods for trial in trials[method]),
        plan.base,
        plan.space,
        plan.score,
        plan.direction,
    )


def _missing(
    runs: list[Run], folder: Path, retries: int, again: bool
) -> Iterator[tuple[int, list[Run]]]:
    """Runs that are neither done nor given up, by how often they may still be tried again."""
    finished, attempts = records.finished(folder), records.failures(folder)
    groups: dict[int, list[Run]] = {}
    for run in runs:
        if run.id not in finished:
            left = retries if again else retries - attempts.get(run.id, 0)
            groups.setdefault(left, []).append(run)
    yield from ((left, group) for left, group in sorted(groups.items()) if left >= 0)


def _outcomes(folder: Path, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """The record of each run: of its success, or of its last failure."""

    def rank(record: Mapping[str, Any]) -> tuple[bool, int]:
        return record["status"] == records.DONE, record["attempt"]

    ranked = sorted(records.read(folder), key=rank)
    return {record["id"]: record for record in ranked if record["id"] in wanted}


def _trial(
    plan: Plan,
    method: str,
    number: int,
    options: Mapping[str, Any],
    run: Run,
    record: Mapping[str, Any] | None,
) -> Trial:
    score, error = None, None
    if record is None:
        error = "has no record"
    elif record["error"] is not None:
        error = str(record["error"]["message"])
    else:
        score = _metric(plan.score, record["metrics"])
        if not math.isfinite(score):
            score, error = None, f"{plan.score} is {score}"
    seconds = 0.0 if record is None else record["seconds"]
    return Trial(method, number, options, score, seconds, error, run.id)


def _metric(score: str, metrics: Mapping[str, Any]) -> float:
    if tested := ", ".join(name for name in metrics if of_test(name)):
        raise ValueError(f"work must not touch test data in tuning, got the metrics {tested}")
    if score not in metrics:
        allowed = f"one of the metrics of a trial, {', '.join(metrics)}"
        near = checks.suggest(score, metrics)
        raise ValueError(f"score must be {allowed}, got {score!r}{near}")
    value = metrics[score]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"score must be a number, got {value!r} for {score}")
    return float(value)
