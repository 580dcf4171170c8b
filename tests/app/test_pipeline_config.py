"""Configurations: what is read, what is written, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflowout.app import config as configs
from gflowout.app import yamls
from gflowout.app.config import ConfigError, flat, from_flat, read, with_changes, write
from gflowout.training import FitOptions

MNIST = ["data=mnist"]


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(None, overrides)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all("\n" not in line for line in caught.value.problems)
    return caught.value.problems


class TestDialect:
    def test_text_keeps_the_order_and_writes_lists_in_one_line(self):
        values = {"fit": {"lr": 1e-5, "milestones": [0.5, 0.75]}}
        assert yamls.text(values) == "fit:\n  lr: 1.0e-05\n  milestones: [0.5, 0.75]\n"
        assert yamls.parse(yamls.text(values)) == values

    def test_overrides_are_values_by_dotted_key_later_ones_last(self):
        changes = yamls.parse_overrides(["fit.lr=1e-2", "method=mc", "fit.lr=1e-3"])
        assert list(changes.items()) == [("method", "mc"), ("fit.lr", 0.001)]


class TestReading:
    def test_file_then_overrides_the_later_wins(self, tmp_path: Path):
        path = tmp_path / "c.yaml"
        path.write_text("data: {source: mnist, valid: 0.2}\nmethod: mc\nfit:\n  lr: 3e-4\n")
        found = read(path, ["fit.lr=0.5", "fit.lr=1e-2", "method.options.rate=0.25", "seed=7"])
        assert found.data.valid == 0.2
        assert found.method.name == "mc"
        assert found.method.options == {"rate": 0.25}
        assert found.fit == FitOptions(lr=0.01, seed=7)

    def test_defaults_are_those_of_fit(self):
        assert read(None, MNIST).fit == FitOptions()

    def test_tables_have_defaults_of_their_own(self, tmp_path: Path):
        for name in ("t.csv", "t.PARQUET"):
            source = tmp_path / name
            source.touch()
            given = [f"data={source}", "data.target=y"]
            fit = read(None, given).fit
            assert fit == FitOptions(**configs.TABLE_FIT)
            assert read(None, [*given, "fit.epochs=3"]).fit.epochs == 3
            assert read(None, [*given, "fit.patience=null"]).fit.patience is None
            # What is not from the command line says what it means: ids of runs stay.
            assert (
                configs.build({"data": {"source": str(source), "target": "y"}}).fit == FitOptions()
            )

    def test_a_short_section_can_be_changed_later(self, tmp_path: Path):
        path = tmp_path / "c.yaml"
        path.write_text("data: mnist\nbackbone: mlp\n")
        found = read(path, ["data.limit=100", "backbone.hidden=[5, 6]"])
        assert (found.data.source, found.data.limit) == ("mnist", 100)
        assert (found.backbone.name, found.backbone.hidden) == ("mlp", [5, 6])

    def test_an_empty_section_and_an_empty_file(self, tmp_path: Path):
        path = tmp_path / "c.yaml"
        path.write_text("data: mnist\nfit:\n")
        assert read(path) == read(None, MNIST)
        path.write_text("# nothing\n")
        assert read(path, MNIST) == read(None, MNIST)

    def test_fit_always_has_the_seed_of_the_run(self):
        section = configs.DataConfig(source="mnist")
        found = configs.Config(data=section, seed=3, fit=FitOptions(seed=9))
        assert found.fit.seed == 3


class TestWriting:
    @pytest.mark.parametrize(
        "overrides",
        [
            MNIST,
            ["data=mnist", "fit.lr=1e-7", "fit.milestones=[0.1, 0.9]", "fit.clip=1", "seed=12"],
            ["data=my data.csv", "data.target=no", "data.drop=['1', 'yes', 'a: b', 'ünï']"],
            ["data=mnist", "method=id-gflowout", "method.options.hidden=[]", "method.preset=paper"],
            ["data=eicu-demo", "data.options.covariates=[age]", "data.options.test_hospital=0.3"],
        ],
    )
    def test_written_and_flat_configurations_read_back_equal(self, tmp_path: Path, overrides):
        found = read(None, overrides)
        write(found, tmp_path / "c.yaml")
        assert read(tmp_path / "c.yaml") == found
        assert from_flat(flat(found)) == found

    def test_every_value_is_written(self, tmp_path: Path):
        write(read(None, MNIST), tmp_path / "c.yaml")
        text = (tmp_path / "c.yaml").read_text()
        for key in flat(read(None, MNIST)):
            assert f"{key.rpartition('.')[2]}:" in text

    def test_changes_are_checked_and_leave_the_rest(self):
        before = read(None, ["data=mnist", "method.options.beta=0.5"])
        after = with_changes(before, {"fit.lr": 0.25, "method.options.epsilon": 0.3})
        changed = {key for key in flat(after) if flat(after)[key] != flat(before).get(key)}
        assert changed == {"fit.lr", "method.options.epsilon"}
        assert after.method.options["beta"] == 0.5
        with pytest.raises(ConfigError, match=r"fit\.lr must be a number in \(0, inf\), got -1"):
            with_changes(before, {"fit.lr": -1})

    def test_tuples_count_as_lists(self):
        after = with_changes(read(None, MNIST), {"backbone.hidden": (7, 8)})
        assert after.backbone.hidden == [7, 8]


class TestErrors:
    @pytest.mark.parametrize(
        ("override", "line"),
        [
            ("fit.lrr=1", "; did you mean 'fit.lr'?"),
            ("fit.batch_size=8", "; did you mean 'data.batch_size'?"),
            ("epochs=3", "; did you mean 'fit.epochs'?"),
            ("bakbone.width=3", "; did you mean 'backbone'?"),
            ("method.epsilon=0.2", "; did you mean 'method.options.epsilon'?"),
            ("method.options.epsilom=0.2", "; did you mean 'epsilon'?"),
            ("fit.seed=3", "fit.seed: there is one seed for all: set seed"),
        ],
    )
    def test_an_unknown_key_suggests_the_nearest(self, override, line):
        (found,) = problems("data=mnist", override)
        assert line in found
        assert found.startswith(override.partition("=")[0].rpartition(".epsilom")[0] or
                                override.partition("=")[0].split(".")[0])  # fmt: skip

    @pytest.mark.parametrize(
        ("override", "line"),
        [
            ("fit.epochs=0", "fit.epochs must be an integer >= 1, got 0"),
            ("fit.epochs=ten", "fit.epochs must be an integer, got 'ten'"),
            ("fit.epochs=true", "fit.epochs must be an integer, got true"),
            ("fit.epochs=2.5", "fit.epochs must be an integer, got 2.5"),
            ("fit.lr=fast", "fit.lr must be a number, got 'fast'"),
            ("fit.clip=.inf", "fit.clip must be a number in (0, inf), got inf"),
            ("fit=3", "fit must be keys with values, got 3"),
            ("seed=-1", "seed must be at least 0, got -1"),
            ("data.valid=1.5", "data.valid must be below 1, got 1.5"),
            ("data.augment=1", "data.augment must be true or false, got 1"),
            ("data.drop=a", "data.drop must be a list, got 'a'"),
            ("backbone.hidden=[3, 0]", "backbone.hidden.1 must be at least 1, got 0"),
            ("backbone.width=null", "backbone.width must be an integer, got null"),
            (
                "backbone=mpl",
                "backbone.name must be one of 'auto', 'mlp', 'resnet18', got 'mpl'; did you mean "
                "'mlp'?",
            ),
            (
                "method.options.beta=-1",
                "method.options.beta must be a number in [0, inf), got -1",
            ),
            ("data.target=y", "data.target is for tables (CSV, Parquet), got source 'mnist'"),
            ("data.options.hours=3", "data.options is for eicu-demo, eicu, got source 'mnist'"),
        ],
    )
    def test_a_wrong_value_names_key_value_and_what_it_takes(self, override, line):
        assert problems("data=mnist", override) == [line]

    @pytest.mark.parametrize(
        ("override", "part"),
        [
            ("fit.schedule=cosin", "'milestones', got 'cosin'; did you mean 'cosine'?"),
            ("method=gflowot", "got 'gflowot'; did you mean 'gflowout'?"),
            ("data=mnst", "got 'mnst'; did you mean 'mnist'?"),
            ("data=vqa-v2", "'vqa-v2' cannot be trained on from a configuration"),
        ],
    )
    def test_a_misspelt_choice_suggests_the_nearest(self, override, part):
        (line,) = problems("data=mnist", override)
        assert part in line

    def test_all_problems_are_told_at_once(self):
        found = problems("data=mnist", "fit.lr=x", "fit.lrr=1", "seed=-1", "data.limit=1")
        assert sorted(line.split(":")[0].split(" ")[0] for line in found) == [
            "data.limit", "fit.lr", "fit.lrr", "seed"
        ]  # fmt: skip

    def test_without_a_near_one_all_keys_are_listed(self):
        (line,) = problems("data=mnist", "method.zzz=1")
        assert line == "method.zzz: there is no such key; keys of method: name, preset, options"
        (line,) = problems("data=mnist", "zzz=1")
        assert line.endswith("; keys: data, backbone, method, fit, seed")

    def test_no_data(self):
        (line,) = problems()
        assert line.startswith("data.source is missing: the name of a data set (mnist, ")

    def test_own_files(self, tmp_path: Path):
        (tmp_path / "a.csv").write_text("x,y\n")
        missing = "data.target is missing: the column of the labels; --set data.target=NAME"
        assert problems(f"data={tmp_path / 'a.csv'}") == [missing]
        assert problems("data=a.csv", f"data.directory={tmp_path}") == [missing]
        assert problems("data=a.csv") == ["a.csv: no such file or folder"]
        (line,) = problems("data=a.npz", "data.valid=0.5", "data.test=0.5")
        assert line.endswith("must leave something to train on, got 0.5 and 0.5")

    def test_options_of_the_clinical_task(self):
        (line,) = problems("data=eicu-demo", "data.options.hour=3")
        assert line.endswith("did you mean 'hours'?")

    @pytest.mark.parametrize("override", ["fit.lr", "=3", ""])
    def test_an_override_without_key_or_value(self, override):
        assert problems(override) == [f"{override!r} must be key=value, such as fit.lr=0.01"]

    def test_yaml_that_is_none(self, tmp_path: Path):
        assert problems("data=[1")[0].startswith("data: '[1' is not YAML (")
        path = tmp_path / "c.yaml"
        for text, message in (
            ("data: [", "not YAML ("),
            ("- mnist", "must hold sections (data, backbone, method, fit, seed)"),
            ("fit: {lr: 1, lr: 2}", "the key 'lr' is there twice"),
            ("x: !!python/name:os.system", "not YAML ("),
        ):
            path.write_text(text)
            with pytest.raises(ConfigError) as caught:
                read(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert message in str(caught.value)
        with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
            read(tmp_path / "none.yaml")
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigError, match="not a text file"):
            read(path)
