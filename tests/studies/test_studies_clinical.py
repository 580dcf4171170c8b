"""The clinical study: its scores against brute force, its sections from hand-made records, and the
smoke preset on real data."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_score, recall_score

from gflowout.app import sources
from gflowout.app.config import DataConfig
from gflowout.data import clinical as data
from gflowout.data import store
from gflowout.runs import Context, read
from gflowout.studies import clinical
from gflowout.studies import images as models
from gflowout.studies.clinical import PUBLISHED, section
from gflowout.studies.framework import study
from gflowout.studies.framework.arms import of_preset
from gflowout.studies.framework.content import PAPER, Curves, Table


def test_risk_coverage_is_the_mean_over_all_orders_of_equals() -> None:
    uncertainty = torch.tensor([0.3, 0.1, 0.3, 0.2, 0.3, 0.1])
    loss = torch.tensor([1.0, 0.5, 0.0, 0.25, 0.0, 2.0])
    found = clinical.risk_coverage(uncertainty, loss)
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order))
    ]
    assert len(orders) == 2 * 6
    for count in range(1, 7):
        expected = sum(float(loss[list(order[:count])].mean()) for order in orders) / len(orders)
        assert float(found[count - 1]) == pytest.approx(expected)


def test_risk_coverage_without_equals_is_a_running_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    uncertainty, loss = torch.rand(50, generator=generator), torch.rand(50, generator=generator)
    found = clinical.risk_coverage(uncertainty, loss)
    kept = loss[uncertainty.argsort()]
    for count in (1, 7, 50):
        assert float(found[count - 1]) == pytest.approx(float(kept[:count].mean()))
    points = clinical.at_coverages(found)
    assert len(points) == len(clinical.COVERAGES) == 20
    assert points[-1] == pytest.approx(float(loss.mean()), abs=1e-6)
    assert points[9] == pytest.approx(float(kept[:25].mean()), abs=1e-6)
    assert points[0] == pytest.approx(float(kept[:3].mean()), abs=1e-6)  # 2.5 patients: 3


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 2.0])
def test_macro_scores_are_those_of_scikit_learn(threshold: float) -> None:
    generator = torch.Generator().manual_seed(1)
    risk = torch.rand(80, generator=generator)
    died = (torch.rand(80, generator=generator) < 0.2).long()
    found = clinical.macro(risk, died, threshold)
    said = (risk >= threshold).long()
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = score(died, said, average="macro", zero_division=0)
        assert found[name] == pytest.approx(expected)


def test_best_threshold_beats_every_other_one() -> None:
    generator = torch.Generator().manual_seed(2)
    died = (torch.rand(60, generator=generator) < 0.2).long()
    risk = (torch.rand(60, generator=generator) + 0.5 * died).double()
    best = clinical.macro(risk, died, clinical.best_threshold(risk, died))["f1"]
    grid = [clinical.macro(risk, died, place)["f1"] for place in torch.linspace(-1, 3, 2001)]
    assert best == pytest.approx(max(grid))
    apart = torch.tensor([0.125, 0.25, 0.5, 1.0]), torch.tensor([0, 0, 1, 1])
    assert clinical.best_threshold(*apart) == 0.375  # half way between


def test_logistic_minimises_the_penalised_loss_with_a_free_intercept() -> None:
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(300, 12, generator=generator) < 0.3).float()
    y = (torch.rand(300, generator=generator) < (2 * x[:, 0] - 2).sigmoid()).float()
    risk = clinical.logistic(x, y, penalty=2.0)(x)
    inputs = torch.cat([x, torch.ones(300, 1)], 1).double()
    weights = torch.linalg.lstsq(inputs, torch.logit(risk)).solution
    gradient = inputs.T @ (risk - y)
    assert gradient[:-1].numpy() == pytest.approx(-2.0 * weights[:-1].numpy(), abs=1e-5)
    assert float(gradient[-1]) == pytest.approx(0, abs=1e-5)
    other = LogisticRegression(C=0.5, tol=1e-10, max_iter=2000).fit(x.double().numpy(), y.numpy())
    assert weights[:-1].numpy() == pytest.approx(other.coef_[0], abs=1e-4)
    assert float(weights[-1]) == pytest.approx(other.intercept_[0], abs=1e-4)
    assert risk.numpy() == pytest.approx(other.predict_proba(x.numpy())[:, 1], abs=1e-5)


def test_presets_have_every_arm_with_as_many_trials() -> None:
    for preset in study.PRESETS:
        trials = clinical.tuning(preset)
        counts: dict[tuple[str, str], int] = {}
        for trial in trials:
            assert trial.study == study.TUNING
            counts[trial.data, trial.method] = counts.get((trial.data, trial.method), 0) + 1
        assert len(set(counts.values())) == 1
        arms = {arm.label for arm in of_preset(preset, clinical.ALL.values())}
        assert {arm for _, arm in counts} == {arm for arm in arms if not clinical.ALL[arm].rate_of}
        runs = clinical.runs(preset, {})
        count = len(arms) * clinical.PRESETS[preset]["seeds"] * len(clinical.protocols(preset))
        assert len({run.id for run in runs}) == len(runs) == count
        for run in [*runs, *trials]:  # every configuration is one
            arm = clinical.ALL[run.method]
            if arm is not clinical.LOGISTIC:
                made = models.settings(arm, models.dotted(run), run.options["tuned"], run.seed)
                source = run.data.partition(" ")[0].removesuffix("-pair")
                assert made.data.source == source
    paper = {run.data: run.options for run in clinical.runs("paper", {})}
    assert paper["eicu"]["data.options.test_hospital"] == 167  # the appendix
    assert "data.options.train_hospital" not in paper["eicu"]
    assert paper["eicu-pair"]["data.options.train_hospital"] == "~4500"  # the main text
    assert paper["eicu-pair"]["data.options.test_hospital"] == "~4018"
    assert clinical.PRESETS["cpu"]["seeds"] >= 5


def test_every_draw_of_hospitals_is_tuned_for_itself() -> None:
    chosen = {
        (clinical.place("cpu", seed), "mc"): {"method.options.rate": seed / 10} for seed in range(9)
    }
    rates = {
        run.seed: run.options["tuned"].get("method.options.rate")
        for run in clinical.runs("cpu", chosen)
        if run.method == "mc"
    }
    assert {seed: rates[seed] for seed in range(9)} == {seed: seed / 10 for seed in range(9)}
    assert all(trial.data == f"eicu-demo draw {trial.seed}" for trial in clinical.tuning("cpu"))


def test_section_of_hand_made_records() -> None:
    records = _records(gain=0.1)
    found = section(records)
    table = found.blocks[1]
    assert isinstance(table, Table)
    ours = {row.title: row for row in table.rows if row.source != PAPER}
    assert ours["GFlowOut"].cells[0].mean == pytest.approx(0.60505)
    assert ours["GFlowOut"].cells[0].runs == 4
    assert ours["GFlowOut"].cells[0].error == pytest.approx(0.01 * math.sqrt(5 / 12), rel=0.02)
    assert ours["MC dropout"].cells[0].mean == pytest.approx(0.505)
    theirs = {row.title: [cell.mean for cell in row.cells[:3]] for row in table.rows[len(ours) :]}
    assert theirs["GFlowOut"] == [0.536, 0.528, 0.681]
    assert theirs["Random"] == [0.49, 0.5, 0.499]
    assert len(theirs) == len(PUBLISHED)
    assert found.blocks[5].rows[0].cells[0].text == "lr 0.001 (3 of 4); lr 0.002 (1 of 4)"
    curves = [block for block in found.blocks if isinstance(block, Curves)]
    assert curves[0].series[0].y == pytest.approx([0.1, 0.2])
    assert found.claims[0].verdict == "tested on a stand-in"
    assert found.claims[0].why.startswith("Holds on the eICU demo, in place of the full")
    assert "MC dropout" in found.findings[0]
    assert "better than" in found.findings[0]
    assert list(found.data) == ["eicu-demo"]


def test_claims_follow_the_stated_rule() -> None:
    level = section(_records(gain=0.0)).claims[0]
    assert level.verdict == "tested on a stand-in"  # never "not reproduced"
    assert level.why.startswith("Does not hold on the eICU demo")
    assert section(_records(gain=0.0, data="eicu")).claims[0].verdict == "not reproduced"
    assert section(_records(gain=0.1, data="eicu")).claims[0].verdict == "reproduced"
    few = [record for record in _records(gain=0.1) if record["seed"] < 2]
    assert section(few).claims[0].verdict == "not testable here"
    wide = _records(gain=0.0, noise=0.3)
    assert section(wide).claims[0].verdict == "not testable here"


def test_sections_of_parts_of_a_study() -> None:
    assert section([]).findings
    one = [record for record in _records(gain=0.1) if record["method"] == "mc"][:1]
    found = section(one)
    assert {claim.verdict for claim in found.claims} == {"not testable here"}
    assert isinstance(found.blocks[1], Table)


@pytest.mark.parametrize("arm", ["none", "logistic"])
def test_trials_do_not_look_at_test_patients(
    arm: str,
    real_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(real_data("eicu-demo").parent))
    trial = next(trial for trial in clinical.tuning("smoke") if trial.method == arm)
    found = clinical.work(trial, Context(tmp_path / "a" / "run"))
    assert set(found["data"]) == {"train", "valid"}
    names = set(found["metrics"])
    assert "valid/nll" in names
    assert not any(name.startswith(("test", "chosen", "share", "half", "risk")) for name in names)
    real = sources.load

    def spoiled(section: DataConfig, seed: int) -> sources.Task:
        task = real(section, seed)
        assert task.test is not None
        part = sources.Part(torch.full_like(task.test.x, math.nan), 1 - task.test.y)
        return dataclasses.replace(task, test=part)

    monkeypatch.setattr(sources, "load", spoiled)
    again = clinical.work(trial, Context(tmp_path / "b" / "run"))
    assert again["metrics"] == found["metrics"]


@pytest.mark.usefixtures("one_thread")
def test_smoke_end_to_end(
    smoke: Callable[[str], Path],
    real_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = real_data("eicu-demo").parent
    records = [r for r in read(smoke("clinical"), "done") if r["study"] == "clinical"]
    arms = of_preset("smoke", clinical.ALL.values())
    assert {record["method"] for record in records} == {arm.label for arm in arms}
    for record in records:
        assert len(record["metrics"]["curve/risk/error"]) == 20
        assert record["metrics"]["deaths/test"] == 32
        assert 0 <= record["metrics"]["risk/brier"] <= 1
        full = record["metrics"]["curve/risk/brier"][-1]
        assert full == pytest.approx(record["metrics"]["test/brier"], abs=1e-5)
    found = section(records)
    assert len(found.claims) == 4
    # Eight blocks, then the comparisons at equal keep rates: a text and a table.
    assert len(found.blocks) == 10
    # The same run, in a folder that holds no trained model.
    monkeypatch.setenv(store.VARIABLE, str(folder))
    for record in records:
        if record["method"] in ("gflowout", "logistic"):
            run = next(r for r in clinical.runs("smoke", {}) if r.method == record["method"])
            assert run.id == record["id"]
            again = clinical.work(run, Context(tmp_path / "second" / run.id))
            assert again["metrics"] == record["metrics"]


def test_hospitals_of_a_seed_are_its_own(real_data: Callable[[str], Path]) -> None:
    folder = real_data("eicu-demo").parent
    drawn = [
        set(data.load("eicu-demo", folder, test_hospital=0.3, seed=seed).test.hospitals.tolist())
        for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]


def _records(gain: float, noise: float = 0.0, data: str = "eicu-demo") -> list[dict]:
    """Four seeds of three arms, GFlowOut ahead of the others in F1, precision and recall."""
    made = []
    for seed in range(4):
        for arm in ("mc", "concrete", "gflowout"):
            ahead = (gain + noise * (-1) ** seed) if arm == "gflowout" else 0.0
            level = 0.49 + seed / 100 + ahead + 1e-4 * (seed % 2) * (arm == "gflowout")
            macro = dict.fromkeys(("f1", "precision", "recall"), level)
            if arm == "gflowout":
                macro["recall"] += 0.1 if gain else 0.0
            made.append(
                {
                    "study": "clinical",
                    "data": data,
                    "method": arm,
                    "seed": seed,
                    "started": "",
                    "options": {"tuned": {"fit.lr": 0.001 * (1 + seed // 3)}},
                    "metrics": {
                        **{f"{k}/{n}": v for k in ("chosen", "share") for n, v in macro.items()},
                        "test/auroc": 0.7,
                        "test/nll": 0.2,
                        "curve/coverage": [0.5, 1.0],
                        "curve/risk/error": [0.1, 0.2],
                        "curve/risk/brier": [0.1, 0.2],
                    },
                }
            )
    return made
