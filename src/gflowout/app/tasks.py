"""Examples in memory: the training, validation and test part of a task, and how to split rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from gflowout.app.config import ConfigError, DataConfig
from gflowout.app.preprocess import Problem, Target
from gflowout.data.batches import Batches
from gflowout.data.splits import split
from gflowout.data.transforms import Augment

SPLITS = ("train", "valid", "test")
_NO_MIRROR = ("mnist", "kmnist", "notmnist", "svhn")


@dataclass(frozen=True, eq=False)
class Part:
    """Examples as they are stored: images as bytes, tables encoded.

    Attributes:
        x: uint8 [N, C, H, W], or float32 [N, inputs].
        y: Labels as the likelihood takes them; a number is standardised.
        weights: How often to draw each example in training, or ``None`` for all alike.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, problem: Problem, batch_size: int) -> Batches:
        """Batches to score, in the order of the examples."""
        transform = problem.inputs.transform
        return Batches(self.x, self.y, batch_size=batch_size, transform=transform)

    def fingerprint(self) -> str:
        """SHA-256 of inputs and labels."""
        state = hashlib.sha256()
        for tensor in (self.x, self.y):
            state.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            state.update(tensor.contiguous().numpy().tobytes())
        return f"sha256:{state.hexdigest()}"


@dataclass(frozen=True, eq=False)
class Task:
    """Everything that is known about the data of a run.

    Attributes:
        problem: What a model takes and gives.
        train: Training examples.
        valid: Validation examples.
        test: Test examples; ``None`` if none were kept.
        notes: What a user should know, one sentence each.
    """

    problem: Problem
    train: Part
    valid: Part
    test: Part | None
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.problem.target

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Checksum of each part."""
        return {name: self.part(name).fingerprint() for name in self.splits}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the parts that there are."""
        return SPLITS if self.test is not None else SPLITS[:2]

    def part(self, name: str) -> Part:
        """One of the parts.

        Raises:
            ConfigError: If no test examples were kept.
        """
        part: Part | None = getattr(self, name)
        if part is None:
            raise ConfigError([f"there is no {name} part: data.{name} is 0"])
        return part

    def training(self, config: DataConfig, seed: int) -> Batches:
        """Batches to train on: shuffled, augmented if the configuration says so."""
        augment = Augment(flip=config.source not in _NO_MIRROR) if config.augment else None
        return Batches(
            self.train.x,
            self.train.y,
            batch_size=config.batch_size,
            shuffle=True,
            seed=seed,
            transform=self.problem.inputs.transform,
            augment=augment,
            weights=self.train.weights,
        )


def split_rows(
    count: int, data: DataConfig, seed: int, stratify: Tensor | None, test_share: float
) -> tuple[Tensor, ...]:
    """Split rows into the training, validation and test part.

    ``stratify`` is the class of each row, for equal shares of classes, if there are classes.
    """
    test = max(1, round(test_share * count)) if test_share else 0
    rest = count - test if data.limit is None else min(data.limit, count - test)
    valid = max(1, round(data.valid * rest))
    return split(count, (rest - valid, valid, test), seed=seed, stratify=stratify)
