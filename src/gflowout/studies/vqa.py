"""Questions about pictures with MCAN, on clean and on noisy visual features: Table 2.

``paper`` is VQA v2 with the published MCAN-small on its region features. ``cpu`` and ``smoke`` are
VQA-RAD and easy-VQA with an MCAN of one layer each way, on fixed features of a grid of cells.
Training is :func:`gflowout.training.fit`; a trained model is kept beside the runs and found again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.backbones import MCAN
from gflowout.core.ensemble import Ensemble
from gflowout.core.likelihoods import Categorical, MultiLabel
from gflowout.core.model import MaskedModel
from gflowout.core.wrap import wrap
from gflowout.data import vqa
from gflowout.data.vqa import VQABatches, VQASet
from gflowout.methods import METHODS
from gflowout.runs import Context, Result, Run, locks
from gflowout.runs.values import canonical
from gflowout.studies import models, vqa_data
from gflowout.studies.framework.arms import ARMS, Arm, trials
from gflowout.studies.framework.study import TUNING, Chosen, Options, Study
from gflowout.studies.vqa_data import Prepared
from gflowout.studies.vqa_section import section
from gflowout.training import FitOptions, FitResult, fit

DATA = {"smoke": ("vqa-rad", "easy-vqa"), "cpu": ("vqa-rad", "easy-vqa"), "paper": ("vqa-v2",)}
SEEDS = {"smoke": 1, "cpu": 5, "paper": 9}
SAMPLES = {"smoke": 3, "cpu": 20, "paper": 20}
TRIAL_SEED = {"smoke": 0, "cpu": 100, "paper": 100}
"""Of the trials: another choice of validation questions than any run has, where there is time."""

# On one core at 2.8 GHz a step of 32 questions takes 27 ms without masks and up to 110 ms with
# those of "combined"; half a thousand steps are enough to answer from the picture.
_SMALL: Options = {
    "net.layers": 1, "net.width": 64, "net.heads": 4, "net.hidden": 128, "net.embedding_size": 32,
    "net.reduction_hidden": 64, "net.reduced": 128, "fit.schedule": "cosine",
    "fit.valid_samples": 3, "batch": 32, "grid": 4, "size": 64, "train": 3000, "valid": 400,
    "test": 600,
}  # fmt: skip
_TINY: Options = {
    **_SMALL, "net.width": 16, "net.hidden": 16, "net.embedding_size": 8,
    "net.reduction_hidden": 16, "net.reduced": 16, "fit.epochs": 1, "fit.valid_samples": 1,
    "train": 120, "valid": 40, "test": 40, "batch": 30,
}  # fmt: skip
_SIZES: dict[str, dict[str, Options]] = {
    "smoke": {
        "vqa-rad": {**_TINY, "length": 8, "size": 32},
        "easy-vqa": {**_TINY, "length": 8, "size": 16, "grid": 2},
    },
    "cpu": {
        "vqa-rad": {**_SMALL, "length": 12, "fit.epochs": 8},
        "easy-vqa": {**_SMALL, "length": 8, "fit.epochs": 5},
    },
    # Sizes and schedule of the published MCAN-small.
    "paper": {
        "vqa-v2": {
            "net.layers": 6, "net.width": 512, "net.heads": 8, "net.hidden": 2048,
            "net.embedding_size": 300, "net.reduction_hidden": 512, "net.reduced": 1024,
            "net.dropout": 0.1, "fit.epochs": 13, "fit.warmup": 3, "fit.schedule": "milestones",
            "fit.milestones": [10 / 13, 12 / 13], "fit.gamma": 0.2, "fit.patience": 3,
            "fit.valid_samples": 5, "fit.log_z_lr": 0.1, "batch": 64, "length": 14,
            "features": 2048, "held_out": 0.1, "min_count": 8, "train": None, "valid": None,
            "test": None,
        },
    },
}  # fmt: skip
_TRIAL_EPOCHS = {"vqa-rad": 4, "easy-vqa": 3, "vqa-v2": 6}
"""Trials of ``cpu`` and ``paper`` are about half as long."""
_RATES = {"smoke": (1e-2,), "cpu": (2e-3,), "paper": (5e-5, 1e-4, 2e-4)}
_OWN = {"smoke": 1, "cpu": 3, "paper": 3}
NOISES = {"smoke": (2.0,), "cpu": (0.5, 1.0, 2.0, 4.0), "paper": (1.0, 2.0, 5.0)}
"""Standard deviations of the noise; features have one of 1, those of VQA v2 are as published."""
NOISY = {"smoke": 2.0, "cpu": 2.0, "paper": 5.0}
"""The one that is called noisy in the table; the paper does not state its own."""
_NOISE_SEED = 0
"""The same noise for every arm and seed."""
_TEST_BATCH = 200
_APART = 1000
"""Between the seeds of an ensemble's members; the first member is the single network."""


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation questions."""
    return [
        Run(
            TUNING,
            arm.label,
            data,
            TRIAL_SEED[preset],
            {**_options(preset, data), **_trial(preset, data), "tuned": tuned},
        )
        for data in DATA[preset]
        for arm in ARMS.values()
        for tuned in trials(arm, _RATES[preset], _OWN[preset])
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set, seed by seed."""
    return [
        Run(
            "vqa",
            arm.label,
            data,
            seed,
            {
                **_options(preset, data),
                "noises": list(NOISES[preset]),
                "noisy": NOISY[preset],
                "tuned": chosen.get(
                    (data, arm.label), trials(arm, _RATES[preset], _OWN[preset])[0]
                ),
            },
        )
        for seed in range(SEEDS[preset])
        for data in DATA[preset]
        for arm in ARMS.values()
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: train and score on validation questions. A run: then answer the test questions."""
    trial = run.study == TUNING
    arm = ARMS[run.method]
    data = vqa_data.load(run.data, run.seed, run.options, context.folder.parent)
    # Of an ensemble one member is tuned: what is good for it is good for all.
    members = 1 if trial else arm.members
    found = [_trained(arm, run, data, place, context) for place in range(members)]
    results = [result for _, result in found]
    first = results[0]
    metrics: dict[str, Any] = {
        "epochs_trained": sum(len(result.history) for result in results),
        "best_epoch": first.best_epoch,
        "parameters": sum(p.numel() for model, _ in found for p in model.parameters()),
        "valid/nll": first.best_score,
    }
    used = {"train": _checksum(data.train), "valid": _checksum(data.valid)}
    if trial:
        return {"metrics": metrics, "epochs": [*first.history], "data": used}
    model = found[0][0] if members == 1 else Ensemble([model for model, _ in found])
    alone = data.test.accuracy(vqa_data.question_only(data))
    metrics |= _prefixed("question", vqa.by_type(alone, data.test.types))
    levels = [0.0, *run.options["noises"]]
    for place, noise in enumerate(levels):
        context.progress(place, len(levels), f"noise {noise:g}")
        numbers = scored(model, data, noise, run.options["samples"], run.seed)
        names = [f"noise-{noise:g}"] if noise else ["clean"]
        names += ["noisy"] * (noise == run.options["noisy"])
        for name in names:
            metrics |= _prefixed(name, numbers)
    metrics["questions"] = {
        kind: int((data.test.types == position).sum()) for position, kind in enumerate(vqa.TYPES)
    }
    used["test"] = _checksum(data.test)
    return {"metrics": metrics, "epochs": [*first.history], "data": used}


def scored(
    model: MaskedModel | Ensemble, data: Prepared, noise: float, samples: int, seed: int
) -> dict[str, float]:
    """Official accuracy of the test questions, for all and by type, and the NLL.

    Args:
        model: The model.
        data: The questions.
        noise: Standard deviation of the noise on visual features; padded regions have none.
        samples: Draws of masks.
        seed: Of the draws.

    Returns:
        ``all``, ``yes/no``, ``number``, ``other`` where there are such questions; ``nll`` over
        questions with an answer that the model knows.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    classes, log_probs = [], []
    for visual, tokens, scores in VQABatches(
        data.test, batch_size=_TEST_BATCH, seed=_NOISE_SEED, noise=noise
    ):
        pred = model.predict(
            visual.to(device), tokens.to(device), samples=samples, generator=generator
        )
        classes.append(pred.mean.argmax(-1).cpu())
        known = scores.sum(-1) > 0
        label = scores.argmax(-1) if data.single else scores
        log_probs.append(pred.log_prob(label.to(device)).cpu()[known])
    found = vqa.by_type(data.test.accuracy(torch.cat(classes)), data.test.types)
    return {**found, "nll": -float(torch.cat(log_probs).double().mean())}


def single_answer(batch: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any], Tensor]:
    """A batch with classes instead of scores, for :func:`gflowout.training.fit`."""
    return tuple(batch[:-1]), {}, batch[-1].argmax(-1)


def build(arm: Arm, config: Mapping[str, Any], data: Prepared, seed: int) -> MaskedModel:
    """The wrapped MCAN of a configuration; the global random state is left alone.

    Args:
        arm: The arm.
        config: By dotted key: ``net.`` for MCAN, ``method.options.`` for the method.
        data: The questions, for sizes and an example.
        seed: Of the weights.
    """
    options = _under("method.options.", config)
    kind = METHODS[arm.method].Options
    if any(field.name == "train_size" for field in dataclasses.fields(kind)):
        options.setdefault("train_size", len(data.train))
    visual, tokens, _ = data.train.batch([0, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MCAN(data.words, data.answers, data.feature_size, **_under("net.", config))
        return wrap(
            net,
            arm.method,
            net.sites,
            likelihood=Categorical(data.answers) if data.single else MultiLabel(data.answers),
            example=(visual, tokens),
            **options,
        )


def configuration(arm: Arm, run: Run) -> Options:
    """What makes a model of a run, by dotted key and ``batch``."""
    options = {key: value for key, value in run.options.items() if "." in key or key in _OF_DATA}
    return {**options, **arm.options, **run.options["tuned"], "data": run.data}


def fit_options(config: Mapping[str, Any], seed: int) -> FitOptions:
    """How to train."""
    return FitOptions(**_under("fit.", config), seed=seed)


def _trained(
    arm: Arm, run: Run, data: Prepared, place: int, context: Context
) -> tuple[MaskedModel, FitResult]:
    """One member: trained now, or found in the store."""
    config = configuration(arm, run)
    seed = run.seed + _APART * place
    values = {**config, "method": arm.method, "split": run.seed, "seed": seed}
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    folder = context.folder.parent / models.STORE / f"vqa-{arm.method}-s{seed}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    model = build(arm, config, data, seed)
    train = VQABatches(data.train, batch_size=config["batch"], shuffle=True, seed=seed)
    # Another run may be training the same model: then it is done when the lock is free.
    with locks.hold(folder / ".wanted.lock", wait=True):
        result = fit(
            model,
            train,
            VQABatches(data.valid, batch_size=_TEST_BATCH),
            fit_options(config, seed),
            folder=folder,
            progress=False,
            unpack=single_answer if data.single else None,
        )
    if torch.cuda.is_available():
        model.to("cuda")
    return model, result


_OF_DATA = (
    "batch", "grid", "size", "length", "train", "valid", "features", "held_out", "min_count"
)  # fmt: skip


def _options(preset: str, data: str) -> Options:
    return {**_SIZES[preset][data], "samples": SAMPLES[preset]}


def _trial(preset: str, data: str) -> Options:
    return {} if preset == "smoke" else {"fit.epochs": _TRIAL_EPOCHS[data]}


def _under(prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): tuple(value) if isinstance(value, list) else value
        for key, value in config.items()
        if key.startswith(prefix)
    }


def _checksum(questions: VQASet) -> str:
    """Of tokens, pictures asked about and targets; pictures themselves are large."""
    state = hashlib.sha256()
    for part in (questions.tokens, questions.image_index, questions.question_ids):
        state.update(part.contiguous().numpy().tobytes())
    state.update("\n".join("|".join(each) for each in questions.answers).encode())
    return f"sha256:{state.hexdigest()}"


def _prefixed(prefix: str, found: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in found.items()}


STUDY = Study(
    name="vqa",
    title="Questions about pictures",
    question=(
        "Do learned masks on a transformer help it to answer questions about pictures when its "
        "visual features are noisy?"
    ),
    paper="Table 2",
    work="gflowout.studies.vqa:work",
    tuning=tuning,
    runs=runs,
    needs=lambda run: [run.data],
    section=section,
)
