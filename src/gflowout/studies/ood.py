"""Telling unknown inputs from known ones, by scores from draws and from features: Table 3.

A model of CIFAR-10 or CIFAR-100 against SVHN and against the other CIFAR, one of MNIST against
notMNIST. Models are those of :mod:`gflowout.studies.robustness`. The paper
has SVHN alone, and one score; the other pairs, scores and FPR95 are additions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gflowout.app import evaluation
from gflowout.app.sources import Part
from gflowout.core import metrics
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.decisions import ood as detectors
from gflowout.runs import Context, Run
from gflowout.studies import images
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import Fitted
from gflowout.studies.ood_section import DRAWS, FEATURES, NAME, SCORES, claims, section

__all__ = ["SCORES", "STUDY", "UNKNOWN", "claims", "runs", "section", "work"]

UNKNOWN = images.PRESETS[NAME]
"""By preset and data what a model is tested against."""
WITHIN = ("mahalanobis", "mahalanobis_first", "relative_mahalanobis")
"""Scores that need the spread within classes: not measured if no class has two training images."""


@images.after_training
def work(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """How well each score detects images of other data among test images.

    Options: ``against``, names of other data, or paths; ``test``, images of each side at most.
    """
    count = run.options["test"]
    parts = {"": images.subset(fitted.task.part("test"), 0, count)}
    for other in run.options["against"]:
        x = evaluation.other_data(fitted.problem, other, fitted.configs[0].data.directory)
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
        labels = torch.zeros(len(rows), dtype=torch.int64)
        parts[evaluation.short_name(other)] = Part(x[rows], labels)
    answers = {name: images.answer(fitted, part, run, tuple(DRAWS)) for name, part in parts.items()}
    from_features = feature_scores(fitted, parts)
    numbers: dict[str, Any] = images.scored(answers[""], fitted, "clean")
    for other in list(parts)[1:]:
        for score in (*DRAWS, *FEATURES):
            values = answers if score in DRAWS else from_features
            if score not in values[""]:
                continue
            measured = metrics.detection(values[""][score], values[other][score])
            numbers |= {f"{other}/{score}/{name}": value for name, value in measured.items()}
    return numbers


def feature_scores(fitted: Fitted, parts: dict[str, Part]) -> dict[str, dict[str, Tensor]]:
    """Scores of every detector, fitted on the training images, by part; of an ensemble, means."""
    model = fitted.model
    members = model.members if isinstance(model, Ensemble) else [model]
    train = fitted.task.part("train")
    device = next(model.parameters()).device
    scores: dict[str, dict[str, Tensor]] = {name: {} for name in parts}
    several = int(torch.bincount(train.y.long()).max()) > 1
    for score in FEATURES:
        if score in WITHIN and not several:
            continue
        alarms = [
            detector(score, member).fit(member, train.batches(fitted.problem, images.BATCH))
            for member in members
        ]
        for name, part in parts.items():
            batches = [x.to(device) for x, _ in part.batches(fitted.problem, images.BATCH)]
            means = [torch.stack([alarm(x) for alarm in alarms]).mean(0).cpu() for x in batches]
            scores[name][score] = torch.cat(means)
    return scores


def detector(score: str, model: MaskedModel) -> detectors.Detector:
    """The detector of a name in :data:`FEATURES`, not fitted."""
    match score:
        case "mahalanobis":
            return detectors.Mahalanobis()
        case "mahalanobis_first":
            return detectors.Mahalanobis(model.sites[0].name)
        case "relative_mahalanobis":
            return detectors.RelativeMahalanobis()
        case "knn":
            return detectors.KNN()
        case "vim":
            return detectors.ViM()
        case _:
            return detectors.FDBD()


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set."""
    data = UNKNOWN[preset]
    options = {}
    for name, others in data.items():
        count = 30000 if preset == "paper" else images.sizes(preset, name)["test"]
        options[name] = {"against": list(others), "test": count}
    return images.runs(NAME, preset, chosen, data, options, 1 if preset == "smoke" else 5)


STUDY = Study(
    name=NAME,
    **judged.entry(f"{NAME}.study"),
    work="gflowout.studies.ood:work",
    runs=runs,
    section=section,
    tuning=lambda preset: images.tuning(preset, UNKNOWN[preset]),
)
