"""The arms of the features study and what each may tune: one table. Knows not how to fit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gflowout.methods import METHODS

Tuned = Mapping[str, float]

CHAINS = 10
"""Networks of a posterior over features in a run: two for each of five folds."""
MASKS = 8
"""Masks that ID-GFlowOut scores in each step of a chain."""
EQUAL = CHAINS * MASKS
"""MC networks with no less computing than the chains of ID-GFlowOut: one for each mask."""

_RATES = ({"lr": 2e-3}, {"lr": 5e-4}, {"lr": 5e-3})


@dataclass(frozen=True)
class Arm:
    """One competitor.

    Attributes:
        label: In records (``Run.method``).
        title: In tables.
        method: Name of the masks' method; of other models ``"l1"``, ``"forest"``, ``"boosting"``.
        trials: What it may try, the best guess first; six for each arm.
        inputs: Whether it masks inputs, if its tuned options do not say so.
        members: Networks that are pooled in a run; a trial trains one.
        steps: Of each network at most. Without sparse masks networks learn the training rows by
            heart in fewer than a hundred, and a short training is validated more often.
        like: Arm whose trials choose for this one, too.
        only: Problems that it is run on; all if empty.
        note: How it tells which features matter; empty if it does not.
    """

    label: str
    title: str
    method: str
    trials: tuple[Tuned, ...] = ()
    inputs: bool = False
    members: int = 1
    steps: int = 300
    like: str = ""
    only: tuple[str, ...] = ()
    note: str = ""


_SPARSE: Tuned = {"lr": 5e-4, "beta": 1.0, "prior_keep": 0.02, "start_keep": 0.05}
"""Sparse from the start: for few rows, which many features would soon learn by heart."""
_MASKS = "share of masks that keep a feature"
_MC: tuple[Tuned, ...] = (
    {"lr": 2e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.3, "inputs": 0},
    {"lr": 2e-3, "rate": 0.3, "inputs": 1}, {"lr": 5e-4, "rate": 0.5, "inputs": 0},
    {"lr": 5e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.5, "inputs": 1},
)  # fmt: skip

_ALL = (
    Arm(
        "id-gflowout", "ID-GFlowOut on inputs", "id-gflowout",
        ({"lr": 2e-3, "beta": 0.3}, {"lr": 1.5e-3, "beta": 0.3}, _SPARSE,
         {"lr": 2e-3, "beta": 0.5}, {"lr": 3e-3, "beta": 0.3}, {**_SPARSE, "lr": 2e-3}),
        inputs=True, members=CHAINS, steps=1000, note=_MASKS,
    ),
    Arm(
        "gflowout", "GFlowOut on inputs", "gflowout",
        ({"lr": 2e-3, "beta": 20.0}, {"lr": 2e-3, "beta": 5.0}, {"lr": 5e-4, "beta": 20.0},
         {"lr": 2e-3, "beta": 50.0}, {"lr": 5e-4, "beta": 5.0}, {"lr": 5e-3, "beta": 20.0}),
        inputs=True, members=3, steps=1000, note=_MASKS,
    ),
    Arm(
        "gates", "Stochastic gates", "gates",
        ({"lr": 2e-3, "strength": 0.003}, {"lr": 2e-3, "strength": 0.01},
         {"lr": 2e-3, "strength": 0.001}, {"lr": 5e-3, "strength": 0.003},
         {"lr": 5e-3, "strength": 0.01}, {"lr": 2e-3, "strength": 0.03}),
        inputs=True, members=5, steps=1000, note="probability that a gate is not closed",
    ),
    Arm("mc", "MC dropout", "mc", _MC),
    Arm(
        "concrete", "Concrete dropout", "concrete",
        ({"lr": 2e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.2, "inputs": 0},
         {"lr": 2e-3, "rate": 0.2, "inputs": 1}, {"lr": 5e-4, "rate": 0.5, "inputs": 0},
         {"lr": 5e-3, "rate": 0.5, "inputs": 0}, {"lr": 2e-3, "rate": 0.5, "inputs": 1}),
    ),
    Arm(
        "contextual", "Contextual dropout", "contextual",
        ({"lr": 2e-3, "prior_keep": 0.5, "inputs": 0}, {"lr": 2e-3, "prior_keep": 0.8, "inputs": 0},
         {"lr": 2e-3, "prior_keep": 0.5, "inputs": 1}, {"lr": 5e-4, "prior_keep": 0.5, "inputs": 0},
         {"lr": 2e-3, "prior_keep": 0.8, "inputs": 1}, {"lr": 5e-4, "prior_keep": 0.8, "inputs": 1}
        ),
        note=f"{_MASKS}, where inputs are masked",
    ),
    Arm(
        "ensemble", "Deep ensemble", "none",
        (*_RATES, *({**each, "weight_decay": 0.1} for each in _RATES)), members=5,
    ),
    Arm("mc-ensemble", "Ensemble of MC networks", "mc", members=5, like="mc"),
    Arm(
        "mc-equal", f"{EQUAL} MC networks", "mc", members=EQUAL, like="mc",
        only=("independent",),
    ),
    Arm(
        "l1", "L1 logistic regression", "l1",
        tuple({"C": value} for value in (0.1, 0.03, 0.5, 0.01, 0.2, 2.0)),
        note="size of its weight; found if it is not 0",
    ),
    Arm(
        "forest", "Random forest", "forest",
        ({"features": 0.15, "leaf": 1}, {"features": 0.4, "leaf": 3}, {"features": 0.4, "leaf": 10},
         {"features": 0.8, "leaf": 3}, {"features": 0.8, "leaf": 10}, {"features": 0.15, "leaf": 3}
        ),
        note="permutation importance on rows it was not fitted to; found if 2 errors above 0",
    ),
    Arm(
        "boosting", "Gradient boosting", "boosting",
        ({"leaves": 8, "rate": 0.1}, {"leaves": 4, "rate": 0.1}, {"leaves": 4, "rate": 0.05},
         {"leaves": 8, "rate": 0.05}, {"leaves": 16, "rate": 0.05}, {"leaves": 2, "rate": 0.1}),
        note="permutation importance on rows it was not fitted to; found if 2 errors above 0",
    ),
)  # fmt: skip
ARMS = {arm.label: arm for arm in _ALL if arm.method in (*METHODS, "l1", "forest", "boosting")}
"""All arms by label; what they may tune, and nothing else differs. ``inputs`` 1: masks on inputs,
too. ``mc-equal`` answers what the chains' computing would have bought otherwise."""
