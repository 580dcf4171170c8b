"""Old spellings of keywords, which go on working with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def renamed(
    given: Mapping[str, Any], spellings: Mapping[str, str], owner: str, *, warn: bool = True
) -> dict[str, Any]:
    """Return keywords under their present names; an old spelling gives a ``FutureWarning``.

    Args:
        given: Keywords as they were given.
        spellings: Present name by old name.
        owner: What takes the keywords, as the warning calls it.
        warn: Whether to warn: files that were written earlier are not to blame.

    Examples:
        >>> renamed({"noise": "gaussian"}, {"noise": "family"}, "gfo.Contextual", warn=False)
        {'family': 'gaussian'}
        >>> renamed({"noise": 1, "family": 2}, {"noise": "family"}, "gfo.Contextual")
        Traceback (most recent call last):
            ...
        TypeError: gfo.Contextual got noise and family, which is its new name: give family only
    """
    values = dict(given)
    for old, new in spellings.items():
        if old not in values:
            continue
        if new in values:
            raise TypeError(f"{owner} got {old} and {new}, which is its new name: give {new} only")
        if warn:
            message = f"{old} of {owner} is now called {new}; the old name will go away"
            warnings.warn(message, FutureWarning, stacklevel=_outside())
        values[new] = values.pop(old)
    return values


def _outside() -> int:
    """Level of the first caller outside the package, for a warning of :func:`renamed`."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gflowout."):
        frame, level = frame.f_back, level + 1
    return level
