"""The disagreement term: against mutual information of predictions, and what it leaves alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core.disagreement import (
    blended,
    disagreement,
    permuted_columns,
    shuffled_blocks,
)
from gflowout.methods import METHODS
from gflowout.uncertainty import mutual_information


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def as_is(x: Tensor) -> Tensor:
    return x


class Centred(nn.Module):
    """Rows that read each other: draws cannot be folded into one batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x[:1]


def wrapped(
    method: str = "mc",
    likelihood: gfo.Likelihood | None = None,
    outputs: int = 3,
    middle: nn.Module | None = None,
    **options: Any,
) -> gfo.MaskedModel:
    net = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), middle or nn.Identity(), nn.Linear(16, outputs)
    )
    return gfo.wrap(
        net, method, ["1"], likelihood=likelihood or gfo.Categorical(3),
        example=(torch.randn(2, 6),), **options,
    )  # fmt: skip


def test_it_is_the_mutual_information() -> None:
    logits = 3 * torch.randn(5, 7, 4)
    assert torch.allclose(disagreement(logits), mutual_information(logits.softmax(-1)), atol=1e-6)
    assert torch.allclose(disagreement(logits[:1].expand(5, -1, -1)), torch.zeros(7), atol=1e-6)
    certain = 1e4 * torch.eye(4).unsqueeze(1)  # four draws, sure of four classes
    assert disagreement(certain).item() == pytest.approx(math.log(4))


def test_gradients_are_finite_where_probabilities_are_zero() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4]], [[0.0, 1e4, -1e4]]], requires_grad=True)
    disagreement(logits).sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    double = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(disagreement, double)


@pytest.mark.parametrize("middle", [nn.Identity(), Centred(), nn.BatchNorm1d(16), nn.Dropout(0.5)])
def test_fixed_masks_are_each_run_once_as_in_a_prediction(middle: nn.Module) -> None:
    model, x = wrapped("masksembles", middle=middle, members=5), torch.randn(8, 6)
    pred = model.predict(x, masks=[own.expand(-1, 8, -1) for own in model.method.members() or ()])
    expected = -0.5 * pred.mutual_information().mean()
    assert model.training
    assert torch.allclose(gfo.Disagreement(0.5, as_is)(model, x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(gfo.Binary(), 1), (gfo.MultiLabel(4), 4), (gfo.Categorical(3), 3)]
)
def test_the_term_of_an_ensemble_is_that_of_its_members_times_their_number(
    likelihood: gfo.Likelihood, outputs: int
) -> None:
    x = torch.randn(8, 6)
    ensemble = gfo.Ensemble.of(
        lambda: nn.Linear(6, outputs), 3, likelihood=likelihood, example=(x,)
    )
    scores = ensemble.predict(x).mutual_information().reshape(8, -1).sum(1)
    term = gfo.Disagreement(0.2, as_is)(ensemble, x)
    assert torch.allclose(term, -0.2 * 3 * scores.mean(), atol=1e-6)


def test_draws_are_those_of_predictions() -> None:
    model, x = wrapped("mc", rate=0.5), torch.randn(200, 6)
    term = gfo.Disagreement(1.0, as_is, draws=500)(model, x)
    expected = model.predict(x, samples=500).mutual_information().mean()
    assert -term.item() == pytest.approx(expected.item(), rel=0.05)
    torch.manual_seed(7)
    first = gfo.Disagreement()(model, x)
    torch.manual_seed(7)
    assert torch.equal(gfo.Disagreement()(model, x), first)
    assert not torch.equal(gfo.Disagreement()(model, x), first)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "none"])
def test_it_trains_the_backbone_alone(method: str) -> None:
    model, x = wrapped(method), torch.randn(16, 6)
    term = gfo.Disagreement()(model, x)
    term.backward()
    assert term.item() < 0
    assert all(own.grad is None for own in model.method.parameters())
    gradients = [own.grad for own in model.backbone.parameters()]
    assert all(own is not None and bool(own.isfinite().all()) for own in gradients)
    assert any(own is not None and bool((own != 0).any()) for own in gradients)


def test_made_inputs_do_not_reach_the_statistics_of_batchnorm() -> None:
    norm = nn.BatchNorm1d(16)
    model, x = wrapped(middle=norm), torch.randn(16, 6)
    before = {name: own.clone() for name, own in norm.named_buffers()}
    gfo.Disagreement()(model, x).backward()
    assert norm.training
    assert all(torch.equal(own, before[name]) for name, own in norm.named_buffers())
    assert norm.weight.grad is not None


def test_half_of_the_batch_is_taken_and_functions_decide_themselves() -> None:
    model, x = wrapped(), torch.randn(16, 6)
    rows: list[int] = []
    model.backbone[0].register_forward_hook(lambda module, args, out: rows.append(len(args[0])))
    gfo.Disagreement()(model, x)
    gfo.Disagreement(inputs=lambda given: given[:3])(model, x)
    gfo.Disagreement(inputs=lambda given: {"input": given[:5]})(model, x)
    gfo.Disagreement()(model, x[:1])
    assert rows == [8, 3, 5, 1]  # draws part behind the first layer


def test_training_with_it_makes_draws_disagree_off_the_data() -> None:
    x = torch.randn(300, 2) + 4 * torch.eye(2)[torch.arange(300) % 2]
    y, far = torch.arange(300) % 2, torch.randn(300, 2) - 6
    scores = {}
    for weight in (0.0, 0.3):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
        model = gfo.wrap(net, "masksembles", ["1"], likelihood=gfo.Categorical(2), example=(x[:2],))
        term = gfo.Disagreement(weight, lambda _: torch.randn(100, 2) - 6)
        optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
        for _ in range(150):
            optimizer.zero_grad()
            (model(x, y=y).total + term(model, x)).backward()
            optimizer.step()
        pred = model.predict(far)
        scores[weight] = pred.mutual_information().mean().item()
        assert (model.predict(x).mean.argmax(-1) == y).float().mean() > 0.95
    assert scores[0.3] > 0.3 > scores[0.0] + 0.1


@pytest.mark.parametrize("shape", [(3, 1, 4, 6), (3, 2, 5, 7), (3, 4, 4)])
def test_blocks_are_moved_as_a_whole(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(math.prod(shape))).reshape(shape)
    made = shuffled_blocks(x)
    height, width = shape[-2] // 2 * 2, shape[-1] // 2 * 2
    assert not torch.equal(made, x)
    assert torch.equal(made[..., height:, :], x[..., height:, :])
    assert torch.equal(made[..., width:], x[..., width:])

    def blocks(picture: Tensor) -> list[list[float]]:
        return sorted(
            picture[..., top : top + 2, left : left + 2].flatten().tolist()
            for top in range(0, height, 2)
            for left in range(0, width, 2)
        )

    assert all(blocks(own) == blocks(other) for own, other in zip(x, made, strict=True))


def test_blends_are_half_of_each() -> None:
    x = torch.randn(3, 1, 4, 4)
    made = blended(x)
    assert torch.allclose(made[1, 0, 0, 3], (x[1, 0, 0, 3] + x[0, 0, 3, 0]) / 2)


def test_columns_keep_their_values_and_rows_do_not() -> None:
    x = torch.arange(80.0).reshape(20, 4)
    made = permuted_columns(x)
    assert torch.equal(made.sort(0).values, x)
    assert not bool((made // 4 == made[:, :1] // 4).all())


def test_auto_follows_the_shape() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.arange(64.0).reshape(4, 1, 4, 4)
    model = gfo.wrap(net, "mc", ["2"], likelihood=gfo.Categorical(3), example=(x[:2],))
    seen: list[Tensor] = []
    net[1].register_forward_hook(lambda module, args, out: seen.append(args[0]))
    gfo.Disagreement()(model, x)
    assert torch.equal(seen[-1].sort(1).values, x[:2].flatten(1))
    gfo.Disagreement()(model, x.flatten(1))
    assert bool(torch.isin(seen[-1], x).all())
    assert not torch.equal(seen[-1].sort(1).values, x[:2].flatten(1))
    with pytest.raises(ValueError, match=r"inputs='auto' takes tables .* got \[4, 4, 4\]"):
        gfo.Disagreement()(model, x[:, 0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weight": -1.0}, ValueError, "weight must be a number in"),
        ({"inputs": "block"}, ValueError, "inputs must be one of 'auto', 'blocks'.*did you mean"),
        ({"draws": 1}, ValueError, "draws must be an integer >= 2"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gfo.Disagreement(**arguments)


def test_models_that_cannot_disagree_are_refused() -> None:
    x = torch.randn(4, 6)
    term = gfo.Disagreement()
    with pytest.raises(ValueError, match="method 'none' are all the same"):
        term(wrapped("none"), x)
    with pytest.raises(ValueError, match="method 'none' are all the same"):
        term(gfo.Ensemble([wrapped("none")]), x)
    with pytest.raises(TypeError, match="for classes, the model has Gaussian"):
        term(wrapped(likelihood=gfo.Gaussian(3)), x)
    with pytest.raises(TypeError, match=r"model must come from gfo\.wrap, got Linear"):
        term(nn.Linear(6, 3), x)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="draws for Disagreement are all the same"):
        term(wrapped("gates", predict="mean"), x)


@pytest.mark.parametrize(
    ("inputs", "args"),
    [("blocks", (torch.zeros(4, 6),)), ("blend", (torch.zeros(4, 6),))],
)
def test_inputs_of_another_shape_are_named(inputs: str, args: tuple[Tensor, ...]) -> None:
    with pytest.raises(ValueError, match=f"inputs='{inputs}' takes pictures.*got \\[4, 6\\]"):
        gfo.Disagreement(inputs=inputs)(wrapped(), *args)


def test_calls_of_several_arguments_need_a_function() -> None:
    x = torch.zeros(4, 6)
    for args, kwargs in (((x, x), {}), ((), {"input": x}), ((x.long(),), {})):
        with pytest.raises(TypeError, match="models of one argument, a floating-point tensor"):
            gfo.Disagreement()(wrapped(), *args, **kwargs)
