"""Random numbers: uniform, independent of how draws are cut, and of their own seed only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gflowout as gfo
from gflowout.core import policy
from gflowout.core.noise import Noise, SeededNoise, from_words

LIKE = torch.zeros(())


def seeded(*seeds: int) -> Noise:
    return Noise([torch.Generator().manual_seed(seed) for seed in seeds])


def test_words_give_every_multiple_once() -> None:
    """All words there are, seen by one number, give all multiples of 2**-24."""
    own = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.int64)
    words = torch.stack([torch.cat([own, torch.tensor([low])]) for low in range(256)])
    numbers = from_words(words, 2**16).double() * 2**24
    assert torch.equal(numbers.flatten().sort().values, torch.arange(2**24, dtype=torch.float64))


@pytest.mark.parametrize(("rows", "units"), [(4, 5), (64, 301), (128, 300)])
def test_numbers_belong_to_their_generator(rows: int, units: int) -> None:
    three = seeded(1, 2, 3).uniform(rows, units, LIKE)
    assert three.shape == (3 * rows, units)
    assert torch.equal(three[rows : 2 * rows], seeded(2).uniform(rows, units, LIKE))
    assert not torch.equal(three[:rows], three[rows : 2 * rows])
    again = seeded(2)
    first = again.uniform(rows, units, LIKE)
    assert not torch.equal(first, again.uniform(rows, units, LIKE))


@pytest.mark.parametrize("units", [[7, 300, 20], [3000, 3000], [20, 4096]])
def test_reserved_numbers_are_those_of_single_calls(units: list[int]) -> None:
    """Also of too many numbers, which are made in another way, and of calls after them."""
    alone, reserving = (SeededNoise([5, 6], torch.device("cpu")) for _ in range(2))
    reserving.reserve(1, units, LIKE)
    for count in [*units, 9]:
        expected = alone.uniform(1, count, LIKE)
        assert torch.equal(reserving.uniform(1, count, LIKE), expected)


@pytest.mark.parametrize("method", ["mc", "gflowout"])
def test_small_predictions_draw_the_numbers_of_all_sites_in_one_call(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call per draw, and the same masks."""
    net, x = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU()), torch.ones(2, 3)
    likelihood = gfo.Gaussian(4)
    model = gfo.wrap(net, method, ["1", "3"], likelihood=likelihood, example=(x,), keep=0.5)

    calls = []
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *args, **kw: calls.append(args) or rand(*args, **kw))

    def predict() -> gfo.Predictive:
        source = torch.Generator().manual_seed(0)
        return model.predict(x, samples=5, generator=source, return_masks=True)

    at_once, few = predict(), len(calls)
    monkeypatch.setattr(SeededNoise, "reserve", Noise.reserve)
    one_by_one, many = predict(), len(calls) - few
    assert (few, many) == (5, 10)
    assert at_once.masks is not None
    assert one_by_one.masks is not None
    assert all(map(torch.equal, at_once.masks, one_by_one.masks))


def test_without_generators_numbers_follow_the_global_state() -> None:
    torch.manual_seed(3)
    first = Noise(copies=2).uniform(128, 300, LIKE)
    assert not torch.equal(first, Noise(copies=2).uniform(128, 300, LIKE))
    torch.manual_seed(3)
    assert torch.equal(first, Noise(copies=2).uniform(128, 300, LIKE))


def test_numbers_are_uniform_and_independent() -> None:
    numbers = seeded(*range(50)).uniform(200, 500, LIKE).double()
    count = numbers.numel()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    ordered = numbers.flatten().sort().values
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    assert (ordered - steps).abs().max() < 1.95 / count**0.5  # Kolmogorov-Smirnov, p = 0.001
    centred = (numbers - 0.5) * 12**0.5
    for other in (centred.roll(1, 1), centred.roll(2, 1), centred.roll(1, 0)):
        assert (centred * other).mean().abs() < 3.3 / count**0.5


@pytest.mark.parametrize("keep", [0.5, 0.9, 1e-3, 2**-17, 3e-6])
def test_rare_masks_have_their_probability(keep: float) -> None:
    """Also below the resolution of a number's own 16 bits."""
    count, kept = 0, 0
    for seed in range(100):
        uniform = seeded(*range(20 * seed, 20 * seed + 20)).uniform(64, 100, LIKE)
        kept += int(policy.below(uniform, keep).sum())
        count += uniform.numel()
    expected = count * keep
    # Below 2**-16 numbers of a row come in clusters; their variance is at most so much larger.
    cluster = max(1.0, 6400 * 2**-16)
    assert abs(kept - expected) < 4 * (expected * cluster) ** 0.5 + 1
