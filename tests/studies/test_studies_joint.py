"""The study joint: its problems and scores by brute force, its models, its plan."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from enumeration import all_masks
from torch import Tensor
from training_loop import descend

import gflowout as gfo
from gflowout.data import store
from gflowout.runs import Context, read
from gflowout.studies import joint, joint_data, joint_fit, joint_scores
from gflowout.studies.framework import study
from gflowout.studies.joint_data import PROBLEMS, Problem, load
from gflowout.studies.joint_fit import ARMS, CVAE, Fitted, Mixture, fit
from gflowout.studies.joint_scores import Answer, Pairs, energy_score, measure, remaining_bias

HOW = {
    "steps": 12, "batch": 20, "every": 3, "patience": 2, "valid_draws": 5, "draws": 8,
}  # fmt: skip
BITS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
ROWS = (40, 20, 20)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Problems


def test_problems_are_functions_of_the_seed() -> None:
    for name in ("tags", "arm", "digits-small"):
        first, again, other = (load(name, seed, ROWS).checksums(True) for seed in (0, 0, 1))
        assert first == again
        assert first["train"] != other["train"]
        if not PROBLEMS[name].synthetic:  # the same test rows for all seeds
            assert first["test"] == other["test"]


def test_digits_are_put_together_again() -> None:
    problem = load("digits-small", 3)
    pictures = {torch.cat([x, y]).numpy().tobytes() for x, y in zip(*problem.test, strict=True)}
    for x, y in zip(*problem.train, strict=True):
        assert torch.cat([x, y]).shape == (64,)
    from sklearn.datasets import load_digits

    known = (torch.from_numpy(load_digits().images).flatten(1) >= 8).float()
    assert pictures <= {row.numpy().tobytes() for row in known}
    assert [len(part[0]) for part in (problem.train, problem.valid, problem.test)] == [
        1000, 297, 500,
    ]  # fmt: skip
    assert problem.side == 8


def test_mnist_has_other_pictures_for_the_test(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(real_data("mnist").parent))
    problem = load("digits", 0, (300, 100, 200))
    assert problem.train[0].shape == (300, 98)
    assert problem.test[1].shape == (200, 98)
    assert set(problem.train[1].unique().tolist()) == {0.0, 1.0}
    other = load("digits", 1, (300, 100, 200))
    assert torch.equal(problem.test[0], other.test[0])
    assert not torch.equal(problem.train[0], other.train[0])


def test_drugs_of_patients(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(real_data("eicu-demo").parent))
    for name in ("drugs", "drugs-hospitals", "home-drugs"):
        problem = load(name, 0)
        rows = [len(part[0]) for part in (problem.train, problem.valid, problem.test)]
        assert sum(rows) <= (700 if name == "home-drugs" else 2520)
        assert 0.2 < rows[2] / sum(rows) < 0.4
        for x, y in (problem.train, problem.valid, problem.test):
            assert x.isfinite().all()
            assert y.shape[1] == joint_data.LABELS
            assert set(y.unique().tolist()) == {0.0, 1.0}
        share = problem.train[1].mean(0)
        assert share.min() > 0.01
        assert abs(problem.train[0][:, 0].mean()) < 1e-4  # age, standardised by training stays
    assert load("drugs", 1).checksums(True)["test"] != load("drugs", 0).checksums(True)["test"]


def test_exact_probabilities_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_data, "POSITIONS", 4)
    x = load("tags", 0, (3, 1, 1)).train[0]
    tags = torch.tensor(list(itertools.product(range(4), repeat=4)))
    follow, words = (table.exp() for table in joint_data.chain())
    assert torch.allclose(follow.sum(1), torch.ones(4))
    assert torch.allclose(words.sum(1), torch.ones(4))
    for row in x:
        said = row.reshape(4, -1).argmax(-1).tolist()
        weights = []
        for path in tags.tolist():
            weight = 0.25 * math.prod(float(words[t, w]) for t, w in zip(path, said, strict=True))
            weight *= math.prod(float(follow[a, b]) for a, b in itertools.pairwise(path))
            weights.append(weight)
        expected = torch.tensor(weights) / sum(weights)
        found = joint_data.tags_log_prob(row.expand(256, -1), tags).exp()
        assert torch.allclose(found, expected, atol=1e-6)


def test_exact_density_of_the_arm() -> None:
    x = load("arm", 0, (2, 1, 1)).train[0]
    sides = [torch.linspace(-6, 6, 700), torch.linspace(-2.5, 2.5, 401)]
    grid = torch.cartesian_prod(*sides)
    cell = float((sides[0][1] - sides[0][0]) * (sides[1][1] - sides[1][0]))
    for row in x:
        evidence = joint_data.arm_log_prob(row.unsqueeze(0), torch.zeros(1, 2))
        whole = joint_data.arm_log_prob(row.expand(2, -1), torch.stack([grid[0], grid[1]]))
        assert whole.shape == (2,)
        prior = -0.5 * grid[:, 0] ** 2
        joined = prior - (row - joint_data.tip(grid)).square().sum(-1) / (2 * 0.05**2)
        by_hand = -((row - joint_data.tip(torch.zeros(2))).square().sum() / (2 * 0.05**2))
        by_hand = by_hand - joined.double().logsumexp(0) - math.log(cell)
        assert float(evidence) == pytest.approx(float(by_hand), abs=0.02, rel=1e-4)


def test_an_arm_bends_either_way() -> None:
    angles = torch.tensor([[0.3, 1.2]])
    mirrored = torch.tensor([[0.3 + 1.2, -1.2]])
    assert torch.allclose(joint_data.tip(angles), joint_data.tip(mirrored), atol=1e-6)


# Scores


@pytest.mark.parametrize("kind", ["bits", "tags", "numbers"])
def test_scores_by_hand(kind: str) -> None:
    likelihood: gfo.Likelihood = {
        "bits": gfo.MultiLabel(3),
        "tags": gfo.Categorical(3),
        "numbers": gfo.Gaussian(2, heteroscedastic=True),
    }[kind]
    shape = {"bits": (3,), "tags": (2, 3), "numbers": (4,)}[kind]
    outputs = torch.randn(6, 5, *shape, generator=seeded())
    y: Tensor = {
        "bits": torch.rand(5, 3, generator=seeded(1)).round(),
        "tags": torch.randint(3, (5, 2), generator=seeded(1)),
        "numbers": torch.randn(5, 2, generator=seeded(1)),
    }[kind]
    found, _ = measure([(Answer(outputs, likelihood), y)], seeded())
    pred = gfo.Predictive(outputs, likelihood)
    assert found["joint"] == pytest.approx(pred.log_prob(y).mean().item(), rel=1e-5)
    half = gfo.Predictive(outputs[:3], likelihood)
    assert found["half"] == pytest.approx(half.log_prob(y).mean().item(), rel=1e-5)
    weights = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1]).log().unsqueeze(1).expand(6, 5)
    weighted, _ = measure([(Answer(outputs, likelihood, weights, exact=True), y)], seeded())
    repeated = outputs[[0, 0, 0, 0, 0, 1, 2, 3, 4, 5]]
    again = gfo.Predictive(repeated, likelihood).log_prob(y).mean().item()
    assert weighted["joint"] == weighted["half"] == pytest.approx(again, rel=1e-5)
    assert weighted["bias"] == 0
    alone = 0.0
    for row in range(5):
        for part in range(y.shape[1]):
            own = torch.stack([
                joint_scores.part_log_prob(likelihood, outputs, y)[draw, row, part]
                for draw in range(6)
            ])  # fmt: skip
            alone += float(own.exp().mean().log())
    assert found["marginal"] == pytest.approx(alone / 5, rel=1e-5)


def test_marginals_of_parts_lose_what_goes_together() -> None:
    both = torch.tensor([[[9.0, 9.0]], [[-9.0, -9.0]]]).expand(2, 4, 2)
    y = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    found, _ = measure([(Answer(both, gfo.MultiLabel(2), exact=True), y)], seeded())
    assert found["joint"] == pytest.approx(math.log(0.5), abs=1e-3)
    assert found["marginal"] == pytest.approx(2 * math.log(0.5), abs=1e-3)


def test_the_bias_of_few_draws() -> None:
    # Log-normal likelihoods: E[w] = 1, Var(w) = exp(s^2) - 1.
    spread, rows = 0.8, 4000
    for draws in (20, 100):
        noise = torch.randn(draws, rows, generator=seeded(draws)) * spread - spread**2 / 2
        found = joint_scores.log_mean(noise).mean().item()
        expected = math.expm1(spread**2) / (2 * draws)
        assert -1.3 * expected < found < -0.7 * expected  # too low, and so much
        assert 0.7 * expected < remaining_bias(noise).mean().item() < 2.5 * expected
    alike = torch.zeros(20, 3)
    assert torch.allclose(remaining_bias(alike), torch.zeros(3), atol=1e-6)
    assert remaining_bias(torch.zeros(2, 3)).isnan().all()


def test_energy_score_by_hand() -> None:
    drawn, y = torch.randn(5, 3, 2, generator=seeded()), torch.randn(3, 2, generator=seeded(1))
    for row in range(3):
        near = sum(math.dist(drawn[i, row], y[row]) for i in range(5)) / 5
        pairs = itertools.permutations(range(5), 2)
        apart = sum(math.dist(drawn[i, row], drawn[j, row]) for i, j in pairs) / 20
        assert float(energy_score(drawn, y)[row]) == pytest.approx(near - apart / 2, abs=1e-4)


def test_energy_score_knows_what_goes_together() -> None:
    rows, source = 2000, seeded()
    y = torch.rand(rows, 1, generator=source).round().expand(-1, 6)
    together = torch.rand(40, rows, 1, generator=source).round().expand(-1, -1, 6)
    apart = torch.rand(40, rows, 6, generator=source).round()
    assert energy_score(together, y).mean() < energy_score(apart, y).mean() - 0.05


def test_pairs_by_hand() -> None:
    outputs = torch.randn(4, 6, 3, generator=seeded())
    y = torch.rand(6, 3, generator=seeded(1)).round()
    found, bins = measure([(Answer(outputs, gfo.MultiLabel(3)), y)], seeded())
    chances = outputs.sigmoid()
    said, seen = {}, {}
    for i, j in itertools.combinations(range(3), 2):
        for row in range(6):
            said[i, j, row] = float((chances[:, row, i] * chances[:, row, j]).mean())
            seen[i, j, row] = float(y[row, i] * y[row, j])
    pairs = list(itertools.combinations(range(3), 2))
    gaps = [sum(said[i, j, r] - seen[i, j, r] for r in range(6)) / 6 for i, j in pairs]
    root = math.sqrt(sum(gap**2 for gap in gaps) / 3)
    assert found["pairs_error"] == pytest.approx(root, abs=1e-6)
    groups: dict[int, list[float]] = {}
    for key, value in said.items():
        groups.setdefault(int(value * 10), []).append(value - seen[key])
    assert found["pairs_ece"] == pytest.approx(
        sum(abs(sum(own)) for own in groups.values()) / 18, abs=1e-6
    )
    assert sum(count for _, _, count in bins) == 18
    whole = Pairs.none(3)
    for part in range(3):
        rows = slice(2 * part, 2 * part + 2)
        whole.add(
            torch.tensor([[said[i, j, r] for i, j in pairs] for r in range(6)[rows]]),
            torch.tensor([[seen[i, j, r] for i, j in pairs] for r in range(6)[rows]]),
        )
    assert whole.metrics()["error"] == pytest.approx(root, abs=1e-6)  # batch by batch


def test_no_pair_has_two_tags_of_one_place() -> None:
    index = joint_scores.pair_index(gfo.Categorical(4), 12)
    assert index.shape[1] == 3 * 16
    assert (index[0] // 4 != index[1] // 4).all()


def test_labels_are_drawn_as_often_as_said() -> None:
    outputs = torch.randn(1, 2, 3, generator=seeded()).expand(20_000, 2, 3)
    drawn = joint_scores.draw_labels(gfo.MultiLabel(3), outputs, seeded(1))
    assert torch.allclose(drawn.mean(0), outputs[0].sigmoid(), atol=0.02)
    tags = joint_scores.draw_labels(gfo.Categorical(3), outputs.unsqueeze(2), seeded(2))
    assert torch.allclose(tags.mean(0), outputs[0].softmax(-1), atol=0.02)
    numbers = torch.tensor([[[1.0, -2.0, 0.0, 2.0]]]).expand(20_000, 1, 4)
    values = joint_scores.draw_labels(gfo.Gaussian(2, heteroscedastic=True), numbers, seeded(3))
    assert torch.allclose(values.mean(0), torch.tensor([[1.0, -2.0]]), atol=0.06)
    assert torch.allclose(values.std(0), torch.tensor([[1.0, math.e]]), atol=0.06)


# Models


def small() -> Problem:
    """Three bits that are all the same, whatever the input."""
    y = torch.rand(60, 1, generator=seeded(5)).round().expand(-1, 3).contiguous()
    x = torch.randn(60, 4, generator=seeded(6))
    parts = [(x[rows], y[rows]) for rows in (slice(40), slice(40, 50), slice(50, 60))]
    return Problem(*parts, lambda: gfo.MultiLabel(3))


@torch.no_grad()
def test_a_mixture_is_a_distribution() -> None:
    torch.manual_seed(0)
    model = Mixture(small(), (8,), ARMS["mixture"], {"components": 5})
    x = torch.randn(1, 4).expand(8, 4)
    scores = model.scores(x, BITS, 99, seeded())
    assert len(scores) == 5
    found = joint_scores.log_mean(scores).exp()
    assert float(found.sum()) == pytest.approx(1, rel=1e-5)
    assert float(model.loss(x, BITS)) == pytest.approx(-float(found.log().mean()), rel=1e-5)


def test_a_cvae_against_the_integral_over_its_latent_variable() -> None:
    torch.manual_seed(0)
    model = CVAE(small(), (8,), ARMS["cvae"], {"latent": 1, "draws": 1})
    with torch.no_grad():
        for layer in (model.decoder.hidden[0][0], model.encoder.output):
            layer.weight.mul_(2)  # a posterior that differs from the prior
        x = torch.randn(1, 4)
        grid = torch.linspace(-12, 12, 4001).reshape(-1, 1, 1)
        mean, deviation = joint_fit._moments(model.prior(x))
        prior = torch.distributions.Normal(mean, deviation).log_prob(grid).squeeze(-1)
        outputs = model._decoded(x, grid)
        exact = []
        for label in BITS:
            parts = joint_scores.part_log_prob(model.likelihood, outputs, label.unsqueeze(0))
            exact.append(float((parts.sum(-1) + prior).logsumexp(0)) + math.log(24 / 4000))
        assert sum(map(math.exp, exact)) == pytest.approx(1, rel=1e-3)
        scores = model.scores(x.expand(8, -1), BITS, 4000, seeded())
        assert torch.allclose(joint_scores.log_mean(scores), torch.tensor(exact), atol=0.05)
        drawn = model.answer(x.expand(8, -1), 4000, seeded())
        plain = measure([(drawn, BITS)], seeded())[0]["joint"]
        assert plain == pytest.approx(sum(exact) / 8, abs=0.05)


def test_a_posterior_estimates_the_likelihood_that_all_masks_have() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 5), (torch.rand(6, 4) < 0.5).float()
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    options = {"likelihood": gfo.MultiLabel(4), "example": (x[:2],), "keep": 0.5, "draws": 8}
    model = gfo.wrap(net, "gflowout", ["1"], **options)
    optimizer = torch.optim.Adam(model.parameter_groups(lr=0.03, generator_lr=0.03))
    descend(model, x, y, optimizer, 100)
    model.eval()
    masks = all_masks(6).unsqueeze(1).expand(-1, len(x), -1)
    masked = joint_fit.Masked(model, exact=False)
    with torch.no_grad():
        whole = model(x, y=y, masks=[masks])
        exact = (whole.log_p + whole.log_likelihood).logsumexp(0)
        own = masked.scores(x, y, 2000, torch.Generator().manual_seed(1))
        prior = super(joint_fit.Masked, masked).scores(x, y, 2000, torch.Generator().manual_seed(1))
    assert float(whole.kl) > 0.2  # there is something to gain
    for scores in (own, prior):
        error = scores.exp().std(0) / 2000**0.5
        assert ((scores.exp().mean(0) - exact.exp()) / error).abs().max() < 4.5
    assert own.exp().var(0).mean() < 0.7 * prior.exp().var(0).mean()


@pytest.mark.parametrize("label", ["mixture", "cvae"])
def test_rivals_learn_what_goes_together(label: str) -> None:
    arm, how = ARMS[label], {**HOW, "steps": 150, "every": 25}
    tuned = {"mixture": {"components": 4}, "cvae": {"latent": 2, "draws": 8}}[label]
    fitted = fit(arm, {**tuned, "lr": 1e-2}, small(), (16,), how, 0)
    scores, _ = measure(joint_fit.answers(fitted.model, small().test, 200, seeded()), seeded())
    assert scores["joint"] > scores["marginal"] + 0.5
    assert scores["joint"] > -1.2  # log 2, and what is learned by heart


def test_the_best_weights_are_kept_and_training_stops() -> None:
    problem = load("digits-small", 0, (60, 20, 20))
    how = {**HOW, "steps": 200, "every": 5, "patience": 3}
    fitted = fit(ARMS["mc"], {"lr": 3e-2, "rate": 0.5}, problem, (16, 16), how, 0)
    scores = [score for _, _, score in fitted.curve]
    assert fitted.valid == max(scores)
    assert fitted.stopped
    assert len(scores) - scores.index(max(scores)) == 4
    assert fitted.steps == 5 * len(scores) < 200
    again = joint_fit._valid(fitted.model, problem, how, 0)
    assert again == pytest.approx(fitted.valid, rel=1e-6)


def test_an_ensemble_is_a_mixture_of_its_members() -> None:
    problem = load("digits-small", 0, ROWS)
    fitted = fit(ARMS["ensemble"], {"lr": 1e-2}, problem, (8,), {**HOW, "steps": 15}, 0)
    assert fitted.steps == 15  # shared by the five
    answer = fitted.model.answer(problem.test[0], 200, seeded())
    assert answer.exact
    assert len(answer.outputs) == 5
    members = fitted.model.model.members
    alone = [member.predict(problem.test[0], samples=1).outputs[0] for member in members]
    assert torch.allclose(answer.outputs, torch.stack(alone), atol=1e-6)
    assert not torch.allclose(alone[0], alone[1], atol=1e-3)


def test_arms_on_tags_and_numbers() -> None:
    for name, label in itertools.product(("tags", "arm"), ("gflowout", "mixture", "cvae")):
        problem, arm = load(name, 0, ROWS), ARMS[label]
        fitted = fit(arm, arm.trials[0], problem, (8, 8), HOW, 0)
        answers = joint_fit.answers(fitted.model, problem.test, 8, seeded())
        scores, _ = measure(answers, seeded())
        assert all(map(math.isfinite, scores.values())), (name, label)
        assert scores["bias"] >= 0


def test_pictures_have_the_upper_halves_that_were_given() -> None:
    import base64
    import io

    from matplotlib import image

    problem = load("digits-small", 0, ROWS)
    for label in ("mc", "mixture", "ensemble"):
        fitted = fit(ARMS[label], ARMS[ARMS[label].like or label].trials[0], problem, (8,), HOW, 0)
        png = base64.b64decode(joint.completions(fitted.model, problem))
        shown = image.imread(io.BytesIO(png))[..., 0]
        assert shown.shape == (4 * 9 - 1, 9 * 9 - 1)
        for row, column in itertools.product(range(4), range(9)):
            tile = shown[9 * row : 9 * row + 8, 9 * column : 9 * column + 8]
            assert (tile[:4].flatten() == problem.test[0][row].numpy()).all()
            if column == 0:
                assert (tile[4:].flatten() == problem.test[1][row].numpy()).all()


# The plan


def test_every_arm_has_as_many_trials_and_as_much_time() -> None:
    for arm in joint_fit.ARMS.values():
        if arm.method == joint_fit.TRUTH:
            continue
        own = joint_fit.ARMS[arm.like] if arm.like else arm
        assert len({json.dumps(tuned, sort_keys=True) for tuned in own.trials}) == 6, arm.label
        assert bool(arm.like) == (len(arm.trials) == 1)
    for preset, wanted in joint.PRESETS.items():
        counts: dict[tuple[str, str], int] = {}
        for trial in joint.tuning(preset):
            assert trial.study == study.TUNING
            counts[trial.data, trial.method] = counts.get((trial.data, trial.method), 0) + 1
        assert set(counts.values()) == {wanted["trials"]}
        runs = joint.runs(preset, {})
        assert len({run.id for run in runs}) == len(runs)
        assert {run.data for run in runs} == set(wanted["problems"])
        assert {run.method for run in runs} >= set(ARMS) - {joint_fit.TRUTH}
        for run in runs:
            cost = max(1.0, ARMS[run.method].cost)
            most = PROBLEMS[run.data].steps * wanted.get("steps", 1.0)
            assert run.options["steps"] * cost == pytest.approx(most, abs=cost)
    assert joint.PRESETS["cpu"]["seeds"] >= 5
    assert joint.PRESETS["cpu"]["draws"] >= 200


def test_trials_serve_all_seeds_and_see_no_test_row() -> None:
    trials = joint.tuning("cpu")
    assert {trial.seed for trial in trials} == {joint.TRIAL_SEED}
    assert "drugs-hospitals" not in {trial.data for trial in trials}
    chosen = {("drugs", "mc"): {"lr": 0.5}, ("digits", "none"): {"lr": 0.25}}
    for run in joint.runs("cpu", chosen):
        if run.data in ("drugs", "drugs-hospitals") and run.method == "mc":
            assert run.options["tuned"]["lr"] == 0.5
        elif run.data == "digits" and run.method in ("none", "ensemble"):
            assert run.options["tuned"]["lr"] == 0.25
        else:
            assert run.options["tuned"].get("lr") not in (0.5, 0.25)


def test_every_run_has_a_price() -> None:
    runs = [*joint.tuning("cpu"), *joint.runs("cpu", {})]
    assert 3600 < sum(map(joint.seconds, runs)) < 8 * 3600
    needed = {name for run in runs for name in study.get("joint").needs(run)}
    assert needed == {"mnist", "eicu-demo"}


def test_trials_do_not_look_at_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = next(trial for trial in joint.tuning("smoke") if trial.method == "mixture")
    found = joint.work(trial, Context(Path("nowhere")))
    assert set(found["data"]) == {"train", "valid"}
    assert not any(name.startswith("test/") for name in found["metrics"])

    def spoiled(name: str, seed: int, rows: tuple[int, int, int]) -> Problem:
        problem = load(name, seed, rows)
        x, y = problem.test
        return dataclasses.replace(problem, test=(torch.full_like(x, math.nan), 1 - y))

    monkeypatch.setattr(joint, "load", spoiled)
    again = joint.work(trial, Context(Path("nowhere")))
    assert _figures(again["metrics"]) == _figures(found["metrics"])


def test_the_generator_itself_is_scored() -> None:
    run = next(run for run in joint.runs("cpu", {}) if (run.data, run.method) == ("tags", "truth"))
    found = joint.work(run, Context(Path("nowhere")))["metrics"]
    problem = load("tags", 0)
    exact = joint_data.tags_log_prob(*problem.test).mean().item()
    assert found["test/joint"] == pytest.approx(exact, rel=1e-5)
    assert -3 < exact < -1.5


# All of it


def test_smoke_runs_and_repeats(smoke: Callable[[str], Path], one_thread: None) -> None:
    out = smoke("joint")
    records = [record for record in read(out, "done") if record["study"] == "joint"]
    assert {record["method"] for record in records} == set(ARMS) - {joint_fit.TRUTH}
    for record in records:
        metrics = record["metrics"]
        assert -60 < metrics["test/joint"] < 0
        assert metrics["test/bias"] >= 0
        assert metrics["pictures"]
        exact = record["method"] in ("none", "ensemble", "mixture")
        assert exact == (metrics["test/bias"] == 0)
    section = study.get("joint").section(records)
    assert {claim.verdict for claim in section.claims} <= {"open"}
    record = next(record for record in records if record["method"] == "mc")
    run = next(run for run in joint.runs("smoke", {}) if run.id == record["id"])
    again = joint.work(run, Context(out / "x"))["metrics"]
    assert _figures(again) == _figures(record["metrics"])


def _figures(metrics: dict) -> dict:
    """All but times."""
    return {name: value for name, value in metrics.items() if not name.startswith("cost/")}


def test_a_fit_tells_its_computing_time() -> None:
    fitted = fit(ARMS["none"], {"lr": 1e-3}, load("tags", 0, ROWS), (8,), HOW, 0)
    assert isinstance(fitted, Fitted)
    assert fitted.seconds > 0
    times = [seconds for _, seconds, _ in fitted.curve]
    assert times == sorted(times)
    assert times[-1] == fitted.seconds
