"""How many draws the joint log-likelihood of the study joint needs.

The log of a mean over draws is too low with few of them, and by more where few masks explain a
label. Arms are trained as in their records, and the same test rows are scored from more and more
draws of the prior, which is what ``pred.log_prob(y)`` does, and once as the study does it::

    python tools/joint_draws.py --data-dir data --records results/cpu
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core.random import generator
from gflowout.data.store import VARIABLE
from gflowout.runs import read
from gflowout.studies.joint import NAME
from gflowout.studies.joint_data import load
from gflowout.studies.joint_fit import ARMS, Masked, Rows, answers, fit
from gflowout.studies.joint_scores import measure

DRAWS = (200, 1_000, 4_000)
"""Of the prior."""
PASS = 200
"""Draws at a time."""


def main() -> None:
    """Print a Markdown table: a row for each arm, a column for each number of draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of data sets")
    parser.add_argument("--records", type=Path, default=Path("results/cpu"))
    parser.add_argument("--problem", default="digits")
    parser.add_argument("--arms", default="mc,mc-bound,gflowout-bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=300, help="test rows that are scored")
    wanted = parser.parse_args()
    if wanted.data_dir:
        os.environ[VARIABLE] = str(wanted.data_dir)
    torch.set_num_threads(1)
    records = {
        record["method"]: record["options"]
        for record in read(wanted.records, "done")
        if (record["study"], record["data"], record["seed"]) == (NAME, wanted.problem, wanted.seed)
    }
    print("| arm | as in the study |" + "".join(f" {count:,} draws |" for count in DRAWS))
    print("|---|---|" + "---|" * len(DRAWS))
    for arm in wanted.arms.split(","):
        if arm not in records:
            raise SystemExit(f"--arms: no record of {arm!r} on {wanted.problem}; {sorted(records)}")
        options = records[arm]
        problem = load(wanted.problem, wanted.seed, tuple(options["rows"]))
        rows = problem.test[0][: wanted.rows], problem.test[1][: wanted.rows]
        fitted = fit(ARMS[arm], options["tuned"], problem, options["hidden"], options, wanted.seed)
        assert isinstance(fitted.model, Masked)
        source = generator(wanted.seed, "test")
        scores, _ = measure(
            answers(fitted.model, rows, options["draws"], source), generator(wanted.seed, "labels")
        )
        estimates = by_draws(fitted.model, rows, wanted.seed)
        numbers = "".join(f" {value:.2f} |" for value in (scores["joint"], *estimates))
        print(f"| {ARMS[arm].title} |{numbers}", flush=True)


@torch.no_grad()
def by_draws(model: Masked, rows: Rows, seed: int) -> list[float]:
    """Mean of ``pred.log_prob(y)`` for each number of draws; fewer draws are the first of more."""
    x, y = rows
    total: Tensor = torch.full((len(x),), -math.inf, dtype=torch.float64)
    estimates, source = [], generator(seed, "draws")
    for count in range(1, max(DRAWS) // PASS + 1):
        part = model.model.predict(x, samples=PASS, generator=source).log_prob(y).double()
        total = torch.logaddexp(total, part)
        if count * PASS in DRAWS:
            estimates.append(float((total - math.log(count)).mean()))
    return estimates


if __name__ == "__main__":
    main()
