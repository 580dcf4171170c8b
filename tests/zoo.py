"""Small backbones of every kind that ``wrap`` must handle, as a table.

Every entry knows its inputs, labels, likelihood and sites, and what its sites must turn out to be:
name, number of units and axis of the units, in execution order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
import gflowout.methods

METHODS = (
    "none",
    "mc",
    "concrete",
    "contextual",
    "variational",
    "gates",
    "masksembles",
    "modes",
    "id-gflowout",
    "gflowout",
    "combined",
)
TRAIN_SIZE = 50


def needed(method: str) -> dict[str, Any]:
    """Options that a method warns about if they are not given."""
    known = gflowout.methods.METHODS.get(method)
    return {"train_size": TRAIN_SIZE} if known and hasattr(known.Options, "train_size") else {}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed and leave the global random state as it was."""
    before = torch.get_rng_state()
    # torch.manual_seed also formats a stack trace per absent accelerator: slow in many tests.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def predicted(model: Any, *args: Any, **kwargs: Any) -> gfo.Predictive:
    """A prediction from one and the same seed, so that two of them can be compared."""
    source = torch.Generator().manual_seed(0)
    pred: gfo.Predictive = model.predict(*args, generator=source, **kwargs)
    return pred


@dataclass(frozen=True, eq=False)
class Entry:
    """One backbone with everything that is needed to wrap, train and call it."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    labels: Callable[[int], Tensor]
    likelihood: Callable[[], gfo.Likelihood]
    sites: Any
    expected: Sequence[tuple[str, int, int]]

    def call(self, batch: int, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call, drawn from a seed that does not touch the global state."""
        with seeded(seed):
            return self.inputs(batch)

    def targets(self, batch: int, seed: int = 0) -> Tensor:
        """Labels of the same batch."""
        with seeded(seed):
            return self.labels(batch)

    def backbone(self, seed: int = 0) -> nn.Module:
        """A backbone with weights and BatchNorm statistics away from their starting values."""
        with seeded(seed):
            module = self.build()
            for part in module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.running_mean.normal_(std=0.3)
                    part.running_var.uniform_(0.5, 1.5)
                elif isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) and part.bias is not None:
                    with torch.no_grad():  # so that few units of a small network are dead
                        part.bias.abs_().add_(0.2)
            return module

    @cache  # noqa: B019
    def shared(self, method: str) -> Any:
        """A wrapped model for tests that leave it as it is."""
        return self.wrap(method)

    def wrap(self, method: str, seed: int = 0, backbone: nn.Module | None = None) -> Any:
        """Wrap, with generators whose masks depend on what they see."""
        args, kwargs = self.call(2, seed=7)
        options = needed(method)
        if "prior_keep" in vars(gflowout.methods.METHODS[method].Options):
            options["prior_keep"] = 0.5  # masks of a few units that differ from each other
        with seeded(seed):
            model = gfo.wrap(
                self.backbone(seed) if backbone is None else backbone,
                method,
                self.sites,
                likelihood=self.likelihood(),
                example=kwargs or args,
                **options,
            )
            for name, parameter in model.method.named_parameters():
                # A plain number stands before a gain; much more would leave no noise.
                nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
        return model


class MLP(nn.Module):
    def __init__(self, inputs: int = 4, hidden: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden - 1)
        self.head = nn.Linear(hidden - 1, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class FlatOutput(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3, padding=1)
        self.conv2 = nn.Conv2d(5, 6, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, image: Tensor) -> Tensor:
        hidden = F.relu(self.conv2(F.relu(self.conv1(image))))
        return self.head(hidden.mean((2, 3)))


class Signal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 6, 3)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(x)).mean(-1))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.branch = nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.branch(self.bn2(self.conv2(out)))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.layer1 = Block(4)
        self.layer2 = Block(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class InPlace(nn.Module):
    """In-place activations before, at and right after sites."""

    def __init__(self) -> None:
        super().__init__()
        self.fc0 = nn.Linear(4, 8)
        self.relu0 = nn.ReLU(inplace=True)
        self.fc1 = nn.Linear(8, 8)
        self.relu1 = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(8, 6)
        self.relu2 = nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu1(self.fc1(self.relu0(self.fc0(x))))
        return self.head(self.relu2(self.fc2(hidden).mul_(2)))


class AliasedResidual(nn.Module):
    """An in-place activation on a tensor that is used again, as in pre-activation blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.relu = nn.ReLU(inplace=True)
        self.same = nn.Identity()
        self.fc = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        alias = self.same(hidden)
        active = self.relu(alias)  # changes hidden and alias, too
        return self.head(torch.relu(self.fc(active)) + hidden + alias)


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, *, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
        return self.head(torch.tanh(self.left(left) + scale * self.right(right)))


class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.head(torch.tanh(self.fc(batch["x"])) * batch["weight"].unsqueeze(-1))


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


class StructuredOutput(MLP):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"loss": None, "logits": logits} if self.kind == "dict" else Output(logits, x)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.bn, self.act = nn.BatchNorm1d(8), nn.ReLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.bn(self.fc1(x))))


class Encoder(nn.Module):
    """Attention over tokens; ``batch_first=False`` transposes inside, as older models do."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Linear(4, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        hidden = self.embedding(x)
        if not self.batch_first:
            hidden = hidden.transpose(0, 1)
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        return self.head(hidden[:, 0] if self.batch_first else hidden[0])


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Linear(4, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        if self.batch_first:
            return self.head(self.lstm(hidden)[0][:, -1])
        return self.head(self.lstm(hidden.transpose(0, 1))[0][-1])


class RecurrentFirst(nn.Module):
    """A recurrent layer before the first site: its state has the batch on the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.gru(x)
        return self.head(self.drop(states.mean(1) + last[0]))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.fc = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.embedding(ids))).mean(1))


class Tagger(Tokens):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.embedding(ids))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.fc = nn.Linear(6, 6)
        self.head = nn.Linear(6, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.fc(self.embedding(ids).mean(1))))


class ViT(nn.Module):
    """Patches of an image become tokens: channels move from axis 1 to the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 4, 8) * 0.1)
        self.drop = nn.Dropout(0.3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.layer(self.drop(tokens)).mean(1))


class SharedActivation(nn.Module):
    """One ReLU serves before and after the first site."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=inplace)
        self.fc0 = nn.Linear(4, 7)
        self.fc1 = nn.Linear(7, 8)
        self.fc2 = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.fc1(self.relu(self.fc0(x))))
        return self.head(self.relu(self.fc2(hidden)))


class ChangesInput(MLP):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return super().forward(x)


class Buffered(nn.Module):
    """A module before the first site whose output does not depend on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 5)
        self.fc = nn.Linear(4, 5)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.table(torch.arange(6))
        return self.head(self.drop(torch.relu(self.fc(x) @ positions.T @ positions)))


def features(*shape: int) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda batch: ((torch.randn(batch, *shape),), {})


def ids(length: int, size: int) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda batch: ((torch.randint(size, (batch, length)),), {})


def classes(*shape: int, size: int = 3) -> Callable[[int], Tensor]:
    return lambda batch: torch.randint(size, (batch, *shape))


def real(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


def yes_no(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randint(2, (batch, *shape)).float()


def categorical() -> gfo.Likelihood:
    return gfo.Categorical(3)


def padded(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    padding = torch.zeros(batch, 5, dtype=torch.bool)
    padding[:, 4] = True
    return (torch.randn(batch, 5, 4),), {"padding": padding}


def padded_keywords(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (x,), kwargs = padded(batch)
    return (), {"x": x, **kwargs}


def dropout_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.6, inplace=True)),
        nn.Linear(6, 3),
    )


MLP_SITES = [("fc1", 8, 1), ("fc2", 7, 1)]
LAYER_SITES = [
    (f"encoder.layers.{layer}.{part}", 8, 2)
    for layer in range(2)
    for part in ("self_attn", "dropout1", "linear2")
]
LAYER_PATTERNS = [
    "encoder.layers.*.self_attn",
    "encoder.layers.*.linear2",
    "encoder.layers.*.dropout1",
]

ZOO = [
    Entry("mlp", MLP, features(4), classes(), categorical, ["fc2", "fc1"], MLP_SITES),
    Entry(
        "every dropout",
        dropout_net,
        features(4),
        classes(),
        categorical,
        None,
        [("2", 8, 1), ("3.2", 6, 1)],
    ),
    Entry("glob", MLP, features(4), classes(), categorical, ["fc*"], MLP_SITES),
    Entry(
        "conv",
        ConvNet,
        features(2, 6, 6),
        classes(),
        categorical,
        ["conv1", "conv2"],
        [("conv1", 5, 1), ("conv2", 6, 1)],
    ),
    Entry("conv1d", Signal, features(2, 9), classes(), categorical, ["relu"], [("relu", 6, 1)]),
    Entry(
        "resnet",
        ResNet,
        features(2, 5, 5),
        classes(),
        categorical,
        ["*.branch"],
        [("layer1.branch", 4, 1), ("layer2.branch", 4, 1)],
    ),
    Entry(
        "in-place",
        InPlace,
        features(4),
        classes(),
        categorical,
        ["relu1", "fc2"],
        [("relu1", 8, 1), ("fc2", 6, 1)],
    ),
    Entry(
        "aliased residual",
        AliasedResidual,
        features(4),
        classes(),
        categorical,
        ["fc"],
        [("fc", 6, 1)],
    ),
    Entry(
        "keyword-only",
        KeywordOnly,
        lambda batch: ((), {"left": torch.randn(batch, 4), "right": torch.randn(batch, 3)}),
        classes(),
        categorical,
        ["right", "left"],
        [("left", 6, 1), ("right", 6, 1)],
    ),
    Entry(
        "dict input",
        DictInput,
        lambda batch: (({"x": torch.randn(batch, 4), "weight": torch.rand(batch) + 0.5},), {}),
        classes(),
        categorical,
        ["fc"],
        [("fc", 6, 1)],
    ),
    Entry(
        "dict output",
        lambda: StructuredOutput("dict"),
        features(4),
        classes(),
        categorical,
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "dataclass output",
        lambda: StructuredOutput("dataclass"),
        features(4),
        classes(),
        categorical,
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry("batchnorm", Normed, features(4), classes(), categorical, ["act"], [("act", 8, 1)]),
    Entry(
        "transformer",
        Encoder,
        padded_keywords,
        classes(),
        categorical,
        LAYER_PATTERNS,
        LAYER_SITES,
    ),
    Entry(
        "sequence-first transformer",
        lambda: Encoder(batch_first=False),
        features(5, 4),
        classes(),
        categorical,
        LAYER_PATTERNS,
        LAYER_SITES,
    ),
    Entry(
        "as many tokens as examples",
        lambda: Encoder(batch_first=False),
        features(2, 4),
        classes(),
        categorical,
        LAYER_PATTERNS,
        LAYER_SITES,
    ),
    Entry(
        "sequence-first lstm",
        lambda: Recurrent(batch_first=False),
        features(5, 4),
        classes(),
        categorical,
        ["lstm"],
        [("lstm", 6, 2)],
    ),
    Entry(
        "lstm",
        lambda: Recurrent(batch_first=True),
        features(5, 4),
        classes(),
        categorical,
        ["lstm"],
        [("lstm", 6, 2)],
    ),
    Entry("gru", RecurrentFirst, features(5, 4), classes(), categorical, None, [("drop", 6, 1)]),
    Entry(
        "tokens",
        Tokens,
        ids(5, 11),
        classes(),
        categorical,
        ["embedding", "fc"],
        [("embedding", 6, 2), ("fc", 8, 2)],
    ),
    Entry("tagging", Tagger, ids(5, 11), classes(5), categorical, ["fc"], [("fc", 8, 2)]),
    Entry(
        "multi-label",
        MLP,
        features(4),
        yes_no(3),
        lambda: gfo.MultiLabel(3),
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "binary",
        lambda: MLP(outputs=1),
        features(4),
        yes_no(),
        gfo.Binary,
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "flat binary",
        lambda: FlatOutput(outputs=1),
        features(4),
        yes_no(),
        gfo.Binary,
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "gaussian",
        lambda: MLP(outputs=1),
        features(4),
        real(1),
        lambda: gfo.Gaussian(1),
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "flat gaussian",
        lambda: FlatOutput(outputs=1),
        features(4),
        real(),
        lambda: gfo.Gaussian(1),
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "gaussian of two",
        lambda: MLP(outputs=2),
        features(4),
        real(2),
        lambda: gfo.Gaussian(2),
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "heteroscedastic",
        lambda: MLP(outputs=4),
        features(4),
        real(2),
        lambda: gfo.Gaussian(2, heteroscedastic=True),
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "input",
        MLP,
        features(4),
        classes(),
        categorical,
        ["input", "fc1"],
        [("input", 4, 1), ("fc1", 8, 1)],
    ),
    Entry(
        "tied", Tied, ids(4, 5), classes(size=5), lambda: gfo.Categorical(5), ["fc"], [("fc", 6, 1)]
    ),
    Entry("vit", ViT, features(2, 8, 8), classes(), categorical, ["drop"], [("drop", 8, 2)]),
    Entry(
        "shared relu",
        SharedActivation,
        features(4),
        classes(),
        categorical,
        ["fc1", "fc2"],
        [("fc1", 8, 1), ("fc2", 6, 1)],
    ),
    Entry(
        "shared in-place relu",
        lambda: SharedActivation(inplace=True),
        features(4),
        classes(),
        categorical,
        ["fc2"],
        [("fc2", 6, 1)],
    ),
    Entry(
        "changes its input",
        ChangesInput,
        features(4),
        classes(),
        categorical,
        ["fc1", "fc2"],
        MLP_SITES,
    ),
    Entry(
        "masks its changed input",
        ChangesInput,
        features(4),
        classes(),
        categorical,
        ["input"],
        [("input", 4, 1)],
    ),
    Entry("fixed table", Buffered, features(4), classes(), categorical, None, [("drop", 5, 1)]),
]
