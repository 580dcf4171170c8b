"""How much longer a training step of each arm of the study joint takes than one of a plain network.

The numbers are the ``cost`` of the arms in ``src/gflowout/studies/joint.toml``. Arms take turns, so
that what slows the machine slows all of them; still it should have nothing else to do.

    GFLOWOUT_DATA=data python tools/joint_costs.py [--problem digits] [--rounds 5] [--steps 40]
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from gflowout.studies.joint_data import PROBLEMS, load
from gflowout.studies.joint_fit import ARMS, TRUTH, fit

PLAIN = "none"


def main() -> None:
    """Print a line for each arm: its cost now, what the table says, and milliseconds per step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default="digits", choices=PROBLEMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    problem, hidden = load(wanted.problem, 100), PROBLEMS[wanted.problem].hidden
    how = {
        "steps": wanted.steps, "batch": 100, "every": wanted.steps, "patience": 1, "valid_draws": 1,
    }  # fmt: skip
    arms = [arm for arm in ARMS.values() if arm.method != TRUTH and arm.members == 1]
    times: dict[str, list[float]] = {arm.label: [] for arm in arms}
    for round_ in range(wanted.rounds + 1):
        for arm in arms:
            fitted = fit(arm, ARMS[arm.like or arm.label].trials[0], problem, hidden, how, 100)
            if round_:  # the first one warms up
                times[arm.label].append(1000 * fitted.seconds / fitted.steps)
    for arm in arms:
        pairs = zip(times[arm.label], times[PLAIN], strict=True)
        cost = median(own / plain for own, plain in pairs)
        print(
            f"{arm.label:18} {cost:5.2f}  (table {arm.cost:g})  {median(times[arm.label]):.2f} ms"
        )


if __name__ == "__main__":
    main()
