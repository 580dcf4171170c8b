"""``model(x)`` in eval mode: one pass under the mean mask, without random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core import policy
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses, mean_share
from gflowout.core.trajectory import Trajectory
from gflowout.methods import METHODS

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mc": ("mc", {"rate": 0.3}),
    "mc none": ("mc", {"rate": 0.3, "rescale": "none"}),
    "mc kept": ("mc", {"rate": 0.6, "rescale": "kept"}),
    "concrete": ("concrete", {"train_size": 40, "rate": 0.3}),
    "concrete units": ("concrete", {"train_size": 40, "rate": 0.3, "per_unit": True}),
    "variational": ("variational", {"train_size": 40, "alpha": 0.5}),
    "gates": ("gates", {"noise": 0.7}),
    "gates shared": ("gates", {"shared": True}),
    "gates mean": ("gates", {"predict": "mean"}),
    "masksembles": ("masksembles", {"members": 3}),
    "masksembles kept": ("masksembles", {"members": 3, "rescale": "kept"}),
    "modes": ("modes", {"modes": 3}),
    "modes drawn": ("modes", {"modes": 3, "rate": 0.3, "rescale": "none"}),
    "contextual": ("contextual", {"reduction": 1}),
    "contextual kept": ("contextual", {"reduction": 1, "rescale": "kept"}),
    "contextual gaussian": ("contextual", {"reduction": 1, "family": "gaussian"}),
    "gflowout": ("gflowout", {"hidden": (8,)}),
    "gflowout kept": ("gflowout", {"hidden": (8,), "rescale": "kept"}),
    "gflowout fixed": ("gflowout", {"prior": "fixed", "prior_keep": 0.6}),
    "gflowout blocks": ("gflowout", {"hidden": (), "blocks": 2}),
    "id-gflowout": ("id-gflowout", {"train_size": 40, "hidden": ()}),
    "id-gflowout kept": ("id-gflowout", {"train_size": 40, "hidden": (), "rescale": "kept"}),
    "combined": ("combined", {"train_size": 40, "hidden": ()}),
    "none": ("none", {}),
}
APPROXIMATE = {"gflowout blocks", "combined"}
"""Generators see earlier masks: their rate at the mean mask is not the mean of their rates."""


def test_every_method_is_among_them() -> None:
    assert {method for method, _ in CASES.values()} == set(METHODS) - {"whole-site"}


def on_inputs(case: str) -> tuple[gfo.MaskedModel, Tensor]:
    """A linear network with masks on its inputs: its output is linear in the mask."""
    method, options = CASES[case]
    torch.manual_seed(0)
    net, x = nn.Linear(5, 3), torch.randn(4, 5)
    model = gfo.wrap(
        net, method, ["input"], likelihood=gfo.Gaussian(3), example=(x,), **options
    ).eval()
    for parameter in model.method.parameters():  # rates that differ between units and examples
        nn.init.normal_(parameter, std=0.1 if parameter.dim() == 1 else 0.5)
    return model, x


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_the_mean_over_draws_where_it_is_linear_in_the_mask(case: str) -> None:
    model, x = on_inputs(case)
    draws = model.predict(x, samples=6000, generator=torch.Generator().manual_seed(1)).samples
    error = draws.std(0) / math.sqrt(len(draws))
    slack = 0.03 * draws.std(0) if case in APPROXIMATE else 0.0
    with torch.no_grad():
        assert ((model(x) - draws.mean(0)).abs() <= 5 * error + slack + 1e-4).all()


@pytest.mark.parametrize("case", CASES)
def test_no_number_is_drawn_in_eval_mode_and_one_mask_in_train_mode(case: str) -> None:
    model, x = on_inputs(case)
    before = torch.get_rng_state()
    first = model(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert torch.equal(model(x), first)
    model.train()
    draws = torch.stack([model(x) for _ in range(20)])
    constant = case in ("none", "gates mean")
    assert constant == bool((draws == draws[0]).all())


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "combined", "contextual"])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5, 5)], ids=["table", "image"])
def test_later_sites_and_blocks_see_the_mean_masks(method: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)]
    if len(shape) > 2:
        layers = [nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten()]
        layers.append(nn.Linear(5, 2))
    x = torch.randn(shape)
    options: dict[str, Any] = {} if method == "contextual" else {"blocks": 2, "hidden": (4,)}
    if method in ("id-gflowout", "combined"):
        options["train_size"] = 40
    model = gfo.wrap(
        nn.Sequential(*layers), method, ["1", "3"], likelihood=gfo.Categorical(2), example=(x[:2],),
        **options,
    ).eval()  # fmt: skip
    for parameter in model.method.parameters():
        nn.init.normal_(parameter, std=0.3)
    assert torch.equal(model(x), model(x))
    # A row does not depend on the others, as with drawn masks.
    torch.testing.assert_close(model(x[1:2]), model(x)[1:2])


def test_mc_dropout_is_the_plain_network_and_follows_nn_dropout() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)), torch.randn(6, 4)
    plain = net.eval()(x)
    model = gfo.wrap(net, "mc", likelihood=gfo.Categorical(3), example=(x,)).eval()
    torch.testing.assert_close(model(x), plain)


def test_given_masks_are_used_as_before() -> None:
    model, x = on_inputs("gflowout")
    pred = model.predict(x, samples=1, return_masks=True)
    assert pred.masks is not None
    output = model(x, masks=[mask[0] for mask in pred.masks])
    torch.testing.assert_close(output, pred.samples[0])


def test_the_mean_share_is_that_of_all_masks() -> None:
    keep = torch.tensor([[0.9, 0.1, 0.5, 1.0], [0.2, 0.3, 0.05, 0.4]])
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    weights = torch.where(masks == 1, keep[:, None], 1 - keep[:, None]).prod(-1)
    shares = masks / masks.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(mean_share(keep), weights @ shares, atol=1e-3, rtol=1e-3)
    many = torch.full((1, 2000), 0.5)  # all masks keep about half of many units
    torch.testing.assert_close(mean_share(many), many / 1000, atol=0, rtol=2e-3)


@dataclass(frozen=True)
class NoOptions(Options):
    """None."""


class Own(Method):
    """A user's method, which compares uniform numbers with a rate itself."""

    name = "own"
    Options = NoOptions

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        def drawn() -> Tensor:
            uniform = trajectory.noise.uniform(trajectory.batch, self.sites[site].units, activation)
            return (uniform < 0.8).to(activation.dtype)

        return trajectory.mask(site, drawn)

    def step(self, score: Score) -> Losses:
        return likelihood_losses(score(self.draw))


class OwnWithMean(Own):
    """The same by the library's function, which knows the mean."""

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        units, rows = self.sites[site].units, trajectory.batch
        return trajectory.mask(
            site, lambda: policy.bernoulli(trajectory.noise, 0.8, rows, units, activation)
        )


def test_own_methods_have_a_mean_mask_or_say_that_they_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(4, 5)
    for kind in (Own, OwnWithMean):
        monkeypatch.setitem(METHODS, "own", kind)
        net = nn.Linear(5, 3)
        model = gfo.wrap(net, "own", ["input"], likelihood=gfo.Categorical(3), example=(x,))
        assert model(x).shape == model.predict(x, samples=1).outputs[0].shape
        model.eval()
        if kind is Own:
            with pytest.raises(TypeError, match=r"mean is not known.*model\.predict\(x\)"):
                model(x)
        else:
            torch.testing.assert_close(model(x), net(0.8 * x))


def test_an_ensemble_gives_the_mean_of_its_members_by_weight() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    likelihood = gfo.Categorical(3)
    members = [
        gfo.wrap(nn.Linear(5, 3), "mc", ["input"], likelihood=likelihood, example=(x,))
        for _ in range(2)
    ]
    ensemble = gfo.Ensemble(members, weights=[3, 1]).eval()
    first, second = (member.backbone(x) for member in members)
    torch.testing.assert_close(ensemble(x), 0.75 * first + 0.25 * second)
