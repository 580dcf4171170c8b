"""Masksembles: how the fixed masks overlap, who trains whom, and what a prediction averages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.methods.masksembles import kept_units, overlapping


def model_of(seed: int = 0, **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 3))
    return gfo.wrap(
        net,
        "masksembles",
        ["1", "3"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
        **options,
    )


def shared_fraction(masks: Tensor) -> float:
    """Mean of intersection over union, over all pairs."""
    pairs = torch.combinations(torch.arange(len(masks)))
    one, other = masks[pairs[:, 0]], masks[pairs[:, 1]]
    union = torch.maximum(one, other).sum(-1)
    return ((one * other).sum(-1) / union).mean().item()


@pytest.mark.parametrize("members", [1, 3, 4, 7])
@pytest.mark.parametrize("units", [1, 5, 24, 97])
@pytest.mark.parametrize("scale", [1.0, 1.3, 2.0, 6.0, 1e6])
def test_masks_are_of_one_size_and_use_every_unit(members: int, units: int, scale: float) -> None:
    masks = overlapping(members, units, scale)
    assert masks.shape == (members, units)
    assert set(masks.unique().tolist()) <= {0.0, 1.0}
    assert (masks.sum(1) == kept_units(members, units, scale)).all()
    assert (masks.sum(0) > 0).all()


def test_scale_goes_from_one_network_to_separate_ones() -> None:
    torch.manual_seed(0)
    shared = [shared_fraction(overlapping(4, 480, scale)) for scale in (1, 1.5, 2, 3, 6, 1e6)]
    assert shared == sorted(shared, reverse=True)
    assert shared[0] == 1
    assert shared[-1] == 0
    for scale, fraction in zip((1.5, 2, 3), shared[1:4], strict=True):
        # Two masks of m among m * scale positions: m / scale in common, of m * (2 - 1 / scale).
        assert fraction == pytest.approx(1 / (2 * scale - 1), abs=0.1)


def test_masks_are_drawn_once_from_the_seed() -> None:
    one, same, other = (model_of(seed).method.members() for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert list(model_of().method.parameters()) == []


def member_of(masks: list[Tensor], members: list[Tensor]) -> Tensor:
    """Number of the member whose masks each row has at all sites; fails if there is none."""
    rows, own = torch.cat(masks, -1), torch.cat(members, -1).squeeze(1)
    equal = (rows.unsqueeze(-2) == own).all(-1)
    assert (equal.sum(-1) == 1).all()
    return equal.float().argmax(-1)


def test_training_gives_each_part_of_the_batch_to_a_member() -> None:
    model = model_of(members=4)
    x, y = torch.randn(22, 4), torch.arange(22) % 3
    torch.manual_seed(0)
    firsts = set()
    for _ in range(40):
        taken = member_of(model(x, y=y).masks, model.method.members())
        counts = taken.bincount(minlength=4)
        assert counts.min() >= 5
        assert (taken.diff() != 0).sum() == 3  # contiguous
        firsts.add(taken[0].item())
    assert firsts == {0, 1, 2, 3}
    alone = {member_of(model(x[:1], y=y[:1]).masks, model.method.members()).item() for _ in x}
    assert alone == {0, 1, 2, 3}  # also where the batch is too small for all


def test_a_member_trains_its_own_units_only() -> None:
    model = model_of(members=2, scale=1e6)  # no unit in common
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    masks = [mask[0] for mask in model.method.members()]
    model(x, y=y, masks=masks).total.backward()
    touched = model.backbone[0].weight.grad.abs().sum(1) > 0
    assert touched.any()
    assert not touched[masks[0][0] == 0].any()


def test_a_draw_is_one_member_at_all_sites_and_for_all_examples() -> None:
    model = model_of()
    x = torch.randn(5, 4)
    drawn = model.predict(x, samples=400, return_masks=True)
    taken = member_of(drawn.masks, model.method.members())
    assert (taken == taken[:, :1]).all()
    share = taken[:, 0].bincount(minlength=4) / 400
    assert (share - 0.25).abs().max() < 4.5 * math.sqrt(0.25 * 0.75 / 400)


def test_every_member_once_is_the_exact_average() -> None:
    """By hand, without the wrapped model; a random choice of members comes close to it."""
    model = model_of()
    x = torch.randn(6, 4)
    outputs = []
    for first, second in zip(*[mask.squeeze(1) for mask in model.method.members()], strict=True):
        hidden = model.backbone[1](model.backbone[0](x)) * first
        hidden = model.backbone[3](model.backbone[2](hidden)) * second
        outputs.append(model.backbone[4](hidden).softmax(-1))
    exact = torch.stack(outputs).detach()
    every = model.predict(x, masks=model.method.members())
    torch.testing.assert_close(every.samples, exact)
    draws = 2000
    random = model.predict(x, samples=draws)
    error = (random.mean - exact.mean(0)).abs() / (random.samples.std(0) / math.sqrt(draws))
    assert error.max() < 4.5


def test_scale_one_is_the_backbone_and_kept_keeps_its_size() -> None:
    x = torch.randn(6, 4)
    model = model_of(scale=1.0)
    assert torch.equal(model(x), model.backbone(x))
    plain, kept = model_of(), model_of(rescale="kept")
    masks = [mask[0] for mask in plain.method.members()]
    larger = [mask * (mask.shape[-1] / mask.sum()) for mask in masks]
    torch.testing.assert_close(kept(x, masks=masks), plain(x, masks=larger))


def test_members_become_different_networks() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = model_of(scale=3.0)
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-2))
    descend(model, x, y, optimiser, 200)
    near = model.predict(x, masks=model.method.members())
    accuracies = (near.samples.argmax(-1) == y).float().mean(1)
    assert accuracies.min() > 0.9  # each member alone
    assert (near.samples[0] - near.samples[1]).abs().max() > 0.05
