"""The plan of a search: all that its result depends on, checked, and kept beside the records.

What would not be fair to some method is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import require
from gflowout.runs import Run
from gflowout.runs.spec import plain
from gflowout.runs.work import current_name
from gflowout.tuning import searches
from gflowout.tuning.spaces import Choice, Space, split
from gflowout.tuning.spaces import space as parse

if TYPE_CHECKING:
    from gflowout.app.config import Config

WORK = "gflowout.app.run:work"
STUDY = "tune"
PLAN = "plan.yaml"
TEST = "test"
"""The option that tells the work function whether it may use test data. Here it never may."""
BUDGET = ("fit.epochs", "fit.patience", "fit.min_delta", "fit.valid_samples", "seed")
"""Options that must be the same for all methods; so must all that begin with ``data.``"""


@dataclass(frozen=True)
class Plan:
    """All that a search depends on, except for the engine and the machine."""

    base: Mapping[str, Mapping[str, Any]]
    space: Space
    search: str
    trials: int
    parallel: int
    seed: int
    score: str
    direction: str
    work: str
    subset: bool

    def run(self, method: str, options: Mapping[str, Any]) -> Run:
        """The run of a trial."""
        values = {**self.base[method], **options}
        data = Path(str(values.get("data.source", "data"))).stem
        return Run(STUDY, method, data, values.get("seed", self.seed), values)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values; without the number of trials, which may grow."""
        return {
            "search": self.search,
            "seed": self.seed,
            "parallel": self.parallel,
            "score": self.score,
            "direction": self.direction,
            "work": self.work,
            "subset": self.trials if self.subset else False,
            "space": self.space.lines(),
            "base": {method: dict(options) for method, options in self.base.items()},
        }


def make_plan(
    base: Config | Mapping[str, Any],
    space: Space | str | Mapping[str, Any] | Sequence[str],
    *,
    methods: Sequence[str],
    search: str = "random",
    trials: int = 20,
    parallel: int = 2,
    seed: int = 0,
    score: str = "valid/nll",
    direction: str = "minimize",
    work: str = WORK,
    subset: bool = False,
) -> Plan:
    """Check all that a search depends on; arguments as in :func:`tune`."""
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
    bases = _by_method(plain("base", base), methods)
    for owner, domains in searched.own.items():
        for option in domains:
            checks.choice(f"the method of '{owner}:{option}' in space", owner, methods)
            _not_budget(f"{owner}:{option}", option)
    for method in methods:
        for key, instead in (("method.name", "list methods"), (TEST, "test the best afterwards")):
            if key in searched.of(method):
                raise ValueError(f"space must not have {key}; {instead} instead")
    if not isinstance(score, str) or of_test(score):
        raise ValueError(f"score must be one of validation data, got {score!r}")
    plan = Plan(
        base=bases,
        space=searched,
        search=search,
        trials=searches.budget(search, searched, methods, trials, subset=subset),
        parallel=checks.integer("parallel", parallel, low=1),
        seed=checks.integer("seed", seed, low=0),
        score=score,
        direction=checks.choice("direction", direction, searches.DIRECTIONS),
        work=work,
        subset=checks.boolean("subset", subset),
    )
    if work == WORK:
        _check_values(plan)
    return plan


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


def configuration(options: Mapping[str, Any]) -> Config:
    """The configuration of a trial's options."""
    from gflowout.app.config import from_flat

    return from_flat({key: value for key, value in options.items() if key != TEST})


def agree(plan: Plan, folder: Path) -> None:
    """Raise ``ValueError`` if a folder has the plan of another search; it says what differs."""
    yamls, path = _yamls(), folder / PLAN
    if path.exists():
        before = yamls.parse(path.read_text(encoding="utf-8"))
        now = yamls.parse(yamls.text(plan.to_dict()))
        if isinstance(before, dict) and "work" in before:
            before["work"] = current_name(before["work"])
        differs = [
            key for key in now if not isinstance(before, dict) or before.get(key) != now[key]
        ]
        if differs:
            raise ValueError(
                f"{folder}: has the trials of a search with another {', '.join(differs)} (see "
                f"{path}); take another folder"
            )


def remember(plan: Plan, folder: Path) -> None:
    """Write the plan of a search to its folder, or refuse a folder that has another."""
    agree(plan, folder)
    if not (folder / PLAN).exists():
        write_text(folder / PLAN, _yamls().text(plan.to_dict()))


def of_test(metric: str) -> bool:
    """Whether a metric says by its name that it was measured on test data.

    Examples:
        >>> of_test("test/nll"), of_test("valid/nll"), of_test("latest_loss")
        (True, False, False)
    """
    return "test" in re.split("[^a-z0-9]+", metric.lower())


def _yamls() -> ModuleType:
    require("yaml", extra="studies", purpose="tuning")
    from gflowout.app import yamls

    return yamls


def _not_budget(key: str, option: str) -> None:
    if option in BUDGET or option.startswith("data."):
        raise ValueError(f"{option} must be the same for all methods, got {key!r} for one")
