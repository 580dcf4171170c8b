"""Call the library with made-up networks, arguments and files, and check every result.

Each call is a case of its own: a network, arguments and an action that follow from the seed and the
number of the call. Cases run in child processes, so that a crash is one failure with a name. The
summary counts crashes, hangs, changed state, silent NaN, wrong answers (against plain hooks and a
loop over draws) and errors that do not name the argument; the exit code is 1 if there are any, of
the last kind more than 1 % of the errors::

    python tools/fuzz.py --calls 10000 --seed 0
    python tools/fuzz.py --calls 10000 --seed 0 --only 123  # repeat call 123, with its traceback
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Some virtual machines announce AMX, which oneDNN uses in bfloat16, and stop at its instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

KINDS = {
    "crash": "crashes",
    "hang": "hangs",
    "state": "state changes",
    "nan": "silent NaN",
    "wrong": "wrong answers",
    "unnamed": "errors that do not name the argument",
}
MOST_UNNAMED = 0.01  # share of all errors
MEMORY = 12 << 30  # bytes of address space of a child: a file must not take more


def actions() -> dict[str, tuple[int, Callable[[random.Random], None]]]:
    """Actions by name, with their weights."""
    from fuzzing import estimators, files, models, wrongs

    def on_model(action: Callable[[models.Wrapped, random.Random], None]) -> Any:
        return lambda rng: action(models.wrapped(rng), rng)

    return {
        "predict": (24, on_model(models.predict)),
        "train": (16, on_model(models.train)),
        "forward": (6, on_model(models.forward)),
        "copies": (8, on_model(models.copies)),
        "inclusion": (3, on_model(models.inclusion)),
        "set_options": (4, on_model(models.set_options)),
        "ensemble": (3, on_model(models.ensemble)),
        "wrap": (3, on_model(models.wrap)),
        "bad wrap": (6, wrongs.wrap),
        "bad parts": (3, wrongs.parts),
        "bad call": (10, wrongs.call),
        "not finite": (4, wrongs.not_finite),
        "load": (12, files.load),
        "estimator": (2, estimators.good),
        "bad estimator": (3, estimators.bad),
    }


def one(seed: int, call: int, shown: bool = False) -> dict[str, Any]:
    """Run one call and return what came of it."""
    import torch
    from fuzzing.checks import Problem, Refused

    rng = random.Random(f"{seed} {call}")
    table = actions()
    weights = [weight for weight, _ in table.values()]
    name = rng.choices(list(table), weights)[0]
    torch.manual_seed(rng.getrandbits(32))
    result: dict[str, Any] = {"call": call, "action": name, "error": False}
    try:
        table[name][1](rng)
    except Refused as error:
        result["error"] = True
        if shown:
            print(f"refused: {error}")
    except Exception as error:
        if shown:
            traceback.print_exc()
        kind = error.kind if isinstance(error, Problem) else "wrong"
        result |= {"error": kind == "unnamed", "kind": kind, "text": str(error)}
        if not isinstance(error, Problem):
            result["text"] = f"a valid call raised {type(error).__name__}: {error}"
    return result


def child(seed: int, first: int, last: int, deadline: float, timeout: float) -> None:
    """Run calls and write a line before and after each; a hang ends the process."""
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed is no report
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    for call in range(first, last):
        if time.time() > deadline:
            break
        faulthandler.dump_traceback_later(timeout, exit=True)
        report.write(json.dumps({"starts": call}) + "\n")
        report.write(json.dumps(one(seed, call)) + "\n")
    faulthandler.cancel_dump_traceback_later()


def batch(
    options: argparse.Namespace, first: int, last: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """Results of some calls, from child processes: after a crash or a hang, from another one."""
    while first < last:
        running = None
        arguments = ["--seed", options.seed, "--calls", last, "--first", first]
        arguments += ["--deadline", deadline, "--timeout", options.timeout]
        command = [sys.executable, __file__, "--child", *map(str, arguments)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            for line in process.stdout or ():
                result = json.loads(line)
                running = result.get("starts")
                if running is None:
                    yield result
            code = process.wait()
            errors.seek(0)
            said = errors.read()[-2000:]
        if running is None and code == 0:
            return
        if running is None:
            raise RuntimeError(f"a child process failed outside of a call:\n{said}")
        kind = "hang" if "Timeout (" in said else "crash"
        yield {"call": running, "action": "?", "error": False, "kind": kind, "text": said}
        first = running + 1


def _alike(problems: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Problems by their text without names and numbers, the most frequent first."""
    groups = collections.defaultdict(list)
    for problem in problems:
        text = re.sub(r"[\d.e-]+|'[^']*'", "_", problem["text"])[:90]
        groups[problem["kind"], problem["action"], text].append(problem)
    return sorted(groups.values(), key=len, reverse=True)


def summary(results: list[dict[str, Any]], seconds: float, seed: int) -> int:
    """Print what came of all calls; return the exit code."""
    problems = [result for result in results if "kind" in result]
    errors = sum(result["error"] for result in results)
    counts = collections.Counter(result["action"] for result in results)
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print(f"{'calls':<40}{len(results):>7}   in {seconds:.0f} s, seed {seed}")
    for kind, name in KINDS.items():
        if kind != "unnamed":
            print(f"{name:<40}{sum(p['kind'] == kind for p in problems):>7}")
    unnamed = [problem for problem in problems if problem["kind"] == "unnamed"]
    share = len(unnamed) / max(1, errors)
    print(f"{'errors':<40}{errors:>7}")
    print(f"{KINDS['unnamed']:<40}{len(unnamed):>7}   {share:.2%}")
    broken = [problem for problem in problems if problem["kind"] != "unnamed"]
    for group in [*_alike(broken)[:30], *_alike(unnamed)[:5]]:
        first, calls = group[0], ", ".join(str(problem["call"]) for problem in group[:8])
        text = " ".join(first["text"].split())
        text = text[-600:] if first["kind"] == "crash" else text[:300]
        print(f"{len(group)}x {first['kind']} ({first['action']}, calls {calls}): {text}")
    if problems:
        print(f"repeat one with: python tools/fuzz.py --seed {seed} --only CALL")
    return int(bool(broken) or share > MOST_UNNAMED)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="how many calls")
    parser.add_argument("--seed", type=int, default=0, help="decides all calls")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--only", type=int, help="repeat this call alone, in this process")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of a hang")
    parser.add_argument("--batch", type=int, default=500, help="calls per child process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--deadline", type=float, default=1e18, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        warnings.simplefilter("ignore")
        print(json.dumps(one(options.seed, options.only, shown=True)))
        return 0
    if options.child:
        child(options.seed, options.first, options.calls, options.deadline, options.timeout)
        return 0
    start = time.time()
    results: list[dict[str, Any]] = []
    for first in range(options.first, options.calls, options.batch):
        last = min(first + options.batch, options.calls)
        for result in batch(options, first, last, start + options.seconds):
            results.append(result)
            if sys.stderr.isatty() or len(results) % 500 == 0:
                bad = sum("kind" in result for result in results)
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{len(results)} calls, {bad} problems", end=end, file=sys.stderr)
    return summary(results, time.time() - start, options.seed)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
