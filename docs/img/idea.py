"""Draws the picture of docs/start/idea.md: ``python docs/img/idea.py`` writes idea.svg here.

A network of six hidden units has 64 masks, few enough to weigh each one exactly. The learned
posterior is compared with that, and each mask is drawn as the function that it leaves.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import gflowout as gfo

UNITS, ROWS, NOISE = 6, 14, 0.3
INK, PAPER, BLUE, ORANGE, PALE = "#1b1b1b", "#fcfcfa", "#2166ac", "#d95f02", "#c8ccd2"


def data() -> tuple[Tensor, Tensor]:
    """A few points on both sides of a gap."""
    generator = torch.Generator().manual_seed(3)
    side = torch.linspace(1.1, 2.4, ROWS // 2)
    x = torch.cat([side.neg().flip(0), side])
    y = x.sign() + 0.25 * (x.abs() - 1.7) + 0.12 * torch.randn(ROWS, generator=generator)
    return x.unsqueeze(-1), y.unsqueeze(-1)


def trained(x: Tensor, y: Tensor) -> gfo.MaskedModel:
    """A network trained under random masks, then a posterior that learns which of them to keep."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, UNITS), nn.Tanh(), nn.Linear(UNITS, 1))
    with torch.no_grad():  # steps at six places, so that no unit is a copy of another
        net[0].weight.fill_(4.0)
        net[0].bias.copy_(-4 * torch.linspace(-1.2, 1.2, UNITS))
    net[0].requires_grad_(False)
    noise = gfo.Gaussian(1, noise=NOISE, learn_noise=False)
    known = {"sites": ["1"], "likelihood": noise, "example": (x[:2],)}
    model = gfo.wrap(net, "mc", **known, rate=0.4, rescale="none")
    fit(model, x.repeat(8, 1), y.repeat(8, 1), lr=2e-2, steps=500)
    model = gfo.wrap(
        net, "id-gflowout", **known, train_size=ROWS, blocks=UNITS, draws=16, prior_keep=0.5
    )
    fit(model, x, y, lr=0.0, steps=900)
    return model


def fit(model: gfo.MaskedModel, x: Tensor, y: Tensor, lr: float, steps: int) -> None:
    """The usual loop."""
    optimizer = torch.optim.Adam(model.parameter_groups(lr=lr, generator_lr=1e-2))
    for _ in range(steps):
        losses = model(x, y=y)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()


def exact(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """All masks, [64, 6], and how well each explains the data, as a probability."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=UNITS)))
    pred = model.predict(x, masks=[masks.unsqueeze(1)])
    scores = torch.stack([model.likelihood.log_prob(out[:, :1], y).sum() for out in pred.outputs])
    return masks, scores.softmax(0)  # the prior weighs all masks alike


def main() -> None:
    """Train, weigh, draw."""
    x, y = data()
    model = trained(x, y)
    with torch.no_grad():
        masks, weights = exact(model, x, y)
        drawn = model.predict(x[:1], samples=4000, return_masks=True).masks[0][:, 0]
    places = (2 ** torch.arange(UNITS - 1, -1, -1.0)) @ drawn.T
    shares = torch.bincount(places.long(), minlength=2**UNITS) / len(drawn)
    order = weights.argsort(descending=True)
    print("total variation", 0.5 * (weights - shares).abs().sum().item())
    plt.rcParams.update({"font.size": 10, "svg.fonttype": "path", "axes.edgecolor": INK})
    figure, axes = plt.subplots(
        1, 3, figsize=(11, 3.7), width_ratios=(1, 1.25, 1.35), facecolor=PAPER, layout="constrained"
    )
    networks(axes[0], masks[order[:3]])
    bars(axes[1], weights[order], shares[order], masks[order])
    functions(axes[2], model, masks[order], weights[order], x, y)
    figure.savefig(Path(__file__).with_suffix(".svg"), facecolor=PAPER, metadata={"Date": None})


def networks(axes: plt.Axes, masks: Tensor) -> None:
    """Three masks of the same network."""
    for row, mask in enumerate(masks):
        base = -1.7 * row
        ends = ((0, base), (2, base))
        for unit, kept in enumerate(mask):
            at = (1, base + 0.24 * (2.5 - unit))
            colour, width = (BLUE, 1.2) if kept else (PALE, 0.6)
            for end in ends:
                axes.plot(*zip(end, at, strict=True), color=colour, linewidth=width, zorder=1)
            axes.scatter(*at, s=75, color=BLUE if kept else PAPER, edgecolor=colour, zorder=2)
        axes.scatter(*zip(*ends, strict=True), s=75, color=INK, zorder=2)
        axes.text(-0.2, base, "x", ha="right", va="center")
        axes.text(2.2, base, "y", ha="left", va="center")
    axes.set(title="1  A mask switches units off:\n64 networks in one", xlim=(-0.5, 2.5))
    axes.axis("off")


def bars(axes: plt.Axes, weights: Tensor, shares: Tensor, masks: Tensor) -> None:
    """How well masks explain the data, and how often they are drawn."""
    count = 14
    at = np.arange(count)
    axes.bar(at - 0.2, weights[:count], 0.4, color=PALE, label="exact: all 64 masks tried")
    axes.bar(at + 0.2, shares[:count], 0.4, color=BLUE, label="drawn by the learned posterior")
    labels = ["".join("●" if kept else "○" for kept in mask) for mask in masks[:count]]
    axes.set_xticks(at, labels, rotation=90, fontsize=6)
    axes.set(title="2  Masks that explain the data\nwell are drawn more often")
    axes.set_ylabel("probability")
    axes.set_ylim(top=1.35 * float(torch.maximum(weights, shares).max()))
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_facecolor(PAPER)


def functions(
    axes: plt.Axes, model: gfo.MaskedModel, masks: Tensor, weights: Tensor, x: Tensor, y: Tensor
) -> None:
    """Every mask as a curve, the darker the more probable."""
    grid = torch.linspace(-3, 3, 200).unsqueeze(-1)
    curves = model.predict(grid, masks=[masks.unsqueeze(1)]).samples[..., 0]
    for curve, weight in zip(curves, weights, strict=True):
        if weight > 0.002:
            strength = min(1.0, 0.12 + 0.9 * float(weight / weights.max()))
            axes.plot(grid, curve, color=BLUE, alpha=strength, linewidth=1.1)
    axes.plot(grid, (curves * weights.unsqueeze(-1)).sum(0), color=INK, linewidth=2, label="mean")
    axes.scatter(x, y, s=22, color=ORANGE, zorder=3, label="training data")
    axes.set(title="3  Draws agree near the data\nand disagree in the gap", xlabel="x")
    axes.set(ylim=(-2.2, 2.2), xlim=(-3, 3), ylabel="y")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_facecolor(PAPER)


if __name__ == "__main__":
    main()
