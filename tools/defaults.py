"""Compare every method at its default options with a network without masks, as a Markdown table.

Small networks on tables and digits of scikit-learn, and on 2,000 images of MNIST where its files
are at hand. Every method has the same splits, initial weights and learning rates, and keeps the
weights of its best validation NLL; nothing is tuned::

    python tools/defaults.py --data-dir data --seeds 5
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn

import gflowout as gfo
from gflowout.data.images import load_images
from gflowout.methods import METHODS

BATCH, STEPS, LOOK, RATE = 100, 200, 50, 3e-3
TABLES = {"digits": "load_digits", "wine": "load_wine", "breast cancer": "load_breast_cancer"}


def sources(folder: Path | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs [rows, features] and classes [rows] by name."""
    tables = {}
    for name, loader in TABLES.items():
        x, y = getattr(datasets, loader)(return_X_y=True)
        tables[name] = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    if folder is not None and (folder / "mnist").is_dir():
        mnist = load_images("mnist", "train", folder)
        tables["MNIST-2000"] = mnist.images[:4000].flatten(1) / 255, mnist.labels[:4000].long()
    return tables


def nll(model: gfo.MaskedModel, x: Tensor, y: Tensor, samples: int) -> float:
    """Mean negative log-likelihood with the draws of a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return -model.predict(x, samples=samples, generator=generator).log_prob(y).mean().item()


def trained(method: str, x: Tensor, y: Tensor, seed: int, options: dict[str, Any]) -> float:
    """Test NLL of a method on one split: half of the rows to train, a sixth to stop, a third."""
    torch.manual_seed(seed)
    order = torch.randperm(len(x))
    train, valid, test = order.tensor_split([len(x) // 2, len(x) * 2 // 3])
    x = (x - x[train].mean(0)) / x[train].std(0).clamp(min=0.1)
    classes = int(y.max()) + 1
    net = nn.Sequential(
        nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)
    )
    if hasattr(METHODS[method].Options, "train_size"):
        options = {"train_size": len(train), **options}
    likelihood = gfo.Categorical(classes)
    model = gfo.wrap(net, method, ["1", "3"], likelihood=likelihood, example=(x[:2],), **options)
    optimizer = torch.optim.Adam(model.parameter_groups(lr=RATE))
    best, state = math.inf, model.state_dict()
    torch.manual_seed(seed)
    for step in range(1, STEPS + 1):
        rows = train[torch.randperm(len(train))[:BATCH]]
        optimizer.zero_grad()
        model(x[rows], y=y[rows]).total.backward()
        optimizer.step()
        if step % LOOK == 0:
            score = nll(model, x[valid], y[valid], samples=20)
            if score < best:
                best = score
                state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return nll(model, x[test], y[test], samples=50)


def cell(own: list[float], plain: list[float]) -> str:
    """Mean and standard error; in bold if worse than without masks by more than its error."""
    gaps = [one - other for one, other in zip(own, plain, strict=True)]

    def error(values: list[float]) -> float:
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    text = f"{statistics.mean(own):.3f} ± {error(own):.3f}"
    worse = statistics.mean(gaps) > error(gaps)
    return (
        f"**{text}**, worse by {statistics.mean(gaps):.3f} ± {error(gaps):.3f}" if worse else text
    )


def main() -> None:
    """Train everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of data sets, for MNIST")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS), help="some only; always with none")
    parser.add_argument("--set", nargs="*", default=[], help="options instead of defaults, a=0.5")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    options = {
        name: float(value) for name, _, value in (part.partition("=") for part in chosen.set)
    }
    data = sources(chosen.data_dir)
    names = ["none", *(name for name in chosen.methods.split(",") if name != "none")]
    scores: dict[tuple[str, str], list[float]] = {}
    print(f"| test NLL | {' | '.join(data)} |\n|---{'|---' * len(data)}|")
    for number, method in enumerate(names):
        for source, (x, y) in data.items():
            own = scores[method, source] = []
            for seed in range(chosen.seeds):
                show = f"\r{number + 1}/{len(names)} {method}, {source}, seed {seed}   "
                print(show, end="", file=sys.stderr, flush=True)
                own.append(trained(method, x, y, seed, {} if method == "none" else options))
        print("\r", end=" " * 60 + "\r", file=sys.stderr, flush=True)
        row = [cell(scores[method, source], scores["none", source]) for source in data]
        print(f"| `{method}` | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
