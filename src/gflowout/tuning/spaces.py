"""Search spaces: which values an option may take.

On the command line and in files a space is a list of lines ``[METHOD:]OPTION=VALUES``::

    fit.lr=log:1e-4:1e-2                 numbers, uniform in their logarithm
    fit.weight_decay=uniform:0:0.1       numbers
    fit.epochs=int:5:20:5                integers: 5, 10, 15, 20
    method.options.prior_keep=0.5,0.7    one of these
    gflowout:method.options.beta=1,0.1   an option that only one method is searched for
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.runs.spec import plain

TAKES = (
    "OPTION=VALUES with values 'a,b,c', 'log:LOW:HIGH', 'uniform:LOW:HIGH' "
    "(':POINTS' after it for a grid) or 'int:LOW:HIGH[:STEP]'"
)


@dataclass(frozen=True)
class Choice:
    """One of some values, which may be anything that JSON has.

    Examples:
        >>> Choice((0.5, 0.7, 0.9)).at(0.4)
        0.7
    """

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        given: Any = self.options
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"choices must be a list, got {given!r}")
        options = tuple(plain("choices", list(given)))
        if not options:
            raise ValueError("choices must have at least one value, got none")
        for place, option in enumerate(options):
            if any(option == other and type(option) is type(other) for other in options[:place]):
                raise ValueError(f"choices must differ, got {option!r} twice")
        object.__setattr__(self, "options", options)

    @property
    def size(self) -> int | None:
        """How many values there are."""
        return len(self.options)

    def values(self) -> list[Any]:
        """All values, for a grid."""
        return list(self.options)

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1) of the way."""
        return self.options[int(share * len(self.options))]

    def __str__(self) -> str:
        return ",".join("null" if value is None else str(value) for value in self.options)


@dataclass(frozen=True)
class Numbers:
    """All numbers between two, uniform or uniform in their logarithm.

    Args:
        low: Smallest.
        high: Largest.
        log: Uniform in the logarithm.
        points: How many of them a grid takes, ends included; other searches take any.

    Examples:
        >>> Numbers(1e-4, 1e-2, log=True, points=3).values()
        [0.0001, 0.001, 0.01]
        >>> Numbers(0, 1).at(0.25)
        0.25
    """

    low: float
    high: float
    log: bool = False
    points: int | None = None

    def __post_init__(self) -> None:
        low = checks.number("low", self.low, low=0 if self.log else -math.inf, open_low=self.log)
        high = checks.number("high", self.high, low=low, open_low=True)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        if self.points is not None:
            checks.integer("points", self.points, low=2)

    @property
    def size(self) -> int | None:
        """``None``: infinitely many."""
        return None

    def values(self) -> list[Any]:
        """The points of a grid."""
        if self.points is None:
            raise ValueError(
                f"a grid needs a number of points, got {self}; write '{self}:3' for 3 of them, "
                "list values, or search at random"
            )
        return [self.at(place / (self.points - 1)) for place in range(self.points)]

    def at(self, share: float) -> float:
        """The value at a share in [0, 1] of the way."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + share * (high - low))
        else:
            value = self.low + share * (self.high - self.low)
        # Twelve digits, so that a grid over decades has the decades and not their neighbours.
        return min(max(float(f"{value:.12g}"), self.low), self.high)

    def __str__(self) -> str:
        tail = "" if self.points is None else f":{self.points}"
        return f"{'log' if self.log else 'uniform'}:{self.low:g}:{self.high:g}{tail}"


@dataclass(frozen=True)
class Integers:
    """Integers from one to another, both included.

    Examples:
        >>> Integers(5, 20, step=5).values()
        [5, 10, 15, 20]
    """

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise TypeError(f"{name} must be an integer, got {getattr(self, name)!r}")
        if self.high <= self.low:
            raise ValueError(f"high must be larger than low, {self.low}, got {self.high}")
        checks.integer("step", self.step, low=1)
        # The largest value there is, or samplers that round up would leave the range.
        object.__setattr__(self, "high", self.high - (self.high - self.low) % self.step)

    @property
    def size(self) -> int | None:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def values(self) -> list[Any]:
        """All values, for a grid."""
        return list(range(self.low, self.high + 1, self.step))

    def at(self, share: float) -> int:
        """The value at a share in [0, 1) of the way."""
        return self.low + self.step * int(share * (self.size or 1))

    def __str__(self) -> str:
        return f"int:{self.low}:{self.high}" + (f":{self.step}" if self.step > 1 else "")


Domain = Choice | Numbers | Integers


@dataclass(frozen=True)
class Space:
    """The options that are searched, for all methods and for some.

    Args:
        shared: Values by option, for every method.
        own: By method, options that only this one is searched for, or in another range.

    Examples:
        >>> searched = space("fit.lr=0.001,0.01", "gflowout:method.options.beta=0,1")
        >>> searched.size("mc"), searched.size("gflowout")
        (2, 4)
        >>> searched.combinations("mc")
        [{'fit.lr': 0.001}, {'fit.lr': 0.01}]
    """

    shared: Mapping[str, Domain] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Domain]] = field(default_factory=dict)

    def of(self, method: str) -> dict[str, Domain]:
        """The options searched for a method; its own ranges override the shared ones."""
        return {**self.shared, **self.own.get(method, {})}

    def size(self, method: str) -> int | None:
        """How many combinations a method has; ``None`` if there are infinitely many."""
        sizes = [domain.size for domain in self.of(method).values()]
        finite = [size for size in sizes if size is not None]
        return math.prod(finite) if len(finite) == len(sizes) else None

    def combinations(self, method: str) -> list[dict[str, Any]]:
        """The grid of a method; the last option changes fastest."""
        domains = self.of(method)
        lists = []
        for name, domain in domains.items():
            try:
                lists.append(domain.values())
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return [dict(zip(domains, values, strict=True)) for values in product(*lists)]

    def lines(self) -> list[str]:
        """The space as lines that :func:`space` takes."""
        lines = [f"{name}={domain}" for name, domain in self.shared.items()]
        for method, domains in self.own.items():
            lines += [f"{method}:{name}={domain}" for name, domain in domains.items()]
        return lines


def space(*parts: str | Mapping[str, Any] | Space) -> Space:
    """A search space from lines, mappings or both; later parts override earlier ones.

    Args:
        parts: Lines ``"[METHOD:]OPTION=VALUES"``, or mappings from ``[METHOD:]OPTION`` to values:
            a list, a string such as ``"log:1e-4:1e-2"``, a domain, or a mapping of options
            further down.

    Examples:
        >>> searched = space("fit.lr=log:1e-4:1e-2", {"mc:method.options.rate": [0.1, 0.5]})
        >>> searched.size("mc") is None, searched.of("gflowout")
        (True, {'fit.lr': Numbers(low=0.0001, high=0.01, log=True, points=None)})
        >>> space("fit.lr=log:1e-4")
        Traceback (most recent call last):
            ...
        ValueError: fit.lr=log:1e-4: log takes LOW:HIGH or LOW:HIGH:POINTS, got '1e-4'
    """
    shared: dict[str, Domain] = {}
    own: dict[str, dict[str, Domain]] = {}
    for part in parts:
        if isinstance(part, Space):
            shared.update(part.shared)
            for method, domains in part.own.items():
                own.setdefault(method, {}).update(domains)
            continue
        for key, values in _pairs(part):
            owner, option = split(key)
            place = shared if owner is None else own.setdefault(owner, {})
            try:
                place[option] = _domain(values)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{key}={values}: {error}") from None
    return Space(shared, own)


def read_space(path: str | Path) -> Space:
    """A search space from a YAML file, a mapping as :func:`space` takes it.

    Raises:
        ValueError: If the file has no space; the message starts with its path.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "space.yaml"
        ...     _ = path.write_text("fit.lr: [0.001, 0.01]")
        ...     read_space(path).combinations("mc")
        [{'fit.lr': 0.001}, {'fit.lr': 0.01}]
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    content = yaml_dialect().read_yaml(Path(path))
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: a space is a mapping from options to values, got {content!r}")
    try:
        return space(content)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def split(key: str) -> tuple[str | None, str]:
    """Method, or ``None``, and option of ``[METHOD:]OPTION``."""
    method, colon, option = key.strip().rpartition(":")
    if not option.strip() or (colon and not method.strip()) or ":" in method:
        raise ValueError(f"an option is written [METHOD:]OPTION, got {key!r}")
    return (method.strip() if colon else None), option.strip()


def yaml_dialect() -> ModuleType:
    """The module that reads and writes YAML as configurations have it; it needs an extra."""
    require("yaml", extra="studies", purpose="tuning")
    from gflowout.app import yamls

    return yamls


def _pairs(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, str):
        key, equals, values = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"a space takes {TAKES}, got {part!r}")
        return [(key.strip(), values.strip())]
    if not isinstance(part, Mapping):
        raise TypeError(f"a space takes lines or mappings, got {part!r}")
    pairs: list[tuple[str, Any]] = []
    for key, values in part.items():
        if not isinstance(key, str):
            raise TypeError(f"a space has options for keys, got {key!r}")
        if isinstance(values, Mapping):
            pairs += [(f"{key}.{option}", below) for option, below in _pairs(values)]
        else:
            pairs.append((key, values))
    return pairs


def _domain(values: Any) -> Domain:
    if isinstance(values, Choice | Numbers | Integers):
        return values
    if isinstance(values, list | tuple):
        return Choice(tuple(values))
    if not isinstance(values, str):
        return Choice((values,))
    kind, _, rest = values.partition(":")
    if kind in ("log", "uniform"):
        low, high, *points = _numbers(kind, rest, "LOW:HIGH or LOW:HIGH:POINTS", float)
        if points and not points[0].is_integer():
            raise ValueError(f"points must be an integer >= 2, got {points[0]:g}")
        return Numbers(low, high, kind == "log", int(points[0]) if points else None)
    if kind == "int":
        return Integers(*_numbers(kind, rest, "LOW:HIGH or LOW:HIGH:STEP", int))
    if ":" in values and kind.isalpha():
        near = checks.suggest(kind, ("log", "uniform", "int"))
        raise ValueError(f"values must start with log:, uniform: or int:, got {kind + ':'!r}{near}")
    yamls = yaml_dialect()
    try:
        listed = yamls.parse(f"[{values}]")
    except yamls.yaml.YAMLError:
        raise ValueError(f"values must be words or numbers, got {values!r}") from None
    if not listed:
        raise ValueError("there must be at least one value, got none")
    return Choice(tuple(listed))


def _numbers(kind: str, text: str, takes: str, number: Any) -> list[Any]:
    numbers: list[Any] = []
    with contextlib.suppress(ValueError):
        numbers = [number(part) for part in text.split(":")]
    if len(numbers) not in (2, 3):
        raise ValueError(f"{kind} takes {takes}, got {text!r}")
    return numbers
