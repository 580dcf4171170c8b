"""What each method does beyond exactness: options, presets, groups, draws, scaling, rates."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo


def model_of(method: str, sites: list[str] | None = None, **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3))
    if method == "id-gflowout":
        options = {"train_size": 100, **options}
    return gfo.wrap(
        net,
        method,
        sites or ["1", "3"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
        **options,
    )


def batch(examples: int = 24) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(examples, 4, generator=draws), torch.arange(examples) % 3


def test_defaults_and_the_papers_preset() -> None:
    paper = {"temperature": 2.0, "epsilon": 0.1, "beta": 1.0, "prior_keep": 0.5, "rescale": "none"}
    paper |= {"sparsity": 0.0}
    learning = {"objective": "tb", "posterior": "own", "prior_fit": "draws", "anchor": 0.0}
    paper |= {"hidden": (32, 32), "log_z": "learned", "draws": 1, "blocks": 1, "history": "all"}
    own = dataclasses.asdict(model_of("gflowout").method.options)
    assert own == {
        **paper,
        "prior_keep": None,
        "objective": "credit",
        "posterior": "correction",
        "prior_fit": "kl",
        "anchor": 1.0,
        "temperature": 1.0,
        "epsilon": 0.0,
        "bound": "mean",
        "prior": "learned",
    }
    of_paper = dataclasses.asdict(model_of("gflowout", preset="paper").method.options)
    assert of_paper == {**paper, **learning, "bound": "mean", "prior": "learned"}
    assert dataclasses.asdict(model_of("id-gflowout", preset="paper").method.options) == {
        **paper,
        "objective": "tb",
        "start_keep": None,
        "group_size": 1,
        "train_size": 100,
    }
    own = model_of("id-gflowout").method.options
    assert (own.log_z, own.draws, own.temperature, own.epsilon) == ("batch", 4, 1.0, 0.0)
    sparse = model_of("id-gflowout", preset="features").method.options
    assert (sparse.hidden, sparse.draws, sparse.prior_keep, sparse.start_keep) == ((), 8, 0.1, 0.3)
    with pytest.raises(ValueError, match="preset must be one of 'paper', got 'features'"):
        model_of("mc", preset="features")
    kept = model_of("id-gflowout", preset="paper", temperature=3.0).method.options
    assert (kept.temperature, kept.log_z) == (3.0, "learned")


def test_options_can_change_but_not_those_that_shape_parameters() -> None:
    model = model_of("gflowout")
    model.set_options(beta=0.25, temperature=1)
    assert (model.method.options.beta, model.method.options.temperature) == (0.25, 1)
    with pytest.raises(ValueError, match="hidden is fixed by wrap"):
        model.set_options(hidden=(8,))
    with pytest.raises(ValueError, match="epsilon must be a number in"):
        model.set_options(epsilon=2)
    with pytest.raises(TypeError, match=r"no option 'bta'; .*; did you mean 'beta'"):
        model.set_options(bta=1)


def test_beta_scales_the_likelihood_in_the_reward() -> None:
    model, (x, y) = model_of("gflowout", prior_keep=0.5), batch()
    masks = model(x, y=y).masks
    full = model(x, y=y, masks=masks).log_reward
    model.set_options(beta=0.0)
    prior_only = model(x, y=y, masks=masks).log_reward
    torch.testing.assert_close(prior_only, torch.full((24,), 70 * torch.tensor(0.5).log().item()))
    model.set_options(beta=0.5)
    half = model(x, y=y, masks=masks).log_reward
    torch.testing.assert_close(half, (full + prior_only) / 2)


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_masks_start_at_the_prior_in_training_and_prediction(method: str) -> None:
    model, (x, y) = model_of(method, prior_keep=0.8), batch(2000)
    trained = torch.cat(model(x, y=y, masks=None).masks, -1)
    predicted = torch.cat(model.predict(x, samples=50, return_masks=True).masks, -1)
    assert trained.mean().item() == pytest.approx(0.8, abs=0.12 if method[0] == "i" else 0.01)
    assert predicted.mean().item() == pytest.approx(0.8, abs=0.02)


def test_several_draws_score_several_masks_per_example() -> None:
    model, (x, y) = model_of("gflowout", objective="tb", draws=3, log_z="batch"), batch()
    losses = model(x, y=y)
    assert [tuple(mask.shape) for mask in losses.masks] == [(3, 24, 40), (3, 24, 30)]
    assert losses.log_q.shape == losses.log_reward.shape == losses.log_z.shape == (3, 24)
    expected = (losses.log_reward - losses.log_q).mean(0).expand(3, 24)
    torch.testing.assert_close(losses.log_z, expected)
    again = model(x, y=y, masks=losses.masks)
    torch.testing.assert_close(again.log_reward, losses.log_reward)
    torch.testing.assert_close(again.tb, losses.tb)


class Unfoldable(nn.Module):
    """Knows its batch size, so that draws cannot be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.out = nn.ReLU(), nn.Linear(4, 3)
        self.position = nn.Parameter(torch.randn(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(x + self.position))


def test_draws_work_where_folding_does_not() -> None:
    x, y = batch()
    model = gfo.wrap(
        Unfoldable(),
        "id-gflowout",
        ["act"],
        likelihood=gfo.Categorical(3),
        example=(x,),
        train_size=24,
    )
    assert not model.spec.foldable
    losses = model(x, y=y)
    assert losses.masks[0].shape == (4, 24, 4)
    assert losses.log_reward.shape == (4, 24)
    losses.total.backward()
    assert model.predict(x).outputs.shape == (20, 24, 3)


def test_id_groups_share_masks_and_rewards() -> None:
    model, (x, y) = model_of("id-gflowout", draws=1, group_size=6, prior_keep=0.5), batch()
    losses = model(x, y=y)
    joined = torch.cat(losses.masks, -1)
    groups = joined.reshape(4, 6, 70)
    assert (groups == groups[:, :1]).all()
    assert len(joined.unique(dim=0)) == 4

    output = model(x, masks=losses.masks)
    scores = output.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1).reshape(4, 6).mean(1)
    prior = 70 * torch.tensor(0.5).log()
    expected = (100 * scores + prior).repeat_interleave(6)
    torch.testing.assert_close(losses.log_reward, expected)
    torch.testing.assert_close(losses.log_z, (expected - losses.log_q).detach().mean().expand(24))


@pytest.mark.parametrize("size", [24, 1000])
def test_a_single_group_and_draw_cannot_be_compared(size: int) -> None:
    model, (x, y) = model_of("id-gflowout", draws=1, group_size=size), batch()
    with pytest.raises(ValueError, match=f"group_size={size} leaves a single mask"):
        model(x, y=y)
    model(x[:1], y=y[:1])  # a last batch of one is no mistake
    model_of("id-gflowout", draws=1, group_size=size, log_z="learned")(x, y=y)


@pytest.mark.parametrize("options", [{"draws": 1}, {"draws": 1, "group_size": 5}, {"draws": 3}])
def test_given_masks_of_id_gflowout_have_the_score_they_were_drawn_with(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    x, y = batch()
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3))  # groups draw equal masks
    model = gfo.wrap(
        net,
        "id-gflowout",
        ["1"],
        likelihood=gfo.Categorical(3),
        example=(x[:2],),
        train_size=50,
        **options,
    )
    drawn = model(x, y=y)
    again = model(x, y=y, masks=drawn.masks)
    torch.testing.assert_close(again.tb, drawn.tb)
    torch.testing.assert_close(again.log_reward, drawn.log_reward)


def test_batch_log_z_of_gflowout_needs_several_given_masks_per_example() -> None:
    model, (x, y) = model_of("gflowout", objective="tb", draws=2, log_z="batch"), batch()
    with pytest.raises(ValueError, match="at least 2 draws"):
        model(x, y=y, masks=[torch.ones(1, 40), torch.ones(1, 30)])


def test_id_reward_counts_the_whole_training_set() -> None:
    x, y = batch()
    small, large = (model_of("id-gflowout", train_size=size, prior_keep=0.5) for size in (10, 1000))
    masks = [torch.ones(1, 40), torch.ones(1, 30)]
    prior = 70 * torch.tensor(0.5).log()
    rewards = [model(x, y=y, masks=masks).log_reward - prior for model in (small, large)]
    torch.testing.assert_close(100 * rewards[0], rewards[1], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("method", ["id-gflowout", "combined", "concrete", "variational"])
def test_training_without_train_size_is_an_error(method: str) -> None:
    model, (x, y) = model_of(method, train_size=None), batch()
    with pytest.raises(ValueError, match=r"train_size was not given.*gfo\.fit counts them itself"):
        model(x, y=y)
    with torch.no_grad(), pytest.warns(UserWarning, match="train_size was not given"):
        losses = model(x, y=y)
    model.set_options(train_size=24)
    again = model(x, y=y, masks=losses.masks)
    if losses.log_reward is not None and method != "combined":
        torch.testing.assert_close(losses.log_reward, again.log_reward, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("method", "options"),
    [("id-gflowout", {"beta": 0.0}), ("variational", {"kl_weight": 0.0})],
)
def test_train_size_is_not_asked_for_where_it_does_not_matter(
    method: str, options: dict[str, float]
) -> None:
    (x, y), models = batch(), [model_of(method, train_size=size, **options) for size in (None, 9)]
    masks = [torch.ones(1, 40), torch.ones(1, 30)]
    unsized, sized = (model(x, y=y, masks=masks).total for model in models)
    torch.testing.assert_close(unsized, sized)


def test_rescale_kept_keeps_the_size_of_activations() -> None:
    x, _ = batch()
    plain, kept = model_of("gflowout"), model_of("gflowout", rescale="kept")
    masks = [torch.cat([torch.ones(1, 10), torch.zeros(1, 30)], 1), torch.ones(1, 30)]
    scaled = [masks[0] * 4, masks[1]]
    plain.validate = False  # so that it takes masks of other values
    torch.testing.assert_close(kept(x, masks=masks), plain(x, masks=scaled))


def test_mc_uses_the_rate_of_the_dropout_it_replaces() -> None:
    net = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 200), nn.Dropout(0.7), nn.Linear(200, 3))
    model = gfo.wrap(net, "mc", likelihood=gfo.Categorical(3), example=(torch.zeros(2, 4),))
    masks = model.predict(torch.zeros(500, 4), return_masks=True).masks
    assert masks[0].mean().item() == pytest.approx(0.9, abs=0.01)
    assert masks[1].mean().item() == pytest.approx(0.3, abs=0.01)
    model.set_options(rate=0.5)
    masks = model.predict(torch.zeros(500, 4), return_masks=True).masks
    assert masks[1].mean().item() == pytest.approx(0.5, abs=0.01)


def test_mc_in_training_is_torchs_dropout() -> None:
    """Same mean and variance of the output as nn.Dropout."""
    torch.manual_seed(0)
    linear = nn.Linear(50, 1)
    theirs = nn.Sequential(nn.Dropout(0.3), linear).train()
    ours = gfo.wrap(
        nn.Sequential(nn.Dropout(0.3), linear),
        "mc",
        likelihood=gfo.Gaussian(1),
        example=(torch.zeros(2, 50),),
    ).train()
    x = torch.randn(50).expand(20_000, 50)
    with torch.no_grad():
        one, other = theirs(x), ours(x)
    assert one.mean().item() == pytest.approx(other.mean().item(), abs=0.02)
    assert one.std().item() == pytest.approx(other.std().item(), rel=0.03)


def test_none_is_the_backbone() -> None:
    x, y = batch()
    model = model_of("none")
    assert torch.equal(model(x), model.backbone(x))
    prediction = model.predict(x)
    assert torch.allclose(prediction.mean, model.backbone(x).softmax(-1), atol=1e-6)
    assert prediction.mutual_information().max() < 1e-6
    expected = nn.functional.cross_entropy(model.backbone(x), y)
    torch.testing.assert_close(model(x, y=y).nll, expected)


def test_one_seed_one_run_two_seeds_two_runs() -> None:
    def run(seed: int) -> Tensor:
        model, (x, y) = model_of("gflowout"), batch()
        torch.manual_seed(seed)
        optimiser = torch.optim.Adam(model.parameter_groups())
        descend(model, x, y, optimiser, 5)
        return model.predict(x).mean

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
