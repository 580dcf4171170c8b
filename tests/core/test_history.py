"""A summary of earlier masks instead of all of them: linear in the sites, and as good."""

from __future__ import annotations

from typing import Any

import pytest
import test_exactness
import torch
from torch import Tensor, nn
from zoo import predicted

import gflowout as gfo


def deep(sites: int, history: str, method: str = "gflowout", units: int = 16) -> gfo.MaskedModel:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(units, units), nn.ReLU()) for _ in range(sites)]
    extra: dict[str, Any] = {"train_size": 10} if method == "id-gflowout" else {}
    return gfo.wrap(
        nn.Sequential(*layers, nn.Linear(units, 2)),
        method,
        [str(site) for site in range(sites)],
        likelihood=gfo.Categorical(2),
        example=(torch.randn(2, units),),
        history=history,
        **extra,
    )


def size(model: gfo.MaskedModel) -> int:
    return sum(parameter.numel() for parameter in model.method.parameters())


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_parameters_are_linear_in_the_sites(method: str) -> None:
    sizes = [size(deep(sites, "summary", method)) for sites in (4, 8, 12)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
    whole = [size(deep(sites, "all", method)) for sites in (4, 8, 12)]
    assert whole[2] - whole[1] > whole[1] - whole[0]


@pytest.mark.parametrize("name", ["posterior", "prior"])
def test_every_earlier_mask_is_seen(name: str) -> None:
    """Each earlier mask moves the last site's logits with all else the same."""
    model = deep(4, "summary")
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    # Nothing of the input passes the first site, so activations do not tell the masks.
    model.backbone[0][0].weight.data.zero_()
    model.backbone[0][0].bias.data.fill_(-1.0)
    seen: list[Tensor] = []
    getattr(model.method, name)[3].register_forward_hook(lambda _, args, out: seen.append(out[1]))
    x, y = torch.randn(3, 16), torch.zeros(3).long()
    ones = [torch.ones(3, 16) for _ in range(4)]
    model(x, y=y, masks=ones)
    cut = [torch.cat([torch.zeros(3, 8), torch.ones(3, 8)], 1), *ones[1:]]
    model(x, y=y, masks=cut)
    assert (seen[1] - seen[0]).abs().mean() > 1e-3


def test_posterior_and_prior_keep_summaries_of_their_own() -> None:
    model = deep(3, "summary")
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    losses = model(torch.randn(5, 16), y=torch.zeros(5).long())
    losses.prior.backward()
    assert all(p.grad is None for p in model.method.posterior_history.parameters())
    assert all(p.grad.abs().sum() > 0 for p in model.method.prior_history.parameters())


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout"])
def test_predictions_do_not_depend_on_the_chunk(method: str) -> None:
    model, x = deep(3, "summary", method), torch.randn(4, 16)
    first = predicted(model, x, return_masks=True)
    again = predicted(model, x, return_masks=True, chunk=3)
    torch.testing.assert_close(first.samples, again.samples)
    torch.testing.assert_close(first.masks, again.masks)


@pytest.mark.parametrize("name", ["conv", "pairs"])
def test_the_posterior_is_found(name: str) -> None:
    """On the problems whose frozen prior has no summary of its own, within the same bound."""
    exploration: dict[str, Any] = {"temperature": 1.0, "epsilon": 0.0, "history": "summary"}
    test_exactness.check(name, exploration, within=0.03)
