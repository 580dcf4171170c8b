"""Ways to search: each proposes the options of a method's trials, some at a time.

A search is a pure function of its seed and of the scores it is told, in order. So a search that was
stopped is rebuilt by asking again from the start and telling it the scores of the records.
"""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
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

    def __init__(self, domains: Mapping[str, Domain], seed: int) -> None:
        self._domains, self._seed = dict(domains), seed
        self._proposed: set[str] = set()

    def ask(self, number: int) -> list[dict[str, Any]]:
        """The options of the next trials."""
        return [self._propose() for _ in range(number)]

    @abstractmethod
    def _propose(self) -> dict[str, Any]: ...

    def tell(self, scores: Sequence[float | None]) -> None:  # noqa: B027 (optional)
        """The scores of the trials asked for last; ``None`` for one that failed."""

    def _is_new(self, options: dict[str, Any]) -> bool:
        """Whether these options have not been proposed yet; from now on they have."""
        before = len(self._proposed)
        self._proposed.add(canonical(options))
        return len(self._proposed) > before

    def _shares(self) -> Iterator[dict[str, float]]:
        """Random numbers in [0, 1) for the options of the next trial, without end.

        Each depends on the seed, the option and the number of the trial only: methods that share an
        option are tried at the same values of it.
        """
        trial = f"{self._seed}/{len(self._proposed)}"
        for attempt in count():
            key = f"{trial}/{attempt}"
            yield {name: random.Random(f"{key}/{name}").random() for name in self._domains}


class Grid(Search):
    """The combinations of a list, one after the other."""

    def __init__(self, combinations: Sequence[dict[str, Any]]) -> None:
        super().__init__({}, 0)
        self._left = iter(combinations)

    def _propose(self) -> dict[str, Any]:
        return next(self._left)


class Random(Search):
    """Values at random."""

    def _propose(self) -> dict[str, Any]:
        for shares in self._shares():
            options = {name: domain.at(shares[name]) for name, domain in self._domains.items()}
            if self._is_new(options):
                break
        return options


class Optuna(Search):
    """Optuna's tree-structured Parzen estimator: ten trials at random, then near the good ones."""

    def __init__(self, domains: Mapping[str, Domain], seed: int, direction: str) -> None:
        super().__init__(domains, seed)
        self._optuna = require("optuna", extra="studies", purpose="search='optuna'")
        self._open: list[Any] = []
        self._distributions = {name: self._distribution(domains[name]) for name in domains}
        with self._quiet():
            # The liar keeps the trials of one batch apart.
            sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            self._study = self._optuna.create_study(direction=direction, sampler=sampler)

    def ask(self, number: int) -> list[dict[str, Any]]:
        """See the base class."""
        with self._quiet():
            return super().ask(number)

    def tell(self, scores: Sequence[float | None]) -> None:
        """See the base class."""
        failed = self._optuna.trial.TrialState.FAIL
        with self._quiet():
            for trial, score in zip(self._open, scores, strict=True):
                self._study.tell(trial, score, state=failed if score is None else None)
        self._open = []

    def _propose(self) -> dict[str, Any]:
        for _ in range(_TRIES):
            trial = self._study.ask(self._distributions)
            if self._is_new(options := self._options(trial.params)):
                self._open.append(trial)
                return options
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        for shares in self._shares():
            values = {
                name: int(shares[name] * len(domain.options))
                if isinstance(domain, Choice)
                else domain.at(shares[name])
                for name, domain in self._domains.items()
            }
            if self._is_new(options := self._options(values)):
                self._study.enqueue_trial(values)
                self._open.append(self._study.ask(self._distributions))
                break
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


def budget(search: str, space: Space, methods: Collection[str], trials: int, subset: bool) -> int:
    """How many trials every method gets, or an error if they cannot all get the same.

    A grid may have fewer than ``trials``; as a ``subset`` it may leave out combinations.
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
    for method, size in sizes.items():
        if size > trials and not subset:
            raise ValueError(
                f"trials must be at least {size}, the combinations of the grid of {method}, got "
                f"{trials}; raise trials, take a smaller space, or a subset of the grid"
            )
    if len(set(sizes.values())) > 1 and not subset:
        listed = ", ".join(f"{method} {size}" for method, size in sizes.items())
        raise ValueError(
            f"grids must have the same size for all methods, got {listed}; give every method as "
            "many combinations, take a subset of the grid, or search at random"
        )
    return min(trials, *sizes.values())


def make(search: str, space: Space, method: str, trials: int, seed: int, direction: str) -> Search:
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
