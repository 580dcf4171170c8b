"""What the studies on images have in common: their runs and trials, shifted images, scores.

Sizes are in :mod:`gflowout.studies.images_presets`; what is said of the results in
:mod:`gflowout.studies.images_sections`.
"""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.app import evaluation as scores
from gflowout.app.tasks import Part
from gflowout.core import optional
from gflowout.core.atomic_io import write_file
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.splits import split
from gflowout.runs import Context, Result, Run
from gflowout.studies import models
from gflowout.studies.framework.arms import ARMS, trials
from gflowout.studies.framework.study import TUNING, Chosen, sources
from gflowout.studies.images_presets import SAMPLES, SEEDS, base, grid, of_trial
from gflowout.studies.models import Fitted

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


def tuning(preset: str, data: Iterable[str]) -> list[Run]:
    """Trials of every arm: as many for each, all judged on validation data alone.

    Args:
        preset: Of the study; "smoke" tunes on MNIST only.
        data: Names of data sets.
    """
    runs = []
    for name in data:
        if preset == "smoke" and name != "mnist":
            continue
        for arm in ARMS.values():
            for tuned in trials(arm, *grid(preset, name)):
                options = {
                    **base(preset, name, arm), **of_trial(preset, name),
                    "data.seed": 0, "samples": SAMPLES[preset], "tuned": tuned,
                }  # fmt: skip
                runs.append(Run(TUNING, arm.label, name, 0, options))
    return runs


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
        options: Of the study, by data set; those with a dot change the configuration.
        seeds: How many by data set; those of :data:`SEEDS` if ``None``.
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


def trained(run: Run, context: Context, changes: Mapping[str, Any] | None = None) -> Fitted:
    """The model of a run: trained now, or found in the store.

    Args:
        run: The run; its options with a dot are the configuration.
        context: Of the run.
        changes: Of the configuration.
    """
    dotted = {key: value for key, value in run.options.items() if "." in key}
    tuned = run.options["tuned"]
    return models.fitted(ARMS[run.method], {**dotted, **(changes or {})}, tuned, run.seed, context)


def trial(run: Run, context: Context) -> Result:
    """One trial: train and score on validation data. Nothing here looks at test data.

    Of an ensemble one member is trained: what is good for it is good for all.
    """
    single = dataclasses.replace(ARMS[run.method], members=1)
    dotted = {key: value for key, value in run.options.items() if "." in key}
    found = models.fitted(single, dotted, run.options["tuned"], run.seed, context)
    answers = answer(found, found.task.valid, run)
    numbers = scores.measure(found.problem.target, answers)
    return {
        "metrics": {f"valid/{name}": value for name, value in numbers.items()},
        "epochs": found.epochs,
        "data": {name: found.task.fingerprints[name] for name in ("train", "valid")},
    }


def answer(found: Fitted, part: Part, run: Run) -> scores.Answers:
    """What a model says of labelled images."""
    batches = part.batches(found.problem, BATCH)
    return scores.collect(
        found.model, found.problem.target, batches, run.options["samples"], run.seed
    )


def subset(part: Part, first: int, count: int) -> Part:
    """Images of a part, classes in equal shares, the same for every run.

    Args:
        part: All of them.
        first: So many come first, with classes in equal shares among them, too.
        count: How many in all; no more than there are.
    """
    count = min(count, len(part))
    first = min(first, count)
    rows = split(len(part), (first, count - first), seed=_SEED, stratify=part.y.long())
    chosen = torch.cat(rows)
    return Part(part.x[chosen], part.y[chosen])


def shifted(images: Tensor, shift: str, severity: int, found: Fitted, context: Context) -> Tensor:
    """Test images after a shift, made once for all runs.

    Args:
        images: uint8 [N, C, H, W].
        shift: ``"rotated"``, or a corruption.
        severity: Of a corruption.
        found: Knows where data are.
        context: Of the run.
    """
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
        made = shifts.rotate(images, seed=_SEED)
    else:
        frost = None
        if shift == "frost":
            frost = overlays.load_overlays(found.configs[0].data.directory)
        made = corruptions.corrupt(images, shift, severity, seed=_SEED, overlays=frost)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda stream: stream.write(save({"images": made.contiguous()})))
    return made


def scored(answers: scores.Answers, found: Fitted, name: str) -> dict[str, float]:
    """Metrics of answers, under the name of what was asked."""
    numbers = scores.measure(found.problem.target, answers)
    return {f"{name}/{metric}": value for metric, value in numbers.items()}


def curves(run: Run, context: Context) -> Result:
    """Train, then score clean, rotated and corrupted test images.

    Options: ``test`` and ``corrupted``, how many images are scored clean and rotated, and at each
    severity of each corruption.
    """
    found = trained(run, context)
    few = run.options["corrupted"]
    part = subset(found.task.part("test"), few, run.options["test"])
    clean = answer(found, part, run)
    metrics: dict[str, Any] = {**found.facts, **scored(clean, found, "clean")}
    metrics |= scored({name: each[:few] for name, each in clean.items()}, found, SAME)
    turned = dataclasses.replace(part, x=shifted(part.x, ROTATED, 0, found, context))
    metrics |= scored(answer(found, turned, run), found, ROTATED)
    total = len(SHIFTS) * len(SEVERITIES)
    for place, (shift, severity) in enumerate((k, s) for k in SHIFTS for s in SEVERITIES):
        context.progress(place, total, f"{shift} {severity}")
        images = shifted(part.x[:few], shift, severity, found, context)
        answers = answer(found, Part(images, part.y[:few]), run)
        metrics |= scored(answers, found, f"{shift}-{severity}")
    if run.method == "gflowout" and run.seed == 0:
        mixed = torch.cat([part.x[:60], turned.x[60:120]])
        metrics["pictures"] = pictures(found, Part(mixed, part.y[:120]), run)
        metrics["classes"] = list(found.problem.target.classes)
    return {"metrics": metrics, "epochs": found.epochs, "data": found.task.fingerprints}


def pictures(found: Fitted, part: Part, run: Run, count: int = 12) -> list[dict[str, Any]]:
    """Some images with what a model says of them, from certain to uncertain.

    Args:
        found: The model.
        part: Images to choose from.
        run: The run.
        count: How many; they stand at equal steps in the order of their entropy.

    Returns:
        Fields of :class:`gflowout.studies.framework.content.Picture`.
    """
    (x, y) = next(iter(part.batches(found.problem, len(part))))
    generator = torch.Generator().manual_seed(run.seed)
    x = x.to(next(found.model.parameters()).device)
    pred = found.model.predict(x, samples=run.options["samples"], generator=generator)
    mean, entropy = pred.mean.cpu(), pred.entropy().cpu()
    spread = pred.samples.std(0, correction=0).cpu()
    order = entropy.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(count, len(order))).round().long()]
    classes = found.problem.target.classes
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
