"""What a run is (a study, a method, data, a seed and options), and the JSON values it is made of.

JSON has no NaN and no infinity. :func:`pack` replaces them by ``null`` and lists where they were;
:func:`unpack` restores them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from gflowout.core import checks

_REAL: Any = Real
_INTEGRAL: Any = Integral
_FIELDS = ("study", "method", "data", "seed", "options")
_LONGEST = 40  # of one part of an id: file names must stay below 255 bytes


@dataclass(frozen=True, eq=False)
class Run:
    """One piece of work in a study.

    Runs are equal when all that is below is equal; then they have the same :attr:`id`.

    Args:
        study: Name of the study.
        method: Name of the method.
        data: Name of the data set.
        seed: Seed of everything random.
        options: Whatever else distinguishes this run from others, as JSON values. Copied and
            frozen: lists become tuples.

    Examples:
        >>> run = Run("robustness", "gflowout", "mnist", 0, {"epochs": 3})
        >>> run.id
        'robustness-mnist-gflowout-s0-094d60ce9a'
        >>> run.options["epochs"]
        3
        >>> Run.from_dict(run.to_dict()) == run
        True
    """

    study: str
    method: str
    data: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    _text: str = field(init=False, repr=False)  # canonical JSON of all of the above

    def __post_init__(self) -> None:
        for name in ("study", "method", "data"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {value!r}")
            if not re.search("[a-zA-Z0-9]", value):
                raise ValueError(f"{name} must have a letter or a digit, got {value!r}")
        object.__setattr__(self, "seed", checks.integer("seed", self.seed, low=0))
        if not isinstance(self.options, Mapping):
            raise TypeError(f"options must be a dict, got {self.options!r}")
        options = plain("options", self.options)
        for number in pack(options)[1]:
            raise ValueError(f"options must be finite, got {number['was']} at {number['at']}")
        object.__setattr__(self, "options", _frozen(options))
        object.__setattr__(self, "_text", canonical(self.to_dict()))

    @property
    def id(self) -> str:
        """A readable name that no other run has; good as a file name anywhere."""
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:10]
        names = (
            re.sub("[^a-z0-9]+", "-", name.lower())[:_LONGEST].strip("-")
            for name in (self.study, self.data, self.method)
        )
        return "-".join([*names, f"s{self.seed}", digest])

    def to_dict(self) -> dict[str, Any]:
        """The run as plain JSON values."""
        return {name: _thawed(getattr(self, name)) for name in _FIELDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """The run of :meth:`to_dict`, or of a record; other keys are left alone."""
        return cls(**{name: values[name] for name in _FIELDS})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run.from_dict, (self.to_dict(),)


def grid(
    study: str,
    *,
    methods: Iterable[str],
    data: Iterable[str],
    seeds: Iterable[int],
    options: Mapping[str, Iterable[Any]] | None = None,
) -> list[Run]:
    """All combinations; seeds change slowest, so that early runs already cover every method.

    Args:
        study: Name of the study.
        methods: Names of methods.
        data: Names of data sets.
        seeds: Seeds.
        options: For each option the list of its values.

    Examples:
        >>> runs = grid("s", methods=["mc", "none"], data=["mnist"], seeds=range(2),
        ...             options={"rate": [0.1, 0.5]})
        >>> len(runs), runs[0].to_dict()["options"], [run.method for run in runs[:3]]
        (8, {'rate': 0.1}, ['mc', 'mc', 'none'])
        >>> grid("s", methods="mc", data=["mnist"], seeds=[0])
        Traceback (most recent call last):
            ...
        TypeError: methods must be a list, got 'mc'
    """
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict of lists, got {options!r}")
    axes: dict[str, Iterable[Any]] = {"seeds": seeds, "data": data, "methods": methods}
    axes |= {f"options.{key}": values for key, values in options.items()}
    for name, values in axes.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise TypeError(f"{name} must be a list, got {values!r}")
        axes[name] = list(values)
        if not axes[name]:
            raise ValueError(f"{name} must not be empty")
    return [
        Run(study, method, source, seed, dict(zip(options, values, strict=True)))
        for seed, source, method, *values in itertools.product(*axes.values())
    ]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(part) for key, part in value.items()})
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thawed(part) for key, part in value.items()}
    return [_thawed(part) for part in value] if isinstance(value, tuple) else value


def plain(name: str, value: Any) -> Any:
    """A copy of a value made of dict, list, str, int, float, bool and None only.

    Tuples become lists; NumPy scalars and tensors of one number become Python numbers. For anything
    else a ``TypeError`` says where it is, starting with ``name``.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict | Mapping):  # dict first: the other test is slow
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{name} must have strings for keys, got {key!r}")
        return {str(key): plain(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, _INTEGRAL):
        return int(value)
    if isinstance(value, _REAL):
        return float(value)
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return plain(name, value.item())
    raise TypeError(
        f"{name} must be a number, a string, True, False, None, a list or a dict of these, "
        f"got {value!r} of type {type(value).__name__}"
    )


def canonical(value: Any) -> str:
    """The canonical JSON text of a value: keys sorted, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pack(value: Any) -> tuple[Any, list[dict[str, str]]]:
    """Replace NaN and infinities by ``None``; list where they were (JSON pointers) and what.

    Examples:
        >>> pack({"loss": [0.5, float("nan")]})
        ({'loss': [0.5, None]}, [{'at': '/loss/1', 'was': 'nan'}])
    """
    nonfinite: list[dict[str, str]] = []

    def walk(part: Any, place: str) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            nonfinite.append({"at": place, "was": str(part)})
            return None
        if isinstance(part, dict):
            return {
                key: walk(below, f"{place}/{key.replace('~', '~0').replace('/', '~1')}")
                for key, below in part.items()
            }
        if isinstance(part, list):
            return [walk(below, f"{place}/{index}") for index, below in enumerate(part)]
        return part

    return walk(value, ""), nonfinite


def unpack(value: Any, nonfinite: Iterable[Mapping[str, str]]) -> Any:
    """Restore, in place, the numbers that :func:`pack` took out."""
    for entry in nonfinite:
        # In this order: "~01" stands for "~1".
        *above, last = (
            key.replace("~1", "/").replace("~0", "~") for key in entry["at"].split("/")[1:]
        )
        part = value
        for key in above:
            part = part[int(key)] if isinstance(part, list) else part[key]
        part[int(last) if isinstance(part, list) else last] = float(entry["was"])
    return value
