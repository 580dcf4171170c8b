"""The Ray engine, on real clusters of this machine, each in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runs_work
from data_files import write_mnist

from gflowout.core.optional import MissingExtraError
from gflowout.runs import Ray, Run, read, run_study

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: gflowout[ray]"
)


def scripted(name, folder, **variables):
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RUNS_PAUSE": "0.25"}
    quiet |= {"RAY_raylet_start_wait_time_s": "200"}  # on a busy machine
    done = subprocess.run(
        [sys.executable, runs_work.__file__, name, str(folder)],
        env={**os.environ, **quiet, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@needs_ray
@pytest.mark.long
def test_a_node_dies_half_way(tmp_path, monkeypatch):
    calm, folder = tmp_path / "calm", tmp_path / "out"
    runs = runs_work.chains()[:6]
    run_study(runs, "runs_work:steps", calm, engine="inline", progress=False)
    # The driver has no data directory and the second node has none with data: only nodes know.
    monkeypatch.delenv("GFLOWOUT_DATA", raising=False)
    (tmp_path / "data").mkdir()
    write_mnist(tmp_path / "data" / "mnist")
    told, _ = scripted("cluster", folder, RUNS_DATA=str(tmp_path / "data"), HOME=str(tmp_path))
    (missing,) = [lines for lines in told["problems"] if lines]
    assert len(told["problems"]) == 2
    assert "no mnist" in missing[0]
    assert told["done"] == 6
    assert told["exit"] == 0
    assert len(told["removed"]) >= 1  # there was a run on that node
    found, wanted = read(folder), read(calm)
    for one, other in zip(found, wanted, strict=True):
        for key in ("id", "status", "metrics", "epochs"):
            assert one[key] == other[key]
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        ".scratch",
        *(f"{run.id}.json" for run in runs),
    }


@needs_ray
@pytest.mark.long
def test_runs_find_what_their_node_has_and_the_driver_lacks(tmp_path, monkeypatch):
    monkeypatch.delenv("GFLOWOUT_DATA", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_mnist(tmp_path / "data" / "mnist")
    folder, home = tmp_path / "out", str(tmp_path / "home")
    told, _ = scripted("node_with_gpus", folder, RUNS_DATA=str(tmp_path / "data"), HOME=home)
    assert told["driver"] is None
    assert "no mnist" in told["here"][0]
    assert told["missing"].startswith("node ")
    assert "no svhn" in told["missing"]
    assert "no mnist" not in told["missing"]
    assert told["exit"] == 0
    done = [record["metrics"] for record in read(folder)]
    assert len(done) == 2
    assert all(metrics["images"] > 0 for metrics in done)
    assert all(metrics["files"] == ["notes.txt"] for metrics in done)
    assert {metrics["devices"] for metrics in done} <= {"0", "1"}  # one for each run by default
    for one in done:
        for other in done:
            overlap = one["start"] < other["end"] and other["start"] < one["end"]
            assert one is other or not overlap or one["devices"] != other["devices"]


@needs_ray
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.long
def test_a_cluster_of_one_machine_ends_with_its_study(tmp_path):
    told, shown = scripted("local_ray", tmp_path)
    assert len(told["processes"]) == 2
    assert told["left"] == []
    assert told["connected"] is False
    assert "killed by SIGKILL; will be tried again" in shown
    assert "stopped: 2 of 3 done, 1 tried again, 1 left" in shown
    (failed,) = read(tmp_path, "failed")
    assert failed["error"]["kind"] == "died"
    assert {record["metrics"]["way"] for record in read(tmp_path, "done")} == {"kill", "not"}
    assert {record["threads"] for record in read(tmp_path, "done")} == {1}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cpus": 0}, ValueError, "cpus must be a number"),
        ({"gpus": -1}, ValueError, "gpus must be a number"),
        ({"address": 3}, TypeError, "address must be a string or None, got 3"),
        ({"lost": -1}, ValueError, "lost must be an integer >= 0"),
    ],
)
def test_errors_at_the_door(options, error, message):
    with pytest.raises(error, match=message):
        Ray(**options)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_message_says_what_to_install(tmp_path):
    with pytest.raises(MissingExtraError, match=r"gflowout\[ray\]"):
        run_study([Run("s", "m", "d", 0)], "runs_work:square", tmp_path, engine="ray")
