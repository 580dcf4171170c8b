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
from gflowout.runs import Context, Run, locks
from gflowout.runs.values import canonical
from gflowout.studies.framework.study import Arm

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
    """The configuration of an arm: that of all arms, by dotted key, and what was tuned.

    Examples:
        >>> from gflowout.studies.framework.study import ARMS
        >>> made = settings(ARMS["control"], {"data.source": "mnist"}, {"fit.lr": 0.01}, seed=3)
        >>> made.method.name, made.method.options, made.fit.lr, made.seed
        ('gflowout', {'beta': 0.0}, 0.01, 3)
    """
    values = {**base, **arm.options, **tuned, "method.name": arm.method, "seed": seed}
    return configs.from_flat(values)


def fitted(
    arm: Arm, base: Mapping[str, Any], tuned: Mapping[str, Any], seed: int, context: Context
) -> Fitted:
    """Train an arm with :func:`settings`, or take what an earlier run has trained."""
    wanted = [settings(arm, base, tuned, seed + _APART * place) for place in range(arm.members)]
    members: list[pipeline.Trained] = []
    for config in wanted:
        # With a seed of their own, data are the same for all members: read them once.
        task = members[0].task if members and config.data.seed is not None else None
        members.append(_one(config, context, task))
    first = members[0]
    assert first.task is not None
    assert first.result is not None
    facts = {
        "epochs_trained": float(sum(len(m.result.history) for m in members if m.result)),
        "best_epoch": float(first.result.best_epoch),
        "parameters": float(sum(p.numel() for m in members for p in m.model.parameters())),
    }
    model = first.model if arm.members == 1 else Ensemble([m.model for m in members])
    return Fitted(model, first.problem, first.task, list(first.result.history), facts, wanted)


def dotted(run: Run) -> dict[str, Any]:
    """The part of a run's options that is a configuration."""
    return {key: value for key, value in run.options.items() if "." in key}


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
