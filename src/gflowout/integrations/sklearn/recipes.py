"""Recipes: how the networks of an estimator are built and trained, by what is masked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gflowout.integrations.sklearn.stack import Schedule
from gflowout.methods.gflowout import PAPER


@dataclass(frozen=True)
class Recipe:
    """How chains are built and trained: the defaults of an estimator's arguments, and schedules."""

    method: str
    hidden: tuple[int, ...] = (100, 100)
    samples: int = 20
    chains: int = 1
    epochs: int = 30
    steps: int = 30  # more epochs are made if it takes more to make these steps
    batch_size: int = 128
    lr: float = 1e-2
    generator_lr: float = 1e-2
    weight_decay: float = 0.0
    validation_fraction: float = 0.1
    rotate: bool = False  # whether chains are validated on different folds
    temper: float = 0.0  # factor on validation log-likelihoods in the weights of chains
    patience: int | None = 10
    tolerance: float = 1e-3  # by which a validation loss must be better to count as better
    decay: float = 0.5  # share of the training after which learning rates fall
    looks: int = 10  # number of validations at most
    grid: tuple[tuple[float, float], ...] = ()  # (prior_keep, beta) of chains, in turn
    # Nats that the prior charges for every feature in the end, beyond prior_keep: an open prior
    # lets features be found, a sparse one then drops those that do not pay.
    sparsity: float = 0.0
    side_by_side: bool = False  # whether chains are trained in one batched pass
    linear: bool = False  # whether networks start as a sparse linear model
    anneal: tuple[float, float] = (0.4, 0.7)  # shares of the training between which it is raised
    # Options of the method. These and `grid` are for the method named here, others have their own.
    options: Mapping[str, Any] = field(default_factory=dict)

    def chain_options(self, chain: int, names: Mapping[str, Any]) -> dict[str, Any]:
        """Options of the chain of this number, among the ``names`` that the method has."""
        options = dict(self.options)
        if self.grid:
            options["prior_keep"], options["beta"] = self.grid[chain % len(self.grid)]
        return {name: value for name, value in options.items() if name in names}

    def annealed(self, progress: float) -> float:
        """The sparsity at some share of the training."""
        begin, end = self.anneal
        return self.sparsity * min(1.0, max(0.0, (progress - begin) / (end - begin)))

    def schedule(self, rows: int, options: Any) -> Schedule:
        """The schedule of chains that are trained side by side on so many rows."""
        batch_size = min(rows, max(self.batch_size, min(1024, rows // 50)))
        steps = max(self.steps, self.epochs * -(-rows // batch_size))
        return Schedule(
            steps, batch_size, self.lr, self.weight_decay, options.draws, options.beta,
            looks=self.looks, patience=self.patience or self.looks,
        )  # fmt: skip

    def decayed(self, progress: float) -> float:
        """The factor on learning rates at some share of the training."""
        late = max(0.0, (progress - self.decay) / (1 - self.decay))
        return max(0.02, (1 + math.cos(math.pi * late)) / 2)


HIDDEN = Recipe("gflowout", linear=True, lr=5e-3, epochs=100, validation_fraction=0.2, looks=100)
"""Masks on hidden units."""

RANDOM = Recipe("gflowout")
"""The same from random weights."""

_ON_INPUTS: dict[str, Any] = {
    "epochs": 3, "steps": 1000, "lr": 2e-3, "generator_lr": 2e-3, "validation_fraction": 0.2,
    "rotate": True, "temper": 0.1, "patience": None,
}  # fmt: skip

FEATURES = Recipe(
    "id-gflowout", hidden=(64, 64), samples=100, chains=15, epochs=1, steps=600, lr=3e-3,
    weight_decay=1e-2, validation_fraction=0.2, rotate=True, patience=5, looks=20,
    side_by_side=True, options={"hidden": (), "draws": 2},
)  # fmt: skip
"""Masks on inputs, the same for all rows: chains that are trained side by side."""

LOOPED = Recipe(
    "id-gflowout", **_ON_INPUTS, hidden=(64, 64), samples=100, chains=10, batch_size=100, looks=20,
    grid=((0.1, 0.3),), sparsity=4.7, options={"start_keep": 0.3, "hidden": (), "draws": 8},
)  # fmt: skip
"""The same with options, sites or terms that need chains of their own, one after the other."""

ROWS = Recipe(
    "gflowout", **_ON_INPUTS, chains=3, batch_size=200, decay=0.7, sparsity=1.0, anneal=(0.3, 0.6),
    options={**PAPER, "prior_keep": 0.5, "beta": 20.0, "log_z": "batch", "draws": 4},
)  # fmt: skip
"""Masks on inputs that depend on the row."""
