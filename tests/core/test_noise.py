"""Random numbers: uniform, independent of how draws are cut, and of their own seed only."""

from __future__ import annotations

import pytest
import torch

from gflowout.core import policy
from gflowout.core.noise import Noise, from_words

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
