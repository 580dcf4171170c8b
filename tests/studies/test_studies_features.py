"""The features study: its problems and scores by brute force, its trials, its smoke preset."""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from gflowout.cli.study_runs import catalogue
from gflowout.core.inclusion import Inclusion
from gflowout.data import store
from gflowout.report import build, html, markdown
from gflowout.runs import Context, read
from gflowout.studies import features, features_fit, features_section
from gflowout.studies.features_data import (
    FLIPPED,
    PROBLEMS,
    RULES,
    Problem,
    auroc,
    discoveries,
    load,
    prediction,
)
from gflowout.studies.features_fit import (
    ARMS,
    EQUAL,
    Fitted,
    about_features,
    aligned,
    boosting,
    permutation_importance,
)
from gflowout.studies.features_rivals import RIVALS
from gflowout.studies.framework import study

# Problems


def test_labels_are_those_of_the_stated_rule() -> None:
    rules = {
        "independent": lambda x: 1.5 * x[0] + 2 * x[1] * x[2] + 2 * math.sin(2 * x[3]) + 1.5 * x[4],
        "interactions": lambda x: x[0] * x[1] + x[2] * x[3],
        "wide": lambda x: (
            2 * x[0] - 2 * x[1] + 1.5 * x[2] + 1.5 * math.tanh(3 * x[3]) + 1 - x[4] ** 2
        ),
    }
    rules["copies"] = rules["independent"]
    for name, rule in rules.items():
        problem = load(name, 3)
        x = np.concatenate([problem.x, problem.x_test])
        y = np.concatenate([problem.y, problem.y_test])
        right = np.array([rule(row) > 0 for row in x])
        wrong = float((right != y).mean())
        assert wrong == pytest.approx(FLIPPED, abs=4 * math.sqrt(0.09 / len(y))), name
        assert 0.35 < y.mean() < 0.65, name
        assert problem.x.shape == (PROBLEMS[name].rows, 400 if name == "wide" else 60)
        assert len(problem.x_test) == 4000


@pytest.mark.parametrize("name", ["independent", "copies", "interactions", "wide"])
def test_what_matters_is_what_changes_the_label(name: str) -> None:
    decide = RULES["independent" if name == "copies" else name]
    problem = load(name, 0, rows=300, test=10)
    before = decide(problem.x.T) > 0
    assert problem.relevant is not None
    for feature in range(problem.x.shape[1]):
        changed = problem.x.copy()
        changed[:, feature] += 2.0
        changes = bool(((decide(changed.T) > 0) != before).any())
        twin = name == "copies" and 5 <= feature < 10
        matters = bool(problem.relevant[problem.family[feature]])
        assert matters == (changes or twin)
        assert matters != problem.irrelevant[feature]


def test_copies_are_of_one_family_and_near() -> None:
    problem = load("copies", 1)
    assert problem.family[:12].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]
    assert problem.relevant is not None
    assert len(problem.relevant) == problem.family.max() + 1 == 55
    gaps = problem.x[:, 5:10] - problem.x[:, :5]
    assert gaps.std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("name", ["independent", "copies", "breast-cancer", "digits"])
def test_problems_are_functions_of_the_seed(name: str) -> None:
    first, again, other = load(name, 0), load(name, 0), load(name, 1)
    assert first.checksums(True) == again.checksums(True)
    assert not set(first.checksums(True).values()) & set(other.checksums(True).values())
    assert first.valid.sum() == len(first.y) // 5
    rows = {row.tobytes() for row in first.x}
    assert not any(row.tobytes() in rows for row in first.x_test)


def test_a_shift_stretches_what_does_not_matter_and_nothing_else() -> None:
    for name in ("copies", "breast-cancer"):
        problem = load(name, 0)
        shifted = problem.shifted()
        for feature in range(problem.x.shape[1]):
            factor = 3 if problem.irrelevant[feature] else 1
            assert np.array_equal(shifted[:, feature], factor * problem.x_test[:, feature])
    assert load("breast-cancer", 0).irrelevant.sum() == 100


def test_drugs_of_other_hospitals(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(real_data("eicu-demo").parent))
    plain, noisy = load("eicu", 0), load("eicu-noise", 0)
    drugs = plain.x.shape[1]
    assert np.array_equal(noisy.x[:, :drugs], plain.x)
    assert noisy.x.shape[1] == drugs + 100
    assert noisy.names[:drugs] == plain.names
    assert noisy.names[drugs] == "noise 0"
    assert not plain.irrelevant.any()
    assert np.array_equal(noisy.irrelevant, np.arange(drugs + 100) >= drugs)
    assert set(np.unique(plain.x)) == {0.0, 1.0}
    assert 0.1 < plain.valid.mean() < 0.3
    trial = next(
        each
        for each in features.tuning("cpu")
        if each.data == "eicu-noise draw 0" and each.method == "l1"
    )
    found = features.work(trial, Context(Path("nowhere")))["metrics"]
    rate = plain.y[~plain.valid].mean()
    base = log_loss(plain.y[plain.valid], np.full(plain.valid.sum(), rate))
    assert found["valid/nll"] < base + 0.02


# Scores


def test_prediction_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 4):
        y = rng.integers(classes, size=200)
        said = rng.dirichlet(np.ones(classes), 200) + 0.5 * np.eye(classes)[y]
        said /= said.sum(1, keepdims=True)
        said = said.clip(0.01) / said.clip(0.01).sum(1, keepdims=True)
        found = prediction(said, y)
        assert found["nll"] == pytest.approx(log_loss(y, said))
        assert found["accuracy"] == (said.argmax(1) == y).mean()
        other = said[:, 1] if classes == 2 else said
        assert found["auroc"] == pytest.approx(roc_auc_score(y, other, multi_class="ovr"))


def test_a_probability_of_0_does_not_cost_everything() -> None:
    found = prediction(np.array([[1.0, 0.0]]), np.array([1]))
    assert found["nll"] == pytest.approx(-math.log(1e-4), rel=1e-3)
    assert math.isnan(found["auroc"])


def test_auroc_counts_pairs() -> None:
    rng = np.random.default_rng(1)
    score, right = rng.integers(5, size=30).astype(float), rng.random(30) < 0.3
    pairs = [
        (a > b) + 0.5 * (a == b) for a, b in itertools.product(score[right], score[~right])
    ]  # fmt: skip
    assert auroc(score, right) == pytest.approx(sum(pairs) / len(pairs))


def test_families_count_once() -> None:
    # Two chains; the first keeps either of the copies 0 and 1, never both.
    first = [[1, 0, 0], [0, 1, 0]] * 5
    second = [[0, 0, 1], [0, 0, 0]] * 5
    masks, weights = np.array([first, second], dtype=float), np.array([0.75, 0.25])
    family, relevant = np.array([0, 0, 1]), np.array([True, False])
    problem = Problem(
        np.zeros((4, 3)), np.array([0, 1, 0, 1]), np.zeros(4, bool), np.zeros((2, 3)),
        np.array([0, 1]), ("a", "b", "c"), family, relevant, np.array([False, False, True]),
    )  # fmt: skip
    drawn = Inclusion(torch.tensor(masks).unsqueeze(2), torch.tensor(weights))
    fitted = Fitted(lambda x: np.full((len(x), 2), 0.5), 2, 1.0, drawn)
    made = about_features(problem, fitted, whole=False)
    assert made["inclusion/families"] == [0.75, 0.125]
    assert made["inclusion/auroc"] == 1.0
    assert made["inclusion/size"] == pytest.approx(0.875)
    assert made["inclusion/brier"] == pytest.approx((0.25**2 + 0.125**2) / 2)
    assert made["inclusion/found"] == 0  # no copy alone reaches one half
    assert made["inclusion/fdr"] == 0
    assert made["inclusion/noise"] == pytest.approx(0.125)
    assert made["inclusion/names"] == ["a", "b", "c"]
    assert not about_features(problem, Fitted(fitted.proba, 1, 1.0), whole=True)


def test_discoveries_by_hand() -> None:
    family, relevant = np.array([0, 1, 0, 1, 2, 3]), np.array([True, True, False, False])
    found = np.array([True, False, True, False, True, False])
    made = discoveries(found, family, relevant, family > 1)
    assert made == pytest.approx({"found": 3, "false": 1, "true": 1, "fdr": 1 / 3, "strict": 2 / 3})
    unknown = discoveries(found, family, None, family > 2)
    assert unknown == {"found": 3, "false": 0}


def test_reliability_of_known_probabilities() -> None:
    few = features_section.reliability(
        np.array([0.0, 0.02, 0.9, 1.0]), np.array([0, 1, 1, 1], bool)
    )
    assert few == [(0.01, 0.5, 2), (0.9, 1.0, 1), (1.0, 1.0, 1)]
    rng = np.random.default_rng(2)
    said = rng.random(20_000)
    bins = features_section.reliability(said, rng.random(20_000) < said)
    assert sum(count for _, _, count in bins) == 20_000
    assert all(abs(mean - share) < 0.04 for mean, share, _ in bins)
    liar = features_section.reliability(said, rng.random(20_000) < 1 - said)
    assert max(abs(mean - share) for mean, share, _ in liar) > 0.8


# Arms


def test_permutation_importance_finds_what_a_model_uses() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 6))
    y = (2 * x[:, 0] - x[:, 1] + 0.3 * rng.standard_normal(400) > 0).astype(np.int64)
    model = LogisticRegression().fit(x[:200], y[:200])
    model.coef_[:, 2:] = 0
    mean, firm = permutation_importance(aligned(model, 2), x[200:], y[200:], seed=0)
    assert firm.tolist() == [True, True, False, False, False, False]
    assert mean[0] > mean[1] > 0
    assert np.abs(mean[2:]).max() < 1e-12


def test_boosting_stops_where_held_out_rows_say() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((150, 3))
    noise = rng.integers(2, size=150)
    few = boosting(x, noise, 4, 0.3, seed=0, rounds=40)
    clear = boosting(x, (x[:, 0] > 0).astype(np.int64), 4, 0.3, seed=0, rounds=40)
    assert few.n_iter_ < 8 < clear.n_iter_


def test_l1_sets_weights_to_0_and_says_which_it_kept() -> None:
    problem = load("independent", 0, 800, 10)
    found = {
        value: features_fit.fit(
            ARMS["l1"], {"C": value}, problem.x, problem.y, classes=2, epochs=1, seed=0
        ).selected
        for value in (0.02, 0.06, 10.0)
    }
    kept = {value: int(flags.sum()) for value, flags in found.items() if flags is not None}
    assert kept[0.02] < kept[0.06] < kept[10.0] <= 60
    assert found[0.02] is not None
    assert set(np.flatnonzero(found[0.02])) >= {0, 4}  # the linear ones


def test_classes_that_were_not_seen_have_a_column() -> None:
    model = LogisticRegression().fit(np.array([[0.0], [1.0], [2.0]]), [0, 2, 2])
    said = aligned(model, 4)(np.array([[1.0]]))
    assert said.shape == (1, 4)
    assert said[0, 1] == said[0, 3] == 0
    assert said.sum() == pytest.approx(1)


def test_every_arm_has_as_many_trials() -> None:
    for arm in ARMS.values():
        own = ARMS[arm.like] if arm.like else arm
        assert len({tuple(sorted(each.items())) for each in own.trials}) == 6, arm.label
        assert bool(arm.like) == (not arm.trials)
    assert ARMS["mc-equal"].members == EQUAL > ARMS["id-gflowout"].members
    for preset in study.PRESETS:
        trials = features.tuning(preset)
        counts: dict[tuple[str, str], int] = {}
        for trial in trials:
            assert trial.study == study.TUNING
            counts[trial.data, trial.method] = counts.get((trial.data, trial.method), 0) + 1
        assert set(counts.values()) == {features.TRIALS[preset]}
        runs = features.runs(preset, {})
        assert len({run.id for run in runs}) == len(runs)
        runs = [run for run in runs if run.data in PROBLEMS]  # without rivals
        assert {run.method for run in runs} == set(ARMS)
        if preset != "smoke":
            assert features.SEEDS[preset] >= 5
            assert {run.data for run in runs} == set(PROBLEMS)
            alone = next(run for run in runs if run.data == "independent")
            assert alone.options["fit.epochs"] == 86  # 600 steps of 640 rows


def test_every_run_has_a_price() -> None:
    own = [run for run in features.runs("cpu", {}) if run.data in PROBLEMS]
    total = sum(map(features.seconds, [*features.tuning("cpu"), *own]))
    assert 3600 < total < 3 * 3600
    everything = sum(map(features.seconds, features.runs("cpu", {})))
    assert everything - sum(map(features.seconds, own)) < 5 * 3600  # rivals
    runs = {(run.data, run.method): run for run in features.runs("cpu", {}) if run.seed == 0}
    many, few = runs["copies", "id-gflowout"], runs["interactions", "id-gflowout"]
    assert features.seconds(many) == 3 * features.seconds(few)  # 15 chains and 5
    assert any(line.endswith("Which inputs matter (not in the paper)") for line in catalogue())


def test_runs_take_what_was_chosen_for_their_own_draw() -> None:
    chosen = {(features.place("copies", seed), "mc"): {"lr": 0.1 + seed} for seed in range(5)}
    for run in features.runs("cpu", chosen):
        if run.data == "copies" and run.method in ("mc", "mc-ensemble", "mc-equal"):
            assert run.options["tuned"] == {"lr": 0.1 + run.seed}
        elif run.method == "mc":
            assert dict(run.options["tuned"]) == ARMS["mc"].trials[0]


@pytest.mark.parametrize("arm", ["ensemble", "boosting"])
def test_trials_do_not_look_at_test_rows(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = next(each for each in features.tuning("smoke") if each.method == arm)
    found = features.work(trial, Context(Path("nowhere")))
    assert set(found["data"]) == {"train"}
    names = set(found["metrics"])
    assert names == {"valid/nll", "valid/accuracy", "valid/auroc", "cost/train"}

    def spoiled(*given: object) -> Problem:
        problem = load(*given)  # type: ignore[arg-type]
        nothing = np.full_like(problem.x_test, math.nan)
        return dataclasses.replace(problem, x_test=nothing, y_test=1 - problem.y_test)

    monkeypatch.setattr(features, "load", spoiled)
    again = features.work(trial, Context(Path("nowhere")))
    assert _figures(again["metrics"]) == _figures(found["metrics"])


def test_trials_are_judged_on_rows_that_were_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    real = features_fit.fit

    def fit(arm: object, tuned: object, x: np.ndarray, y: np.ndarray, **how: object) -> Fitted:
        seen.append(x)
        return real(arm, tuned, x, y, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(features, "fit", fit)
    trial = next(each for each in features.tuning("smoke") if each.method == "l1")
    features.work(trial, Context(Path("nowhere")))
    problem = load("independent", 0, 120, 60)
    assert np.array_equal(seen[0], problem.x[~problem.valid])


# All of it


@pytest.mark.usefixtures("one_thread")
def test_smoke_end_to_end(smoke: Callable[[str], Path], tmp_path: Path) -> None:
    made = study.get("features")
    out = smoke("features")
    runs = (*made.tuning("smoke"), *features.runs("smoke", {}))
    for path in out.glob("*.json"):  # without those of other studies
        if any(run.id in path.name for run in runs):
            shutil.copy(path, tmp_path)
    records = [record for record in read(tmp_path, "done") if record["study"] == "features"]
    rivals = [record for record in records if record["data"] not in PROBLEMS]
    assert {record["method"] for record in rivals} == {
        name for name, rival in RIVALS.items() if not rival.package
    }
    records = [record for record in records if record["data"] in PROBLEMS]
    assert {record["method"] for record in records} == set(ARMS)
    for record in records:
        metrics = record["metrics"]
        assert metrics["test/nll"] > 0
        assert ("inclusion/auroc" in metrics) == (
            record["data"] == "independent"
            and (ARMS[record["method"]].inputs or record["method"] in ("l1", "forest", "boosting"))
        )
        if record["method"] in ("id-gflowout", "gates"):
            assert metrics["cost/networks"] == 2
            assert metrics["inclusion/values"] == sorted(metrics["inclusion/values"], reverse=True)
            assert metrics["single/nll"] > 0
    found = made.section(records)
    assert {claim.verdict for claim in found.claims} == {"open"}
    shown = build.build(tmp_path)
    text = markdown.document(shown)
    assert "(not in the paper)" in text
    assert "What the paper says" not in text  # its claims are our own, and stand in its section
    assert text.index("## Which inputs matter") < text.index("NLL below that of every baseline")
    page = html.page(shown)
    assert "not in the paper" in page
    assert "claims of the paper" not in page
    again = study.run(made, "smoke", tmp_path, engine="inline", progress=False)
    assert again.skipped == again.total
    for record in records:
        if record["data"] == "independent" and record["method"] in (
            "id-gflowout",
            "boosting",
            "l1",
        ):
            run = next(each for each in features.runs("smoke", {}) if each.id == record["id"])
            once_more = features.work(run, Context(tmp_path / "x"))["metrics"]
            assert _figures(once_more) == _figures(record["metrics"])


def _figures(metrics: dict) -> dict:
    """All but times."""
    return {
        name: value
        for name, value in metrics.items()
        if name not in ("cost/train", "cost/predict") and value == value
    }
