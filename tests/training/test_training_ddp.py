"""Two processes under Lightning's DDP, started by torchrun, train as one on the joint batch.

In double precision: Adam turns gradients that cancel, up to rounding, into steps.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")

from ddp_fit import train

HERE = Path(__file__).parent


METHODS = ("none", "id-gflowout")


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left, by method: they train one model after the other."""
    folder = tmp_path_factory.mktemp("ddp")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    ended = subprocess.run(
        [sys.executable, *command, str(HERE / "ddp_fit.py"), str(folder), *METHODS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_have_the_loss_curves_of_one(joint: Path, method: str) -> None:
    folder = joint / method
    model, alone = train(folder / "alone", method, 1)
    histories = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert histories[0] == histories[1]
    for joint, own in zip(histories[0], alone.history, strict=True):
        for name in ("train/nll", "train/tb", "valid/nll", "valid/accuracy"):
            assert joint[name] == pytest.approx(own[name], rel=1e-4, abs=1e-5), name
    states = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    for name, value in model.state_dict().items():
        assert torch.equal(states[0][name], states[1][name])
        torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=1e-5)


def test_several_processes_need_a_folder_to_meet() -> None:
    from test_training import batches, wrapped

    from gflowout.training import FitOptions, fit

    with pytest.raises(ValueError, match="folder must be given to train with 2 processes"):
        fit(wrapped(), *batches(), FitOptions(devices=2))
