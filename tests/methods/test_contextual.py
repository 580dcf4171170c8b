"""Contextual dropout: an unbiased gradient, rates that follow the input, exact predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import enumeration
import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.methods import contextual

KL_WEIGHT = 0.7
BOUND = 4.5  # standard errors; about one false alarm in 1,000 for 120 parameters


def small_model(**options: object) -> gfo.MaskedModel:
    """Two sites of three units, masks that matter, rates that depend on activations."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(4.0)
    model = gfo.wrap(
        net,
        "contextual",
        ["1", "3"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
        prior_keep=0.6,
        kl_weight=KL_WEIGHT,
        **options,
    )
    with torch.no_grad():
        for parameter in model.method.generators.parameters():
            parameter.add_(0.6 * torch.randn_like(parameter))
        model.method.prior.add_(torch.tensor([0.05, -0.08]))
    return model


def examples() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    return torch.randn(2, 4, generator=draws), torch.tensor([0, 2])


def site_logits(model: gfo.MaskedModel, x: Tensor, masks: list[Tensor]) -> list[Tensor]:
    """Log-odds of every site under given masks, read off the generators by hooks."""
    outputs: list[Tensor] = []
    handles = [
        generator.register_forward_hook(lambda _, args, out: outputs.append(out))
        for generator in model.method.generators
    ]
    model(x, y=torch.zeros(len(x)).long(), masks=masks)
    for handle in handles:
        handle.remove()
    start = torch.tensor(0.6 / 0.4).log()
    return [start + model.method.options.gain * output for output in outputs]


def exact_objective(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Expected NLL and KL of the batch over all masks; differentiable in the generators."""
    masks = enumeration.all_masks(sum(site.units for site in model.sites))
    nlls, kls = [], []
    prior_logits = torch.tensor(0.6 / 0.4).log() + 10 * model.method.prior
    for one, label in zip(x, y, strict=True):
        parts = enumeration.split(masks, model)
        inputs = one.expand(len(masks), -1)
        log_q = log_p = torch.zeros(())
        logits = site_logits(model, inputs, parts)
        for site, part in enumerate(parts):
            log_q = log_q + torch.distributions.Bernoulli(logits=logits[site]).log_prob(part).sum(1)
            prior = torch.distributions.Bernoulli(logits=prior_logits[site])
            log_p = log_p + prior.log_prob(part).sum(1)
        output = model(inputs, masks=parts)
        log_likelihood = torch.distributions.Categorical(logits=output).log_prob(label)
        nlls.append((log_q.exp() * -log_likelihood).sum())
        kls.append((log_q.exp() * (log_q - log_p)).sum())
    return torch.stack(nlls).mean(), torch.stack(kls).mean()


def flat_gradient(loss: Tensor, parameters: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(gradients, parameters, strict=True)
        ]
    )


@cache
def exact_gradients() -> dict[str, Tensor]:
    """Of the expected loss for the generators, and of the expected NLL for the backbone."""
    model, (x, y) = small_model(), examples()
    nll, kl = exact_objective(model, x, y)
    generators = list(model.method.parameters())
    return {
        "total": flat_gradient(nll + KL_WEIGHT * kl, generators),
        "nll": flat_gradient(nll, generators),
        "prior": flat_gradient(KL_WEIGHT * kl, generators),
    }


def z_scores(part: str, steps: int = 200, copies: int = 100) -> Tensor:
    """Distance of the mean gradient of many steps from the exact one, in standard errors."""
    model, (x, y) = small_model(), examples()
    parameters = list(model.method.parameters())
    x, y = x.repeat(copies, 1), y.repeat(copies)
    torch.manual_seed(11)
    rows = torch.stack(
        [flat_gradient(getattr(model(x, y=y), part), parameters) for _ in range(steps)]
    )
    exact = exact_gradients()[part]
    rounding = 1e-5 * exact.abs().max().item()
    return (rows.mean(0) - exact) / (rows.std(0) / steps**0.5).clamp(min=rounding)


@pytest.mark.parametrize("part", ["total", "nll", "prior"])
def test_the_gradient_is_unbiased(part: str) -> None:
    scores = z_scores(part)
    assert len(scores) == 120
    assert scores.abs().max().item() <= BOUND


def doubled(
    uniform: Tensor, logits: Tensor, pseudo_logits: Tensor, cost: Tensor, pseudo_cost: Tensor
) -> Tensor:
    """2u - 1 instead of u - 1/2. (u itself would only add noise: f' - f is 0 on average.)"""
    return contextual_arm(2 * uniform - 0.5, logits, pseudo_logits, cost, pseudo_cost)


def half_flipped(
    uniform: Tensor, logits: Tensor, pseudo_logits: Tensor, cost: Tensor, pseudo_cost: Tensor
) -> Tensor:
    sign = 1.0 - 2.0 * (torch.arange(logits.shape[-1]) % 2)
    centred = 0.5 + (uniform - 0.5) * sign
    return contextual_arm(centred, logits, pseudo_logits, cost, pseudo_cost)


def first_pass_logits_only(
    uniform: Tensor, logits: Tensor, pseudo_logits: Tensor, cost: Tensor, pseudo_cost: Tensor
) -> Tensor:
    """Right for one site; biased where later rates depend on earlier masks."""
    return contextual_arm(uniform, logits, logits, cost, pseudo_cost)


contextual_arm = contextual.arm


@pytest.mark.parametrize("wrong", [doubled, half_flipped, first_pass_logits_only])
def test_a_wrong_estimator_is_caught(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(contextual, "arm", wrong)
    assert z_scores("total").abs().max().item() > 2 * BOUND


def test_leaving_out_later_rates_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KL divergence of a later site depends on the masks of an earlier one."""

    def nothing(*values: Tensor) -> Tensor:
        return torch.zeros_like(values[-1])

    monkeypatch.setattr(contextual, "arm", nothing)
    assert z_scores("prior").abs().max().item() > 2 * BOUND


def test_one_site_is_the_published_estimator() -> None:
    torch.manual_seed(0)
    uniform, cost, pseudo_cost = torch.rand(5, 3), torch.rand(5), torch.rand(5)
    logits = torch.randn(5, 3, requires_grad=True)
    contextual.arm(uniform, logits, logits, cost, pseudo_cost).sum().backward()
    published = (pseudo_cost - cost)[:, None] * (uniform - 0.5)
    torch.testing.assert_close(logits.grad, published)


def test_values_are_those_of_the_drawn_masks() -> None:
    model, (x, y) = small_model(), examples()
    losses = model(x, y=y)
    again = model(x, y=y, masks=losses.masks)
    for part in ("total", "nll", "prior", "log_q", "log_reward"):
        torch.testing.assert_close(getattr(again, part), getattr(losses, part))
    output = model(x, masks=losses.masks)
    torch.testing.assert_close(losses.nll, nn.functional.cross_entropy(output, y))
    torch.testing.assert_close(losses.total, losses.nll + losses.prior)


def test_divergences_and_densities_are_those_of_the_distributions() -> None:
    logits, prior = torch.randn(4, 5), torch.tensor(0.3)
    q = torch.distributions.Bernoulli(logits=logits)
    p = torch.distributions.Bernoulli(logits=prior)
    expected = torch.distributions.kl_divergence(q, p).sum(-1)
    torch.testing.assert_close(contextual.Bernoulli.kl(logits, prior), expected)
    noise = torch.distributions.Normal(1.0, (-logits / 2).exp())
    start = torch.distributions.Normal(1.0, (-prior / 2).exp())
    expected = torch.distributions.kl_divergence(noise, start).sum(-1)
    torch.testing.assert_close(contextual.Gaussian.kl(logits, prior), expected)
    for family, one, other in (
        (contextual.Bernoulli, q, p),
        (contextual.Gaussian, noise, start),
    ):
        mask = one.sample()
        torch.testing.assert_close(family.log_prob(mask, logits), one.log_prob(mask).sum(-1))
        torch.testing.assert_close(family.log_prob(mask, prior), other.log_prob(mask).sum(-1))


def test_backbone_follows_the_likelihood_only() -> None:
    model, (x, y) = small_model(), examples()
    torch.manual_seed(0)
    losses = model(x, y=y)
    weights = list(model.backbone.parameters())
    plain = nn.functional.cross_entropy(model(x, masks=losses.masks), y)
    own = flat_gradient(losses.total, weights)
    torch.testing.assert_close(own, flat_gradient(plain, weights))
    assert not flat_gradient(model(x, y=y).prior, weights).any()


@pytest.mark.parametrize(("noise", "passes"), [("bernoulli", 2), ("gaussian", 1)])
def test_passes_per_step(noise: str, passes: int) -> None:
    model, (x, y) = small_model(family=noise), examples()
    forwards, backwards = [], []
    model.backbone.register_forward_hook(lambda *_: forwards.append(1))
    model.backbone[2].register_full_backward_hook(lambda *_: backwards.append(1))
    losses = model(x, y=y)
    assert len(forwards) == passes
    losses.total.backward()
    assert len(backwards) == 1
    forwards.clear()
    model(x, y=y, masks=losses.masks)  # known masks have no pseudo masks
    with torch.no_grad():
        model(x, y=y)
    assert len(forwards) == 2


def test_the_second_pass_mirrors_the_first() -> None:
    """Both see masks from the generator, at u and at 1 - u."""
    model, (x, y) = small_model(), examples()
    x, y = x[:1].repeat(4000, 1), y[:1].repeat(4000)
    scales: list[Tensor] = []
    model.backbone[2].register_forward_pre_hook(lambda _, args: scales.append(args[0].detach()))
    model(x, y=y)
    true, pseudo = ((out != 0).float() for out in scales)
    rates = torch.sigmoid(site_logits(model, x[:1], [torch.ones(1, 3), torch.ones(1, 3)])[0])
    for mask in (true, pseudo):
        torch.testing.assert_close(mask.mean(0), rates[0].detach(), atol=0.04, rtol=0)
    both = (true * pseudo).mean(0)  # u < keep and u > 1 - keep
    torch.testing.assert_close(both, (2 * rates[0].detach() - 1).clamp(min=0), atol=0.04, rtol=0)


class Switch(nn.Module):
    """A flag tells which half of the other units carries the answer: their sum.

    All units are added up, so that a mask must leave out the wrong half; if gated, the network
    leaves it out itself, so that noise does harm in the right half only.
    """

    def __init__(self, gated: bool = False) -> None:
        super().__init__()
        self.units = nn.Identity()
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        values = self.units(x)[:, 1:]
        right = (torch.arange(6) < 3) == (x[:, :1] > 0)
        return (values * right if self.gated else values).sum(-1, keepdim=True)


def switch_data(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    flag = torch.randint(2, (examples, 1), generator=draws) * 2.0 - 1
    values = torch.randn(examples, 6, generator=draws)
    halves = values[:, :3].sum(1, keepdim=True), values[:, 3:].sum(1, keepdim=True)
    return torch.cat([2 * flag, values], 1), torch.where(flag > 0, *halves)


def on_switch(net: Switch, **options: object) -> gfo.MaskedModel:
    torch.manual_seed(0)
    likelihood, (x, _) = gfo.Gaussian(1, noise=0.5, learn_noise=False), switch_data(20, 0)
    return gfo.wrap(
        net, "contextual", ["units"], likelihood=likelihood, example=(x,), prior_keep=0.5, **options
    )


def train_on_switch(model: gfo.MaskedModel, steps: int, **rates: float) -> None:
    optimiser = torch.optim.Adam(model.parameter_groups(**rates))
    for step in range(steps):
        descend(model, *switch_data(128, step), optimiser, 1)


@pytest.mark.parametrize(("noise", "gap"), [("bernoulli", 0.6), ("gaussian", 0.1)])
def test_rates_follow_the_input_where_they_must(noise: str, gap: float) -> None:
    model = on_switch(Switch(gated=noise == "gaussian"), family=noise)
    model.method.prior.requires_grad_(noise == "bernoulli")  # else all noise goes, being harmful
    train_on_switch(model, 250, generator_lr=1e-2)
    x, _ = switch_data(400, 1000)
    keep = torch.sigmoid(model.method._logits(0, x)).detach()[:, 1:]
    first, second = keep[:, :3].mean(1), keep[:, 3:].mean(1)
    on = x[:, 0] > 0
    assert (first[on].mean() - first[~on].mean()).item() >= gap
    assert (second[~on].mean() - second[on].mean()).item() >= gap


@pytest.mark.parametrize(("gain", "moved"), [(1.0, True), (0.01, False)])
def test_the_gain_lets_rates_move(gain: float, moved: bool) -> None:
    """At the default learning rate, in 300 steps; with the authors' 0.01 they stay at 0.5."""
    model = on_switch(Switch(), gain=gain)
    train_on_switch(model, 300)
    x, _ = switch_data(128, 299)
    spread = torch.sigmoid(model.method._logits(0, x)).std(0)[1:].mean().item()
    assert (spread > 0.1) == moved
    assert moved or spread < 0.01


@pytest.mark.parametrize(("signal", "kept"), [(1.0, True), (0.0, False)])
def test_the_prior_rate_is_learned(signal: float, kept: bool) -> None:
    """It follows the rates: up where all units matter, down where all are noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), nn.Linear(6, 1, bias=False)).requires_grad_(False)
    net[1].weight.fill_(1.0)
    model = gfo.wrap(
        net,
        "contextual",
        ["0"],
        likelihood=gfo.Gaussian(1, noise=0.5, learn_noise=False),
        example=(torch.zeros(2, 6),),
    )
    optimiser = torch.optim.Adam(model.parameter_groups(generator_lr=1e-2))
    for _ in range(200):
        x = torch.randn(128, 6)
        optimiser.zero_grad()
        model(x, y=signal * x.sum(1, keepdim=True)).total.backward()
        optimiser.step()
    rate = torch.sigmoid(model.method.prior_logits(0)).item()
    keep = torch.sigmoid(model.method._logits(0, x)).mean().item()
    assert (rate > 0.9) if kept else (rate < 0.1)
    assert rate == pytest.approx(keep, abs=0.05)


def test_prediction_is_the_exact_expectation() -> None:
    model, (x, _) = small_model(), examples()
    masks = enumeration.all_masks(6)
    expected = []
    for one in x:
        parts = enumeration.split(masks, model)
        logits = site_logits(model, one.expand(len(masks), -1), parts)
        log_q = sum(
            torch.distributions.Bernoulli(logits=logit).log_prob(part).sum(1)
            for logit, part in zip(logits, parts, strict=True)
        )
        outputs = model(one.expand(len(masks), -1), masks=parts).softmax(-1)
        expected.append((log_q.exp()[:, None] * outputs).sum(0))
    draws = 20_000
    pred = model.predict(x, samples=draws, generator=torch.Generator().manual_seed(0))
    error = pred.samples.std(0) / draws**0.5
    distance = (pred.mean - torch.stack(expected).detach()).abs() / error
    assert distance.max().item() <= 4


def test_kl_weight_can_grow() -> None:
    model, (x, y) = small_model(), examples()
    masks = model(x, y=y).masks
    full = model(x, y=y, masks=masks).prior
    model.set_options(kl_weight=KL_WEIGHT / 2)
    torch.testing.assert_close(model(x, y=y, masks=masks).prior, full / 2)
    model.set_options(kl_weight=0.0)
    assert model(x, y=y).prior.item() == 0


def test_rates_start_at_the_prior() -> None:
    x = torch.randn(500, 4)
    net = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3))
    model = gfo.wrap(
        net, "contextual", ["1"], likelihood=gfo.Categorical(3), example=(x[:2],), prior_keep=0.8
    )
    losses = model(x, y=torch.zeros(500).long())
    assert losses.masks[0].mean().item() == pytest.approx(0.8, abs=0.01)
    assert losses.prior.item() == pytest.approx(0, abs=1e-5)


def test_gaussian_noise_has_the_variance_of_dropout() -> None:
    x = torch.randn(2000, 4)
    net = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3))
    model = gfo.wrap(
        net,
        "contextual",
        ["1"],
        likelihood=gfo.Categorical(3),
        example=(x[:2],),
        prior_keep=0.8,
        family="gaussian",
    )
    for masks in (
        model(x, y=torch.zeros(2000).long()).masks,
        model.predict(x, samples=2, return_masks=True).masks,
    ):
        assert masks[0].mean().item() == pytest.approx(1, abs=0.01)
        assert masks[0].var().item() == pytest.approx(0.2 / 0.8, rel=0.03)
    with pytest.raises(ValueError, match="rescale must be 'none' with family"):
        gfo.wrap(
            net,
            "contextual",
            ["1"],
            likelihood=gfo.Categorical(3),
            example=(x[:2],),
            family="gaussian",
            rescale="kept",
        )


def test_the_reparametrised_gradient_is_that_of_finite_differences() -> None:
    model, (x, y) = small_model(family="gaussian"), examples()
    model = model.double()
    x = x.double()
    bias = model.method.generators[1][-1].bias  # the last site: nothing later depends on it

    def total() -> Tensor:
        torch.manual_seed(4)
        return model(x, y=y).total

    exact = torch.autograd.grad(total(), bias)[0]
    for unit in range(3):
        with torch.no_grad():
            bias[unit] += 1e-5
            above = total()
            bias[unit] -= 2e-5
            below = total()
            bias[unit] += 1e-5
        assert ((above - below) / 2e-5).item() == pytest.approx(exact[unit].item(), rel=1e-3)
