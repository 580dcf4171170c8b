"""Trained models that several runs and studies need: each is trained once and found again.

A model is known by its configuration. Its folder is beside those of the runs, so that it lives and
dies with them, and on a cluster is on the file system that they share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gflowout.app import config as configs
from gflowout.app import run as pipeline
from gflowout.app.config import Config
from gflowout.app.preprocess import Problem
from gflowout.app.tasks import Task
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.runs import Context, locks
from gflowout.runs.values import canonical
from gflowout.studies.framework.arms import Arm

STORE = "models"
"""Folder of the models, beside the folders of the runs."""

_APART = 1000
"""Between the seeds of an ensemble's members; the first member is the single network."""


@dataclass(frozen=True)
class Fitted:
    """What an arm has learned.

    Attributes:
        model: A model, or an ensemble of several.
        problem: What it takes and gives.
        task: The data.
        epochs: Numbers of every epoch, of an ensemble's first member.
        facts: ``epochs_trained``, ``best_epoch`` and ``seconds``, of all members together.
        configs: Of each member.
    """

    model: MaskedModel | Ensemble
    problem: Problem
    task: Task
    epochs: list[Mapping[str, Any]]
    facts: dict[str, float]
    configs: list[Config] = field(default_factory=list)


def settings(arm: Arm, base: Mapping[str, Any], tuned: Mapping[str, Any], seed: int) -> Config:
    """The configuration of an arm.

    Args:
        arm: The arm.
        base: Of all arms, by dotted key.
        tuned: What was tuned.
        seed: Of the run.

    Examples:
        >>> from gflowout.studies.framework.arms import ARMS
        >>> made = settings(ARMS["control"], {"data.source": "mnist"}, {"fit.lr": 0.01}, seed=3)
        >>> made.method.name, made.method.options, made.fit.lr, made.seed
        ('gflowout', {'beta': 0.0}, 0.01, 3)
    """
    values = {**base, **arm.options, **tuned, "method.name": arm.method, "seed": seed}
    return configs.from_flat(values)


def fitted(
    arm: Arm, base: Mapping[str, Any], tuned: Mapping[str, Any], seed: int, context: Context
) -> Fitted:
    """Train an arm, or take what an earlier run has trained.

    Args:
        arm: The arm.
        base: Of all arms, by dotted key.
        tuned: What was tuned.
        seed: Of the run.
        context: Of the run.
    """
    wanted = [settings(arm, base, tuned, seed + _APART * place) for place in range(arm.members)]
    found: list[pipeline.Trained] = []
    for each in wanted:
        # With a seed of their own, data are the same for all members: read them once.
        task = found[0].task if found and each.data.seed is not None else None
        found.append(_one(each, context, task))
    facts = {
        "epochs_trained": float(sum(len(each.result.history) for each in found if each.result)),
        "best_epoch": float(found[0].result.best_epoch if found[0].result else 0),
        "parameters": float(sum(p.numel() for each in found for p in each.model.parameters())),
    }
    first = found[0]
    assert first.task is not None
    assert first.result is not None
    model = first.model if arm.members == 1 else Ensemble([each.model for each in found])
    return Fitted(model, first.problem, first.task, list(first.result.history), facts, wanted)


def folder_of(wanted: Config, context: Context) -> Path:
    """Where the model of a configuration is kept."""
    values = {key: v for key, v in configs.flat(wanted).items() if key != "data.directory"}
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    return context.folder.parent / STORE / f"{wanted.method.name}-s{wanted.seed}-{digest}"


def _one(wanted: Config, context: Context, task: Task | None) -> pipeline.Trained:
    folder = folder_of(wanted, context)
    folder.mkdir(parents=True, exist_ok=True)
    # Another run may be training the same model: then it is done when the lock is free.
    with locks.hold(folder / ".wanted.lock", wait=True):
        return pipeline.train(wanted, folder, progress=False, report=context.progress, task=task)
