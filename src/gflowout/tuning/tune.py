"""The search itself: ask, do the trials that have no record yet, tell, and so on.

Knows nothing of what options mean, but for the names of the few that make up the budget.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.runs import Engine, Run, records, run_study
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
    trial that fails counts, too, and stops nothing. Stop the search as you like and start it
    again: only trials without a record are done, and the result is that of a search that was never
    stopped.

    Args:
        base: A configuration; or options of all trials, by dotted key, where ``"METHOD:KEY"`` is
            for that method only. ``method.name`` is filled in, and ``test``, which is always false.
        space: What to search, as :func:`gflowout.tuning.space` takes it.
        methods: For which methods.
        folder: Where the records of the trials are and will be.
        search: ``"grid"`` for all combinations, ``"random"``, or ``"optuna"`` (TPE).
        trials: Trials of each method. A grid may have fewer.
        engine: ``"inline"``, ``"pool"``, ``"ray"`` or an engine; see :mod:`gflowout.runs`.
        parallel: With Optuna, trials of a method that are proposed before any of them is known.
            The result depends on it, not on how many of them really run at once.
        seed: Of the search; of the trials, too, if ``base`` has none.
        score: Name of a metric that trials return, measured on validation data.
        direction: ``"minimize"`` or ``"maximize"`` it.
        work: The function that does a trial, ``"package.module:function"``. Its run's options are
            those of the trial; with ``"test": False`` it must leave test data alone.
        subset: Let a grid that is larger than ``trials``, or than the smallest grid of all
            methods, be cut down at random, instead of an error.
        retries: How often a trial that fails is tried again.
        again: Try those again that failed in an earlier start. What Optuna proposes after them
            may change.
        time_limit: Seconds after which a trial is stopped and counts as failed.
        memory_limit: GiB beyond which it is.
        progress: Show how it goes, on standard error.

    Returns:
        All trials and the best of each method.

    Raises:
        ValueError: If methods could not have the same budget, the score is not one of a trial's
            metrics or not one of validation data, or the folder has another search.

    Examples:
        >>> tuned = tune(  # doctest: +SKIP
        ...     {"data.source": "mnist", "fit.epochs": 5},
        ...     ["fit.lr=0.0003..0.01", "method.options.prior_keep=0.5..0.9"],
        ...     methods=["gflowout"],
        ...     folder="runs/search",
        ... )
        >>> print(tuned.best["gflowout"].options)  # doctest: +SKIP
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
    checks.integer("retries", retries, low=0)
    folder = Path(folder)
    remember(plan, folder)

    def do(runs: list[Run]) -> None:
        for left, group in _missing(runs, folder, retries, again):
            run_study(
                group,
                plan.work,
                folder,
                engine=engine,
                retries=left,
                time_limit=time_limit,
                memory_limit=memory_limit,
                progress=progress,
            )

    return _search(plan, folder, do, progress)


def _search(plan: Plan, folder: Path, do: Any, progress: bool) -> Tuned:
    methods = list(plan.base)
    sought = {
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
        if progress and size < plan.trials:
            last = first + count - 1
            print(f"trials {first} to {last} of {plan.trials} per method", file=sys.stderr)
        asked = {method: sought[method].ask(count) for method in methods}
        # Methods take turns, so that a search that is cut short has tried all of them.
        turns = [(method, place) for place in range(count) for method in methods]
        runs = {turn: plan.run(turn[0], asked[turn[0]][turn[1]]) for turn in turns}
        do(list(runs.values()))
        outcomes = _outcomes(folder, {run.id for run in runs.values()})
        for method in methods:
            for place, options in enumerate(asked[method]):
                run = runs[method, place]
                trial = _trial(plan, method, first + place, options, run, outcomes.get(run.id))
                trials[method].append(trial)
            sought[method].tell([trial.score for trial in trials[method][first:]])
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
    found: dict[str, dict[str, Any]] = {}
    for record in records.read(folder):
        if record["id"] in wanted:
            other = found.get(record["id"])
            rank = (record["status"] == records.DONE, record["attempt"])
            if other is None or rank > (other["status"] == records.DONE, other["attempt"]):
                found[record["id"]] = record
    return found


def _trial(
    plan: Plan,
    method: str,
    number: int,
    options: Mapping[str, Any],
    run: Run,
    record: Mapping[str, Any] | None,
) -> Trial:
    if record is None:
        return Trial(method, number, options, None, 0.0, "has no record", run.id)
    error = record["error"]
    if error is not None:
        why = str(error["message"])
        return Trial(method, number, options, None, record["seconds"], why, run.id)
    value = _metric(plan.score, record["metrics"])
    if not math.isfinite(value):
        why = f"{plan.score} is {value}"
        return Trial(method, number, options, None, record["seconds"], why, run.id)
    return Trial(method, number, options, value, record["seconds"], None, run.id)


def _metric(score: str, metrics: Mapping[str, Any]) -> float:
    tested = [name for name in metrics if of_test(name)]
    if tested:
        raise ValueError(
            f"work must not touch test data in tuning, got the metrics {', '.join(tested)}"
        )
    if score not in metrics:
        near = checks.suggest(score, metrics)
        listed = ", ".join(metrics)
        raise ValueError(
            f"score must be one of the metrics of a trial, {listed}, got {score!r}{near}"
        )
    value = metrics[score]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"score must be a number, got {value!r} for {score}")
    return float(value)
