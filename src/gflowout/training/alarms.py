"""Signs that training goes wrong, and what to do about them. Pure functions of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

GROWTH = 10.0
"""How many times its least value the trajectory-balance loss may have."""
IN_A_ROW = 3
"""Epochs in which it must have grown."""
COLLAPSE = 0.01
"""Keep rates this near to 0 or 1 leave nothing to draw."""

ADVICE = (
    "Lower lr and generator_lr, set clip (gradient norm, 1.0 is a start), lower beta, or look for "
    "odd values in the data"
)


class TrainingWarning(UserWarning):
    """Training goes on, but not well.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", TrainingWarning)  # stop instead of going on badly
    """


class DivergedError(RuntimeError):
    """The loss is not a finite number any more; training cannot go on.

    Examples:
        >>> try:
        ...     raise DivergedError("loss is not finite in epoch 3")
        ... except DivergedError as error:
        ...     print("lower the learning rate:", error)
        lower the learning rate: loss is not finite in epoch 3
    """


def alarms(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """What is wrong after the last epoch of a history.

    Args:
        history: Numbers of each epoch, as in ``FitResult.history``.

    Returns:
        Warnings by a short name of what they are about.

    Examples:
        >>> list(alarms([{"train/tb": tb} for tb in (1.0, 2.0, 8.0, 16.0)]))
        ['tb']
        >>> alarms([{"train/tb": tb} for tb in (8.0, 4.0, 2.0, 2.1)])
        {}
    """
    found: dict[str, str] = {}
    balance = [numbers["train/tb"] for numbers in history if "train/tb" in numbers]
    recent = balance[-IN_A_ROW - 1 :]
    growing = len(recent) > IN_A_ROW and all(after > before for before, after in pairwise(recent))
    if growing and balance[-1] > GROWTH * min(balance):
        found["tb"] = (
            f"the trajectory-balance loss grew for {IN_A_ROW} epochs, to {balance[-1]:.3g} from "
            f"{min(balance):.3g}: the generators do not follow the backbone. Lower lr or raise "
            "generator_lr and log_z_lr, lower beta, or set clip"
        )
    last = history[-1] if history else {}
    if "log_q" in last:
        for name, rate in last.items():
            if not name.startswith("keep/"):
                continue
            if rate > 1 - COLLAPSE:
                found[name] = _collapsed(name, rate, "on", "Lower prior_keep")
            elif rate < COLLAPSE:
                found[name] = _collapsed(name, rate, "off", "Raise prior_keep")
    return found


def _collapsed(name: str, rate: float, state: str, advice: str) -> str:
    site = name.removeprefix("keep/")
    return (
        f"nearly all masks of site {site!r} are all-{state} (keep rate {rate:.4f}): there is "
        f"nothing left to draw. {advice} or beta, lower generator_lr, or raise epsilon and "
        "temperature"
    )
