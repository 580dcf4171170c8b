"""Runs the study of estimators and writes what it found: a table, a record, a plot.

Needs the extra ``demo`` (rich and matplotlib).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from gflowout.bench import environment
from gflowout.core.optional import require
from gflowout.studies import enumerable
from gflowout.studies import estimators as study

FORMAT = 1
STEPS = 40_000
QUICK_STEPS = 2_000
PURPOSE = "gflowout study estimators"

Row = dict[str, Any]


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
        found = {
            problem.name: measure(problem, steps, seed, rounds)
            for problem in enumerable.problems(seed)
        }
        record = {
            "format": FORMAT,
            "environment": environment(),
            "settings": {
                "steps": steps,
                "seed": seed,
                "rounds": rounds,
                "masks_per_step": study.BUDGET,
            },
            "problems": found,
        }
    finally:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    (out / "estimators.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (out / "estimators.md").write_text(markdown(found), encoding="utf-8")
    plot(found, out / "estimators.svg")
    for name, rows in found.items():
        console.print(shown(name, rows))
    console.print(f"Record, table and plot: {out}", highlight=False)
    return record


def measure(problem: enumerable.Problem, steps: int, seed: int, rounds: int) -> list[Row]:
    """One row per estimator: its name, its quality and its cost.

    Args:
        problem: Network and prior.
        steps: Gradients drawn per estimator.
        seed: Of posterior and draws.
        rounds: Of the measurement of cost.
    """
    posterior = enumerable.Posterior.random(seed)
    one = posterior.repeat(1)
    exact = one.gradient(enumerable.negative_elbo(problem, one))[0]
    costs = study.costs(problem, posterior, rounds)
    rows = []
    for name, estimator in study.estimators(problem, posterior).items():
        drawn = study.gradients(estimator, problem, posterior, steps, seed + 1)
        quality = dataclasses.asdict(study.quality(drawn, exact))
        rows.append({"estimator": name, **quality, "cost": costs[name]})
    base = next(row for row in rows if row["estimator"] == study.BASELINE)
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


def markdown(found: dict[str, list[Row]]) -> str:
    """Tables for a page of the documentation."""
    lines = []
    for name, rows in found.items():
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


def plot(found: dict[str, list[Row]], path: Path) -> None:
    """Bias and variance of every estimator, a row of panels per problem.

    Args:
        found: Rows by problem.
        path: The picture, of any format that matplotlib writes.
    """
    figures = require("matplotlib.figure", extra="demo", purpose=PURPOSE)
    figure = figures.Figure(figsize=(9, 3.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, sharey="row", squeeze=False)
    for (left, right), (name, rows) in zip(panels, found.items(), strict=True):
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
