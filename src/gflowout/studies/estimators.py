"""``gflowout study estimators``: bias, variance and cost of gradient estimators for a posterior.

On networks with few units every mask can be enumerated, so the gradient of the negative ELBO for
the logits of q(z) is known exactly. Each estimator gets the same budget: masks run through the
network per step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gflowout.bench import environment
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import require
from gflowout.studies import enumerable
from gflowout.studies.enumerable import BASELINE, BUDGET, UNITS, Estimator, Posterior, Problem

FORMAT = 1
STEPS = 40_000
QUICK_STEPS = 2_000
CHUNK = 500
"""Steps computed at once."""

Row = dict[str, Any]
COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "bias, %": lambda row: f"{100 * row['bias']:.1f}",
    "95 % interval": lambda row: f"{100 * row['bias_low']:.1f} to {100 * row['bias_high']:.1f}",
    "max z": lambda row: f"{row['max_z']:.1f}",
    "length": lambda row: f"{row['length']:.3f}",
    "variance": lambda row: f"{row['variance']:.4f}",
    "ratio": lambda row: f"{row['variance_ratio']:.2f}",
    "cost": lambda row: f"{row['cost']:.2f}",
}
"""Columns of the tables: how each shows a row."""


def gradients(
    estimator: Estimator, problem: Problem, posterior: Posterior, steps: int, seed: int
) -> Tensor:
    """Gradients of independent steps, [steps, parameters]."""
    draws = torch.Generator().manual_seed(seed)
    rows = []
    for start in range(0, steps, CHUNK):
        copies = posterior.repeat(min(CHUNK, steps - start))
        uniform = torch.rand(len(copies.first), BUDGET, 2 * UNITS, generator=draws)
        rows.append(copies.gradient(estimator(problem, copies, uniform)))
    return torch.cat(rows)


def quality(rows: Tensor, exact: Tensor) -> dict[str, float]:
    """Bias and variance of gradients [steps, parameters], from the exact one [parameters].

    ``bias`` is the length of the mean error over that of the exact gradient, sampling noise taken
    off; ``bias_low`` and ``bias_high`` are the ends of its 95 % bootstrap interval. ``max_z`` is
    the largest distance of a parameter's mean from the truth in standard errors, ``length`` the
    projection of the mean on the exact gradient over its length, 1 if unbiased. ``variance`` is
    that of one step, averaged over parameters.
    """
    errors = (rows - exact).double()
    steps, size = len(errors), exact.double().norm()
    variances = errors.var(0)
    noise = variances.sum() / steps  # what chance alone adds to the squared length of the mean
    mean = errors.mean(0)
    # Resampling means of blocks is as good as resampling steps, and much less work.
    blocks = torch.stack([block.mean(0) for block in errors.chunk(min(200, steps))])
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(blocks), (1000, len(blocks)), generator=draws)
    squares = blocks[chosen].mean(1).square().sum(-1) - 2 * noise
    low, high = squares.quantile(torch.tensor([0.025, 0.975]).double()).clamp(min=0).sqrt() / size
    floor = 1e-6 * exact.abs().max()
    return {
        "bias": ((mean.square().sum() - noise).clamp(min=0).sqrt() / size).item(),
        "bias_low": low.item(),
        "bias_high": high.item(),
        "max_z": (mean.abs() / (variances / steps).sqrt().clamp(min=floor.item())).max().item(),
        "length": (1 + mean @ exact.double() / size.square()).item(),
        "variance": variances.mean().item(),
    }


def costs(problem: Problem, posterior: Posterior, rounds: int, steps: int = 64) -> dict[str, float]:
    """Time of a batch of steps relative to :data:`BASELINE`, the median over rounds.

    Every round measures all estimators side by side.
    """
    draws = torch.Generator().manual_seed(0)
    uniform = torch.rand(steps, BUDGET, 2 * UNITS, generator=draws)
    compared = enumerable.estimators(problem, posterior)
    times: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(rounds + 1):
        for name, estimator in compared.items():
            copies = posterior.repeat(steps)
            begun = time.perf_counter()
            copies.gradient(estimator(problem, copies, uniform))
            if turn:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
    return {
        name: median(own / other for own, other in zip(values, times[BASELINE], strict=True))
        for name, values in times.items()
    }


def measure(problem: Problem, steps: int, seed: int, rounds: int) -> list[Row]:
    """One row per estimator: its name, its quality and its cost."""
    posterior = Posterior.random(seed)
    single = posterior.repeat(1)
    exact = single.gradient(enumerable.negative_elbo(problem, single))[0]
    times = costs(problem, posterior, rounds)
    rows: list[Row] = []
    for name, estimator in enumerable.estimators(problem, posterior).items():
        drawn = gradients(estimator, problem, posterior, steps, seed + 1)
        rows.append({"estimator": name, **quality(drawn, exact), "cost": times[name]})
    base = next(row for row in rows if row["estimator"] == BASELINE)
    return [{**row, "variance_ratio": row["variance"] / base["variance"]} for row in rows]


def run(out: Path, steps: int, seed: int = 0, rounds: int = 200) -> None:
    """Measure all estimators on all problems, print and write the result.

    Writes ``estimators.json``, ``.md`` and ``.svg`` into a folder that is made if it does not
    exist. ``steps`` are gradients drawn per estimator, ``rounds`` are of the measurement of cost.
    """
    console = _optional("rich.console").Console()
    _optional("matplotlib")
    settings = {"steps": steps, "seed": seed, "rounds": rounds, "masks_per_step": BUDGET}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = {
            problem.name: measure(problem, steps, seed, rounds)
            for problem in enumerable.problems(seed)
        }
        record = {"format": FORMAT, "environment": environment()}
        record |= {"settings": settings, "problems": tables}
    finally:
        torch.set_num_threads(threads)
    write_text(out / "estimators.json", json.dumps(record, indent=2) + "\n")
    write_text(out / "estimators.md", markdown(tables))
    plot(tables, out / "estimators.svg")
    for name, rows in tables.items():
        grid = _optional("rich.table").Table(
            title=f"Gradient of the ELBO, {name}", title_justify="left"
        )
        grid.add_column("estimator")
        for heading in COLUMNS:
            grid.add_column(heading, justify="right")
        for row in rows:
            grid.add_row(*_cells(row))
        console.print(grid)
    console.print(f"Record, table and plot: {out}", highlight=False)


def markdown(tables: Mapping[str, Sequence[Row]]) -> str:
    """A table per problem for a page of the documentation."""
    lines = []
    for name, rows in tables.items():
        lines += [f"### {name}", "", f"| estimator | {' | '.join(COLUMNS)} |"]
        lines += ["|---" * (len(COLUMNS) + 1) + "|"]
        lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def plot(tables: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw bias and variance of every estimator, a row of panels per problem, as SVG."""
    figure = _optional("matplotlib.figure").Figure(
        figsize=(9, 3.2 * len(tables)), layout="constrained"
    )
    panels = figure.subplots(len(tables), 2, sharey="row", squeeze=False)
    for (left, right), (name, rows) in zip(panels, tables.items(), strict=True):
        names = [row["estimator"] for row in rows]
        bias = [100 * row["bias"] for row in rows]
        ends = [
            [100 * max(0.0, row["bias"] - row["bias_low"]) for row in rows],
            [100 * max(0.0, row["bias_high"] - row["bias"]) for row in rows],
        ]
        left.errorbar(bias, names, xerr=ends, fmt="o", capsize=3)
        left.set_xscale("symlog", linthresh=1)
        left.set_xlim(-0.05, 100)
        left.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        left.axvline(0, color="black", linewidth=1)
        left.set_xlabel("bias in % of the gradient, 95 % interval")
        left.set_title(name, loc="left")
        right.barh(names, [row["variance_ratio"] for row in rows])
        right.axvline(1, color="black", linewidth=1)
        right.set_xlabel("variance relative to the top row")
        right.invert_yaxis()
        for axes in (left, right):
            axes.grid(axis="x", alpha=0.3)
    style = {"svg.hashsalt": "gflowout", "svg.fonttype": "none"}
    with _optional("matplotlib").rc_context(style):
        figure.savefig(path, metadata={"Date": None})


def _cells(row: Row) -> list[str]:
    return [row["estimator"], *(show(row) for show in COLUMNS.values())]


def _optional(module: str) -> Any:
    return require(module, extra="demo", purpose="gflowout study estimators")
