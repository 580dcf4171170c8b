"""Arms of the study regimes: methods, what they tune, and their controls."""

from __future__ import annotations

from typing import Any

from gflowout.core.options import dropping
from gflowout.studies.framework.arms import ARMS as SHARED
from gflowout.studies.framework.arms import RATE, Arm
from gflowout.studies.regimes_data import TABLES

PRIOR_KEEP, DECAY = "method.options.prior_keep", "fit.weight_decay"
SCALED = "none-scaled"
"""The plain network with logits divided by a temperature, fitted to validation data."""
_BETA = {"method.options.beta": 0.0}
_CREDIT = Arm("gflowout-credit", "gflowout", "GFlowOut (credit per unit)")
_LEARNED = (SHARED["id-gflowout"], SHARED["gflowout"], _CREDIT)

ARMS: dict[str, Arm] = {
    arm.label: arm
    for arm in (
        *(SHARED[label] for label in ("none", "mc", "concrete", "contextual")),
        *_LEARNED,
        Arm(SCALED, "none", "No dropout, temperature scaled", variant_of="none"),
        Arm("ensemble", "none", "Deep ensemble", members=5, variant_of="none"),
        Arm("control", "gflowout", SHARED["control"].title, SHARED["control"].options,
            variant_of="gflowout"),
        Arm("control-credit", "gflowout", "GFlowOut (credit per unit, β = 0)", _BETA,
            variant_of="gflowout-credit"),
        *(Arm(f"mc-at-{arm.label}", "mc", f"MC dropout at the keep rate of {arm.title}",
              variant_of="mc", rate_of=arm.label) for arm in _LEARNED),
    )
}  # fmt: skip
"""All arms by label. A control has what was chosen for its arm, with no likelihood in the reward;
members of the ensemble are plain networks on the same data, the first that of ``none``."""
TITLES = {label: arm.title for label, arm in ARMS.items()}
CONTROLS = {
    "id-gflowout": ("mc-at-id-gflowout",),
    "gflowout": ("mc-at-gflowout", "control"),
    "gflowout-credit": ("mc-at-gflowout-credit", "control-credit"),
}
"""By learned arm those that tell whether its masks make it better, or only how many units it keeps.
"""
RIVALS = ("mc", "concrete", "contextual", SCALED, "ensemble")

KEEPS: list[float] = TABLES["keep"]
_NEAR_ONE = 0.99
"""Stands for 1 where a method needs a keep rate below 1."""
_RATES = tuple(dropping(keep) for keep in KEEPS)
_PRIORS = tuple(min(keep, _NEAR_ONE) for keep in KEEPS)
OWN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "none": (DECAY, tuple(TABLES["weight_decay"])),
    "mc": (RATE, _RATES),
    "concrete": (RATE, tuple(min(max(rate, 0.01), 0.99) for rate in _RATES)),
    **dict.fromkeys(("contextual", *CONTROLS), (PRIOR_KEEP, _PRIORS)),
}
"""What each arm tunes: as many values for all."""


def like(arm: Arm) -> str:
    """Label of the arm whose choice an arm has."""
    return arm.variant_of or arm.label
