"""Studies of the paper from the command line, shown on toy studies with real records."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
import torch
from command_line import gflowout
from data_files import write_mnist

from gflowout.app import build as plans
from gflowout.cli import study_runs
from gflowout.data import store
from gflowout.runs import Inline, Pool, Run, read, run_study
from gflowout.studies import cost
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.content import Section
from gflowout.studies.framework.plan import Part
from gflowout.studies.framework.study import Study

ARMS = ("none", "mc", "gflowout")


def work(run, context):
    """Trials are best at the second value; seed 3 fails, and `broken` loses all its trials."""
    if run.seed == 3:
        raise RuntimeError("three")
    if run.options.get("broken"):
        return {"metrics": {"valid/nll": float("nan")}}
    if run.study == studies.TUNING:
        return {"metrics": {"valid/nll": abs(run.options["tuned"]["fit.lr"] - 0.2)}}
    return {"metrics": {"accuracy": run.options["tuned"]["fit.lr"]}}


def toy(name, data=("mnist", "cifar10"), seeds=(0, 1), broken=False, borrows=False):
    def tuning(preset):
        return [
            Run(
                studies.TUNING,
                arm,
                each,
                0,
                {"tuned": {"fit.lr": rate}, **({"broken": True} if broken else {})},
            )
            for each in data
            for arm in ARMS
            for rate in ((0.1,) if preset == "smoke" else (0.1, 0.2, 0.3))
        ]

    def runs(preset, chosen):
        return [
            Run(
                name,
                arm,
                each,
                seed,
                # As an ensemble that is made of networks without dropout.
                {"tuned": chosen[each, "none" if borrows and arm == "mc" else arm]},
            )
            for seed in seeds
            for each in data
            for arm in ARMS
        ]

    return Study(
        name, f"Title of {name}", "Does it?", "Table 9", "test_study_paper:work", runs,
        lambda records: Section(), tuning,
    )  # fmt: skip


def whole(preset, chosen):
    """One run that has all methods, as in the study of cost."""
    return [Run("whole", "all", "mlp", 0)]


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    made = {
        "good": toy("good"),
        "other": toy("other", data=("svhn",)),
        "bad-seed": toy("bad-seed", seeds=(0, 3)),
        "broken": toy("broken", broken=True),
        "borrows": toy("borrows", borrows=True),
    }
    for name, study in made.items():
        module = types.ModuleType(name)
        module.STUDY = study
        monkeypatch.setitem(sys.modules, f"gflowout.studies.{name.replace('-', '_')}", module)
    monkeypatch.setattr(studies, "STUDIES", tuple(made))
    return made


TIME = r"\d+\.\d m?s"  # of a run that does nothing, on a machine that may be busy


def command(name, out, *more, code=0, preset="cpu"):
    return gflowout(
        "study", "run", name, "--preset", preset, "--out", out, "--engine", "inline", "--quiet",
        "--retries", 0, *more, code=code,
    )  # fmt: skip


def test_trials_choose_the_options_of_the_runs_and_all_is_resumed(tmp_path):
    shown = command("good", tmp_path)
    assert re.search(r"good +30 +30 +0 +0 ", shown)
    runs = [record for record in read(tmp_path, "done") if record["study"] == "good"]
    assert len(runs) == 12
    assert {record["metrics"]["accuracy"] for record in runs} == {0.2}
    assert re.search(r"good +30 +0 +30 +0 ", command("good", tmp_path))
    listed = gflowout("study", "list", tmp_path)
    assert re.search(r"good +mnist +gflowout +2 +0 +0", listed)
    assert re.search(r"tuning +mnist +gflowout +3 +0 +0", listed)


def test_a_part_has_the_same_runs_as_the_whole(tmp_path, toys):
    command("good", tmp_path, "--methods", "mc,gflowout", "--data", "mnist", "--seeds", "1")
    some = read(tmp_path, "done")
    assert sorted((r["study"], r["data"], r["method"], r["seed"]) for r in some) == sorted(
        [("good", "mnist", arm, 1) for arm in ("mc", "gflowout")]
        + [("tuning", "mnist", arm, 0) for arm in ("mc", "gflowout") for _ in range(3)]
    )
    shown = command("good", tmp_path)
    assert re.search(r"good +30 +22 +8 +0 ", shown)  # nothing of the part is done anew


def test_a_part_takes_the_trials_of_other_arms_that_it_needs(toys):
    trials = planning.restricted(toys["borrows"], Part(["mc"], ["mnist"])).tuning("cpu")
    assert {(trial.data, trial.method) for trial in trials} == {("mnist", "mc"), ("mnist", "none")}
    trials = planning.restricted(toys["borrows"], Part(["gflowout"])).tuning("cpu")
    assert {trial.method for trial in trials} == {"gflowout"}
    assert planning.restricted(toys["good"], Part()).tuning("cpu") == toys["good"].tuning("cpu")


def test_all_goes_on_after_failures_and_sums_up(tmp_path):
    shown = command("all", tmp_path, code=1)
    assert re.search(r"good +30 +30 +0 +0 ", shown)
    assert re.search(r"other +15 +15 +0 +0 ", shown)
    # The trials are those of the first study: same data, same options.
    assert re.search(r"bad-seed +30 +6 +18 +6 ", shown)
    assert re.search(r"failed: bad-seed-mnist-mc-s3-\w+: RuntimeError: three", shown)
    assert re.search(r"broken +- +-", shown)
    assert re.search(r"broken: ValueError: no trial of none on mnist has a finite valid/nll", shown)
    assert f"failures in full, with tracebacks: {tmp_path}/*.failed-*.json" in shown
    assert len(list(tmp_path.glob("*.failed-*.json"))) == 6
    assert re.search(r"borrows +30 +12 +18 +0 ", shown)


def test_all_with_a_study_that_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "STUDIES", ("missing", "good"))
    shown = command("all", tmp_path, code=1, preset="smoke")
    assert "missing: ModuleNotFoundError: No module named 'gflowout.studies.missing'" in shown
    assert re.search(r"good +18 +18 +0 +0 ", shown)
    assert "missing: ModuleNotFoundError" in gflowout("study", "list")


def test_all_with_data_of_one_study_leaves_out_the_others(tmp_path):
    shown = command("all", tmp_path, "--data", "svhn")
    assert "good: left out, none of its runs is asked for" in shown
    assert re.search(r"other +15 +15 +0 +0 ", shown)
    assert not re.search(r"^broken +", shown, re.M)


def test_the_plan(tmp_path):
    plan = command("all", tmp_path / "new", "--dry-run")
    assert not (tmp_path / "new").exists()
    assert "good, cpu: 18 trials and 12 runs" in plan
    assert "bad-seed, cpu: 18 trials (18 of them counted above) and 12 runs" in plan
    assert "trials choose the options of the runs" in plan
    assert "  trials on mnist: 9 of 9 runs to do (not known before a run is done)" in plan
    assert plan.splitlines()[-1] == "estimated cost: not known"
    command("good", tmp_path, "--seeds", "0")
    plan = command("good", tmp_path, "--dry-run")
    assert "good, cpu: 18 trials and 12 runs" in plan
    assert "trials choose" not in plan
    assert re.search(rf"trials on mnist: 0 of 9 runs to do at {TIME} \(mean of 9 done\)", plan)
    assert re.search(rf"runs on mnist: 3 of 6 runs to do at {TIME} \(mean of 3 done\)", plan)
    assert re.match(rf"estimated cost: {TIME} of computing", plan.splitlines()[-1])


def test_a_price_from_a_few_steps(tmp_path, monkeypatch, toys):
    write_mnist(tmp_path / "mnist", count=60)
    options = {"data.source": "mnist", "data.batch_size": 20, "fit.epochs": 100}

    def runs(preset, chosen):
        return [
            Run("good", arm, "mnist", 0, {**options, "tuned": {"fit.lr": 0.1}})
            for arm in ("gflowout", "ensemble")
        ]

    for name in ("good", "other"):
        study = dataclasses.replace(toys[name], runs=runs, tuning=lambda preset: [])
        monkeypatch.setattr(sys.modules[f"gflowout.studies.{name}"], "STUDY", study)
    monkeypatch.setattr(studies, "STUDIES", ("good", "other"))
    plan = command("all", tmp_path / "o", "--dry-run", "--data-dir", tmp_path)
    assert "runs on mnist: 2 of 2 runs to do at" in plan
    assert "2 runs on networks that others train: scoring alone, which is not counted" in plan
    assert "gflowout, from a few steps; scoring comes on top" in plan
    assert plan.splitlines()[-1].startswith("estimated cost:")
    assert "not known" not in plan
    shown = command("good", tmp_path / "o", "--dry-run", "--data-dir", tmp_path / "nothing", code=2)
    assert "no such folder, and so no mnist" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are for Linux")
def test_a_few_steps_are_measured_as_runs_are_done(tmp_path, monkeypatch, toys):
    write_mnist(tmp_path / "mnist", count=60)
    options = {"data.source": "mnist", "data.batch_size": 20, "fit.epochs": 1}

    def runs(preset, chosen):
        return [Run("good", "mc", "mnist", 0, {**options, "tuned": {"fit.lr": 0.1}})]

    study = dataclasses.replace(toys["good"], runs=runs, tuning=lambda preset: [])
    monkeypatch.setattr(sys.modules["gflowout.studies.good"], "STUDY", study)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(planning, "start_up", lambda: 1e6)  # more than any run here can take
    totals = []
    monkeypatch.setattr(
        planning, "sum_up", lambda total, *more: totals.append(total) or "estimated cost"
    )
    threads, measured = set(), plans.plan
    monkeypatch.setattr(
        plans, "plan", lambda *given: threads.add(torch.get_num_threads()) or measured(*given)
    )
    plan = ("study", "run", "good", "--out", tmp_path / "o", "--data-dir", tmp_path, "--dry-run")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for more in (("cpu",), ("paper", "--engine", "inline"), ("paper",)):
        gflowout(*plan, "--preset", *more)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    assert threads == {1}  # as a run has
    copied, here, fresh = totals
    assert copied < 1e6
    assert here < 1e6
    assert fresh > 1e6
    assert planning.starting() == planning.starting(Pool(1)) == 1e6
    assert planning.starting(Pool(1, start="fork")) == planning.starting(Inline()) == 0


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_data_that_are_not_there_are_told_before_any_work(tmp_path, monkeypatch, toys, more):
    def needs(run):
        return [run.data]

    study = dataclasses.replace(toys["good"], needs=needs)
    monkeypatch.setattr(sys.modules["gflowout.studies.good"], "STUDY", study)
    write_mnist(tmp_path / "data" / "mnist", count=60)
    out = tmp_path / "o"
    shown = command("good", out, "--data-dir", tmp_path / "data", *more, code=2)
    assert shown.splitlines() == [
        f"--data-dir {tmp_path / 'data'}: no cifar10. Run `gflowout data get cifar10 --data-dir "
        f"{tmp_path / 'data'}`, or name another data directory: data_dir=..., --data-dir or "
        "$GFLOWOUT_DATA",
        "nothing was run",
    ]
    shown = command("good", out, "--data-dir", tmp_path / "no", *more, code=2)
    for line, name in zip(shown.splitlines(), ("mnist", "cifar10"), strict=False):
        assert line.startswith(f"--data-dir {tmp_path / 'no'}: no such folder, and so no {name}.")
    monkeypatch.setenv("GFLOWOUT_DATA", str(tmp_path / "data"))
    shown = command("good", out, *more, code=2)
    assert shown.startswith(f"$GFLOWOUT_DATA {tmp_path / 'data'}: no cifar10. Run `gflowout data g")
    assert not out.exists()
    command("good", out, "--data", "mnist")
    monkeypatch.delenv("GFLOWOUT_DATA")
    # What is done needs no data any more.
    command("good", out, "--data", "mnist", "--data-dir", tmp_path / "no", *more)


def test_data_that_the_studies_need(monkeypatch):
    monkeypatch.undo()

    def needed(name, preset, part=Part()):  # noqa: B008
        study = planning.restricted(studies.get(name), part)
        plan = planning.plan(study, preset, Path("no such folder"))
        return {each for run in (*plan.trials, *plan.runs) for each in study.needs(run)}

    assert needed("robustness", "smoke") == {"mnist", "frost"}
    assert needed("block-order", "paper") == {"cifar10", "cifar100", "frost"}
    assert needed("ood", "cpu") == {"mnist", "notmnist", "cifar10", "cifar100"}
    assert needed("ood", "paper", Part(data=["cifar10"])) == {"cifar10", "cifar100", "svhn"}
    assert needed("adaptation", "smoke") == {"cifar10"}
    assert needed("vqa", "cpu") == {"vqa-rad", "easy-vqa"}
    assert needed("clinical", "cpu") == {"eicu-demo"}
    assert needed("masks", "smoke") == {"mnist"}
    assert needed("masks", "cpu") == {"mnist", "cifar10"}
    assert needed("features", "smoke") == needed("cost", "cpu") == set()
    assert needed("features", "cpu") == {"eicu-demo"}
    assert needed("joint", "smoke") == set()
    assert needed("joint", "cpu") == {"mnist", "eicu-demo"}
    assert needed("ranks", "smoke") == {"vader"}


def test_all_at_preset_paper_are_the_papers_studies(monkeypatch):
    monkeypatch.undo()
    paper = ["robustness", "block-order", "ood", "adaptation", "vqa", "clinical", "masks", "cost"]
    assert study_runs.names_of("all", "paper") == paper
    assert all(studies.get(name).paper for name in paper)
    others = set(study_runs.names_of("all", "cpu")) - set(paper)
    assert others == {"features", "joint", "ranks", "regimes"}
    assert not any(studies.get(name).paper for name in others)
    assert study_runs.names_of("features", "paper") == ["features"]  # by name


def test_data_of_a_package_need_no_directory(tmp_path, monkeypatch):
    package = tmp_path / "easy_vqa" / "data" / "train"
    package.mkdir(parents=True)
    (tmp_path / "easy_vqa" / "__init__.py").touch()
    (package / "questions.json").write_text("[]")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "easy_vqa", raising=False)
    assert store.is_there("easy-vqa", tmp_path / "no")
    assert not store.is_there("mnist", tmp_path / "no")


def test_the_list_says_what_studies_ask_and_their_sizes():
    shown = gflowout("study", "list")
    assert "good: Title of good (the paper's Table 9)\n    Does it?\n" in shown
    assert "smoke 6 trials + 12 runs; cpu 18 trials + 12 runs; paper 18 trials" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["god", "--preset", "cpu"], "STUDY must be a file of YAML, all, or one of .*mean 'good'"),
        (["good"], "good is a study of the paper: say how large with --preset"),
        (["good", "--preset", "big"], "big"),
        (["good", "--preset", "cpu", "--set", "fit.lr=1"], "--set is for study files"),
        (["good", "--preset", "cpu", "--methods", "gflow"], "--methods must be among none, mc, "
         "gflowout, got gflow; did you mean 'gflowout'"),
        (["good", "--preset", "cpu", "--data", "svhn"], "--data must be among mnist, cifar10"),
        (["good", "--preset", "cpu", "--seeds", "7"], "--seeds must be among 0, 1, got 7"),
        (["good", "--preset", "cpu", "--methods", ""], "--methods must name at least one, got ''"),
        (["good", "--preset", "cpu", "--data", ","], "--data must name at least one, got ','"),
        (["good", "--preset", "cpu", "--seeds", ""], "--seeds must name at least one, got ''"),
        (["all", "--preset", "cpu", "--data", "svhn", "--seeds", "3"],
         "no run has these --methods, --data and --seeds together"),
        (["whole", "--preset", "cpu", "--methods", "mc"],
         "--methods must be left out: this study does all of them in one run, got mc"),
        (["good", "--preset", "cpu", "--seeds", "a"], "--seeds must be numbers such as 0,1,2"),
        (["x.yaml", "--preset", "cpu"], "--preset is for studies of the paper"),
        (["x.yaml", "--methods", "mc"], "--methods is for studies of the paper"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments, message, tmp_path, monkeypatch, toys):
    module = types.ModuleType("whole")
    module.STUDY = dataclasses.replace(
        toys["good"], name="whole", runs=whole, tuning=lambda preset: []
    )
    monkeypatch.setitem(sys.modules, "gflowout.studies.whole", module)
    monkeypatch.setattr(studies, "STUDIES", (*toys, "whole"))
    shown = gflowout("study", "run", *arguments, "--out", tmp_path / "o", code=2)
    assert re.search(message, shown)
    assert not (tmp_path / "o").exists()


def test_one_of_a_kind_is_told_in_the_singular(tmp_path, monkeypatch, toys):
    def tuning(preset):
        return toys["good"].tuning(preset)[:1]

    study = dataclasses.replace(toys["good"], runs=whole, tuning=tuning)
    monkeypatch.setattr(sys.modules["gflowout.studies.good"], "STUDY", study)
    plan = command("good", tmp_path / "o", "--dry-run")
    assert "good, cpu: 1 trial and 1 run, records in" in plan
    assert "smoke 1 trial + 1 run;" in gflowout("study", "list")


def test_the_methods_of_the_study_of_cost_are_not_a_choice():
    assert {run.method for run in cost.runs("smoke", {})} == {planning.WHOLE}


def test_small_runs_are_copies_of_this_process(tmp_path):
    # The toys are known to this process alone: a fresh one could not import them.
    shown = gflowout(
        "study", "run", "good", "--preset", "smoke", "--out", tmp_path, "--jobs", 2, "--quiet"
    )
    assert re.search(r"good +18 +18 +0 +0 ", shown)


def test_the_data_directory_reaches_the_runs_and_is_forgotten(tmp_path, monkeypatch):
    seen, do = [], work

    def look(run, context):
        seen.append(os.environ.get("GFLOWOUT_DATA"))
        return do(run, context)

    monkeypatch.setattr(sys.modules["test_study_paper"], "work", look)
    command("good", tmp_path, "--data-dir", tmp_path, preset="smoke")
    assert set(seen) == {str(tmp_path)}
    assert "GFLOWOUT_DATA" not in os.environ


# The page on studies


def page():
    return (Path(__file__).parents[2] / "docs/results/studies.md").read_text(encoding="utf-8")


def test_the_page_names_all_studies_and_its_commands_are_good(monkeypatch):
    monkeypatch.undo()  # the real studies
    for name in studies.STUDIES:
        assert f"\n| `{name}` |" in page()
    shell = "".join(re.findall(r"```sh\n(.*?)```", page(), re.S))
    lines = [shlex.split(line, comments=True) for line in shell.splitlines()]
    ours = [words[3:] for words in lines if words[:3] == ["gflowout", "study", "run"]]
    assert len(ours) == 4
    for name, *rest in ours:
        assert study_runs.names_of(name)
        assert rest[rest.index("--preset") + 1] in studies.PRESETS
    assert all(f"| `{preset}` |" in page() for preset in studies.PRESETS)


def test_the_code_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    compares, adds = re.findall(r"```python\n(.*?)```", page(), re.S)
    runs = [
        Run("robustness", arm, "mnist", seed) for arm in ("mc", "gflowout") for seed in range(3)
    ]
    monkeypatch.setattr(sys.modules[__name__], "work", rotated)
    run_study(
        runs, f"{__name__}:work", tmp_path / "results" / "cpu", engine="inline", progress=False
    )
    monkeypatch.chdir(tmp_path)
    exec(compares, {})
    assert capsys.readouterr().out.startswith("GFlowOut is better than mc in accuracy on rotated")
    space = {}
    exec(adds, space)
    study = space["STUDY"]
    for preset in studies.PRESETS:
        plan = planning.plan(study, preset, tmp_path / "no")
        assert plan.trials
        assert {run.study for run in plan.runs} == {"draws"}
    assert not study.section([]).blocks
    metrics = {f"{count}/accuracy": count / 100 for count in space["COUNTS"]}
    record = {"data": "mnist", "method": "mc", "seed": 0, "metrics": metrics}
    (table,) = study.section([record]).blocks
    assert [cell.mean for cell in table.rows[0].cells] == [0.01, 0.05, 0.2]


def rotated(run, context):
    better = run.method == "gflowout"
    return {"metrics": {"rotated/accuracy": 0.3 + 0.1 * better + run.seed / (100 + better)}}
