"""``gflowout demo``: all methods on scikit-learn's digits, with several seeds.

Every method gets the same network, sites, data, schedule and number of epochs, and a keep rate of
0.5 where it has one; an ensemble gets several such networks, each trained on its own. The epoch is
chosen by validation NLL; the test part is used once, at the end.

Images are rows of 64 grey values from 0 to 16, as scikit-learn has them, until
:meth:`Split.normalise`.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.core import metrics
from gflowout.core.optional import require

require("sklearn", extra="demo", purpose="gflowout demo")

SIDE = 8
WHITE = 16.0
CLASSES = 10
TRAIN_SIZE, VALIDATION_SIZE = 1000, 297
MAX_TURN = 90.0
DRAWS = 20
BATCH = 100
LEARNING_RATE = 5e-3
VALIDATE_EVERY = 2
EXAMPLES = 4
"""Images of each kind on the page."""
ANGLES = tuple(range(0, 181, 20))
SITES = ("hidden.0.act", "hidden.1.act")

Model = gfo.MaskedModel | gfo.Ensemble

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "ensemble": {"method": "none", "members": 5},
    "mc": {"rate": 0.5},
    "contextual": {"prior_keep": 0.5},
    "concrete": {"train_size": TRAIN_SIZE},
    "variational": {"train_size": TRAIN_SIZE, "alpha": 0.1},
    "masksembles": {},
    "id-gflowout": {"train_size": TRAIN_SIZE, "prior_keep": 0.5},
    "gflowout": {"prior_keep": 0.5},
    "combined": {"train_size": TRAIN_SIZE, "prior_keep": 0.7},
}
"""The rows of the comparison with their options of ``gfo.wrap``: ``method`` where it is not the
name of the row, ``members`` for an ensemble. A new method is one more line."""

BASELINE = "mc"


@dataclass(frozen=True)
class Settings:
    """What the user can choose: numbers of seeds, epochs and processes, and a mere trial run."""

    seeds: int = 5
    epochs: int = 60
    jobs: int = 2
    quick: bool = False

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        return f"gflowout demo --seeds {self.seeds} --epochs {self.epochs}"


@dataclass(frozen=True)
class Run:
    """The results of one training run on its test digits.

    ``probabilities`` [test, classes] are averages over the draws and ``spread``
    [2, test, classes] their 5 % and 95 % quantiles. By kind of data, ``entropies`` has the
    predictive entropy of each image and ``examples`` the mean probabilities of the first few.
    ``angle_accuracy`` and ``angle_entropy`` are means by ``ANGLES``.
    """

    method: str
    seed: int
    scores: dict[str, float]
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    spread: NDArray[np.float32]
    entropies: dict[str, NDArray[np.float32]]
    examples: dict[str, NDArray[np.float32]]
    angle_accuracy: list[float]
    angle_entropy: list[float]


# Data


@dataclass(frozen=True)
class Split:
    """Digits of one seed: images [count, 64] and labels [count] of parts that share no image."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def normalise(self, images: Tensor) -> Tensor:
        """Shift and scale by the mean and deviation of all pixels of the training part."""
        deviation, mean = torch.std_mean(self.train[0])
        return (images - mean) / deviation


def split(seed: int) -> Split:
    """Split the digits at random; the same seed gives the same split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.as_tensor(digits.data, dtype=torch.float32)
    labels = torch.as_tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    sizes = [TRAIN_SIZE, VALIDATION_SIZE, len(images) - TRAIN_SIZE - VALIDATION_SIZE]
    train, validation, test = ((images[part], labels[part]) for part in torch.split(order, sizes))
    return Split(train, validation, test)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate images [batch, 64] counter-clockwise by an angle each, with bilinear interpolation.

    Pixels from outside are black.

    Examples:
        >>> images = torch.rand(1, 64)
        >>> turned = rotate(images, torch.tensor([90.0])).reshape(8, 8)
        >>> torch.allclose(turned, images.reshape(8, 8).rot90(), atol=1e-5)
        True
    """
    angle = torch.deg2rad(degrees.to(images.dtype))
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # The grid says where each output pixel comes from, with y pointing down.
    rows = [torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)]
    squares = images.reshape(-1, 1, SIDE, SIDE)
    grid = F.affine_grid(torch.stack(rows, 1), list(squares.shape), align_corners=False)
    turned = F.grid_sample(squares, grid, padding_mode="zeros", align_corners=False)
    return turned.reshape(images.shape)


def rotated(images: Tensor, seed: int) -> Tensor:
    """Rotate every image [batch, 64] by its own angle, uniform between -90 and 90 degrees."""
    uniform = torch.rand(len(images), generator=torch.Generator().manual_seed(seed))
    return rotate(images, (2 * uniform - 1) * MAX_TURN)


def photo_patches(count: int, seed: int) -> Tensor:
    """Cut 8 x 8 pixels from scikit-learn's two sample photographs in turn, in grey, [count, 64]."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(seed)
    photos = [torch.tensor(photo).float().mean(-1) for photo in load_sample_images().images]
    patches = []
    for number in range(count):
        photo = photos[number % len(photos)]
        top, left = (
            int(torch.randint(size - SIDE + 1, (), generator=generator)) for size in photo.shape
        )
        patches.append(photo[top : top + SIDE, left : left + SIDE].flatten())
    return torch.stack(patches) * (WHITE / 255)


# Training and measuring


def results(settings: Settings) -> Iterator[Run]:
    """Run every method with every seed, in processes if there are several jobs; in any order."""
    # The slowest method comes last in the table: starting with it leaves no core idle at the end.
    todo = [(name, seed) for name in reversed(METHODS) for seed in range(settings.seeds)]
    if settings.jobs == 1:
        yield from (execute(name, seed, settings.epochs) for name, seed in todo)
        return
    workers = min(settings.jobs, len(todo))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    before = set(multiprocessing.active_children())
    # Workers inherit that Ctrl-C is ignored: this process deals with it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            futures = [pool.submit(execute, name, seed, settings.epochs) for name, seed in todo]
        finally:
            signal.signal(signal.SIGINT, interrupt)
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


def execute(method: str, seed: int, epochs: int) -> Run:
    """Train one method with one seed and measure it; PyTorch's random state stays as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            digits = split(seed)
            model = _model(method, seed, digits.train[0][:2])
            for network in model.members if isinstance(model, gfo.Ensemble) else [model]:
                _train(network, seed, epochs, digits)
            return _measure(model, method, seed, digits)
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


def _train(model: gfo.MaskedModel, seed: int, epochs: int, digits: Split) -> None:
    """Train a model to the epoch of the least validation NLL."""
    images, labels = digits.normalise(digits.train[0]), digits.train[1]
    optimizer = torch.optim.Adam(model.parameter_groups(lr=LEARNING_RATE), fused=True)
    best, state = math.inf, model.state_dict()
    for epoch in range(1, epochs + 1):
        for rows in torch.split(torch.randperm(len(images)), BATCH):
            losses = model(images[rows], y=labels[rows])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
        if epoch % VALIDATE_EVERY and epoch < epochs:
            continue
        pred = _predict(model, digits.normalise(digits.validation[0]), seed)
        nll = -pred.log_prob(digits.validation[1]).mean().item()
        if nll < best:
            best = nll
            state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def _model(row: str, seed: int, example: Tensor) -> Model:
    options: dict[str, Any] = {
        "method": row,
        "sites": list(SITES),
        "likelihood": gfo.Categorical(CLASSES),
        "example": (example,),
        **METHODS[row],
    }
    members = options.pop("members", 1)
    network = functools.partial(MLP, (SIDE**2, 128, 64, CLASSES))
    if members == 1:
        return gfo.wrap(network(), **options)
    return gfo.Ensemble.of(network, members, seed=seed, **options)


def _measure(model: Model, method: str, seed: int, digits: Split) -> Run:
    images, labels = digits.test

    def predict(raw: Tensor) -> gfo.Predictive:
        return _predict(model, digits.normalise(raw), seed)

    test = predict(images)
    turned = predict(rotated(images, seed))
    photos = predict(photo_patches(len(images), seed))
    at_angle = [predict(rotate(images, torch.full((len(images),), a))) for a in ANGLES]
    kinds = {"test digits": test, "rotated digits": turned, "photo patches": photos}
    spread = test.samples.quantile(torch.tensor([0.05, 0.95]), 0)
    moved = {f"rotated_{key}": value for key, value in known_scores(turned, labels).items()}
    return Run(
        method=method,
        seed=seed,
        scores={**known_scores(test, labels), **moved, **detection_scores(test, photos)},
        images=images.numpy(),
        labels=labels.numpy(),
        probabilities=test.mean.numpy(),
        spread=spread.numpy(),
        entropies={kind: pred.entropy().numpy() for kind, pred in kinds.items()},
        examples={kind: pred.mean[:EXAMPLES].numpy() for kind, pred in kinds.items()},
        angle_accuracy=[metrics.accuracy(pred.mean, labels).item() for pred in at_angle],
        angle_entropy=[pred.entropy().mean().item() for pred in at_angle],
    )


def _predict(model: Model, images: Tensor, seed: int) -> gfo.Predictive:
    generator = torch.Generator().manual_seed(seed)
    return model.predict(images, samples=DRAWS, generator=generator)
