"""Measure the disagreement term and learned label noise, as Markdown tables.

MNIST: 5,000 training images and 1,000 for validation, the network 784-300-100-10. The first table
is about unknown inputs (notMNIST), the second about 30 % of labels, of training and of validation,
that are drawn anew. CIFAR-10: 2,500 and 500 images at 16x16, a ResNet-18 of width 16, and 2,000
test images of CIFAR-100 as unknown inputs. Every arm keeps the weights of its best validation NLL::

    python tools/disagreement.py --data-dir data --seeds 0 1 2
    python tools/disagreement.py --data-dir data --data cifar10 --rate 0.1 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.predictive import of_labels
from gflowout.data.images import load_images
from gflowout.data.shifts import label_noise
from gflowout.data.transforms import Normalize
from gflowout.metrics import accuracy, calibration_error, detection
from gflowout.studies.regimes_data import halved

BATCH, RATE = 100, 2e-3
NOISE = 0.3
Model = gfo.MaskedModel | gfo.Ensemble
Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """Known and unknown inputs, and the network for them."""

    title: str
    network: Callable[[], Any]
    train: int
    valid: int
    whole: Labelled
    test: Labelled
    unknown: Tensor

    @property
    def sites(self) -> list[str]:
        """Where masks are."""
        return list(self.network().sites)

    def parts(self, seed: int) -> tuple[Labelled, Labelled]:
        """Images to train on and for validation."""
        x, y = self.whole
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        first, second = order[: self.train], order[self.train : self.train + self.valid]
        return (x[first], y[first]), (x[second], y[second])


def mnist(folder: Path | None) -> Data:
    """Digits against letters."""
    whole, test = (load_images("mnist", part, folder) for part in ("train", "test"))
    other = load_images("notmnist", "test", folder)
    mean, std = whole.images.float().mean(), whole.images.float().std()

    def scaled(images: Tensor) -> Tensor:
        return (images.float() - mean) / std

    return Data(
        "MNIST against notMNIST", MLP.mnist, 5000, 1000, (scaled(whole.images), whole.labels),
        (scaled(test.images), test.labels), scaled(other.images),
    )  # fmt: skip


def cifar10(folder: Path | None, count: int = 2000) -> Data:
    """CIFAR-10 against CIFAR-100, at half their size."""
    whole = load_images("cifar10", "train", folder, partial=True)
    test, other = (load_images(name, "test", folder) for name in ("cifar10", "cifar100"))
    scale = Normalize.fit(halved(whole.images))

    def scaled(images: Tensor) -> Tensor:
        return scale(halved(images))

    return Data(
        "CIFAR-10 against CIFAR-100, 16x16", lambda: to_fastest_format(ResNet18(10, 16)), 2500, 500,
        (scaled(whole.images), whole.labels), (scaled(test.images[:count]), test.labels[:count]),
        scaled(other.images[:count]),
    )  # fmt: skip


DATA = {"mnist": mnist, "cifar10": cifar10}


@dataclass(frozen=True)
class Arm:
    """What is compared: a method with its options, and the number of networks."""

    method: str
    networks: int = 1
    term: gfo.Disagreement | None = None
    noise: Any = None
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, data: Data, seed: int) -> Model:
        """Networks with initial weights of a seed."""
        likelihood = gfo.Categorical(10, label_noise=self.noise)
        sites = () if self.method == "none" else data.sites
        ensemble = gfo.Ensemble.of(
            data.network, self.networks, method=self.method, sites=sites, likelihood=likelihood,
            example=(data.unknown[:2],), seed=seed, validate=False, **dict(self.options),
        )  # fmt: skip
        return ensemble if self.networks > 1 else ensemble.members[0]


def predict(model: Model, x: Tensor, samples: int) -> gfo.Predictive:
    """Predict with draws of a fixed seed; a few fixed masks are all used, once each."""
    parts = []
    for rows in x.split(2000):
        masks = model.method.members() if isinstance(model, gfo.MaskedModel) else None
        count = None if masks or isinstance(model, gfo.Ensemble) else samples
        masks = masks and [mask.expand(-1, len(rows), -1) for mask in masks]
        source = torch.Generator().manual_seed(0)
        parts.append(model.predict(rows, samples=count, masks=masks, generator=source))
    return gfo.Predictive.join(parts)


def validation_loss(model: Model, valid: Labelled) -> float:
    """NLL of labels as noisy as those of training."""
    pred = predict(model, valid[0], 10)
    likelihood = (
        model.members[0].likelihood if isinstance(model, gfo.Ensemble) else model.likelihood
    )
    return -of_labels(pred, likelihood).log_prob(valid[1]).mean().item()


def trained(
    arm: Arm, data: Data, train: Labelled, valid: Labelled, seed: int, epochs: int
) -> Model:
    """Train an arm and give it the weights of its best epoch."""
    model = arm.build(data, seed)
    optimizer = torch.optim.Adam(model.parameter_groups(lr=RATE), fused=True)
    best, state = math.inf, model.state_dict()
    torch.manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(train[1])).split(BATCH):
            x, y = train[0][rows], train[1][rows]
            loss = model(x, y=y).total
            if arm.term is not None:
                loss = loss + arm.term(model, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = validation_loss(model, valid)
        if score < best:
            best, state = score, {name: own.clone() for name, own in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def scores(model: Model, test: Labelled, unknown: Tensor) -> dict[str, float]:
    """Clean NLL and accuracy, and how well scores detect unknown inputs."""
    pred, other = predict(model, test[0], 20), predict(model, unknown, 20)
    values = {
        "NLL": -pred.log_prob(test[1]).mean().item(),
        "accuracy": accuracy(pred.mean, test[1]).item(),
        "ECE": calibration_error(pred.mean, test[1]).item(),
    }
    for name, score in (("MI", "mutual_information"), ("entropy", "entropy")):
        values[f"AUROC {name}"] = detection(getattr(pred, score)(), getattr(other, score)())[
            "auroc"
        ]
    noise = model.likelihood.label_noise if isinstance(model, gfo.MaskedModel) else None
    values["learned rate"] = math.nan if noise is None else noise.rate.item()
    return values


def arms(rate: float, term: gfo.Disagreement) -> dict[str, Arm]:
    """Arms of the first table."""
    mc, keep = (("rate", rate),), (("prior_keep", 1 - rate),)
    return {
        "mc": Arm("mc", options=mc),
        "five networks": Arm("none", 5),
        "mc + term": Arm("mc", term=term, options=mc),
        "five networks + term": Arm("none", 5, term=term),
        "gflowout + term": Arm("gflowout", term=term, options=keep),
        "masksembles + term": Arm("masksembles", term=term),
        "modes + term": Arm("modes", term=term),
    }


def noisy_arms(rate: float) -> dict[str, Arm]:
    """Arms of the second table."""
    mc = (("rate", rate),)
    return {
        "mc": Arm("mc", options=mc),
        "five networks": Arm("none", 5),
        "mc + learned noise": Arm("mc", noise="learned", options=mc),
    }


def table(
    title: str,
    chosen: dict[str, Arm],
    seeds: list[int],
    run: Callable[[Arm, int], dict[str, float]],
) -> None:
    """Run arms on all seeds, and print means and standard deviations."""
    print(f"\n{title}\n", flush=True)
    for number, (name, arm) in enumerate(chosen.items()):
        began = time.process_time()
        runs = []
        for seed in seeds:
            print(f"\r{name}, seed {seed}    ", end="", file=sys.stderr, flush=True)
            runs.append(run(arm, seed))
        columns = list(runs[0])
        if number == 0:
            print(f"| arm | {' | '.join(columns)} | CPU s |\n|---{'|---' * (len(columns) + 1)}|")
        cells = []
        for column in columns:
            values = [own[column] for own in runs if not math.isnan(own[column])]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
        spent = (time.process_time() - began) / len(seeds)
        print(f"\r| {name} | {' | '.join(cells)} | {spent:.0f} |", flush=True)


def main() -> None:
    """Train everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of data sets")
    parser.add_argument("--data", choices=DATA, default="mnist")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--rate", type=float, default=0.2, help="drop rate of mc")
    parser.add_argument("--noisy-rate", type=float, default=0.2, help="the same with noisy labels")
    parser.add_argument("--weight", type=float, default=0.1, help="of the term")
    parser.add_argument("--inputs", default="blocks", help="of the term")
    parser.add_argument("--only", choices=["unknown", "labels"], help="one table only")
    parser.add_argument("--arms", help="some only, comma-separated")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    data = DATA[chosen.data](chosen.data_dir)

    def run(arm: Arm, seed: int, noise: float = 0.0) -> dict[str, float]:
        train, valid = data.parts(seed)
        if noise:
            y = label_noise(torch.cat([train[1], valid[1]]), noise, 10, seed=seed)[0]
            train, valid = (train[0], y[: data.train]), (valid[0], y[data.train :])
        model = trained(arm, data, train, valid, seed, chosen.epochs)
        return scores(model, data.test, data.unknown)

    def wanted(named: dict[str, Arm]) -> dict[str, Arm]:
        names = named if chosen.arms is None else chosen.arms.split(",")
        return {name: arm for name, arm in named.items() if name in names}

    term = gfo.Disagreement(chosen.weight, chosen.inputs)
    if chosen.only != "labels":
        table(data.title, wanted(arms(chosen.rate, term)), chosen.seeds, run)
    if chosen.only != "unknown" and chosen.data == "mnist":
        noisy = wanted(noisy_arms(chosen.noisy_rate))
        table("30 % label noise", noisy, chosen.seeds, lambda arm, seed: run(arm, seed, NOISE))


if __name__ == "__main__":
    main()
