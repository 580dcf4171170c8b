import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tuning_work

from gflowout.app import config as configs
from gflowout.app import yamls
from gflowout.runs import Inline, Pool, read
from gflowout.tuning import Choice, Integers, Numbers, read_space, space, tune, write_best
from gflowout.tuning.searches import make
from gflowout.tuning.spaces import split
from gflowout.tuning.tune import make_plan, of_test

LR = "fit.lr=log:1e-4:1e-2"
RATE = "mc:method.options.rate=uniform:0.1:0.9"
BOTH = ["mc", "gflowout"]


def quietly(folder, *lines, work="bowl", **options):
    options = {"methods": BOTH, "engine": Inline(), "progress": False, **options}
    base = options.pop("base", {"data.source": "toy", "fit.epochs": 3})
    return tune(base, list(lines), folder=folder, work=f"tuning_work:{work}", **options)


def proposals(tuned):
    return [(trial.method, trial.options, trial.score) for trial in tuned.trials]


# Spaces


def test_lines_mappings_and_files_say_the_same(tmp_path):
    lines = space(
        LR,
        "fit.weight_decay=uniform:0:0.1:5",
        "fit.epochs=int:5:21:5",
        "fit.optimizer=adam,sgd",
        "backbone.hidden=[30, 10],[50]",
        "fit.clip=null,1e-1",
        "gflowout:method.options.beta=1,0.1",
    )
    assert lines.shared == {
        "fit.lr": Numbers(1e-4, 1e-2, log=True),
        "fit.weight_decay": Numbers(0, 0.1, points=5),
        "fit.epochs": Integers(5, 20, 5),
        "fit.optimizer": Choice(("adam", "sgd")),
        "backbone.hidden": Choice(([30, 10], [50])),
        "fit.clip": Choice((None, 0.1)),
    }
    assert lines.own == {"gflowout": {"method.options.beta": Choice((1, 0.1))}}
    file = tmp_path / "space.yaml"
    file.write_text(
        "fit:\n  lr: log:1e-4:1e-2\n  weight_decay: uniform:0:0.1:5\n  epochs: int:5:21:5\n"
        "  optimizer: [adam, sgd]\nbackbone.hidden: [[30, 10], [50]]\nfit.clip: [null, 1e-1]\n"
        "gflowout:method.options.beta: [1, 0.1]\n"
    )
    assert read_space(file) == lines
    assert space(*lines.lines()) == lines
    mapping = {**lines.shared, "gflowout:method.options.beta": [1, 0.1]}
    assert space(mapping) == lines
    assert space(lines, "fit.lr=1e-3").of("mc")["fit.lr"] == Choice((1e-3,))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit.lr", r"a space takes OPTION=VALUES .* got 'fit.lr'"),
        ("=1", "a space takes OPTION=VALUES"),
        ("fit.lr=log:0:1", r"fit.lr=log:0:1: low must be a number in \(0, inf\), got 0"),
        ("fit.lr=log:1e-2:1e-4", r"high must be a number in \(0.01, inf\), got 0.0001"),
        ("fit.lr=uniform:a:1", "uniform takes LOW:HIGH or LOW:HIGH:POINTS, got 'a:1'"),
        ("fit.lr=log:1e-4:1e-2:1", "points must be an integer >= 2, got 1"),
        ("fit.lr=log:1e-4:1e-2:2.5", "points must be an integer >= 2, got 2.5"),
        ("fit.epochs=int:5:x", "int takes LOW:HIGH or LOW:HIGH:STEP, got '5:x'"),
        ("fit.epochs=int:5:5", "high must be larger than low, 5, got 5"),
        ("fit.epochs=int:5:9:0", "step must be an integer >= 1, got 0"),
        ("fit.lr=logg:1:2", "log:, uniform: or int:, got 'logg:'; did you mean 'log'?"),
        ("fit.lr=", "at least one value, got none"),
        ("fit.lr=1,1", "choices must differ, got 1 twice"),
        ("a:b:c=1", r"an option is written \[METHOD:\]OPTION, got 'a:b:c'"),
        ("fit.lr=[1", "values must be words or numbers"),
    ],
)
def test_errors_of_spaces(line, message):
    with pytest.raises(ValueError, match=message):
        space(line)


def test_errors_of_files(tmp_path):
    file = tmp_path / "space.yaml"
    with pytest.raises(FileNotFoundError, match=r"space.yaml: no such file"):
        read_space(file)
    for text, message in (("- 1", "a space is a mapping"), ("a: [", "not YAML")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_space(file)
    file.write_text("fit.lr: log:1")
    with pytest.raises(ValueError, match=r"space.yaml: fit.lr=log:1: log takes"):
        read_space(file)


def test_grid_has_every_combination():
    found = space("a=log:1e-4:1e-2:3", "b=x,y", "mc:c=int:1:3")
    wanted = [{"a": a, "b": b, "c": c} for a in (1e-4, 1e-3, 1e-2) for b in "xy" for c in (1, 2, 3)]
    assert found.combinations("mc") == wanted
    assert len(found.combinations("gflowout")) == 6


def test_random_values_fill_their_ranges_evenly():
    found = space("a=log:1e-4:1e-2", "b=uniform:-1:3", "c=int:5:20:5", "d=x,y,z")
    drawn = make("random", found, "mc", 3000, seed=0, direction="minimize").ask(3000)
    logs = sorted(math.log10(each["a"]) for each in drawn)
    plain = sorted(each["b"] for each in drawn)
    for place in (300, 1500, 2700):  # quantiles; 3 standard errors are about 0.027
        assert logs[place] == pytest.approx(-4 + 2 * place / 3000, abs=2 * 0.03)
        assert plain[place] == pytest.approx(-1 + 4 * place / 3000, abs=4 * 0.03)
    for name, values in (("c", [5, 10, 15, 20]), ("d", ["x", "y", "z"])):
        for value in values:
            share = sum(each[name] == value for each in drawn) / 3000
            assert share == pytest.approx(1 / len(values), abs=0.03)


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_no_trial_is_proposed_twice(search):
    found = make(search, space("a=1,2,3", "b=int:0:3"), "mc", 12, seed=0, direction="minimize")
    asked = []
    for _ in range(3):
        batch = found.ask(4)
        found.tell([each["a"] + each["b"] for each in batch])
        asked += batch
    assert {(each["a"], each["b"]) for each in asked} == {
        (a, b) for a in (1, 2, 3) for b in range(4)
    }


def test_a_value_depends_on_its_own_option_only():
    both, alone = space("a=uniform:0:1", "b=1,2"), space("a=uniform:0:1")
    drawn = [make("random", one, "mc", 9, seed=0, direction="minimize") for one in (both, alone)]
    first, second = (search.ask(9) for search in drawn)
    assert [options["a"] for options in first] == [options["a"] for options in second]


def test_names_of_options_and_metrics():
    assert split("gflowout:method.options.beta") == ("gflowout", "method.options.beta")
    assert split("fit.lr") == (None, "fit.lr")
    assert of_test("test/nll")
    assert not any(of_test(name) for name in ("valid/nll", "latest_loss"))


# Fair play


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_every_method_gets_the_same_budget(search, tmp_path):
    tuned = quietly(tmp_path, LR, RATE, search=search, trials=6)
    assert [len(tuned.of(method)) for method in BOTH] == [6, 6]
    assert {tuple(trial.options) for trial in tuned.of("mc")} == {("fit.lr", "method.options.rate")}
    assert {tuple(trial.options) for trial in tuned.of("gflowout")} == {("fit.lr",)}
    options = [record["options"] for record in read(tmp_path)]
    assert len(options) == 12
    assert {each["fit.epochs"] for each in options} == {3}
    assert {each["test"] for each in options} == {False}
    if search == "random":  # methods meet at the same values of what they share
        pairs = zip(tuned.of("mc"), tuned.of("gflowout"), strict=True)
        assert all(one.options["fit.lr"] == two.options["fit.lr"] for one, two in pairs)


def test_grids_of_different_sizes_are_refused_or_cut(tmp_path):
    lines = ("fit.lr=1e-4,1e-3,1e-2", "mc:method.options.rate=0.3,0.5")
    with pytest.raises(ValueError, match=r"at least 6, the combinations of the grid of mc, got 5"):
        quietly(tmp_path, *lines, search="grid", trials=5)
    with pytest.raises(ValueError, match=r"the same size for all methods, got mc 6, gflowout 3"):
        quietly(tmp_path, *lines, search="grid")
    assert not list(tmp_path.iterdir())
    tuned = quietly(tmp_path, *lines, search="grid", subset=True)
    assert [len(tuned.of(method)) for method in BOTH] == [3, 3]
    assert {trial.options["fit.lr"] for trial in tuned.of("gflowout")} == {1e-4, 1e-3, 1e-2}
    whole = quietly(tmp_path / "whole", lines[0], search="grid")
    assert [trial.options["fit.lr"] for trial in whole.of("mc")] == [1e-4, 1e-3, 1e-2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": ["mc:fit.epochs=int:1:9", LR]}, "fit.epochs must be the same for all methods"),
        ({"lines": ["mc:data.limit=10,20", LR]}, "data.limit must be the same for all methods"),
        ({"base": {"mc:fit.patience": 3}}, "fit.patience must be the same for all methods"),
        ({"base": {"mcc:fit.lr": 3}}, "got 'mcc'; did you mean 'mc'?"),
        ({"lines": ["mcc:x=1,2", LR]}, "got 'mcc'; did you mean 'mc'?"),
        ({"lines": ["mc:fit.lr=1,2"]}, "space must have an option for every method, got none for"),
        ({"lines": [LR, "method.name=mc,none"]}, "space must not have method.name"),
        ({"lines": [LR, "test=true,false"]}, "space must not have test; test the best afterwards"),
        ({"lines": ["fit.lr=1,2,3"]}, "trials must be at most 3, .* mc has, got 20"),
        ({"search": "grid"}, r"fit.lr: a grid needs a number of points, got log:0.0001:0.01; wr"),
        ({"search": "optun"}, "got 'optun'; did you mean 'optuna'?"),
        ({"score": "test/nll"}, "score must be one of validation data, got 'test/nll'"),
        ({"score": "valid/nl"}, "valid/nll, valid/accuracy, got 'valid/nl'; did you mean 'valid/n"),
        ({"direction": "up"}, "direction must be one of 'minimize', 'maximize', got 'up'"),
        ({"methods": []}, "methods must be a list of at least one method"),
        ({"methods": ["mc", "mc"]}, "methods must differ, got mc, mc"),
        ({"work": "cheats"}, "must not touch test data in tuning, got the metrics test/nll"),
    ],
)
def test_what_would_not_be_fair_is_refused(options, message, tmp_path):
    lines = options.pop("lines", [LR])
    with pytest.raises(ValueError, match=message):
        quietly(tmp_path, *lines, **options)


def test_test_data_is_left_alone_even_if_the_base_says_otherwise(tmp_path):
    tuned = quietly(tmp_path, LR, base={"test": True}, trials=2)
    assert not tuned.failed  # the toy raises if it may touch test data
    assert {record["options"]["test"] for record in read(tmp_path)} == {False}


def test_options_of_a_configuration_stay_with_their_method():
    config = configs.read(None, ["data=mnist", "method.options.beta=0.5", "fit.epochs=4"])
    plan = make_plan(config, [LR], methods=["gflowout", "mc"])
    assert plan.base["gflowout"]["method.options.beta"] == 0.5
    assert "method.options.beta" not in plan.base["mc"]
    assert {base["fit.epochs"] for base in plan.base.values()} == {4}
    with pytest.raises(configs.ConfigError) as caught:
        make_plan(
            config,
            ["fit.lr=log:1e-3:1", "fit.lrr=1,2", "mc:method.options.rate=uniform:0.1:1.1"],
            methods=["gflowout", "mc"],
        )
    lines = "\n".join(caught.value.problems)
    assert "gflowout: fit.lrr: there is no such key" in lines
    assert "mc: method.options.rate must be" in lines
    with pytest.raises(TypeError, match="base must be a Config or a dict of options, got 3"):
        make_plan(3, [LR], methods=["mc"])


def test_best_options_are_a_configuration(tmp_path):
    config = configs.read(None, ["data=mnist", "fit.epochs=4"])
    tuned = quietly(tmp_path, LR, RATE, base=config, trials=3)
    paths = write_best(tuned, tmp_path)
    assert [path.name for path in paths] == ["best-mc.yaml", "best-gflowout.yaml"]
    best = configs.read(paths[0])
    assert best.method.name == "mc"
    assert best.method.options == {"rate": tuned.best["mc"].options["method.options.rate"]}
    assert best.fit.lr == tuned.best["mc"].options["fit.lr"]
    assert best.fit.epochs == 4


# The search


def test_best_is_found_and_optuna_is_better_than_chance(tmp_path):
    tuned = quietly(tmp_path / "o", LR, search="optuna", trials=24, parallel=1)
    chance = quietly(tmp_path / "r", LR, search="random", trials=24)
    for method, wanted in tuning_work.BEST.items():
        best = tuned.best[method]
        assert best.score == min(trial.score for trial in tuned.of(method))
        assert best.options["fit.lr"] == pytest.approx(wanted, rel=0.15)
        assert tuned.options(method)["fit.epochs"] == 3
        late = sum(each.score for each in tuned.of(method)[12:]) / 12
        assert late < 0.7 * sum(each.score for each in chance.of(method)) / 24
    up = quietly(
        tmp_path / "up",
        LR,
        search="optuna",
        trials=24,
        parallel=1,
        score="valid/accuracy",
        direction="maximize",
    )
    assert proposals(up)[10][1] == proposals(tuned)[10][1]
    assert up.best["mc"].options == tuned.best["mc"].options


def test_speed_of_workers_does_not_matter(tmp_path):
    one = quietly(tmp_path / "1", LR, work="slow_first", search="optuna", trials=16, parallel=4)
    two = quietly(
        tmp_path / "2",
        LR,
        work="slow_first",
        search="optuna",
        trials=16,
        parallel=4,
        engine=Pool(3, start="fork"),
    )
    assert proposals(one) == proposals(two)


def test_a_killed_search_goes_on_as_if_undisturbed(tmp_path, monkeypatch):
    search = "optuna"
    calm = quietly(tmp_path / "calm", LR, RATE, search=search, trials=14)
    notes = tmp_path / "notes"
    script = (
        "import sys; from gflowout.tuning import tune\n"
        f"tune({{'data.source': 'toy', 'fit.epochs': 3}}, {[LR, RATE]!r}, methods={BOTH!r},\n"
        f"     folder={str(tmp_path / 'out')!r}, search={search!r}, trials=14, engine='inline',\n"
        "     work='tuning_work:dies', progress=False)\n"
    )
    here = {"TUNING_NOTES": str(notes), "PYTHONPATH": str(Path(tuning_work.__file__).parent)}
    for life in (5, 13):
        around = {**os.environ, **here, "TUNING_LIFE": str(life)}
        assert subprocess.run([sys.executable, "-c", script], env=around).returncode == -9
        assert len(read(tmp_path / "out")) == life
    monkeypatch.setenv("TUNING_NOTES", str(notes))
    monkeypatch.setenv("TUNING_LIFE", "1000")
    tuned = quietly(tmp_path / "out", LR, RATE, work="dies", search=search, trials=14)
    assert proposals(tuned) == proposals(calm)
    lines = notes.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 28  # nothing was done twice
    again = quietly(tmp_path / "out", LR, RATE, work="dies", search=search, trials=14)
    assert again == tuned
    assert len(notes.read_text().splitlines()) == 28


def test_more_trials_go_on_from_fewer(tmp_path):
    few = quietly(tmp_path / "a", LR, search="optuna", trials=8)
    more = quietly(tmp_path / "a", LR, search="optuna", trials=16)
    once = quietly(tmp_path / "b", LR, search="optuna", trials=16)
    assert proposals(more) == proposals(once)
    assert few.of("mc") == more.of("mc")[:8]


def test_another_search_in_the_same_folder_is_refused(tmp_path):
    quietly(tmp_path, LR, trials=2)
    with pytest.raises(ValueError, match=r"with another seed, space .*plan.yaml\); take another f"):
        quietly(tmp_path, "fit.lr=log:1e-5:1e-2", trials=2, seed=1)


@pytest.mark.parametrize("search", ["optuna", "random"])
def test_failing_trials_stop_nothing(search, tmp_path):
    options = {"work": "high_fails", "search": search, "trials": 16, "engine": Pool(2, "fork")}
    tuned = quietly(tmp_path, LR, **options)
    assert [len(tuned.of(method)) for method in BOTH] == [16, 16]
    high = [trial for trial in tuned.trials if trial.options["fit.lr"] > 3e-3]
    low = [trial for trial in tuned.trials if trial.options["fit.lr"] < 2e-4]
    assert {trial.error for trial in high} == {"RuntimeError: the loss is not a number"}
    assert {trial.error for trial in low} <= {"valid/nll is nan"}
    assert tuned.failed == [trial for trial in tuned.trials if trial in high or trial in low]
    assert set(tuned.best) == set(BOTH)
    before = len(read(tmp_path))
    assert quietly(tmp_path, LR, **options) == tuned  # what failed is not tried again
    assert len(read(tmp_path)) == before == 32
    quietly(tmp_path, LR, again=True, **options)
    assert len(read(tmp_path)) == before + len(high)


def test_retries(tmp_path):
    tuned = quietly(tmp_path, LR, work="fails_at_first", trials=2, methods=["mc"])
    assert len(tuned.failed) == 2
    assert tuned.best == {}
    with pytest.raises(ValueError, match=r"one with a good trial \(\[\]\), got 'mc'"):
        tuned.options("mc")
    assert "-" in tuned.table()
    tuned = quietly(tmp_path, LR, work="fails_at_first", trials=2, methods=["mc"], retries=1)
    assert not tuned.failed
    assert [record["attempt"] for record in read(tmp_path, "done")] == [2, 2]


# What comes out


def test_tables_file_and_plot(tmp_path):
    tuned = quietly(tmp_path, LR, RATE, "fit.optimizer=adam,sgd", work="high_fails", trials=8)
    rows = tuned.table().splitlines()
    assert rows[0] == "valid/nll (minimized)"
    assert rows[1].split()[:4] == ["method", "trials", "failed", "best"]
    scores = sorted(trial.score for trial in tuned.of("mc") if trial.score is not None)
    failed = 8 - len(scores)
    assert rows[2].split()[:4] == ["mc", "8", str(failed), f"{scores[0]:.4f}"]
    assert f"fit.lr={tuned.best['mc'].options['fit.lr']:.4g}" in rows[2]
    assert tuned.spread("mc")["worst"] == scores[-1]
    assert len(tuned.listing().splitlines()) == 17
    assert tuned.listing().count(" best") == 2
    table = tuned.to_frame()
    assert len(table) == 16
    assert table["fit.lr"].between(1e-4, 1e-2).all()
    content = yamls.parse(tuned.to_yaml())
    assert content["methods"]["mc"]["best"] == dict(tuned.best["mc"].options)
    assert content["methods"]["mc"]["spread"]["trials"] == len(scores)
    assert space(*content["space"]) == tuned.space
    pytest.importorskip("matplotlib")
    tuned.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
