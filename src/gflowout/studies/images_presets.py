"""Sizes of the studies on images at every preset: what is trained, tuned and scored.

Robustness, out-of-distribution detection and masks take the same configurations from here, so that
a model of one serves the others; block order and adaptation change them and train their own. Knows
nothing of how a run is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gflowout.studies.framework.arms import Arm
from gflowout.studies.framework.study import Options

CIFAR = ("cifar10", "cifar100")
DATA = ("mnist", *CIFAR)

# Sizes of "cpu", from steps that were timed on one core at 2.8 GHz. On MNIST an image costs 0.04 to
# 0.18 ms per epoch, so all 60,000 and nine seeds fit. On CIFAR a ResNet-18 of width 8 (of 64)
# takes 1.7 to 3.9 ms per image and epoch and 8 ms for 20 draws: all arms together 27 and 61 ms.
# 5,400 training images (adaptation, which needs 8,000, has its own number), 4 epochs and 5 seeds
# are what about three hours on two cores leave room for.
_NETWORKS: dict[str, dict[str, Options]] = {
    "smoke": {
        "mnist": {"data.limit": 200, "data.batch_size": 90, "fit.epochs": 1},
        "cifar": {
            "data.limit": 40, "data.batch_size": 18, "backbone.width": 2, "fit.epochs": 1,
            "fit.valid_samples": 1,
        },
    },
    "cpu": {
        "mnist": {"data.batch_size": 200, "fit.epochs": 8, "fit.schedule": "cosine"},
        "cifar": {
            "data.limit": 6000, "data.batch_size": 50, "backbone.width": 8, "fit.epochs": 4,
            "fit.schedule": "cosine", "fit.valid_samples": 3,
        },
    },
    # The paper names networks, seeds, draws, temperature and early stopping; optimisers and
    # schedules are those of the published programs and of common practice.
    "paper": {
        "mnist": {
            "data.batch_size": 100, "fit.epochs": 100, "fit.patience": 10, "fit.log_z_lr": 0.1
        },
        "cifar": {
            "data.batch_size": 128, "data.augment": True, "backbone.width": 64,
            "fit.epochs": 200, "fit.optimizer": "sgd", "fit.schedule": "milestones",
            "fit.milestones": [0.3, 0.6, 0.8], "fit.gamma": 0.2, "fit.patience": 40,
            "fit.log_z_lr": 0.1,
        },
    },
}  # fmt: skip
_TRIALS: dict[str, dict[str, Options]] = {
    "smoke": {"mnist": {}, "cifar": {}},
    "cpu": {
        "mnist": {"data.limit": 20000, "fit.epochs": 6},
        "cifar": {"data.limit": 1800, "fit.epochs": 3},
    },
    "paper": {"mnist": {}, "cifar": {"fit.epochs": 60, "fit.patience": 20}},
}
"""What a trial has otherwise: fewer images and epochs where the whole would cost too much."""
_RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "smoke": {"mnist": (1e-3,), "cifar": (3e-3,)},
    "cpu": {"mnist": (1e-3, 3e-3), "cifar": (2e-3, 6e-3)},
    "paper": {"mnist": (3e-4, 1e-3, 3e-3), "cifar": (0.02, 0.05, 0.1)},
}
_OWN = {"smoke": 1, "cpu": 3, "paper": 3}
_SCORED: dict[str, dict[str, Options]] = {
    "smoke": {"mnist": {"test": 40, "corrupted": 20}, "cifar": {"test": 20, "corrupted": 10}},
    "cpu": {
        "mnist": {"test": 10000, "corrupted": 2000},
        "cifar": {"test": 1000, "corrupted": 200},
    },
    "paper": {
        "mnist": {"test": 10000, "corrupted": 10000},
        "cifar": {"test": 10000, "corrupted": 10000},
    },
}
_FEW_DRAWS = ("id-gflowout", "combined")
"""Arms whose steps score 4 masks by default, of which "cpu" affords 2 on CIFAR."""

SEEDS = {
    "smoke": {"mnist": 1, "cifar10": 1, "cifar100": 1},
    "cpu": {"mnist": 9, "cifar10": 5, "cifar100": 5},
    "paper": {"mnist": 9, "cifar10": 9, "cifar100": 9},
}
"""How many, by preset and data."""
SAMPLES = {"smoke": 2, "cpu": 20, "paper": 20}
"""Draws of masks for every score."""


def base(preset: str, data: str, arm: Arm) -> Options:
    """The configuration of an arm before tuning, by dotted key.

    Examples:
        >>> from gflowout.studies.framework.arms import ARMS
        >>> base("paper", "cifar10", ARMS["mc"])["backbone.width"]
        64
    """
    found = {"data.source": data, **_NETWORKS[preset][_kind(data)]}
    if data == "cifar10" and preset != "paper":
        found["data.partial"] = True
    if preset == "cpu" and data in CIFAR and arm.label in _FEW_DRAWS:
        found["method.options.draws"] = 2
    return found


def of_trial(preset: str, data: str) -> Options:
    """What the configuration of a trial has otherwise."""
    return _TRIALS[preset][_kind(data)]


def grid(preset: str, data: str) -> tuple[tuple[float, ...], int]:
    """Learning rates that every arm tries, and how many values of its own option."""
    return _RATES[preset][_kind(data)], _OWN[preset]


def scored(preset: str, data: Iterable[str], **more: Any) -> dict[str, Options]:
    """Numbers of test images by data set, and of those with each corruption; and more options."""
    return {name: {**_SCORED[preset][_kind(name)], **more} for name in data}


def _kind(data: str) -> str:
    return "cifar" if data in CIFAR else data
