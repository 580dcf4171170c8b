"""Active learning: ask for the labels that the drawn masks disagree about most.

Starts with 20 labelled digits; every round adds 10, chosen by mutual information or at random, and
trains a new network on all that are labelled.

    python examples/active_learning.py --out active.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.demo.data import split

START, ADDED = 20, 10
COLOURS = {"mutual information": "#08519c", "random": "0.4"}


def train(x: Tensor, y: Tensor, steps: int) -> gfo.MaskedModel:
    """Train an MLP with masks on its hidden layer."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = gfo.wrap(net, "gflowout", ["1"], likelihood=gfo.Categorical(10), example=(x[:2],))
    optimizer = torch.optim.Adam(model.parameter_groups(lr=5e-3, weight_decay=1e-4))
    for _ in range(steps):
        losses = model(x, y=y)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    return model


def choose(how: str, model: gfo.MaskedModel, pool: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of the pool to ask for."""
    if how == "random":
        return torch.randperm(len(pool), generator=generator)[:ADDED]
    scores = model.predict(pool, samples=30, generator=generator).mutual_information()
    return scores.topk(ADDED).indices


def curve(how: str, seed: int, rounds: int, steps: int) -> list[float]:
    """Test accuracy after every round."""
    digits = split(seed)
    (x, y), (test_x, test_y) = digits.train, digits.test
    x, test_x = digits.normalise(x), digits.normalise(test_x)
    generator = torch.Generator().manual_seed(seed)
    labelled = torch.zeros(len(x), dtype=torch.bool)
    labelled[:START] = True
    accuracies = []
    for number in range(rounds + 1):
        torch.manual_seed(1000 * seed + number)  # both ways of choosing start from the same weights
        model = train(x[labelled], y[labelled], steps)
        pred = model.predict(test_x, generator=generator)
        accuracies.append((pred.mean.argmax(-1) == test_y).float().mean().item())
        open_rows = (~labelled).nonzero().squeeze(-1)
        labelled[open_rows[choose(how, model, x[open_rows], generator)]] = True
    return accuracies


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Run both ways on several seeds, print what came out, plot it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="active.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, rounds, steps = (2, 1, 30) if options.quick else (options.seeds, 14, 100)
    labels = START + ADDED * np.arange(rounds + 1)
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    ends = {}
    for how, colour in COLOURS.items():
        found = 100 * np.array([curve(how, seed, rounds, steps) for seed in range(seeds)])
        mean, error = found.mean(0), found.std(0, ddof=1) / np.sqrt(seeds)
        axes.plot(labels, mean, color=colour, label=how)
        axes.fill_between(labels, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        ends[how] = found[:, [rounds // 2, rounds]]
    axes.set(xlabel="labels", ylabel="test accuracy, %")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(options.out, dpi=120)
    plt.close(figure)

    words = []
    for place, count in enumerate((labels[rounds // 2], labels[rounds])):
        by, other = (ends[how][:, place] for how in COLOURS)
        gain = by - other
        words.append(
            f"with {count} labels, {by.mean():.1f} % accuracy against {other.mean():.1f} % for"
            f" random choice (paired difference {gain.mean():+.1f} ±"
            f" {gain.std(ddof=1) / np.sqrt(seeds):.1f})"
        )
    print(f"{seeds} seeds, mutual information: {'; '.join(words)}.")
    return {how: float(found[:, 1].mean()) for how, found in ends.items()}


if __name__ == "__main__":
    main()
