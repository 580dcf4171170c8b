"""Models as ONNX files: how far from PyTorch, how large, how fast beside ``predict``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench.timing import Case, Table
from gflowout.core.optional import require
from gflowout.methods import METHODS

DRAWS = 20
CLASSES = 10
FEW = ("mc", "id-gflowout", "gflowout")
"""Methods of backbones other than the MLP, which has all."""
SCORES = (
    "entropy", "expected_entropy", "mutual_information", "max_probability", "dempster_shafer",
    "variance",
)  # fmt: skip
PREDICT, FILE = "predict", "onnxruntime"


class Text(nn.Module):
    """A small transformer on 16 tokens, given by their numbers."""

    sites = ("encoder.layers.0.linear2", "encoder.layers.1.linear2")

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Map [batch, 16] to [batch, classes]."""
        found: Tensor = self.head(self.encoder(self.embed(ids)).mean(1))
        return found


BACKBONES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": ("MLP 784-300-100-10, batch 100", MLP, lambda: torch.randn(100, 784)),
    "resnet": (
        "ResNet-18 of width 8, batch 8",
        lambda: ResNet18(CLASSES, 8),
        lambda: torch.randn(8, 3, 32, 32),
    ),
    "bn-conv": (
        "ResNet-18 of width 8, BatchNorm first, batch 8",
        lambda: ResNet18(CLASSES, 8, "bn-conv"),
        lambda: torch.randn(8, 3, 32, 32),
    ),
    "transformer": (
        "transformer of two layers of 32, 32 texts of 16 tokens",
        Text,
        lambda: torch.randint(100, (32, 16)),
    ),
}


def export_tables(mlp_repeats: int, repeats: int, quick: bool = False) -> list[Table]:
    """A prediction with all scores by a file and by PyTorch, method by method.

    Args:
        mlp_repeats: Rounds of the table with the MLP.
        repeats: Rounds of the others.
        quick: The MLP alone, with one method.
    """
    names = ["mlp"] if quick else list(BACKBONES)
    return [
        _table(
            name,
            ("gflowout",) if quick else tuple(METHODS) if name == "mlp" else FEW,
            mlp_repeats if name == "mlp" else repeats,
        )
        for name in names
    ]


def _table(name: str, methods: Sequence[str], repeats: int) -> Table:
    title, build, draw = BACKBONES[name]
    written: dict[str, dict[str, float]] = {}

    def cases() -> dict[str, Case]:
        found: dict[str, Case] = {}
        with tempfile.TemporaryDirectory() as folder:
            for method in methods:
                both, about = _pair(method, build(), draw(), Path(folder))
                written[method] = about
                found |= {f"{method}, {kind}": case for kind, case in both.items()}
        return found

    def figures(_: dict[str, Case], seconds: dict[str, float]) -> dict[str, dict[str, float]]:
        return {
            f"{method}, {kind}": {
                "÷ predict": seconds[f"{method}, {kind}"] / seconds[f"{method}, {PREDICT}"],
                **(about if kind == FILE else dict.fromkeys(about, 0.0)),
            }
            for method, about in written.items()
            for kind in (PREDICT, FILE)
        }

    return Table(
        f"export-{name}",
        f"Prediction with {DRAWS} draws and all scores by PyTorch and by an ONNX file, {title}",
        (),
        repeats,
        cases,
        further=figures,
        cost=0.4,
        needs=("onnx", "onnxruntime", "onnxscript"),
    )


def _pair(
    method: str, net: nn.Module, x: Tensor, folder: Path
) -> tuple[dict[str, Case], dict[str, float]]:
    """A prediction by PyTorch and by a file, and what the file is like."""
    runtime = require("onnxruntime", extra="onnx", purpose="the benchmark of files")
    from gflowout.export import export

    sized = hasattr(METHODS[method].Options, "train_size")
    options: dict[str, Any] = {"train_size": 1000} if sized else {}
    model = gfo.wrap(
        net,
        method,
        list(net.sites),  # type: ignore[arg-type]
        likelihood=gfo.Categorical(CLASSES),
        example=(x[:2],),
        **options,
    )
    for name, parameter in model.method.named_parameters():  # masks that depend on what they see
        nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
    done = export(model, folder / f"{method}.onnx", (x[:3],), samples=DRAWS)
    single = runtime.SessionOptions()
    single.intra_op_num_threads = 1
    session = runtime.InferenceSession(done.path.read_bytes(), single)
    inputs = {done.inputs[0].name: x.numpy(), "seed": torch.tensor(1).numpy()}

    def predict() -> None:
        pred = model.predict(x, samples=DRAWS)
        for score in SCORES:
            getattr(pred, score)()

    about = {"largest difference": done.difference or 0.0, "MB": done.size / 1e6}
    return {PREDICT: predict, FILE: lambda: session.run(None, inputs)}, about
