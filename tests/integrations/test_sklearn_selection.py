"""Which columns are needed: the scan, chains side by side, tests against controls, clusters."""

import copy
import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from sklearn.exceptions import NotFittedError

from gflowout.integrations.sklearn import (
    GFlowOutClassifier,
    GFlowOutRegressor,
    chains,
    controls,
    screen,
    selection,
)
from gflowout.integrations.sklearn.stack import (
    Rows,
    Schedule,
    Stack,
    Training,
    densities,
    log_prob,
)
from gflowout.studies.features_compare import calibration

SHORT = {
    "mask_inputs": True,
    "chains": 6,
    "epochs": 30,
    "hidden_layer_sizes": (16,),
    "random_state": 0,
}


@pytest.fixture(scope="module")
def copies() -> tuple[np.ndarray, np.ndarray, GFlowOutRegressor]:
    """Column 1 is a near-copy of column 0, one of which matters; so does column 2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 12))
    x[:, 1] = x[:, 0] + 0.02 * rng.normal(size=200)
    y = x[:, 0] + x[:, 2] + 0.5 * rng.normal(size=200)
    return x, y, GFlowOutRegressor(**SHORT).fit(x, y)


# The scan


def ring(x: np.ndarray) -> np.ndarray:
    return np.abs(np.hypot(x[:, 0] - 0.5, x[:, 1] - 0.5) - 0.35) < 0.1151


def test_the_scan_sees_effects_of_two_and_three_columns() -> None:
    x = np.random.default_rng(0).uniform(size=(800, 40))
    rules = {
        (0, 1): ring(x),
        (2, 5): (x[:, 2] > 0.5) ^ (x[:, 5] > 0.5),
        (1, 4, 7): (x[:, [1, 4, 7]] > 0.5).sum(1) % 2 == 1,
    }
    for columns, y in rules.items():
        nats, _ = screen.evidence(x, y[:, None] * 1.0, np.ones(800))
        assert set(np.argsort(-nats)[: len(columns)]) == set(columns)
        assert nats[list(columns)].min() > 20


def test_chance_has_little_evidence() -> None:
    rng = np.random.default_rng(1)
    best = [
        screen.evidence(rng.normal(size=(150, 30)), rng.normal(size=(150, 1)), np.ones(150))[
            0
        ].max()
        for _ in range(20)
    ]
    # Four kinds of tests, each with a p-value times the number of its tests.
    assert np.mean(np.array(best) > screen.CERTAIN) <= 0.35


def test_linear_models_are_those_of_the_penalty() -> None:
    from sklearn.linear_model import Lasso

    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6))
    y = x[:, :1] * 2 - x[:, 1:2] + rng.normal(size=(120, 1))
    held = np.arange(120) % 4 == 0
    apart = torch.from_numpy(held)[None].float()
    tensors = [torch.from_numpy(part).float() for part in (x, y)]
    best = screen.linear(*tensors, 1 - apart, apart, "gaussian")[1]
    slopes = (x[~held] * (y[~held] - y[~held].mean())).mean(0)
    fits = [
        Lasso(alpha=strength * np.abs(slopes).max()).fit(x[~held], y[~held, 0])
        for strength in screen.STRENGTHS
    ]
    errors = [np.mean((model.predict(x[held]) - y[held, 0]) ** 2) for model in fits]
    wanted = fits[int(np.argmin(errors))]
    np.testing.assert_allclose(best.weight[0, :, 0], wanted.coef_, atol=2e-3)


# Chains side by side


def stack_of(chains: int = 2, units: int = 12, hidden: tuple[int, ...] = (8, 8)) -> Stack:
    columns = torch.arange(units).expand(chains, units)
    generator = torch.Generator().manual_seed(0)
    return Stack(columns, columns, torch.zeros(chains, units), hidden, 1, generator)


def rows_of(count: int = 40, units: int = 12) -> Rows:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, units, generator=generator)
    x[:, 1] = x[:, 0] + 0.1 * torch.randn(count, generator=generator)
    y = (x[:, :1] + x[:, 2:3] > 0).float()
    return Rows(x, y, torch.ones(count), "binary")


def test_networks_start_as_a_linear_model() -> None:
    for hidden in ((), (8,), (8, 8)):
        stack, x = stack_of(hidden=hidden), rows_of().x
        weight, bias = torch.randn(2, 12, 1), torch.randn(2, 1)
        stack.start_linear(weight, bias)
        masks = stack.draw(3, torch.Generator().manual_seed(0))
        out = stack.forward(stack.inputs(x), masks)
        wanted = torch.einsum("nu,cdu,cuk->cdnk", x, masks, weight) + bias[:, None, None]
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def test_balance_is_that_of_the_enumerated_posterior() -> None:
    # All 4,096 masks of 12 units, two of them correlated: log-odds given the other units.
    stack, rows = stack_of(chains=1), rows_of()
    prior = torch.linspace(-3, 1, 12)[None]
    schedule = Schedule(1, 40, 1e-3, 0.0, 1, beta=0.7)
    none = torch.zeros(1, 40, dtype=torch.bool)
    training = Training(stack, rows, none, prior, schedule, torch.Generator().manual_seed(3))
    given = torch.Generator().set_state(training.generator.get_state())
    mask = stack.draw(1, given)[0, 0]
    target = training.balanced()[0]
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=12)))
    fit = log_prob(stack.forward(stack.inputs(rows.x), every[None]), rows.y, stack.log_variance,
                   "binary")[0].sum(1)  # fmt: skip
    reward = 0.7 * fit + every @ prior[0]
    place = (2 ** torch.arange(11, -1, -1)).float()
    for unit in range(12):
        on, off = mask.clone(), mask.clone()
        on[unit], off[unit] = 1, 0
        wanted = reward[int(on @ place)] - reward[int(off @ place)]
        torch.testing.assert_close(target[unit], wanted.clamp(-8, 8), rtol=1e-3, atol=1e-3)


def test_noise_starts_at_the_errors_of_the_linear_model() -> None:
    x = rows_of(400).x
    noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(5))
    rows = Rows(x, 3 * x[:, :1] + 0.5 * noise, torch.ones(400), "gaussian")
    stack = stack_of()
    stack.logits[:] = 20  # every unit is kept
    weight = torch.zeros(2, 12, 1)
    weight[0, 0] = 3  # the second chain predicts 0
    stack.start_linear(weight, torch.zeros(2, 1))
    held_out = torch.arange(400).expand(2, 400) % 5 == 0
    schedule = Schedule(1, 100, 1e-9, 0.0, 1, beta=1.0)
    generator = torch.Generator().manual_seed(0)
    Training(stack, rows, held_out, torch.zeros(2, 12), schedule, generator).run()
    own = rows.y[~held_out[0]], 0.5 * noise[~held_out[0]]
    wanted = torch.stack([own[1].square().mean(), own[0].square().mean()])
    torch.testing.assert_close(stack.log_variance.exp().flatten(), wanted, rtol=1e-3, atol=0)


def test_the_state_that_was_validated_is_returned(copies) -> None:
    x, y, est = copies
    scaled = torch.from_numpy(est._scale.apply(x))
    targets = torch.from_numpy(est._target_scale.apply(y[:, None]))
    for chain in est.chains_:
        scores = [entry["valid_nll"] for entry in chain.history]
        assert chain.best_epoch == int(np.argmin(scores))
        pred = chain.model.predict(scaled, samples=50)
        nll = -pred.log_prob(targets).mean()
        assert float(nll) < min(scores) + 0.3


# Tests against controls


def test_controls_are_distributed_as_the_columns() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3)) @ np.array([[1, 0.9, 0], [0, 0.5, 0], [0, 0, 1.0]])
    x[:, 2] = np.exp(x[:, 2])
    drawn = controls.Conditional(x).draw([1, 2], 1, np.random.RandomState(0))[0]
    replaced = np.column_stack([x[:, 0], drawn])
    np.testing.assert_allclose(
        np.corrcoef(replaced, rowvar=False), np.corrcoef(x, rowvar=False), atol=0.06
    )
    np.testing.assert_allclose(drawn.mean(0), x[:, 1:].mean(0), atol=0.1)
    assert set(drawn[:, 1]) <= set(x[:, 2])


def test_a_few_rows_of_large_loss_make_no_column_relevant() -> None:
    rng = np.random.RandomState(0)
    losses = np.exp(3 * rng.standard_normal((2000, 5, 80)))  # as where classes are nearly separable
    p = np.array(
        [controls.p_values(controls.gains(-one[0], -one[1:], np.ones(80))) for one in losses]
    )
    for level in (0.01, 0.05, 0.2):
        assert (p < level).mean() < level + 4 * (level / 2000) ** 0.5


def test_p_values_of_useless_columns_are_uniform() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 17, 100)) ** 2  # any function of exchangeable columns
    p = np.array([
        controls.p_values(controls.gains(one[0], one[1:], np.ones(100))) for one in values
    ])  # fmt: skip
    for level in (0.05, 0.2, 0.5):
        assert abs(np.mean(p < level) - level) < 0.06
    probability = controls.probabilities(p)
    assert probability.mean() < 0.1
    mixed = controls.probabilities(np.append(p[:50], [1e-9, 1e-12]))
    assert mixed[-2:].min() > 0.95


@pytest.mark.parametrize("effects", [(3.0,), (4.0,), (6.0,), (2.0, 4.0, 9.0)])
@pytest.mark.parametrize(("true", "null"), [(10, 90), (4, 250), (20, 20)])
def test_probabilities_are_calibrated(effects: tuple[float, ...], true: int, null: int) -> None:
    rng = np.random.default_rng(0)
    likely, right = [], []
    for _ in range(40):
        z = rng.normal(size=true + null)
        z[:true] += rng.choice(effects, true)
        likely.append(controls.probabilities(ndtr(-z)))
        right.append(np.arange(true + null) < true)
    assert calibration(np.concatenate(likely), np.concatenate(right)) < 0.05


def test_one_of_two_copies_is_needed(copies) -> None:
    _, _, est = copies
    sets = dict(est.inclusion_.clusters())
    assert sets["x0", "x1"] > 0.9
    assert sets[("x2",)] > 0.9
    assert est.inclusion_.any_of([0, 1]) == pytest.approx(sets["x0", "x1"])
    chosen = est.get_support(indices=True).tolist()
    assert 2 in chosen
    assert set(chosen) & {0, 1}
    assert not set(chosen) - {0, 1, 2}
    assert est.inclusion_.mean[3:].max() < 0.3


def test_masks_are_those_of_the_enumerated_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    # All 4,096 masks of 12 units: of a cluster of two and of one of three, at least one if needed.
    monkeypatch.setattr(selection, "DRAWN", 40_000)
    members = [[0, 1], [2, 3, 4], *([unit] for unit in range(5, 12))]
    z = {(0, 1): 9.0, (2, 3, 4): 3.4, (0,): 0.5, (1,): 1.2, (2,): 0.0, (3,): 1.5, (5,): 2.0,
         (6,): 8.0, (7,): 1.6}  # fmt: skip

    def gains(sets: list[list[int]]) -> np.ndarray:
        size = np.array([z.get(tuple(own), -1.0) for own in sets])
        return np.stack([np.tile(size[:, None] / 50**0.5, 50), np.full((len(sets), 50), 1.0)], 1)

    alone = [[unit] for unit in range(12)]
    tests = selection.Tests(gains(alone), gains(members), members, np.zeros(50, dtype=int))
    setup = selection.Setup(np.arange(12), np.full(12, np.nan), (8,), None, "binary")
    keep = np.linspace(0.1, 0.9, 12)
    names = [f"x{unit}" for unit in range(12)]
    found = selection.inclusion(tests, keep, setup, names, 0)

    single = controls.probabilities(controls.p_values(tests.units))
    together = controls.probabilities(controls.p_values(tests.clusters))
    every = np.array(list(itertools.product([0, 1], repeat=12)))
    chance = np.ones(len(every))
    for own, likely in zip(members, together, strict=True):
        needed = max(likely, single[own].max())
        rate = single[own] / needed
        stand_in = 0.5 / len(own) + 0.5 * keep[own] / keep[own].sum()
        kept = every[:, own]
        drawn = np.where(kept, rate, 1 - rate).prod(1)
        only = (kept.sum(1) == 1) * (kept @ stand_in) * np.prod(1 - rate)
        nothing = kept.sum(1) == 0
        chance *= np.where(nothing, 1 - needed, needed * (drawn + only))
    assert chance.sum() == pytest.approx(1)
    masks = found.masks[0, :, 0].numpy().astype(int)
    counts = np.bincount(masks @ 2 ** np.arange(11, -1, -1), minlength=4096)
    assert np.abs(counts / 40_000 - chance).sum() / 2 < 0.03
    np.testing.assert_allclose(found.mean.numpy(), chance @ every, atol=0.01)
    # Independent units of these probabilities would often keep none of the two, or both.
    both = float(chance @ (every[:, 0] & every[:, 1]))
    assert float(found.joint[0, 1]) == pytest.approx(both, abs=0.01)
    assert found.any_of([0, 1]) > 0.99
    alone_any = 1 - (1 - found.mean[0]) * (1 - found.mean[1])
    assert found.any_of([0, 1]) > float(alone_any) + 0.05


def test_probabilities_are_those_of_all_folds_together() -> None:
    fold = np.repeat([0, 1], 50)
    gain = np.stack([np.full((20, 100), -0.1), np.ones((20, 100))], 1)
    gain[:4, 0] = 2 / 50**0.5  # 2 sd in half of the rows, 2 * sqrt(2) in all of them
    gain[4, 0] = np.where(fold == 0, 4, 1) / 50**0.5
    gain[5, :, fold == 0] = 0  # which nothing reads in one fold
    moved = selection._by_fold(gain, fold)
    wanted = controls.probabilities(controls.p_values(gain))
    np.testing.assert_allclose(moved.mean(0), wanted)
    assert moved[1, 4] > moved[0, 4] + 1e-3  # without fold 1 there is more evidence
    assert ((moved >= 0) & (moved <= 1)).all()
    half = controls.probabilities(controls.p_values(gain[..., fold == 0]))
    assert (wanted[:4] > half[:4] + 0.05).all()


def test_support_at_a_false_discovery_rate() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 20))
    y = (x[:, 4] - x[:, 9] + 0.3 * rng.normal(size=200) > 0).astype(int)
    est = GFlowOutClassifier(**SHORT, always=[0], groups=[[4, 5]]).fit(x, y)
    assert set(est.get_support(indices=True, fdr=0.1)) >= {0, 4, 5, 9}
    assert est.get_support(fdr=0.1).sum() <= 6
    assert est.p_values_[0] == 0
    assert est.p_values_[4] == est.p_values_[5] < 1e-3
    with pytest.raises(ValueError, match="give threshold or fdr, not both"):
        est.get_support(threshold=0.5, fdr=0.1)
    est.set_params(validation_fraction=0.0, epochs=2).fit(x, y)
    with pytest.raises(ValueError, match="fdr needs p-values from held-out rows"):
        est.get_support(fdr=0.1)


def test_noise_is_not_discovered_and_signals_are() -> None:
    # At a rate of 0.1, at most one table of noise in ten has a discovery: of five, rarely two.
    discovered = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(200, 20))
        est = GFlowOutClassifier(**SHORT).fit(x, rng.integers(2, size=200))
        discovered.append(int(est.get_support(fdr=0.1).sum()))
    assert sum(count > 0 for count in discovered) <= 1
    assert max(discovered) <= 2
    y = x[:, 0] - x[:, 1] + x[:, 2] + 0.3 * rng.normal(size=200) > 0
    chosen = set(GFlowOutClassifier(**SHORT).fit(x, y).get_support(indices=True, fdr=0.1))
    assert chosen >= {0, 1, 2}
    assert len(chosen) <= 5


def test_states_for_tests_are_chosen_by_the_other_half_of_the_rows() -> None:
    stack, rows = stack_of(), rows_of()
    held_out = torch.arange(40).expand(2, 40) % 5 < 2
    schedule = Schedule(60, 40, 3e-2, 0.0, 1, beta=1.0, looks=6)
    prior = torch.zeros(2, 12)
    training = Training(stack, rows, held_out, prior, schedule, torch.Generator().manual_seed(0))
    states, look = [], training._look

    def noted(loss: torch.Tensor) -> None:
        states.append([tensor.detach().clone() for tensor in stack.tensors()])
        look(loss)

    training._look = noted
    training.run()
    for half, crossed in enumerate(training.crossed):
        for chain in range(2):
            place = held_out[chain].nonzero().flatten()
            place = place[place % 2 == 1 - half]
            fits = []
            for state in states:
                masks = stack.at(state).draw(16, torch.Generator().manual_seed(training.seed))
                one = stack.at(state).part([chain])
                fits.append(densities(one, rows, [place], masks[[chain]])[0].mean())
            best = states[int(torch.stack(fits).argmax())]
            for wanted, tensor in zip(best, crossed.tensors(), strict=True):
                assert torch.equal(tensor[chain], wanted[chain])


# Fits that fail, and selections of nothing


def test_a_fit_that_fails_changes_nothing(copies, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, est = copies
    est = copy.copy(est)
    before = est.predict(x)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "run", interrupted)
    fresh = GFlowOutRegressor(**SHORT)
    for one in (est, fresh):
        with pytest.raises(KeyboardInterrupt):
            one.fit(x[:, :5] + 1, 2 * y)
    np.testing.assert_array_equal(est.predict(x), before)
    assert est.n_features_in_ == 12
    for method in (fresh.predict, fresh.transform, fresh.inclusion):
        with pytest.raises(NotFittedError):
            method(x)
    with pytest.raises(NotFittedError):
        fresh.get_support(fdr=0.1)


@pytest.mark.parametrize(("method", "trainer", "done"), [
    ("auto", Training, 2), ("contextual", chains._Training, 1),
])  # fmt: skip
def test_an_interrupted_fit_has_the_chains_that_are_trained(
    copies, monkeypatch: pytest.MonkeyPatch, method: str, trainer: type, done: int
) -> None:
    x, y, _ = copies
    run, calls = trainer.run, []

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*args)

    monkeypatch.setattr(trainer, "run", interrupted)
    est = GFlowOutRegressor(method, **SHORT | {"epochs": 5})
    with pytest.warns(UserWarning, match=f"interrupted: it has {done} of 6 chains"):
        est.fit(x, y)
    assert len(calls) == 2
    assert len(est.chains_) == len(est.history_) == len(est.chain_weights_) == done
    assert est.chain_weights_.sum() == pytest.approx(1)
    assert est.inclusion_.mean.shape == (12,)
    assert est.score(x, y) > 0


def test_an_empty_selection_is_a_choice() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 20)), rng.integers(2, size=200)
    est = GFlowOutClassifier(**SHORT, groups=[[3, 4]], threshold=0.999).fit(x, y)
    assert not est.get_support().any()
    with pytest.warns(UserWarning, match="No features were selected"):
        est.transform(x)
    best = int(est.inclusion_.mean.argmax())
    wanted = [3, 4] if best in (3, 4) else [best]
    assert est.set_params(if_empty="best").get_support(indices=True).tolist() == wanted
    assert not est.get_support(threshold=0.999).any()  # a question, not the selection
    with pytest.raises(ValueError, match="no feature reaches threshold"):
        est.set_params(if_empty="error").transform(x)
    with pytest.raises(ValueError, match="if_empty"):
        est.set_params(if_empty="none").fit(x, y)
