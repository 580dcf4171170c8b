"""What the example call teaches, on backbones that are easy to misread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo


def wrap(net: nn.Module, sites: list[str], example: Any, method: str = "mc") -> gfo.MaskedModel:
    return gfo.wrap(net, method, sites, likelihood=gfo.Categorical(3), example=example)


def same_whatever_the_chunk(model: gfo.MaskedModel, *args: Any) -> None:
    first, *others = (
        model.predict(*args, chunk=chunk, generator=torch.Generator().manual_seed(0)).outputs
        for chunk in (1, 6, 20, None)
    )
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)


class BatchStatistics(nn.Module):
    """Normalises by the statistics of the batch at hand, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.bn = nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.bn(self.a(x)))


class BatchAttention(nn.Module):
    """Lets examples look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return self.out((hidden @ hidden.T).softmax(-1) @ hidden)


@pytest.mark.parametrize("build", [BatchStatistics, BatchAttention])
def test_networks_that_mix_the_batch_are_not_folded(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = wrap(build(), ["a"], (x[:4],))
    assert not model.spec.foldable
    same_whatever_the_chunk(model, x)


class Skips(nn.Module):
    """Takes outputs of an early module out of the list it returned."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> list[Tensor]:
            first = self.one(x)
            return [first, self.two(first)]

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid, self.out = self.Encoder(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        skips = self.enc(x)
        hidden = self.mid(skips.pop())
        return self.out(hidden + skips.pop())


def test_containers_of_early_modules_may_be_taken_apart() -> None:
    x = torch.randn(5, 4)
    same_whatever_the_chunk(wrap(Skips(), ["mid"], (x[:2],)), x)


class Experts(nn.Module):
    """Sends every example to one of several modules; some see none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 8) for _ in range(4))
        self.act, self.out = nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, :4].argmax(-1)
        hidden = x.new_zeros(len(x), 8)
        for number, expert in enumerate(self.experts):
            hidden[chosen == number] = expert(x[chosen == number])
        return self.out(self.act(hidden))


def test_experts_that_the_example_did_not_use() -> None:
    torch.manual_seed(0)
    example = torch.eye(4)[:2]
    x = torch.randn(12, 4)
    same_whatever_the_chunk(wrap(Experts(), ["act"], (example,)), x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, scale: Tensor, x: Tensor) -> Tensor:
        return self.out(self.a(x) * scale[0] + scale[1])


def test_an_argument_that_happens_to_have_the_size_of_the_batch() -> None:
    scale, x, y = torch.tensor([2.0, 1.0]), torch.randn(6, 4), torch.arange(6) % 3
    model = wrap(Scaled(), ["a"], (scale, x[:2]), "gflowout")
    assert model.spec.batched == ("x",)
    assert model(scale, x, y=y).log_q.shape == (6,)
    same_whatever_the_chunk(model, scale, x)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, position: Tensor, x: Tensor) -> Tensor:
        return self.out(self.a(x + position))


def test_an_argument_of_one_row_is_broadcast() -> None:
    position, x, y = torch.randn(1, 4), torch.randn(6, 4), torch.arange(6) % 3
    model = wrap(Positions(), ["a"], (position, x[:1]), "gflowout")
    assert model(position, x, y=y).log_q.shape == (6,)
    same_whatever_the_chunk(model, position, x)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.out(self.a(x)) * weight.unsqueeze(-1)


@pytest.mark.parametrize("size", [1, 2])
def test_an_example_of_one_row_hides_which_arguments_grow(size: int) -> None:
    x, weight = torch.randn(6, 4), torch.rand(6)
    model = wrap(Weighted(), ["a"], (x[:size], weight[:size]))
    same_whatever_the_chunk(model, x, weight)


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.gru, self.out = nn.Linear(4, 8), nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.a(x))[0][-1])


def test_as_many_steps_as_examples_are_refused_where_they_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="either may be the batch"):
        wrap(SequenceFirst(), ["a"], (torch.randn(4, 4, 4),))
    model = wrap(SequenceFirst(), ["a"], (torch.randn(5, 4, 4),))
    assert model.sites[0].batch_axis == 1
    same_whatever_the_chunk(model, torch.randn(9, 6, 4))


class Noisy(nn.Module):
    """Draws random numbers itself, in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(self.a(x), 0.5, training=True))


def test_a_backbone_that_draws_itself_leaves_the_random_state_alone() -> None:
    x = torch.randn(5, 4)
    model = wrap(Noisy(), ["a"], (x[:2],))
    before = torch.get_rng_state()
    one, other = (
        model.predict(x, generator=torch.Generator().manual_seed(3)).outputs for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
