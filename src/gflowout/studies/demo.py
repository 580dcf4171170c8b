"""``gflowout demo``: all methods on scikit-learn's digits, with several seeds.

Every method gets the same network, sites, data, schedule and number of epochs, and keeps its
library defaults; an ensemble gets several such networks, each trained on its own. The epoch is
chosen by validation NLL; the test part is used once, at the end.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core import metrics
from gflowout.core.optional import require
from gflowout.studies import demo_data as data

for _module in ("torchmetrics", "matplotlib"):
    require(_module, extra="demo", purpose="gflowout demo")

DRAWS = 20
BATCH = 100
LEARNING_RATE = 5e-3
VALIDATE_EVERY = 2
ANGLES = tuple(range(0, 181, 20))
SITES = ("1", "3")

Array = NDArray[np.float32]
Model = gfo.MaskedModel | gfo.Ensemble


@dataclass(frozen=True)
class Settings:
    """What the user can choose.

    Attributes:
        seeds: Number of seeds, counted from 0.
        epochs: Passes over the training data.
        jobs: Processes, with one thread each; 1 runs in this process.
        quick: Whether this is only to see that it works.
    """

    seeds: int = 5
    epochs: int = 60
    jobs: int = 2
    quick: bool = False

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        return f"gflowout demo --seeds {self.seeds} --epochs {self.epochs}"


METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "ensemble": {"method": "none", "members": 5},
    "mc": {},
    "contextual": {},
    "concrete": {"train_size": data.TRAIN_SIZE},
    "variational": {"train_size": data.TRAIN_SIZE},
    "masksembles": {},
    "id-gflowout": {"train_size": data.TRAIN_SIZE},
    "gflowout": {},
    "combined": {"train_size": data.TRAIN_SIZE},
}
"""The rows of the comparison with their options of ``gfo.wrap``: ``method`` where it is not the
name of the row, ``members`` for an ensemble. A new method is one more line."""

BASELINE = "mc"


@dataclass(frozen=True)
class Run:
    """The results of one training run, as plain numbers.

    Attributes:
        method: Key of ``METHODS``.
        seed: Seed of split, initial weights, batches and masks.
        scores: By name, from the average of the draws' probabilities.
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


def train_all(settings: Settings, console: Console) -> list[Run]:
    """Run every method with every seed behind a progress bar; order does not depend on timing."""
    # The slowest method comes last in the table: starting with it leaves no core idle at the end.
    todo = [(name, seed) for name in reversed(METHODS) for seed in range(settings.seeds)]
    done: dict[tuple[str, int], Run] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=len(todo))
        for run in _results(todo, settings):
            done[run.method, run.seed] = run
            progress.update(task, advance=1, description=f"training ({run.method} done)")
    return [done[name, seed] for name in METHODS for seed in range(settings.seeds)]


def execute(method: str, seed: int, epochs: int) -> Run:
    """Train one method with one seed and measure it; PyTorch's random state stays as it was."""
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


def known_scores(pred: gfo.Predictive, labels: Tensor) -> dict[str, float]:
    """Scores of a prediction whose labels are known."""
    return metrics.classification(pred.mean, labels, pred.log_prob(labels))


def detection_scores(digits: gfo.Predictive, others: gfo.Predictive) -> dict[str, float]:
    """How well uncertainty separates other images, the positive class, from digits.

    The mutual information's AUROC is NaN for a method whose draws are all the same.
    """
    entropy = metrics.detection(digits.entropy(), others.entropy())
    disagreement = metrics.detection(digits.mutual_information(), others.mutual_information())
    draws_differ = bool((digits.samples != digits.samples[:1]).any())
    return {
        "auroc": entropy["auroc"],
        "aupr": entropy["aupr"],
        "auroc_mi": disagreement["auroc"] if draws_differ else math.nan,
    }


def _train(model: gfo.MaskedModel, seed: int, epochs: int, split: data.Split) -> int:
    """Train a model to the epoch of the least validation NLL, and return that epoch."""
    images, labels = split.normalise(split.train[0]), split.train[1]
    optimizer = torch.optim.Adam(model.parameter_groups(lr=LEARNING_RATE), fused=True)
    best, epoch, state = float("inf"), 0, model.state_dict()
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
            state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return epoch


def _model(row: str, seed: int, example: Tensor) -> Model:
    options: dict[str, Any] = {
        "method": row,
        "sites": list(SITES),
        "likelihood": gfo.Categorical(data.CLASSES),
        "example": (example,),
        **METHODS[row],
    }
    members = options.pop("members", 1)
    if members == 1:
        return gfo.wrap(_network(), **options)
    return gfo.Ensemble.of(_network, members, seed=seed, **options)


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
    moved = {f"rotated_{key}": value for key, value in known_scores(turned, labels).items()}
    return Run(
        method=method,
        seed=seed,
        scores={**known_scores(test, labels), **moved, **detection_scores(test, photos)},
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


def _results(todo: Sequence[tuple[str, int]], settings: Settings) -> Iterator[Run]:
    if settings.jobs == 1:
        yield from (execute(name, seed, settings.epochs) for name, seed in todo)
        return
    workers = min(settings.jobs, len(todo))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    before = set(multiprocessing.active_children())
    try:
        with _interrupts_ignored():
            futures = [pool.submit(execute, name, seed, settings.epochs) for name, seed in todo]
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that leave Ctrl-C to this one: they inherit that it is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
