"""Ways to search: each proposes the options of a method's trials, some at a time.

A search is a pure function of its seed and of the scores it is told, in order. So a search that was
stopped is rebuilt by asking again from the start and telling it what the records say. Knows nothing
of runs or records.
"""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.runs.values import canonical
from gflowout.tuning.spaces import Choice, Domain, Integers, Space

SEARCHES = ("grid", "random", "optuna")
DIRECTIONS = ("minimize", "maximize")
_TRIES = 50  # proposals of something known before a search takes what is left at random


class Search(ABC):
    """Proposes options. Never the same twice."""

    @abstractmethod
    def ask(self, count: int) -> list[dict[str, Any]]:
        """The options of the next trials."""

    @abstractmethod
    def tell(self, scores: Sequence[float | None]) -> None:
        """What became of those asked for last; ``None`` for one that failed."""


class Grid(Search):
    """All combinations, or those of a list."""

    def __init__(self, combinations: Sequence[Mapping[str, Any]]) -> None:
        self._left = [dict(each) for each in combinations]

    def ask(self, count: int) -> list[dict[str, Any]]:
        """See the base class."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, scores: Sequence[float | None]) -> None:
        """A grid learns nothing."""


class Random(Search):
    """Values at random.

    A value depends on the seed, the option and the number of the trial only: methods that share an
    option are tried at the same values of it.
    """

    def __init__(self, domains: Mapping[str, Domain], seed: int) -> None:
        self._domains, self._seed, self._number = dict(domains), seed, 0
        self._known: set[str] = set()

    def ask(self, count: int) -> list[dict[str, Any]]:
        """See the base class."""
        asked = []
        for _ in range(count):
            tries = 0
            drawn = draw(self._domains, f"{self._seed}/{self._number}/{tries}")
            while canonical(drawn) in self._known:
                tries += 1
                drawn = draw(self._domains, f"{self._seed}/{self._number}/{tries}")
            self._known.add(canonical(drawn))
            self._number += 1
            asked.append(drawn)
        return asked

    def tell(self, scores: Sequence[float | None]) -> None:
        """Chance learns nothing."""


class Optuna(Search):
    """Optuna's tree-structured Parzen estimator: ten trials at random, then near the good ones."""

    def __init__(self, domains: Mapping[str, Domain], seed: int, direction: str) -> None:
        self._optuna = require("optuna", extra="studies", purpose="search='optuna'")
        self._domains, self._seed = dict(domains), seed
        self._known: set[str] = set()
        self._open: list[Any] = []
        self._distributions = {
            name: self._distribution(domain) for name, domain in self._domains.items()
        }
        with self._quiet():
            # The liar keeps the trials of one batch apart.
            sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            self._study = self._optuna.create_study(direction=direction, sampler=sampler)

    def ask(self, count: int) -> list[dict[str, Any]]:
        """See the base class."""
        with self._quiet():
            return [self._one() for _ in range(count)]

    def tell(self, scores: Sequence[float | None]) -> None:
        """See the base class."""
        failed = self._optuna.trial.TrialState.FAIL
        with self._quiet():
            for trial, score in zip(self._open, scores, strict=True):
                if score is None:
                    self._study.tell(trial, state=failed)
                else:
                    self._study.tell(trial, score)
        self._open = []

    def _one(self) -> dict[str, Any]:
        for _ in range(_TRIES):
            trial = self._study.ask(self._distributions)
            if self._new(options := self._options(trial.params)):
                self._open.append(trial)
                return options
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        tries = 0
        while True:
            shares = _shares(self._domains, f"{self._seed}/{len(self._known)}/{tries}")
            fixed = {name: self._fixed(self._domains[name], shares[name]) for name in shares}
            tries += 1
            if self._new(options := self._options(fixed)):
                self._study.enqueue_trial(fixed)
                self._open.append(self._study.ask(self._distributions))
                return options

    def _new(self, options: dict[str, Any]) -> bool:
        before = len(self._known)
        self._known.add(canonical(options))
        return len(self._known) > before

    def _distribution(self, domain: Domain) -> Any:
        kinds = self._optuna.distributions
        if isinstance(domain, Choice):  # by number: a value may be a list
            return kinds.CategoricalDistribution(range(len(domain.options)))
        if isinstance(domain, Integers):
            return kinds.IntDistribution(domain.low, domain.high, step=domain.step)
        return kinds.FloatDistribution(domain.low, domain.high, log=domain.log)

    def _options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, domain in self._domains.items():
            value = values[name]
            found[name] = domain.options[value] if isinstance(domain, Choice) else value
        return found

    @staticmethod
    def _fixed(domain: Domain, share: float) -> Any:
        return int(share * len(domain.options)) if isinstance(domain, Choice) else domain.at(share)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            logging.set_verbosity(before)


def draw(domains: Mapping[str, Domain], key: str) -> dict[str, Any]:
    """Values at random; each depends on the key and its own option only.

    Examples:
        >>> from gflowout.tuning.spaces import Numbers
        >>> both = {"a": Numbers(0, 1), "b": Choice((1, 2))}
        >>> draw(both, "0/7")["a"] == draw({"a": both["a"]}, "0/7")["a"]
        True
    """
    shares = _shares(domains, key)
    return {name: domain.at(shares[name]) for name, domain in domains.items()}


def budget(
    search: str, space: Space, methods: Sequence[str], trials: int, *, subset: bool = False
) -> int:
    """How many trials every method gets, or an error if they cannot all get the same.

    Args:
        search: Way to search.
        space: What is searched.
        methods: For these methods.
        trials: Trials per method: exactly so many, or at most in a grid.
        subset: A grid may leave out combinations, so that all methods have the same number.
    """
    checks.choice("search", search, SEARCHES)
    checks.integer("trials", trials, low=1)
    for method in methods:
        if not space.of(method):
            raise ValueError(f"space must have an option for every method, got none for {method}")
    if search != "grid":
        for method in methods:
            size = space.size(method)
            if size is not None and size < trials:
                raise ValueError(
                    f"trials must be at most {size}, the number of combinations that {method} "
                    f"has, got {trials}; fewer trials for all, or a larger space for it"
                )
        return trials
    sizes = {method: len(space.combinations(method)) for method in methods}
    if subset:
        return min(trials, *sizes.values())
    for method, size in sizes.items():
        if size > trials:
            raise ValueError(
                f"trials must be at least {size}, the combinations of the grid of {method}, got "
                f"{trials}; raise trials, take a smaller space, or a subset of the grid"
            )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{method} {size}" for method, size in sizes.items())
        raise ValueError(
            f"grids must have the same size for all methods, got {listed}; give every method as "
            "many combinations, take a subset of the grid, or search at random"
        )
    return min(trials, *sizes.values())


def make(
    search: str, space: Space, method: str, trials: int, *, seed: int, direction: str
) -> Search:
    """The search of one method."""
    if search == "random":
        return Random(space.of(method), seed)
    if search == "optuna":
        return Optuna(space.of(method), seed, direction)
    combinations = space.combinations(method)
    if len(combinations) > trials:
        chosen = random.Random(f"{seed}/grid").sample(range(len(combinations)), trials)
        combinations = [combinations[place] for place in sorted(chosen)]
    return Grid(combinations)


def _shares(domains: Mapping[str, Domain], key: str) -> dict[str, float]:
    return {name: random.Random(f"{key}/{name}").random() for name in domains}
