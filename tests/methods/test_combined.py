"""Shared times own masks: both posteriors are the exact ones, by enumeration of all pairs."""

from __future__ import annotations

import enumeration
import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.core import objectives
from gflowout.methods import IDGFlowOut

UNITS = [3, 2]
KEEP = 0.6


def build() -> nn.Module:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(4.0)
    return net


def data() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, generator=draws), torch.tensor([0, 1, 1, 0, 1, 0])


def wrap(**options: object) -> gfo.MaskedModel:
    x, _ = data()
    model = gfo.wrap(
        build(),
        "combined",
        ["1", "3"],
        likelihood=gfo.Categorical(2),
        example=(x[:2],),
        train_size=len(x),
        prior_keep=KEEP,
        **options,
    )
    model.backbone.requires_grad_(False)
    model.method.own.prior.requires_grad_(False)
    return model


@torch.no_grad()
def exact(model: gfo.MaskedModel) -> tuple[Tensor, Tensor]:
    """Log posterior of the shared masks, [shared]; of the own ones, [shared, examples, own]."""
    x, y = data()
    masks = enumeration.all_masks(sum(UNITS))
    prior = enumeration.log_fixed_prior(masks, KEEP)
    own = []
    for shared in masks:
        products = (masks * shared).split(UNITS, -1)
        rows = []
        for one, label in zip(x, y, strict=True):
            hidden = [one.expand(len(masks), -1)]
            for layer, mask in zip((0, 2), products, strict=True):
                hidden.append(model.backbone[layer + 1](model.backbone[layer](hidden[-1])) * mask)
            rows.append(model.backbone[4](hidden[-1]).log_softmax(-1)[:, label] + prior)
        own.append(torch.stack(rows))
    joint = torch.stack(own)
    evidence = joint.logsumexp(-1)
    posterior = (evidence.sum(-1) + prior).log_softmax(0)
    return posterior, joint - evidence.unsqueeze(-1)


def learned(model: gfo.MaskedModel) -> tuple[Tensor, Tensor]:
    """The same as the model has it."""
    x, y = data()
    masks = enumeration.all_masks(sum(UNITS))
    pairs = torch.cartesian_prod(torch.arange(len(masks)), torch.arange(len(masks)))
    shared, own = masks[pairs[:, 0]].split(UNITS, -1), masks[pairs[:, 1]].split(UNITS, -1)
    given = [torch.cat(pair, -1) for pair in zip(shared, own, strict=True)]
    logits: dict[str, list[Tensor]] = {"shared": [], "own": []}
    handles = [
        policy.register_forward_hook(lambda _, args, out, into=into: logits[into].append(out[1]))
        for into in logits
        for policy in getattr(model.method, into).posterior
    ]
    rows = []
    for one, label in zip(x, y, strict=True):
        for seen in logits.values():
            seen.clear()
        with torch.no_grad():
            model(one.expand(len(pairs), -1), y=label.expand(len(pairs)), masks=given)
        rows.append(_log_prob(logits["own"], own).reshape(len(masks), len(masks)))
    for handle in handles:
        handle.remove()
    whole = _log_prob(logits["shared"], shared).reshape(len(masks), len(masks))
    return whole[:, 0], torch.stack(rows, 1)


def _log_prob(logits: list[Tensor], masks: tuple[Tensor, ...]) -> Tensor:
    return sum(
        torch.distributions.Bernoulli(logits=logit).log_prob(mask).sum(-1)
        for logit, mask in zip(logits, masks, strict=True)
    )


def distances(steps: int = 600) -> tuple[float, float, float]:
    """Total variation of the shared posterior from the exact and the best, and of the own one."""
    model = wrap(temperature=1.0, epsilon=0.0, draws=8)
    x, y = data()
    shared, own = exact(model)
    best = enumeration.best_factorised(shared[None], UNITS)[0]
    torch.manual_seed(0)
    groups = model.parameter_groups(generator_lr=5e-3, log_z_lr=2e-2)
    optimiser = torch.optim.Adam(groups, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    descend(model, x, y, optimiser, steps, schedule)
    q_shared, q_own = learned(model)
    # own masks matter where shared ones are likely
    weight = shared.exp().unsqueeze(-1)
    apart = (weight * enumeration.total_variation(q_own, own)).sum(0).mean()
    best_own = enumeration.total_variation(q_shared, best)
    return enumeration.total_variation(q_shared, shared).item(), best_own.item(), apart.item()


def test_the_problem_asks_for_something() -> None:
    shared, own = exact(wrap())
    prior = enumeration.log_fixed_prior(enumeration.all_masks(sum(UNITS)), KEEP)
    assert enumeration.total_variation(prior, shared) >= 0.2
    assert enumeration.total_variation(prior, own).mean() >= 0.07


def test_both_posteriors_are_found() -> None:
    to_exact, to_best, own = distances()
    assert to_best <= 0.03, (to_exact, to_best, own)
    assert own <= 0.03, (to_exact, to_best, own)


def test_a_reward_without_evidence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    balance = IDGFlowOut.balance

    def mistaken(self: object, trajectory: object, evidence: Tensor, beta: float) -> object:
        return balance(self, trajectory, 0 * evidence, beta)  # type: ignore[arg-type]

    monkeypatch.setattr(IDGFlowOut, "balance", mistaken)
    assert distances(steps=400)[1] > 0.10


def test_masks_are_products_of_shared_and_own_ones() -> None:
    model, (x, y) = wrap(), data()
    losses = model(x, y=y)
    assert [tuple(mask.shape) for mask in losses.masks] == [(4, 6, 3), (4, 6, 2)]
    draws = torch.Generator().manual_seed(0)
    shared, own = (
        [(torch.rand(5, 6, units, generator=draws) < 0.5).float() for units in UNITS]
        for _ in range(2)
    )
    products = [one * other for one, other in zip(shared, own, strict=True)]
    pairs = [torch.cat(pair, -1) for pair in zip(shared, own, strict=True)]
    swapped = [torch.cat(pair, -1) for pair in zip(own, shared, strict=True)]
    one, *others = (model.predict(x, masks=masks) for masks in (products, pairs, swapped))
    for other in others:
        torch.testing.assert_close(one.outputs, other.outputs)


def test_one_shared_mask_serves_the_batch() -> None:
    model, (x, _) = wrap(), data()
    with torch.no_grad():
        for policy in model.method.own.prior:
            policy.blocks[0].bias.fill_(50.0)  # own masks keep everything
    drawn = model.predict(x, return_masks=True).masks
    for mask in drawn:
        assert (mask == mask[:, :1]).all()
        assert 0 < mask.mean() < 1


def test_every_group_has_its_own_loss() -> None:
    model, (x, y) = wrap(), data()
    model.requires_grad_(True)
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    owners = {"backbone": "nll", "posterior": "tb", "log_z": "tb", "prior": "prior"}
    for part in ("nll", "tb", "prior"):
        torch.manual_seed(0)
        model.zero_grad()
        getattr(model(x, y=y), part).backward()
        for name, parameter in model.named_parameters():
            own = next(loss for key, loss in owners.items() if key in name.split("."))
            reached = parameter.grad is not None and bool(parameter.grad.any())
            assert reached == (own == part), (part, name)


def test_the_evidence_estimate_is_exact_for_an_exact_posterior() -> None:
    """log R - log q is the same number for every own mask, the evidence."""
    _, own = exact(wrap())
    joint = own + torch.randn(own.shape[:2]).unsqueeze(-1)
    estimate = objectives.log_reward(joint, torch.zeros_like(joint)) - own
    assert estimate.var(-1).max() < 1e-9
