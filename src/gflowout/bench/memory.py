"""How memory and time of a prediction grow with the number of draws."""

from __future__ import annotations

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.bench.methods import models
from gflowout.bench.timing import Case, Table
from gflowout.bench.work import Work, count

COMPARED = ("mc", "concrete", "contextual", "id-gflowout", "gflowout")
DRAWS = (20, 100, 500)
GROWTH = "beside it ÷ 20 draws"
"""The figure that a target is set for: most memory at a time besides the result, as a multiple of
that of 20 draws. The result is what was asked for; with shared masks it is larger than all else."""


def memory_table(repeats: int, batch: int = 128) -> Table:
    """Predictions with more and more draws.

    Bytes are counted, of tensors alive at the same time, the result among them; inputs and weights
    are not.

    Args:
        repeats: Rounds of the timing.
        batch: Examples.
    """
    return Table(
        "memory",
        f"Prediction with 20, 100 and 500 draws, MLP 784-300-100-10, batch {batch}",
        (),
        repeats,
        lambda: _cases(torch.randn(batch, 784)),
        further=figures,
        cost=3.0,
    )


def figures(cases: dict[str, Case], seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Further figures of the table: time per draw, and memory.

    Args:
        cases: By name, as this file names them.
        seconds: Median time of each.
    """
    works = {name: count(case) for name, case in cases.items()}

    def of_case(name: str, work: Work) -> dict[str, float]:
        method, _, draws = name.removesuffix(" draws").rpartition(", ")
        fewest = works[_name(method, DRAWS[0])]
        return {
            "ms per draw": 1e3 * seconds[name] / int(draws),
            "MB at once": work.peak / 1e6,
            "MB of result": work.held / 1e6,
            GROWTH: (work.peak - work.held) / (fewest.peak - fewest.held),
        }

    return {name: of_case(name, work) for name, work in works.items()}


def _cases(x: Tensor) -> dict[str, Case]:
    def case(model: gfo.MaskedModel, draws: int) -> Case:
        return lambda: model.predict(x, samples=draws)

    return {
        _name(method, draws): case(model, draws)
        for method, model in models(MLP, x, methods=COMPARED).items()
        for draws in DRAWS
    }


def _name(method: str, draws: int) -> str:
    return f"{method}, {draws} draws"
