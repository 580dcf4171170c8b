"""What the studies on images share: sizes, runs and trials, trained models, shifts and scores.

Robustness, out-of-distribution detection and masks use the same configurations, so that a model of
one serves the others; block order and adaptation change them and train their own.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.splits import split
from gflowout.runs import Context, Result, Run, locks
from gflowout.runs.spec import canonical
from gflowout.studies.framework import keep_rates
from gflowout.studies.framework.arms import ARMS, Arm, Options, choices, of_preset, trials
from gflowout.studies.framework.statistics import prefixed
from gflowout.studies.framework.study import TUNING, Chosen

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


def tuning(preset: str, data: Iterable[str], variants: bool = False) -> list[Run]:
    """Trials of every arm of the preset: as many for each, all judged on validation data alone.

    ``smoke`` tunes on MNIST only; ``variants``: it has these arms, too.
    """
    data = [name for name in data if preset != "smoke" or name == "mnist"]
    return [
        _run(TUNING, preset, name, arm, 0, {**sizes(preset, name)["trial"], "tuned": tuned})
        for name in data
        for arm in _arms(preset, variants)
        for tuned in trials(arm, sizes(preset, name)["rates"], sizes(preset, name)["own"])
    ]


def runs(
    study: str,
    preset: str,
    chosen: Chosen,
    data: Iterable[str],
    options: Mapping[str, Options],
    seeds: int | None = None,
    variants: bool = False,
) -> list[Run]:
    """Runs of every arm of the preset on every data set, seed by seed.

    ``options`` are given by data set, and those with a dot change the configuration. ``seeds`` is
    the number of seeds of every data set, instead of that of the preset. ``variants``: ``smoke``
    has these arms, too.
    """
    counts = {name: seeds or sizes(preset, name)["seeds"] for name in data}
    return [
        _run(study, preset, name, arm, seed, {**options[name], **own})
        for seed in range(max(counts.values()))
        for name, count in counts.items()
        if seed < count
        for arm in _arms(preset, variants)
        for own in [choices(arm, functools.partial(_choice, preset, name, chosen, arm))]
    ]


def _arms(preset: str, variants: bool) -> list[Arm]:
    return list(ARMS.values()) if variants else of_preset(preset, ARMS.values())


def _choice(preset: str, data: str, chosen: Chosen, arm: Arm, label: str) -> Options:
    """What was chosen for the arm of a label, whose keep rate the other arm may take over."""
    own = base(preset, data, ARMS[label]) if label == arm.rate_of else {}
    fixed = {key: value for key, value in own.items() if key.startswith("method.")}
    return {**fixed, **chosen.get((data, label), {})}


def _run(study: str, preset: str, data: str, arm: Arm, seed: int, changes: Options) -> Run:
    # Members of an ensemble share data and label noise with the single networks.
    shared = {"data.seed": seed, "samples": sizes(preset, data)["samples"]}
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
        ('gflowout', {..., 'prior_keep': 0.5, 'beta': 0.0}, 0.01, 3)
    """
    return from_flat({**base, **arm.options, **tuned, "method.name": arm.method, "seed": seed})


def fitted(
    arm: Arm,
    base: Mapping[str, Any],
    tuned: Mapping[str, Any],
    seed: int,
    context: Context,
    partner: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train an arm with :func:`settings`, or take what an earlier run has trained.

    ``partner`` is what was tuned for the arm whose keep rate this one takes over, if it does.
    """
    if arm.rate_of:
        learned = fitted(ARMS[arm.rate_of], base, partner or {}, seed, context)
        tuned = {**tuned, **keep_rates.drop_rate(keep_rate(learned))}
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
    arm, options = ARMS[run.method], run.options
    return fitted(arm, dotted(run), options["tuned"], run.seed, context, options.get("partner"))


def keep_rate(fitted: Fitted) -> float | None:
    """Share of units that a model keeps on validation data; ``None`` if it draws no masks."""
    valid, count = fitted.task.valid, keep_rates.EXAMPLES
    x, _ = whole_batch(fitted, Part(valid.x[:count], valid.y[:count]))
    return keep_rates.kept(fitted.model, x)


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
        keep = keep_rates.as_metric(keep_rate(model))
        metrics = {**model.facts, **keep, **measure(run, model, context)}
        return {"metrics": metrics, "epochs": model.epochs, "data": model.task.fingerprints}

    return work


def answer(fitted: Fitted, part: Part, run: Run, more: Sequence[str] = ()) -> scores.Answers:
    """What a model predicts for labelled images; ``more`` names further scores."""
    batches, target = part.batches(fitted.problem, BATCH), fitted.problem.target
    return scores.collect(
        fitted.model,
        target,
        batches,
        run.options["samples"],
        run.seed,
        decide=lambda pred: scores.scores_by_name(fitted.model, pred, more),
    )


def labelled(fitted: Fitted, part: Part) -> Iterator[tuple[tuple[Tensor], Tensor]]:
    """Batches of inputs and labels."""
    return (((x,), y) for x, y in part.batches(fitted.problem, BATCH))


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
