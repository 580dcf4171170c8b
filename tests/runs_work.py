"""Toy work for the tests of ``gflowout.runs``, and a program that kills its own studies.

Workers import this file by its name, so it is not a test file itself.
"""

import hashlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from gflowout.data import store
from gflowout.data.images import load_images
from gflowout.runs import Context, Pool, Ray, Result, Run, grid, records, run_study
from gflowout.runs.records import now, write
from gflowout.runs.work import Task


def square(run: Run, context: Context) -> Result:
    context.progress(1, 1, "squaring")
    return {
        "metrics": {"square": run.seed**2, "nan": math.nan, "inf": -math.inf},
        "epochs": [{"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": math.inf}],
        "data": {"numbers": "sha256:0"},
    }


def steps(run: Run, context: Context) -> Result:
    """A chain of hashes with a checkpoint after each; takes up where it was killed."""
    checkpoint, half = context.folder / "chain.txt", context.folder / "half.txt"
    lines = checkpoint.read_text().split() if checkpoint.exists() else []
    (context.folder / f"on-{os.environ.get('RUNS_NODE', 'here')}").write_text(str(os.getppid()))
    while len(lines) < run.options["steps"]:
        context.progress(len(lines), run.options["steps"], "hashing")
        time.sleep(float(os.environ.get("RUNS_PAUSE", "0")))
        last = lines[-1] if lines else run.id
        lines.append(hashlib.sha256(last.encode()).hexdigest())
        half.write_text("\n".join(lines))
        half.replace(checkpoint)
    return {"metrics": {"end": lines[-1]}, "epochs": [{"hash": line} for line in lines]}


def sleep(run: Run, context: Context) -> Result:
    for second in range(100):
        context.progress(second, 100, "sleeping")
        time.sleep(run.options["seconds"] / 100)
    return {"metrics": {"slept": run.options["seconds"]}}


def bad_seed(run: Run, context: Context) -> Result:
    """Fails for seed 1, with something on standard error."""
    if run.seed == 1:
        print("what a worker prints", file=sys.stderr, flush=True)
        raise RuntimeError("seed 1 is not good\nand a second line")
    return {"metrics": {"seed": run.seed}}


def fails_twice(run: Run, context: Context) -> Result:
    if context.attempt <= 2:
        raise RuntimeError(f"attempt {context.attempt}")
    return {"metrics": {"attempt": context.attempt}}


def die_once(run: Run, context: Context) -> Result:
    """Kills its own process the first time, if the options say how."""
    marker, way = context.folder / "died", run.options["way"]
    if way == "wait":
        return orphan(run, context)
    if way != "not" and not marker.exists():
        marker.touch()
        if way == "abort":
            os.abort()
        elif way == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"metrics": {"way": way}}


def hog(run: Run, context: Context) -> Result:
    kept = []
    while len(kept) < 60:
        kept.append(b"x" * (32 << 20))
        time.sleep(0.05)
    return {"metrics": {"size": len(kept)}}


def orphan(run: Run, context: Context) -> Result:
    """Starts a process of its own and writes down both, then waits."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    (context.folder / "half").write_text(f"{os.getpid()} {child}")
    (context.folder / "half").replace(context.folder / "processes")
    time.sleep(60)
    return {"metrics": {}}


def devices(run: Run, context: Context) -> Result:
    """The devices that a run sees, and when."""
    start = time.monotonic()
    time.sleep(run.options["pause"])
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"metrics": {"devices": seen, "start": start, "end": time.monotonic()}}


def elsewhere(run: Run, context: Context) -> Result:
    """What a run on a node finds there: data, devices, and the folder that it starts in."""
    found = load_images("mnist", "test")
    here = {"images": len(found), "files": sorted(os.listdir())}
    return {"metrics": {**devices(run, context)["metrics"], **here}}


def nothing(run: Run, context: Context) -> Result:
    return None  # type: ignore[return-value]


def chains() -> list[Run]:
    options = {"steps": [8]}
    return grid("chains", methods=["a", "b"], data=["x"], seeds=range(12), options=options)


def tallied(seed: int) -> dict:
    """A record that takes a moment to write."""
    around = {"versions": {}, "commit": None, "machine": {}, "threads": 1}
    epochs = [{"epoch": number, "loss": 1 / (number + 1)} for number in range(300)]
    result = {"metrics": {"seed": seed, "writer": os.getpid()}, "epochs": epochs}
    task = Task("runs_work:square", Run("writing", "m", "d", seed), Path("unused"))
    return task.record(now(), 0.0, environment=around, result=result)


def study(folder: Path, last: bool) -> None:
    engine = Pool(2, start="fork")
    assert not run_study(chains(), "runs_work:steps", folder, engine=engine, progress=False).failed


def writing(folder: Path, last: bool) -> None:
    """Write the next records; without end, unless this is the last life."""
    there = {path.stem for path in folder.glob("*.json")}
    for seed in range(len(there) + 5 if last else 1 << 30):
        if Run("writing", "m", "d", seed).id not in there:
            assert write(folder, tallied(seed))


def killed(job, folder: Path, times: int, longest: float, seed: int) -> int:
    """Do a job in a process that is killed at random moments and started again; how often."""
    moments, kills = random.Random(seed), 0
    while True:
        process = os.fork()
        if process == 0:
            try:
                job(folder, kills == times)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        if kills < times:
            if kills % 2:  # however busy the machine is, half of the lives get something done
                _wait_for_a_record(process, folder)
            time.sleep(moments.uniform(0.005, longest))
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code != -signal.SIGKILL:
            assert code == 0, code
            return kills
        kills += 1


def _wait_for_a_record(process: int, folder: Path) -> None:
    """Wait until there is a new record, or the process has ended."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    before = len(list(folder.glob("*.json")))
    while len(list(folder.glob("*.json"))) == before and not os.waitid(os.P_PID, process, ended):
        time.sleep(0.001)


def cluster(folder: Path) -> None:
    """A study on two nodes of one CPU each, the second of which dies half-way."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    nodes = Cluster(
        initialize_head=True,
        head_node_args={
            "env_vars": {"RUNS_NODE": "first", "GFLOWOUT_DATA": os.environ["RUNS_DATA"]},
            "include_dashboard": False,
            "_system_config": {**quick, "health_check_failure_threshold": 4},
        },
    )
    second = nodes.add_node(env_vars={"RUNS_NODE": "second"})
    removed = []

    def remove() -> None:
        def there() -> list[Path]:
            return [path for path in folder.glob(".scratch/*/on-second") if path.read_text()]

        while not (there() and list(folder.glob("*.json"))):
            time.sleep(0.02)
        removed.extend(path.parent.name for path in there())
        # With a node go its workers; those of this one live on the machine of all others.
        for path in there():
            os.kill(int(path.read_text()), signal.SIGSTOP)
        nodes.remove_node(second, allow_graceful=False)
        for path in there():
            os.kill(int(path.read_text()), signal.SIGKILL)

    engine = Ray(nodes.address)
    problems = list(engine.everywhere(store.problems, ["mnist"]).values())
    remover = threading.Thread(target=remove)
    remover.start()
    summary = run_study(chains()[:6], "runs_work:steps", folder, engine=engine)
    remover.join()
    nodes.shutdown()
    told = {"done": summary.done, "exit": summary.exit_code, "removed": removed}
    print(json.dumps({**told, "problems": problems}))


def node_with_gpus(folder: Path) -> None:
    """A study on a node with data and two GPUs, started where there is neither."""
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False}
    data = {"GFLOWOUT_DATA": os.environ["RUNS_DATA"]}
    nodes = Cluster(initialize_head=True, head_node_args={**arguments, "env_vars": data})
    uploaded = folder.parent / "uploaded"
    uploaded.mkdir()
    (uploaded / "notes.txt").write_text("of the driver")
    engine = Ray(nodes.address, runtime_env={"working_dir": str(uploaded)})
    from gflowout.cli import options

    told = {"here": store.problems(["mnist"]), "driver": os.environ.get("GFLOWOUT_DATA")}
    try:
        options.check_data(["mnist", "svhn"], None, engine)  # on the node
    except ValueError as error:
        told["missing"] = str(error)
    runs = [Run("elsewhere", "m", "d", seed, {"pause": 1.0}) for seed in range(2)]
    summary = run_study(runs, "runs_work:elsewhere", folder, engine=engine, progress=False)
    nodes.shutdown()
    print(json.dumps({**told, "exit": summary.exit_code}))


def local_ray(folder: Path) -> None:
    """On a Ray cluster of this machine alone: a success, a crash, and Ctrl-C during the last."""
    import ray

    def interrupt() -> None:
        while len(list(folder.glob("*0-??????????.json"))) < 2 or not processes(folder):
            time.sleep(0.05)
        running.extend(processes(folder))
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    running: list[int] = []
    threading.Thread(target=interrupt).start()
    runs = [Run("ways", "m", "d", 0, {"way": way}) for way in ("kill", "not", "wait")]
    try:
        run_study(runs, "runs_work:die_once", folder, engine=Ray(jobs=2), retries=1)
    except KeyboardInterrupt:
        told = {"processes": running, "connected": ray.is_initialized()}
        print(json.dumps({**told, "left": [one for one in running if alive(one)]}))


def processes(folder: Path) -> list[int]:
    """What the runs of :func:`orphan` in this folder wrote down."""
    files = folder.glob(".scratch/*/processes")
    return [int(number) for path in files for number in path.read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    if sys.argv[1] in ("cluster", "local_ray", "node_with_gpus"):
        globals()[sys.argv[1]](Path(sys.argv[2]))
        sys.exit()
    # Forks, so that the price of importing torch is paid once and not for each life.
    os.environ["RUNS_PAUSE"] = "0.03"
    jobs = {"study": (study, 0.2), "writing": (writing, 0.1)}
    job, longest = jobs[sys.argv[1]]
    folder = Path(sys.argv[2])
    folder.mkdir()
    print(killed(job, folder, times=20, longest=longest, seed=int(sys.argv[3])))
    print(len(records.read(folder)))
