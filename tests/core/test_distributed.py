"""Two processes have the gradients of one on the joint batch, and none ever waits for the other."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed_work as work
import pytest
import torch
import torch.distributed as dist
import zoo
from torch import Tensor, nn

import gflowout as gfo
from gflowout.methods import METHODS

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs/guides/scale.md"
LIMIT = 100
"""Seconds that a group of processes may take; a third on an idle machine is plenty."""

LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
PROLOGUE = "import torch\ntorch.set_default_dtype(torch.float64)\n"
EPILOGUE = '\ntorch.save((history, model.state_dict()), f"{ranks}-{rank}.pt")\n'


def run(commands: list[list[str]], folder: Path) -> None:
    """Run commands side by side; end all of them if one fails or the time is over."""
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **LOCAL},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[0] for process in running]
    finally:
        for process in running:
            process.terminate()  # torchrun then ends its own
        for process in running:
            process.wait(timeout=20)
    # All of them: the first may only have waited for one that failed.
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = str(TESTS / "distributed_work.py")
    run([[script, str(folder), str(rank)] for rank in range(work.RANKS)], folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(work.RANKS)]


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference of any tensor, relative to its norm."""
    assert found.keys() == expected.keys()
    return max(
        ((found[key] - value).norm() / value.norm().clamp(min=1e-12)).item()
        for key, value in expected.items()
    )


def gradients_only(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in values.items() if key not in ("tb", "log_z")}


def test_every_method_is_a_case() -> None:
    assert {case.method for case in work.CASES.values()} == METHODS.keys()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [(name, "equal") for name in work.CASES]
    + [(name, "unequal") for name, case in work.CASES.items() if case.unequal],
)
def test_gradients_are_those_of_the_joint_batch(
    ranks: list[dict[str, Any]], name: str, sizes: str
) -> None:
    expected = work.gradients(name)
    assert all(value.norm() > 1e-9 for value in expected.values())
    for rank in ranks:
        assert distance(rank[sizes][name], expected) < 1e-9


@pytest.mark.parametrize("mutant", work.MUTANTS)
@pytest.mark.parametrize("name", work.AGREEING)
def test_agreement_is_what_makes_them_equal(
    ranks: list[dict[str, Any]], name: str, mutant: str
) -> None:
    whole = work.CASES[name].whole
    found, expected = gradients_only(ranks[0][mutant][name]), gradients_only(work.gradients(name))
    # For common masks the gradient is linear in the rewards, and DDP averages as good as we do.
    harmless = mutant == ("own evidence" if whole else "own masks")
    if harmless:
        assert distance(found, expected) < 1e-9
    else:
        assert distance(found, expected) > 1e-3


def test_without_common_evidence_the_loss_is_another(ranks: list[dict[str, Any]]) -> None:
    expected = work.gradients("id-gflowout")
    for key in ("tb", "log_z"):
        found = [rank["own evidence"]["id-gflowout"][key] for rank in ranks]
        assert not torch.allclose(found[0], expected[key], rtol=1e-3)
        assert not torch.allclose(found[0], found[1], rtol=1e-3)


def test_evidence_counts_examples_and_not_ranks(ranks: list[dict[str, Any]]) -> None:
    """Without a weight of the loss, parts of unequal size still train the posterior correctly."""
    expected = work.gradients("id-gflowout")
    generators = [key for key in expected if key.startswith("method.")]
    backbone = [key for key in expected if key.startswith("backbone.")]

    def error(found: dict[str, Tensor], keys: list[str]) -> float:
        return distance(*({key: values[key] for key in keys} for values in (found, expected)))

    assert error(ranks[0]["plain"], generators) < 1e-9
    assert error(ranks[0]["plain"], backbone) > 1e-3  # that is what the weight is for
    for mutant in work.MUTANTS:
        assert error(ranks[0][mutant, "plain"], generators) > 1e-3


def test_gradients_can_be_added_up(ranks: list[dict[str, Any]]) -> None:
    expected = work.gradients("id-gflowout", accumulate=True)
    assert distance(expected, work.gradients("id-gflowout")) > 0.1
    for rank in ranks:
        assert distance(rank["accumulated"], expected) < 1e-9


def test_messages_are_few_and_in_the_forward_pass_only(ranks: list[dict[str, Any]]) -> None:
    units = 8 + 7
    whole = [("broadcast", 4 * units), ("all_reduce", 5)]
    expected = {
        "id-gflowout": whole,
        "id-gflowout learned": whole,
        "id-gflowout exploring": [("broadcast", 4 * (units + 2)), ("all_reduce", 5)],
        "id-gflowout looped": [*4 * [("broadcast", units)], ("all_reduce", 5)],
        "id-gflowout groups": [("all_reduce", 2)],
        "id-gflowout one group": [("all_reduce", 2)],
        "combined": whole,
        "combined groups": [("all_reduce", 2)],
        "ensemble": 2 * whole,
    }
    for rank in ranks:
        assert rank["messages"] == {
            name: expected.get(name, []) for name in (*work.CASES, "ensemble")
        }


def test_functions(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["functions"] for rank in ranks)
    for found in (first, second):
        assert found["size"] == 2
        assert torch.equal(found["first"], first["own"])
        assert torch.equal(found["mean"], (3 * first["own"] + second["own"]) / 4)
        assert found["half"].dtype == torch.bfloat16
        assert found["half"].tolist() == [1.0]
        assert found["alone"][0] is False
        assert torch.equal(found["alone"][1], found["own"])
        assert found["both"][0] is True
        assert torch.equal(found["both"][1], (first["own"] + second["own"]) / 2)
        assert "with 2 processes the batch of 2 is only a part: pass train_size=" in found["error"]
    assert (first["weight"], second["weight"]) == (1.5, 0.5)


def test_batchnorm_is_as_in_torch(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["normalised"]
        for ours, theirs in zip(*found["gradients"], strict=True):
            torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(*found["running"])
        assert found["keys"] == found["plain keys"]
        assert all(key.startswith("module.") for key in found["keys"])
        assert found["unused"] == "Losses"
    first, second = (rank["normalised"]["running"][0] for rank in ranks)
    assert not torch.allclose(first, second)  # a rank's batch is its own until the next call


def test_synchronised_batchnorm_can_be_put_in_a_wrapped_model() -> None:
    with zoo.seeded(0):
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        x = torch.randn(5, 4)
        model = gfo.wrap(net, "mc", ["2"], likelihood=gfo.Categorical(3), example=(x,))
    before = model.predict(x, generator=torch.Generator().manual_seed(0)).mean
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted.backbone[1], nn.SyncBatchNorm)
    after = converted.predict(x, generator=torch.Generator().manual_seed(0)).mean
    assert torch.equal(before, after)


def scripts() -> list[str]:
    page, _, _ = DOCS.read_text().partition("\n## Many runs\n")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def group_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment that torchrun gives a single process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    for name, text in {**LOCAL, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, text)
    yield
    torch.set_default_dtype(torch.float32)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_documented_script_gives_the_same_curve_on_two_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group_of_one: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train, *further = scripts()
    (tmp_path / "train.py").write_text(PROLOGUE + train + EPILOGUE)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    run([launch], tmp_path)
    first, second = (torch.load(tmp_path / f"2-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[1][key], second[1][key]) for key in first[1])

    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "train"}
    with torch.random.fork_rng():
        exec(compile(PROLOGUE + train, "train.py", "exec"), scope)
        for code in further:
            exec(compile(code, str(DOCS), "exec"), scope)
    history, weights = scope["history"], scope["model"].state_dict()
    assert len(history) == 20
    # Adam divides by the size of a gradient: one that cancels to rounding errors of 1e-12 moves a
    # parameter by 1e-12 / 1e-8 of its learning rate.
    torch.testing.assert_close(first[0], history, rtol=1e-5, atol=0)
    assert first[0] == second[0]
    for key, value in weights.items():
        torch.testing.assert_close(first[1][key], value, rtol=0, atol=1e-5)
    assert (tmp_path / "model.gfo").is_file()
