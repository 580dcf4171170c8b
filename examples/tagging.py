"""Tagging sequences of different lengths: is each digit larger or smaller than the one before?

The tokens are scikit-learn's handwritten digits. A sequence has four to twelve of them; the rest is
padding, which the network does not look at and whose label, ``ignore_index``, counts for nothing.

    python examples/tagging.py --out tagging.png
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

SHORTEST, LONGEST, PADDING = 4, 12, -100
TAGS = ("first", "smaller", "same", "larger")


class Tagger(nn.Module):
    """A small transformer over images; ``real`` is False where a position is padding."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.place = nn.Parameter(0.1 * torch.randn(LONGEST, width))
        self.encoder = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True
        )
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, len(TAGS))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Logits of the tags, [batch, tokens, tags]."""
        tokens = self.embed(x) + self.place[: x.shape[1]]
        seen = self.encoder(tokens, src_key_padding_mask=~real)
        logits: Tensor = self.head(self.hidden(seen))
        return logits


def sequences(
    images: Tensor, digits: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images [count, 12, 64], where they are real [count, 12], and tags [count, 12]."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (count, LONGEST), generator=generator)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=generator)
    real = torch.arange(LONGEST) < lengths
    steps = digits[chosen].diff(dim=1).sign() + 2
    tags = torch.cat([torch.zeros(count, 1, dtype=torch.long), steps], 1)
    return images[chosen] * real.unsqueeze(-1), real, tags.masked_fill(~real, PADDING)


def train(x: Tensor, real: Tensor, y: Tensor, epochs: int) -> gfo.MaskedModel:
    """Train with masks on the hidden layer before the tags."""
    model = gfo.wrap(
        Tagger(),
        "gflowout",
        ["hidden"],
        likelihood=gfo.Categorical(len(TAGS), ignore_index=PADDING),
        example={"x": x[:2], "real": real[:2]},
        padding="real",  # mask generators see averages over real positions only
        keep=0.8,
    )
    optimizer = torch.optim.Adam(model.parameter_groups(lr=2e-3))
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            losses = model(x=x[batch], real=real[batch], y=y[batch])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
    return model


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on several seeds, print what came out, plot one sequence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="tagging.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, count, epochs = (2, 400, 4) if options.quick else (options.seeds, 4000, 20)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    digits = torch.tensor(data.target)
    results = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        known, unseen = order[:1300], order[1300:]  # no handwriting is in both parts
        model = train(*sequences(images[known], digits[known], count, seed), epochs)
        x, real, y = sequences(images[unseen], digits[unseen], 500, seed + 1000)
        generator = torch.Generator().manual_seed(seed)
        pred = model.predict(x=x, real=real, generator=generator)
        token = y != PADDING  # scores of padded positions mean nothing: leave them out
        right = (pred.mean.argmax(-1) == y)[token].float()
        kept = pred.entropy()[token].argsort()[: int(0.9 * len(right))]
        results.append((right.mean().item(), right[kept].mean().item()))
        if seed == 0:
            plot(x, y, pred, options.out)
    mean = np.mean(results, 0)
    error = np.std(results, 0, ddof=1) / np.sqrt(seeds)
    print(
        f"{seeds} seeds: {100 * mean[0]:.1f} ± {100 * error[0]:.1f} % of the tags are right; of the"
        f" 90 % with the lowest entropy, {100 * mean[1]:.1f} ± {100 * error[1]:.1f} %."
    )
    return {"all": mean[0], "kept": mean[1]}


def plot(x: Tensor, y: Tensor, pred: gfo.Predictive, path: str) -> None:
    """The sequence with the least certain token: its digits, tags and entropies."""
    entropy = pred.entropy().masked_fill(y == PADDING, 0)
    row = int(entropy.amax(1).argmax())
    length = int((y[row] != PADDING).sum())
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 3.2), height_ratios=(1, 1.6), sharex=True, layout="constrained"
    )
    for place in range(length):
        extent = (place - 0.45, place + 0.45, 0, 1)
        image = x[row, place].reshape(8, 8)
        top.imshow(image, cmap="gray_r", extent=extent, aspect="auto")
        found, true = int(pred.mean[row, place].argmax()), int(y[row, place])
        colour = "#1b7837" if found == true else "#c51b7d"
        word = TAGS[found] if found == true else f"{TAGS[found]}\n(is {TAGS[true]})"
        bottom.text(place, entropy[row, place] + 0.04, word, ha="center", fontsize=8, color=colour)
    top.set(yticks=[], xlim=(-0.6, length - 0.4), ylim=(0, 1))
    bottom.bar(range(length), entropy[row, :length], color="#3182bd", width=0.7)
    bottom.set(ylabel="entropy, nats", ylim=(0, 1.6), xticks=[], xlabel="tokens, in order")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
