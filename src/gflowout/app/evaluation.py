"""Scores of a trained model: on its own data, on shifted images, and against other data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app import inputs, metrics, scores
from gflowout.app.config import ConfigError, is_file
from gflowout.app.preprocess import Images, Problem
from gflowout.app.tasks import Part
from gflowout.core import checks
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.images import IMAGE_SETS, load_images

_GREY = (0.299, 0.587, 0.114)
_FLOAT = torch.float32
BATCH = 500
Watch = Callable[[str, Iterable[tuple[Tensor, ...]]], Iterable[tuple[Tensor, ...]]]


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
    """Score a model.

    Args:
        model: The model, or an ensemble.
        problem: What it takes and gives.
        part: Labelled examples.
        name: What these are called on a progress bar.
        rotate: Also score the images turned by angles from 0 to 360 degrees.
        corrupt: Also score the images with these corruptions: kind and severity.
        ood: Also tell these data from the part, by uncertainty: names of image sets, or paths.
        data_dir: Directory of all data sets.
        samples: Draws of masks.
        seed: Of draws, angles and corruptions.
        watch: Is given the name of what is scored and its batches, and returns these; for a
            progress bar.

    Returns:
        ``accuracy``, ``nll``, ``brier``, ``ece`` (two classes: ``auroc``, ``aupr``); ``rmse``,
        ``mae``, ``nll``, ``coverage90`` for numbers; the same after ``rotated/`` and, for instance,
        ``snow-3/``; and ``notmnist/entropy/auroc`` and so on for data that are unlike the part.

    Raises:
        ConfigError: If something is asked for that the data do not have.
        DataError: If data are missing or damaged.
    """
    target = problem.target
    if (rotate or corrupt) and not isinstance(problem.inputs, Images):
        raise ConfigError(["rotations and corruptions are for images, the data are a table"])
    if ood and target.likelihood == "gaussian":
        raise ConfigError(["telling data apart by uncertainty is for classes, not for numbers"])

    def answers(what: str, examples: Part) -> scores.Answers:
        batches = watch(what, examples.batches(problem, BATCH))
        return scores.collect(model, target, batches, samples, seed)

    unlike = {other: other_data(problem, other, data_dir) for other in ood}
    known = answers(name, part)
    found = scores.measure(target, known)
    shifted: dict[str, Tensor] = {}
    if rotate:
        shifted["rotated"] = shifts.rotate(part.x, seed=seed)
    for kind, severity in corrupt:
        frost = overlays.load_overlays(data_dir) if kind == "frost" else None
        shifted[f"{kind}-{severity}"] = corruptions.corrupt(
            part.x, kind, severity, seed=seed, overlays=frost
        )
    for shift, images in shifted.items():
        numbers = scores.measure(target, answers(shift, replace(part, x=images)))
        found |= {f"{shift}/{metric}": value for metric, value in numbers.items()}
    for other, x in unlike.items():
        unknown = answers(other, Part(x, part.y[:1].expand(len(x))))
        for score in scores.UNCERTAINTIES:
            numbers = metrics.detection(known[score], unknown[score])
            found |= {
                f"{Path(other).name}/{score}/{metric}": value for metric, value in numbers.items()
            }
    return found


def other_data(problem: Problem, name: str, data_dir: str | Path | None = None) -> Tensor:
    """Inputs of other data, as the problem's own are stored; images are made to fit."""
    if is_file(name):
        return inputs.read_all(problem, Path(name))
    if name not in IMAGE_SETS:
        near = checks.suggest(name, IMAGE_SETS)
        raise ConfigError(
            [f"--ood must be one of {', '.join(IMAGE_SETS)}, or a path, got {name!r}{near}"]
        )
    if not isinstance(problem.inputs, Images):
        raise ConfigError([f"--ood {name} are images, the model takes a table"])
    return fitted(load_images(name, "test", data_dir).images, problem.inputs.shape)


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images with other channels and another size, uint8 [N, *shape]."""
    channels, height, width = shape
    if images.shape[1] == 1 and channels == 3:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] == 3 and channels == 1:
        weights = images.new_tensor(_GREY, dtype=_FLOAT).view(3, 1, 1)
        images = (images.to(_FLOAT) * weights).sum(1, keepdim=True).round().byte()
    if images.shape[2:] != (height, width):
        resized = F.interpolate(
            images.to(_FLOAT), (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        images = resized.round().clamp(0, 255).byte()
    return images.contiguous()
