"""The study on cost: its runs, one of them for real, and what is said of records made by hand."""

from __future__ import annotations

import threading

import pytest
import torch

from gflowout.runs import Context, locks, read
from gflowout.studies import cost
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.content import PAPER, Bars, Table, Text

RATIOS = {"gflowout": 2.0, "contextual-paper": 1.8, "concrete": 1.6, "mc": 1.0}


def record(network, seed, ratios, share=1.0, predict=None):
    metrics = {"share": share}
    for action, values in (("train", ratios), ("predict", predict or ratios)):
        for label, value in values.items():
            metrics |= {f"{action}/{label}": value, f"{action}_ms/{label}": 10 * value}
            metrics[f"{action}_quartiles/{label}"] = [value, value]
    return {
        "study": "cost", "data": network, "method": "all", "seed": seed, "started": "",
        "options": cost.SIZES["cpu"][network], "metrics": metrics, "threads": 1,
        "machine": {"cpu": "A processor"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def done(smoke):
    return [record for record in read(smoke("cost"), "done") if record["study"] == "cost"]


def test_every_method_is_timed_against_random_dropout(done):
    assert [each["data"] for each in done] == ["mlp", "resnet18"]
    for each in done:
        metrics = each["metrics"]
        for action in ("train", "predict"):
            labels = {n.partition("/")[2] for n in metrics if n.startswith(f"{action}/")}
            assert labels == set(cost.TITLES)
            assert metrics[f"{action}/mc"] == 1
            assert all(metrics[f"{action}_ms/{label}"] > 0 for label in labels)
        assert 0 < metrics["share"] < 1.2
    # Five networks cost more than one, however busy the machine is.
    assert done[1]["metrics"]["train/ensemble"] > done[1]["metrics"]["train/none"]


def test_the_section_of_a_smoke_run_judges_nothing(done):
    found = cost.STUDY.section(done)
    assert {claim.verdict for claim in found.claims} == {"not testable here"}
    table = next(block for block in found.blocks if isinstance(block, Table))
    assert len([row for row in table.rows if row.source != PAPER]) == len(cost.TITLES)
    assert len(found.findings) == 2


def test_cases_do_what_they_are_named_after():
    tables = cost.tables("mlp", {"batch": 4, "rounds": 1, "draws": 3})
    torch.manual_seed(0)
    steps = tables["train"].build()
    assert list(steps) == list(tables["predict"].build()) == list(cost.TITLES)
    shapes = {label: case().shape for label, case in tables["predict"].build().items()}
    assert set(shapes.values()) == {torch.Size([4, 10])}
    for label, case in steps.items():
        case()  # a step
        assert label in cost.TITLES


def test_runs_wait_for_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_timed", lambda run, context: {})
    run = cost.runs("smoke", {})[0]
    ended = threading.Event()

    def other():
        cost.work(run, Context(tmp_path / "run"))
        ended.set()

    with locks.hold(tmp_path / "cost.lock"):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        assert not ended.wait(0.3)
    assert ended.wait(10)


def test_preset_paper_times_the_device_that_trains(monkeypatch):
    options = {preset: cost.runs(preset, {})[0].options for preset in studies.PRESETS}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    device = torch.device("meta")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    kinds = {preset: cost.device_of(own).type for preset, own in options.items()}
    assert kinds == {"smoke": "cpu", "cpu": "cpu", "paper": "meta"}
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert cost._finished(lambda: 7, device)() == 7
    assert waited == [device]  # else only the start of the work would be timed


def test_sizes():
    for preset in studies.PRESETS:
        runs = cost.runs(preset, {})
        assert len({run.id for run in runs}) == 2 * cost.SEEDS[preset]
    assert cost.SIZES["cpu"]["mlp"]["rounds"] >= 50
    assert cost.SIZES["cpu"]["resnet18"]["rounds"] >= 5
    assert cost.SIZES["paper"]["resnet18"]["width"] == 64


def test_claims_by_their_rules():
    some = [record(network, seed, RATIOS) for network in ("mlp", "resnet18") for seed in (0, 1)]
    claims = cost.STUDY.section(some).claims
    assert [claim.verdict for claim in claims] == [
        *["tested on a stand-in"] * 3,
        "not testable here",
    ]
    assert all(claim.why.startswith("Holds on a CPU, in place") for claim in claims[:3])
    slow = {**RATIOS, "gflowout": 2.8}
    some = [record("resnet18", seed, slow, predict=RATIOS) for seed in (0, 1)]
    found = cost.STUDY.section(some)
    assert [claim.why.startswith("Holds") for claim in found.claims[:3]] == [
        False,
        False,  # 2.8 is more than 4/3 of 1.8 and 1.6
        True,
    ]
    assert "It takes 2.80 times." in found.claims[0].why
    assert "GFlowOut 2.80, Contextual dropout (paper) 1.80" in found.claims[1].why
    # What the others are to one another is no matter of the claim on GFlowOut.
    between = {**RATIOS, "gflowout": 1.5, "contextual-paper": 1.8, "concrete": 1.2}
    some = [record("resnet18", seed, between, predict=between) for seed in (0, 1)]
    claims = cost.STUDY.section(some).claims[1:3]
    assert [claim.why.startswith("Holds") for claim in claims] == [True, False]


def test_figures_are_means_over_processes_with_the_papers_beside():
    some = [record("mlp", 0, RATIOS), record("mlp", 1, {**RATIOS, "gflowout": 3.0})]
    found = cost.STUDY.section(some)
    ratios, milliseconds = (block for block in found.blocks if isinstance(block, Table))
    row = next(row for row in ratios.rows if row.title == "GFlowOut")
    assert (row.cells[0].mean, row.cells[0].error, row.cells[0].runs) == (2.5, 0.5, 2)
    row = next(row for row in milliseconds.rows if row.title == "GFlowOut")
    assert row.cells[0].mean == 25
    assert any(row.source == PAPER for row in ratios.rows)
    assert "2.50 times as long with the MLP" in found.findings[0]
    assert any(isinstance(block, Bars) for block in found.blocks)


def test_a_busy_machine_is_told():
    def text(share):
        block = cost.STUDY.section([record("mlp", 0, RATIOS, share)]).blocks[0]
        assert isinstance(block, Text)
        return " ".join(block.paragraphs)

    assert "a run got 60 % of its core" in text(0.6)
    assert "other work" not in text(0.99)


def test_no_records():
    found = cost.STUDY.section([])
    assert not found.blocks
    assert {claim.verdict for claim in found.claims} == {"not testable here"}
