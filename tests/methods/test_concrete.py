"""Concrete dropout: relaxed masks, regularisers, learned rates; and the layers that read a site."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from differences import assert_gradient
from enumeration import all_masks, log_likelihoods
from relevance import learned
from torch import Tensor, nn
from zoo import ZOO

import gflowout as gfo
from gflowout.core import policy
from gflowout.core.sites import weights_by_unit
from gflowout.methods import concrete


def small(rates: tuple[float, ...] = (0.3, 0.6), **options: Any) -> gfo.MaskedModel:
    """Two sites of three units: 64 masks."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    model = gfo.wrap(
        net,
        "concrete",
        ["1", "3"],
        likelihood=gfo.Categorical(2),
        example=(torch.zeros(2, 2),),
        **{"train_size": 50, **options},
    )
    set_rates(model, *rates)
    return model


def set_rates(model: gfo.MaskedModel, *rates: float) -> None:
    with torch.no_grad():
        numbers = model.method.keep_logits
        for moved, rate in zip(numbers.split(numbers.moved), rates, strict=True):
            moved.fill_((-policy.logit(rate) - numbers.start) / 10)


def exact_log_prob(model: gfo.MaskedModel, rates: tuple[float, ...]) -> Tensor:
    """Log-probability of every mask, [masks]."""
    keep = torch.cat(
        [torch.full((site.units,), 1 - p) for site, p in zip(model.sites, rates, strict=True)]
    )
    masks = all_masks(len(keep))
    return torch.distributions.Bernoulli(probs=keep).log_prob(masks).sum(-1)


def test_the_relaxed_mask_becomes_the_hard_one() -> None:
    logits, uniform = torch.randn(50), torch.rand(200, 50)
    hard = policy.draw(logits, uniform)
    distances = [
        (concrete.relaxed(logits, uniform, temperature) - hard).abs().mean().item()
        for temperature in (1.0, 0.1, 0.01, 1e-4)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.1
    assert distances[-1] < 1e-4


def test_the_relaxed_loss_tends_to_the_hard_one() -> None:
    """The expected loss under hard masks is known by enumeration."""
    rates, draws = (0.3, 0.6), 20_000
    x, y = torch.tensor([[0.7, -1.2]]), torch.tensor([1])
    hard = small(rates)
    exact = -(exact_log_prob(hard, rates).exp() * log_likelihoods(hard, x, y)[0]).sum().item()
    errors = {}
    for temperature in (2.0, 0.5, 0.01):
        model = small(rates, relaxation=temperature)
        torch.manual_seed(0)
        with torch.no_grad():
            masks = model(x.expand(draws, 2), y=y.expand(draws)).masks
            output = model(x.expand(draws, 2), masks=masks)
        losses = nn.functional.cross_entropy(output, y.expand(draws), reduction="none")
        deviation = losses.std().item() / math.sqrt(draws)
        errors[temperature] = (losses.mean().item() - exact) / deviation
    assert abs(errors[0.01]) < 4
    assert abs(errors[0.5]) > 8  # the comparison can tell
    assert abs(errors[2.0]) > abs(errors[0.5])


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "without scaling"])
def test_the_prediction_is_that_of_all_masks(wrong: bool) -> None:
    rates, draws = (0.3, 0.6), 8000
    model = small(rates)
    x = torch.tensor([[0.7, -1.2], [-0.4, 0.3], [1.5, 1.0]])
    samples = model.predict(x, samples=draws, generator=torch.Generator().manual_seed(1)).samples
    masks = all_masks(6)
    keep = [1.0, 1.0] if wrong else [1 - p for p in rates]
    exact = []
    for one in x:  # by hand, without the wrapped model
        hidden = model.backbone[1](model.backbone[0](one)) * masks[:, :3] / keep[0]
        hidden = model.backbone[3](model.backbone[2](hidden)) * masks[:, 3:] / keep[1]
        output = model.backbone[4](hidden).softmax(-1)
        exact.append(exact_log_prob(model, rates).exp() @ output)
    error = (samples.mean(0) - torch.stack(exact)).abs() / (samples.std(0) / math.sqrt(draws))
    assert error.max() > 8 if wrong else error.max() < 4.5


@pytest.mark.parametrize("per_unit", [False, True])
def test_gradients_of_the_rates_against_finite_differences(per_unit: bool) -> None:
    model = small((0.3, 0.6), per_unit=per_unit, length_scale=1.0).double()
    x, y = torch.randn(12, 2, dtype=torch.float64), torch.arange(12) % 2
    assert_gradient(model, model.method.keep_logits.moved, x, y)


def bernoulli_entropy(rate: float) -> float:
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


@pytest.mark.parametrize("per_unit", [False, True])
def test_regularisers_by_hand(per_unit: bool) -> None:
    model = small(
        (0.3, 0.6), per_unit=per_unit, length_scale=0.5, train_size=80, dropout_regularizer=3.0
    )
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    squares = [model.backbone[at].weight.square().sum().item() for at in (2, 4)]
    weights = 0.5**2 / 2 * (squares[0] / 0.7 + squares[1] / 0.4)
    entropies = 3 * 3 * (bernoulli_entropy(0.3) + bernoulli_entropy(0.6))
    losses = model(x, y=y)
    assert losses.prior.item() == pytest.approx((weights - entropies) / 80, rel=1e-5)
    assert losses.total.item() == pytest.approx((losses.nll + losses.prior).item())
    model.set_options(train_size=160)
    assert model(x, y=y).prior.item() == pytest.approx(losses.prior.item() / 2)
    assert losses.log_q is losses.log_reward is losses.log_z is None


def test_each_unit_has_the_weights_that_read_it() -> None:
    model = small(per_unit=True, length_scale=1.0, dropout_regularizer=0.0, train_size=1)
    rates = torch.tensor([0.1, 0.5, 0.8])
    with torch.no_grad():
        start = model.method.keep_logits.start
        model.method.keep_logits.moved.copy_(((1 - rates).logit() - start).repeat(2) / 10)
    prior = model(torch.randn(4, 2), y=torch.tensor([0, 1, 0, 1])).prior
    columns = [model.backbone[at].weight.square().sum(0) / (1 - rates) / 2 for at in (2, 4)]
    torch.testing.assert_close(prior, torch.stack(columns).sum())
    gradient = torch.autograd.grad(prior, model.backbone[2].weight)[0]
    torch.testing.assert_close(gradient, model.backbone[2].weight / (1 - rates))


def test_training_without_train_size_is_an_error_where_it_matters() -> None:
    model = small(train_size=None)
    x, y = torch.randn(10, 2), torch.arange(10) % 2
    with pytest.raises(ValueError, match=r"train_size was not given.*set_options\(train_size="):
        model(x, y=y)
    with torch.no_grad(), pytest.warns(UserWarning, match="the batch of 10") as caught:
        losses = model(x, y=y)
    assert len(caught) == 1
    model.set_options(train_size=10)
    torch.testing.assert_close(model(x, y=y).prior, losses.prior)
    model.predict(x)
    plain = small(train_size=None, dropout_regularizer=0.0, length_scale=0.0)
    assert plain(x, y=y).prior == 0


@pytest.mark.parametrize("per_unit", [False, True])
def test_autocast_does_not_round_the_regularisers(per_unit: bool) -> None:
    model = small(per_unit=per_unit, length_scale=1.0)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    plain = model(x, y=y).prior
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x, y=y).prior.item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.parametrize("per_unit", [False, True])
def test_noise_is_switched_off_and_what_matters_is_kept(per_unit: bool) -> None:
    signal, noise = learned("concrete", "rate", per_unit=per_unit)
    assert signal.max() < 0.05  # from 0.1
    assert noise.min() > 0.25
    assert noise.mean() > 0.35


def test_noise_stays_if_the_entropy_has_the_wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = concrete.entropy
    monkeypatch.setattr(concrete, "entropy", lambda *args: -entropy(*args))
    _, noise = learned("concrete", "rate")
    assert noise.max() < 0.1


CONSUMERS = {
    "mlp": ["fc2", "head"],
    "every dropout": ["3.0", "4"],
    "conv": ["conv2", "head"],
    "conv1d": ["head"],
    "resnet": ["layer2.conv1", "head"],
    "keyword-only": ["head", "head"],  # not the layer of the other branch, which runs first
    "batchnorm": ["head"],
    "sequence-first lstm": ["head"],
    "tokens": ["fc", "head"],
    "input": ["fc1", "fc2"],
    "vit": ["layer.linear1"],  # attention reads it too, by a weight that is no layer
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_the_layer_that_reads_a_site_is_found(name: str) -> None:
    entry = next(entry for entry in ZOO if entry.name == name)
    assert [site.consumer for site in entry.shared("mc").sites] == CONSUMERS[name]


@pytest.mark.filterwarnings("ignore:site '3' is the output")
def test_flattened_maps_are_read_by_channel_and_the_last_layer_by_none() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))
    x = torch.randn(6, 1, 4, 4)
    model = gfo.wrap(
        net,
        "concrete",
        ["0", "3"],
        likelihood=gfo.Categorical(3),
        example=(x[:2],),
        train_size=1,
        length_scale=1.0,
    )
    assert [site.consumer for site in model.sites] == ["2", None]
    weights = net[2].weight.square().sum().item() / 0.9 / 2
    expected = weights - (4 + 3) * bernoulli_entropy(0.1)
    assert model(x, y=torch.zeros(6).long()).prior.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(4, 3), (4,)),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (4, 3)),
        (nn.Conv1d(4, 6, 2), (4, 5)),
        (nn.Conv2d(4, 6, 2, groups=2), (4, 3, 3)),
        (nn.ConvTranspose2d(4, 6, 2, groups=2), (4, 3, 3)),
    ],
    ids=lambda value: str(value).split("(")[0],
)
def test_weights_by_unit_are_those_that_the_unit_meets(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    layer = module[1] if isinstance(module, nn.Sequential) else module
    for unit in range(4):
        x = torch.zeros(1, *shape)
        x[0, unit] = 1.0
        layer.zero_grad()
        module(x).sum().backward()
        met = copy.deepcopy(layer)
        with torch.no_grad():
            met.weight.copy_(layer.weight.grad)
        touched = weights_by_unit(met, 4).flatten(1).abs().sum(1) > 0
        assert touched.nonzero().flatten().tolist() == [unit]
