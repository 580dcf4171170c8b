"""The marginal bound: exact answers by enumeration, and wrong bounds that are caught."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import enumeration
import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core import objectives, policy

UNITS = [3, 2]
KEEP = 0.6
DRAWS = 20_000
BALANCE = {"objective": "tb", "posterior": "own", "prior_fit": "draws", "anchor": 0.0}
DEFAULT = {"objective": "credit", "posterior": "correction", "prior_fit": "kl"}
X = torch.tensor([[0.7, -0.4]])
Y = torch.tensor([[1.0, 0.0, 0.0, 1.0]])


def build(method: str, spread: float = 0.6, **options: Any) -> gfo.MaskedModel:
    """Four labels from a network whose masks matter, generators far from their start."""
    torch.manual_seed(57)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(5.0)
    if method == "mc":
        options = {"rate": 1 - KEEP, "rescale": "none"} | options
    elif method != "masksembles":
        options = {"prior_keep": KEEP} | options
    if method == "gflowout":
        options = BALANCE | options
    if method == "combined":
        options["train_size"] = 10
    likelihood = gfo.MultiLabel(4)
    model = gfo.wrap(net, method, ["1", "3"], likelihood=likelihood, example=(X,), **options)
    with torch.no_grad():
        for name, parameter in model.method.named_parameters():
            plain = name == "prior" or "shared" in name  # numbers before a gain
            parameter.add_((0.1 if plain else spread) * torch.randn_like(parameter))
    return model


def log_likelihoods(model: gfo.MaskedModel) -> Tensor:
    """Of all labels together, for every mask, by hand: [masks]."""
    first, second = enumeration.all_masks(sum(UNITS)).split(UNITS, -1)
    hidden = torch.tanh(model.backbone[0](X)) * first
    output = model.backbone[4](torch.tanh(model.backbone[2](hidden)) * second)
    return torch.distributions.Bernoulli(logits=output).log_prob(Y).sum(-1)


def log_prior(model: gfo.MaskedModel) -> Tensor:
    """Log-probability of every mask in prediction, [masks]; differentiable in the generators."""
    masks = enumeration.all_masks(sum(UNITS))
    method = model.method
    if method.name == "mc" or getattr(method.options, "prior", "") == "fixed":
        return enumeration.log_fixed_prior(masks, KEEP)
    networks = method.generators if method.name == "contextual" else method.prior
    seen: list[Tensor] = []
    handles = [
        network.register_forward_hook(
            lambda _, args, out: seen.append(out[1] if isinstance(out, tuple) else out)
        )
        for network in networks
    ]
    count, parts = len(masks), enumeration.split(masks, model)
    given = [mask.expand(2, -1, -1) for mask in parts]  # log Z may need two draws
    model(X.expand(count, -1), y=Y.expand(count, -1), masks=given)
    for handle in handles:
        handle.remove()
    start = math.log(KEEP / (1 - KEEP)) if method.name == "contextual" else 0.0
    return sum(
        torch.distributions.Bernoulli(logits=start + logits).log_prob(mask).sum(-1)
        for logits, mask in zip(seen[:2], parts, strict=True)
    )


def evidence(model: gfo.MaskedModel) -> Tensor:
    return (log_prior(model) + log_likelihoods(model)).logsumexp(0)


# The function


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """log p(z), log q(z), and log p(y | z) of four masks."""
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, generator=draws, dtype=torch.float64)
    return logits[0].log_softmax(0), logits[1].log_softmax(0), 3 * logits[2]


def expected_bound(draws: int, log_p: Tensor, log_q: Tensor, score: Tensor) -> float:
    """Over all ways to draw masks from q."""
    rows = torch.tensor(list(itertools.product(range(4), repeat=draws))).T
    bound = objectives.marginal_bound(score[rows], (log_p - log_q)[rows])
    return (log_q[rows].sum(0).exp() * bound).sum().item()


def test_in_expectation_it_grows_with_the_draws_towards_the_evidence() -> None:
    log_p, log_q, score = problem()
    exact = (log_p + score).logsumexp(0).item()
    bounds = [expected_bound(draws, log_p, log_q, score) for draws in (1, 2, 3, 6)]
    assert bounds == sorted(bounds)
    assert bounds[-1] < exact
    elbo = (log_q.exp() * (score + log_p - log_q)).sum().item()
    assert bounds[0] == pytest.approx(elbo)
    assert bounds[-1] - elbo > 0.5 * (exact - elbo)


def test_it_is_the_evidence_for_any_draws_if_q_is_the_posterior() -> None:
    log_p, _, score = problem()
    exact = (log_p + score).logsumexp(0)
    posterior = log_p + score - exact
    for rows in (torch.tensor([2]), torch.tensor([0, 3, 3])):
        bound = objectives.marginal_bound(
            score[rows, None], (log_p - posterior)[rows, None].expand(-1, 1)
        )
        torch.testing.assert_close(bound, exact[None])


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must have one shape, got log_likelihood .* log_weights"):
        objectives.marginal_bound(torch.zeros(2, 3), torch.zeros(2, 1))


# The methods: with many draws the loss is the exact evidence

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mc": ("mc", {}),
    "contextual": ("contextual", {"kl_weight": 0.0}),
    "gflowout": ("gflowout", {"temperature": 1.0, "epsilon": 0.0}),
    "gflowout exploring": ("gflowout", {"temperature": 2.0, "epsilon": 0.3}),
    "gflowout blocks": ("gflowout", {"blocks": 2, "epsilon": 1.0}),
    "gflowout fixed": ("gflowout", {"prior": "fixed", "temperature": 1.0, "epsilon": 0.0}),
    "gflowout default": ("gflowout", DEFAULT),
    "gflowout default blocks": ("gflowout", DEFAULT | {"blocks": 2}),
    "gflowout default fixed": ("gflowout", DEFAULT | {"prior": "fixed"}),
}


def distance(case: str) -> float:
    """Between loss and evidence, in standard errors of the estimate."""
    method, options = CASES[case]
    model = build(method, bound="marginal", draws=DRAWS, **options)
    torch.manual_seed(2)
    with torch.no_grad():
        bound, exact = -model(X, y=Y).nll, evidence(model)
        model.set_options(draws=DRAWS // 40)  # parts, whose spread gives the error of the whole
        parts = torch.stack([(-model(X, y=Y).nll).exp() for _ in range(40)])
    error = parts.std() / parts.mean() / 40**0.5
    return ((bound - exact) / error).abs().item()


@pytest.mark.parametrize("case", CASES)
def test_with_many_draws_the_loss_is_the_evidence(case: str) -> None:
    assert distance(case) < 4.5


def mean_of_logs(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    return (log_likelihood + (0 if log_weights is None else log_weights)).mean(0)


def unweighted(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    return right_bound(log_likelihood)


def sum_over_draws(log_likelihood: Tensor, log_weights: Tensor | None = None) -> Tensor:
    return right_bound(log_likelihood, log_weights) + math.log(len(log_likelihood))


right_bound = objectives.marginal_bound


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("mc", mean_of_logs),
        ("mc", sum_over_draws),
        ("gflowout", mean_of_logs),
        ("gflowout", unweighted),
        ("gflowout fixed", unweighted),
    ],
)
def test_wrong_bounds_are_caught(case: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "marginal_bound", wrong)
    assert distance(case) > 10


def test_averaged_parts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gfo.MultiLabel.log_prob
    monkeypatch.setattr(gfo.MultiLabel, "log_prob", lambda *args: right(*args) / 4)
    assert distance("mc") > 10


def test_weights_of_another_policy_than_drew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "log_prob_explored", lambda *args: args[-1].detach())
    assert distance("gflowout exploring") > 10


def test_masksembles_has_the_evidence_of_its_members_exactly() -> None:
    model = build("masksembles", bound="marginal", members=3)
    first, second = (mask.squeeze(1) for mask in model.method.members())
    hidden = torch.tanh(model.backbone[0](X)) * first
    output = model.backbone[4](torch.tanh(model.backbone[2](hidden)) * second)
    scores = torch.distributions.Bernoulli(logits=output).log_prob(Y).sum(-1)
    losses = model(X, y=Y)
    torch.testing.assert_close(losses.total, math.log(3) - scores.logsumexp(0))
    assert losses.masks[0].shape == (3, 1, 3)
    model.spec = unfolded(model)
    torch.testing.assert_close(model(X, y=Y).total, losses.total)


def unfolded(model: gfo.MaskedModel) -> Any:
    """What runs a backbone that does not take draws as a larger batch."""
    return dataclasses.replace(model.spec, foldable=False, parts_at_first_site=False)


def test_combined_averages_over_shared_and_own_masks() -> None:
    """At the start both priors are Bernoulli(keep), and so is what draws the shared masks."""
    model = build("combined", bound="marginal", draws=DRAWS, epsilon=0.2)
    with torch.no_grad():
        for parts in (model.method.shared, model.method.own.prior):
            for parameter in parts.parameters():
                parameter.zero_()
    torch.manual_seed(2)
    with torch.no_grad():
        loss = model(X, y=Y).nll.item()
        log_p = enumeration.log_fixed_prior(enumeration.all_masks(5), KEEP**2)
        exact = -(log_p + log_likelihoods(model)).logsumexp(0).item()
    assert loss == pytest.approx(exact, abs=0.03)
    model.set_options(bound="mean")
    assert model(X, y=Y).nll.item() > exact + 0.2


# Gradients


def exact_gradient(model: gfo.MaskedModel, parameters: list[Tensor]) -> Tensor:
    log_p = log_prior(model)
    loss = -(log_p + log_likelihoods(model)).logsumexp(0)
    if model.method.name == "contextual":
        method, masks = model.method, enumeration.split(enumeration.all_masks(5), model)
        priors = [torch.distributions.Bernoulli(logits=method.prior_logits(s)) for s in (0, 1)]
        log_r = sum(p.log_prob(mask).sum(-1) for p, mask in zip(priors, masks, strict=True))
        loss = loss + method.options.kl_weight * (log_p.exp() * (log_p - log_r)).sum()
    return flat(loss, parameters)


def flat(loss: Tensor, parameters: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def gradient_error(method: str, **options: Any) -> float:
    """Relative distance of the gradient with many draws from that of the evidence.

    The larger of those for the backbone and for what draws masks in prediction.
    """
    model = build(method, bound="marginal", draws=3 * DRAWS, **options)
    draws_masks = {"gflowout": "prior", "contextual": "generators"}.get(method)
    worst = 0.0
    for part in (model.backbone, getattr(model.method, draws_masks or "_", model.backbone)):
        parameters = list(part.parameters())
        exact = exact_gradient(model, parameters)
        torch.manual_seed(3)
        found = flat(model(X, y=Y).total, parameters)
        assert exact.norm() > 0.1
        worst = max(worst, ((found - exact).norm() / exact.norm()).item())
    return worst


GRADIENTS: dict[str, dict[str, Any]] = {
    "mc": {},
    "gflowout": {"temperature": 1.5, "epsilon": 0.2},
    "gflowout default": DEFAULT,
    "contextual": {"kl_weight": 0.7},
}


@pytest.mark.parametrize("method", GRADIENTS)
def test_the_gradient_is_that_of_the_evidence(method: str) -> None:
    assert gradient_error(method.split()[0], **GRADIENTS[method]) < 0.05


@pytest.mark.parametrize("name", ["own_weights", "leave_one_out"])
def test_generators_without_a_part_of_their_gradient_are_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(objectives, name)
    monkeypatch.setattr(objectives, name, lambda *args: right(*args).detach())
    assert gradient_error("contextual", **GRADIENTS["contextual"]) > 0.2


def test_leave_one_out_is_the_gradient_of_the_expected_cost() -> None:
    """Over all pairs of masks of one site."""
    table = torch.randn(4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    cost, log_q = torch.tensor([1.0, -2.0, 0.5, 3.0]), table.log_softmax(0)
    rows = torch.tensor(list(itertools.product(range(4), repeat=2))).T
    weight = log_q.detach()[rows].sum(0).exp()
    parts = [
        share * objectives.leave_one_out(log_q[pair].reshape(1, 2, 1), cost[pair].reshape(1, 2, 1))
        for share, pair in zip(weight, rows.T, strict=True)
    ]
    (found,) = torch.autograd.grad(sum(parts), table)
    log_q = table.log_softmax(0)
    (exact,) = torch.autograd.grad((log_q.exp() * cost).sum(), table)
    torch.testing.assert_close(found, exact)


def test_gaussian_noise_is_reparametrised() -> None:
    model = build("contextual", family="gaussian", bound="marginal", draws=3)
    losses = model(X, y=Y)
    given = model(X, y=Y, masks=losses.masks)
    torch.testing.assert_close(given.nll, losses.nll)
    (gradient,) = torch.autograd.grad(losses.nll, [model.method.generators[1][-1].weight])
    assert gradient.any()


def test_each_part_of_the_loss_reaches_its_own_parameters() -> None:
    owners = {"backbone": "nll", "prior": "nll", "posterior": "tb", "log_z": "tb"}
    model = build("gflowout", bound="marginal", draws=3)
    for part in ("nll", "tb"):
        names, parameters = zip(*model.named_parameters(), strict=True)
        losses = model(X.expand(5, -1), y=Y.expand(5, -1))
        assert losses.prior.item() == 0
        gradients = torch.autograd.grad(getattr(losses, part), parameters, allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            own = next(owner for key, owner in owners.items() if key in name.split("."))
            assert (gradient is not None and bool(gradient.any())) == (own == part), (part, name)


# Draws


@pytest.mark.parametrize("case", [case for case in CASES if "gflowout" in case])
def test_generators_that_run_once_for_all_draws_give_the_same_numbers(case: str) -> None:
    method, options = CASES[case]
    model = build(method, bound="marginal", draws=4, **options)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    losses = model(x, y=Y.expand(6, -1))
    assert losses.log_q.shape == (4, 6)
    one_by_one = model(x, y=Y.expand(6, -1), masks=losses.masks)
    for name in ("log_q", "log_reward", "log_z"):
        torch.testing.assert_close(getattr(losses, name), getattr(one_by_one, name))
    if not model.method.options.epsilon:  # given masks are taken for draws from the posterior
        torch.testing.assert_close(losses.nll, one_by_one.nll)
    model.spec = unfolded(model)
    torch.manual_seed(0)
    assert model(x, y=Y.expand(6, -1)).log_q.shape == (4, 6)


def test_the_generator_of_the_first_site_sees_each_example_once() -> None:
    model = build("gflowout", bound="marginal", draws=4, epsilon=0.0)
    rows: list[int] = []
    for network in (*model.method.posterior, *model.method.prior):
        network.register_forward_hook(lambda _, args, out: rows.append(len(out[1])))
    model(X.expand(6, -1), y=Y.expand(6, -1))
    assert rows == [6, 6, 24, 24]


def test_a_fixed_prior_has_no_parameters_and_predicts_with_its_rate() -> None:
    model = build("gflowout", prior="fixed")
    assert not list(model.method.prior.parameters())
    masks = torch.cat(model.predict(X, samples=20_000, return_masks=True).masks, -1)
    assert (masks.mean((0, 1)) - KEEP).abs().max() < 4.5 * math.sqrt(KEEP * (1 - KEEP) / 20_000)
    losses = model(X, y=Y)
    assert losses.prior.item() == 0
    kept = torch.cat(losses.masks, -1)
    log_p = torch.distributions.Bernoulli(probs=KEEP).log_prob(kept).sum(-1)
    nll = losses.nll.detach()
    torch.testing.assert_close(losses.log_reward, log_p - nll)


def test_the_posterior_of_a_fixed_prior_is_found() -> None:
    model = build("gflowout", spread=0.0, prior="fixed", bound="marginal", draws=16, blocks=2,
                  temperature=1.0, epsilon=0.0, log_z="batch")  # fmt: skip
    model.backbone.requires_grad_(False)
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(model.parameter_groups(generator_lr=2e-2), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 120)
    for _ in range(120):
        optimiser.zero_grad()
        losses = model(X.expand(4, -1), y=Y.expand(4, -1))
        losses.total.backward()
        optimiser.step()
        schedule.step()
    posterior = (log_prior(model) + log_likelihoods(model)).detach().log_softmax(0)
    prior = log_prior(model)
    q = enumeration.generator_log_prob(model, model.method.posterior, X, Y)[0]
    assert enumeration.total_variation(prior, posterior) > 0.3
    assert enumeration.total_variation(q, posterior) < 0.1
    with torch.no_grad():  # and the bound is tight
        assert -model(X, y=Y).nll.item() == pytest.approx(evidence(model).item(), abs=0.05)
