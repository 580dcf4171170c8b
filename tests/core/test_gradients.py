"""Each loss reaches its own parameters and no others, so that one backward pass trains all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo

OWNERS = {
    "gflowout": {
        "backbone": "nll",
        "posterior": "tb",
        "log_z": "tb",
        "log_flow": "tb",
        "prior": "prior",
    },
    "id-gflowout": {"backbone": "nll", "posterior": "tb", "log_z": "tb"},
}


def build(method: str, **options: object) -> tuple[gfo.MaskedModel, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
    )
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    extra = {"train_size": 50} if method == "id-gflowout" else {}
    model = gfo.wrap(
        net,
        method,
        ["1", "4"],
        likelihood=gfo.Gaussian(2),
        example=(x[:2],),
        **extra,
        **options,
    )
    with torch.no_grad():  # away from the start, where many gradients vanish
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, x, y


def owner(name: str) -> str:
    head, _, rest = name.partition(".")
    return rest.partition(".")[0] if head == "method" else "backbone"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gflowout", {"preset": "paper"}),
        ("gflowout", {"preset": "paper", "draws": 3, "log_z": "batch"}),
        ("gflowout", {"preset": "paper", "rescale": "kept", "prior_keep": 0.8}),
        ("gflowout", {"objective": "tb"}),
        ("gflowout", {"objective": "db", "prior_fit": "draws"}),
        ("gflowout", {"objective": "subtb", "posterior": "own"}),
        ("id-gflowout", {}),
        ("id-gflowout", {"draws": 1, "group_size": 4}),
        ("id-gflowout", {"preset": "paper"}),
    ],
)
def test_every_group_has_the_gradient_of_its_own_loss_exactly(
    method: str, options: dict[str, object]
) -> None:
    model, x, y = build(method, **options)
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())

    def gradients(part: str) -> list[Tensor | None]:
        torch.manual_seed(1)
        loss = getattr(model(x, y=y), part)
        if not loss.requires_grad:
            return [None] * len(parameters)
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    total = dict(zip(names, gradients("total"), strict=True))
    parts = {
        part: dict(zip(names, gradients(part), strict=True)) for part in ("nll", "tb", "prior")
    }
    assert any("posterior" in name for name in names)
    for name in names:
        own = OWNERS[method][owner(name)]
        assert total[name] is not None, name
        assert torch.equal(total[name], parts[own][name]), name
        assert total[name].abs().sum() > 0, name
        for part in {"nll", "tb", "prior"} - {own}:
            other = parts[part][name]
            assert other is None or not other.any(), f"{part} reaches {name}"


@pytest.mark.parametrize("method", ["mc", "masksembles", "none"])
def test_without_a_posterior_the_total_is_the_likelihood(method: str) -> None:
    model, x, y = build(method)
    losses = model(x, y=y)
    assert losses.total is losses.nll
    assert losses.tb.item() == losses.prior.item() == 0
    assert losses.log_q is losses.log_reward is losses.log_z is None


def test_parameter_groups_cover_every_parameter_once() -> None:
    model, _, _ = build("gflowout", preset="paper")
    groups = model.parameter_groups(lr=1.0, generator_lr=2.0, log_z_lr=3.0, weight_decay=0.1)
    assert {group["name"]: group["lr"] for group in groups} == {
        "backbone": 1.0,
        "likelihood": 1.0,
        "generator": 2.0,
        "log_z": 3.0,
    }
    counted = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(counted) == sorted(id(parameter) for parameter in model.parameters())
    torch.optim.AdamW(groups)
