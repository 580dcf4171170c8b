"""An alarm for inputs that are not what the network was trained on.

The network learns the handwritten digits 0 to 7. The alarm rings above a threshold that 5 % of
known validation digits exceed. Unlike data are the digits 8 and 9, and patches of photographs.

    python examples/ood_alarm.py --out alarm.png
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
from gflowout.demo.data import photo_patches, split

METHODS = {"plain network": "none", "MC dropout": "mc", "GFlowOut": "gflowout"}
UNLIKE = ("new digits", "photographs")
KNOWN = 8


def train(method: str, x: Tensor, y: Tensor, epochs: int) -> gfo.MaskedModel:
    """Train an MLP with masks on its hidden layers."""
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, KNOWN)
    )
    model = gfo.wrap(net, method, ["1", "3"], likelihood=gfo.Categorical(KNOWN), example=(x[:2],))
    optimizer = torch.optim.Adam(model.parameter_groups(lr=3e-3))
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            losses = model(x[batch], y=y[batch])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
    return model


def sets(seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images and labels to train on, and the images to score by name."""
    digits = split(seed)
    (x, y), (valid, valid_y), (test, test_y) = digits.train, digits.validation, digits.test
    scored = {
        "validation": valid[valid_y < KNOWN],
        "known": test[test_y < KNOWN],
        "new digits": test[test_y >= KNOWN],
        "photographs": photo_patches(300, seed),
    }
    learned = y < KNOWN
    named = {name: digits.normalise(images) for name, images in scored.items()}
    return digits.normalise(x[learned]), y[learned], named


def run(method: str, seed: int, epochs: int) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Share of alarms in each set, and the scores themselves."""
    x, y, scored = sets(seed)
    torch.manual_seed(seed)
    model = train(method, x, y, epochs)
    generator = torch.Generator().manual_seed(seed)
    scores = {
        name: model.predict(images, samples=50, generator=generator).entropy()
        for name, images in scored.items()
    }
    threshold = scores.pop("validation").quantile(0.95)
    alarms = {name: (score > threshold).float().mean().item() for name, score in scores.items()}
    return alarms, scores


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Train on several seeds, print what came out, plot the alarms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="alarm.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, epochs = (2, 4) if options.quick else (options.seeds, 20)
    words, table = [], {}
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for place, (label, method) in enumerate(METHODS.items()):
        runs = [run(method, seed, epochs)[0] for seed in range(seeds)]
        names = ("known", *UNLIKE)
        rates = 100 * np.array([[alarms[name] for name in names] for alarms in runs])
        mean, error = rates.mean(0), rates.std(0, ddof=1) / np.sqrt(seeds)
        table[label] = dict(zip(names, mean.tolist(), strict=True))
        at = np.arange(len(names)) + 0.27 * (place - 1)
        axes.bar(at, mean, 0.25, yerr=error, label=label, color=f"C{place}", capsize=3)
        words.append(
            f"{label} {mean[1]:.0f} ± {error[1]:.0f} % and {mean[2]:.0f} ± {error[2]:.0f} %, with"
            f" {mean[0]:.1f} ± {error[0]:.1f} % false alarms"
        )
    axes.axhline(5, color="0.4", linestyle=":", linewidth=1)
    labels = ["known digits\n(false alarms)", "digits 8 and 9", "photographs"]
    axes.set_xticks(range(3), labels)
    axes.set(ylabel="alarms, %", ylim=(0, 105))
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(options.out, dpi=120)
    plt.close(figure)
    print(f"{seeds} seeds: alarms for the new digits and for photographs: {'; '.join(words)}.")
    return table


if __name__ == "__main__":
    main()
