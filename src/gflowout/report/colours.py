"""Colours of methods: the same everywhere, told apart by people who see fewer colours.

A name has a slot; a slot has a colour for light and one for dark pages, and a shape of marker, so
that colour is never the only difference. Knows nothing of plots.
"""

from __future__ import annotations

from collections.abc import Iterable

from gflowout.experiments.arms import ARMS

LIGHT = (
    *("#767d85", "#dd9500", "#55aee6", "#0b8a63", "#d36ba6", "#d1470a", "#1f4fae", "#8f8a1c"),
    *("#16191d", "#7a3fae", "#7d1d45", "#5d3a12", "#16848f", "#b59bd6", "#b7b18a", "#3f5a2a"),
)
"""By slot. Okabe and Ito's colours, made darker where they vanish on white, and more."""

DARK = (
    *("#9aa3ac", "#ffb52e", "#7cc8f7", "#22b586", "#f09ac9", "#ff6d33", "#6f93f5", "#c9c24a"),
    *("#f4f6f8", "#b98ae8", "#d0608f", "#b98a55", "#3fb6c2", "#d6c6ef", "#e0dcc0", "#8fb073"),
)

_ORDER = (
    "none", "mc", "concrete", "contextual", "id-gflowout", "gflowout", "combined", "control",
    "ensemble",
)  # fmt: skip
_OWN = {name: slot for slot, label in enumerate(_ORDER) for name in (label, ARMS[label].title)}


def slots(names: Iterable[str]) -> dict[str, int]:
    """The slot of every name: arms have their own, others take the rest in order.

    Args:
        names: Labels or titles of arms, or anything else that is drawn.

    Examples:
        >>> slots(["mc", "MC dropout", "mine", "GFlowOut", "yours"])
        {'mc': 1, 'MC dropout': 1, 'mine': 9, 'GFlowOut': 5, 'yours': 10}
    """
    found: dict[str, int] = {}
    names = list(dict.fromkeys(names))
    free = [slot for slot in range(len(LIGHT)) if slot >= len(_ORDER)]
    if not any(name in _OWN for name in names):  # the best colours for those who are alone
        free = [5, 6, 1, 3, 4, 2, 7, 0, 8, *free]
    for name in names:
        if name in _OWN:
            found[name] = _OWN[name]
        else:
            taken = sum(each not in _OWN for each in found)
            found[name] = free[taken % len(free)]
    return found
