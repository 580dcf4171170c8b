"""The plan of the paper's studies: what is counted, what is shared, and what is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gflowout.cli import commands
from gflowout.studies import images, paper_plan
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.paper_plan import Amount, Counted, Device, Network, counted

MLP = Network("mlp", 30, 4, 8, (("hidden_layers", (20, 10)),))
LAYERS = (30 * 20, 20 * 10, 10 * 4)
COUNTED = Counted(1000, Amount(6e9, 100), Amount(2e9, 50))


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has the same work: counting that of the paper's networks takes a minute."""
    monkeypatch.setattr(paper_plan, "counted", lambda network, method, options: COUNTED)


def test_work_is_that_of_the_matrix_products() -> None:
    whole, rows = sum(LAYERS), 2 * MLP.batch
    plain = counted(MLP, "none", ())
    assert plain.parameters == whole + 20 + 10 + 4
    # Backwards one product for the weights, and one for the inputs of all but the first layer.
    assert plain.step.flops == rows * (whole + whole + sum(LAYERS[1:]))
    assert plain.draw.flops == rows * whole
    random = counted(MLP, "mc", ())
    assert random.step.flops == plain.step.flops
    shared = LAYERS[0] / 2  # two draws share the layer before the first mask
    assert random.draw.flops == pytest.approx(rows * (shared + sum(LAYERS[1:])))
    assert random.draw.operations > 0
    assert counted(MLP, "id-gflowout", (("draws", 4),)).step.flops > 3 * plain.step.flops
    assert counted(MLP, "gflowout", ()).parameters > plain.parameters


def test_a_network_with_two_inputs_is_counted() -> None:
    sizes = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "embedding_size": 4,
             "reduction_hidden": 4, "reduced": 8}  # fmt: skip
    net = Network("mcan", 6, 5, 3, tuple(sizes.items()))
    found = counted(net, "gflowout", ())
    assert found.step.flops > 2 * found.draw.flops > 0


def test_time_is_that_of_the_slower_of_arithmetic_and_launches() -> None:
    device = Device(tflops=2, launch=10)
    assert device.seconds(Amount(4e12, 100)) == 2
    assert device.seconds(Amount(4e6, 100)) == pytest.approx(1e-3)
    for name in ("tflops", "launch", "price"):
        with pytest.raises(ValueError, match=f"{name} must be a number"):
            Device(**{name: -1.0})


def test_a_run_of_adaptation_trains_checks_and_scores() -> None:
    plan = planning.plan(studies.get("adaptation"), "paper", Path("none"))
    (run,) = [
        r for r in plan.runs if (r.method, r.data, r.seed) == ("ensemble", "cifar10", 0)
    ]  # fmt: skip
    job = paper_plan.job(run)
    assert job is not None
    assert len(set(job.names)) == ARMS["ensemble"].members
    points = 1000 + 2000 + 4000 + 8000
    assert job.steps == (200 * 45_000 + 50 * points) / 128
    assert job.checked == (200 + 4 * 50) * 5_000  # without masks one pass is enough
    assert job.scored == 5 * 10_000
    (other,) = [r for r in plan.runs if (r.method, r.data, r.seed) == ("mc", "cifar10", 0)]
    drawn = paper_plan.job(other)
    assert drawn is not None
    assert drawn.checked == 5 * job.checked
    assert drawn.scored == 20 * job.scored
    assert dict(drawn.network.sizes) == {"width": 64}


def test_all_runs_of_the_paper_have_a_job_with_known_work(fixed: None) -> None:
    for name in studies.STUDIES:
        if not studies.get(name).paper or name == "cost":
            continue
        plan = planning.plan(studies.get(name), "paper", Path("none"))
        for run in (*plan.trials, *plan.runs):
            job = paper_plan.job(run)
            if run.method == "logistic":
                assert job is None
                continue
            assert job is not None
            assert job.steps > 0
            assert (job.scored > 0) == (run.study != studies.TUNING)
            assert len(job.names) == (ARMS[run.method].members if job.scored else 1)


def test_networks_that_studies_share_count_once(fixed: None) -> None:
    alone = paper_plan.needed("ood", Device(), set())
    trained: set[str] = set()
    first = paper_plan.needed("robustness", Device(), trained)
    assert first.networks == len(trained)
    after = paper_plan.needed("ood", Device(), trained)
    assert 0 <= after.networks < alone.networks
    assert after.flops < alone.flops
    assert after.bytes < alone.bytes
    again = paper_plan.needed("robustness", Device(), trained)
    assert (again.networks, again.bytes) == (0, 0)
    assert 0 < again.flops < first.flops  # scoring
    arms, sets = len(ARMS), len(images.CIFAR)
    order = paper_plan.needed("block-order", Device(), set(trained))
    plain = {"none", "ensemble"}  # the first member of the ensemble is the plain network
    per_seed = arms - len(plain) + ARMS["ensemble"].members
    assert order.networks == 9 * sets * per_seed


def test_the_plan_of_vqa_has_room_for_the_features(fixed: None) -> None:
    found = paper_plan.needed("vqa", Device(), set())
    assert found.bytes == 204_721 * 100 * 2048 * 2 + found.networks * 4 * 1000 * 10


def test_the_command(fixed: None) -> None:
    def plan(*arguments: str) -> tuple[int, str]:
        done = CliRunner(env={"NO_COLOR": "1"}).invoke(commands.app, ["study", "plan", *arguments])
        return done.exit_code, done.output

    code, shown = plan("cost", "--preset", "paper", "--tflops", "10", "--price", "3")
    assert code == 0
    head, row, total, *_ = (line.split() for line in shown.splitlines())
    assert head == ["study", "networks", "PFLOP", "hours", "GB", "cost"]
    assert row[0] == "cost"
    assert total[1:] == row[1:]
    assert int(row[5]) <= 3 * int(row[3])
    assert "Assumed of a GPU: 10 TFLOP per second reached, 10 µs" in shown
    assert "no GPU has run these studies yet" in shown
    assert plan("cost", "--preset", "cpu")[0] == 2
    assert "--dry-run` measures what it takes here" in plan("cost", "--preset", "cpu")[1]
    assert plan("features")[0] == 2
    assert plan("cost", "--tflops", "0")[0] == 2
