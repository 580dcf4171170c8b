"""The arms of a comparison: methods with fixed options, and what each may tune."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gflowout.core import checks


@dataclass(frozen=True)
class Arm:
    """One competitor.

    Attributes:
        label: In records (``Run.method``) and reports.
        method: Name of the method.
        title: In tables and legends.
        options: Of the method, fixed; dotted keys of a configuration.
        own: What is its own to tune: a dotted key and values, the library's default first.
        members: Networks that are trained on their own and pooled; 1 for a single one.
    """

    label: str
    method: str
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[str, tuple[Any, ...]] = ("fit.weight_decay", (0.0, 1e-5, 1e-4))
    members: int = 1


_RATES = ("method.options.rate", (0.5, 0.3, 0.1))
_KEEPS = ("method.options.prior_keep", (0.5, 0.7, 0.9))

ARMS = {
    arm.label: arm
    for arm in (
        Arm("none", "none", "No dropout"),
        Arm("mc", "mc", "MC dropout", own=_RATES),
        Arm("concrete", "concrete", "Concrete dropout", own=_RATES),
        Arm("contextual", "contextual", "Contextual dropout", own=_KEEPS),
        Arm("id-gflowout", "id-gflowout", "ID-GFlowOut", own=_KEEPS),
        Arm("gflowout", "gflowout", "GFlowOut", own=_KEEPS),
        Arm("combined", "combined", "GFlowOut + ID", own=_KEEPS),
        Arm("control", "gflowout", "GFlowOut (β = 0)", {"method.options.beta": 0.0}, own=_KEEPS),
        Arm("ensemble", "none", "Deep ensemble", members=5),
    )
}
"""All arms by label. ``control`` is GFlowOut without the likelihood in its reward: what it reaches
is not due to learning which masks explain the data."""


def pick(labels: Sequence[str]) -> list[Arm]:
    """Arms by label.

    Examples:
        >>> [arm.title for arm in pick(["mc", "ensemble"])]
        ['MC dropout', 'Deep ensemble']
    """
    return [ARMS[checks.choice("arm", label, ARMS)] for label in labels]


def trials(arm: Arm, rates: Sequence[float], own: int = 3) -> list[dict[str, Any]]:
    """What an arm tries: learning rates x the first values of its own option.

    Examples:
        >>> [each["method.options.rate"] for each in trials(ARMS["mc"], [1e-3], own=2)]
        [0.5, 0.3]
    """
    key, values = arm.own
    if not 1 <= own <= len(values):
        raise ValueError(f"own must be from 1 to {len(values)}, got {own}")
    return [{"fit.lr": rate, key: value} for rate, value in itertools.product(rates, values[:own])]
