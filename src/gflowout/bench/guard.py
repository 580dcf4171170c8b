"""The work that the tests hold the library to: ``python -m gflowout.bench.guard``.

Prints what ``tests/work.json`` holds. To accept that work has grown, or to keep what was won, write
its output there; the difference shows what changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from gflowout.bench.methods import MLP_784, resnet
from gflowout.bench.work import Work, prediction_work, step_work

BATCH = {"mlp": 128, "resnet": 4}
WIDTH = 4
RESNET_METHODS = ("none", "mc", "contextual", "concrete", "id-gflowout draws=1", "gflowout")
KEPT = ("calls", "random_numbers", "operations", "products", "flops", "allocated", "peak")
"""What is compared with the file; passes and rows follow from the sizes alone."""


def guarded() -> dict[str, dict[str, Work]]:
    """Work by what is done and by method, on the MLP and a narrow ResNet-18."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return {name: work() for name, work in _actions().items()}
    finally:
        torch.set_num_threads(threads)


def numbers(works: dict[str, dict[str, Work]]) -> dict[str, dict[str, dict[str, int]]]:
    """What is kept of work."""
    return {
        action: {
            method: {kind: getattr(work, kind) for kind in KEPT} for method, work in methods.items()
        }
        for action, methods in works.items()
    }


def _actions() -> dict[str, Callable[[], dict[str, Work]]]:
    mlp, net = MLP_784, resnet(WIDTH)
    rows, images = mlp.batch(BATCH["mlp"]), net.batch(BATCH["resnet"])
    return {
        "mlp-step": lambda: step_work(mlp.build, rows),
        "mlp-predict": lambda: prediction_work(mlp.build, rows),
        "resnet-step": lambda: step_work(net.build, images, RESNET_METHODS),
        "resnet-predict": lambda: prediction_work(net.build, images, 0, RESNET_METHODS),
        "resnet-predict-last": lambda: prediction_work(net.build, images, 2, RESNET_METHODS),
    }


def main() -> None:
    """Print the numbers, one line per method."""
    parts = [f' "torch": {json.dumps(str(torch.__version__).partition("+")[0])}']
    for action, methods in numbers(guarded()).items():
        lines = [f"  {json.dumps(name)}: {json.dumps(kept)}" for name, kept in methods.items()]
        parts.append(f" {json.dumps(action)}: {{\n" + ",\n".join(lines) + "\n }")
    print("{\n" + ",\n".join(parts) + "\n}")


if __name__ == "__main__":
    main()
