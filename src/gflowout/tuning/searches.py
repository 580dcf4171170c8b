"""Ways to search: each proposes the options of a method's trials, some at a time.

A search is a pure function of its seed and of the scores it is told, in order. So a search that was
stopped is rebuilt by asking again from the start and telling it the scores of the records.
"""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count as count_from
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.runs.spec import canonical
from gflowout.tuning.spaces import Choice, Domain, Integers, Space

SEARCHES = ("grid", "random", "optuna")
DIRECTIONS = ("minimize", "maximize")
_TRIES = 50  # repeated proposals after which a search takes what is left at random


class Search(ABC):
    """Proposes options, never the same twice. Only some searches learn from scores."""

    def __init__(self) -> None:
        self._proposed: set[str] = set()

    @abstractmethod
    def ask(self, count: int) -> list[dict[str, Any]]:
        """The options of the next trials."""

    def tell(self, scores: Sequence[float | None]) -> None:  # noqa: B027 (optional)
        """The scores of the trials asked for last; ``None`` for one that failed."""

    def _is_new(self, options: dict[str, Any]) -> bool:
        """Whether these options have not been proposed yet; from now on they have."""
        before = len(self._proposed)
        self._proposed.add(canonical(options))
        return len(self._proposed) > before


class Grid(Search):
    """The combinations of a list, one after the other."""

    def __init__(self, combinations: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self._left = list(combinations)

    def ask(self, count: int) -> list[dict[str, Any]]:
        """See the base class."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked


class Random(Search):
    """Values at random.

    A value depends on the seed, the option and the number of the trial only: methods that share an
    option are tried at the same values of it.
    """

    def __init__(self, domains: Mapping[str, Domain], seed: int) -> None:
        super().__init__()
        self._domains, self._seed = dict(domains), seed

    def ask(self, count: int) -> list[dict[str, Any]]:
        """See the base class."""
        return [self._draw() for _ in range(count)]

    def _draw(self) -> dict[str, Any]:
        number = len(self._proposed)
        draws = (draw(self._domains, f"{self._seed}/{number}/{tries}") for tries in count_from(0))
        return next(options for options in draws if self._is_new(options))


class Optuna(Search):
    """Optuna's tree-structured Parzen estimator: ten trials at random, then near the good ones."""

    def __init__(self, domains: Mapping[str, Domain], seed: int, direction: str) -> None:
        super().__init__()
        self._optuna = require("optuna", extra="studies", purpose="search='optuna'")
        self._domains, self._seed = dict(domains), seed
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
            return [self._propose() for _ in range(count)]

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

    def _propose(self) -> dict[str, Any]:
        for _ in range(_TRIES):
            trial = self._study.ask(self._distributions)
            if self._is_new(options := self._options(trial.params)):
                self._open.append(trial)
                return options
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        tries = 0
        while True:
            shares = _shares(self._domains, f"{self._seed}/{len(self._proposed)}/{tries}")
            values = {name: self._value(self._domains[name], shares[name]) for name in shares}
            tries += 1
            if self._is_new(options := self._options(values)):
                self._study.enqueue_trial(values)
                self._open.append(self._study.ask(self._distributions))
                return options

    def _distribution(self, domain: Domain) -> Any:
        kinds = self._optuna.distributions
        if isinstance(domain, Choice):  # by number: a value may be a list
            return kinds.CategoricalDistribution(range(len(domain.options)))
        if isinstance(domain, Integers):
            return kinds.IntDistribution(domain.low, domain.high, step=domain.step)
        return kinds.FloatDistribution(domain.low, domain.high, log=domain.log)

    def _options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: domain.options[values[name]] if isinstance(domain, Choice) else values[name]
            for name, domain in self._domains.items()
        }

    @staticmethod
    def _value(domain: Domain, share: float) -> Any:
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
        space: Search space.
        methods: For these methods.
        trials: Trials per method: exactly this many, or at most in a grid.
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
