"""GPUs of the pool and of Ray, on a machine that has none: a program stands for nvidia-smi."""

import os

import pytest
import torch

from gflowout.runs import Pool, Ray, Run, devices, read, run_study
from gflowout.runs.ray import variables
from gflowout.training.options import FitOptions, choose_precision


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def test_devices_come_from_nvidia_smi_unless_a_variable_lists_them(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-aa\necho GPU-bb\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices._all_devices.cache_clear()
    try:
        assert devices.devices() == ["GPU-aa", "GPU-bb"]
        for listed, names in {
            "": [],
            "-1": [],
            "NoDevFiles": [],
            "2, 0": ["2", "0"],
            "GPU-bb": ["GPU-bb"],
            "1,-1,0": ["1"],  # CUDA does not see what follows
        }.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
            assert devices.devices() == names
    finally:
        devices._all_devices.cache_clear()


@pytest.mark.parametrize(
    ("jobs", "gpus", "running", "share"),
    [
        (None, None, 4, 1),
        (2, None, 2, 1),
        (8, None, 8, 0.5),
        (None, 0.5, 8, 0.5),
        (None, 2, 2, 2),
        (3, 0, 3, 0),
    ],
)
def test_jobs_follow_from_devices(four_gpus, jobs, gpus, running, share):
    pool = Pool(jobs, gpus=gpus)
    assert (pool.jobs, pool.gpus) == (running, share)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 5}, "gpus must leave room for 1 at once on the 4 GPUs of this machine, got 5"),
        ({"gpus": 1, "jobs": 5}, "room for 5 at once on the 4 GPUs"),
        ({"gpus": 1.5}, "gpus must be a part of 1 or a whole number, got 1.5"),
        ({"gpus": -1}, "gpus must be a number"),
        ({"gpus": 1, "start": "fork"}, "gpus must be 0 with start='fork', got 1"),
    ],
)
def test_wrong_numbers_of_gpus(four_gpus, options, message):
    with pytest.raises(ValueError, match=message):
        Pool(**options)


def test_every_run_sees_its_own_device(four_gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    runs = [Run("s", "m", "d", seed, {"pause": 0.3}) for seed in range(4)]
    pool = Pool()
    # Spawning takes seconds per run; a fork has the same variables.
    pool.start = "fork"
    run_study(runs, "runs_work:devices", tmp_path, engine=pool, progress=False)
    done = [record["metrics"] for record in read(tmp_path)]
    assert sorted(metrics["devices"] for metrics in done) == ["5", "5", "7", "7"]
    for one in done:
        for other in done:
            overlap = one["start"] < other["end"] and other["start"] < one["end"]
            assert one is other or not overlap or one["devices"] != other["devices"]
    hidden = tmp_path / "hidden"
    run_study(runs[:1], "runs_work:devices", hidden, engine=Pool(1, "fork"), progress=False)
    assert read(hidden)[0]["metrics"]["devices"] == ""


def test_ray_passes_on_what_runs_read(monkeypatch):
    monkeypatch.setenv("GFLOWOUT_DATA", "/data")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # Ray sets it on each node
    passed = variables()
    assert passed["GFLOWOUT_DATA"] == "/data"
    assert "CUDA_VISIBLE_DEVICES" not in passed
    assert "PATH" not in passed
    assert "CUDA_VISIBLE_DEVICES" not in Ray(gpus=0.5)._for_runs()
    assert Ray(gpus=0)._for_runs() == {**passed, "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_emulated_bf16_is_not_taken(monkeypatch, native, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or native,
    )
    assert choose_precision(FitOptions()) == precision
    assert choose_precision(FitOptions(accelerator="cpu")) == "32-true"
