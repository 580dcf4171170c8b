"""A search: its plan, checked and kept beside the records; its trials, done in batches.

Each batch asks for options, does the trials that have no record yet, and tells their scores. A plan
that would not be fair to some method is refused.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.runs import Engine, Run, records
from gflowout.runs.spec import plain
from gflowout.runs.study import RunOptions, as_engine, do_runs
from gflowout.runs.work import current_name
from gflowout.tuning import searches
from gflowout.tuning.results import TEST, Trial, Tuned, configuration
from gflowout.tuning.spaces import Choice, Space, split, yaml_dialect
from gflowout.tuning.spaces import space as parse

if TYPE_CHECKING:
    from gflowout.app.config import Config

WORK = "gflowout.app.run:work"
STUDY = "tune"
PLAN = "plan.yaml"
BUDGET = ("fit.epochs", "fit.patience", "fit.min_delta", "fit.valid_samples", "seed")
"""Options that must be the same for all methods; so must all that begin with ``data.``"""


@dataclass(frozen=True)
class Plan:
    """All that a search depends on, except for the engine and the machine; see :func:`tune`."""

    base: Mapping[str, Mapping[str, Any]]  # by method
    space: Space
    search: str = "random"
    trials: int = 20
    parallel: int = 2
    seed: int = 0
    score: str = "valid/nll"
    direction: str = "minimize"
    work: str = WORK
    subset: bool = False

    def __post_init__(self) -> None:
        for owner, domains in self.space.own.items():
            for option in domains:
                checks.choice(f"the method of '{owner}:{option}' in space", owner, self.base)
                _not_budget(f"{owner}:{option}", option)
        for method in self.base:
            for key, advice in (
                ("method.name", "list methods"),
                (TEST, "test the best afterwards"),
            ):
                if key in self.space.of(method):
                    raise ValueError(f"space must not have {key}; {advice} instead")
        if not isinstance(self.score, str) or of_test(self.score):
            raise ValueError(f"score must be one of validation data, got {self.score!r}")
        trials = searches.budget(self.search, self.space, self.base, self.trials, self.subset)
        object.__setattr__(self, "trials", trials)
        for name, low in (("parallel", 1), ("seed", 0)):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), low=low))
        checks.choice("direction", self.direction, searches.DIRECTIONS)
        checks.boolean("subset", self.subset)
        if self.work == WORK:
            _check_values(self)

    def run(self, method: str, options: Mapping[str, Any]) -> Run:
        """The run of a trial."""
        values = {**self.base[method], **options}
        data = Path(str(values.get("data.source", "data"))).stem
        return Run(STUDY, method, data, values.get("seed", self.seed), values)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values; without the number of trials, which may grow."""
        names = ("search", "seed", "parallel", "score", "direction", "work")
        return {
            **{name: getattr(self, name) for name in names},
            "subset": self.trials if self.subset else False,
            "space": self.space.lines(),
            "base": {method: dict(options) for method, options in self.base.items()},
        }


def make_plan(
    base: Config | Mapping[str, Any],
    space: Space | str | Mapping[str, Any] | Sequence[str],
    methods: Sequence[str],
    **options: Any,
) -> Plan:
    """The plan of a search; arguments as in :func:`tune`."""
    if isinstance(methods, str) or not isinstance(methods, Iterable) or not list(methods):
        raise ValueError(f"methods must be a list of at least one method, got {methods!r}")
    methods = list(methods)
    if len(set(methods)) < len(methods):
        raise ValueError(f"methods must differ, got {', '.join(methods)}")
    searched = parse(*space) if isinstance(space, list | tuple) else parse(space)  # type: ignore[arg-type]
    if not isinstance(base, Mapping):
        if not hasattr(base, "method"):
            raise TypeError(f"base must be a Config or a dict of options, got {base!r}")
        base = _options_of(base, methods)
    return Plan(_by_method(plain("base", base), methods), searched, **options)


def _by_method(base: Mapping[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of each method; ``METHOD:KEY`` overrides ``KEY``."""
    bases: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for key, value in base.items():
        owner, option = split(key)
        if owner is None:
            for options in bases.values():
                options.setdefault(option, value)
        else:
            checks.choice(f"the method of {key!r} in base", owner, methods)
            _not_budget(key, option)
            bases[owner][option] = value
    for method, options in bases.items():
        options |= {"method.name": method, TEST: False}
    return bases


def _options_of(config: Config, methods: Sequence[str]) -> dict[str, Any]:
    """The options of a configuration for several methods; its method's own stay with that one."""
    from gflowout.app.config import flat, with_changes

    options: dict[str, Any] = {}
    for method in methods:
        own = config.method.name == method
        changed = config if own else with_changes(config, {"method": {"name": method}})
        for key, value in flat(changed).items():
            options[f"{method}:{key}" if key.startswith("method.") else key] = value
    return options


def _check_values(plan: Plan) -> None:
    """Raise ``ConfigError`` for options and values that a method does not take."""
    from gflowout.app.config import ConfigError

    problems: dict[str, None] = {}
    for method, base in plan.base.items():
        domains = plan.space.of(method)
        middle = {name: domain.at(0.5) for name, domain in domains.items()}
        for name, domain in domains.items():
            values = domain.options if isinstance(domain, Choice) else (domain.low, domain.high)
            for value in values:
                try:
                    configuration({**base, **middle, name: value})
                except ConfigError as error:
                    problems |= dict.fromkeys(f"{method}: {line}" for line in error.problems)
    if problems:
        raise ConfigError(list(problems))


def agree(plan: Plan, folder: Path) -> None:
    """Raise ``ValueError`` if a folder has the plan of another search; it says what differs."""
    yamls, path = yaml_dialect(), folder / PLAN
    if path.exists():
        content = yamls.parse(path.read_text(encoding="utf-8"))
        before = content if isinstance(content, dict) else {}
        before["work"] = current_name(before.get("work", ""))
        now = yamls.parse(yamls.text(plan.to_dict()))
        if differs := ", ".join(key for key in now if before.get(key) != now[key]):
            raise ValueError(
                f"{folder}: has the trials of a search with another {differs} (see {path}); take "
                "another folder"
            )


def of_test(metric: str) -> bool:
    """Whether a metric says by its name that it was measured on test data."""
    return "test" in re.split("[^a-z0-9]+", metric.lower())


def _not_budget(key: str, option: str) -> None:
    if option in BUDGET or option.startswith("data."):
        raise ValueError(f"{option} must be the same for all methods, got {key!r} for one")


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
        methods,
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
    agree(plan, folder)
    if not (folder / PLAN).exists():
        write_text(folder / PLAN, yaml_dialect().text(plan.to_dict()))
    methods = list(plan.base)
    how = (plan.trials, plan.seed, plan.direction)
    search = {method: searches.make(plan.search, plan.space, method, *how) for method in methods}
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
        for left, group in _missing(runs.values(), folder, options.retries, again):
            do_runs(group, plan.work, folder, replace(options, retries=left))
        outcomes = _outcomes(folder)
        for method in methods:
            for place, values in enumerate(asked[method]):
                name = runs[method, place].id
                seconds, score, error = _outcome(plan.score, outcomes.get(name))
                trials[method].append(
                    Trial(method, first + place, values, score, seconds, error, name)
                )
            search[method].tell([trial.score for trial in trials[method][first:]])
    all_trials = tuple(trial for method in methods for trial in trials[method])
    return Tuned(all_trials, plan.base, plan.space, plan.score, plan.direction)


def _missing(
    runs: Iterable[Run], folder: Path, retries: int, again: bool
) -> list[tuple[int, list[Run]]]:
    """Runs that are neither done nor given up, by how often they may still be tried again."""
    finished, attempts = records.finished(folder), records.failures(folder)
    groups: dict[int, list[Run]] = {}
    for run in runs:
        left = retries if again else retries - attempts.get(run.id, 0)
        if run.id not in finished and left >= 0:
            groups.setdefault(left, []).append(run)
    return sorted(groups.items())


def _outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """The record of each run: of its success, or of its last failure."""

    def rank(record: dict[str, Any]) -> tuple[bool, int]:
        return record["status"] == records.DONE, record["attempt"]

    return {record["id"]: record for record in sorted(records.read(folder), key=rank)}


def _outcome(
    score: str, record: Mapping[str, Any] | None
) -> tuple[float, float | None, str | None]:
    """Seconds, score and error of a trial."""
    if record is None:
        return 0.0, None, "has no record"
    seconds = record["seconds"]
    if record["error"] is not None:
        return seconds, None, str(record["error"]["message"])
    metrics = record["metrics"]
    if tested := ", ".join(name for name in metrics if of_test(name)):
        raise ValueError(f"work must not touch test data in tuning, got the metrics {tested}")
    if score not in metrics:
        raise ValueError(
            f"score must be one of the metrics of a trial, {', '.join(metrics)}, got {score!r}"
            f"{checks.suggest(score, metrics)}"
        )
    value = metrics[score]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"score must be a number, got {value!r} for {score}")
    if not math.isfinite(value):
        return seconds, None, f"{score} is {value}"
    return seconds, float(value), None
