"""What one unit of a site is: groups, pixels, patches, tokens, rates, against masks by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import needed

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.core import policy
from gflowout.core.units import ALWAYS, Layout, keep_rates, layout_of
from gflowout.methods import METHODS

FEATURES = 6
GROUPED = gfo.Units(groups=[[0, 3], [4, 1]], always=[2])
"""Units: {0, 3}, {1, 4} and {5}; feature 2 always stays."""
UNIT = [0, 1, ALWAYS, 0, 1, 2]


def by_hand(mask: Tensor) -> Tensor:
    """Masks of the units of GROUPED as masks of features, feature by feature."""
    return torch.stack(
        [torch.ones(len(mask)) if unit == ALWAYS else mask[:, unit] for unit in UNIT], 1
    )


def net(inputs: int = FEATURES) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 3))


def wrapped(method: str, units: gfo.Units, **options: Any) -> gfo.MaskedModel:
    options = {**needed(method), **options}
    sites = () if method == "none" else {"input": units}
    return gfo.wrap(
        net(), method, sites, likelihood=gfo.Categorical(3), example=(torch.zeros(2, FEATURES),),
        **options,
    )  # fmt: skip


def test_numbers_follow_the_first_cell_of_every_unit() -> None:
    layout = layout_of(GROUPED, (1,), (FEATURES,))
    assert layout.unit == tuple(UNIT)
    assert layout.units == 3


def test_pixels_and_patches() -> None:
    assert layout_of(gfo.Units(axis=(2, 3)), (2, 3), (2, 2)).unit == (0, 1, 2, 3)
    ragged = layout_of(gfo.Units(axis=(2, 3), patch=(2, 3)), (2, 3), (3, 4)).unit
    assert ragged == (0, 0, 0, 1, 0, 0, 0, 1, 2, 2, 2, 3)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "none"])
def test_every_method_masks_whole_groups(method: str) -> None:
    model = wrapped(method, GROUPED)
    x = torch.randn(7, FEATURES, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % 3
    assert [site.units for site in model.sites] == [3]
    losses = model(x, y=y)
    losses.total.backward()
    pred = model.predict(x, samples=5, return_masks=True)
    (masks,) = pred.masks or ()
    assert masks.shape == (5, 7, 3)
    # The same masks given by hand to the bare network.
    multiplier = masks if method not in ("mc", "modes", "concrete") else None
    if multiplier is not None and method not in ("masksembles", "combined"):
        for drawn, outputs in zip(masks, pred.outputs, strict=True):
            expected = gfo.unwrap(model)(x * by_hand(drawn))
            torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "mc"])
def test_ways_of_drawing_agree(method: str) -> None:
    model = wrapped(method, GROUPED)
    x = torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(1))
    whole, one_by_one = (
        model.predict(x, samples=6, chunk=chunk, generator=torch.Generator().manual_seed(3))
        for chunk in (6, 1)
    )
    torch.testing.assert_close(whole.outputs, one_by_one.outputs, atol=1e-5, rtol=1e-4)


def test_features_that_stay_are_seen_under_any_mask() -> None:
    model = wrapped("mc", gfo.Units(always=[2, 4]))
    x = torch.randn(3, FEATURES)
    none = [torch.zeros(1, 4)]
    kept = torch.zeros(FEATURES)
    kept[[2, 4]] = 1
    torch.testing.assert_close(
        model(x, masks=none), gfo.unwrap(model)(x * kept), atol=1e-6, rtol=1e-5
    )


class Pictures(nn.Module):
    """A convolution, then a mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 5, 3, padding=1)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("units", "count", "shape"),
    [
        (gfo.Units(axis=1), 2, (2, 1, 1)),
        (gfo.Units(axis=(2, 3)), 24, (1, 4, 6)),
        (gfo.Units(axis=(2, 3), patch=2), 6, (1, 2, 3)),
        (gfo.Units(axis=(1, 2, 3), patch=(1, 4, 3)), 4, (2, 1, 2)),
        (gfo.Units(axis=-1), 6, (1, 1, 6)),
    ],
    ids=["channels", "pixels", "patches", "patches of a channel", "columns"],
)
@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_images(method: str, units: gfo.Units, count: int, shape: tuple[int, ...]) -> None:
    options = {"train_size": 10} if method == "id-gflowout" else {}
    x = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(1))
    model = gfo.wrap(
        Pictures(), method, {"input": units}, likelihood=gfo.Categorical(3), example=(x,), **options
    )
    assert model.sites[0].units == count
    model(x, y=torch.tensor([0, 1, 2])).total.backward()
    mask = torch.arange(count).remainder(3).ne(0).float()
    wide = mask.reshape(shape)
    for axis, size in enumerate((2, 4, 6)):
        if wide.shape[axis] not in (1, size):
            wide = wide.repeat_interleave(size // wide.shape[axis], axis)
    expected = gfo.unwrap(model)(x * wide)
    torch.testing.assert_close(model(x, masks=[mask[None]]), expected, atol=1e-5, rtol=1e-4)
    pooled = model.sites[0].pool(x)
    for unit in range(count):
        own = (torch.arange(count) == unit).float().reshape(shape)
        for axis, size in enumerate((2, 4, 6)):
            if own.shape[axis] not in (1, size):
                own = own.repeat_interleave(size // own.shape[axis], axis)
        where = own.expand(2, 4, 6).bool()
        torch.testing.assert_close(pooled[:, unit], x[:, where].mean(1), atol=1e-6, rtol=1e-4)


class Tokens(nn.Module):
    """Embeddings in, mean over the tokens, classes out; ``first`` has tokens on axis 0."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = first
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x).tanh().mean(0 if self.first else 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("axis", [1, 2])
def test_embeddings_of_tokens(axis: int) -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    size = x.shape[axis]
    units = gfo.Units(axis=axis, groups=[[0, 2]])
    model = gfo.wrap(
        Tokens(), "gflowout", {"input": units}, likelihood=gfo.Categorical(3), example=(x,)
    )
    assert model.sites[0].units == size - 1
    mask = torch.ones(1, size - 1)
    mask[0, 0] = 0  # the group
    kept = torch.ones(size)
    kept[[0, 2]] = 0
    wide = kept.reshape(-1, 1) if axis == 1 else kept
    torch.testing.assert_close(model(x, masks=[mask]), gfo.unwrap(model)(x * wide))
    model(x, y=torch.tensor([0, 1, 2])).total.backward()


def test_own_rates_are_the_prior_of_every_unit() -> None:
    rates = [0.1, 0.2, 0.5, 0.1, 0.2, 0.9]
    units = gfo.Units(groups=[[0, 3], [4, 1]], always=[2], keep=rates)
    model = wrapped("id-gflowout", units, beta=0.0, hidden=(), draws=4)
    assert model.sites[0].keep == (0.1, 0.2, 0.9)
    losses = model(torch.randn(10, FEATURES), y=torch.arange(10) % 3)
    mask = losses.masks[0][:, 0]
    by_torch = torch.distributions.Bernoulli(torch.tensor([0.1, 0.2, 0.9])).log_prob(mask).sum(-1)
    assert losses.log_reward is not None
    assert losses.log_q is not None
    torch.testing.assert_close(losses.log_reward[:, 0], by_torch)
    torch.testing.assert_close(losses.log_q[:, 0], by_torch)  # it starts at the prior


@pytest.mark.parametrize(
    "method", ["mc", "gflowout", "id-gflowout", "contextual", "combined", "gates"]
)
def test_masks_start_at_their_own_rates(method: str) -> None:
    rates = [0.05, 0.5, 0.95, 0.3, 0.7, 0.9]
    model = wrapped(method, gfo.Units(keep=rates))
    pred = model.predict(torch.randn(50, FEATURES), samples=400, return_masks=True)
    (masks,) = pred.masks or ()
    wanted = torch.tensor(rates)
    wanted = wanted**2 if method == "combined" else wanted  # alive if both masks are
    found = masks.gt(0).float().mean((0, 1))
    torch.testing.assert_close(found, wanted, atol=0.07, rtol=0)


def test_concrete_learns_from_rates_of_every_unit() -> None:
    model = wrapped("concrete", gfo.Units(keep=[0.2] * 5 + [0.9]), per_unit=True)
    torch.testing.assert_close(model.method.rate(0), torch.tensor([0.8] * 5 + [0.1]))
    assert wrapped("concrete", gfo.Units(keep=0.2)).method.rate(0).tolist() == pytest.approx([0.8])
    with pytest.raises(ValueError, match=r"keep has several rates .*per_unit=True"):
        wrapped("concrete", gfo.Units(keep=[0.2] * 5 + [0.9]))


@pytest.mark.parametrize("method", ["masksembles", "modes", "variational"])
def test_methods_without_rates_say_so(method: str) -> None:
    with pytest.raises(ValueError, match=f"keep was given for site 'input', but method '{method}'"):
        wrapped(method, gfo.Units(keep=0.2))


@pytest.mark.parametrize("blocks", [1, 3])
def test_rates_with_blocks_and_exploration(blocks: int) -> None:
    model = wrapped("gflowout", gfo.Units(keep=[0.02] * 5 + [0.98]), blocks=blocks, epsilon=1.0)
    losses = model(torch.randn(300, FEATURES), y=torch.arange(300) % 3)
    rates = losses.masks[0].mean(0)
    assert rates[:5].max() < 0.1
    assert rates[5] > 0.9


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = wrapped("id-gflowout", gfo.Units(groups=[[0, 3]], always=[2], keep=0.3))
    gfo.save(model, tmp_path / "model.safetensors")
    again = gfo.load(tmp_path / "model.safetensors", net())
    assert again.sites == model.sites
    x = torch.randn(4, FEATURES)
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    torch.testing.assert_close(
        model.predict(x, generator=seeds[0]).mean, again.predict(x, generator=seeds[1]).mean
    )


def test_a_plain_site_needs_no_layout() -> None:
    assert wrapped("mc", gfo.Units(axis=1)).sites[0].layout is None
    assert wrapped("mc", gfo.Units(keep=0.4)).sites[0].layout is None


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"axis": "features"}, TypeError, "axis must be an integer or a tuple of them"),
        ({"axis": (1, 1)}, ValueError, "axis must name every axis once"),
        ({"axis": 2}, ValueError, "axis 2 of 'input' is outside its shape"),
        ({"groups": 3}, TypeError, "groups must be a list, got 3"),
        ({"groups": [3]}, TypeError, "groups must hold lists of cells, got 3"),
        ({"groups": [[]]}, ValueError, "groups must not hold an empty group"),
        ({"groups": [[0, 1], [1]]}, ValueError, "groups: cell 1 is named twice"),
        ({"groups": [[0, 6]]}, ValueError, "groups: a cell must be below 6"),
        ({"groups": [[0, 1]], "always": [1]}, ValueError, "always: cell 1 is in a group"),
        ({"always": [0, 1, 2, 3, 4, 5]}, ValueError, "always holds every cell"),
        ({"keep": [0.1, 0.2]}, ValueError, "one for each of the 6 cells, got 2"),
        ({"keep": 1.0}, ValueError, "name cells that must stay in always"),
        ({"keep": 0.0}, ValueError, "keep must be"),
        ({"groups": [[0, 1]], "keep": [0.1, 0.2, 0.1, 0.1, 0.1, 0.1]}, ValueError, "the same"),
        ({"keep": "0.5"}, TypeError, "keep must be a rate, or one for each cell"),
        ({"patch": 0}, ValueError, "patch must be an integer >= 1"),
        ({"patch": (1, 2)}, ValueError, "patch must have one side for each of 1 axes"),
    ],
)
def test_errors_name_the_argument(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wrapped("mc", gfo.Units(**wrong))


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (gfo.Units(patch=2), "patch of 'input' needs to know the axes"),
        (gfo.Units(axis=(3, 2)), "different axes in rising order"),
        (gfo.Units(axis=(2, -2)), "different axes in rising order"),
    ],
)
def test_axes_of_a_picture_are_told_clearly(units: gfo.Units, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gfo.wrap(
            Pictures(), "mc", {"input": units}, likelihood=gfo.Categorical(3),
            example=(torch.zeros(2, 2, 4, 6),),
        )  # fmt: skip


def test_numbers_of_numpy_are_numbers() -> None:
    model = wrapped("mc", gfo.Units(axis=np.int64(1), keep=np.float32(0.25)))  # type: ignore[arg-type]
    assert model.sites[0].keep == (0.25,) * FEATURES


def test_an_axis_that_is_none_of_both() -> None:
    with pytest.raises(TypeError, match=r"must be an integer or gfo\.Units, got 'x'"):
        gfo.wrap(
            net(), "mc", {"input": "x"},  # type: ignore[dict-item]
            likelihood=gfo.Categorical(3), example=(torch.zeros(2, FEATURES),),
        )  # fmt: skip


def test_another_size_is_told() -> None:
    model = gfo.wrap(
        Pictures(), "mc", {"input": gfo.Units(axis=(2, 3))}, likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 2, 4, 6),),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"expected 4 axes with sizes \[4, 6\] on axes \[2, 3\]"):
        model.predict(torch.zeros(2, 2, 6, 6))


def test_layouts_of_a_vector() -> None:
    layout = Layout((1,), (4,), (1, 0, 1, ALWAYS))
    mask = torch.tensor([[0.0, 1.0], [0.5, 2.0]])
    assert layout.widen(mask).tolist() == [[1, 0, 1, 1], [2, 0.5, 2, 1]]
    assert layout.narrow(torch.tensor([[1.0, 2.0, 5.0, 9.0]])).tolist() == [[2, 3]]
    assert keep_rates(gfo.Units(keep=0.5), layout) == (0.5, 0.5)
    assert policy.logit(0.5) == 0


def test_the_posterior_may_start_elsewhere_and_the_prior_may_grow_sparse() -> None:
    model = wrapped(
        "id-gflowout", gfo.Units(keep=[0.2] * 5 + [0.6]), start_keep=0.7, beta=0.0, hidden=()
    )
    assert model.inclusion(samples=2000).mean.tolist() == pytest.approx([0.7] * 6, abs=0.05)
    x, y = torch.randn(10, FEATURES), torch.arange(10) % 3
    for sparsity in (0.0, 1.5):
        model.set_options(sparsity=sparsity)
        losses = model(x, y=y)
        assert losses.log_reward is not None
        mask = losses.masks[0][:, 0]
        rates = torch.tensor([0.2] * 5 + [0.6])
        prior = torch.distributions.Bernoulli(logits=rates.logit() - sparsity)
        torch.testing.assert_close(losses.log_reward[:, 0], prior.log_prob(mask).sum(-1))
    with pytest.raises(ValueError, match="sparsity must be"):
        model.set_options(sparsity=-1.0)
    with pytest.raises(ValueError, match="start_keep is fixed by wrap"):
        model.set_options(start_keep=0.5)


def test_gflowout_charges_for_units_that_are_kept() -> None:
    model = wrapped("gflowout", gfo.Units(), sparsity=0.0, objective="tb", log_z="batch", draws=3)
    x, y = torch.randn(10, FEATURES), torch.arange(10) % 3
    masks = [torch.randint(2, (3, 10, FEATURES), generator=torch.Generator().manual_seed(0))]
    masks = [mask.float() for mask in masks]
    free = model(x, y=y, masks=masks).log_reward
    model.set_options(sparsity=1.5)
    charged = model(x, y=y, masks=masks).log_reward
    torch.testing.assert_close(free - 1.5 * masks[0].sum(-1), charged)


def test_gflowout_finds_the_inputs_that_matter_for_an_example() -> None:
    """The sign of the first input tells whether the second or the third decides."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, FEATURES, generator=generator)
    y = torch.where(x[:, 0] > 0, x[:, 1] > 0, x[:, 2] > 0).long()
    torch.manual_seed(0)
    backbone = MLP((FEATURES, 64, 64, 2))
    model = gfo.wrap(
        backbone, "gflowout", ["input"], likelihood=gfo.Categorical(2), example=(x[:2],),
        preset="features", sparsity=0.0,
    )  # fmt: skip
    groups = model.parameter_groups(lr=2e-3, generator_lr=2e-3)
    optimizer = torch.optim.Adam(groups, fused=True)
    steps = 800
    for step in range(steps):
        model.set_options(sparsity=min(1.0, max(0.0, step / steps - 0.3) / 0.3))
        rows = torch.randint(len(x), (200,), generator=generator)
        losses = model(x[rows], y=y[rows])
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    test = torch.randn(400, FEATURES, generator=generator)
    found = model.inclusion(test, samples=50).rows
    positive = test[:, 0] > 0
    for rows, matters, other in ((positive, 1, 2), (~positive, 2, 1)):
        assert found[rows][:, matters].mean() > 0.75
        assert found[rows][:, other].mean() < 0.45
        assert found[rows][:, 3:].mean() < 0.45
