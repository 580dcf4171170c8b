"""Every method as an ONNX file: how far from PyTorch, how large, how fast.

Models are as ``wrap`` makes them, with random weights: neither parity nor time depends on training.

    python examples/deployment.py --backbone mlp --backbone resnet18
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.export import export
from gflowout.methods import METHODS

SCORES = (
    "entropy", "expected_entropy", "mutual_information", "max_probability", "dempster_shafer",
    "variance",
)  # fmt: skip


class Text(nn.Module):
    """A small transformer on 16 tokens, given by their numbers."""

    sites = ("encoder.layers.0.linear2", "encoder.layers.1.linear2")

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        """Map [batch, 16] to [batch, 10]."""
        return self.head(self.encoder(self.embed(ids)).mean(1))


BACKBONES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: MLP((784, 300, 100, 10)), lambda: torch.randn(100, 784)),
    "resnet18": (lambda: ResNet18(10, width=8), lambda: torch.randn(8, 3, 32, 32)),
    "bn-conv": (lambda: ResNet18(10, 8, "bn-conv"), lambda: torch.randn(8, 3, 32, 32)),
    "transformer": (Text, lambda: torch.randint(100, (32, 16))),
}


def least(run: Callable[[], object], times: int = 5) -> float:
    """Least CPU time of a call, in milliseconds."""
    run()
    taken = []
    for _ in range(times):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return 1000 * min(taken)


def row(method: str, backbone: str, folder: Path) -> str:
    """Export one model; a row of the table."""
    torch.manual_seed(0)
    build, draw = BACKBONES[backbone]
    net, x = build(), draw()
    sized = hasattr(METHODS[method].Options, "train_size")
    model = gfo.wrap(
        net,
        method,
        list(net.sites),
        likelihood=gfo.Categorical(10),
        example=(x[:2],),
        **({"train_size": 1000} if sized else {}),
    )
    for name, parameter in model.method.named_parameters():  # masks that depend on what they see
        nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
    done = export(model, folder / f"{method}-{backbone}.onnx", (x[:3],))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(done.path, options)
    inputs = {done.inputs[0].name: x.numpy(), "seed": torch.tensor(1).numpy()}

    def predict() -> None:
        pred = model.predict(x)
        for score in SCORES:
            getattr(pred, score)()

    theirs, ours = least(lambda: session.run(None, inputs)), least(predict)
    return (
        f"| {method} | {backbone} | {done.difference:.0e} | {done.size / 1e6:.2f} | {theirs:.1f} "
        f"| {ours:.1f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", action="append", choices=BACKBONES)
    parser.add_argument("--method", action="append", choices=METHODS)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| method | backbone | largest difference | MB | onnxruntime, ms | predict, ms |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for backbone in chosen.backbone or BACKBONES:
            for method in chosen.method or METHODS:
                print(row(method, backbone, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
