"""Colours of methods: the same everywhere, told apart by people who see fewer colours.

A name has a slot; a slot has a colour for light and one for dark pages, and a shape of marker, so
that colour is never the only difference. Knows nothing of plots.
"""

from __future__ import annotations

from collections.abc import Iterable

from gflowout.studies.framework.arms import ARMS

LIGHT = (
    *("#8a8087", "#c89700", "#4899e4", "#008148", "#f14ebf", "#de3210", "#383fcc", "#5d4343"),
    *("#220c35", "#7a3fae", "#7d1d45", "#8f8a1c", "#16848f", "#b59bd6", "#b7b18a", "#3f5a2a"),
)
"""By slot. The first nine began as those of Okabe and Ito, and were moved apart until all eyes can
tell every pair (a test says how far); more than these on one page come too near each other."""

DARK = (
    *("#a59ea9", "#ffa110", "#74dafd", "#129d68", "#ffb8b9", "#ff5917", "#51a6ff", "#925f31"),
    *("#fef9e7", "#b98ae8", "#d0608f", "#c9c24a", "#3fb6c2", "#d6c6ef", "#e0dcc0", "#8fb073"),
)

_ORDER = (
    "none", "mc", "concrete", "contextual", "id-gflowout", "gflowout", "combined", "control",
    "ensemble",
)  # fmt: skip
_OWN = {name: slot for slot, label in enumerate(_ORDER) for name in (label, ARMS[label].title)}


def slots(names: Iterable[str], beside: Iterable[str] = ()) -> dict[str, int]:
    """The slot of every name: arms have their own, others take the rest in order.

    Args:
        names: Labels or titles of arms, or anything else that is drawn.
        beside: What else is on the page; colours of arms are theirs if one is there.

    Examples:
        >>> slots(["mc", "MC dropout", "mine", "GFlowOut", "yours"])
        {'mc': 1, 'MC dropout': 1, 'mine': 9, 'GFlowOut': 5, 'yours': 10}
    """
    found: dict[str, int] = {}
    names = list(dict.fromkeys(names))
    free = [slot for slot in range(len(LIGHT)) if slot >= len(_ORDER)]
    if _OWN.keys().isdisjoint([*names, *beside]):  # the best colours for those who are alone
        free = [5, 6, 1, 3, 4, 2, 7, 0, 8, *free]
    for name in names:
        if name in _OWN:
            found[name] = _OWN[name]
        else:
            taken = sum(each not in _OWN for each in found)
            found[name] = free[taken % len(free)]
    return found
