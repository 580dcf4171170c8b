"""How far the posterior of ID-GFlowOut is from the exact one, for several ways to train it.

5,000 images of MNIST, an MLP 784-300-100, prior at keep rate 0.5, one Markdown table::

    python tools/shared_masks.py --data-dir data --seeds 3

A mask is shared by all examples, so its reward is the likelihood of the whole training set. The
exact posterior cannot be listed. But KL(q || posterior) = log Z - ELBO, and log Z is above the ELBO
of any other distribution: one with a logit per unit, trained by credit for long while the network
rests, gives a lower bound of the distance. Columns, each a mean over seeds, most of them in nats:

- sd log R: standard deviation of the log reward over 100 masks drawn from q.
- residual: mean square of log Z + log q - log R over these masks, with the best log Z.
- ELBO: mean of log R - log q.
- distance: KL(q || posterior) is at least this.
- keep: mean keep rate of q.
- NLL: of 2,000 test images with 20 draws.
- seconds: of training on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from estimators import BATCH, DRAWS, EPOCHS, images
from torch import Tensor
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP

MASKS, ANNEALED, KEPT, REFINED = 100, 0.5, 32, 1500
Masks = list[Tensor]
"""One [masks, units] per site."""
Step = Callable[["Training"], None]


class Training:
    """A model with its data, and the good masks that some arms keep."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, options: dict[str, Any]) -> None:
        torch.manual_seed(seed)
        self.x, self.y, self.net = x, y, MLP()
        self.model = self.wrapped(**options)
        self.optimizer = torch.optim.Adam(self.model.parameter_groups())
        self.kept: list[tuple[float, Masks]] = []

    def wrapped(self, **options: Any) -> gfo.MaskedModel:
        """The network with a new posterior."""
        return gfo.wrap(
            self.net, "id-gflowout", list(self.net.sites), likelihood=gfo.Categorical(10),
            example=(self.x[:2],), train_size=len(self.x), **{"prior_keep": 0.5, **options},
        )  # fmt: skip

    def run(self, epochs: int, anneal: bool, more: Step | None) -> float:
        """Train; return the seconds that it took."""
        begun, steps, done = time.perf_counter(), epochs * (len(self.x) // BATCH), 0
        for _ in range(epochs):
            for rows in torch.randperm(len(self.x)).split(BATCH):
                done += 1
                if anneal:  # from a likelihood of 50 examples to that of all
                    grown = min(1.0, done / (ANNEALED * steps))
                    self.model.set_options(beta=0.01 ** (1 - grown))
                self.update(self.x[rows], self.y[rows])
            if more is not None:
                more(self)
        return time.perf_counter() - begun

    def update(self, x: Tensor, y: Tensor, masks: Masks | None = None) -> None:
        """One step, on masks that are drawn, or on given ones, [draws, units] per site."""
        given = None
        if masks is not None:
            given = [mask.unsqueeze(1).expand(-1, len(x), -1) for mask in masks]
        losses = self.model(x, y=y, masks=given)
        self.optimizer.zero_grad()
        losses.total.backward()
        self.optimizer.step()

    def drawn(self, count: int) -> Masks:
        """Masks from the posterior."""
        masks = self.model.predict(self.x[:1], samples=count, return_masks=True).masks
        assert masks is not None
        return [mask[:, 0] for mask in masks]

    def log_reward(self, masks: Masks) -> Tensor:
        """Log reward of masks, [masks], on the whole training set; differentiable in them."""
        hidden, values = self.net.hidden, []
        for first, second in zip(*masks, strict=True):
            z = hidden[1](hidden[0](self.x) * first) * second
            values.append(-F.cross_entropy(self.net.output(z), self.y, reduction="sum"))
        count = sum(mask.shape[-1] for mask in masks)
        return torch.stack(values) - count * torch.tensor(2.0).log()

    def log_q(self, masks: Masks) -> Tensor:
        """Log-probability of masks under the posterior, [masks]."""
        given = [mask.unsqueeze(1) for mask in masks]
        with torch.no_grad():
            losses = self.model(self.x[:1], y=self.y[:1], masks=given)
        assert losses.log_q is not None
        return losses.log_q.flatten()

    def elbo(self) -> tuple[Tensor, Tensor, Masks]:
        """Log reward, log reward - log q, [masks] each, and masks of the posterior."""
        masks = self.drawn(MASKS)
        with torch.no_grad():
            reward = self.log_reward(masks)
        return reward, reward - self.log_q(masks), masks

    def refined(self) -> float:
        """ELBO of independent units after long training with the network at rest."""
        self.net.requires_grad_(False)
        self.model = self.wrapped(objective="credit", hidden=(), draws=8)
        rate = {"generator_lr": 5e-3}
        self.optimizer = torch.optim.Adam(self.model.parameter_groups(**rate))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, REFINED)
        for _ in range(REFINED):
            rows = torch.randint(len(self.x), (BATCH,))
            self.update(self.x[rows], self.y[rows])
            schedule.step()
        return self.elbo()[1].mean().item()

    def searched(self, start: Masks, rounds: int) -> tuple[float, Masks]:
        """Climb from a mask, [1, units] per site, by flipping the units with the best slopes."""
        best, masks, count = self.log_reward(start).item(), start, 64
        for _ in range(rounds):
            leaves = [mask.clone().requires_grad_() for mask in masks]
            slopes = torch.autograd.grad(self.log_reward(leaves).sum(), leaves)
            now, slope = torch.cat(masks, -1), torch.cat(slopes, -1)
            gains = slope * (1 - 2 * now)
            flipped = gains.topk(count).indices
            other = now.scatter(-1, flipped, 1 - now.gather(-1, flipped))
            tried = list(other.split([mask.shape[-1] for mask in masks], -1))
            with torch.no_grad():
                found = self.log_reward(tried).item()
            if found > best:
                best, masks = found, tried
            elif count == 1:
                break
            else:
                count //= 2
        return best, masks


def replay(training: Training, search: bool) -> None:
    """After an epoch: keep the best masks seen, and take some steps on draws of them."""
    drawn = training.drawn(8)
    with torch.no_grad():
        scores = training.log_reward(drawn).tolist()
    training.kept += [
        (score, [mask[at : at + 1] for mask in drawn]) for at, score in enumerate(scores)
    ]
    if search:
        best = max(training.kept, key=lambda pair: pair[0])
        training.kept.append(training.searched(best[1], 5))
    training.kept = sorted(training.kept, key=lambda pair: -pair[0])[:KEPT]
    for _ in range(10):
        chosen = torch.randint(len(training.kept), (4,)).tolist()
        good = (training.kept[at][1] for at in chosen)
        masks = [torch.cat(parts) for parts in zip(*good, strict=True)]
        rows = torch.randint(len(training.x), (BATCH,))
        training.update(training.x[rows], training.y[rows], masks)


ARMS: dict[str, tuple[dict[str, Any], bool, Step | None]] = {
    "paper": ({"preset": "paper"}, False, None),
    "trajectory balance (default)": ({}, False, None),
    "the same, likelihood grows to that of all examples": ({}, True, None),
    "the same, replay of good masks": ({}, False, partial(replay, search=False)),
    "the same, replay and local search": ({}, False, partial(replay, search=True)),
    "trajectory balance, a logit per unit": ({"hidden": ()}, False, None),
    "credit": ({"objective": "credit"}, False, None),
    "credit, a draw": ({"objective": "credit", "draws": 1, "log_z": "learned"}, False, None),
    "credit, likelihood grows": ({"objective": "credit"}, True, None),
    "credit, a logit per unit": ({"objective": "credit", "hidden": ()}, False, None),
}


def measured(folder: Path, seed: int, arm: str, epochs: int) -> dict[str, float]:
    """Numbers of one arm."""
    x, y, others, labels = images(folder, seed)
    options, anneal, more = ARMS[arm]
    training = Training(x, y, seed, options)
    seconds = training.run(epochs, anneal, more)
    reward, ratio, masks = training.elbo()
    generator = torch.Generator().manual_seed(seed)
    pred = training.model.predict(others, samples=DRAWS, generator=generator)
    nll = -pred.log_prob(labels).mean().item()
    return {
        "sd log R": reward.std().item(),
        "residual": ratio.var().item(),
        "ELBO": ratio.mean().item(),
        "distance": training.refined() - ratio.mean().item(),
        "keep": torch.cat(masks, -1).mean().item(),
        "NLL": nll,
        "seconds": seconds,
    }


def main() -> None:
    """Train everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--arms", nargs="*", default=list(ARMS), help="some only")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    columns = ["sd log R", "residual", "ELBO", "distance", "keep", "NLL", "seconds"]
    print(f"| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|", flush=True)
    for arm in chosen.arms:
        seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        runs = [measured(chosen.data_dir, seed, arm, chosen.epochs) for seed in seeds]
        means = [statistics.mean(run[column] for run in runs) for column in columns]
        digits = [1, 0, 0, 0, 2, 3, 0]
        shown = (f"{mean:.{places}f}" for mean, places in zip(means, digits, strict=True))
        print(f"| {arm} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
