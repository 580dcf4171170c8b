"""Kill ``gflowout train`` and ``gflowout study run`` at random moments and let them go on.

A command is started, sent KILL, TERM or INT, and started again, several times; then it may finish.
Its weights, metrics and records must be those of a command that was left alone, bit by bit, with
nothing lost or doubled. Studies run inline, in a pool and, if it is installed, on Ray. The exit
code is 1 if something differs::

    python tools/kills.py --kills 100 --seed 0

Commands run in forks of this process, so that PyTorch is imported once and not in each life.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
JOBS = ("train", "inline", "pool", "ray")
HANG = 600  # seconds after which a command that was told to stop, or to finish, hangs


def write_files(folder: Path) -> None:
    """A table to learn from, and a study of it."""
    rng = random.Random(0)
    lines = ["a,b,c,label"]
    for _ in range(300):
        a, b, c = (rng.gauss(0, 1) for _ in range(3))
        lines.append(f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a + b * c > 0 else 'no'}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    study = {
        "name": "kills",
        "base": {
            "data": {"source": str(folder / "table.csv"), "target": "label", "batch_size": 20},
            "backbone": {"hidden": [8]},
            "fit": {"epochs": 8},
        },
        "methods": ["mc", "gflowout"],
        "seeds": 2,
    }
    (folder / "study.yaml").write_text(json.dumps(study))  # which is YAML, too


def command(job: str, folder: Path, out: Path) -> list[str]:
    """Arguments of ``gflowout``."""
    if job == "train":
        return [
            "train", "--data", str(folder / "table.csv"), "--set", "data.target=label",
            "--set", "backbone.hidden=[8]", "--set", "data.batch_size=20", "--epochs", "25",
            "--out", str(out), "--quiet",
        ]  # fmt: skip
    study = ["study", "run", str(folder / "study.yaml"), "--out", str(out), "--engine", job]
    return [*study, "--jobs", "2"] if job != "inline" else study


def start(arguments: list[str], log: Path) -> int:
    """Run a command in a fork of this process, in a session of its own; return its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        from gflowout.cli import main as cli
        from gflowout.runs import Pool

        Pool.__init__.__defaults__ = (None, "fork")  # workers start at once
        sys.argv = ["gflowout", *arguments]
        cli()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(process: int, seconds: float) -> int | None:
    """Wait for a process to end; return its exit code, or ``None`` if it still runs."""
    limit = time.monotonic() + seconds
    while True:
        which, status = os.waitpid(process, os.WNOHANG)
        if which:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            return None
        time.sleep(0.01)


def outcome(job: str, out: Path) -> dict[str, Any]:
    """What a command leaves behind that must be the same after any number of kills."""
    if job == "train":
        return {
            "weights": (out / "model.safetensors").read_bytes(),
            "metrics.csv": (out / "metrics.csv").read_text(),
            "configuration": (out / "config.yaml").read_text(),
        }
    from gflowout.runs import read

    records = read(out)
    result: dict[str, Any] = {"number of records": len(records)}
    for record in records:
        result[record["id"]] = (record["status"], record["metrics"], record["epochs"])
    return result


def episode(
    job: str, rng: random.Random, folder: Path, usual: tuple[dict[str, Any], float], kills: int
) -> tuple[int, list[str]]:
    """Kill a command up to some times, then let it finish; return kills and what is wrong."""
    expected, duration = usual
    done = 0
    with tempfile.TemporaryDirectory(dir=folder) as place:
        out, log = Path(place) / "out", Path(place) / "log"
        for _ in range(kills):
            process = start(command(job, folder, out), log)
            code = ended(process, rng.random() * rng.uniform(0.0, duration))  # less is left to do
            if code is not None:  # it was faster
                break
            which = rng.choice(SIGNALS)
            # A terminal sends Ctrl-C to the whole group.
            (os.killpg if which == signal.SIGINT else os.kill)(process, which)
            done += 1
            if ended(process, HANG) is None:
                os.killpg(process, signal.SIGKILL)
                return done, [f"{job}: {which.name} did not end the command in {HANG} s"]
        for _ in range(5):  # what a killed command started may take a moment to end
            process = start(command(job, folder, out), log)
            code = ended(process, HANG)
            if code in (0, None):
                break
            time.sleep(2)
        if code != 0:
            last = " ".join(log.read_text(errors="replace").split())[-500:]
            return done, [f"{job}: after {done} kills the command ended with {code}: {last}"]
        found = outcome(job, out)
    keys = expected.keys() | found.keys()
    return done, [
        f"{job}: {key} differs after {done} kills"
        for key in sorted(keys)
        if expected.get(key) != found.get(key)
    ]


def main() -> int:
    """Parse the command line, kill, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", default=",".join(JOBS), help="train, inline, pool, ray")
    options = parser.parse_args()
    jobs = [job for job in options.jobs.split(",") if job != "ray" or importlib.util.find_spec(job)]
    rng = random.Random(options.seed)
    import lightning.pytorch  # noqa: F401

    import gflowout.app.run
    import gflowout.cli.commands  # noqa: F401

    kills, problems, counts, turn = 0, [], dict.fromkeys(jobs, 0), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        usual = {}
        for job in jobs:
            begun, out, log = time.monotonic(), folder / f"usual-{job}", folder / f"{job}.log"
            if ended(start(command(job, folder, out), log), HANG) != 0:
                sys.exit(f"{job} fails when it is left alone:\n{log.read_text()[-2000:]}")
            usual[job] = outcome(job, out), time.monotonic() - begun
            print(f"{job}: {usual[job][1]:.1f} s when left alone", file=sys.stderr)
        while kills < options.kills:
            job, turn = jobs[turn % len(jobs)], turn + 1
            wanted = min(rng.randint(2, 6), options.kills - kills)
            done, wrong = episode(job, rng, folder, usual[job], wanted)
            kills, counts[job] = kills + done, counts[job] + done
            problems += wrong
            print(f"{kills} kills, {len(problems)} problems", file=sys.stderr)
    print(f"{kills} kills: {', '.join(f'{job} {count}' for job, count in counts.items())}")
    print(f"{len(problems)} problems")
    for problem in problems:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
