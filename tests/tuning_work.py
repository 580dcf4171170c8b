"""Toy work for the tests of tuning. Workers import it by its name, so it is no test file."""

import math
import os
import signal
import time
from pathlib import Path

from gflowout.runs import Context, Result, Run

BEST = {"mc": 1e-3, "gflowout": 3e-3}


def bowl(run: Run, context: Context) -> Result:
    """A valley along the logarithm of fit.lr, elsewhere for each method."""
    if run.options["test"] is not False:
        raise RuntimeError("test data must be left alone")
    lr, rate = run.options["fit.lr"], run.options.get("method.options.rate", 0.5)
    far = math.log10(lr / BEST[run.method]) ** 2 + (rate - 0.5) ** 2
    return {"metrics": {"valid/nll": far, "valid/accuracy": 1 - far}}


def slow_first(run: Run, context: Context) -> Result:
    """The smaller the learning rate the slower: whoever comes first must not matter."""
    time.sleep(0.02 * max(0.0, -2 - math.log10(run.options["fit.lr"])))
    return bowl(run, context)


def noted(run: Run, context: Context) -> Result:
    """Leaves a line for every call."""
    with Path(os.environ["TUNING_NOTES"]).open("a") as notes:
        notes.write(f"{run.id}\n")
    return bowl(run, context)


def dies(run: Run, context: Context) -> Result:
    """Kills whoever does the search when it has done some trials."""
    notes = Path(os.environ["TUNING_NOTES"])
    if notes.exists() and len(notes.read_text().splitlines()) >= int(os.environ["TUNING_LIFE"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(run, context)


def high_fails(run: Run, context: Context) -> Result:
    if run.options["fit.lr"] > 3e-3:
        raise RuntimeError("the loss is not a number")
    if run.options["fit.lr"] < 2e-4:
        return {"metrics": {"valid/nll": math.nan}}
    return bowl(run, context)


def fails_at_first(run: Run, context: Context) -> Result:
    if context.attempt == 1:
        raise RuntimeError("the first attempt")
    return bowl(run, context)


def cheats(run: Run, context: Context) -> Result:
    return {"metrics": {"valid/nll": 0.0, "test/nll": 0.0}}


def scored(run: Run, context: Context) -> Result:
    """Scores that are easy to average by hand; seed 7 fails."""
    if run.seed == 7:
        raise RuntimeError("seven")
    if run.seed == 8:
        time.sleep(60)
    offset = {"mc": 0, "gflowout": 10}[run.method] + run.options.get("fit.lr", 0)
    metrics = {"valid/nll": offset + run.seed, "note": "x"}
    if run.options["test"]:
        metrics["test/nll"] = offset + 2 * run.seed
    return {"metrics": metrics}


def epochs(run: Run, context: Context) -> Result:
    """Time before and time per epoch, in steps of a fifth."""
    time.sleep(run.options["before"])
    steps = 5 * run.options["fit.epochs"]
    for step in range(steps):
        time.sleep(run.options["epoch"] / 5)
        if run.options["tells"]:
            context.progress(step + 1, steps, "")
    return {"metrics": {}}
