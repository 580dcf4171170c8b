"""The benchmark runs and writes every figure; their values are not tested here."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from gflowout import bench
from gflowout.bench import adapters, command, comparisons, methods, timing, work
from gflowout.core import atomic_io

BATCHES = {"mlp-predict": 128, "resnet-predict": 16, "resnet-predict-last": 16}
_NETWORKS = ("mlp-step", "mlp-predict", "resnet-step", "resnet-predict")
SOME = ("none", "mc", "concrete", "contextual", "id-gflowout", "id-gflowout draws=1", "gflowout")


DEEP = [f"depth-{net}{depth}" for net in ("", "transformer-") for depth in (8, 16, 32, 64)]


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    """Collecting garbage before each round is slow after thousands of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.gc, "collect", lambda: 0)
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "fit_table", lambda repeats, _: comparisons.fit_table(repeats, 256))
        patch.setattr(comparisons, "_EPOCHS", 1)
        for module in (command, methods, work):
            patch.setattr(module, "DRAWS", 3)
        # Without simplifying the graph, which takes seconds.
        patch.setattr(torch.onnx, "export", partial(torch.onnx.export, optimize=False))
        patch.setattr(timing, "_LONG", 0.0)  # one call to get warm,
        patch.setattr(timing, "_SHORTEST", 1e-9)  # and one that is timed
        patch.setattr(methods, "METHODS", {name: methods.METHODS[name] for name in SOME})
        patch.setattr(comparisons, "DEPTHS", (4,))
        patch.setattr(work, "MEMORY_DRAWS", (20, 40))
        out, plot = folder / "b.json", folder / "b.png"
        bench.run(quick=True, width=2, repeats=1, out=out, plot=plot)
    return folder


def test_every_table_has_every_method(written: Path) -> None:
    record = json.loads((written / "b.json").read_text())
    names = [table.name for table in bench.tables(2, 1, 1, quick=True)]
    assert list(record["tables"]) == [name for name in names if name not in DEEP]
    for table, result in record["tables"].items():
        if table.startswith(("export-", "compact-")):
            continue  # below
        few = methods.FEW if table == "resnet-predict-16" else SOME
        if "mlp" in table or "resnet" in table:
            assert list(result["cases"]) == [methods.BARE, *few]
        for name, case in result["cases"].items():
            if result["repeats"] == 0:
                assert table.startswith("work-")
                assert case["figures"]["operations"] > 0
                continue
            for summary in (case["seconds"], *case["ratio_to"].values()):
                assert 0 < summary["quartile_1"] <= summary["median"] <= summary["quartile_3"]
            for reference, ratio in case["ratio_to"].items():
                seconds = result["cases"][reference]["seconds"]["median"]
                assert ratio["of_medians"] == pytest.approx(case["seconds"]["median"] / seconds)
            if name in case["ratio_to"]:
                assert case["ratio_to"][name]["median"] == 1
            if "predict" in table:
                batch = BATCHES.get(table) or int(table.rpartition("-")[2])
                rate = case["figures"]["examples/s"]
                assert rate == pytest.approx(batch / case["seconds"]["median"])
    for name in ("mlp-step", "resnet-step"):
        assert set(record["tables"][name]["cases"]["gflowout"]["ratio_to"]) == {"bare", "mc"}


def test_files_are_compared_with_pytorch(written: Path) -> None:
    cases = json.loads((written / "b.json").read_text())["tables"]["export-mlp"]["cases"]
    assert list(cases) == ["gflowout, predict", "gflowout, onnxruntime"]
    ours, theirs = (case["seconds"]["median"] for case in cases.values())
    figures = cases["gflowout, onnxruntime"]["figures"]
    assert figures["÷ predict"] == pytest.approx(theirs / ours)
    assert 0 < figures["largest difference"] < 1e-5
    assert 1 < figures["MB"] < 2


def test_feature_selection_is_compared_with_boosting(written: Path) -> None:
    tables = json.loads((written / "b.json").read_text())["tables"]
    assert list(tables["features-fit"]["cases"]) == ["tuned boosting", "masks on inputs"]
    assert list(tables["features-chains"]["cases"]) == ["1 chain", "10 chains"]
    large = tables["features-large"]["cases"]["masks on inputs"]
    assert large["figures"]["seconds"] == large["seconds"]["median"]


def test_compacted_modules_are_compared_with_the_backbone(written: Path) -> None:
    cases = json.loads((written / "b.json").read_text())["tables"]["compact-mlp"]["cases"]
    assert list(cases) == ["all units", "75% kept", "50% kept", "25% kept"]
    flops = [case["figures"]["FLOPs"] for case in cases.values()]
    whole = 784 * 1024 + 1024 * 1024 + 1024 * 10
    half = 784 * 512 + 512 * 512 + 512 * 10
    assert flops[0] == 1 > flops[1] > flops[2] > flops[3]
    assert flops[2] == pytest.approx(half / whole)


def test_tables_without_their_packages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    everything = bench.tables(2, 1, 1)
    assert not any(table.name.startswith("export") for table in command._chosen(everything, []))
    asked = [table.name for table in command._chosen(everything, ["export"])]
    assert asked == [f"export-{name}" for name in ("mlp", "resnet", "bn-conv", "transformer")]


def test_environment_is_recorded_and_names_no_place(written: Path) -> None:
    text = (written / "b.json").read_text()
    found = json.loads(text)["environment"]
    assert found["threads"] == 1
    assert found["torch"] == torch.__version__
    assert found["cpu"]
    assert str(Path.home()) not in text


def test_files_are_complete(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == ["b.json", "b.png"]
    assert (written / "b.png").read_bytes().startswith(b"\x89PNG")


def test_screen_shows_tables_and_threads_are_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads(), torch.get_rng_state()
    first = bench.tables(2, 1, 1)[:1]
    monkeypatch.setattr(command, "tables", lambda *_: first)
    bench.run(quick=True, repeats=1, out=tmp_path / "b.json")
    shown = capsys.readouterr().out
    assert "Training step, MLP 784-300-100-10, batch 128" in shown
    assert "÷ mc" in shown
    assert "Targets" in shown
    assert (tmp_path / "b.png").exists()
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_measure_compares_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that slows down all the time, a case of twice the work still has ratio 2."""
    clock, pace = 0.0, 1.0

    def case(work: float) -> None:
        nonlocal clock
        clock += work * pace

    def slow_down() -> None:
        nonlocal pace
        pace *= 3

    cases = {"bare": lambda: case(1.0), "double": lambda: case(2.0)}
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    result = timing.measure(bench.Table("t", "T", ("bare",), 5, lambda: cases), slow_down)
    assert result["cases"]["bare"]["seconds"] == {
        "median": 27.0,
        "quartile_1": 9.0,
        "quartile_3": 81.0,
    }
    assert set(result["cases"]["double"]["ratio_to"]["bare"].values()) == {2.0}


def test_time_of_the_processor_does_not_count_waiting() -> None:
    cases = {"wait": lambda: time.sleep(0.02)}
    table = bench.Table("t", "T", (), 1, lambda: cases)
    waited, worked = (timing.measure(table, cpu=cpu)["cases"]["wait"] for cpu in (False, True))
    assert waited["seconds"]["median"] >= 0.02
    assert worked["seconds"]["median"] < 0.01


def test_quartiles() -> None:
    assert timing.summary([4.0, 1.0, 3.0, 2.0, 5.0]) == {
        "median": 3.0,
        "quartile_1": 2.0,
        "quartile_3": 4.0,
    }
    assert set(timing.summary([2.0]).values()) == {2.0}


def test_an_interrupted_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b.json"
    target.write_text("old")

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(command, "tables", lambda *_: [_table("a", [])])
    with monkeypatch.context() as patch:
        patch.setattr(atomic_io.os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            bench.run(quick=True, out=target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"width": 0}, ValueError, "width must be an integer >= 1, got 0"),
        ({"repeats": 0}, ValueError, "repeats must be an integer >= 1, got 0"),
        ({"out": Path("no/such/b.json")}, FileNotFoundError, "there is no folder 'no/such'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bench.run(quick=True, **arguments)  # type: ignore[arg-type]


def test_memory_of_a_step_with_masks_on_ranks(written: Path) -> None:
    cases = json.loads((written / "b.json").read_text())["tables"]["lora-qv"]["cases"]
    assert list(cases) == [adapters.LORA, *adapters.LORA_METHODS]
    ratios = {name: case["figures"][adapters.MEMORY] for name, case in cases.items()}
    assert ratios[adapters.LORA] == 1
    assert ratios["mc"] == pytest.approx(1, abs=0.05)
    assert ratios["id-gflowout"] > 2  # four copies of the batch
    net = torch.nn.Linear(3, 2)
    step = adapters.Step(net, [net.weight], lambda: net(torch.ones(1, 3)).sum())
    assert step.resident == 4 * 8
    step()
    assert step.resident == 4 * (8 + 2 * 6 + 1)  # two moments of the weight, and a counter


def test_unknown_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"only must be one of 'mlp-step'.*got 'mlq'"):
        bench.run(quick=True, out=tmp_path / "b.json", only=["mlq"])


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["mlp-predict"], ["mlp-predict"]),
        (["work"], [f"work-{name}" for name in _NETWORKS]),
        (["memory", "depth-8"], ["depth-8", "memory"]),
    ],
)
def test_a_table_or_a_group_of_them(only: list[str], names: list[str]) -> None:
    chosen = command._chosen(bench.tables(2, 1, 1), only)
    assert [table.name for table in chosen] == names


def test_rounds_are_those_of_the_issue() -> None:
    assert (command.MLP_ROUNDS, command.RESNET_ROUNDS) >= (50, 15)
    repeats = {table.name: table.repeats for table in bench.tables(64, 50, 15)}
    for target in command.TARGETS:
        least = {
            "mlp": 50, "ood": 50, "resnet": 15, "lora": 15, "memory": 10, "depth": 5, "features": 1,
            "data": 3,
        }[target.table.partition("-")[0]]  # fmt: skip
        assert repeats[target.table] >= least


def _table(name: str, log: list[str], repeats: int = 1) -> bench.Table:
    def case() -> None:
        log.append(name)

    return bench.Table(name, f"Title of {name}", ("mc",), repeats, lambda: {"mc": case})


def test_resuming_redoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []
    out = tmp_path / "b.json"

    def interrupt() -> dict[str, timing.Case]:
        raise KeyboardInterrupt

    broken = bench.Table("b", "Title of b", ("mc",), 1, interrupt)
    monkeypatch.setattr(command, "tables", lambda *_: [_table("a", log), broken, _table("c", log)])
    with pytest.raises(KeyboardInterrupt):
        bench.run(quick=True, out=out)
    first = json.loads(out.read_text())["tables"]
    assert list(first) == ["a"]  # what was measured is kept
    assert set(log) == {"a"}
    log.clear()
    monkeypatch.setattr(
        command, "tables", lambda *_: [_table("a", log), _table("b", log), _table("c", log, 2)]
    )
    bench.run(quick=True, out=out, only=["c"], resume=True)
    assert set(log) == {"c"}
    assert list(json.loads(out.read_text())["tables"]) == ["a", "c"]
    log.clear()
    bench.run(quick=True, out=out, resume=True)
    assert set(log) == {"b"}
    record = json.loads(out.read_text())
    assert list(record["tables"]) == ["a", "b", "c"]
    assert record["tables"]["a"] == first["a"]
    capsys.readouterr()
    log.clear()
    bench.run(quick=True, out=out, resume=True)
    assert not log
    assert "Title of a" in capsys.readouterr().out
    monkeypatch.setattr(command, "tables", lambda *_: [_table("a", log, 3)])
    bench.run(quick=True, out=out, resume=True)
    assert log  # another number of rounds is another table


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no JSON", "is no file of this benchmark"),
        ("[]", "is no file of this benchmark"),
        ('{"format": 1, "tables": {}}', "its format is 1, that of this run is 2"),
    ],
)
def test_what_cannot_be_resumed(tmp_path: Path, content: str, words: str) -> None:
    out = tmp_path / "b.json"
    out.write_text(content)
    with pytest.raises(ValueError, match=words):
        bench.run(quick=True, out=out, resume=True)
    assert out.read_text() == content


class TestTargets:
    @staticmethod
    def results(of_medians: float) -> dict[str, object]:
        ratio = {"median": 9.0, "quartile_1": 1.5, "quartile_3": 2.0, "of_medians": of_medians}
        case = {"seconds": {}, "ratio_to": {"mc": ratio, "bare": {}}}
        return {"mlp-step": {"cases": {"mc": case, "gflowout": case}}}

    @pytest.mark.parametrize(("measured", "met"), [(1.7, True), (1.71, False)])
    def test_medians_count(self, measured: float, met: bool) -> None:
        (row,) = command.reached(self.results(measured))
        assert row == {
            "table": "mlp-step",
            "case": "gflowout",
            "figure": "mc",
            "at_most": 1.7,
            "measured": measured,
            "quartile_1": 1.5,
            "quartile_3": 2.0,
            "met": met,
        }

    def test_every_target_finds_its_figure(self, written: Path) -> None:
        record = json.loads((written / "b.json").read_text())
        found = [(row["table"], row["case"].partition(",")[0]) for row in record["targets"]]
        missing = (*DEEP, "memory", "lora-all")  # cut for the test
        assert found == [
            (target.table, target.case) for target in command.TARGETS if target.table not in missing
        ]

    def test_memory(self) -> None:
        case = {"ratio_to": {}, "figures": {work.GROWTH: 1.3}}
        (row,) = command.reached(
            {"memory": {"cases": {"mc, 20 draws": case, "mc, 500 draws": case}}}
        )
        assert (row["case"], row["measured"], row["met"]) == ("mc, 500 draws", 1.3, False)


def test_growth_of_memory_is_relative_to_the_fewest_draws() -> None:
    cases = {
        f"m, {draws} draws": lambda draws=draws: torch.zeros(100 * draws) + 1
        for draws in work.MEMORY_DRAWS
    }
    found = work.memory_columns(cases, dict.fromkeys(cases, 2.0))
    assert found["m, 500 draws"] == {
        "ms per draw": 4.0,
        "MB at once": 0.4,
        "MB of result": 0.2,
        work.GROWTH: 25.0,
    }
