"""The scripts in examples/ run, and print what the documentation quotes, but for the numbers."""

from __future__ import annotations

import io
import re
import runpy
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a script once; its figures, its plot and what it printed."""
    done: dict[str, tuple[Any, Path, str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")

        def go(name: str) -> tuple[Any, Path, str]:
            if name not in done:
                plot = tmp_path_factory.mktemp("plots") / f"{name}.png"
                main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
                # No data of the developer's: those that ship with a dependency.
                patch.setenv("GFLOWOUT_DATA", str(tmp_path_factory.mktemp("data")))
                said = io.StringIO()
                with torch.random.fork_rng(), redirect_stdout(said):
                    found = main(["--quick", "--out", str(plot)])
                done[name] = (found, plot, said.getvalue())
            return done[name]

        yield go


def quoted(text: str) -> set[str]:
    """The quotations of a page, line breaks and numbers aside."""
    blocks = re.findall(r"(?:^> .*\n)+", text, re.MULTILINE)
    return {shape(block.replace("\n> ", " ").removeprefix("> ")) for block in blocks}


def shape(sentence: str) -> str:
    return NUMBER.sub("#", " ".join(sentence.split()))


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


@pytest.mark.parametrize("name", [path.stem for path in SCRIPTS])
def test_script_says_what_the_docs_quote(name: str, run: Any) -> None:
    _, plot, said = run(name)
    assert png_size(plot) > (500, 300)
    pages = [
        (ROOT / "docs" / "guides" / page).read_text()
        for page in ("gallery.md", "decisions.md", "transformers.md")
    ]
    assert shape(said) in set().union(*map(quoted, pages))
    page = next(page for page in pages if f"examples/{name}.py" in page)
    shown = re.findall(r"\(../img/(\w+\.png)\)", page)
    assert shown
    assert all((ROOT / "docs" / "img" / each).is_file() for each in shown)


def test_deferring_leaves_less_error(run: Any) -> None:
    kept = run("defer_to_human")[0]
    assert kept["logistic regression"] < 0.02  # of breast cancer; 0.24 for a guess


def test_alarm_rings_for_photographs(run: Any) -> None:
    for alarms in run("ood_alarm")[0].values():
        assert alarms["photographs"] > 50
        assert alarms["known"] < 20


def test_least_certain_labels_are_wrong_more_often(run: Any) -> None:
    found = run("multilabel")[0]
    assert found["asked"] > found["chance"] > found["plain"] > 0.7


def test_padding_and_order_of_tags(run: Any) -> None:
    found = run("tagging")[0]
    assert found["kept"] > found["all"] > 0.4  # four tags


def test_labels_are_learned_from(run: Any) -> None:
    assert min(run("active_learning")[0].values()) > 50


def test_players_cannot_miss_more_than_there_is(run: Any) -> None:
    missed = run("thompson")[0]
    assert set(missed) == {"Thompson", "greedy", "epsilon-greedy"}
    assert all(0 < count < 60 for count in missed.values())


def test_intervals_hold_points(run: Any) -> None:
    found = run("regression")[0]
    assert 0.7 < found["coverage"] < 1
    assert found["noise_left"] > found["noise_right"]  # masks count where there is little noise


def test_a_saved_adapter_answers_as_before(run: Any) -> None:
    found = run("adapter")[0]
    assert found.pop("same")
    for scores in found.values():
        assert 0 <= scores["ece"] <= 1
        assert 0 < scores["nll"] < 3  # of four answers; 1.4 for a guess


def test_decisions_hold_what_they_promise(run: Any) -> None:
    found = run("decisions")[0]
    assert found["nll"] < found["nll_before"]
    assert 0.85 < found["coverage"] < 0.95  # asked: 0.9, of 500 held-out and 400 new digits
    assert found["risk"] < 0.05
    assert found["answered"] > 0.3
    assert found["false_alarms"] < 0.1 < 0.8 < found["alarms"]
    assert abs(found["file_coverage"] - found["coverage"]) < 0.05  # other draws, the same promise
    assert abs(found["file_deferred"] + found["answered"] - 1) < 0.1
