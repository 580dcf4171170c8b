"""Plain JSON values: what options, metrics and records are made of.

JSON has no NaN and no infinity. :func:`pack` puts ``null`` in their place and lists them by
where they stood; :func:`unpack` puts them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

_REAL: Any = Real
_INTEGRAL: Any = Integral


def plain(name: str, value: Any) -> Any:
    """A copy of a value made of dict, list, str, int, float, bool and None only.

    Tuples become lists; numbers of NumPy and tensors of one number become Python's.

    Raises:
        TypeError: If JSON has no such value; the message starts with ``name`` and the path in it.

    Examples:
        >>> plain("options", {"sizes": (300, 100), "rate": 0.5})
        {'sizes': [300, 100], 'rate': 0.5}
        >>> plain("options", {"rate": {1, 2}})
        Traceback (most recent call last):
            ...
        TypeError: options.rate must be a number, a string, True, False, None, a list or a dict of
        these, got {1, 2} of type set
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
    """The one JSON text of a value: keys sorted, no spaces, ASCII, no NaN.

    Examples:
        >>> canonical({"b": 1, "a": [0.5, None]})
        '{"a":[0.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pack(value: Any) -> tuple[Any, list[dict[str, str]]]:
    """Replace NaN and infinities by ``None``.

    Returns:
        The value without them, and for each where it was (a JSON pointer) and what: ``"nan"``,
        ``"inf"`` or ``"-inf"``.

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
            return {key: walk(below, f"{place}/{_escape(key)}") for key, below in part.items()}
        if isinstance(part, list):
            return [walk(below, f"{place}/{index}") for index, below in enumerate(part)]
        return part

    return walk(value, ""), nonfinite


def unpack(value: Any, nonfinite: Iterable[Mapping[str, str]]) -> Any:
    """Put back, in place, what :func:`pack` took out.

    Examples:
        >>> unpack(*pack({"nll": [1.0, float("-inf")]}))
        {'nll': [1.0, -inf]}
    """
    for entry in nonfinite:
        # In this order: "~01" stands for "~1".
        keys = [key.replace("~1", "/").replace("~0", "~") for key in entry["at"].split("/")[1:]]
        *above, last = keys
        part = value
        for key in above:
            part = part[int(key)] if isinstance(part, list) else part[key]
        part[int(last) if isinstance(part, list) else last] = float(entry["was"])
    return value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
