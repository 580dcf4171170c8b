"""Small networks of many kinds, made up at random, with calls, labels and likelihoods for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo

MIXING = (
    "mean", "first", "last", "roll", "flip", "cumsum", "sort", "softmax", "graph", "pairs",
    "neighbour", "count", "statistics",
)  # fmt: skip
"""Ways in which the rows of a batch may depend on each other."""


@dataclass
class Output:
    """An output as Hugging Face has it."""

    logits: Tensor
    hidden: Tensor


class Residual(nn.Module):
    """Adds its input to what a body makes of it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        return x + self.body(x)


class Recurrent(nn.Module):
    """A recurrent layer over [batch, steps, features], read off its sequence."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Last or mean step."""
        if self.layer.batch_first:
            return self.layer(x)[0][:, -1]
        return self.layer(x.transpose(0, 1))[0].mean(0)


class Attention(nn.Module):
    """A transformer layer over [batch, steps, features]."""

    def __init__(self, features: int, width: int, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, 0.1, batch_first=batch_first, norm_first=norm_first
        )
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        """Mean over steps."""
        hidden = self.embed(x)
        if self.batch_first:
            return self.layer(hidden).mean(1)
        return self.layer(hidden.transpose(0, 1)).mean(0)


class Pooled(nn.Module):
    """The mean over all axes but batch and features of what a body gives."""

    def __init__(self, body: nn.Module, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.body, self.axes = body, axes

    def forward(self, x: Tensor) -> Tensor:
        """Mean."""
        return self.body(x).mean(self.axes)


class Mixing(nn.Module):
    """Lets the rows of a batch, [batch, features], depend on each other."""

    def __init__(self, how: str, width: int) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("edges", torch.randint(64, (2, 9)))
        if how == "statistics":
            self.norm = nn.BatchNorm1d(width, track_running_stats=False)

    def extra_repr(self) -> str:
        """Show how."""
        return self.how

    def forward(self, h: Tensor) -> Tensor:
        """Mix."""
        count = len(h)
        if self.how == "graph":
            source, target = self.edges % count
            return h.index_add(0, target, h[source])
        if self.how == "pairs":
            pair = torch.arange(count) // 2
            return h + torch.zeros_like(h).index_add(0, pair, h)[pair]
        if self.how == "neighbour":
            far = torch.eye(count, dtype=h.dtype) * 1e6
            return h + 0.5 * h[(torch.cdist(h.detach(), h.detach()) + far).argmin(1)]
        ways: dict[str, Callable[[], Tensor]] = {
            "mean": lambda: h - 0.5 * h.mean(0),
            "first": lambda: h - 0.5 * h[:1],
            "last": lambda: h - 0.5 * h[-1:],
            "roll": lambda: h + h.roll(1, 0),
            "flip": lambda: h + 0.5 * h.flip(0),
            "cumsum": lambda: h.cumsum(0),
            "sort": lambda: h + h.sort(0).values,
            "softmax": lambda: h + h.softmax(0),
            "count": lambda: h * count,
            "statistics": lambda: self.norm(h),
        }
        return ways[self.how]()


class Network(nn.Module):
    """A body, mixed rows or not, and a head, with an output of some form."""

    def __init__(self, body: nn.Module, mixing: nn.Module, head: nn.Module, form: str) -> None:
        super().__init__()
        self.body, self.mixing, self.head, self.form = body, mixing, head, form

    def forward(self, x: Tensor, scale: Tensor | float | None = None) -> Any:
        """Run; ``scale`` multiplies the features, for every row or for all."""
        hidden = self.body(x)
        if scale is not None:
            hidden = hidden * scale
        logits = self.head(self.mixing(hidden))
        if self.form == "flat":
            return logits.squeeze(-1)
        if self.form == "tuple":
            return logits, hidden
        if self.form == "dict":
            return {"loss": None, "logits": logits}
        return Output(logits, hidden) if self.form == "object" else logits


class FromDict(Network):
    """The same, with all arguments in one dictionary."""

    def forward(self, batch: dict[str, Any]) -> Any:  # type: ignore[override]
        """Run on ``batch["x"]``."""
        return super().forward(batch["x"], batch.get("scale"))


@dataclass(eq=False)
class Case:
    """A network with all that is needed to wrap, call and train it.

    Attributes:
        net: The backbone.
        likelihood: What its output means.
        call: Positional and keyword arguments for a batch of some size.
        labels: Labels for such a batch.
        smallest: Size of the smallest batch that it takes.
        names: What errors may call the input.
    """

    net: Network
    likelihood: gfo.Likelihood
    call: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    labels: Callable[[int], Tensor]
    smallest: int
    names: tuple[str, ...]
    dtype: torch.dtype

    @property
    def mixes(self) -> bool:
        """Whether rows depend on each other."""
        return isinstance(self.net.mixing, Mixing)

    @property
    def plain(self) -> bool:
        """Whether a pass in train mode computes the same as one in eval mode."""
        kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
        noisy = any(isinstance(part, kinds) for part in self.net.modules())
        return not noisy and not any(isinstance(p, Attention) for p in self.net.modules())


def _activation(rng: random.Random) -> nn.Module:
    kind = rng.choice([nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.ReLU])
    return nn.ReLU(inplace=True) if kind is nn.ReLU and rng.random() < 0.4 else kind()


def _mlp(rng: random.Random, features: int, width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(features, width), _activation(rng)]
    for _ in range(rng.randrange(3)):
        block = [nn.Linear(width, width), _activation(rng)]
        extra = rng.choice([None, nn.BatchNorm1d(width), nn.LayerNorm(width), nn.Dropout(0.3)])
        if extra is not None:
            block.append(extra)
        layers += [Residual(nn.Sequential(*block))] if rng.random() < 0.4 else block
    return nn.Sequential(*layers)


def _cnn(rng: random.Random, channels: int, width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), _activation(rng)]
    for _ in range(rng.randrange(2)):
        block = [nn.Conv2d(width, width, 3, padding=1), _activation(rng)]
        extra = rng.choice([None, nn.BatchNorm2d(width), nn.Dropout2d(0.2), nn.Dropout(0.2)])
        if extra is not None:
            block.append(extra)
        layers += [Residual(nn.Sequential(*block))] if rng.random() < 0.5 else block
    return Pooled(nn.Sequential(*layers), (2, 3))


def _body(rng: random.Random, kind: str, width: int) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A body of some kind that gives [batch, width], and its inputs."""
    features, steps = rng.randint(2, 5), rng.randint(2, 5)
    if kind == "mlp":
        return _mlp(rng, features, width), lambda batch: torch.randn(batch, features)
    if kind == "cnn":
        size = rng.randint(4, 6)
        return _cnn(rng, 2, width), lambda batch: torch.randn(batch, 2, size, size)
    if kind == "tokens":
        body = nn.Sequential(nn.Embedding(11, width), nn.Linear(width, width), _activation(rng))
        return Pooled(body, (1,)), lambda batch: torch.randint(11, (batch, steps))
    sequence = lambda batch: torch.randn(batch, steps, features)  # noqa: E731
    first = rng.random() < 0.6
    if kind == "attention":
        return Attention(features, width, first, rng.random() < 0.5), sequence
    layer = rng.choice([nn.LSTM, nn.GRU])(features, width, batch_first=first)
    return Recurrent(layer), sequence


def _outcome(
    rng: random.Random,
) -> tuple[gfo.Likelihood, int, list[str], Callable[[int], Tensor]]:
    """A likelihood, the outputs that it takes, their forms, and labels."""
    size = rng.randint(2, 4)
    kind = rng.choice(["categorical", "categorical", "binary", "labels", "gaussian", "noise"])
    forms = ["plain", "plain", "tuple", "dict", "object"]
    if kind == "categorical":
        return gfo.Categorical(size), size, forms, lambda batch: torch.randint(size, (batch,))
    if kind == "binary":
        return gfo.Binary(), 1, [*forms, "flat"], lambda batch: torch.randint(2, (batch,)).float()
    if kind == "labels":
        return gfo.MultiLabel(size), size, forms, lambda batch: torch.rand(batch, size).round()
    if kind == "noise":
        likelihood = gfo.Gaussian(size, heteroscedastic=True)
        return likelihood, 2 * size, forms, lambda batch: torch.randn(batch, size)
    if rng.random() < 0.5:
        return gfo.Gaussian(1), 1, [*forms, "flat"], lambda batch: torch.randn(batch, 1)
    return gfo.Gaussian(size), size, forms, lambda batch: torch.randn(batch, size)


def make(rng: random.Random) -> Case:
    """Make up a network."""
    kind = rng.choice(["mlp", "mlp", "mlp", "cnn", "recurrent", "attention", "tokens"])
    how = rng.choice(MIXING) if rng.random() < 0.25 else None
    width = 2 * rng.randint(2, 4)
    body, inputs = _body(rng, kind, width)
    mixing = nn.Identity() if how is None else Mixing(how, width)
    likelihood, outputs, forms, labels = _outcome(rng)
    way = rng.choice(["position", "position", "keyword", "both", "dict"])
    shared = rng.random() < 0.5  # one scale for all rows
    kinds = [torch.float32] * 6 + [torch.float64] + [torch.bfloat16] * (how is None)
    dtype = rng.choice(kinds)
    network = FromDict if way == "dict" else Network
    net = network(body, mixing, nn.Linear(width, outputs), rng.choice(forms))
    for part in net.modules():
        if isinstance(part, nn.Linear | nn.Conv2d) and part.bias is not None:
            with torch.no_grad():  # so that few units are dead
                part.bias.abs_().add_(0.2)
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.normal_(std=0.3)
            part.running_var.uniform_(0.5, 1.5)
    net.to(dtype).train(rng.random() < 0.5)

    def call(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = inputs(batch)
        x = x.to(dtype) if x.is_floating_point() else x
        scale = 0.7 if shared else torch.rand(batch, 1).add(0.5).to(dtype)
        if way == "dict":
            return ({"x": x, "scale": scale},), {}
        if way == "both":
            return (x,), {"scale": scale}
        return ((), {"x": x}) if way == "keyword" else ((x,), {})

    smallest = 2 if how == "statistics" else 1
    names = ("x", "batch.x", "batch") if way == "dict" else ("x",)
    return Case(net, likelihood, call, labels, smallest, names, dtype)
