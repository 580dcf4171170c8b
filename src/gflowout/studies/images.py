"""What the studies on images share: sizes, runs and trials, trained models, shifts and scores.

Robustness, out-of-distribution detection and masks use the same configurations, so that a model of
one serves the others; block order and adaptation change them and train their own.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from gflowout.app import evaluation as scores
from gflowout.app import run as pipeline
from gflowout.app.config import Config, flat, from_flat
from gflowout.app.preprocess import Problem
from gflowout.app.sources import Part, Task
from gflowout.core.atomic_io import write_file
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.text import counted
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.splits import split
from gflowout.runs import Context, Result, Run, locks
from gflowout.runs.spec import canonical
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import entry
from gflowout.studies.framework.content import Block, Claim, Section, Text
from gflowout.studies.framework.statistics import Record, prefixed
from gflowout.studies.framework.study import ARMS, TUNING, Arm, Chosen, Options, trials

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

SHIFTED, STORE = "shifts", "models"
"""Folders of shifted images and of trained models, beside the folders of the runs: they live and
die with them, and on a cluster they are on the file system that the runs share."""
BATCH = 250
_SEED = 0
"""Of test subsets and shifts: the same images for every arm and seed."""
APART = 1000
"""Between the seeds of an ensemble's members; the first member is the single network."""

PRESETS: dict[str, dict[str, Options]] = tomllib.loads(
    resources.files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
)
"""Sizes by study, or kind of data, and preset."""
ONE_CIFAR = {"smoke": CIFAR[:1], "cpu": CIFAR[:1], "paper": CIFAR}
"""Data of studies whose "cpu" has no hours for CIFAR-100."""
_FEW_DRAWS = ("id-gflowout", "combined")
"""Arms whose steps score 4 masks by default, of which "cpu" affords 2 on CIFAR."""


def base(preset: str, data: str, arm: Arm) -> Options:
    """The configuration of an arm before tuning, by dotted key."""
    options = {"data.source": data, **sizes(preset, data)["options"]}
    if data == "cifar10" and preset != "paper":
        options["data.partial"] = True
    if preset == "cpu" and data in CIFAR and arm.label in _FEW_DRAWS:
        options["method.options.draws"] = 2
    return options


def sizes(preset: str, data: str) -> Options:
    """Sizes of a data set, as ``presets.toml`` describes them."""
    return PRESETS["cifar" if data in CIFAR else data][preset]


def scored_images(preset: str, data: Iterable[str], **more: Any) -> dict[str, Options]:
    """Numbers of test images by data set, clean and with each corruption; and more options."""
    return {
        name: {**{key: sizes(preset, name)[key] for key in ("test", "corrupted")}, **more}
        for name in data
    }


def tuning(preset: str, data: Iterable[str]) -> list[Run]:
    """Trials of every arm: as many for each, all judged on validation data alone.

    ``smoke`` tunes on MNIST only.
    """
    data = [name for name in data if preset != "smoke" or name == "mnist"]
    return [
        _run(TUNING, preset, name, arm, 0, sizes(preset, name)["trial"], tuned)
        for name in data
        for arm in ARMS.values()
        for tuned in trials(arm, sizes(preset, name)["rates"], sizes(preset, name)["own"])
    ]


def runs(
    study: str,
    preset: str,
    chosen: Chosen,
    data: Iterable[str],
    options: Mapping[str, Options],
    seeds: int | None = None,
) -> list[Run]:
    """Runs of every arm on every data set, seed by seed.

    ``options`` are given by data set, and those with a dot change the configuration. ``seeds`` is
    the number of seeds of every data set, instead of that of the preset.
    """
    counts = {name: seeds or sizes(preset, name)["seeds"] for name in data}
    return [
        _run(study, preset, name, arm, seed, options[name], chosen.get((name, arm.label), {}))
        for seed in range(max(counts.values()))
        for name, count in counts.items()
        if seed < count
        for arm in ARMS.values()
    ]


def _run(
    study: str, preset: str, data: str, arm: Arm, seed: int, changes: Options, tuned: Options
) -> Run:
    # Members of an ensemble share data and label noise with the single networks.
    shared = {"data.seed": seed, "samples": sizes(preset, data)["samples"], "tuned": tuned}
    return Run(study, arm.label, data, seed, {**base(preset, data, arm), **changes, **shared})


# Trained models: each is trained once for all runs and studies that need it


@dataclass(frozen=True)
class Fitted:
    """What an arm has learned: a model or an ensemble, with the configuration of each member.

    ``epochs`` has the numbers of every epoch of the first member; ``facts`` are ``epochs_trained``,
    ``best_epoch`` and ``parameters``, over all members where they add up.
    """

    model: MaskedModel | Ensemble
    problem: Problem
    task: Task
    epochs: list[Mapping[str, Any]]
    facts: dict[str, float]
    configs: list[Config]


def settings(arm: Arm, base: Mapping[str, Any], tuned: Mapping[str, Any], seed: int) -> Config:
    """The configuration of an arm: that of all arms, by dotted key, and what was tuned.

    Examples:
        >>> config = settings(ARMS["control"], {"data.source": "mnist"}, {"fit.lr": 0.01}, seed=3)
        >>> config.method.name, config.method.options, config.fit.lr, config.seed
        ('gflowout', {'beta': 0.0}, 0.01, 3)
    """
    return from_flat({**base, **arm.options, **tuned, "method.name": arm.method, "seed": seed})


def fitted(
    arm: Arm, base: Mapping[str, Any], tuned: Mapping[str, Any], seed: int, context: Context
) -> Fitted:
    """Train an arm with :func:`settings`, or take what an earlier run has trained."""
    wanted = [settings(arm, base, tuned, seed + APART * place) for place in range(arm.members)]
    members: list[pipeline.Trained] = []
    for config in wanted:
        # With a seed of their own, data are the same for all members: read them once.
        task = members[0].task if members and config.data.seed is not None else None
        members.append(_train(config, context, task))
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
    values = {key: v for key, v in flat(wanted).items() if key != "data.directory"}
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    return context.folder.parent / STORE / f"{wanted.method.name}-s{wanted.seed}-{digest}"


def _train(wanted: Config, context: Context, task: Task | None) -> pipeline.Trained:
    folder = folder_of(wanted, context)
    folder.mkdir(parents=True, exist_ok=True)
    # Another run may be training the same model: then it is done when the lock is free.
    with locks.hold(folder / ".wanted.lock", wait=True):
        return pipeline.train(wanted, folder, progress=False, report=context.progress, task=task)


def trained(run: Run, context: Context) -> Fitted:
    """The model of a run: trained now, or found in the store; options with a dot configure it."""
    return fitted(ARMS[run.method], dotted(run), run.options["tuned"], run.seed, context)


def trial(run: Run, context: Context) -> Result:
    """One trial: train and score on validation data. Nothing here looks at test data.

    Of an ensemble one member is trained: what is good for it is good for all.
    """
    arm = replace(ARMS[run.method], members=1)
    single = fitted(arm, dotted(run), run.options["tuned"], run.seed, context)
    return {
        "metrics": scored(answer(single, single.task.valid, run), single, "valid"),
        "epochs": single.epochs,
        "data": {name: single.task.fingerprints[name] for name in ("train", "valid")},
    }


def after_training(
    measure: Callable[[Run, Fitted, Context], dict[str, Any]],
) -> Callable[[Run, Context], Result]:
    """Make the work of a study from what is measured on test data; trials need nothing of it."""

    @functools.wraps(measure)
    def work(run: Run, context: Context) -> Result:
        if run.study == TUNING:
            return trial(run, context)
        model = trained(run, context)
        metrics = {**model.facts, **measure(run, model, context)}
        return {"metrics": metrics, "epochs": model.epochs, "data": model.task.fingerprints}

    return work


def answer(fitted: Fitted, part: Part, run: Run) -> scores.Answers:
    """What a model predicts for labelled images."""
    batches, target = part.batches(fitted.problem, BATCH), fitted.problem.target
    return scores.collect(fitted.model, target, batches, run.options["samples"], run.seed)


def whole_batch(fitted: Fitted, part: Part) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a part as one batch, on the device of the model."""
    device = next(fitted.model.parameters()).device
    x, y = next(iter(part.batches(fitted.problem, len(part))))
    return x.to(device), y.to(device)


def subset(part: Part, first: int, count: int) -> Part:
    """At most ``count`` images with classes in equal shares, also among the ``first``."""
    count = min(count, len(part))
    first = min(first, count)
    rows = split(len(part), (first, count - first), seed=_SEED, stratify=part.y.long())
    chosen = torch.cat(rows)
    return Part(part.x[chosen], part.y[chosen])


def shifted(images: Tensor, shift: str, severity: int, fitted: Fitted, context: Context) -> Tensor:
    """Test images, uint8 [N, C, H, W], rotated or corrupted; made once for all runs."""
    digest = Part(images, images[:, 0, 0, 0]).fingerprint().removeprefix("sha256:")[:16]
    path = context.folder.parent / SHIFTED / f"{shift}-{severity}-{digest}.safetensors"

    def make() -> Tensor:
        if shift == ROTATED:
            return shifts.rotate(images, seed=_SEED)
        directory = fitted.configs[0].data.directory
        frost = overlays.load_overlays(directory) if shift == "frost" else None
        return corruptions.corrupt(images, shift, severity, seed=_SEED, overlays=frost)

    return kept_tensor(path, "images", make)


def kept_tensor(path: Path, name: str, make: Callable[[], Tensor]) -> Tensor:
    """Read a tensor from its file; make and write it if the file is missing or damaged."""
    with suppress(FileNotFoundError, SafetensorError, KeyError):
        return safetensors.load(path.read_bytes())[name]
    tensor = make().contiguous()
    write_file(path, lambda stream: stream.write(safetensors.save({name: tensor})))
    return tensor


def scored(answers: scores.Answers, fitted: Fitted, name: str) -> dict[str, float]:
    """Metrics of answers, under the name of what was asked."""
    return prefixed(name, scores.measure(fitted.problem.target, answers))


def rounded(values: Tensor, digits: int = 4) -> list[float]:
    """Numbers for a record, [count], without needless digits."""
    return [round(value, digits) for value in values.tolist()]


# What sections say of the setting


def by_data(
    records: Sequence[Record],
    names: Sequence[str],
    study: str,
    describe: Callable[[str], tuple[Sequence[Block], Sequence[sections.Compared]]],
    claims: Sequence[Claim],
) -> Section:
    """A section with the blocks and comparisons of each data set that has records."""
    there = sections.present(records, names)
    blocks: list[Block] = []
    compared: list[sections.Compared] = []
    for data in there:
        own, metrics = describe(data)
        blocks += [Text([setting(records, data)]), *own]
        compared += metrics
    findings, details = sections.against_others(records, compared)
    if there:
        blocks += [Text([entry(f"{study}.texts")["about"]]), *sections.pair_by_pair(details)]
    return Section(findings, blocks, claims, tuple(there))


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
        f"most, {options['samples']} draws, {sections.seeds_done(records, data)}."
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
