"""Predictions of a model as named tensors, and their scores on its own, shifted and other data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app import files
from gflowout.app.config import ConfigError, is_file
from gflowout.app.preprocess import Images, Problem, Target
from gflowout.app.sources import Part
from gflowout.core import checks, metrics
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.errors import DataError
from gflowout.data.formats import read_idx
from gflowout.data.images import IMAGE_SETS, find_idx, load_images

UNCERTAINTIES = ("dempster_shafer", "entropy", "mutual_information")
EACH_DRAW = "-draws"
COMPARED = ("mutual_information", "variation_ratio", "logit_disagreement")
"""Scores that compare draws with each other."""
BATCH = 500

Answers = dict[str, Tensor]
Watch = Callable[[str, Iterable[tuple[Tensor, ...]]], Iterable[tuple[Tensor, ...]]]


def answer(model: MaskedModel | Ensemble, target: Target, pred: Predictive) -> Answers:
    """Values [batch] of a prediction in the data's units; ``probabilities`` [batch, classes]."""
    if target.likelihood == "gaussian":
        shift, scale = target.mean, target.std
        numbers = {
            "mean": pred.mean * scale + shift,
            "std": pred.variance().sqrt() * scale,
            "aleatoric_std": pred.aleatoric_variance().sqrt() * scale,
            "epistemic_std": pred.epistemic_variance().sqrt() * scale,
        }
        for name, probability in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
            numbers[name] = pred.quantile(probability) * scale + shift
        return {name: value.flatten() for name, value in numbers.items()}
    probabilities = pred.mean
    if target.likelihood == "binary":
        probabilities = torch.stack([1 - probabilities, probabilities], -1)
    disagreement = _no_rounding(model, "mutual_information", pred.mutual_information())
    return {
        "probabilities": probabilities,
        "confidence": pred.max_probability(),
        "entropy": pred.entropy(),
        "mutual_information": disagreement,
        "dempster_shafer": pred.dempster_shafer(),
    }


def scores_by_name(
    model: MaskedModel | Ensemble, pred: Predictive, names: Iterable[str]
) -> Answers:
    """Scores of a prediction: methods of :class:`Predictive`.

    With ``-draws`` at the end of its name, a score is taken of every draw and then averaged.
    """
    scores = {}
    for name in names:
        score = getattr(pred, name.removesuffix(EACH_DRAW))
        by_draw = name.endswith(EACH_DRAW)
        values = score(combine="draws") if by_draw else pred.score(name)
        scores[name] = _no_rounding(model, name, values)
    return scores


def _no_rounding(model: MaskedModel | Ensemble, score: str, values: Tensor) -> Tensor:
    """Scores that compare draws are zero where all draws are the same, but for rounding."""
    same = isinstance(model, MaskedModel) and model.method.deterministic
    return torch.zeros_like(values) if same and score in COMPARED else values


def collect(
    model: MaskedModel | Ensemble,
    target: Target,
    batches: Iterable[tuple[Tensor, ...]],
    samples: int,
    seed: int,
    advance: Callable[[int], None] = lambda done: None,
    decide: Callable[[Predictive], Answers] = lambda pred: {},
) -> Answers:
    """Predict all batches of inputs, as the network takes them; with labels, also ``log_prob``.

    ``advance`` is called with the number of examples of each batch that is done. ``decide`` gives
    more answers of a prediction.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    parts: list[Answers] = []
    for batch in batches:
        x, *labels = (tensor.to(device) for tensor in batch)
        pred = model.predict(x, samples=samples, generator=generator)
        answers = answer(model, target, pred) | decide(pred)
        if labels:
            answers["log_prob"] = pred.log_prob(labels[0])
            if target.likelihood == "gaussian":  # a density, per unit of the data
                answers["log_prob"] = answers["log_prob"] - math.log(target.std)
            answers["labels"] = labels[0]
        parts.append({name: value.cpu() for name, value in answers.items()})
        advance(len(x))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def measure(target: Target, answers: Answers) -> dict[str, float]:
    """Scores of answers whose labels are known."""
    labels = answers["labels"]
    if target.likelihood == "gaussian":
        values = labels * target.std + target.mean
        interval = answers["q05"], answers["q95"]
        return metrics.regression(answers["mean"], values, answers["log_prob"], interval)
    labels, probabilities = labels.long(), answers["probabilities"]
    scores = metrics.classification(probabilities, labels, answers["log_prob"])
    if probabilities.shape[-1] == 2:
        negative, positive = (probabilities[labels == label, 1] for label in (0, 1))
        both = len(negative) and len(positive)
        ranked = metrics.detection(negative, positive) if both else {}
        scores |= {name: ranked.get(name, math.nan) for name in ("auroc", "aupr")}
    return scores


def evaluate(
    model: MaskedModel | Ensemble,
    problem: Problem,
    part: Part,
    *,
    name: str = "test",
    rotate: bool = False,
    corrupt: Sequence[tuple[str, int]] = (),
    ood: Sequence[str] = (),
    data_dir: str | Path | None = None,
    samples: int = 20,
    seed: int = 0,
    watch: Watch = lambda what, batches: batches,
) -> dict[str, float]:
    """Score a model on labelled examples, which a progress bar calls ``name``.

    ``rotate`` adds scores of the images turned by angles from 0 to 360 degrees, ``corrupt`` of
    corruptions (kind and severity), ``ood`` of other data that uncertainty should detect (names of
    image sets, or paths). ``seed`` is that of draws, angles and corruptions. ``watch`` is given the
    name of what is scored and its batches, and returns these, for a progress bar.

    Returns:
        ``accuracy``, ``nll``, ``brier``, ``ece`` (two classes: ``auroc``, ``aupr``); ``rmse``,
        ``mae``, ``nll``, ``coverage90`` for numbers; the same after ``rotated/`` and, for instance,
        ``snow-3/``; and ``notmnist/entropy/auroc`` and so on for data that are unlike the part.
    """
    target = problem.target
    if (rotate or corrupt) and not isinstance(problem.inputs, Images):
        raise ConfigError(["rotations and corruptions are for images, the data are a table"])
    if ood and target.likelihood == "gaussian":
        raise ConfigError(
            ["--ood compares scores of classes, and the labels of this run are numbers"]
        )

    def answers_for(what: str, examples: Part) -> Answers:
        batches = watch(what, examples.batches(problem, BATCH))
        return collect(model, target, batches, samples, seed)

    others = {other: other_data(problem, other, data_dir) for other in ood}
    answers = answers_for(name, part)
    scores = measure(target, answers)
    shifted = {"rotated": shifts.rotate(part.x, seed=seed)} if rotate else {}
    for kind, severity in corrupt:
        frost = overlays.load_overlays(data_dir) if kind == "frost" else None
        images = corruptions.corrupt(part.x, kind, severity, seed=seed, overlays=frost)
        shifted[f"{kind}-{severity}"] = images
    for shift, images in shifted.items():
        numbers = measure(target, answers_for(shift, replace(part, x=images)))
        scores |= {f"{shift}/{metric}": value for metric, value in numbers.items()}
    for other, x in others.items():
        unlike = answers_for(other, Part(x, part.y[:1].expand(len(x))))
        for score in UNCERTAINTIES:
            numbers = metrics.detection(answers[score], unlike[score])
            prefix = f"{short_name(other)}/{score}"
            scores |= {f"{prefix}/{metric}": value for metric, value in numbers.items()}
    return scores


def other_data(problem: Problem, name: str, data_dir: str | Path | None = None) -> Tensor:
    """Inputs of other data, as the problem's own are stored; images are made to fit.

    ``name`` is that of a data set, or a path: what :func:`files.open_inputs` reads, an idx file of
    pictures, or a folder with one.
    """
    if is_file(name) and (idx := find_idx(Path(name).expanduser())):
        if not isinstance(problem.inputs, Images):
            raise DataError(f"{idx}: the model takes a table, not images")
        return fitted(read_idx(idx, 3).unsqueeze(1), problem.inputs.shape)
    if is_file(name):
        return torch.cat(list(files.open_inputs(problem, [Path(name)]).chunks()))
    if name not in IMAGE_SETS:
        near = checks.suggest(name, IMAGE_SETS)
        raise ConfigError(
            [f"--ood must be one of {', '.join(IMAGE_SETS)}, or a path, got {name!r}{near}"]
        )
    if not isinstance(problem.inputs, Images):
        raise ConfigError([f"--ood {name} are images, the model takes a table"])
    return fitted(load_images(name, "test", data_dir).images, problem.inputs.shape)


def short_name(name: str) -> str:
    """How scores name other data: as data sets are called, or the last part of a path."""
    return Path(name).name if is_file(name) else name


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images with other channels and another size, uint8 [N, *shape]."""
    channels, height, width = shape
    if images.shape[1] == 1 and channels == 3:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] == 3 and channels == 1:
        weights = torch.tensor((0.299, 0.587, 0.114)).view(3, 1, 1)  # ITU-R 601 luma
        images = (images.float() * weights).sum(1, keepdim=True).round().byte()
    if images.shape[2:] != (height, width):
        resized = F.interpolate(
            images.float(), (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        images = resized.round().clamp(0, 255).byte()
    return images.contiguous()
