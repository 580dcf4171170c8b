"""GFlowOut's gradients by credit per unit, against enumeration: which are unbiased, and which not.

The truth is the gradient of the reverse KL divergence of q from the unnormalised posterior, an
exact sum over all masks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import enumeration
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, kl_divergence

import gflowout as gfo
from gflowout.core import credit, objectives
from gflowout.core.credit import credited


def wrapped(kind: str, **options: Any) -> tuple[gfo.MaskedModel, Tensor, Tensor]:
    """A model away from its start, with one example: sites of 3 and 2 units, or one of 4."""
    torch.manual_seed(3)
    x = torch.randn(1, 3)
    if kind == "quadratic":  # the log-likelihood is quadratic in the mask
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        sites, likelihood = ["1"], gfo.Gaussian(2, noise=0.7, learn_noise=False)
        y = torch.tensor([[0.5, -1.0]])
    else:
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))
        sites, likelihood, y = ["1", "3"], gfo.Categorical(3), torch.tensor([1])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    model = gfo.wrap(
        net, "gflowout", sites, likelihood=likelihood, example=(x.repeat(2, 1),),
        **{"prior_keep": 0.6, "beta": 1.5, **options},
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    return model, x.double(), y.double() if y.is_floating_point() else y


def every_mask(model: gfo.MaskedModel) -> Tensor:
    return enumeration.all_masks(sum(site.units for site in model.sites)).double()


def gradient(loss: Tensor, model: gfo.MaskedModel) -> Tensor:
    parameters = list(model.method.posterior.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def exact(kind: str, **options: Any) -> tuple[Tensor, Tensor]:
    """The gradient for the posterior, and log q of every mask."""
    options |= {"objective": "tb", "log_z": "batch", "draws": 2}
    model, x, y = wrapped(kind, **options)
    masks = every_mask(model)
    rows = x.expand(len(masks), -1), y.expand(len(masks), *y.shape[1:])
    given = [mask.expand(2, -1, -1) for mask in enumeration.split(masks, model)]
    losses = model(rows[0], y=rows[1], masks=given)
    log_q, reward = losses.log_q[0], losses.log_reward[0]
    torch.testing.assert_close(log_q.exp().sum(), torch.ones((), dtype=torch.double))
    return gradient((log_q.exp() * (log_q - reward)).sum(), model), log_q.detach()


def expected_control(monkeypatch: pytest.MonkeyPatch, kind: str, **options: Any) -> Tensor:
    """Mean gradient of ``objective="control"`` over all pairs of draws."""
    options = {"objective": "control", "draws": 2, **options}
    model, x, y = wrapped(kind, **options)
    _, log_q = exact(kind, **options)
    masks, surrogates = every_mask(model), []
    right = objectives.credit_control
    monkeypatch.setattr(
        objectives, "credit_control", lambda *args: surrogates.append(right(*args)) or args[2]
    )
    count = len(masks)
    pairs = torch.stack([masks.repeat_interleave(count, 0), masks.repeat(count, 1)])
    rows = x.expand(count**2, -1), y.expand(count**2, *y.shape[1:])
    model(rows[0], y=rows[1], masks=enumeration.split(pairs, model))
    monkeypatch.setattr(objectives, "credit_control", right)
    weights = (log_q[:, None] + log_q).exp().flatten()
    return gradient((weights * surrogates[0].mean(0)).sum(), model)


def expected_credit(kind: str, **options: Any) -> Tensor:
    """Mean gradient of ``objective="credit"`` over all masks."""
    model, x, y = wrapped(kind, **options)
    _, log_q = exact(kind, **options)
    total = torch.zeros(())
    for mask, probability in zip(every_mask(model), log_q.exp(), strict=True):
        losses = model(x, y=y, masks=enumeration.split(mask.unsqueeze(0), model))
        total = total + probability * gradient(losses.nll + losses.tb, model)
    return total


@pytest.mark.parametrize("posterior", ["own", "correction"])
def test_credits_as_control_variates_are_unbiased(
    monkeypatch: pytest.MonkeyPatch, posterior: str
) -> None:
    truth, _ = exact("mlp", posterior=posterior)
    assert truth.norm() > 1e-2
    found = expected_control(monkeypatch, "mlp", posterior=posterior)
    torch.testing.assert_close(found, truth)


def test_control_charges_for_kept_units(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _ = exact("mlp", sparsity=0.4)
    torch.testing.assert_close(expected_control(monkeypatch, "mlp", sparsity=0.4), truth)


def test_credits_of_the_draw_itself_would_be_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _ = exact("mlp")
    monkeypatch.setattr(objectives, "_mean_of_others", lambda values: values)
    wrong = expected_control(monkeypatch, "mlp")
    assert (wrong - truth).norm() > 0.1 * truth.norm()


@pytest.mark.parametrize("posterior", ["own", "correction"])
def test_credit_is_exact_where_the_likelihood_is_quadratic(posterior: str) -> None:
    options = {"objective": "credit", "posterior": posterior, "sparsity": 0.3}
    truth, _ = exact("quadratic", **options)
    torch.testing.assert_close(expected_credit("quadratic", **options), truth)


def test_credit_is_biased_elsewhere_but_points_the_right_way() -> None:
    truth, _ = exact("mlp")
    mean = expected_credit("mlp")
    assert (mean - truth).norm() > 1e-3 * truth.norm(), "biased: the docs say so"
    assert torch.cosine_similarity(mean, truth, 0) > 0.8


def test_a_straight_through_gradient_is_not_exact_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slope at one end, as if the function were linear, is worse than the mean of both."""

    right = credit.account

    def straight(mask: Tensor, posterior: Tensor, *args: Any) -> credit.Account:
        keep, scale = torch.sigmoid(posterior), args[-1] or 0.0
        sums = right(mask, posterior, *args)
        return dataclasses.replace(sums, mask=mask + scale * (keep - keep.detach()))

    truth, _ = exact("quadratic")
    monkeypatch.setattr(credit, "account", straight)
    assert (expected_credit("quadratic") - truth).norm() > 1e-2 * truth.norm()


def test_a_credited_mask_is_the_mask() -> None:
    mask, logits = torch.tensor([1.0, 0.0]), torch.tensor([2.0, -1.0], requires_grad=True)
    assert torch.equal(credited(mask, logits, 3.0), mask)


def test_an_account_without_anchor_is_the_same_otherwise() -> None:
    torch.manual_seed(0)
    mask = torch.randint(2, (4, 3)).double()
    logits = [torch.randn(4, 3).double().requires_grad_() for _ in range(2)]
    gradients = []
    for start in (0.3, None):
        sums = credit.account(mask, *logits, start, fits_prior=True)
        loss = sums.kl.sum() + (sums.log_q * sums.log_p).sum()
        gradients.append(torch.autograd.grad(loss, logits))
    assert sums.anchor is None
    for pair in zip(*gradients, strict=True):
        assert torch.equal(*pair)


@pytest.mark.parametrize("rows", [4, 8])
@pytest.mark.parametrize("fits_prior", [True, False])
def test_the_account_has_the_gradients_of_its_formulas(rows: int, fits_prior: bool) -> None:
    """Against autograd and ``torch.distributions``, logits of one copy of the batch included."""
    torch.manual_seed(0)
    mask, slope = torch.randint(2, (8, 3)).double(), torch.randn(8, 3).double()
    logits = [(2 * torch.randn(rows, 3).double()).requires_grad_() for _ in range(2)]
    weights = [torch.randn(count).double() for count in (8, 8, rows, rows)]
    sums = credit.account(mask, *logits, 0.7, fits_prior, 1.5)
    loss = (sums.mask * slope).sum()
    found = sums.log_q, sums.log_p, sums.kl, sums.anchor
    gradients = torch.autograd.grad(
        loss + sum((weight * part).sum() for weight, part in zip(weights, found, strict=True)),
        logits,
    )
    q, p = (Bernoulli(logits=value) for value in logits)
    log_q, log_p = (each.log_prob(mask.reshape(-1, rows, 3)).sum(-1).flatten() for each in (q, p))
    base = p if fits_prior else Bernoulli(logits=logits[1].detach())
    start = Bernoulli(logits=torch.full((rows, 3), 0.7).double())
    truth = log_q, log_p, kl_divergence(q, base).sum(-1), kl_divergence(p, start).sum(-1)
    for part, expected in zip(found, truth, strict=True):
        torch.testing.assert_close(part, expected)
    loss = (credited(mask, logits[0], 1.5) * slope).sum()
    expected = torch.autograd.grad(
        loss + sum((weight * part).sum() for weight, part in zip(weights, truth, strict=True)),
        logits,
    )
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("objective", ["credit", "control", "tb"])
def test_without_likelihood_the_posterior_stays_the_prior(objective: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    more = {} if objective == "credit" else {"draws": 2, "log_z": "batch"}
    model = gfo.wrap(
        net, "gflowout", ["1", "3"], likelihood=gfo.Categorical(2), example=(x,), beta=0.0,
        objective=objective, **more,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
    for _ in range(20):
        losses = model(x, y=y)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    torch.testing.assert_close(losses.log_q, losses.log_p, rtol=0, atol=1e-4)
    assert losses.kl.abs() < 1e-4


def test_units_that_are_off_keep_the_priors_rate() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    model = gfo.wrap(net, "gflowout", ["1"], likelihood=gfo.Categorical(2), example=(x,))
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(torch.randn_like(parameter))
    seen: list[tuple[Tensor, ...]] = []
    model.method.posterior[0].register_forward_hook(lambda _, args, out: seen.append(out))
    model(x, y=y)
    (_, posterior, prior), off = seen[0], net[1](net[0](x)) == 0
    assert torch.equal(posterior[off], prior[off])
    assert torch.isclose(posterior[~off], prior[~off]).float().mean() < 0.05


def test_the_anchor_holds_the_prior_at_its_start() -> None:
    """The balance of fit and anchor: logit p - start = (logit q - logit p) / anchor."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    moved = []
    for anchor in (0.0, 1.0, 10.0):
        model = gfo.wrap(
            net, "gflowout", ["1"], likelihood=gfo.Categorical(2), example=(x,), anchor=anchor,
            prior_keep=0.5,
        )  # fmt: skip
        with torch.no_grad():
            model.method.prior[0].blocks[0].bias.add_(0.5)
        losses = model(x, y=y)
        (slope,) = torch.autograd.grad(
            losses.prior + losses.tb, model.method.prior[0].blocks[0].bias
        )
        moved.append(slope.mean().item())
    assert moved[0] == pytest.approx(0, abs=1e-6)
    assert moved[2] == pytest.approx(10 * moved[1], rel=1e-4)
    assert moved[1] > 0


def test_losses_have_the_elbo_and_a_bound_from_all_draws() -> None:
    model, x, y = wrapped("mlp", draws=3)
    losses = model(x.expand(5, -1), y=y.expand(5))
    log_weight = losses.log_likelihood + losses.log_p - losses.log_q.detach()
    torch.testing.assert_close(losses.bound, log_weight.exp().mean(0).log().mean())
    torch.testing.assert_close(losses.elbo, losses.log_likelihood.mean() - losses.kl)
    reward = 1.5 * losses.log_likelihood + losses.log_p
    torch.testing.assert_close(losses.log_reward, reward)
    none = gfo.wrap(
        nn.Linear(3, 2), "mc", ["input"], likelihood=gfo.Categorical(2), example=(x.float(),)
    )
    plain = none(x.float(), y=torch.tensor([0]))
    assert plain.elbo is plain.bound is plain.kl is None


def test_the_closed_form_kl_is_the_mean_over_masks() -> None:
    model, x, y = wrapped("quadratic")
    masks = every_mask(model)
    rows = x.expand(len(masks), -1), y.expand(len(masks), -1)
    losses = model(rows[0], y=rows[1], masks=[masks])
    exact_kl = (losses.log_q.exp() * (losses.log_q - losses.log_p)).sum()
    torch.testing.assert_close(losses.kl, exact_kl.detach())


def test_credit_of_shared_masks_is_exact_where_the_likelihood_is_quadratic() -> None:
    """The gradient is that of the negative ELBO of the training set, per example."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    likelihood = gfo.Gaussian(2, noise=0.7, learn_noise=False)
    model = gfo.wrap(
        net, "id-gflowout", ["1"], likelihood=likelihood, example=(x,), objective="credit",
        train_size=30, beta=0.8, sparsity=0.2, prior_keep=0.6, draws=1, group_size=6,
        log_z="learned",
    ).double()  # fmt: skip
    (bias,) = model.method.posterior.parameters()
    with torch.no_grad():
        bias.add_(0.05 * torch.randn_like(bias))
    mean, exact = torch.zeros(4).double(), torch.zeros(()).double()
    for mask in enumeration.all_masks(4).double():
        losses = model(x, y=y, masks=[mask.expand(6, -1)])
        q, reward = losses.log_q[0], losses.log_reward[0]
        exact = exact + q.exp() * (q - reward) / 30
        mean = (
            mean
            + q.exp().detach()
            * torch.autograd.grad(losses.nll + losses.tb, bias, retain_graph=True)[0]
        )
    (truth,) = torch.autograd.grad(exact, bias)
    torch.testing.assert_close(mean, truth)
