"""Whether runs of two folders have the same numbers: ``gflowout study compare``."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from command_line import gflowout

from gflowout.report.summary import difference, repeats

TOY = "name: toy\nwork: tuning_work:scored\nbase: {data: numbers, fit.lr: 0.5}\nseeds: 2\n"


def record(name: str, study: str = "s", cpu: str = "a", **metrics: object) -> dict:
    return {"id": name, "study": study, "data": "d", "metrics": metrics, "machine": {"cpu": cpu}}


def test_equal_runs_of_both_folders_are_counted() -> None:
    first = [record("a", nll=0.5), record("b", nll=0.25), record("c", nll=1.0)]
    second = [record("b", nll=0.25), record("a", nll=0.75, cpu="b"), record("d", nll=3.0)]
    (found,) = repeats(first, second)
    assert (found.runs, found.same, found.largest) == (2, 1, 0.25)
    assert (found.metric, found.run, found.machines) == ("nll", "a", True)
    assert repeats(first, second, tolerance=0.25)[0].same == 2
    (alone,) = repeats(first[1:], second)
    assert (alone.same, alone.metric, alone.run, alone.machines) == (1, "", "", False)


@pytest.mark.parametrize(
    ("first", "second", "largest"),
    [
        ({"nll": math.nan}, {"nll": math.nan}, 0.0),
        ({"nll": math.inf}, {"nll": math.inf}, 0.0),
        ({"nll": math.nan}, {"nll": 1.0}, math.inf),
        ({"nll": 1.0}, {"nll": math.inf}, math.inf),
        ({"nll": 1.0, "ece": 2.0}, {"nll": 1.0}, math.inf),
        ({"nll": 1.0}, {"nll": 1.0, "ece": 2.0}, math.inf),
        ({"curve": [1.0, [2.0, 3.0]]}, {"curve": [1.0, [2.0, 3.5]]}, 0.5),
        ({"curve": [1.0]}, {"curve": [1.0, 2.0]}, math.inf),
        ({"by": {"snow": 1.0}}, {"by": {"snow": 1.5}}, 0.5),
        ({"cost/train": 1.0}, {"cost/train": 2.0}, 0.0),
    ],
)
def test_differences_of_all_kinds_of_figures(first: dict, second: dict, largest: float) -> None:
    found, name = difference(first, second)
    assert found == largest
    assert bool(name) == (largest > 0)


def test_times_of_the_study_of_cost_are_left_out() -> None:
    assert repeats([record("a", "cost", step=1.0)], [record("a", "cost", step=2.0)]) == []


def test_command(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        gflowout("study", "run", tmp_path / "toy.yaml", "--out", out, "--engine", "inline")
    said = gflowout("study", "compare", first, second)
    assert said.splitlines()[1].split() == ["toy", "numbers", "2", "2", "0"]
    assert said.splitlines()[-1] == "2 of 2 runs have the same numbers."

    assert "Done in one folder alone: 0 and 0 runs" in said

    path = next(second.glob("toy-*.json"))
    path.unlink()
    said = gflowout("study", "compare", first, second)
    assert "Done in one folder alone: 1 and 0 runs; failed in" in said
    assert "1 of 1 runs" in said
    for each in second.glob("toy-*.json"):
        each.unlink()
    said = gflowout("study", "compare", first, second, code=2)
    assert "no run with numbers to compare is in both" in said
    assert "nowhere: no such folder" in gflowout("study", "compare", first, "nowhere", code=2)
    plan = first / "runs.jsonl"
    assert "runs.jsonl: not a folder" in gflowout("study", "compare", first, plan, code=2)
    assert "runs.jsonl: not a folder" in gflowout("study", "list", plan, code=2)


def test_command_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gflowout import runs

    made = {"one": [record("toy-0", nll=0.5)], "two": [record("toy-0", cpu="b", nll=0.625)]}
    for name in made:
        (tmp_path / name).mkdir()
    lost = {"one": [record("toy-2"), record("toy-3")], "two": [record("toy-1")]}

    def fake(folder: Path, status: str) -> list[dict]:
        return (made if status == "done" else lost)[folder.name]

    monkeypatch.setattr(runs, "read", fake)
    one, two = tmp_path / "one", tmp_path / "two"
    said = gflowout("study", "compare", one, two, code=1).splitlines()
    assert said[1].split() == ["s", "d", "1", "0", "0.125", "nll", "toy-0"]
    assert said[2].startswith("Some runs were on another kind of processor")
    assert said[3].endswith(f"; failed in {one}: 2; failed in {two}: 1.")
    assert said[4] == "0 of 1 runs have the same numbers."
    assert "1 of 1 runs" in gflowout("study", "compare", one, two, "--tolerance", "0.2")


@pytest.mark.filterwarnings("always::gflowout.runs.RecordWarning")
def test_damaged_records_do_not_pass(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY.replace("seeds: 2", "seeds: 4"))
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        gflowout("study", "run", tmp_path / "toy.yaml", "--out", out, "--engine", "inline")
    a, b, c, _ = sorted(second.glob("toy-*.json"))
    (first / c.name).write_text("")
    said = gflowout("study", "compare", first, second, code=1)
    assert f"Damaged: 1 file in {first} is not a whole record." in said
    assert "3 of 3 runs have the same numbers." in said
    a.write_text(a.read_text()[:50])
    b.write_text(b.read_text().replace("valid", "value"))
    said = gflowout("study", "compare", first, second, code=1)
    assert f"Damaged: 2 files in {second} are not whole records." in said
    assert f"Damaged: 1 file in {first} is not a whole record." in said
    assert "1 of 1 runs have the same numbers." in said


def test_runs_of_the_study_of_cost_are_told_as_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gflowout import runs

    times = [record(name, "cost", step=1.0) for name in ("cost-0", "cost-1")]
    made = {"one": [record("toy-0", nll=0.5), *times], "two": [record("toy-0", nll=0.5), times[0]]}
    for name in made:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(
        runs, "read", lambda folder, status: made[folder.name] if status == "done" else []
    )
    one, two = tmp_path / "one", tmp_path / "two"
    said = gflowout("study", "compare", one, two)
    assert "1 run of cost has times alone and was left out." in said
    assert "Done in one folder alone: 1 and 0 runs" in said
    assert "1 of 1 runs have the same numbers." in said
    made["two"] = times
    said = gflowout("study", "compare", one, two, code=2)
    assert "2 runs of cost have times alone and were left out." in said
    assert "no run with numbers to compare is in both" in said
