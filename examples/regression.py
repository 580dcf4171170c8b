"""Regression: noise that grows from left to right, and a gap without data.

The network gives a mean and a log-variance (``heteroscedastic=True``), so noise in the data has a
place of its own (aleatoric). What the drawn masks disagree about comes on top (epistemic).

    python examples/regression.py --out regression.png
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

LOW, HIGH, GAP = -3.0, 3.0, 0.8  # inputs; none are closer to 0 than GAP in training


def truth(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the target."""
    return torch.sin(2 * x), 0.05 + 0.3 * torch.sigmoid(2 * x)


def draw_data(count: int, generator: torch.Generator, gap: bool) -> tuple[Tensor, Tensor]:
    """Inputs and targets, [count, 1] each."""
    x = LOW + (HIGH - LOW) * torch.rand(4 * count, 1, generator=generator)
    x = x[x.abs() > GAP].unsqueeze(-1)[:count] if gap else x[:count]
    mean, noise = truth(x)
    return x, mean + noise * torch.randn(x.shape, generator=generator)


def train(x: Tensor, y: Tensor, steps: int, keep: float) -> gfo.MaskedModel:
    """Train a small network; masks act on its two hidden layers."""
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model = gfo.wrap(
        net,
        "gflowout",
        ["1", "3"],
        likelihood=gfo.Gaussian(1, heteroscedastic=True),
        example=(x[:2],),
        keep=keep,  # low rates blur so small a network, and noise is overestimated
    )
    optimizer = torch.optim.Adam(model.parameter_groups(lr=3e-3, generator_lr=3e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        losses = model(x, y=y)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        schedule.step()
    return model


def measure(model: gfo.MaskedModel, generator: torch.Generator) -> dict[str, float]:
    """Coverage where there were data, and how the two parts of the variance behave."""
    x, y = draw_data(2000, generator, gap=True)
    pred = model.predict(x, samples=100, generator=generator)
    inside = (y > pred.quantile(0.05)) & (y < pred.quantile(0.95))
    gap = torch.linspace(-GAP, GAP, 200).unsqueeze(-1)
    epistemic_gap = model.predict(gap, samples=100, generator=generator).epistemic_variance()
    noise, true = pred.aleatoric_variance().sqrt(), truth(x)[1]
    return {
        "coverage": inside.float().mean().item(),
        "noise_left": (noise / true)[x < 0].mean().item(),
        "noise_right": (noise / true)[x > 0].mean().item(),
        "gap": epistemic_gap.sqrt().mean().item() / pred.epistemic_variance().sqrt().mean().item(),
    }


def plot(model: gfo.MaskedModel, x: Tensor, y: Tensor, path: str) -> None:
    """Data, mean, and bands for the two parts of the uncertainty."""
    grid = torch.linspace(LOW - 0.5, HIGH + 0.5, 400).unsqueeze(-1)
    generator = torch.Generator().manual_seed(1)
    pred = model.predict(grid, samples=200, generator=generator)
    line, mean = grid[:, 0], pred.mean[:, 0]
    total, epistemic = 2 * pred.variance().sqrt()[:, 0], 2 * pred.epistemic_variance().sqrt()[:, 0]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.axvspan(-GAP, GAP, color="0.93")
    axes.text(0, 1.9, "no data", ha="center", color="0.4")
    axes.fill_between(line, mean - total, mean + total, color="#9ecae1", label="± 2 sd, with noise")
    axes.fill_between(
        line, mean - epistemic, mean + epistemic, color="#3182bd", label="± 2 sd between masks"
    )
    axes.plot(line, mean, color="#08306b", label="mean")
    axes.plot(line, truth(line)[0], color="0.2", linestyle=":", label="truth")
    axes.scatter(x, y, s=6, color="#d95f02", alpha=0.6, zorder=3, label="training data")
    axes.set(xlabel="x", ylabel="y", xlim=(line[0], line[-1]), ylim=(-2.3, 2.3))
    axes.legend(loc="lower right", fontsize=8, ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on several seeds, print what came out, plot the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--prior-keep", type=float, default=0.9)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="regression.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, steps = (1, 100) if options.quick else (options.seeds, 1000)
    results = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        x, y = draw_data(400, generator, gap=True)
        model = train(x, y, steps, options.prior_keep)
        results.append(measure(model, generator))
        if seed == 0:
            plot(model, x, y, options.out)
    mean = {key: float(np.mean([each[key] for each in results])) for key in results[0]}
    print(
        f"{seeds} seeds: 90 % intervals hold {100 * mean['coverage']:.0f} % of new points. Noise is"
        f" estimated at {mean['noise_left']:.2f} times the true one on the left and"
        f" {mean['noise_right']:.2f} times on the right. In the gap, the spread between masks is"
        f" {mean['gap']:.1f} times that where there are data."
    )
    return mean


if __name__ == "__main__":
    main()
