"""Masks really depend on what the method says they depend on, and predictions not on labels."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from training_loop import descend

import gflowout as gfo
from gflowout.core.likelihoods import Likelihood


@pytest.fixture
def trained() -> gfo.MaskedModel:
    """A GFlowOut model after some training on two classes that need different units."""
    torch.manual_seed(2)  # a run whose prior has found what to look at, as most do
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(256, 4)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = gfo.wrap(
        net,
        "gflowout",
        ["1", "3"],
        likelihood=gfo.Categorical(2),
        example=(x[:2],),
        beta=20.0,  # so that masks are worth something
    )
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-2, generator_lr=1e-2))
    descend(model, x, y, optimiser, 300)
    return model


def logits(generators: nn.ModuleList, site: int, model: gfo.MaskedModel, *call: object) -> Tensor:
    """Logits of one site's generator in a pass."""
    seen: list[Tensor] = []
    handle = generators[site].register_forward_hook(
        lambda _, args, out: seen.append(out[1].detach())
    )
    x, y, masks = call
    model(x, y=y, masks=masks)
    handle.remove()
    return seen[0]


def test_masks_change_with_input_label_and_earlier_masks(trained: gfo.MaskedModel) -> None:
    torch.manual_seed(1)
    method = trained.method
    x, other = torch.randn(64, 4), torch.randn(64, 4)
    y = torch.zeros(64).long()
    kept = [torch.ones(1, 16), torch.ones(1, 8)]
    fewer = [torch.cat([torch.zeros(1, 8), torch.ones(1, 8)], 1), torch.ones(1, 8)]

    def changes(generators: nn.ModuleList, site: int, *call: object) -> float:
        before = logits(generators, site, trained, x, y, kept)
        return (logits(generators, site, trained, *call) - before).abs().mean().item()

    for site in (0, 1):
        assert changes(method.posterior, site, other, y, kept) > 0.01
        assert changes(method.posterior, site, x, y + 1, kept) > 0.01
        assert changes(method.prior, site, other, y, kept) > 0.01
        assert changes(method.prior, site, x, y + 1, kept) == 0
    assert changes(method.posterior, 1, x, y, fewer) > 0.01
    assert changes(method.prior, 1, x, y, fewer) > 0.01
    assert changes(method.posterior, 0, x, y, fewer) == 0


def test_earlier_masks_matter_beyond_the_activation(trained: gfo.MaskedModel) -> None:
    """Dropping a unit that is off anyway leaves the activation alone, yet changes the next mask."""
    x, y = torch.randn(1, 4), torch.zeros(1).long()
    off = (trained.backbone[1](trained.backbone[0](x)) == 0).float()
    assert off.any()
    first = [torch.ones(1, 16), torch.ones(1, 8)]
    second = [1 - off, torch.ones(1, 8)]
    outputs = [trained(x, masks=masks) for masks in (first, second)]
    torch.testing.assert_close(*outputs)
    seen = [logits(trained.method.prior, 1, trained, x, y, masks) for masks in (first, second)]
    assert (seen[0] - seen[1]).abs().max() > 1e-3


def test_masks_of_id_gflowout_do_not_change_with_the_input() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = gfo.wrap(
        net,
        "id-gflowout",
        ["1"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
        train_size=10,
    )
    seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
    one, two = (
        model.predict(torch.randn(5, 4), generator=generator, return_masks=True).masks[0]
        for generator in seeded
    )
    assert torch.equal(one, two)
    assert (one == one[:, :1]).all(), "one mask serves the whole batch"


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "mc", "none"])
def test_predictions_cannot_see_labels(method: str) -> None:
    """Nothing that draws a mask in prediction looks at labels, and predict takes none."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    extra = {"train_size": 10} if method == "id-gflowout" else {}
    x = torch.randn(6, 4)
    model = gfo.wrap(net, method, ["1"], likelihood=gfo.Categorical(3), example=(x[:2],), **extra)
    assert "y" not in inspect.signature(model.predict).parameters

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a label was looked at")

    before = model.predict(x, generator=torch.Generator().manual_seed(0)).outputs
    original = Likelihood.encode, gfo.Categorical.encode, gfo.Categorical.target
    try:
        gfo.Categorical.encode = gfo.Categorical.target = refuse  # type: ignore[assignment]
        after = model.predict(x, generator=torch.Generator().manual_seed(0)).outputs
    finally:
        _, gfo.Categorical.encode, gfo.Categorical.target = original
    assert torch.equal(before, after)
    with pytest.raises(TypeError, match="y"):
        model.predict(x, y=torch.zeros(6).long())
