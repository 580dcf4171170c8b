"""Adaptation after training on noisy labels: the bottom of Figure 2.

ResNet-18 is trained with 30 % of the labels drawn at random, once, and then trained further from
that checkpoint on 1,000 to 8,000 points with their true labels. Validation labels are clean, and
they alone decide which epoch is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gflowout.app import build, sources
from gflowout.app.config import Config, with_changes
from gflowout.app.run import VALID_BATCH
from gflowout.app.sources import Part, Task
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.random import generator
from gflowout.runs import Context, Run
from gflowout.studies import images, images_section, robustness
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import entry, judge
from gflowout.studies.framework.content import Block, Section, Table
from gflowout.studies.framework.sections import Compared, share
from gflowout.studies.framework.statistics import Record
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import CIFAR, TITLES, Fitted
from gflowout.training import fit

NAME = "adaptation"
NOISE = 0.3


@images.after_training
def work(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """Scores before fine-tuning, and after it on each number of clean points.

    Options: ``points``, numbers of clean points; ``finetune``, changes of the configuration;
    ``test``, how many test images are scored.
    """
    test = images.subset(fitted.task.part("test"), 0, run.options["test"])
    metrics: dict[str, Any] = images.scored(images.answer(fitted, test, run), fitted, "points-0")
    clean = clean_labels(fitted.configs[0])
    for points in run.options["points"]:
        tuned = finetuned(fitted, some(clean, points, run.seed), run.options["finetune"], context)
        metrics |= images.scored(images.answer(tuned, test, run), tuned, f"points-{points}")
    return metrics


def finetuned(fitted: Fitted, clean: Task, changes: Mapping[str, Any], context: Context) -> Fitted:
    """Train copies of the networks further on clean points, with a changed configuration.

    A run that was stopped continues from what is in the folder of the context.
    """
    members = fitted.model.members if isinstance(fitted.model, Ensemble) else [fitted.model]
    tuned = [
        _member(start, config, clean, changes, context.folder / f"points-{len(clean.train)}-{i}")
        for i, (start, config) in enumerate(zip(members, fitted.configs, strict=True))
    ]
    return replace(fitted, model=tuned[0] if len(tuned) == 1 else Ensemble(tuned))


def clean_labels(config: Config) -> Task:
    """The data of a configuration with the true labels of all its training images."""
    return sources.load(config.data.model_copy(update={"label_noise": 0.0}), config.seed)


def some(task: Task, points: int, seed: int) -> Task:
    """Some of the training images; those of fewer points are among those of more."""
    if points > len(task.train):
        raise ValueError(f"points must be at most {len(task.train)}, got {points}")
    rows = torch.randperm(len(task.train), generator=generator(seed, "clean_points"))[:points]
    train = Part(task.train.x[rows], task.train.y[rows])
    # The number of points is what a method that counts examples must know; what is done to
    # inputs stays as the network learned it.
    return replace(task, train=train, problem=replace(task.problem, train_size=points))


def _member(
    start: MaskedModel, config: Config, task: Task, changes: Mapping[str, Any], folder: Path
) -> MaskedModel:
    dotted = {key: value for key, value in changes.items() if "." in key}
    config = with_changes(config, {**dotted, "fit.lr": changes["rate"] * config.fit.lr})
    model = build.model(config, task.problem, build.example(task))
    model.load_state_dict(start.state_dict())
    train = task.training(config.data, config.seed)
    valid = task.valid.batches(task.problem, VALID_BATCH)
    fit(model, train, valid, config.fit, folder=folder, progress=False)
    return model.to(next(start.parameters()).device)


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on CIFAR."""
    data = images.ONE_CIFAR[preset]
    options = {"data.label_noise": NOISE, **images.PRESETS[NAME][preset]}
    return images.runs(NAME, preset, chosen, data, dict.fromkeys(data, options))


def section(records: Sequence[Record]) -> Section:
    """Accuracy against the number of clean points, comparisons and claims."""

    def describe(data: str) -> tuple[list[Block], list[Compared]]:
        sizes = _sizes(records, data)
        what = f"accuracy on {TITLES[data]} after fine-tuning, mean over numbers of points"
        compared = Compared(data, _after(sizes), what, percent=True)
        points = {size: f"points-{size}" for size in (0, *sizes)}
        curves = robustness.metric_curves(records, data, TITLES[data], "clean points", points)
        return [_table(records, data, sizes), *curves], [compared]

    there = sections.present(records, CIFAR) or CIFAR
    experiments = {TITLES[data]: (data, _after(_sizes(records, data)) or "none") for data in there}
    # The paper has no numbers here: accuracy after the most points should be near its others.
    weak = images_section.weak(
        records, there, lambda name: _after(_sizes(records, name))[-1:] or "none"
    )
    claims = [
        judge(
            f"adaptation.{name}",
            records,
            experiments,
            note=images_section.scale(records),
            weak=weak,
        )
        for name in ("faster", "alike")
    ]
    return images_section.by_data(records, CIFAR, NAME, describe, claims)


def _sizes(records: Sequence[Record], data: str) -> list[int]:
    """Numbers of points that the records have, without 0."""
    own = [record["options"]["points"] for record in records if record["data"] == data]
    return sorted({int(points) for listed in own for points in listed})


def _after(sizes: Sequence[int]) -> list[str]:
    return [f"points-{points}/accuracy" for points in sizes]


def _table(records: Sequence[Record], data: str, sizes: Sequence[int]) -> Table:
    titles = ["Before", *(f"{points:,} points" for points in sizes), "Mean after"]
    metrics = [*_after([0, *sizes]), _after(sizes)]
    rows = sections.arm_rows(records, data, metrics)
    return Table(TITLES[data], "Method", [*map(share, titles)], rows, "Accuracy.")


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.adaptation:work",
    runs=runs,
    section=section,
    tuning=lambda preset: images.tuning(preset, images.ONE_CIFAR[preset]),
)
