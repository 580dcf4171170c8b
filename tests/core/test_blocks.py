"""Autoregressive blocks represent dependence inside a site, which independent units cannot."""

from __future__ import annotations

import enumeration
import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core.generators import MaskPolicy

UNITS = 4


class Parity(nn.Module):
    """Output 1 for an odd number of kept units and -1 for an even one."""

    def __init__(self) -> None:
        super().__init__()
        self.site = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.site(torch.ones(len(x), UNITS))
        return -(1 - 2 * kept).prod(-1, keepdim=True)


class Pairs(nn.Module):
    """Each label wants exactly one of two units of the same site."""

    def __init__(self) -> None:
        super().__init__()
        self.site = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.site(torch.ones(len(x), UNITS))
        return 1.5 * (kept[:, : UNITS // 2] + kept[:, UNITS // 2 :])


PROBLEMS = {
    "parity": (Parity, gfo.Gaussian(1, noise=0.5, learn_noise=False), torch.ones(1, 1)),
    "pairs": (Pairs, gfo.Gaussian(2, noise=0.5, learn_noise=False), torch.full((1, 2), 1.5)),
}


def distance(
    method: str,
    problem: str,
    blocks: int,
    steps: int = 300,
    rate: float = 1e-2,
    epsilon: float = 0.0,
) -> tuple[float, float]:
    """Total variation of the trained and of the best factorised posterior from the exact one."""
    build, likelihood, y = PROBLEMS[problem]
    x = torch.zeros(1, 1)
    extra = {"train_size": 1} if method == "id-gflowout" else {"preset": "paper"}
    model = gfo.wrap(
        build(),
        method,
        ["site"],
        likelihood=likelihood,
        example=(torch.zeros(2, 1),),
        temperature=1.0,
        epsilon=epsilon,
        blocks=blocks,
        draws=16,
        log_z="batch",
        prior_keep=0.5,
        **extra,
    )
    if method == "gflowout":
        model.method.prior.requires_grad_(False)
    prior = enumeration.log_fixed_prior(enumeration.all_masks(UNITS), 0.5)
    posterior = (enumeration.log_likelihoods(model, x, y) + prior).log_softmax(-1)
    best = enumeration.best_factorised(posterior, [UNITS])

    torch.manual_seed(0)
    optimiser = torch.optim.Adam(model.parameter_groups(generator_lr=rate), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        model(x.expand(16, 1), y=y.expand(16, -1)).tb.backward()
        optimiser.step()
        schedule.step()
    q = enumeration.generator_log_prob(model, model.method.posterior, x, y)
    return tuple(enumeration.total_variation(log, posterior).item() for log in (q, best))


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_on_policy_as_many_blocks_as_units_find_an_xor_posterior(method: str) -> None:
    reached, factorised = distance(method, "pairs", blocks=UNITS)
    assert reached <= 0.05
    assert factorised >= 0.3


@pytest.mark.parametrize(
    ("method", "epsilon", "steps", "rate"),
    [("gflowout", 0.1, 450, 1e-2), ("id-gflowout", 0.0, 900, 5e-3)],
)
def test_as_many_blocks_as_units_find_a_parity_posterior(
    method: str, epsilon: float, steps: int, rate: float
) -> None:
    """No linear map of earlier units gives parity; GFlowOut loses a mode without random masks."""
    reached, factorised = distance(method, "parity", UNITS, steps, rate, epsilon)
    assert reached <= 0.05
    assert factorised >= 0.3


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_one_block_cannot_leave_its_factorisation(method: str) -> None:
    reached, _ = distance(method, "pairs", blocks=1)
    assert reached >= 0.3


def test_two_blocks_suffice_for_pairs() -> None:
    reached, _ = distance("gflowout", "pairs", blocks=2)
    assert reached <= 0.05


@pytest.mark.parametrize(("units", "blocks"), [(5, 2), (7, 3), (3, 8), (6, 6)])
def test_blocks_cover_every_unit_once_and_see_only_what_is_before(units: int, blocks: int) -> None:
    policy = MaskPolicy([2], units, (8,), 0.0, blocks)
    covered = [unit for part in policy.parts for unit in range(part.start, part.stop)]
    assert covered == list(range(units))
    assert len(policy.parts) == min(units, blocks)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_()
    x, mask = torch.randn(1, 2), torch.zeros(1, units)
    for part in policy.parts:
        changed = mask.clone()
        changed[:, part] = 1
        before, after = (
            policy([x], lambda _, at, known=known: known[:, at])[1] for known in (mask, changed)
        )
        assert torch.equal(before[:, : part.stop], after[:, : part.stop])
        if part.stop < units:
            assert not torch.equal(before[:, part.stop :], after[:, part.stop :])


def test_masks_in_blocks_follow_their_probabilities() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(1, 2)
    model = gfo.wrap(
        net, "gflowout", ["1"], likelihood=gfo.Categorical(3), example=(x.expand(2, 2),), blocks=3
    )
    with torch.no_grad():
        for parameter in model.method.prior.parameters():
            parameter.add_(torch.randn_like(parameter))
    expected = enumeration.generator_log_prob(model, model.method.prior, x, torch.zeros(1).long())[
        0
    ].exp()
    drawn = model.predict(x, samples=20_000, return_masks=True).masks[0][:, 0]
    counts = (drawn[:, None] == enumeration.all_masks(4)).all(-1).sum(0)
    likely = expected > 1e-3
    chi = ((counts - 20_000 * expected).square() / (20_000 * expected))[likely].sum().item()
    assert chi < 37.7  # at most 15 degrees of freedom, p = 0.001
