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
from gflowout.app.build import example
from gflowout.app.config import Config, with_changes
from gflowout.app.run import VALID_BATCH
from gflowout.app.tasks import Part, Task
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.random import generator
from gflowout.runs import Context, Result, Run
from gflowout.studies import images, images_presets
from gflowout.studies import images_sections as say
from gflowout.studies.framework import verdicts
from gflowout.studies.framework.compare import pair_by_pair
from gflowout.studies.framework.content import Block, Claim, Curves, Section, Table, Text
from gflowout.studies.framework.study import TUNING, Chosen, Options, Record, Study
from gflowout.studies.images import TITLES
from gflowout.studies.models import Fitted
from gflowout.training import fit

NAME = "adaptation"
NOISE = 0.3
POINTS = (1000, 2000, 4000, 8000)
_DATA = {"smoke": ("cifar10",), "cpu": ("cifar10",), "paper": images_presets.CIFAR}
_OPTIONS: dict[str, Options] = {
    "smoke": {"points": [9, 18], "test": 20, "finetune": {"fit.epochs": 1, "rate": 0.3}},
    # All numbers of points together are 15,000: one pass over each costs half of the training.
    "cpu": {
        "points": list(POINTS),
        "test": 600,
        "finetune": {"fit.epochs": 1, "rate": 0.3},
        "data.limit": 9000,
        "fit.epochs": 3,
    },
    "paper": {
        "points": list(POINTS),
        "test": 10000,
        "finetune": {"fit.epochs": 50, "fit.patience": 10, "rate": 0.1},
    },
}
"""``rate``: learning rate of the fine-tuning, as a share of that of the training."""


def work(run: Run, context: Context) -> Result:
    """A trial, or one network trained on noisy labels and fine-tuned on some clean points.

    Options: ``points``, numbers of clean points; ``finetune``, changes of the configuration;
    ``test``, how many test images are scored.
    """
    if run.study == TUNING:
        return images.trial(run, context)
    found = images.trained(run, context)
    test = images.subset(found.task.part("test"), 0, run.options["test"])
    metrics: dict[str, Any] = {
        **found.facts, **images.scored(images.answer(found, test, run), found, "points-0")
    }  # fmt: skip
    clean = clean_labels(found.configs[0])
    for points in run.options["points"]:
        tuned = finetuned(found, some(clean, points, run.seed), run.options["finetune"], context)
        answers = images.answer(tuned, test, run)
        metrics |= images.scored(answers, tuned, f"points-{points}")
    return {"metrics": metrics, "epochs": found.epochs, "data": found.task.fingerprints}


def finetuned(found: Fitted, clean: Task, changes: Mapping[str, Any], context: Context) -> Fitted:
    """Train further on clean points, from the weights that are there; these stay as they are.

    Args:
        found: What was trained on noisy labels.
        clean: Points with their true labels, from :func:`some`.
        changes: Of the configuration, with ``rate``.
        context: Of the run; its folder makes a run that was stopped go on.
    """
    members = found.model.members if isinstance(found.model, Ensemble) else [found.model]
    made = [
        _one(member, config, clean, changes, context.folder / f"points-{len(clean.train)}-{place}")
        for place, (member, config) in enumerate(zip(members, found.configs, strict=True))
    ]
    return replace(found, model=made[0] if len(made) == 1 else Ensemble(made))


def clean_labels(config: Config) -> Task:
    """The data of a configuration with the true labels of all its training images."""
    return sources.load(config.data.model_copy(update={"label_noise": 0.0}), config.seed)


def some(task: Task, points: int, seed: int) -> Task:
    """Some of the training images; those of fewer points are among those of more.

    Args:
        task: All of them.
        points: How many.
        seed: Of the choice.
    """
    if points > len(task.train):
        raise ValueError(f"points must be at most {len(task.train)}, got {points}")
    order = torch.randperm(len(task.train), generator=generator(seed, "clean_points"))
    rows = order[:points]
    train = Part(task.train.x[rows], task.train.y[rows])
    # The number of points is what a method that counts examples must know; what is done to
    # inputs stays as the network learned it.
    return replace(task, train=train, problem=replace(task.problem, train_size=points))


def _one(
    start: MaskedModel, config: Config, task: Task, changes: Mapping[str, Any], folder: Path
) -> MaskedModel:
    dotted = {key: value for key, value in changes.items() if "." in key}
    config = with_changes(config, {**dotted, "fit.lr": changes["rate"] * config.fit.lr})
    model = build.model(config, task.problem, example(task))
    model.load_state_dict(start.state_dict())
    fit(
        model,
        task.training(config.data, config.seed),
        task.valid.batches(task.problem, VALID_BATCH),
        config.fit,
        folder=folder,
        progress=False,
    )
    return model.to(next(start.parameters()).device)


def tuning(preset: str) -> list[Run]:
    """The trials of robustness on the same data."""
    return images.tuning(preset, _DATA[preset])


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on CIFAR."""
    data = _DATA[preset]
    own = {"data.label_noise": NOISE, **_OPTIONS[preset]}
    return images.runs(NAME, preset, chosen, data, dict.fromkeys(data, own))


def section(records: Sequence[Record]) -> Section:
    """Accuracy against the number of clean points, comparisons and claims."""
    there = say.present(records, images_presets.CIFAR)
    blocks: list[Block] = []
    findings, details = [], []
    for data in there:
        sizes = _sizes(records, data)
        blocks.append(Text([f"{say.setting(records, data)}, {say.seeds_of(records, data)}."]))
        blocks += [_table(records, data, sizes), *_curves(records, data, sizes)]
        what = f"accuracy on {TITLES[data]} after fine-tuning, mean over numbers of points"
        found = say.comparisons(records, data, _after(sizes), "high")
        findings += say.overview(found, what)
        details += say.sentences(found, what, percent=True)
    if there:
        how = (
            f"{NOISE:.0%} of the training labels were drawn at random, once for each seed; a drawn "
            "label can be the true one. Fine-tuning starts from the weights of the best epoch with "
            "a new optimiser. Its points are training images with their true labels, and the "
            "smaller sets are parts of the larger ones. Options were tuned on clean labels and "
            "taken over by every arm alike. The paper has curves without numbers here."
        )
        blocks += [Text([how]), *pair_by_pair(details)]
    return Section(findings, blocks, claims(records), tuple(there))


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of adaptation, and what became of it."""
    there = say.present(records, images_presets.CIFAR)
    others = ("concrete", "contextual")
    faster, alike = {}, {}
    for data in there or images_presets.CIFAR:
        measure = _after(_sizes(records, data)) if there else say.metric("none")
        found = say.comparisons(records, data, measure, "high", others=others)
        faster[TITLES[data]] = verdicts.beats(found, others)
        pair = say.comparisons(records, data, measure, "high", others=("id-gflowout",))
        alike[TITLES[data]] = verdicts.level(pair, "id-gflowout")
    rule = (
        "accuracy after fine-tuning, mean over numbers of points, is better than that of concrete "
        "and of contextual dropout, by the paired 95 % interval; it is not if another interval is "
        f"below {100 * verdicts.SLACK:g} point (the paper has no numbers)"
    )
    made = [
        say.verdict(
            "Models trained with GFlowOut on noisy labels adapt faster than those of concrete and "
            "contextual dropout (Figure 2, bottom).", faster, len(faster), rule,
        ),
        say.verdict(
            "GFlowOut and ID-GFlowOut adapt about equally well.", alike, len(alike),
            "the paired 95 % interval of the difference of their mean accuracies after fine-tuning "
            f"is within {100 * verdicts.SLACK:g} point of 0; it does not hold if it is outside",
        ),
    ]  # fmt: skip
    return [say.noting(each, say.scale(records)) for each in made]


def _sizes(records: Sequence[Record], data: str) -> list[int]:
    """Numbers of points that the records have, without 0."""
    return sorted(
        {
            int(points)
            for record in records
            if record["data"] == data
            for points in record["options"]["points"]
        }
    )


def _after(sizes: Sequence[int]) -> say.Measure:
    return say.average([f"points-{points}/accuracy" for points in sizes])


def _table(records: Sequence[Record], data: str, sizes: Sequence[int]) -> Table:
    columns = [say.share("Before", digits=2)]
    columns += [say.share(f"{points:,} points", digits=2) for points in sizes]
    columns.append(say.share("Mean after", digits=2))
    measures = [say.metric(f"points-{points}/accuracy") for points in (0, *sizes)]
    found = say.rows(records, data, [*measures, _after(sizes)])
    return Table(TITLES[data], "Method", columns, found, "Accuracy.")


def _curves(records: Sequence[Record], data: str, sizes: Sequence[int]) -> list[Curves]:
    made = []
    for what, (title, _, percent) in say.METRICS.items():
        names = {points: f"points-{points}/{what}" for points in (0, *sizes)}
        lines = say.series(records, data, names)
        made.append(
            Curves(f"{TITLES[data]}: {title}", "clean points", title, lines, percent=percent)
        )
    return made


STUDY = Study(
    name=NAME,
    title="Adaptation after noisy labels",
    question="How fast does a model that was trained with wrong labels learn from a few right "
    "ones?",
    paper="Figure 2 (bottom)",
    work="gflowout.studies.adaptation:work",
    runs=runs,
    section=section,
    tuning=tuning,
)
