"""Default values of the estimators.

One recipe for masks on hidden units, and two for masks on inputs: the same for all rows, or one
per row. A chain is one network; with masks on inputs, chains are weighted by validation data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """What estimators take where an argument is ``None``.

    Attributes:
        method: Name of the method.
        hidden: Widths of the hidden layers.
        samples: Draws per prediction.
        chains: Number of networks.
        epochs: Passes over the training rows at most.
        steps: As many epochs as it takes to make these steps, if that is more.
        batch_size: Rows per step at most.
        lr: Learning rate of the networks.
        generator_lr: Learning rate of the mask generators.
        weight_decay: Of the networks.
        validation_fraction: Share of the rows that a chain is validated on.
        rotate: Whether every chain has validation rows of its own: folds, dealt anew when all had
            their turn.
        temper: Multiplies validation log-likelihoods before chains are weighed by them; 0 gives all
            the same weight.
        patience: Epochs without a better validation loss after which a chain stops.
        tolerance: What counts as better.
        decay: From which share of the training on learning rates fall, to nearly nothing.
        looks: How often a chain is validated at most.
        grid: ``(prior_keep, beta)`` of one chain after the other, over and over.
        sparsity: Nats that the prior charges for every feature in the end, beyond ``prior_keep``:
            an open prior lets features be found, a sparse one then drops those that do not pay.
        anneal: Shares of the training between which it is brought in.
        settle: Where the prior becomes sparse during the training, the posterior alone is fitted on
            in the end, for this share of its steps.
        settle_lr: Learning rate of these.
        settle_rows: Rows of these, at most.
        options: Further options of the method; those that it does not have are left out. These and
            ``grid`` are for the method named here: others keep their own defaults.
    """

    method: str
    hidden: tuple[int, ...] = (100, 100)
    samples: int = 20
    chains: int = 1
    epochs: int = 30
    steps: int = 30
    batch_size: int = 128
    lr: float = 1e-2
    generator_lr: float = 1e-2
    weight_decay: float = 0.0
    validation_fraction: float = 0.1
    rotate: bool = False
    temper: float = 0.0
    patience: int | None = 10
    tolerance: float = 1e-3
    decay: float = 0.5
    looks: int = 10
    grid: tuple[tuple[float, float], ...] = ()
    sparsity: float = 0.0
    anneal: tuple[float, float] = (0.4, 0.7)
    settle: float = 0.0
    settle_lr: float = 3e-3
    settle_rows: int = 400
    options: Mapping[str, Any] = field(default_factory=dict)


HIDDEN = Recipe("gflowout")
"""Masks on hidden units."""

_ON_INPUTS: dict[str, Any] = {
    "epochs": 3, "steps": 1000, "lr": 2e-3, "generator_lr": 2e-3, "validation_fraction": 0.2,
    "rotate": True, "temper": 0.1, "patience": None,
}  # fmt: skip

FEATURES = Recipe(
    "id-gflowout",
    **_ON_INPUTS,
    hidden=(64, 64),
    samples=100,
    chains=10,
    batch_size=100,
    looks=20,
    grid=((0.1, 0.3),),
    sparsity=4.7,
    settle=0.3,
    options={"start_keep": 0.3, "hidden": (), "draws": 8},
)
"""Masks on inputs."""

ROWS = Recipe(
    "gflowout",
    **_ON_INPUTS,
    chains=3,
    batch_size=200,
    decay=0.7,
    sparsity=1.0,
    anneal=(0.3, 0.6),
    options={"beta": 20.0, "log_z": "batch", "draws": 4},
)
"""Masks on inputs that depend on the row."""

VALID_ROWS = 5
"""Validation rows below which there is no point in validating."""

VALID_SAMPLES = 16
"""Draws per row for the validation loss."""

HIDDEN_KEEP = 0.5
"""Prior keep rate of hidden units beside masked inputs, whose prior is sparse."""

INCLUSION_SAMPLES = 2000
"""Masks of all chains together that inclusion probabilities are read from."""

INCLUSION_ROWS = 20, 200
"""Training rows that masks are drawn for, where they depend on the row: at least, at most."""

INCLUSION_CELLS = 10**7
"""Entries of all masks together, beyond which rows are fewer."""

BLIND = frozenset({"concrete", "masksembles", "mc", "none", "variational"})
"""Methods whose masks learn nothing about single units; concrete dropout does with ``per_unit``."""


def chain_options(recipe: Recipe, chain: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """Default options of the chain of this number, among those that the method has (``known``).

    Examples:
        >>> recipe = Recipe("id-gflowout", grid=((0.1, 1.0), (0.1, 0.3)), options={"draws": 8})
        >>> chain_options(recipe, 1, {"prior_keep": 0.5, "beta": 1.0})
        {'prior_keep': 0.1, 'beta': 0.3}
    """
    options = dict(recipe.options)
    if recipe.grid:
        options["prior_keep"], options["beta"] = recipe.grid[chain % len(recipe.grid)]
    return {name: value for name, value in options.items() if name in known}


def annealed(recipe: Recipe, sparsity: float, progress: float) -> float:
    """The charge for a feature at some share of the training.

    Examples:
        >>> [annealed(FEATURES, 3.0, progress) for progress in (0.2, 0.55, 0.8)]
        [0.0, 1.5..., 3.0]
    """
    begin, end = recipe.anneal
    return sparsity * min(1.0, max(0.0, (progress - begin) / (end - begin)))


def decayed(recipe: Recipe, progress: float) -> float:
    """What learning rates are multiplied with at some share of the training.

    Examples:
        >>> [decayed(HIDDEN, progress) for progress in (0.2, 0.75)]
        [1.0, 0.5...]
    """
    late = max(0.0, (progress - recipe.decay) / (1 - recipe.decay))
    return max(0.02, (1 + math.cos(math.pi * late)) / 2)
