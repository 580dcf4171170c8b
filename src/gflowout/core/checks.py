"""Validation of arguments: every error names the argument, what it got and what it takes."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

_REAL: Any = Real  # NumPy's numbers, too
_INTEGRAL: Any = Integral


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float inside an interval, or raise an error that names it.

    The ends of the interval are allowed unless ``open_low`` or ``open_high`` is set.

    Examples:
        >>> number("epsilon", 0.1, low=0, high=1)
        0.1
        >>> number("epsilon", 1.5, low=0, high=1)
        Traceback (most recent call last):
            ...
        ValueError: epsilon must be a number in [0, 1], got 1.5
    """
    left = "(" if open_low or math.isinf(low) else "["
    right = ")" if open_high or math.isinf(high) else "]"
    allowed = f"a number in {left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    value = value if isinstance(value, int) else float(value)
    excluded = (open_low and value == low) or (open_high and value == high)
    if excluded or not low <= value <= high or not math.isfinite(value):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return float(value)


def probability(name: str, value: Any) -> float:
    """Return ``value`` as a float between 0 and 1, both excluded, or raise an error that names it.

    Examples:
        >>> probability("keep", 1)
        Traceback (most recent call last):
            ...
        ValueError: keep must be a number in (0, 1), got 1
    """
    return number(name, value, low=0, high=1, open_low=True, open_high=True)


def integer(name: str, value: Any, *, low: int) -> int:
    """Return ``value`` as an int of at least ``low``, or raise an error that names it.

    Examples:
        >>> integer("samples", 0, low=1)
        Traceback (most recent call last):
            ...
        ValueError: samples must be an integer >= 1, got 0
    """
    allowed = f"an integer >= {low}"
    if isinstance(value, bool) or not isinstance(value, _INTEGRAL):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name} must be {allowed}, got {int(value)!r}")
    return int(value)


def boolean(name: str, value: Any) -> bool:
    """Return ``value`` if it is ``True`` or ``False``, or raise an error that names it.

    Examples:
        >>> boolean("per_unit", 1)
        Traceback (most recent call last):
            ...
        TypeError: per_unit must be True or False, got 1
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def path(name: str, value: Any) -> Path:
    """Return ``value`` as a path, or raise an error that names it.

    Examples:
        >>> path("path", None)
        Traceback (most recent call last):
            ...
        TypeError: path must be a string or a path, got None
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a string or a path, got {value!r}")
    return Path(value)


def target(name: str, value: Any) -> Path:
    """Return ``value`` as the path of a file that can be written, or raise an error that names it.

    Examples:
        >>> target("path", "no/such/folder/model.safetensors")
        Traceback (most recent call last):
            ...
        FileNotFoundError: path: there is no folder 'no/such/folder' to write into
    """
    file = path(name, value)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{name}: there is no folder {str(file.parent)!r} to write into")
    if file.is_dir():
        raise IsADirectoryError(f"{name} must be a file, got the folder {str(file)!r}")
    return file


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, or raise an error that lists them.

    Examples:
        >>> choice("log_z", "learnt", ["learned", "batch"])
        Traceback (most recent call last):
            ...
        ValueError: log_z must be one of 'learned', 'batch', got 'learnt'; did you mean 'learned'?
    """
    allowed = list(allowed)
    if value not in allowed:
        listed = ", ".join(repr(option) for option in allowed)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}{suggest(value, allowed)}")
    return str(value)


def suggest(value: Any, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed name, or an empty string."""
    near = difflib.get_close_matches(str(value), list(allowed), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
