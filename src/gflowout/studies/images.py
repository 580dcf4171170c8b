"""What the studies on images share: their sizes, runs and trials, shifted images and scores.

Robustness, out-of-distribution detection and masks use the same configurations, so that a model of
one serves the others; block order and adaptation change them and train their own.
"""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.app import evaluation as scores
from gflowout.app.tasks import Part
from gflowout.core import optional
from gflowout.core.atomic_io import write_file
from gflowout.core.text import counted
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.splits import split
from gflowout.runs import Context, Result, Run
from gflowout.studies import models
from gflowout.studies.framework.sections import seeds_done
from gflowout.studies.framework.study import (
    ARMS,
    TUNING,
    Arm,
    Chosen,
    Options,
    Record,
    sources,
    trials,
)
from gflowout.studies.models import Fitted

CIFAR = ("cifar10", "cifar100")
DATA = ("mnist", *CIFAR)
TITLES = {
    "mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN",
    "notmnist": "notMNIST",
}  # fmt: skip
SHIFTS = {"snow": "snow", "frost": "frost", "gaussian_noise": "Gaussian noise"}
SEVERITIES = corruptions.SEVERITIES
ROTATED = "rotated"
SAME = "unshifted"
"""Clean scores of the images that were corrupted: severity 0."""

STORE = "shifts"
"""Folder of the shifted images, beside the folders of the runs."""
BATCH = 250
_SEED = 0
"""Of test subsets and shifts: the same images for every arm and seed."""

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
_TRIALS: dict[tuple[str, str], Options] = {
    ("cpu", "mnist"): {"data.limit": 20000, "fit.epochs": 6},
    ("cpu", "cifar"): {"data.limit": 1800, "fit.epochs": 3},
    ("paper", "cifar"): {"fit.epochs": 60, "fit.patience": 20},
}
"""How trials differ: fewer images and epochs where the whole would cost too much."""
_RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "smoke": {"mnist": (1e-3,), "cifar": (3e-3,)},
    "cpu": {"mnist": (1e-3, 3e-3), "cifar": (2e-3, 6e-3)},
    "paper": {"mnist": (3e-4, 1e-3, 3e-3), "cifar": (0.02, 0.05, 0.1)},
}
_OWN = {"smoke": 1, "cpu": 3, "paper": 3}
_SCORED: dict[str, dict[str, tuple[int, int]]] = {
    "smoke": {"mnist": (40, 20), "cifar": (20, 10)},
    "cpu": {"mnist": (10000, 2000), "cifar": (1000, 200)},
    "paper": {"mnist": (10000, 10000), "cifar": (10000, 10000)},
}
"""Test images that are scored clean and rotated, and with each corruption."""
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
        >>> from gflowout.studies.framework.study import ARMS
        >>> base("paper", "cifar10", ARMS["mc"])["backbone.width"]
        64
    """
    options = {"data.source": data, **_NETWORKS[preset][_kind(data)]}
    if data == "cifar10" and preset != "paper":
        options["data.partial"] = True
    if preset == "cpu" and data in CIFAR and arm.label in _FEW_DRAWS:
        options["method.options.draws"] = 2
    return options


def scored_images(preset: str, data: Iterable[str], **more: Any) -> dict[str, Options]:
    """Numbers of test images by data set, clean and with each corruption; and more options."""
    return {
        name: {
            **dict(zip(("test", "corrupted"), _SCORED[preset][_kind(name)], strict=True)),
            **more,
        }
        for name in data
    }


def _kind(data: str) -> str:
    return "cifar" if data in CIFAR else data


def tuning(preset: str, data: Iterable[str]) -> list[Run]:
    """Trials of every arm: as many for each, all judged on validation data alone.

    ``smoke`` tunes on MNIST only.
    """
    return [
        Run(
            TUNING,
            arm.label,
            name,
            0,
            {
                **base(preset, name, arm),
                **_TRIALS.get((preset, _kind(name)), {}),
                "data.seed": 0,
                "samples": SAMPLES[preset],
                "tuned": tuned,
            },
        )
        for name in data
        if preset != "smoke" or name == "mnist"
        for arm in ARMS.values()
        for tuned in trials(arm, _RATES[preset][_kind(name)], _OWN[preset])
    ]


def runs(
    study: str,
    preset: str,
    chosen: Chosen,
    data: Iterable[str],
    options: Mapping[str, Mapping[str, Any]],
    seeds: Mapping[str, int] | None = None,
) -> list[Run]:
    """Runs of every arm on every data set, seed by seed.

    Args:
        study: Name of the study.
        preset: Its preset.
        chosen: Tuned options.
        data: Names of data sets.
        options: By data set; those with a dot change the configuration.
        seeds: How many by data set; default: :data:`SEEDS`.
    """
    counts = SEEDS[preset] if seeds is None else seeds
    data = list(data)
    return [
        Run(
            study,
            arm.label,
            name,
            seed,
            {
                **base(preset, name, arm),
                **options[name],
                # Members of an ensemble share data and label noise with the single networks.
                "data.seed": seed,
                "samples": SAMPLES[preset],
                "tuned": chosen.get((name, arm.label), {}),
            },
        )
        for seed in range(max(counts[name] for name in data))
        for name in data
        if seed < counts[name]
        for arm in ARMS.values()
    ]


def with_frost(run: Run) -> list[str]:
    """Names of the data sets that a run of :func:`curves` reads, or a trial."""
    return sources(run) if run.study == TUNING else [*sources(run), "frost"]


def trained(run: Run, context: Context) -> Fitted:
    """The model of a run: trained now, or found in the store; options with a dot configure it."""
    arm, tuned = ARMS[run.method], run.options["tuned"]
    return models.fitted(arm, models.dotted(run), tuned, run.seed, context)


def trial(run: Run, context: Context) -> Result:
    """One trial: train and score on validation data. Nothing here looks at test data.

    Of an ensemble one member is trained: what is good for it is good for all.
    """
    single = dataclasses.replace(ARMS[run.method], members=1)
    fitted = models.fitted(single, models.dotted(run), run.options["tuned"], run.seed, context)
    return {
        "metrics": scored(answer(fitted, fitted.task.valid, run), fitted, "valid"),
        "epochs": fitted.epochs,
        "data": {name: fitted.task.fingerprints[name] for name in ("train", "valid")},
    }


def trial_or(
    test: Callable[[Run, Fitted, Context], dict[str, Any]], run: Run, context: Context
) -> Result:
    """A trial, or a run: train the model and add what a function measures on test data."""
    if run.study == TUNING:
        return trial(run, context)
    fitted = trained(run, context)
    metrics = {**fitted.facts, **test(run, fitted, context)}
    return {"metrics": metrics, "epochs": fitted.epochs, "data": fitted.task.fingerprints}


def answer(fitted: Fitted, part: Part, run: Run) -> scores.Answers:
    """What a model predicts for labelled images."""
    batches, target = part.batches(fitted.problem, BATCH), fitted.problem.target
    return scores.collect(fitted.model, target, batches, run.options["samples"], run.seed)


def subset(part: Part, first: int, count: int) -> Part:
    """At most ``count`` images with classes in equal shares, also among the ``first``."""
    count = min(count, len(part))
    first = min(first, count)
    rows = split(len(part), (first, count - first), seed=_SEED, stratify=part.y.long())
    chosen = torch.cat(rows)
    return Part(part.x[chosen], part.y[chosen])


def shifted(images: Tensor, shift: str, severity: int, fitted: Fitted, context: Context) -> Tensor:
    """Test images, uint8 [N, C, H, W], rotated or corrupted; made once for all runs."""
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    digest = Part(images, images[:, 0, 0, 0]).fingerprint().removeprefix("sha256:")[:16]
    path = context.folder.parent / STORE / f"{shift}-{severity}-{digest}.safetensors"
    if path.is_file():
        try:
            return load(path.read_bytes())["images"]
        except (SafetensorError, KeyError):  # damaged: made again
            pass
    if shift == ROTATED:
        images = shifts.rotate(images, seed=_SEED)
    else:
        frost = None
        if shift == "frost":
            frost = overlays.load_overlays(fitted.configs[0].data.directory)
        images = corruptions.corrupt(images, shift, severity, seed=_SEED, overlays=frost)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda stream: stream.write(save({"images": images.contiguous()})))
    return images


def scored(answers: scores.Answers, fitted: Fitted, name: str) -> dict[str, float]:
    """Metrics of answers, under the name of what was asked."""
    metrics = scores.measure(fitted.problem.target, answers)
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def curves(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """Scores of clean, rotated and corrupted test images.

    Options: ``test`` and ``corrupted``, how many images are scored clean and rotated, and at each
    severity of each corruption.
    """
    few = run.options["corrupted"]
    part = subset(fitted.task.part("test"), few, run.options["test"])
    clean = answer(fitted, part, run)
    metrics: dict[str, Any] = scored(clean, fitted, "clean")
    metrics |= scored({name: values[:few] for name, values in clean.items()}, fitted, SAME)
    turned = dataclasses.replace(part, x=shifted(part.x, ROTATED, 0, fitted, context))
    metrics |= scored(answer(fitted, turned, run), fitted, ROTATED)
    kinds = [(shift, severity) for shift in SHIFTS for severity in SEVERITIES]
    for place, (shift, severity) in enumerate(kinds):
        context.progress(place, len(kinds), f"{shift} {severity}")
        images = shifted(part.x[:few], shift, severity, fitted, context)
        answers = answer(fitted, Part(images, part.y[:few]), run)
        metrics |= scored(answers, fitted, f"{shift}-{severity}")
    if run.method == "gflowout" and run.seed == 0:
        mixed = torch.cat([part.x[:60], turned.x[60:120]])
        metrics["pictures"] = pictures(fitted, Part(mixed, part.y[:120]), run)
        metrics["classes"] = list(fitted.problem.target.classes)
    return metrics


def pictures(fitted: Fitted, part: Part, run: Run, count: int = 12) -> list[dict[str, Any]]:
    """Some images with their predictions, at equal steps in the order of their entropy.

    Returns:
        Fields of :class:`gflowout.studies.framework.content.Picture`.
    """
    (x, y) = next(iter(part.batches(fitted.problem, len(part))))
    generator = torch.Generator().manual_seed(run.seed)
    x = x.to(next(fitted.model.parameters()).device)
    pred = fitted.model.predict(x, samples=run.options["samples"], generator=generator)
    mean, entropy = pred.mean.cpu(), pred.entropy().cpu()
    spread = pred.samples.std(0, correction=0).cpu()
    order = entropy.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(count, len(order))).round().long()]
    classes = fitted.problem.target.classes
    return [
        {
            "png": png(part.x[row]),
            "title": classes[int(y[row])],
            "probabilities": _rounded(mean[row]),
            "spread": _rounded(spread[row]),
            "uncertainty": round(float(entropy[row]), 4),
        }
        for row in chosen.tolist()
    ]


def png(image: Tensor) -> str:
    """An image, uint8 [C, H, W], as base64 of a PNG."""
    pillow = optional.require("PIL.Image", extra="data", purpose="pictures of a report")
    array = image.permute(1, 2, 0).numpy()
    stream = io.BytesIO()
    pillow.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(
        stream, "PNG", optimize=True
    )
    return base64.b64encode(stream.getvalue()).decode()


def _rounded(values: Tensor) -> Sequence[float]:
    return [round(value, 4) for value in values.tolist()]


# What sections say of the setting


def setting(records: Iterable[Record], data: str) -> str:
    """What was trained on and how many seeds are done, from the records."""
    records = list(records)
    options = next(record["options"] for record in records if record["data"] == data)
    epochs, limit = options["fit.epochs"], options.get("data.limit")
    network = "an MLP 784-300-100-10"
    if data != "mnist":
        width = options.get("backbone.width", 64)
        network = f"a ResNet-18 of width {width}" + ("" if width == 64 else " (the paper's: 64)")
    amount = "all training images there are" if limit is None else f"{limit:,} training images"
    return (
        f"{TITLES[data]}: {network}, {amount} (validation included), {counted(epochs, 'epoch')} at "
        f"most, {options['samples']} draws, {seeds_done(records, data)}."
    )


def scale(records: Iterable[Record]) -> str:
    """What to bear in mind where networks are smaller than the paper's; else nothing."""
    for record in records:
        options = record["options"]
        width, limit = options.get("backbone.width", 64), options.get("data.limit")
        if record["data"] in CIFAR and (width < 64 or limit is not None):
            images = "" if limit is None else f" and {limit:,} images to train and validate"
            return f" CIFAR here: a ResNet-18 of width {width} (the paper's: 64){images}."
    return ""
