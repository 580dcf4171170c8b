"""The demo: its data, its scores, its page and its command line."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.testing import assert_close
from typer.testing import CliRunner

import gflowout as gfo
from gflowout import cli, studies
from gflowout.cli import commands
from gflowout.core.atomic_io import write_text
from gflowout.core.optional import MissingExtraError, require
from gflowout.studies import demo, demo_section

runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
METRICS = demo_section.METRICS
CARDS = 2
"""Digits on the page of the test."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "DRAWS", 4)
        patch.setattr(demo_section, "CARDS", CARDS)
        result = runner.invoke(
            commands.app, ["demo", "--quick", "--epochs", "1", "--out", str(out)]
        )
    assert result.exit_code == 0, result.output
    return result.output, out


def invoke(*arguments: str):
    return runner.invoke(commands.app, list(arguments))


class TestData:
    def test_split_has_no_image_twice_and_follows_its_seed(self):
        one, same, other = demo.split(0), demo.split(0), demo.split(1)
        sizes = [len(part[0]) for part in (one.train, one.validation, one.test)]
        assert sizes == [1000, 297, 500]
        assert torch.equal(one.test[0], same.test[0])
        assert not torch.equal(one.test[0], other.test[0])
        everything = torch.cat([one.train[0], one.validation[0], one.test[0]])
        assert_close(
            everything.sum(), torch.cat([other.train[0], other.validation[0], other.test[0]]).sum()
        )

    def test_normalisation_is_that_of_the_training_part(self):
        split = demo.split(0)
        deviation, mean = torch.std_mean(split.normalise(split.train[0]))
        assert_close(mean.item(), 0.0, atol=1e-5, rtol=0)
        assert_close(deviation.item(), 1.0, atol=1e-5, rtol=0)
        assert abs(split.normalise(split.test[0]).mean().item()) > 1e-5

    @pytest.mark.parametrize(
        ("degrees", "quarters"), [(0, 0), (90, 1), (180, 2), (-90, 3), (360, 0)]
    )
    def test_rotation_by_quarter_turns_moves_pixels_exactly(self, degrees, quarters):
        images = torch.rand(5, 64) * 16
        turned = demo.rotate(images, torch.full((5,), float(degrees)))
        expected = images.reshape(5, 8, 8).rot90(quarters, (1, 2)).reshape(5, 64)
        assert_close(turned, expected, atol=1e-3, rtol=0)

    def test_each_image_has_its_own_angle(self):
        images = torch.rand(1, 64).repeat(2, 1)
        turned = demo.rotate(images, torch.tensor([0.0, 45.0]))
        assert_close(turned[0], images[0], atol=1e-5, rtol=0)
        assert (turned[1] - images[1]).abs().max() > 0.1

    def test_rotated_follows_its_seed(self):
        images = torch.rand(4, 64)
        assert torch.equal(demo.rotated(images, 3), demo.rotated(images, 3))
        assert not torch.equal(demo.rotated(images, 3), demo.rotated(images, 4))

    def test_patches_are_grey_values_in_the_range_of_the_digits(self):
        patches = demo.photo_patches(200, seed=0)
        assert patches.shape == (200, 64)
        assert patches.min() >= 0
        assert 8 < patches.max() <= 16
        assert patches.std(-1).max() > 1
        assert torch.equal(patches, demo.photo_patches(200, seed=0))
        assert not torch.equal(patches, demo.photo_patches(200, seed=1))


def predictive(probabilities: torch.Tensor) -> gfo.Predictive:
    return gfo.Predictive(probabilities.log(), gfo.Categorical(probabilities.shape[-1]))


class TestMetrics:
    def test_scores_equal_hand_computations(self):
        # One draw, four images: confidences 0.9, 0.8, 0.6, 0.7; the third is wrong.
        probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
        labels = torch.tensor([0, 1, 1, 0])
        scores = demo.known_scores(predictive(probabilities[None]), labels)
        nll = -(math.log(0.9) + math.log(0.8) + math.log(0.4) + math.log(0.7)) / 4
        expected = {
            "accuracy": 0.75,
            "nll": nll,
            # Each is alone in its bin: |confidence - correct|.
            "ece": (0.1 + 0.2 + 0.6 + 0.3) / 4,
            "brier": 2 * (0.01 + 0.04 + 0.36 + 0.09) / 4,
        }
        assert scores == pytest.approx(expected, abs=1e-5)

    def test_scores_are_of_the_mean_probability(self):
        draws = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])
        scores = demo.known_scores(predictive(draws), torch.tensor([0]))
        assert scores["nll"] == pytest.approx(-math.log(0.7), abs=1e-5)
        assert scores["brier"] == pytest.approx(2 * 0.3**2, abs=1e-5)

    def test_outside_counts_pairs_in_the_right_order(self):
        # Entropy grows from 0.9 to 0.5; AUROC is the share of (known, unknown) pairs in order.
        known = torch.tensor([[0.95, 0.05], [0.7, 0.3]])
        unknown = torch.tensor([[0.8, 0.2], [0.5, 0.5]])
        scores = demo.detection_scores(predictive(known[None]), predictive(unknown[None]))
        assert scores["auroc"] == pytest.approx(3 / 4)
        # Ranked: unknown, known, unknown, known: precision 1 and 2/3 at the two hits.
        assert scores["aupr"] == pytest.approx((1 + 2 / 3) / 2)
        assert math.isnan(scores["auroc_mi"])

    def test_mutual_information_tells_disagreement_from_noise(self):
        known = torch.tensor([[[0.5, 0.5]], [[0.5 + 1e-3, 0.5 - 1e-3]]])
        unknown = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]])
        assert demo.detection_scores(predictive(known), predictive(unknown))["auroc_mi"] == 1

    def test_differences_are_paired_by_seed(self):
        scores = {
            "mc": {key: [1.0, 5.0, 9.0] for key in demo_section.METRICS},
            # The same distance at every seed, far smaller than the spread between seeds.
            "other": {key: [1.5, 5.5, 9.6] for key in demo_section.METRICS},
        }
        first, last = demo_section.findings(scores, 3)
        assert first.startswith("other against mc: test acc. % better (+53.3, +39.0 to +67.7); ")
        assert "test NLL worse (+0.533, +0.390 to +0.677)" in first
        assert first.count(";") == len(demo_section.METRICS) - 1
        assert "0 remain significant" not in last

    def test_findings_are_computed(self):
        same = {key: [1.0, 2.0] for key in demo_section.METRICS}
        noisy = {key: [2.0, 1.0] for key in demo_section.METRICS}
        lines = demo_section.findings({"mc": same, "noisy": noisy}, 2)
        assert lines[0] == "noisy against mc: no significant difference."
        assert "0 remain significant" in lines[-1]
        better = {**noisy, "nll": [0.5, 1.5]}
        lines = demo_section.findings({"mc": same, "better": better, "noisy": noisy}, 2)
        assert lines[0] == "better against mc: test NLL better (-0.500, -0.500 to -0.500)."
        assert "Of 18 comparisons with 2 seeds, about 1 would differ by chance alone" in lines[-1]
        assert "1 remain significant" in lines[-1]

    def test_scores_that_are_not_a_number_are_not_compared(self):
        scores = {key: [1.0, 2.0] for key in demo_section.METRICS}
        none = {**scores, "auroc_mi": [math.nan, math.nan]}
        lines = demo_section.findings({"mc": scores, "none": none}, 2)
        assert "Of 8 comparisons" in lines[-1]
        *_, cell = demo_section.table({"none": none}).rows[0].cells
        assert cell.mean is None

    def test_best_and_its_ties_are_bold(self):
        scores = {
            name: {key: [value + 0.01 * (seed % 2) for seed in range(5)] for key in METRICS}
            for name, value in (("mc", 0.5), ("same", 0.5), ("other", 0.7))
        }
        scores["same"] = {key: [v + 1e-3 * (-1) ** i for i, v in enumerate(values)]
                          for key, values in scores["same"].items()}  # fmt: skip
        assert set(demo_section.best(scores, "nll")) == {"mc", "same"}
        assert demo_section.best(scores, "accuracy") == ["other"]
        table = demo_section.table(scores)
        nll, accuracy = (list(METRICS).index(key) for key in ("nll", "accuracy"))
        assert {(0, nll), (1, nll), (2, accuracy)} <= table.best
        assert not {(2, nll), (0, accuracy)} & table.best
        assert "not significantly different from it" in table.note
        said = demo_section.conclusion(scores)
        assert said.endswith("behind the best in any of the three: no method.")
        assert '"other" is best at detecting photographs.' in said

    def test_where_nothing_differs_nothing_is_best(self):
        same = {name: {key: [1.0, 2.0] for key in METRICS} for name in ("mc", "none")}
        assert demo_section.best(same, "nll") == []
        assert demo_section.table(same).best == set()
        said = demo_section.conclusion(same)
        assert said.startswith(
            "no method has the lowest NLL on test and on rotated digits, and no "
        )
        assert said.endswith(': "mc", "none".')

    def test_one_seed_claims_nothing(self):
        one = {key: [1.0] for key in demo_section.METRICS}
        (line,) = demo_section.findings({"mc": one, "none": one}, 1)
        assert "cannot be judged" in line
        other = {key: [2.0] for key in demo_section.METRICS}
        said = demo_section.conclusion({"mc": one, "none": other})
        assert said.startswith(
            '"mc" has the lowest NLL on test and on rotated digits, and "none" is'
        )
        assert said.endswith("With one seed this may be chance.")


class TestStudy:
    def test_same_seed_gives_the_same_figures(self):
        state = torch.random.get_rng_state()
        first, again = (demo.execute("gflowout", 1, 1) for _ in range(2))
        assert torch.equal(torch.random.get_rng_state(), state)
        assert first.scores == again.scores
        assert first.angle_entropy == again.angle_entropy
        assert (first.probabilities == again.probabilities).all()
        assert demo.execute("gflowout", 2, 1).scores != first.scores

    def test_methods_of_a_seed_see_the_same_images(self):
        runs = [demo.execute(name, 0, 1) for name in ("none", "mc")]
        assert (runs[0].images == runs[1].images).all()
        assert (runs[0].labels == runs[1].labels).all()

    def test_the_ensemble_has_five_networks_of_its_own(self):
        example = demo.split(0).train[0][:2]
        ensemble = demo._model("ensemble", 0, example)
        assert len(ensemble.members) == 5
        assert (ensemble.predict(example).mutual_information() > 0).all()
        again, other = (demo._model("ensemble", seed, example) for seed in (0, 1))
        assert torch.equal(again.predict(example).mean, ensemble.predict(example).mean)
        assert not torch.equal(other.predict(example).mean, ensemble.predict(example).mean)

    def test_every_method_is_one_of_the_library(self):
        from gflowout.methods import METHODS

        assert {options.get("method", name) for name, options in demo.METHODS.items()} <= set(
            METHODS
        )
        assert demo.BASELINE in demo.METHODS


class TestCommand:
    def test_table_has_every_method_in_80_columns(self, quick):
        output, _ = quick
        for name in demo.METHODS:
            assert re.search(rf"^ *{name} ", output, re.MULTILINE)
        assert "…" not in output
        lines = [line for line in output.splitlines() if "page.html" not in line]
        assert max(map(len, lines)) <= 80
        assert output.startswith("Training all methods")
        assert output.count("has the lowest NLL on test") == 1
        assert "against mc" not in output
        assert "mean nothing" in output

    def test_page_is_complete_and_needs_nothing_else(self, quick):
        _, out = quick
        text = out.read_text(encoding="utf-8")
        for name in demo.METHODS:
            assert f"Reliability diagram of {name}" in text
            assert f"Entropy histograms of {name}" in text
        links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text)
        assert links
        assert all(link.startswith(("data:", "#")) for link in links)
        assert not re.search(r"url\(|@import|<script src", text)
        plots = json.loads(re.search(r'id="plots">(.*?)</script>', text)[1])["plots"]
        assert len(plots) == 2 * len(demo.METHODS) + 2 + CARDS
        assert text.count("data-plot=") == len(plots)
        assert text.count("<img") == 3 * demo.EXAMPLES + CARDS
        assert "gflowout demo --seeds 2 --epochs 1" in text

    def test_page_explains_every_method(self, quick):
        _, out = quick
        text = out.read_text(encoding="utf-8")
        for name in demo.METHODS:
            assert re.search(rf"<dt>([^<]+ \()?{name}\)?</dt>", text), name

    def test_page_has_the_numbers_of_the_table(self, quick):
        output, out = quick
        row = re.search(r"^ *gflowout +([\d.]+) +([\d.]+)", output, re.MULTILINE)
        assert row
        text = out.read_text(encoding="utf-8")
        assert all(f">{number} <small>±" in text for number in row.groups())

    def test_only_the_page_is_left_behind(self, quick):
        _, out = quick
        assert [path.name for path in out.parent.iterdir()] == ["page.html"]

    def test_processes_give_the_same_runs(self, monkeypatch):
        chosen = {name: demo.METHODS[name] for name in ("mc", "id-gflowout")}
        monkeypatch.setattr(demo, "METHODS", chosen)
        both = [
            demo_section.train_all(demo.Settings(seeds=1, epochs=1, jobs=jobs), Console(quiet=True))
            for jobs in (1, 2)
        ]
        assert [one.method for one in both[0]] == list(chosen)
        assert [one.scores for one in both[0]] == [one.scores for one in both[1]]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--seeds", "0"], "seeds"),
            (["--epochs", "-1"], "epochs"),
            (["--out", "no/such/folder/page.html"], "folder no/such/folder does not exist"),
            (["--out", "."], "is a folder"),
        ],
    )
    def test_bad_options_are_refused_before_training(self, arguments, message, monkeypatch):
        monkeypatch.setattr(demo_section, "run", lambda *_: pytest.fail("trained"))
        result = invoke("demo", *arguments)
        assert result.exit_code == 2
        assert message in re.sub(r"[\s│]+", " ", result.output)

    def test_interrupt_is_short(self, monkeypatch, tmp_path):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(demo_section, "run", interrupted)
        result = invoke("demo", "--out", str(tmp_path / "page.html"))
        assert result.exit_code == 130
        assert result.output.splitlines()[-1] == "interrupted"

    def test_version_and_help(self):
        assert invoke("--version").output.strip() == f"gflowout {gfo.__version__}"
        assert "--quick" in invoke("demo", "--help").output
        assert "--repeats" in invoke("bench", "--help").output

    def test_bench_passes_its_options_on(self, monkeypatch, tmp_path):
        from gflowout import bench

        seen = {}
        monkeypatch.setattr(bench, "run", lambda **options: seen.update(options))
        out = tmp_path / "bench.json"
        result = invoke("bench", "--quick", "--width", "8", "--out", str(out))
        assert result.exit_code == 0, result.output
        expected = {"quick": True, "width": 8, "repeats": None, "plot": None, "only": ()}
        assert seen == {**expected, "out": out, "resume": False, "cpu": False}


class TestExtras:
    def test_demo_without_scikit_learn_says_what_to_install(self, monkeypatch, tmp_path):
        for name in ("demo", "demo_section"):
            monkeypatch.delitem(sys.modules, f"gflowout.studies.{name}")
            monkeypatch.delattr(studies, name)
        monkeypatch.setitem(sys.modules, "sklearn", None)
        result = invoke("demo", "--out", str(tmp_path / "page.html"))
        assert result.exit_code == 1
        expected = "gflowout demo needs scikit-learn: pip install -e '.[demo]'"
        assert expected in result.output

    def test_command_without_typer_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "typer", None)
        with pytest.raises(SystemExit, match=r"needs typer: pip install -e '\.\[cli\]'"):
            cli.main()

    def test_an_error_inside_an_installed_module_passes_through(self, monkeypatch, tmp_path: Path):
        (tmp_path / "half_installed.py").write_text("import no_such_dependency")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
            require("half_installed", extra="demo", purpose="a test")
        assert not isinstance(caught.value, MissingExtraError)


def test_write_keeps_the_old_page_if_it_fails(tmp_path):
    out = tmp_path / "page.html"
    write_text(out, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(out, "\ud800")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
