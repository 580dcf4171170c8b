"""How good is the gradient of a mask posterior? Bias, variance and cost of its estimators.

On networks with few units every mask can be enumerated, so the gradient of the negative ELBO for
the logits of q(z) is known exactly. Each estimator gets the same budget: masks run through the
network per step. Needs the extra ``demo`` (rich and matplotlib) to show and write the results.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gflowout.bench import environment
from gflowout.core.optional import require
from gflowout.studies.enumerable import (
    BASELINE,
    BUDGET,
    UNITS,
    Estimator,
    Posterior,
    Problem,
    estimators,
    negative_elbo,
    problems,
)

FORMAT = 1
STEPS = 40_000
QUICK_STEPS = 2_000
PURPOSE = "gflowout study estimators"

Row = dict[str, Any]
CHUNK = 500
"""Steps computed at once."""


@dataclass(frozen=True)
class Quality:
    """What many steps say of an estimator.

    Attributes:
        bias: Length of the mean error over that of the exact gradient, sampling noise taken off.
        bias_low: Lower end of its 95 % bootstrap interval.
        bias_high: Upper end.
        max_z: Largest distance of a parameter's mean from the truth, in standard errors.
        length: Projection of the mean on the exact gradient, over its length; 1 if unbiased.
        variance: Of one step, averaged over parameters.
    """

    bias: float
    bias_low: float
    bias_high: float
    max_z: float
    length: float
    variance: float


def gradients(
    estimator: Estimator, problem: Problem, posterior: Posterior, steps: int, seed: int
) -> Tensor:
    """Gradients of independent steps, [steps, parameters]."""
    draws = torch.Generator().manual_seed(seed)
    rows = []
    for start in range(0, steps, CHUNK):
        count = min(CHUNK, steps - start)
        copies = posterior.repeat(count)
        uniform = torch.rand(count, BUDGET, 2 * UNITS, generator=draws)
        rows.append(copies.gradient(estimator(problem, copies, uniform)))
    return torch.cat(rows)


def quality(rows: Tensor, exact: Tensor, resamples: int = 1000) -> Quality:
    """Compare gradients of many steps, [steps, parameters], with the exact one, [parameters]."""
    errors = (rows - exact).double()
    steps, size = len(errors), exact.double().norm()
    variances = errors.var(0)
    noise = variances.sum() / steps  # what chance alone adds to the squared length of the mean
    mean = errors.mean(0)
    # Resampling means of blocks is as good as resampling steps, and much less work.
    blocks = torch.stack([block.mean(0) for block in errors.chunk(min(200, steps))])
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(blocks), (resamples, len(blocks)), generator=draws)
    squares = blocks[chosen].mean(1).square().sum(-1) - 2 * noise
    low, high = squares.quantile(torch.tensor([0.025, 0.975]).double()).clamp(min=0).sqrt() / size
    floor = 1e-6 * exact.abs().max()
    return Quality(
        bias=((mean.square().sum() - noise).clamp(min=0).sqrt() / size).item(),
        bias_low=low.item(),
        bias_high=high.item(),
        max_z=(mean.abs() / (variances / steps).sqrt().clamp(min=floor.item())).max().item(),
        length=(1 + mean @ exact.double() / size.square()).item(),
        variance=variances.mean().item(),
    )


def costs(problem: Problem, posterior: Posterior, rounds: int, steps: int = 64) -> dict[str, float]:
    """Time of a step relative to :data:`BASELINE`, every round measuring all side by side.

    The median over rounds is returned; steps are taken at once, as a batch of examples would.
    """
    draws = torch.Generator().manual_seed(0)
    uniform = torch.rand(steps, BUDGET, 2 * UNITS, generator=draws)
    compared = estimators(problem, posterior)
    times: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(rounds + 1):
        for name, estimator in compared.items():
            copies = posterior.repeat(steps)
            begun = time.perf_counter()
            copies.gradient(estimator(problem, copies, uniform))
            if turn:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
    ratios = {
        name: [own / other for own, other in zip(values, times[BASELINE], strict=True)]
        for name, values in times.items()
    }
    return {name: median(values) for name, values in ratios.items()}


# The study: table, record and plot


def run(out: Path, steps: int, seed: int = 0, rounds: int = 200) -> dict[str, Any]:
    """Measure all estimators on all problems, show and write the result.

    Args:
        out: Folder for ``estimators.json``, ``.md`` and ``.svg``; made if it does not exist.
        steps: Gradients drawn per estimator.
        seed: Of networks, posteriors and draws.
        rounds: Of the measurement of cost.

    Returns:
        The record that was written.
    """
    console = require("rich.console", extra="demo", purpose=PURPOSE).Console()
    require("matplotlib", extra="demo", purpose=PURPOSE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = {
            problem.name: measure(problem, steps, seed, rounds) for problem in problems(seed)
        }
        record = {
            "format": FORMAT,
            "environment": environment(),
            "settings": {"steps": steps, "seed": seed, "rounds": rounds, "masks_per_step": BUDGET},
            "problems": results,
        }
    finally:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    (out / "estimators.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (out / "estimators.md").write_text(markdown(results), encoding="utf-8")
    plot(results, out / "estimators.svg")
    for name, rows in results.items():
        console.print(shown(name, rows))
    console.print(f"Record, table and plot: {out}", highlight=False)
    return record


def measure(problem: Problem, steps: int, seed: int, rounds: int) -> list[Row]:
    """One row per estimator: its name, its quality and its cost."""
    posterior = Posterior.random(seed)
    step = posterior.repeat(1)
    exact = step.gradient(negative_elbo(problem, step))[0]
    times = costs(problem, posterior, rounds)
    rows = []
    for name, estimator in estimators(problem, posterior).items():
        drawn = gradients(estimator, problem, posterior, steps, seed + 1)
        scores = dataclasses.asdict(quality(drawn, exact))
        rows.append({"estimator": name, **scores, "cost": times[name]})
    base = next(row for row in rows if row["estimator"] == BASELINE)
    for row in rows:
        row["variance_ratio"] = row["variance"] / base["variance"]
    return rows


HEADINGS = ("bias, %", "95 % interval", "max z", "length", "variance", "ratio", "cost")


def cells(row: Row) -> list[str]:
    """The figures of a row as text, in the order of ``HEADINGS``."""
    return [
        f"{100 * row['bias']:.1f}",
        f"{100 * row['bias_low']:.1f} to {100 * row['bias_high']:.1f}",
        f"{row['max_z']:.1f}",
        f"{row['length']:.3f}",
        f"{row['variance']:.4f}",
        f"{row['variance_ratio']:.2f}",
        f"{row['cost']:.2f}",
    ]


def markdown(results: dict[str, list[Row]]) -> str:
    """Tables for a page of the documentation."""
    lines = []
    for name, rows in results.items():
        lines += [f"### {name}", "", f"| estimator | {' | '.join(HEADINGS)} |"]
        lines += ["|---" * (len(HEADINGS) + 1) + "|"]
        lines += [f"| {row['estimator']} | {' | '.join(cells(row))} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def shown(name: str, rows: list[Row]) -> Any:
    """A table for the terminal."""
    table = require("rich.table", extra="demo", purpose=PURPOSE).Table(
        title=f"Gradient of the ELBO, {name}", title_justify="left"
    )
    table.add_column("estimator")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row["estimator"], *cells(row))
    return table


def plot(results: dict[str, list[Row]], path: Path) -> None:
    """Draw bias and variance of every estimator, a row of panels per problem."""
    figures = require("matplotlib.figure", extra="demo", purpose=PURPOSE)
    figure = figures.Figure(figsize=(9, 3.2 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), 2, sharey="row", squeeze=False)
    for (left, right), (name, rows) in zip(panels, results.items(), strict=True):
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
    with require("matplotlib", extra="demo", purpose=PURPOSE).rc_context(
        {"svg.hashsalt": "gflowout", "svg.fonttype": "none"}
    ):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
