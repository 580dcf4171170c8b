import csv
import io
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import tuning_work
from command_line import gflowout, runner
from data_files import pixels, write_idx, write_mnist

from gflowout.app import config as configs
from gflowout.app import yamls
from gflowout.app.config import ConfigError
from gflowout.cli import commands, options
from gflowout.report import summary
from gflowout.runs import Run, locks, read
from gflowout.studies.framework import files
from gflowout.studies.framework import plan as planning
from gflowout.tuning import read_space

TOY = "name: toy\nwork: tuning_work:scored\nbase: {data: numbers, fit.lr: 0.5}\n"


def written(path, text):
    path.write_text(text)
    return path


# Study files


def test_a_study_file_is_methods_data_seeds_and_options(tmp_path):
    written(
        tmp_path / "base.yaml",
        "data: {source: mnist, limit: 200}\nmethod: {name: gflowout, options: {beta: 0.5}}\n"
        "fit: {epochs: 3}\n",
    )
    written(
        tmp_path / "best-mc.yaml", "method: {name: mc, options: {rate: 0.3}}\nfit: {lr: 7e-3}\n"
    )
    path = written(
        tmp_path / "digits.yaml",
        "base: base.yaml\nmethods: {mc: best-mc.yaml, gflowout: {fit.generator_lr: 2e-3}, none: }\n"
        "data: {mnist: , small: {source: kmnist, limit: 50}}\nseeds: [3, 5]\n"
        "options: {fit.epochs: [1, 2], backbone.hidden: [[8], [9]]}\ntest: false\n",
    )
    study = files.read_study(path)
    assert study.name == "digits"
    assert len(study.runs) == len({run.id for run in study.runs}) == 3 * 2 * 2 * 2 * 2
    assert [run.seed for run in study.runs] == [3] * 24 + [5] * 24
    for run in study.runs:
        config = configs.from_flat({k: v for k, v in run.options.items() if k != "test"})
        assert config.method.name == run.method
        assert config.seed == run.seed == run.options["seed"]
        assert run.options["test"] is False
        sources = {"mnist": ("mnist", 200), "small": ("kmnist", 50)}
        assert (config.data.source, config.data.limit) == sources[run.data]
        lr = {"mc": (7e-3, 1e-3), "gflowout": (1e-3, 2e-3), "none": (1e-3, 1e-3)}[run.method]
        assert (config.fit.lr, config.fit.generator_lr) == lr
        wanted = {"mc": {"rate": 0.3}, "gflowout": {"beta": 0.5}, "none": {}}[run.method]
        assert config.method.options == wanted  # beta stays with its own method
    cells = {(run.options["fit.epochs"], run.options["backbone.hidden"]) for run in study.runs}
    assert cells == {(1, (8,)), (1, (9,)), (2, (8,)), (2, (9,))}


def test_a_study_of_the_base_alone(tmp_path):
    path = written(tmp_path / "s.yaml", "base: {data: mnist, method: mc}\n")
    (run,) = files.read_study(path).runs
    assert (run.study, run.method, run.data, run.seed) == ("s", "mc", "mnist", 0)
    assert run.options["test"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: [mc]", "s.yaml: method: there is no such key; .*; did you mean 'methods'?"),
        ("base: no.yaml", "no.yaml: cannot be read"),
        ("base: 3", "base must be the path of a configuration or options by key, got 3"),
        ("- 1", "s.yaml: must hold keys with values"),
        ("a: [", "s.yaml: not YAML"),
        ("base: {data: mnist}\nmethods: []", "methods must be a list of names"),
        ("base: {data: mnist}\nmethods: [mcc]", "mcc: .*got 'mcc'; did you mean 'mc'?"),
        (
            "base: {data: mnist}\nmethods: {mc: 3}",
            "mc must have a configuration file or options by",
        ),
        ("base: {data: mnis}", "data.source must be one of .*did you mean 'mnist'?"),
        ("base: {data: mnist}\nseeds: 0", "seeds must be how many, or a list of integers"),
        ("base: {data: mnist}\nseeds: [a]", "seeds must be how many, or a list of integers"),
        ("base: {data: mnist}\noptions: {fit.lr: 1}", "options.fit.lr must be a list of values"),
        ("base: {data: mnist}\noptions: {fit.l: [1]}", "fit.l: there is no such key"),
        ("base: {data: mnist}\ntest: maybe", "test must be true or false, got 'maybe'"),
    ],
)
def test_errors_of_study_files(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        files.read_study(written(tmp_path / "s.yaml", text))
    assert re.search(
        message, gflowout("study", "run", tmp_path / "s.yaml", "--out", tmp_path / "o", code=2)
    )
    assert not (tmp_path / "o").exists()


# Runs, lists and reports


def test_run_list_report(tmp_path):
    path = written(tmp_path / "toy.yaml", TOY + "methods: [mc, gflowout]\nseeds: [0, 1, 2]\n")
    out = tmp_path / "results"
    plan = gflowout("study", "run", path, "--out", out, "--dry-run", "--engine", "inline")
    assert "toy: 6 runs" in plan
    assert "mc on numbers: 3 of 3 runs to do (not known before a run is done)" in plan
    assert not out.exists()
    shown = gflowout("study", "run", path, "--out", out, "--engine", "inline")
    assert "6 runs: 6 done, 0 done before, 0 failed" in shown
    assert "6 done before" in gflowout("study", "run", path, "--out", out, "--engine", "inline")
    plan = gflowout("study", "run", path, "--out", out, "--dry-run", "--engine", "inline")
    assert "mc on numbers: 0 of 3 runs to do" in plan
    cost = r"estimated cost: (\d+\.\d m?s) of computing, about (\d+\.\d m?s) with 1 at once"
    assert re.search(cost, plan)
    rows = [line.split() for line in gflowout("study", "list", out).splitlines()]
    assert rows[1:] == [
        ["toy", "numbers", "gflowout", "3", "0", "0"],
        ["toy", "numbers", "mc", "3", "0", "0"],
    ]
    table = gflowout("report", out).splitlines()
    assert [cell.strip() for cell in table[0].strip("|").split("|")] == [
        "data",
        "method",
        "seeds",
        "valid/nll",
        "test/nll",
    ]
    # Seeds 0, 1, 2: standard deviation 1, so the error is 1 / sqrt(3); test scores have twice that.
    assert [cell.strip() for cell in table[3].strip("|").split("|")] == [
        "numbers",
        "mc",
        "3",
        "1.5000 ± 0.5774",
        "2.5000 ± 1.1547",
    ]
    content = gflowout("report", out, "--format", "csv")
    first, second = csv.DictReader(io.StringIO(content))
    assert first["method"] == "gflowout"
    assert second["seeds"] == "0 1 2"
    assert float(first["test/nll mean"]) == 12.5
    assert float(second["valid/nll error"]) == pytest.approx(1 / math.sqrt(3))
    target = tmp_path / "table.csv"
    assert "2 rows from 6 runs" in gflowout("report", out, "--format", "csv", "--out", target)
    assert target.read_text() == content


def test_failed_and_missing_runs_are_told(tmp_path):
    path = written(tmp_path / "toy.yaml", TOY + "methods: [mc]\nseeds: [0, 7]\n")
    out = tmp_path / "results"
    arguments = ("study", "run", path, "--out", out, "--engine", "inline", "--retries", 0)
    shown = gflowout(*arguments, code=1)
    assert "1 done, 0 done before, 1 failed" in shown
    assert "RuntimeError: seven" in shown
    shown = gflowout("study", "list", out, code=1)
    assert re.search(r"failed: toy-numbers-mc-s7-\w+: RuntimeError: seven", shown)
    assert len(read(out, "done")) == 1
    next(out.glob("toy-numbers-mc-s0-*.json")).unlink()
    shown = gflowout("study", "list", out, code=1)
    assert re.search(r"toy +numbers +mc +0 +1 +1", shown)
    assert re.search(r"missing: toy-numbers-mc-s0-", shown)
    assert "no run is done here" in gflowout("report", out, code=1)
    for wrong in (("study", "list"), ("report",)):
        assert "no such folder" in gflowout(*wrong, tmp_path / "no", code=2)
    (tmp_path / "empty").mkdir()
    assert "no runs here" in gflowout("study", "list", tmp_path / "empty")


def test_seeds_are_averaged_and_options_are_not(tmp_path):
    text = TOY + "methods: [mc]\nseeds: 2\noptions: {fit.lr: [10.0, 0.25]}\n"
    out = tmp_path / "results"
    gflowout(
        "study", "run", written(tmp_path / "toy.yaml", text), "--out", out, "--engine", "inline"
    )
    found = summary.groups(read(out, "done"))
    assert [(each.options, each.metrics["valid/nll"]) for each in found] == [
        ({"fit.lr": 0.25}, [0.25, 1.25]),
        ({"fit.lr": 10.0}, [10.0, 11.0]),
    ]
    assert "fit.lr=0.25" in gflowout("report", out)


def test_damaged_records_are_told_in_one_line(tmp_path):
    path, out = written(tmp_path / "toy.yaml", TOY + "seeds: [0, 1]\n"), tmp_path / "results"
    command = ("study", "run", path, "--out", out, "--engine", "inline", "--quiet")
    gflowout(*command)
    first = min(out.glob("*.json"))
    text = first.read_text()
    for words in (("report", out), ("study", "list", out), command):
        first.write_text(text[:90])
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            result = runner.invoke(commands.app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        told = result.stderr.splitlines()
        assert told[0].startswith(f"warning: {out}: left out 1 files that are not whole records: ")
        assert len(set(told)) == len(told)
        assert all(line.startswith("warning: ") for line in told)
    assert first.read_text() != text[:90]


def test_set_goes_before_the_file_and_metrics_can_be_chosen(tmp_path):
    path = written(tmp_path / "toy.yaml", TOY + "methods: {mc: {fit.lr: 0.75}}\nseeds: 2\n")
    out = tmp_path / "results"
    arguments = ("study", "run", path, "--out", out, "--engine", "inline")
    gflowout(*arguments, "--set", "fit.lr=1e-1", "--data-dir", tmp_path)
    assert {record["options"]["fit.lr"] for record in read(out)} == {0.1}
    assert {record["options"]["data.directory"] for record in read(out)} == {str(tmp_path)}
    head = gflowout("report", out, "--metric", "test/*").splitlines()[0]
    assert "test/nll" in head
    assert "valid/nll" not in head
    wrong = gflowout("report", out, "--metric", "test/nl", code=2)
    assert "metric must be one of valid/nll, test/nll, got 'test/nl'; did you mean 'test" in wrong
    assert "seed is a list in the study file" in gflowout(*arguments, "--set", "seed=3", code=2)
    assert "fit.lr: '[' is not YAML" in gflowout(*arguments, "--set", "fit.lr=[", code=2)
    assert "must be key=value" in gflowout(*arguments, "--set", "seed", code=2)


def test_wrong_usage(tmp_path):
    path = written(tmp_path / "toy.yaml", TOY)
    out = ("--out", tmp_path / "o")
    for extra, message in (
        (("--address", "auto"), "--address is for --engine ray, got --engine pool"),
        (("--engine", "inline", "--jobs", "2"), "--jobs must be 1 with --engine inline, got 2"),
        (("--engine", "poll"), "poll"),
    ):
        assert message in gflowout("study", "run", path, *out, *extra, code=2)


def test_devices_and_folders_of_the_options_reach_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ray = options.run_options(options.EngineName.ray, None, 0.5, "auto", tmp_path, True).engine
    assert (ray.address, ray.gpus) == ("auto", 0.5)
    assert ray.runtime_env == {"working_dir": str(tmp_path)}
    for gpus, jobs in ((None, 2), (0.5, 4), (2, 1)):
        pool = options.run_options(options.EngineName.pool, None, gpus, None, None, True).engine
        assert (pool.jobs, options.workers(pool)) == (jobs, jobs)
    for name, gpus, folder in (("inline", 1, None), ("pool", None, tmp_path)):
        with pytest.raises(ValueError, match="is for --engine"):
            options.run_options(options.EngineName(name), None, gpus, None, folder, True)


@pytest.mark.parametrize("command", ["run", "tune"])
def test_options_that_are_refused_at_the_door(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "toy.yaml", TOY)
    written(tmp_path / "afile", "kept")
    begin = ("study", "run", "toy.yaml") if command == "run" else ("tune", "--config", "toy.yaml")
    before = set(tmp_path.iterdir())
    for out in ("afile", "afile/sub", "afile/sub/sub"):
        said = gflowout(*begin, "--out", out, code=2)
        assert "--out" in said
        assert "afile is a file, not a folder" in said
    said = gflowout(*begin, "--out", "", code=2)
    assert "--out" in said
    assert "must name a folder, got nothing" in said
    for option in ("--time-limit", "--memory-limit"):
        for value in ("0", "-1", "nan", "inf"):
            said = gflowout(*begin, "--out", "o", option, value, code=2)
            assert option in said
            assert f"must be a number above 0, got {value}" in said
    assert set(tmp_path.iterdir()) == before


def test_a_folder_in_which_another_study_is_at_work(tmp_path):
    path, out = written(tmp_path / "toy.yaml", TOY), tmp_path / "o"
    out.mkdir()
    with locks.hold(out / ".lock"):
        said = gflowout("study", "run", path, "--out", out, "--engine", "inline", code=2)
    assert "another study is at work in this folder" in said


def test_data_of_a_study_file_that_are_not_there(tmp_path):
    path = written(tmp_path / "s.yaml", "base: {data: mnist, method: mc}\nmethods: [mc, none]\n")
    out = tmp_path / "o"
    for more in ((), ("--dry-run",)):
        shown = gflowout(
            "study", "run", path, "--out", out, "--data-dir", tmp_path, *more, code=2
        )  # fmt: skip
        assert shown.startswith(f"--data-dir {tmp_path}: no mnist. Run `gflowout data get mnist")
        assert shown.count("gflowout data get") == 1
    assert not out.exists()


def test_interrupted_and_resumed(tmp_path):
    path = written(tmp_path / "toy.yaml", TOY + "methods: [mc]\nseeds: [0, 8]\n")
    out = tmp_path / "results"
    command = [sys.executable, "-m", "gflowout.cli", "study", "run", str(path), "--out", str(out)]
    around = {**os.environ, "PYTHONPATH": str(Path(tuning_work.__file__).parent)}
    process = subprocess.Popen(
        [*command, "--jobs", "1"], env=around, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 40
    while not (list(out.glob("*-s0-*.json")) and list(out.glob(".scratch/*-s8-*"))):
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "interrupted: the same command goes on where this one stopped" in told
    assert re.search(r"numbers +mc +1 +0 +1", gflowout("study", "list", out))


def test_the_old_study_is_still_there():
    assert "estimators" in gflowout("study", "--help")
    assert "Gradients per estimator" in gflowout("study", "estimators", "--help")


def test_cost_is_measured_on_two_epochs(monkeypatch):
    assert planning.start_up() > 0.2  # a process that imports torch
    monkeypatch.setattr(planning, "start_up", lambda: 0.25)
    clock = [0.0]  # which moves when the work sleeps, so that a busy machine changes nothing
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    run = Run("s", "mc", "d", 0, {"fit.epochs": 10, "before": 0.3, "epoch": 0.1, "tells": True})
    price = planning.measure(run, "tuning_work:epochs")
    assert price.seconds == pytest.approx(0.25 + 0.3 + 10 * 0.1, abs=1e-3)
    silent = Run("s", "mc", "d", 0, {**run.options, "tells": False})
    price = planning.measure(silent, "tuning_work:epochs")
    assert price.seconds == pytest.approx(0.25 + (0.3 + 2 * 0.1) * 5, abs=1e-3)
    assert "at most" in price.source
    broken = planning.measure(Run("s", "mc", "d", 7, {"fit.epochs": 1}), "tuning_work:scored")
    assert (broken.seconds, broken.source) == (None, "a short run failed: RuntimeError: seven")


# Tuning from the command line


def table(path, seed=0, rows=120):
    numbers = random.Random(seed)
    lines = ["a,b,label"]
    for _ in range(rows):
        a, b = numbers.gauss(0, 1), numbers.gauss(0, 1)
        lines.append(f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def config_of(tmp_path, data, epochs=2):
    content = {
        "data": data,
        "backbone": {"name": "mlp", "hidden": [8]},
        "method": {"name": "gflowout", "options": {"hidden": [8]}},
        "fit": {"epochs": epochs, "valid_samples": 2, "accelerator": "cpu"},
    }
    return written(tmp_path / "config.yaml", yamls.text(content))


def test_tune_a_table_from_plan_to_best(tmp_path):
    data = {"source": str(table(tmp_path / "t.csv")), "target": "label", "batch_size": 40}
    config, out = config_of(tmp_path, data), tmp_path / "tuned"
    space = written(
        tmp_path / "space.yaml",
        "fit.lr: log:1e-3:1e-1\ngflowout:method.options.beta: [0.1, 1]\n",
    )
    arguments = ("tune", "--config", config, "--epochs", 1, "--space", space, "--methods")
    arguments += ("mc,gflowout", "--trials", 2, "--out", out)
    plan = gflowout(*arguments, "--dry-run", "--engine", "inline")
    assert "random search, 2 trials for each of mc, gflowout; valid/nll minimized" in plan
    assert "gflowout on t: 2 of 2 runs to do at" in plan
    assert "measured once" in plan
    assert re.search(r"estimated cost: [\d.:]+( m?s)? of computing", plan)
    assert not out.exists()
    shown = gflowout(*arguments, "--engine", "inline")
    found = read(out, "done")
    assert [record["method"] for record in found].count("mc") == 2 == len(found) / 2
    assert {record["options"]["fit.epochs"] for record in found} == {1}
    for method in ("mc", "gflowout"):
        own = [record for record in found if record["method"] == method]
        best = min(own, key=lambda record: record["metrics"]["valid/nll"])
        assert re.search(rf"{method} +2 +0 +{best['metrics']['valid/nll']:.4f}", shown)
        chosen = configs.flat(configs.read(out / f"best-{method}.yaml"))
        assert chosen == {k: v for k, v in best["options"].items() if k != "test"}
        assert ("method.options.beta" in chosen) == (method == "gflowout")
    assert "mean of 2 done" in gflowout(*arguments, "--dry-run")
    lost = next(out.glob("tune-t-mc-*.json"))
    lost.unlink()
    again = gflowout(*arguments, "--jobs", 1)  # in a process of its own, with the same result
    assert read(out)[-1]["method"] == "mc"
    assert lost.exists()
    assert [record["metrics"] for record in read(out)] == [record["metrics"] for record in found]
    assert [row.split()[:6] for row in again.splitlines()[-4:-1]] == [
        row.split()[:6] for row in shown.splitlines()[-4:-1]
    ]
    assert yamls.parse((out / "tuned.yaml").read_text())["methods"]["mc"]["spread"]["trials"] == 2


def test_tuning_does_not_depend_on_test_data(tmp_path):
    found = []
    for name in ("one", "other"):
        folder = tmp_path / name / "mnist"
        write_mnist(folder, count=60)
        if name == "other":  # other pictures, and all labels wrong
            for path in folder.glob("t10k*"):
                path.unlink()
            write_idx(folder / "t10k-images-idx3-ubyte.gz", pixels(60, 1, 28, 9)[:, 0])
            write_idx(folder / "t10k-labels-idx1-ubyte.gz", (pixels(60, 1, 1, 9) % 10).flatten())
        config = config_of(tmp_path, {"source": "mnist", "directory": str(tmp_path / name)}, 1)
        out = tmp_path / f"tuned-{name}"
        gflowout("tune", "--config", config, "--space", "fit.lr=log:1e-3:1e-1", "--trials", 2,
                 "--search", "optuna", "--out", out, "--engine", "inline")  # fmt: skip
        found.append({record["options"]["fit.lr"]: record["metrics"] for record in read(out)})
    assert found[0] == found[1]
    assert not [name for metrics in found[0].values() for name in metrics if "test" in name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space", "fit.lr=log:1"], "fit.lr=log:1: log takes LOW:HIGH"),
        (["--space", "fit.learn=1,2"], "gflowout: fit.learn: there is no such key"),
        (["--space", "no.yaml"], "no.yaml: no such file"),
        (["--space", "method.options.beta=1,2", "--methods", "mc,gflowout"], "mc: .*no option"),
        (["--space", "gflowout:method.options.beta=1,-2"], "gflowout: method.options.beta must"),
        (["--space", "fit.lr=1e-3,1e-2"], "trials must be at most 2"),
        (["--space", "fit.lr=1,2", "--score", "test/nll"], "score must be one of validation data"),
        (["--space", "fit.lr=1,2", "--set", "fit.epoch=3"], "fit.epoch: there is no such key"),
        (["--space", "fit.lr=1,2", "--methods", "mcc"], "did you mean 'mc'"),
        (
            ["--space", "fit.lr=1,2", "--data-dir", "."],
            r"--data-dir \.: no mnist(.|\n)*nothing was",
        ),
    ],
)
def test_wrong_usage_of_tune(arguments, message, tmp_path):
    out = tmp_path / "tuned"
    trials = () if "trials" in message else ("--trials", 2)
    shown = gflowout("tune", "--data", "mnist", *arguments, *trials, "--out", out, code=2)
    assert re.search(message, shown)
    assert not out.exists()


def test_the_page_on_tuning_does_as_it_says(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs/guides/experiments.md").read_text()
    page, _, _ = text.partition("\n## Reports\n")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.S):
        written(tmp_path / name, text)
    write_mnist(tmp_path / "data" / "mnist", count=80)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GFLOWOUT_DATA", str(tmp_path / "data"))
    shell = "".join(re.findall(r"```sh\n(.*?)```", page, re.S)).replace("\\\n", " ")
    quick = {  # the same commands, in less time
        "tune": ["--trials", 2, "--epochs", 1, "--engine", "inline"],
        "run": ["--set", "fit.epochs=1", "--engine", "inline"],
    }
    shown = []
    for line in shell.splitlines():
        _, *words = shlex.split(line)
        more = next((quick[word] for word in words[:2] if word in quick), [])
        shown.append(gflowout(*words, *more))
    assert len(shown) == 4
    assert re.search(r"digits +mnist +gflowout +5 +0 +0", shown[2])
    assert "test/ece" in shown[3]
    assert set(read_space("space.yaml").of("mc")) == {"fit.lr", "fit.weight_decay"}
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    code = code.replace('trials=12,\n    search="optuna"', 'trials=1, engine="inline"')
    code = code.replace('Path("mnist.yaml")', 'Path("mnist.yaml"), ["fit.epochs=1"]')
    code = code.replace('folder="tuned"', 'folder="again"').replace('"tuned")', '"again")')
    exec(code, {"print": shown.append})
    assert "valid/nll (minimized)" in shown[-1]
    assert (tmp_path / "again" / "best-mc.yaml").exists()
