"""What preset ``paper`` of the paper's studies would cost on GPUs, planned on paper.

``python tools/gpu_plan.py [--teraflops 30] [--step-ms 5] [--dollars 2]``

Nothing is trained. The floating-point operations of a training step are counted for every arm at
the paper's sizes, on the meta device, which has shapes but no numbers. A network takes steps times
the larger of two times: operations divided by the sustained throughput, and the least time of a
step (starting kernels). Early stopping is left out, so times are upper bounds; predictions are
counted as 20 plain passes per draw set. Networks that studies share are counted once.

The throughput is an assumption, not a measurement: no GPU has run these studies.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MCAN, MLP, ResNet18
from gflowout.bench.work import count
from gflowout.core.text import aligned
from gflowout.methods import METHODS
from gflowout.runs import Run
from gflowout.runs.spec import canonical
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.study import TUNING, get

STUDIES = ("robustness", "block-order", "ood", "adaptation", "masks", "vqa", "clinical")
EXAMPLES = {
    "mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "vqa-v2": 658_111, "eicu": 200_000,
    "eicu-pair": 4_500,
}  # fmt: skip
"""Training and validation examples; of eICU about as many stays as the database has."""
SCORED = {"robustness": 17, "block-order": 17, "ood": 7, "vqa": 4}
"""About how many sets of 10,000 examples a run predicts; 2 where nothing is said."""
VQA_WORDS, VQA_ANSWERS, REGIONS, PIECE = 18_000, 3_129, 100, 2
CHECKPOINTS = 3 * 3 + 1
"""Copies of the weights of a network on disk: three checkpoints with the state of Adam, and one."""


@dataclass
class Sum:
    """What networks of a study take."""

    networks: int = 0
    flops: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    bytes: float = 0.0


@functools.cache
def network(data: str) -> tuple[Any, gfo.likelihoods.Likelihood]:
    """A network at the paper's size, and the likelihood."""
    if data == "mnist":
        return MLP.mnist(), gfo.Categorical(10)
    if data.startswith("cifar"):
        classes = 100 if data == "cifar100" else 10
        return ResNet18(classes), gfo.Categorical(classes)
    if data == "vqa-v2":
        return MCAN(VQA_WORDS, VQA_ANSWERS, 2048), gfo.MultiLabel(VQA_ANSWERS)
    return MLP((100, 128, 128, 128, 1)), gfo.Binary()


def inputs(data: str, regions: int, side: int, device: str) -> tuple[Tensor, ...]:
    """A batch of :data:`PIECE` inputs; pictures have this side, or this number of regions."""
    shapes = {"mnist": (784,), "cifar10": (3, side, side), "cifar100": (3, side, side)}
    if data == "vqa-v2":
        tokens = torch.ones(PIECE, 14, dtype=torch.int64, device=device)
        return torch.ones(PIECE, regions, 2048, device=device), tokens
    return (torch.zeros(PIECE, *shapes.get(data, (100,)), device=device),)


def step_work(data: str, label: str) -> tuple[float, int]:
    """Floating-point operations of a training step per example, and parameters."""
    arm = ARMS[label]
    net, likelihood = copy.deepcopy(network(data))
    prefix = "method.options."
    options = {key.removeprefix(prefix): value for key, value in arm.options.items()}
    if "train_size" in METHODS[arm.method].Options.names():
        options["train_size"] = EXAMPLES[data]
    sites = () if arm.method == "none" else list(net.sites)
    small = inputs(data, 3, 8, "cpu")  # wrapping runs the network, whose sites do not grow
    model = gfo.wrap(net, arm.method, sites, likelihood=likelihood, example=small, **options)
    model.validate = False
    model.to("meta").train()
    x = inputs(data, REGIONS, 32, "meta")
    y = {
        "vqa-v2": torch.zeros(PIECE, VQA_ANSWERS, device="meta"),
        "eicu": torch.zeros(PIECE, device="meta"),
        "eicu-pair": torch.zeros(PIECE, device="meta"),
    }.get(data, torch.zeros(PIECE, dtype=torch.int64, device="meta"))
    work = count(lambda: model(*x, y=y).total.backward())
    return work.flops / PIECE, sum(p.numel() for p in model.parameters())


def key_of(run: Run) -> str:
    """What tells the networks of a run from others: runs of several studies share them."""
    arm, options = ARMS[run.method], run.to_dict()["options"]
    config = {key: value for key, value in options.items() if "." in key}
    own = [config, options.get("tuned"), options.get("partner"), dict(arm.options)]
    members = 1 if run.study == TUNING else arm.members
    return canonical([run.data, run.seed, arm.method, arm.rate_of, members, own])


def add(
    total: Sum, run: Run, table: Mapping[tuple[str, str], tuple[float, int]],
    throughput: float, least: float, new: bool,
) -> None:  # fmt: skip
    """Add a run: training if its networks are new, predictions unless it is a trial."""
    options, arm = run.options, ARMS[run.method]
    work, parameters = table[run.data, run.method]
    examples = options.get("data.limit") or EXAMPLES[run.data]
    batch = options.get("data.batch_size") or options.get("batch")
    members = 1 if run.study == TUNING else arm.members
    if new:
        steps = members * options["fit.epochs"] * math.ceil(examples / batch)
        flops = steps * batch * work
        total.networks += members
        total.steps += steps
        total.flops += flops
        total.seconds += max(flops / throughput, steps * least)
        total.bytes += members * 4 * parameters * CHECKPOINTS
    if run.study != TUNING:
        flops = SCORED.get(run.study, 2) * 1e4 * 20 * table[run.data, "none"][0] / 3
        total.flops += flops
        total.seconds += flops / throughput


def plan(throughput: float, least: float) -> dict[str, Sum]:
    """By study what its trials and runs take, without what an earlier study has trained."""
    table: dict[tuple[str, str], tuple[float, int]] = {}
    seen: set[str] = set()
    sums: dict[str, Sum] = {}
    for name in STUDIES:
        study, total = get(name), sums.setdefault(name, Sum())
        runs: Iterable[Run] = (*study.tuning("paper"), *study.runs("paper", {}))
        for run in runs:
            for label in (run.method, "none"):
                if (run.data, label) not in table:
                    table[run.data, label] = step_work(run.data, label)
            key = key_of(run)
            add(total, run, table, throughput, least, key not in seen)
            seen.add(key)
    return sums


def main() -> None:
    """Print a line for each study."""
    parser = argparse.ArgumentParser(description="Cost of preset paper on GPUs, on paper.")
    parser.add_argument("--teraflops", type=float, default=30.0)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--dollars", type=float, default=2.0)
    wanted = parser.parse_args()
    print(
        f"assumed: {wanted.teraflops:g} TFLOP/s sustained, {wanted.step_ms:g} ms per step at "
        f"least, {wanted.dollars:g} US$ per GPU-hour"
    )
    rows = [["study", "networks", "EFLOP", "million steps", "GPU-hours", "US$", "models, GB"]]
    sums = plan(wanted.teraflops * 1e12, wanted.step_ms / 1000)
    whole = Sum(*(sum(getattr(one, name) for one in sums.values()) for name in vars(Sum())))
    for name, one in {**sums, "all": whole}.items():
        hours = one.seconds / 3600
        rows.append([
            name, f"{one.networks:,}", f"{one.flops / 1e18:,.1f}", f"{one.steps / 1e6:,.1f}",
            f"{hours:,.0f}", f"{hours * wanted.dollars:,.0f}", f"{one.bytes / 1e9:,.0f}",
        ])  # fmt: skip
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
