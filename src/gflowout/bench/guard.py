"""The work that the tests hold the library to: ``python -m gflowout.bench.guard``.

Prints what ``tests/work.json`` holds. To accept that work has grown, or to keep what was won, write
its output there; the difference shows what changed.
"""

from __future__ import annotations

import json

import torch

from gflowout.bench.methods import MLP_784, resnet
from gflowout.bench.work import Work, work_of

BATCH = {"mlp": 128, "resnet": 4}
WIDTH = 4
RESNET_METHODS = ("none", "mc", "contextual", "concrete", "id-gflowout draws=1", "gflowout")
KEPT = ("calls", "random_numbers", "operations", "products", "flops", "allocated", "peak")
"""What is compared with the file; passes and rows follow from the sizes alone."""


def guarded() -> dict[str, dict[str, Work]]:
    """Work by what is done and by method, on the MLP and a narrow ResNet-18."""
    mlp, net, few = MLP_784, resnet(WIDTH), RESNET_METHODS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            rows, images = mlp.batch(BATCH["mlp"]), net.batch(BATCH["resnet"])
            return {
                "mlp-step": work_of(True, mlp.build, rows),
                "mlp-predict": work_of(False, mlp.build, rows),
                "resnet-step": work_of(True, net.build, images, methods=few),
                "resnet-predict": work_of(False, net.build, images, methods=few),
                "resnet-predict-last": work_of(False, net.build, images, last=2, methods=few),
            }
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Print the numbers, one line per method."""
    parts = [f' "torch": {json.dumps(str(torch.__version__).partition("+")[0])}']
    for action, works in guarded().items():
        kept = {name: {kind: getattr(work, kind) for kind in KEPT} for name, work in works.items()}
        lines = [f"  {json.dumps(name)}: {json.dumps(work)}" for name, work in kept.items()]
        parts.append(f" {json.dumps(action)}: {{\n" + ",\n".join(lines) + "\n }")
    print("{\n" + ",\n".join(parts) + "\n}")


if __name__ == "__main__":
    main()
