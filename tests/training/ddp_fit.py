"""Trains on several processes: ``torchrun --nproc-per-node 2 ddp_fit.py FOLDER METHOD...``."""

import json
import sys
from pathlib import Path

import torch
from test_training import batches, wrapped

from gflowout.training import FitOptions, fit

OPTIONS = {
    "epochs": 4,
    "precision": "64-true",
    "lr": 0.02,
    "patience": 3,
    "schedule": "cosine",
    "accelerator": "cpu",
}


def train(folder: Path, method: str, devices: int) -> tuple[torch.nn.Module, object]:
    torch.set_num_threads(1)
    needed = {"train_size": 200, "prior_keep": 0.5} if method == "id-gflowout" else {}
    model = wrapped(method, **needed)
    result = fit(
        model,
        *batches(),
        FitOptions(devices=devices, **OPTIONS),
        folder=folder,
        progress=False,
        strategy="ddp" if devices > 1 else "auto",
    )
    return model, result


if __name__ == "__main__":
    import os

    rank = os.environ["RANK"]
    for method in sys.argv[2:]:
        target = Path(sys.argv[1], method)
        model, result = train(target / "run", method, 2)
        torch.save(model.state_dict(), target / f"rank-{rank}.pt")
        (target / f"rank-{rank}.json").write_text(json.dumps(result.history))
