"""Inclusion: hand-made masks, brute force, and the exact posterior of a small frozen network."""

import itertools
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout import Inclusion


def drawn(chains: int = 3, draws: int = 200, rows: int = 1, units: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    rates = torch.rand(chains, 1, 1, units, generator=generator)
    return (torch.rand(chains, draws, rows, units, generator=generator) < rates).float()


def test_numbers_against_loops() -> None:
    masks, weights = drawn(rows=2), [0.5, 0.3, 0.2]
    found = Inclusion(masks, torch.tensor(weights))
    for unit in range(4):
        expected = sum(
            weight * masks[chain, :, :, unit].mean().item() for chain, weight in enumerate(weights)
        )
        assert found.mean[unit].item() == pytest.approx(expected)
        for row in range(2):
            expected = sum(
                weight * masks[chain, :, row, unit].mean().item()
                for chain, weight in enumerate(weights)
            )
            assert found.rows[row, unit].item() == pytest.approx(expected)
        for other in range(4):
            both = masks[..., unit] * masks[..., other]
            expected = sum(
                weight * both[chain].mean().item() for chain, weight in enumerate(weights)
            )
            assert found.joint[unit, other].item() == pytest.approx(expected)
    size = sum(weight * masks[chain].sum(-1).mean().item() for chain, weight in enumerate(weights))
    assert found.expected_size == pytest.approx(size)


def test_subsets_are_counted_with_the_weights_of_their_chains() -> None:
    one = torch.tensor([[1.0, 0, 1]]).expand(10, 3)
    two = torch.tensor([[0.0, 1, 1]]).expand(10, 3).clone()
    two[:4] = torch.tensor([1.0, 0, 1])
    found = Inclusion(torch.stack([one, two])[:, :, None], torch.tensor([1.0, 3.0]), list("abc"))
    (first, share), (second, rest) = found.subsets(5)
    assert (first, second) == (("a", "c"), ("b", "c"))
    assert share == pytest.approx(0.25 + 0.75 * 0.4)
    assert rest == pytest.approx(0.75 * 0.6)


def test_pairs_tell_stand_ins_from_partners() -> None:
    first = torch.randint(2, (400, 1), generator=torch.Generator().manual_seed(0)).float()
    other = torch.randint(2, (400, 1), generator=torch.Generator().manual_seed(1)).float()
    masks = torch.cat([first, 1 - first, other, other], 1)
    masks[0, 3] = 1 - masks[0, 3]  # nearly always together
    found = Inclusion(masks.reshape(1, 400, 1, 4), names=["a", "copy of a", "x1", "x2"])
    pairs = {frozenset(pair[:2]): pair[2] for pair in found.pairs(2)}
    assert pairs[frozenset(["a", "copy of a"])] == pytest.approx(-0.25, abs=0.01)
    assert pairs[frozenset(["x1", "x2"])] == pytest.approx(0.25, abs=0.01)


def test_units_of_one_group_are_no_pair() -> None:
    masks = drawn(units=3)[..., [0, 0, 1, 2]]
    pairs = Inclusion(masks, names=["a1", "a2", "b", "c"]).pairs(10)
    assert ("a1", "a2") not in {pair[:2] for pair in pairs}
    assert len(pairs) == 5


def test_one_of_several_is_kept() -> None:
    masks, weights = drawn(rows=2), torch.tensor([0.5, 0.3, 0.2])
    found = Inclusion(masks, weights, names=list("abcd"))
    expected = sum(
        weight * masks[chain][..., [0, 2]].any(-1).double().mean().item()
        for chain, weight in enumerate(weights.tolist())
    )
    assert found.any_of(["a", "c"]) == pytest.approx(expected)
    with pytest.raises(ValueError, match="name must be one of"):
        found.any_of(["e"])


def test_a_unit_that_is_always_kept_is_so_in_spite_of_rounding() -> None:
    weights = torch.tensor([0.1] * 7) + 1e-3
    found = Inclusion(torch.ones(7, 10, 1, 2), weights)
    assert found.support(1.0).all()


def test_rows_are_no_draws() -> None:
    one = drawn(chains=1, draws=40)
    many = one.expand(-1, -1, 50, -1)
    torch.testing.assert_close(Inclusion(one).interval()[0], Inclusion(many).interval()[0])


def test_an_interval_shows_how_chains_disagree_and_how_few_draws_there_are() -> None:
    agree = torch.ones(4, 500, 1, 1)
    disagree = agree.clone()
    disagree[2:] = 0
    low, high = Inclusion(agree).interval()
    assert low.item() > 0.99
    low, high = Inclusion(disagree).interval()
    assert low.item() < 0.01
    assert high.item() > 0.99
    few = (torch.arange(10) < 5).float().reshape(1, 10, 1, 1)
    low, high = Inclusion(few).interval(0.95)
    # Jeffreys interval of 5 out of 10, from tables.
    assert low.item() == pytest.approx(0.224, abs=0.02)
    assert high.item() == pytest.approx(0.776, abs=0.02)


def test_intervals_repeat_and_leave_the_random_state_alone() -> None:
    found = Inclusion(drawn())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = found.interval()
    assert torch.equal(torch.get_rng_state(), before)
    second = Inclusion(drawn()).interval()
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_table_and_support_are_in_order() -> None:
    masks = torch.zeros(1, 10, 1, 3)
    masks[:, :, :, 1] = 1
    masks[:, :4, :, 2] = 1
    found = Inclusion(masks, names=["a", "b", "c"])
    assert [row["name"] for row in found.table()] == ["b", "c", "a"]
    assert found.support().tolist() == [False, True, False]
    assert found.support(0.4).tolist() == [False, True, True]
    assert "b 1.00" in repr(found)


def test_plot(tmp_path: Path) -> None:
    mpl.use("Agg")
    found = Inclusion(drawn(units=30))
    axes = found.plot(top=12)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        row["name"] for row in found.table()[:12]
    ]
    assert "18 less probable" in axes.get_title()
    axes.figure.savefig(tmp_path / "inclusion.png")


def test_plot_shows_similar_units_together_and_gains_over_controls() -> None:
    mpl.use("Agg")
    masks = torch.zeros(1, 10, 1, 5)
    masks[:, :6, :, 0] = masks[:, 6:, :, 3] = 1  # one of the two in every mask
    masks[:, :7, :, 1] = masks[:, :1, :, 2] = 1
    gains = [5.0, 4.0, 0.5, math.inf, -math.inf, 7.0, 1.0]
    found = Inclusion(masks, names=list("abcde"), similar=[[0, 3], [2, 4]], gains=gains)
    axes = found.plot(top=4)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "d", "b", "c"]
    assert [text.get_text() for text in axes.texts] == ["one of these: 1.00"]
    panel = axes.figure.axes[1]
    units, sets = (points.get_offsets().tolist() for points in panel.collections)
    assert units == [[5.0, 0], [4.0, 2], [0.5, 3]]  # rows of a, b and c
    assert sets == [[7.0, 0.5]]
    assert len(Inclusion(masks).plot().figure.axes) == 1
    assert found.plot(ax=axes) is axes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"masks": torch.ones(2, 3, 4)}, r"masks must have shape \[chains, draws, rows, units\]"),
        ({"masks": torch.full((1, 2, 1, 2), 0.3)}, "masks must hold 0 and 1"),
        ({"weights": torch.ones(2)}, "weights must hold 3 numbers >= 0"),
        ({"weights": torch.tensor([1.0, -1, 1])}, "weights must hold 3 numbers >= 0"),
        ({"names": ["a"]}, "names must hold one for each of 4 units, got 1"),
        ({"gains": [1.0]}, "gains must hold one for each of 4 units and 0 lists"),
    ],
)
def test_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Inclusion(**{"masks": drawn(), **wrong})


def small(method: str, units: int = 4, **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(0)
    return gfo.wrap(
        nn.Linear(units, 3), method, ["input"], likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, units),), **options,
    )  # fmt: skip


def test_a_model_with_shared_masks_needs_no_inputs() -> None:
    model = small("id-gflowout", train_size=50, prior_keep=0.3, hidden=())
    with torch.no_grad():
        model.method.posterior[0].blocks[0].bias.copy_(torch.tensor([1.0, 0.0, -1.0, 0.05]))
    found = model.inclusion(samples=4000, generator=torch.Generator().manual_seed(0))
    start = torch.tensor(0.3).logit()
    expected = torch.sigmoid(start + 10 * torch.tensor([1.0, 0.0, -1.0, 0.05]))
    torch.testing.assert_close(found.mean.float(), expected, atol=0.03, rtol=0)
    assert found.names[1] == "input 1"
    again = model.inclusion(samples=4000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.masks, again.masks)


def test_a_model_with_masks_per_example_answers_row_by_row() -> None:
    model = small("gflowout")
    with pytest.raises(ValueError, match="are drawn for each example: pass inputs"):
        model.inclusion()
    x = torch.randn(5, 4)
    found = model.inclusion(x, samples=30, names=list("abcd"))
    assert found.rows.shape == (5, 4)
    assert found.names == ("a", "b", "c", "d")


def test_the_site_can_be_named() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model = gfo.wrap(
        net, "id-gflowout", ["1", "0"], likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),), train_size=10,
    )  # fmt: skip
    assert model.inclusion(site="1", samples=10).mean.shape == (6,)
    with pytest.raises(ValueError, match="site must be named, one of '0', '1'"):
        model.inclusion()


def test_an_ensemble_weighs_its_members() -> None:
    members = [small("id-gflowout", train_size=50, hidden=()) for _ in range(2)]
    with torch.no_grad():
        for member, sign in zip(members, (1.0, -1.0), strict=True):
            member.method.posterior[0].blocks[0].bias.fill_(sign)  # keep all, or none
    pool = gfo.Ensemble(members, weights=[1, 4])
    found = pool.inclusion(samples=100)
    torch.testing.assert_close(found.mean, torch.full((4,), 0.2).double(), atol=0.01, rtol=0)


def test_shares_of_the_samples_follow_the_weights() -> None:
    members = [small("mc", rate=0.5) for _ in range(3)]
    for place, member in enumerate(members):
        nn.init.constant_(member.backbone.bias, float(place))
        nn.init.zeros_(member.backbone.weight)
    pool = gfo.Ensemble(members, weights=[0.1, 0.6, 0.3])
    assert pool.allot(20) == [2, 12, 6]
    assert pool.allot(3) == [0, 2, 1]
    pred = pool.predict(torch.zeros(2, 4), samples=20, return_masks=True)
    assert pred.outputs[:, 0, 0].tolist() == [0.0] * 2 + [1.0] * 12 + [2.0] * 6
    again = pool.predict(torch.zeros(2, 4), masks=pred.masks)
    assert torch.equal(pred.outputs, again.outputs)
    assert gfo.Ensemble(members).allot(20) == [7, 7, 7]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "one for each of 2 members, got 1"),
        ([0.0, 0.0], "positive, finite sum"),
        ([1.0, -0.5], "weights must be"),
    ],
)
def test_weights_are_checked(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gfo.Ensemble([small("mc") for _ in range(2)], weights=weights)


def test_weights_are_saved(tmp_path: Path) -> None:
    pool = gfo.Ensemble([small("mc") for _ in range(2)], weights=[1, 3])
    gfo.save(pool, tmp_path / "pool.safetensors")
    again = gfo.load(tmp_path / "pool.safetensors", lambda: nn.Linear(4, 3))
    assert again.weights == (0.25, 0.75)


FEATURES = 10
POINTS = 60


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """A frozen network of ten inputs, of which labels need some, one of them hardly."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        net[0].weight[:, 5:] *= 0.3  # inputs that the network hardly reads
        net[0].weight[:, 9] = net[0].weight[:, 0]  # one that stands in for another
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    x = torch.randn(POINTS, FEATURES, generator=generator)
    x[:, 9] = x[:, 0] + 0.1 * torch.randn(POINTS, generator=generator)
    used = x * torch.tensor([1.0, 1, 1, 0, 0, 1, 0, 0, 0, 0])
    y = torch.distributions.Categorical(logits=2 * net(used)).probs.argmax(-1)
    return net, x, y


def exact(net: nn.Module, x: Tensor, y: Tensor, keep: float, beta: float) -> Tensor:
    """Inclusion probabilities of the posterior, over all masks."""
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=FEATURES)))
    log_likelihood = torch.stack(
        [torch.distributions.Categorical(logits=net(x * mask)).log_prob(y).sum() for mask in masks]
    )
    log_prior = torch.distributions.Bernoulli(keep).log_prob(masks).sum(-1)
    posterior = (beta * log_likelihood + log_prior).softmax(0)
    return posterior @ masks


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_inclusion_is_that_of_the_exact_posterior(beta: float) -> None:
    net, x, y = problem()
    expected = exact(net, x, y, keep=0.3, beta=beta)
    torch.manual_seed(0)
    # Blocks and generators, since inputs that stand in for each other are not independent.
    model = gfo.wrap(
        net, "id-gflowout", ["input"], likelihood=gfo.Categorical(2), example=(x[:2],),
        preset="features", prior_keep=0.3, beta=beta, train_size=POINTS, draws=32, blocks=10,
        hidden=(32, 32),
    )  # fmt: skip
    steps = 300
    optimizer = torch.optim.Adam(model.method.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, y=y).tb.backward()
        optimizer.step()
        schedule.step()
    found = model.inclusion(samples=20000, generator=torch.Generator().manual_seed(1))
    assert (found.mean - expected).abs().max() < 0.03
    # The task is not trivial: the posterior is far from the prior and from certain.
    assert (expected - 0.3).abs().max() > 0.3
    assert ((expected > 0.05) & (expected < 0.95)).sum() >= 3
