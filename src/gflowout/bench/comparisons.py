"""Comparisons beside those of the methods: depth, memory format, data, ``fit``, ONNX files."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.backbones import MLP, ResNet18
from gflowout.bench.methods import (
    CLASSES,
    DRAWS,
    FEW,
    MLP_784,
    Build,
    Network,
    adam_step,
    bare_step,
    resnet,
    wrap,
)
from gflowout.bench.timing import Case, Table
from gflowout.core.optional import require
from gflowout.data.batches import Batches
from gflowout.data.transforms import Augment, Normalize
from gflowout.methods import METHODS
from gflowout.training import FitOptions, fit
from gflowout.training.options import training_step

DEPTHS = (4, 8, 16, 32, 64)
WIDTHS = (8, 16, 32)
STEP, LOOP = "training step", "loop by hand"
PREDICT, FILE = "predict", "onnxruntime"
SCORES = (
    "entropy", "expected_entropy", "mutual_information", "max_probability", "dempster_shafer",
    "variance",
)  # fmt: skip
_EPOCHS = 2
_GENERATORS: dict[str, dict[str, Any]] = {
    "mc": {"method": "mc"},
    "all": {"method": "gflowout", "history": "all"},
    "summary": {"method": "gflowout", "history": "summary"},
}


class Stack(nn.Sequential):
    """Modules one after the other, with the names of those that are sites."""

    def __init__(self, sites: Iterable[str], *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.sites = tuple(sites)


class Residual(nn.Module):
    """A residual block of two convolutions, as in ResNet-18; ``branch`` is a site."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to [batch, width, height, width]."""
        output: Tensor = (x + self.branch(x)).relu()
        return output


class Mean(nn.Module):
    """Averages [batch, tokens, features] over the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Map to [batch, features]."""
        return x.mean(1)


def residual(sites: int, width: int) -> Stack:
    """Residual blocks, a site before the sum of each."""
    return Stack(
        [f"{block}.branch" for block in range(1, sites + 1)],
        nn.Conv2d(3, width, 3, padding=1),
        *(Residual(width) for _ in range(sites)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)),
    )


def transformer(sites: int, width: int) -> Stack:
    """Layers of a transformer, a site after every attention and every feed-forward part."""
    layers = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(sites // 2)
    ]
    names = [f"{layer}.dropout{part}" for layer in range(len(layers)) for part in (1, 2)]
    return Stack(names, *layers, Mean(), nn.Linear(width, CLASSES))


def text() -> Stack:
    """A small transformer on 16 tokens, given by their numbers."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)]
    modules = (nn.Embedding(100, 32), *layers, Mean(), nn.Linear(32, CLASSES))
    return Stack(("1.linear2", "2.linear2"), *modules)


def depth_tables(repeats: int, width: int = 64) -> list[Table]:
    """How a training step grows with the number of sites, by what generators see of earlier masks.

    One table per network and depth; names of cases hold the generators' parameters. The transformer
    has four times as many features as the residual network has channels.
    """
    size, scale = 4 * width, (width / 64) ** 2
    blocks = f"residual blocks of width {width} on 16x16, a site in each"
    layers = f"transformer layers of width {size}, two sites in each, 64 tokens"
    tables, deep = [], []
    for sites in DEPTHS:
        cost = 0.1 * sites * scale
        net = Network(f"{sites} {blocks}", partial(residual, sites, width), (3, 16, 16))
        tables.append(_depth_table(f"depth-{sites}", net, 32, repeats, 2 * cost))
        net = Network(f"{sites // 2} {layers}", partial(transformer, sites, size), (64, size))
        deep.append(_depth_table(f"depth-transformer-{sites}", net, 16, repeats, cost))
    return tables + deep


def _depth_table(name: str, net: Network, batch: int, repeats: int, cost: float) -> Table:
    def cases() -> dict[str, Case]:
        x, y = net.batch(batch), torch.randint(CLASSES, (batch,))
        steps: dict[str, Case] = {}
        for label, options in _GENERATORS.items():
            model = wrap(net.build(), x=x, **options)
            size = sum(parameter.numel() for parameter in model.method.parameters())
            steps[f"{label}, {size:,} parameters" if size else label] = adam_step(model, x, y)
        return steps

    title = f"Training step, {net.title}, batch {batch}"
    return Table(name, title, ("mc",), repeats, cases, cost=cost)


def memory_format_tables(repeats: int, quick: bool = False) -> list[Table]:
    """A training step of ResNet-18 in ``channels_last`` and in the contiguous format.

    One table for each width, or for the least if ``quick``; narrower networks are not safe in
    ``channels_last``.
    """
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

    def cases(width: int) -> dict[str, Case]:
        x, y = torch.randn(32, 3, 32, 32), torch.randint(CLASSES, (32,))
        return {
            name: bare_step(ResNet18(CLASSES, width).to(memory_format=format), x, y)  # type: ignore[call-overload]
            for name, format in formats.items()
        }

    title = "Training step without masks, ResNet-18 of width {}, batch 32"
    return [
        Table(
            f"channels-last-{width}", title.format(width), ("contiguous",), repeats,
            partial(cases, width), cost=0.03 * width,
        )
        for width in (WIDTHS[:1] if quick else WIDTHS)
    ]  # fmt: skip


def data_tables(mlp_repeats: int, resnet_repeats: int, part: int = 1) -> list[Table]:
    """A batch of data beside the training step that it is for; both with method ``mc``.

    Takes one in ``part`` images, and divides the width of ResNet-18 by it.
    """
    mnist, cifar, net = 60_000 // part, 50_000 // part, resnet(max(16 // part, 1))
    title = "A batch of {:,} images of {}; step of {}, batch 128"
    mlp_title = title.format(mnist, "MNIST's shape, normalised", "the MLP")
    net_title = title.format(cifar, "CIFAR's shape, cropped, flipped and normalised", net.title)
    mlp_cases = partial(_data_cases, MLP, (1, 28, 28), mnist)
    net_cases = partial(_data_cases, net.build, net.shape, cifar, Augment(pad=4, flip=True))
    return [
        Table("data-mnist", mlp_title, (STEP,), mlp_repeats, mlp_cases, cost=0.03),
        Table("data-cifar", net_title, (STEP,), resnet_repeats, net_cases, cost=1 / part),
    ]


def _data_cases(
    build: Build, shape: tuple[int, ...], rows: int, augment: Augment | None = None
) -> dict[str, Case]:
    stream = itertools.chain.from_iterable(itertools.repeat(_batches(shape, rows, augment)))
    x, y = next(stream)
    return {STEP: adam_step(wrap(build(), "mc", x), x, y), "data": lambda: next(stream)}


def _batches(shape: tuple[int, ...], rows: int, augment: Augment | None = None) -> Batches:
    images = torch.randint(256, (rows, *shape), dtype=torch.uint8)
    return Batches(
        images, torch.randint(CLASSES, (rows,)), batch_size=128, shuffle=True, seed=0,
        transform=Normalize.fit(images), augment=augment, drop_last=True,
    )  # fmt: skip


def fit_table(repeats: int, rows: int = 60_000) -> Table:
    """Epochs of :func:`gflowout.training.fit`, set-up included, beside a loop written by hand."""
    methods, options = ("mc", "gflowout"), FitOptions(epochs=_EPOCHS)

    def loop(method: str, batches: Batches, example: Tensor) -> None:
        model = wrap(MLP(), method, example)
        optimiser = torch.optim.Adam(model.parameter_groups())
        for epoch in range(_EPOCHS):
            batches.set_epoch(epoch)
            for x, y in batches:
                training_step(model, [optimiser], x, y)

    def fitted(method: str, batches: Batches, example: Tensor) -> None:
        fit(wrap(MLP(), method, example), batches, options=options, progress=False)

    def cases() -> dict[str, Case]:
        batches = _batches((1, 28, 28), rows)
        example = next(iter(batches))[0]
        return {
            f"{name}, {method}": partial(run, method, batches, example)
            for name, run in ((LOOP, loop), ("fit", fitted))
            for method in methods
        }

    title = f"{_EPOCHS} epochs of {rows:,} images, {MLP_784.title}, batch 128"
    references = [f"{LOOP}, {method}" for method in methods]
    return Table("fit-epochs", title, references, repeats, cases, cost=30 * rows / 60_000)


_EXPORTED: dict[str, tuple[str, Build, Callable[[], Tensor]]] = {
    "mlp": (f"{MLP_784.title}, batch 100", MLP, lambda: torch.randn(100, 784)),
    "resnet": ("ResNet-18 of width 8, batch 8", resnet(8).build, lambda: torch.randn(8, 3, 32, 32)),
    "bn-conv": (
        "ResNet-18 of width 8, BatchNorm first, batch 8",
        lambda: ResNet18(CLASSES, 8, "bn-conv"),
        lambda: torch.randn(8, 3, 32, 32),
    ),
    "transformer": (
        "transformer of two layers of 32, 32 texts of 16 tokens",
        text,
        lambda: torch.randint(100, (32, 16)),
    ),
}


def export_tables(mlp_repeats: int, repeats: int, quick: bool = False) -> list[Table]:
    """A prediction with all scores by an ONNX file and by PyTorch, method by method.

    The MLP has all methods, the others a few; ``quick`` is the MLP alone with one method.
    """
    if quick:
        return [_export_table("mlp", ("gflowout",), mlp_repeats)]
    tables = [_export_table(name, FEW, repeats) for name in _EXPORTED if name != "mlp"]
    return [_export_table("mlp", tuple(METHODS), mlp_repeats), *tables]


def _export_table(name: str, methods: Sequence[str], repeats: int) -> Table:
    title, build, draw = _EXPORTED[name]
    files: dict[str, dict[str, float]] = {}

    def cases() -> dict[str, Case]:
        pairs: dict[str, Case] = {}
        with tempfile.TemporaryDirectory() as folder:
            for method in methods:
                path = Path(folder) / f"{method}.onnx"
                predict, run_file, files[method] = _export_pair(method, build(), draw(), path)
                pairs |= {f"{method}, {PREDICT}": predict, f"{method}, {FILE}": run_file}
        return pairs

    def columns(_: dict[str, Case], seconds: dict[str, float]) -> dict[str, dict[str, float]]:
        return {
            f"{method}, {kind}": {
                "÷ predict": seconds[f"{method}, {kind}"] / seconds[f"{method}, {PREDICT}"],
                **(numbers if kind == FILE else dict.fromkeys(numbers, 0.0)),
            }
            for method, numbers in files.items()
            for kind in (PREDICT, FILE)
        }

    title = f"Prediction with {DRAWS} draws and all scores by PyTorch and by an ONNX file, {title}"
    needs = ("onnx", "onnxruntime", "onnxscript")
    return Table(f"export-{name}", title, (), repeats, cases, columns, cost=0.4, needs=needs)


def _export_pair(
    method: str, net: nn.Module, x: Tensor, path: Path
) -> tuple[Case, Case, dict[str, float]]:
    """A prediction by PyTorch and by a file, and how large and how exact the file is."""
    runtime = require("onnxruntime", extra="onnx", purpose="the benchmark of files")
    from gflowout.export import export

    sized = hasattr(METHODS[method].Options, "train_size")
    options: dict[str, Any] = {"train_size": 1000} if sized else {}
    model = wrap(net, method, x, **options)
    for name, parameter in model.method.named_parameters():  # masks that depend on the inputs
        nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
    done = export(model, path, (x[:3],), samples=DRAWS)
    single = runtime.SessionOptions()
    single.intra_op_num_threads = 1
    session = runtime.InferenceSession(done.path.read_bytes(), single)
    inputs = {done.inputs[0].name: x.numpy(), "seed": torch.tensor(1).numpy()}

    def predict() -> None:
        pred = model.predict(x, samples=DRAWS)
        for score in SCORES:
            getattr(pred, score)()

    numbers = {"largest difference": done.difference or 0.0, "MB": done.size / 1e6}
    return predict, lambda: session.run(None, inputs), numbers
