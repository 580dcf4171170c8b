"""The posterior that trajectory balance learns is the exact one, where it can be enumerated.

The backbone and the prior are frozen, every mask is enumerated, and q is compared with the best
distribution that its factorisation can represent. The same check must fail for objectives that
are wrong in ways that leave shapes and training untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import enumeration
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_loop import descend

import gflowout as gfo
from gflowout.core import objectives, policy

ON_POLICY = {"temperature": 1.0, "epsilon": 0.0}
EXPLORING = {"temperature": 2.0, "epsilon": 0.1}  # the paper's


class Pairs(nn.Module):
    """Each label wants exactly one unit of a pair, one at each site: 16 modes of equal weight."""

    def __init__(self, pairs: int = 4) -> None:
        super().__init__()
        self.one, self.other = nn.Identity(), nn.Identity()
        self.pairs = pairs

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(len(x), self.pairs)
        return 1.5 * (self.one(ones) + self.other(ones))


def mlp(seed: int, scale: float) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    return scaled(net, scale)


def conv(seed: int, scale: float) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3, 2),
        nn.Tanh(),
        nn.Linear(2, 1),
    )
    return scaled(net, scale)


def scaled(net: nn.Module, scale: float) -> nn.Module:
    """Enlarge the weights, so that masks matter and the posterior is far from the prior."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    return net


@dataclass
class Problem:
    build: Callable[[], nn.Module]
    sites: list[str]
    likelihood: gfo.Likelihood
    keep: float
    x: Tensor
    y: Tensor
    prior_spread: float = 0.0  # above 0, the frozen prior depends on x and earlier masks
    prior_seed: int = 0

    def wrap(self, **options: object) -> gfo.MaskedModel:
        model = gfo.wrap(
            self.build(),
            "gflowout",
            self.sites,
            likelihood=self.likelihood,
            example=(self.x,),
            **{"preset": "paper", "prior_keep": self.keep, **options},
        )
        model.backbone.requires_grad_(False)
        draws = torch.Generator().manual_seed(self.prior_seed)
        with torch.no_grad():
            for parameter in model.method.prior.parameters():
                noise = torch.randn(parameter.shape, generator=draws)
                parameter.add_(self.prior_spread * noise)
        model.method.prior.requires_grad_(False)
        return model


def problem(name: str) -> Problem:
    draws = torch.Generator().manual_seed(103)
    if name == "mlp":
        x, y = torch.randn(4, 4, generator=draws), torch.tensor([0, 1, 2, 1])
        return Problem(
            lambda: mlp(3, 3.0),
            ["1", "3"],
            gfo.Categorical(3),
            0.7,
            x,
            y,
            prior_spread=0.15,
            prior_seed=1,
        )
    if name == "conv":
        x, y = torch.randn(3, 1, 4, 4, generator=draws), torch.tensor([0.0, 1.0, 1.0])
        return Problem(lambda: conv(0, 4.0), ["1", "3", "6"], gfo.Binary(), 0.5, x, y)
    likelihood = gfo.Gaussian(4, noise=0.5, learn_noise=False)
    x, y = torch.randn(2, 3, generator=draws), torch.full((2, 4), 1.5)
    return Problem(Pairs, ["one", "other"], likelihood, 0.5, x, y)


@cache
def exact(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prior, posterior, best factorised posterior (all logs, [batch, masks]) and log evidence."""
    given = problem(name)
    model = given.wrap()
    units = [site.units for site in model.sites]
    prior = enumeration.generator_log_prob(model, model.method.prior, given.x, given.y)
    joint = enumeration.log_likelihoods(model, given.x, given.y) + prior
    evidence = joint.logsumexp(-1)
    posterior = joint - evidence[:, None]
    best = enumeration.best_factorised(posterior, units)
    return prior, posterior, best, evidence


def train(
    model: gfo.MaskedModel, x: Tensor, y: Tensor, steps: int, repeats: int = 1, **rates: float
) -> None:
    """With an Adam that forgets the first, large gradients soon, so that few steps are enough."""
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(model.parameter_groups(**rates), betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    x, y = x.repeat(repeats, *[1] * (x.dim() - 1)), y.repeat(repeats, *[1] * (y.dim() - 1))
    descend(model, x, y, optimiser, steps, schedule)


def check(name: str, exploration: dict[str, float], within: float, steps: int = 300) -> None:
    """Train q and compare it with the enumerated truth."""
    given = problem(name)
    model = given.wrap(**exploration)
    rate = 1e-2 if steps <= 300 else 1.5e-2
    if model.method.options.posterior == "correction":  # moves less per step of Adam
        rate *= 3
    train(model, given.x, given.y, steps, repeats=96, generator_lr=rate, log_z_lr=1e-1)
    _, posterior, best, evidence = exact(name)
    q = enumeration.generator_log_prob(model, model.method.posterior, given.x, given.y)
    to_best = enumeration.total_variation(q, best).max().item()
    gap = enumeration.total_variation(q, posterior) - enumeration.total_variation(best, posterior)
    log_z = model(given.x, y=given.y).log_z.detach()
    assert to_best <= within, f"{to_best:.3f} away from the best factorised posterior"
    assert gap.max().item() <= within
    if exploration is ON_POLICY:
        assert (log_z - evidence).abs().max().item() <= 0.05, "log Z is not the evidence"


@pytest.mark.parametrize("name", ["mlp", "conv", "pairs"])
def test_the_problems_ask_for_something(name: str) -> None:
    prior, posterior, best, _ = exact(name)
    assert enumeration.total_variation(prior, posterior).min() >= 0.2
    assert enumeration.kl(best, posterior).max() <= 0.03  # so log Z can be the evidence


def test_one_posterior_has_many_modes() -> None:
    _, posterior, _, _ = exact("pairs")
    modes = (posterior > posterior.amax(-1, keepdim=True) - 1e-4).sum(-1)
    assert modes.tolist() == [16, 16]


@pytest.mark.parametrize("name", ["mlp", "conv", "pairs"])
def test_on_policy_the_posterior_is_found(name: str) -> None:
    check(name, ON_POLICY, within=0.03)


@pytest.mark.parametrize("name", ["mlp", "conv", "pairs"])
def test_with_the_papers_exploration_the_posterior_is_found(name: str) -> None:
    check(name, EXPLORING, within=0.10)


OTHERS = {
    "subtb": {**ON_POLICY, "objective": "subtb"},
    "db": {**ON_POLICY, "objective": "db"},
    "control": {**ON_POLICY, "objective": "control", "draws": 2},
    "correction": {**ON_POLICY, "posterior": "correction"},
}


@pytest.mark.parametrize(
    ("name", "options"), [*(("mlp", own) for own in OTHERS), ("conv", "control")]
)
def test_other_objectives_find_the_posterior(name: str, options: str) -> None:
    check(name, OTHERS[options], within=0.03, steps=800 if options == "control" else 450)


def of_posterior(mutant: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Let a wrong log-probability act on the posterior only: the frozen prior has no gradient."""

    def log_prob(mask: Tensor, logits: Tensor) -> Tensor:
        if logits.requires_grad:
            return mutant(mask, logits)
        return torch.distributions.Bernoulli(logits=logits).log_prob(mask).sum(-1)

    return log_prob


def wrong_sign(mask: Tensor, logits: Tensor) -> Tensor:
    return (mask * F.logsigmoid(logits) - (1 - mask) * F.logsigmoid(-logits)).sum(-1)


def value_drawn(mask: Tensor, logits: Tensor) -> Tensor:
    """Sum of log pi whatever was drawn: what the authors' scripts compute."""
    return F.logsigmoid(logits).sum(-1) + 0 * mask.sum(-1)


def tempered(mask: Tensor, logits: Tensor) -> Tensor:
    centre = policy.logit(0.7)
    cooler = centre + (logits - centre) / EXPLORING["temperature"]
    return torch.distributions.Bernoulli(logits=cooler).log_prob(mask).sum(-1)


def broadcast(log_q: Tensor, log_reward: Tensor, log_z: Tensor) -> Tensor:
    column = log_z.unsqueeze(-1) if log_z.dim() == 1 else log_z  # training is what it spoils
    return (column + log_q - log_reward).square()


def without_prior(log_likelihood: Tensor, log_prior: Tensor, beta: float = 1.0) -> Tensor:
    return (beta * log_likelihood + 0 * log_prior).detach()


@pytest.mark.parametrize(
    ("module", "function", "mutant", "exploration", "within"),
    [
        (policy, "log_prob", of_posterior(wrong_sign), ON_POLICY, 0.05),
        (policy, "log_prob", of_posterior(value_drawn), ON_POLICY, 0.05),
        (policy, "log_prob", of_posterior(tempered), EXPLORING, 0.10),
        (objectives, "trajectory_balance", broadcast, ON_POLICY, 0.05),
        (objectives, "log_reward", without_prior, ON_POLICY, 0.05),
    ],
    ids=["wrong-sign", "value-drawn", "tempered-log-q", "broadcast-log-z", "reward-without-prior"],
)
def test_a_wrong_objective_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    function: str,
    mutant: Callable[..., Tensor],
    exploration: dict[str, float],
    within: float,
) -> None:
    exact("mlp")
    monkeypatch.setattr(module, function, mutant)
    with pytest.raises(AssertionError, match=r"away from the best|is not the evidence"):
        check("mlp", exploration, within)


def teacher_data(net: nn.Module, seed: int, examples: int) -> tuple[Tensor, Tensor]:
    """Labels drawn from the network under one hidden mask."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 4, generator=draws)
    masks = (torch.rand(2, 5, generator=draws) < 0.5).float()
    with torch.no_grad():
        hidden = net[3](net[2](net[1](net[0](x)) * masks[0])) * masks[1]
        return x, net[4](hidden).softmax(-1).multinomial(1, generator=draws).squeeze(-1)


def wrap_id(seed: int, keep: float, **options: object) -> tuple[gfo.MaskedModel, Tensor, Tensor]:
    net = mlp(seed, 2.0)
    x, y = teacher_data(net, seed, examples=32)
    model = gfo.wrap(
        net,
        "id-gflowout",
        ["1", "3"],
        likelihood=gfo.Categorical(3),
        example=(x[:2],),
        **{"train_size": len(x), "prior_keep": keep, **options},
    )
    net.requires_grad_(False)
    return model, x, y


@cache
def exact_id(seed: int, keep: float) -> tuple[Tensor, Tensor]:
    """Posterior of the shared masks and the best factorised one, logs, [1, masks]."""
    model, x, y = wrap_id(seed, keep)
    prior = enumeration.log_fixed_prior(enumeration.all_masks(10), keep)
    joint = enumeration.log_likelihoods(model, x, y).sum(0, keepdim=True) + prior
    posterior = joint - joint.logsumexp(-1, keepdim=True)
    assert enumeration.total_variation(prior, posterior).item() >= 0.2
    return posterior, enumeration.best_factorised(posterior, [5, 5])


def check_id(seed: int, keep: float, **options: object) -> None:
    """Train the shared posterior on a small data set and compare it with the enumerated one."""
    posterior, best = exact_id(seed, keep)
    model, x, y = wrap_id(seed, keep, **options)

    train(model, x, y, steps=600, generator_lr=5e-3)
    q = enumeration.generator_log_prob(model, model.method.posterior, x[:1], y[:1])
    reached = enumeration.total_variation(q, posterior) - enumeration.total_variation(
        best, posterior
    )
    to_best = enumeration.total_variation(q, best).item()
    assert to_best <= 0.10, f"{to_best:.3f} away from the best factorised posterior"
    assert reached.item() <= 0.10


@pytest.mark.parametrize(("seed", "keep"), [(0, 0.5), (1, 0.5), (0, 0.7)])
def test_id_gflowout_finds_the_posterior_of_a_data_set_with_default_options(
    seed: int, keep: float
) -> None:
    check_id(seed, keep)


def away_from_prior(mask: Tensor, logit: float) -> Tensor:
    """A prior whose log-odds have the wrong sign."""
    flipped = torch.full_like(mask, -logit)
    return torch.distributions.Bernoulli(logits=flipped).log_prob(mask).sum(-1)


@pytest.mark.parametrize(
    ("module", "function", "mutant"),
    [
        (policy, "log_prob", of_posterior(wrong_sign)),
        (policy, "log_prob_at_rate", away_from_prior),
        (objectives, "log_reward", without_prior),
    ],
    ids=["wrong-sign", "flipped-prior", "reward-without-prior"],
)
def test_a_wrong_objective_of_id_gflowout_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    function: str,
    mutant: Callable[..., Tensor],
) -> None:
    exact_id(0, 0.7)  # what is right is not computed with a mistake
    monkeypatch.setattr(module, function, mutant)
    with pytest.raises(AssertionError, match="away from the best"):
        check_id(0, 0.7)


def test_a_wrong_size_of_the_training_set_is_caught() -> None:
    with pytest.raises(AssertionError, match="away from the best"):
        check_id(1, 0.5, train_size=4)
