"""Several labels at once: which digits are in the picture?

Two or three of scikit-learn's handwritten digits are laid over each other. Each of the ten labels
has an uncertainty of its own, so a person can be asked about single labels.

    python examples/multilabel.py --out multilabel.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gflowout as gfo

SHARES = np.arange(0, 31) / 100  # of labels that a person gives


def overlay(images: Tensor, digits: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures [count, 64] and the digits that they show, [count, 10] of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (count, 3), generator=generator)
    third = torch.rand(count, 1, 1, generator=generator) < 0.5
    layers = images[chosen]
    layers[:, 2:] *= third
    labels = nn.functional.one_hot(digits[chosen], 10)
    labels[:, 2:] *= third
    return layers.amax(1), labels.amax(1).float()


def train(x: Tensor, y: Tensor, epochs: int) -> gfo.MaskedModel:
    """Train an MLP with masks on its hidden layers."""
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    model = gfo.wrap(
        net,
        "gflowout",
        ["1", "3"],
        likelihood=gfo.MultiLabel(10),
        example=(x[:2],),
        keep=0.8,
    )
    optimizer = torch.optim.Adam(model.parameter_groups(lr=2e-3))
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(200):
            losses = model(x[batch], y=y[batch])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
    return model


def corrected(pred: gfo.Predictive, y: Tensor) -> list[float]:
    """Share of right labels after a person has given the least certain ones."""
    right = ((pred.mean > 0.5) == (y > 0.5)).flatten()
    certain_first = pred.entropy().flatten().argsort()
    kept = right[certain_first].float().cumsum(0)
    total = len(right)
    asked = [int(share * total) for share in SHARES]
    return [(kept[total - count - 1].item() + count) / total for count in asked]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on several seeds, print what came out, plot it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="multilabel.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, count, epochs = (2, 800, 8) if options.quick else (options.seeds, 8000, 40)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    digits = torch.tensor(data.target)
    curves = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        known, unseen = order[:1300], order[1300:]  # no handwriting is in both parts
        x, y = overlay(images[known], digits[known], count, seed)
        test_x, test_y = overlay(images[unseen], digits[unseen], 1000, seed + 1000)
        model = train(x, y, epochs)
        pred = model.predict(test_x, generator=torch.Generator().manual_seed(seed))
        curves.append(corrected(pred, test_y))
    curve = np.array(curves)
    mean, error = curve.mean(0), curve.std(0, ddof=1) / np.sqrt(seeds)
    chance = mean[0] + (1 - mean[0]) * SHARES
    ten = list(SHARES).index(0.1)
    print(
        f"{seeds} seeds: {100 * mean[0]:.1f} ± {100 * error[0]:.1f} % of the labels are right. When"
        f" a person gives the 10 % with the highest entropy, {100 * mean[ten]:.1f} ±"
        f" {100 * error[ten]:.1f} %; 10 % chosen at random would make it {100 * chance[ten]:.1f} %."
    )
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    band = {"alpha": 0.3, "linewidth": 0, "color": "#3182bd"}
    axes.plot(100 * SHARES, 100 * mean, color="#08519c", label="the least certain labels")
    axes.fill_between(100 * SHARES, 100 * (mean - error), 100 * (mean + error), **band)
    axes.plot(100 * SHARES, 100 * chance, color="0.5", linestyle="--", label="labels at random")
    axes.set(xlabel="labels given by a person, %", ylabel="labels that are right, %")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(options.out, dpi=120)
    plt.close(figure)
    return {"plain": mean[0], "asked": mean[ten], "chance": chance[ten]}


if __name__ == "__main__":
    main()
