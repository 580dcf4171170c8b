"""What the library has set itself to reach, and whether a run of the benchmark reached it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gflowout.bench.memory import GROWTH

SHARED = "id-gflowout draws=1"
"""How training steps of ``id-gflowout`` are measured: one mask for each group of examples."""


@dataclass(frozen=True)
class Target:
    """A bound on one figure.

    Attributes:
        table: Name of the table.
        case: Of the table; or how its name starts, up to a comma.
        figure: A reference of the table, for the ratio of median times; or a further figure.
        at_most: The bound.
    """

    table: str
    case: str
    figure: str
    at_most: float


def _line(table: str, figure: str, bounds: Mapping[str, float]) -> list[Target]:
    return [Target(table, case, figure, at_most) for case, at_most in bounds.items()]


TARGETS: list[Target] = [
    *_line("mlp-step", "mc", {"gflowout": 1.8, SHARED: 1.4, "concrete": 1.3, "contextual": 2.5}),
    *_line(
        "resnet-step", "mc", {"gflowout": 1.08, SHARED: 1.04, "concrete": 1.10, "contextual": 2.1}
    ),
    *_line(
        "mlp-predict",
        "bare",
        {"gflowout": 1.2, "id-gflowout": 0.3, "concrete": 1.0, "contextual": 1.2},
    ),
    *_line(
        "resnet-predict",
        "bare",
        {"gflowout": 1.05, "id-gflowout": 0.95, "concrete": 1.05, "contextual": 1.05},
    ),
    *_line(
        "resnet-predict-last",
        "bare",
        {"gflowout": 0.40, "id-gflowout": 0.35, "concrete": 0.40, "contextual": 0.40},
    ),
    *(
        Target("memory", f"{method}, 500 draws", GROWTH, 1.2)
        for method in ("mc", "concrete", "contextual", "id-gflowout", "gflowout")
    ),
    *(
        Target(f"depth-{network}{depth}", case, "mc", 1.1)
        for network in ("", "transformer-")
        for depth in (4, 8, 16, 32, 64)
        for case in ("all", "summary")
    ),
]
"""All bounds, in the order in which they are shown."""


def reached(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare measured tables with their targets.

    Args:
        results: Measured tables, by name. Targets of others are left out.

    Returns:
        One row per target: what was measured, the bound, and whether it was met. A ratio of times
        is that of the medians; its quartiles are those of the ratios within a round.
    """
    rows = []
    for target in TARGETS:
        cases = results.get(target.table, {}).get("cases", {})
        for name, case in cases.items():
            if target.case not in (name, name.partition(", ")[0]):
                continue
            ratio = case["ratio_to"].get(target.figure)
            value = case["figures"][target.figure] if ratio is None else ratio["of_medians"]
            rows.append(
                {
                    "table": target.table,
                    "case": name,
                    "figure": target.figure,
                    "at_most": target.at_most,
                    "measured": value,
                    **({} if ratio is None else _quartiles(ratio)),
                    "met": value <= target.at_most,
                }
            )
            break
    return rows


def _quartiles(ratio: Mapping[str, float]) -> dict[str, float]:
    return {name: ratio[name] for name in ("quartile_1", "quartile_3")}
