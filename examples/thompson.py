"""Exploration: a contextual bandit played by Thompson sampling, one drawn mask per round.

Each round shows a handwritten digit, 0 to 4; the player names one of five actions and learns only
whether it was the right one. ID-GFlowOut has one mask for all rows: a draw is one network, which
judges all actions. Greedy takes the mean of 20 draws.

    python examples/thompson.py --out thompson.png
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

ACTIONS = 5
PLAYERS = {"Thompson": "#08519c", "greedy": "#d95f02", "epsilon-greedy": "#4d9221"}
EPSILON, EVERY, STEPS = 0.1, 10, 20  # random actions; rounds between trainings; their steps


class Reward(nn.Module):
    """Log-odds of a reward for an image and an action that is given as a one-hot vector."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.values = nn.Linear(64, ACTIONS)

    def forward(self, image: Tensor, action: Tensor) -> Tensor:
        """One number per row, [batch]."""
        return (self.values(self.image(image)) * action).sum(-1)


def play(player: str, images: Tensor, digits: Tensor, seed: int) -> np.ndarray:
    """Regret so far, after every round."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    actions = torch.eye(ACTIONS)
    net = Reward()
    example = (images[:2], actions[:2])
    model = gfo.wrap(
        net, "id-gflowout", ["image"], likelihood=gfo.Binary(), example=example, train_size=1
    )
    optimizer = torch.optim.Adam(model.parameter_groups(lr=3e-3, generator_lr=3e-3))
    taken, rewards = torch.zeros(len(images), dtype=torch.long), torch.zeros(len(images))
    for number, image in enumerate(images):
        draws = 1 if player == "Thompson" else 20
        rows = image.expand(ACTIONS, -1)
        judged = model.predict(rows, actions, samples=draws, generator=generator).mean
        action = int(judged.argmax())
        if player == "epsilon-greedy" and torch.rand((), generator=generator) < EPSILON:
            action = int(torch.randint(ACTIONS, (), generator=generator))
        taken[number], rewards[number] = action, float(action == digits[number])
        if (number + 1) % EVERY:
            continue
        model.set_options(train_size=number + 1)
        for _ in range(STEPS):
            rows = torch.randint(number + 1, (100,), generator=generator)
            losses = model(images[rows], actions[taken[rows]], y=rewards[rows])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
    return (1 - rewards).cumsum(0).numpy()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Play on several seeds, print what came out, plot the regret."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="thompson.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, rounds = (2, 60) if options.quick else (options.seeds, options.rounds)
    data = load_digits(n_class=ACTIONS)
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    digits = torch.tensor(data.target)
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    words, ends = [], {}
    for player, colour in PLAYERS.items():
        regrets = []
        for seed in range(seeds):
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
            shown = order[:rounds]
            regrets.append(play(player, images[shown], digits[shown], seed))
        regret = np.array(regrets)
        mean, error = regret.mean(0), regret.std(0, ddof=1) / np.sqrt(seeds)
        axes.plot(mean, color=colour, label=player)
        band = {"color": colour, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(range(rounds), mean - error, mean + error, **band)
        words.append(f"{player} {mean[-1]:.0f} ± {error[-1]:.0f}")
        ends[player] = float(mean[-1])
    axes.set(xlabel="rounds", ylabel="rewards missed so far", xlim=(0, rounds))
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(options.out, dpi=120)
    plt.close(figure)
    print(f"{seeds} seeds, rewards missed in {rounds} rounds: {', '.join(words)}.")
    return ends


if __name__ == "__main__":
    main()
