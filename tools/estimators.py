"""Compare ways to learn GFlowOut's posterior, alone and together, as a Markdown table.

On 5,000 images of MNIST with an MLP 784-300-100, and on a small frozen network whose masks can be
enumerated::

    python tools/estimators.py --data-dir data --seeds 3

Columns, each a mean over seeds:

- corr: correlation of log q - log p with the log-likelihood of the label over 100 masks of a
  training point, drawn from q, averaged over points; 1 if q were the posterior.
- corr, test: the same on test points.
- sd: standard deviation of log q - log p over these masks, in nats.
- spread: the same after training without the likelihood in the reward (beta = 0): it must be 0.
- KL: mean of KL(q || p) on training points.
- NLL: of 2,000 test images with 20 draws from the prior.
- seconds: of training on one thread.
- TV: total variation between q and the enumerated posterior of the small network.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.data.images import load_images
from gflowout.studies.mask_statistics import correlate, score

PAPER: dict[str, Any] = {"preset": "paper"}
ON_POLICY: dict[str, Any] = {"temperature": 1.0, "epsilon": 0.0}
CORRECTION: dict[str, Any] = {"posterior": "correction"}
CLOSED: dict[str, Any] = {"prior_fit": "kl", "anchor": 1.0}
ARMS: dict[str, dict[str, Any]] = {
    "not trained": {},
    "paper": PAPER,
    "paper, on-policy": PAPER | ON_POLICY,
    "batch log Z, 4 draws": PAPER | ON_POLICY | {"log_z": "batch", "draws": 4},
    "correction": PAPER | CORRECTION,
    "closed-form prior": PAPER | CLOSED,
    "correction, closed-form prior": PAPER | ON_POLICY | CORRECTION | CLOSED,
    "the same, batch log Z, 4 draws": {"objective": "tb", "log_z": "batch", "draws": 4},
    "subtb": PAPER | {"objective": "subtb"},
    "db": PAPER | {"objective": "db"},
    "control, 2 draws": PAPER | ON_POLICY | {"objective": "control", "draws": 2},
    "control, 2 draws, correction, closed-form prior": {"objective": "control", "draws": 2},
    "credit": PAPER | ON_POLICY | {"objective": "credit"},
    "credit, T = 2": PAPER | {"objective": "credit"},
    "credit, correction": PAPER | ON_POLICY | CORRECTION | {"objective": "credit"},
    "credit, correction, closed-form prior (default)": {},
}
EPOCHS, BATCH, TRAIN, TEST, POINTS, MASKS, DRAWS = 15, 100, 5000, 2000, 200, 100, 20


def trained(
    x: Tensor, y: Tensor, seed: int, options: dict[str, Any], epochs: int
) -> tuple[gfo.MaskedModel, float]:
    """A model after training, and the seconds that it took."""
    torch.manual_seed(seed)
    net = MLP()
    model = gfo.wrap(
        net, "gflowout", list(net.sites), likelihood=gfo.Categorical(10), example=(x[:2],),
        **{"prior_keep": 0.5, **options},
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameter_groups())
    begun = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            model(x[rows], y=y[rows]).total.backward()
            optimizer.step()
    return model, time.perf_counter() - begun


def images(folder: Path, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and labels to train on, and to test on."""
    train, test = (load_images("mnist", part, folder) for part in ("train", "test"))
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(train.images), generator=draws)[:TRAIN]
    x, others = train.images[rows].flatten(1) / 255, test.images[:TEST].flatten(1) / 255
    mean, deviation = x.mean(), x.std()
    labels = train.labels[rows].long(), test.labels[:TEST].long()
    return (x - mean) / deviation, labels[0], (others - mean) / deviation, labels[1]


def on_images(folder: Path, seed: int, options: dict[str, Any], epochs: int) -> dict[str, float]:
    """Numbers of one arm on MNIST."""
    x, y, others, labels = images(folder, seed)
    model, seconds = trained(x, y, seed, options, epochs)
    numbers: dict[str, float] = {}
    for name, part, own in (("corr", x, y), ("corr, test", others, labels)):
        scored = score(model, part[:POINTS], own[:POINTS], MASKS, seed)
        ratio = scored.log_q - scored.log_p
        numbers[name] = correlate(ratio, scored.log_likelihood).pearson
        if name == "corr":
            numbers |= {"sd": ratio.std(0).mean().item(), "KL": ratio.mean().item()}
    generator = torch.Generator().manual_seed(seed)
    pred = model.predict(others, samples=DRAWS, generator=generator)
    numbers["NLL"] = -pred.log_prob(labels).mean().item()
    numbers["seconds"] = seconds
    idle, _ = trained(x, y, seed, {**options, "beta": 0.0}, epochs)
    scored = score(idle, x[:POINTS], y[:POINTS], MASKS, seed)
    numbers["spread"] = (scored.log_q - scored.log_p).std(0).mean().item()
    return numbers


def enumerated(seed: int, options: dict[str, Any], steps: int) -> dict[str, float]:
    """Distance of q from the exact posterior on a small network, frozen with its prior."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3.0)
    model = gfo.wrap(
        net, "gflowout", ["1", "3"], likelihood=gfo.Categorical(3), example=(x,),
        **{**options, "prior_keep": 0.7, "anchor": 0.0},
    )  # fmt: skip
    net.requires_grad_(False)
    model.method.prior.requires_grad_(False)  # type: ignore[union-attr]
    optimizer = torch.optim.Adam(model.parameter_groups(generator_lr=1e-2, log_z_lr=5e-2))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    rows, labels = x.repeat(24, 1), y.repeat(24)
    for _ in range(steps):
        optimizer.zero_grad()
        model(rows, y=labels).total.backward()
        optimizer.step()
        schedule.step()
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=10))).split([5, 5], -1)
    distances = []
    for one, label in zip(x, y, strict=True):
        count = len(masks[0])
        with torch.no_grad():
            losses = model(
                one.expand(count, -1), y=label.expand(count),
                masks=[mask.expand(2, -1, -1) for mask in masks],
            )  # fmt: skip
        assert losses.log_q is not None
        assert losses.log_reward is not None
        posterior = losses.log_reward[0].softmax(0)
        distances.append(0.5 * (losses.log_q[0].exp() - posterior).abs().sum().item())
    return {"TV": statistics.mean(distances)}


def main() -> None:
    """Train everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of data sets; without it, no MNIST")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--steps", type=int, default=800, help="on the small network")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), help="some only")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    columns = ["corr", "corr, test", "sd", "spread", "KL", "NLL", "seconds"]
    columns = [*(columns if chosen.data_dir else []), "TV"]
    print(f"| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|", flush=True)
    for arm in chosen.arms:
        runs = []
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            idle = arm == "not trained"
            numbers = enumerated(seed, ARMS[arm], 0 if idle else chosen.steps)
            if chosen.data_dir:
                epochs = 0 if idle else chosen.epochs
                numbers |= on_images(chosen.data_dir, seed, ARMS[arm], epochs)
            runs.append(numbers)
        means = [statistics.mean(run[column] for run in runs) for column in columns]
        print(f"| {arm} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)


if __name__ == "__main__":
    main()
