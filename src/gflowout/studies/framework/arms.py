"""Arms: the methods that studies compare, each with its fixed options and what it may tune."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gflowout.methods import METHODS

Options = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One competitor of a comparison: a method with fixed options, and what it may tune."""

    label: str  # in records (Run.method) and reports
    method: str
    title: str  # in tables and legends
    options: Mapping[str, Any] = field(default_factory=dict)  # fixed; keys of a configuration
    # What is its own to tune: a dotted key and values.
    own: tuple[str, tuple[Any, ...]] = ("fit.weight_decay", (0.0, 1e-5, 1e-4))
    # What preset "paper" searches instead: one option with nine values, or two or three with three
    # values each. Without any, only the learning rate.
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    members: int = 1  # networks that are trained on their own and pooled
    # Label of the arm from which it differs in few options, if so; "smoke" leaves it out.
    variant_of: str = ""
    # Label of the arm whose keep rate it takes over, as trained with the same seed. What else it
    # needs was tuned for the arm that it is a variant of.
    rate_of: str = ""


GRID = "grid"
"""Instead of a number of own values, in :func:`trials`: the arm's ``grid``."""
_POINTS = 9
"""Own values, or combinations of them, that the grid of every arm has."""

RATE, _KEEP = "method.options.rate", "method.options.prior_keep"
_RATES, _KEEPS = (RATE, (0.5, 0.3, 0.1)), (_KEEP, (0.5, 0.7, 0.9))
_HALF = {_KEEP: 0.5}  # the paper's; a tuned value overrides it
_WIDTHS = {"method.options.hidden": ((32, 32), (64, 64), (128, 128))}
# The paper's search: architecture and temperature of the generators, and the prior.
_SEARCHED = {**_WIDTHS, "method.options.temperature": (2.0, 1.0, 4.0), _KEEP: _KEEPS[1]}
_OF_CONTEXTUAL = {_KEEP: _KEEPS[1], "method.options.reduction": (10, 5, 20)}
_OF_CONCRETE = {RATE: (0.1, 0.3, 0.5), "method.options.length_scale": (1e-2, 1e-3, 1e-1)}
_MORE_RATES = {RATE: (0.5, 0.3, 0.1, 0.05, 0.2, 0.4, 0.6, 0.7, 0.8)}


def _published(method: str) -> Options:
    """Options of a method's ``preset="paper"``, as keys of a configuration."""
    preset = METHODS[method].Options.PRESETS["paper"]
    return {f"method.options.{key}": value for key, value in preset.items()}


ARMS = {
    arm.label: arm
    for arm in (
        Arm("none", "none", "No dropout"),
        Arm("mc", "mc", "MC dropout", {RATE: 0.5}, _RATES, _MORE_RATES),
        Arm("concrete", "concrete", "Concrete dropout", {RATE: 0.1}, _RATES, _OF_CONCRETE),
        Arm("contextual", "contextual", "Contextual dropout", _HALF, _KEEPS, _OF_CONTEXTUAL),
        Arm(
            "contextual-paper", "contextual", "Contextual dropout (paper)",
            _published("contextual"), _KEEPS, _OF_CONTEXTUAL, variant_of="contextual",
        ),
        Arm("id-gflowout", "id-gflowout", "ID-GFlowOut", _HALF, _KEEPS, _SEARCHED),
        Arm(
            "id-gflowout-paper", "id-gflowout", "ID-GFlowOut (paper)",
            _published("id-gflowout"), _KEEPS, _SEARCHED, variant_of="id-gflowout",
        ),
        Arm("gflowout", "gflowout", "GFlowOut", _published("gflowout"), _KEEPS, _SEARCHED),
        Arm("combined", "combined", "GFlowOut + ID", {_KEEP: 0.7}, _KEEPS, _SEARCHED),
        Arm(
            "control", "gflowout", "GFlowOut (β = 0)",
            {**_published("gflowout"), "method.options.beta": 0.0}, _KEEPS, _SEARCHED,
        ),
        Arm(
            "combined-control", "combined", "GFlowOut + ID (β = 0)",
            {_KEEP: 0.7, "method.options.beta": 0.0}, _KEEPS, _SEARCHED, variant_of="combined",
        ),
        *(
            Arm(f"mc-at-{label}", "mc", f"MC dropout at the keep rate of {title}",
                variant_of="mc", rate_of=label)
            for label, title in (
                ("id-gflowout", "ID-GFlowOut"),
                ("gflowout", "GFlowOut"),
                ("combined", "GFlowOut + ID"),
            )
        ),
        Arm("ensemble", "none", "Deep ensemble", members=5),
    )
}  # fmt: skip
"""All arms by label, in the order of tables. ``gflowout`` and those with ``-paper`` are the methods
as the paper and Fan et al. have them: what the paper says is judged on these. ``contextual`` and
``id-gflowout`` have our defaults, with which they learn. ``control`` is GFlowOut without the
likelihood in its reward: what it reaches is not due to learning which masks explain the data. Nor
is what random dropout reaches that keeps as many units, ``mc-at-...``."""

CONTROLS = {
    "id-gflowout": ("mc-at-id-gflowout",),
    "gflowout": ("mc-at-gflowout", "control"),
    "combined": ("mc-at-combined", "combined-control"),
}
"""By arm those that tell whether its masks make it better, or only how many units it keeps."""


def of_preset(preset: str, arms: Iterable[Arm] | None = None) -> list[Arm]:
    """Arms that a preset compares: all, but for ``smoke`` without those that are variants.

    Examples:
        >>> [arm.label for arm in of_preset("cpu") if arm not in of_preset("smoke")]
        ['contextual-paper', 'id-gflowout-paper', 'combined-control', 'mc-at-id-gflowout', ...]
    """
    arms = ARMS.values() if arms is None else arms
    return [arm for arm in arms if preset != "smoke" or not arm.variant_of]


def trials(arm: Arm, rates: Sequence[float], own: int | str = 3) -> list[Options]:
    """What an arm tries: learning rates x the first values of its own option, or its whole grid.

    An arm that takes over the keep rate of another one tries nothing.

    Examples:
        >>> [options["method.options.rate"] for options in trials(ARMS["mc"], [1e-3], own=2)]
        [0.5, 0.3]
        >>> {len(trials(arm, [1e-3, 1e-2], own="grid")) for arm in of_preset("smoke")}
        {18}
    """
    if arm.rate_of:
        return []
    if own == GRID:
        if not arm.grid:
            return [{"fit.lr": rate} for rate in spaced(rates, len(rates) * _POINTS)]
        points = combinations(arm.grid)
        return [{"fit.lr": rate, **point} for rate in rates for point in points]
    key, values = arm.own
    if not isinstance(own, int) or not 1 <= own <= len(values):
        raise ValueError(f"own must be from 1 to {len(values)}, or {GRID!r}, got {own!r}")
    return [{"fit.lr": rate, key: value} for rate, value in itertools.product(rates, values[:own])]


def choices(arm: Arm, choice: Callable[[str], Options]) -> dict[str, Options]:
    """Options ``tuned`` of a run, and ``partner`` for the arm whose keep rate it takes over.

    ``choice`` is what was chosen for the arm of a label.

    Examples:
        >>> choices(ARMS["mc-at-combined"], {"mc": {"fit.lr": 0.1}, "combined": {}}.__getitem__)
        {'tuned': {'fit.lr': 0.1}, 'partner': {}}
    """
    if not arm.rate_of:
        return {"tuned": choice(arm.label)}
    return {"tuned": choice(arm.variant_of), "partner": choice(arm.rate_of)}


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Options]:
    """Points of a grid: all values of one option, or all pairs of two.

    Of three options with three values each it takes nine points in which every pair of values of
    two options occurs once (a Latin square), so that all arms have as many.

    Examples:
        >>> points = combinations({"a": "012", "b": "012", "c": "012"})
        >>> len(points), len({(point["b"], point["c"]) for point in points})
        (9, 9)
        >>> len(combinations({"a": "01", "b": "012"}))
        6
    """
    names, values = list(grid), list(grid.values())
    if len(names) < 3:
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*values)]
    first, second, third = values
    return [
        dict(zip(names, (a, b, third[(i + j) % len(third)]), strict=True))
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]


def spaced(ends: Sequence[float], count: int) -> list[float]:
    """Numbers from the smallest to the largest in equal ratios, with three digits each.

    Examples:
        >>> spaced([1e-3, 1e-1], 3)
        [0.001, 0.01, 0.1]
    """
    low, high = min(ends), max(ends)
    steps = [(high / low) ** (place / max(1, count - 1)) for place in range(count)]
    return [float(f"{low * step:.3g}") for step in steps]
