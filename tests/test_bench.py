"""The benchmark runs and writes every figure; what the figures are is not tested here."""

import json
from pathlib import Path

import pytest
import torch

from gflowout import bench
from gflowout.bench import command, methods, overhead, show, timing


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--quick", "--width", "2", "--repeats", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "fit_table", lambda repeats: overhead.fit_table(repeats, rows=512))
        bench.main([*arguments, f"--out={folder / 'b.json'}", f"--plot={folder / 'b.png'}"])
    return folder


def test_every_table_has_every_method(written: Path) -> None:
    record = json.loads((written / "b.json").read_text())
    assert list(record["tables"]) == [table.name for table in bench.tables(2, 2, 2)]
    for table, result in record["tables"].items():
        if table.startswith(("mlp", "resnet")):
            assert list(result["cases"]) == [methods.BARE, *methods.METHODS]
        assert result["repeats"] == 2
        for name, case in result["cases"].items():
            for summary in (case["seconds"], *case["ratio_to"].values()):
                assert 0 < summary["quartile_1"] <= summary["median"] <= summary["quartile_3"]
            if name in case["ratio_to"]:
                assert case["ratio_to"][name]["median"] == 1
    for name in ("mlp-step", "resnet-step"):
        assert set(record["tables"][name]["cases"]["gflowout"]["ratio_to"]) == {"bare", "mc"}


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
        "median": 9.0,
        "quartile_1": 3.0,
        "quartile_3": 27.0,
    }
    assert set(result["cases"]["double"]["ratio_to"]["bare"].values()) == {2.0}


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

    def fail(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="disk full"):
            show.write(target, "new")
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


def test_unknown_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"only must be one of 'mlp-step'.*got 'mlp'"):
        bench.run(quick=True, out=tmp_path / "b.json", only=["mlp"])
