"""``gflowout study estimators``: bias, variance and cost of gradient estimators for a posterior.

On networks with few units every mask can be enumerated, so the gradient of the negative ELBO for
the logits of q(z) is known exactly. Each estimator gets the same budget: masks run through the
network per step.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gflowout.bench import environment
from gflowout.core import objectives
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import require
from gflowout.methods.contextual import arm
from gflowout.studies.enumerable import (
    UNITS,
    Network,
    Posterior,
    Problem,
    Walk,
    by_site,
    log_evidence,
    negative_elbo,
    problems,
    total,
)

FORMAT = 1
STEPS = 40_000
QUICK_STEPS = 2_000

BUDGET = 12
"""Masks that an estimator runs through the network in one step."""

CHUNK = 500
"""Steps computed at once."""

BASELINE = "REINFORCE, leave-one-out"
"""The estimator that variance and cost of the others are compared with."""

Estimator = Callable[[Problem, Posterior, Tensor], Tensor]
"""``estimator(problem, posterior, uniform) -> loss``, [steps], whose gradient is the estimate.

The uniform numbers are [steps, BUDGET, 2 * UNITS].
"""


def trajectory_balance(log_z: Tensor | None) -> Estimator:
    """Half of the on-policy loss, whose gradient is that of the reverse KL divergence.

    Without an estimate of log Z it is the mean over the step's masks, the log-variance form.
    """

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        walk = posterior.draw(uniform)
        log_q = total(walk.log_q()).T
        reward = _evaluate(problem.log_reward, walk.masks).T
        if log_z is None:
            estimate = objectives.batch_log_z(log_q, reward)
        else:
            estimate = log_z.expand_as(log_q)
        return 0.5 * objectives.trajectory_balance(log_q, reward, estimate).mean(0)

    return loss


def reinforce(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on log q - log R; the baseline is the mean of the step's other masks."""
    log_q, cost = _log_q_and_cost(problem, posterior, uniform)
    return ((cost - _others_mean(cost)) * log_q).mean(-1)


class RunningReinforce:
    """REINFORCE whose baseline is a running mean of the costs of earlier steps."""

    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self.mean: float | None = None

    def __call__(self, problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        """Take the steps one after the other."""
        log_q, cost = _log_q_and_cost(problem, posterior, uniform)
        baselines = []
        for mean in cost.mean(-1).tolist():
            earlier = 0.0 if self.mean is None else self.mean
            baselines.append(earlier)
            self.mean = (
                mean if self.mean is None else earlier + (1 - self.momentum) * (mean - earlier)
            )
        return ((cost - torch.tensor(baselines).unsqueeze(-1)) * log_q).mean(-1)


def reinforce_kl(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on the likelihood; the KL divergence of each site is differentiated as it is."""
    walk = posterior.draw(uniform)
    kl = walk.kl(problem.prior)
    costs = _costs(problem, walk, kl)
    terms = zip(costs, walk.log_q(), strict=True)
    scores = [(cost - _others_mean(cost)) * log_q for cost, log_q in terms]
    return (total(kl) + total(scores)).mean(-1)


def arm_two_passes(own_logits: bool) -> Estimator:
    """ARM as in the method "contextual": all sites are flipped together.

    Args:
        own_logits: Whether the second pass has its own logits, or those of the first, as if they
            did not depend on earlier masks.
    """

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        uniform = uniform[:, : BUDGET // 2]
        true, pseudo = posterior.draw(uniform), posterior.draw(1 - uniform)
        kl = true.kl(problem.prior)
        sites = zip(
            by_site(uniform),
            true.logits,
            pseudo.logits if own_logits else true.logits,
            _costs(problem, true, kl),
            _costs(problem, pseudo, pseudo.kl(problem.prior)),
            strict=True,
        )
        return total([*kl, *(arm(*site) for site in sites)]).mean(-1)

    return loss


def arm_rollouts(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """ARM with one more pass per site: flip that site alone, draw the later ones anew."""
    uniform = uniform[:, : BUDGET // 3]
    true = posterior.draw(uniform)
    kl = true.kl(problem.prior)
    costs = _costs(problem, true, kl)
    loss = total(kl)
    for site, cost in enumerate(costs):
        own = slice(site * UNITS, (site + 1) * UNITS)
        flipped = uniform.clone()
        flipped[..., own] = 1 - uniform[..., own]
        pseudo = posterior.draw(flipped)
        pseudo_cost = _costs(problem, pseudo, pseudo.kl(problem.prior))[site]
        logits = true.logits[site]
        loss = loss + arm(uniform[..., own], logits, logits, cost, pseudo_cost)
    return loss.mean(-1)


def relaxed(temperature: float) -> Estimator:
    """Concrete masks between 0 and 1, differentiated through the network."""

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        parts = by_site(torch.logit(uniform, eps=1e-6))

        def soft(site: int, logits: Tensor) -> Tensor:
            return torch.sigmoid((logits + parts[site]) / temperature)

        walk = posterior.walk(soft, uniform.shape[1])
        return (total(walk.kl(problem.prior)) - problem.log_likelihood(walk.masks)).mean(-1)

    return loss


def estimators(problem: Problem, posterior: Posterior) -> dict[str, Estimator]:
    """All that are compared, by the name in the tables.

    Estimates of log Z come from the problem and the posterior, which is for one step.
    """
    # Where learning log Z on-policy ends: the mean of log R - log q.
    learned = -negative_elbo(problem, posterior)[0]
    return {
        BASELINE: reinforce,
        "REINFORCE, running mean": RunningReinforce(),
        "REINFORCE, leave-one-out, exact KL": reinforce_kl,
        "TB, exact log Z": trajectory_balance(log_evidence(problem)),
        "TB, learned log Z": trajectory_balance(learned),
        "TB, batch log Z": trajectory_balance(None),
        "ARM, two passes": arm_two_passes(own_logits=True),
        "ARM, two passes, first logits": arm_two_passes(own_logits=False),
        "ARM, a pass per site": arm_rollouts,
        "relaxed, temperature 0.1": relaxed(0.1),
        "relaxed, temperature 0.5": relaxed(0.5),
    }


@dataclass(frozen=True)
class Quality:
    """Bias and variance of an estimator, from many steps.

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
    """Compare gradients of many steps with the exact one.

    Args:
        rows: [steps, parameters].
        exact: [parameters].
        resamples: Number of bootstrap samples.
    """
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

    Args:
        problem: Network and prior.
        posterior: For one step.
        rounds: The median over these is returned.
        steps: Computed at once, like a batch of that many examples.
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


def _evaluate(network: Network, masks: Tensor) -> Tensor:
    with torch.no_grad():
        return network(masks)


def _costs(problem: Problem, walk: Walk, kl: list[Tensor]) -> list[Tensor]:
    """The cost that each site's mask affects: the NLL, and the KL divergence of the later site."""
    nll = -_evaluate(problem.log_likelihood, walk.masks)
    return [nll + kl[1].detach(), nll]


def _log_q_and_cost(
    problem: Problem, posterior: Posterior, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of drawn masks and its difference to their log-reward, [steps, masks]."""
    walk = posterior.draw(uniform)
    log_q = total(walk.log_q())
    return log_q, log_q.detach() - _evaluate(problem.log_reward, walk.masks)


def _others_mean(values: Tensor) -> Tensor:
    return (values.sum(-1, keepdim=True) - values) / (values.shape[-1] - 1)


# The command: all estimators on all problems, as a record, a table and a plot

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


def run(out: Path, steps: int, seed: int = 0, rounds: int = 200) -> dict[str, Any]:
    """Measure all estimators on all problems, print and write the result.

    Args:
        out: Folder for ``estimators.json``, ``.md`` and ``.svg``; made if it does not exist.
        steps: Gradients drawn per estimator.
        seed: Of networks, posteriors and draws.
        rounds: Of the measurement of cost.

    Returns:
        The record that was written.
    """
    console = _optional("rich.console").Console()
    _optional("matplotlib")
    settings = {"steps": steps, "seed": seed, "rounds": rounds, "masks_per_step": BUDGET}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = {problem.name: measure(problem, steps, seed, rounds) for problem in problems(seed)}
        record = {
            "format": FORMAT,
            "environment": environment(),
            "settings": settings,
            "problems": tables,
        }
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
            grid.add_row(row["estimator"], *_cells(row))
        console.print(grid)
    console.print(f"Record, table and plot: {out}", highlight=False)
    return record


def measure(problem: Problem, steps: int, seed: int, rounds: int) -> list[Row]:
    """One row per estimator: its name, its quality and its cost."""
    posterior = Posterior.random(seed)
    single = posterior.repeat(1)
    exact = single.gradient(negative_elbo(problem, single))[0]
    times = costs(problem, posterior, rounds)
    rows = []
    for name, estimator in estimators(problem, posterior).items():
        drawn = gradients(estimator, problem, posterior, steps, seed + 1)
        rows.append(
            {
                "estimator": name,
                **dataclasses.asdict(quality(drawn, exact)),
                "cost": times[name],
            }
        )
    base = next(row for row in rows if row["estimator"] == BASELINE)
    for row in rows:
        row["variance_ratio"] = row["variance"] / base["variance"]
    return rows


def markdown(tables: Mapping[str, Sequence[Row]]) -> str:
    """A table per problem for a page of the documentation."""
    lines = []
    for name, rows in tables.items():
        lines += [f"### {name}", "", f"| estimator | {' | '.join(COLUMNS)} |"]
        lines += ["|---" * (len(COLUMNS) + 1) + "|"]
        lines += [f"| {row['estimator']} | {' | '.join(_cells(row))} |" for row in rows]
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
    return [show(row) for show in COLUMNS.values()]


def _optional(module: str) -> Any:
    return require(module, extra="demo", purpose="gflowout study estimators")
