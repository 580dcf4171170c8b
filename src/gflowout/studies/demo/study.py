"""One training run of the demo: a method, a seed, and everything measured on it.

Every method gets the same network, sites, data, schedule and number of epochs, and keeps its
library defaults; an ensemble gets several such networks, each trained on its own. The epoch is
chosen by validation NLL; the test part is looked at once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gflowout as gfo
from gflowout.studies.demo import data, metrics

DRAWS = 20
BATCH = 100
LEARNING_RATE = 5e-3
VALIDATE_EVERY = 2
ANGLES = tuple(range(0, 181, 20))
SITES = ("1", "3")

Array = NDArray[np.float32]
Model = gfo.MaskedModel | gfo.Ensemble


@dataclass(frozen=True)
class Entry:
    """A row of the comparison.

    Attributes:
        text: What it is, in plain words.
        options: Options of the method; defaults for all others.
        method: As ``gfo.wrap`` takes it, where it is not the name of the row.
        members: Number of networks; more than one form an ensemble.
    """

    text: str
    options: dict[str, Any] = field(default_factory=dict)
    method: str | None = None
    members: int = 1


METHODS = {
    "none": Entry("no dropout: one network, one answer"),
    "ensemble": Entry(
        "deep ensemble: five networks without dropout that started from different weights",
        method="none",
        members=5,
    ),
    "mc": Entry("MC dropout: units are dropped by the toss of a coin, also when predicting"),
    "contextual": Entry("contextual dropout: learns a drop rate for each unit and each image"),
    "concrete": Entry(
        "concrete dropout: MC dropout that learns its rates, one per layer",
        {"train_size": data.TRAIN_SIZE},
    ),
    "variational": Entry(
        "variational dropout: units times Gaussian noise whose size is learned, one per layer",
        {"train_size": data.TRAIN_SIZE},
    ),
    "masksembles": Entry("masksembles: four fixed, overlapping sets of units take turns"),
    "id-gflowout": Entry(
        "ID-GFlowOut: learns which units to drop, the same for every image",
        {"train_size": data.TRAIN_SIZE},
    ),
    "gflowout": Entry("GFlowOut: learns which units to drop for each image"),
    "combined": Entry(
        "combined: masks for all images times masks for each image",
        {"train_size": data.TRAIN_SIZE},
    ),
}
"""The rows of the comparison by name. A new method is one more line."""

BASELINE = "mc"


@dataclass(frozen=True)
class Run:
    """What one training run left behind, as plain numbers.

    Attributes:
        method: Key of ``METHODS``.
        seed: Seed of split, initial weights, batches and masks.
        scores: By key of ``metrics.METRICS``.
        epoch: The epoch that was kept, from 1; of an ensemble, that of its last network.
        images: Test digits, [test, 64].
        labels: Their labels, [test].
        probabilities: Average over the draws, [test, classes].
        spread: 5 % and 95 % quantiles over the draws, [2, test, classes].
        entropies: Predictive entropy by kind of data, [images] each.
        angle_accuracy: Accuracy by ``ANGLES``.
        angle_entropy: Mean predictive entropy by ``ANGLES``.
    """

    method: str
    seed: int
    scores: dict[str, float]
    epoch: int
    images: Array
    labels: NDArray[np.int64]
    probabilities: Array
    spread: Array
    entropies: dict[str, Array]
    angle_accuracy: list[float]
    angle_entropy: list[float]


def execute(method: str, seed: int, epochs: int) -> Run:
    """Train one method with one seed and measure it; PyTorch's random state stays as it was.

    Args:
        method: Key of ``METHODS``.
        seed: For everything that is random.
        epochs: Passes over the training part.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            split = data.split(seed)
            model = _model(method, seed, split.train[0][:2])
            for network in model.members if isinstance(model, gfo.Ensemble) else [model]:
                epoch = _train(network, seed, epochs, split)
            return _measure(model, method, seed, epoch, split)
    finally:
        torch.set_num_threads(threads)


def _train(model: gfo.MaskedModel, seed: int, epochs: int, split: data.Split) -> int:
    """Train a model to the epoch of the least validation NLL, and return that epoch."""
    images, labels = split.normalise(split.train[0]), split.train[1]
    optimizer = torch.optim.Adam(model.parameter_groups(lr=LEARNING_RATE), fused=True)
    best, epoch, kept = float("inf"), 0, model.state_dict()
    for number in range(1, epochs + 1):
        for rows in torch.split(torch.randperm(len(images)), BATCH):
            losses = model(images[rows], y=labels[rows])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
        if number % VALIDATE_EVERY and number < epochs:
            continue
        pred = _predict(model, split.normalise(split.validation[0]), seed)
        nll = -pred.log_prob(split.validation[1]).mean().item()
        if nll < best:
            best, epoch = nll, number
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return epoch


def _model(row: str, seed: int, example: Tensor) -> Model:
    entry = METHODS[row]
    options: dict[str, Any] = {
        "method": entry.method or row,
        "sites": list(SITES),
        "likelihood": gfo.Categorical(data.CLASSES),
        "example": (example,),
        **entry.options,
    }
    if entry.members == 1:
        return gfo.wrap(_network(), **options)
    return gfo.Ensemble.of(_network, entry.members, seed=seed, **options)


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(data.SIDE**2, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, data.CLASSES),
    )


def _measure(model: Model, method: str, seed: int, epoch: int, split: data.Split) -> Run:
    images, labels = split.test

    def predict(raw: Tensor) -> gfo.Predictive:
        return _predict(model, split.normalise(raw), seed)

    test = predict(images)
    turned = predict(data.rotated(images, seed))
    photos = predict(data.photo_patches(len(images), seed))
    at_angle = [predict(data.rotate(images, torch.full((len(images),), a))) for a in ANGLES]
    spread = test.samples.quantile(torch.tensor([0.05, 0.95]), 0)
    inside = metrics.inside(test, labels)
    moved = {f"rotated_{key}": value for key, value in metrics.inside(turned, labels).items()}
    return Run(
        method=method,
        seed=seed,
        scores={**inside, **moved, **metrics.outside(test, photos)},
        epoch=epoch,
        images=images.numpy(),
        labels=labels.numpy(),
        probabilities=test.mean.numpy(),
        spread=spread.numpy(),
        entropies={
            "test digits": test.entropy().numpy(),
            "rotated digits": turned.entropy().numpy(),
            "photo patches": photos.entropy().numpy(),
        },
        angle_accuracy=[metrics.accuracy(pred.mean, labels).item() for pred in at_angle],
        angle_entropy=[pred.entropy().mean().item() for pred in at_angle],
    )


def _predict(model: Model, images: Tensor, seed: int) -> gfo.Predictive:
    generator = torch.Generator().manual_seed(seed)
    return model.predict(images, samples=DRAWS, generator=generator)
