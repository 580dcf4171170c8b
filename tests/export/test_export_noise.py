"""Numbers from a hash: uniform, independent of their neighbours, and a function of their place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from gflowout.export import noise
from gflowout.export.noise import Hashed

LIKE = torch.zeros(())
SEEDS = [0, 1, 2, -1, 2**32, 2**32 + 1, 2**62, -(2**63)]


def numbers(seed: int, draws=range(20), rows: int = 60, units: int = 100, **more) -> Tensor:
    """[draws, rows, units]."""
    found = Hashed(torch.tensor(seed), draws, **more).uniform(rows, units, LIKE)
    return found.reshape(len(draws), rows, units)


def z_of(values: Tensor, mean: float, variance: float) -> float:
    return float((values.double().mean() - mean) * math.sqrt(values.numel() / variance))


def p_of_counts(places: Tensor, kinds: int) -> float:
    return float(stats.chisquare(torch.bincount(places.flatten(), minlength=kinds)).pvalue)


class TestPlace:
    def test_follows_from_its_place_alone(self):
        whole = numbers(5)
        assert torch.equal(numbers(5, range(7, 9), rows=3, units=11), whole[7:9, :3, :11])

    def test_against_a_second_implementation(self):
        """In Python's unbounded integers, from the words of the docstring."""

        def fold(product):
            return product % 2**32 ^ product // 2**32

        def mixed(word, tag):
            return fold((fold((word ^ tag) * 0x7FEB352D) ^ 0x05A308D3) * 0x4C957F2D)

        def number(seed, source, call, draw, row, unit):
            low, high = seed % 2**32, seed // 2**32 % 2**32
            keys = []
            for tag, other in ((0x243F6A88, 0x13198A2E), (0x05A308D3, 0x03707344)):
                of_row = mixed(mixed(mixed(low, tag) ^ high, tag) ^ row, tag)
                of_draw = mixed(mixed(mixed(source, other) ^ call, other) ^ draw, other)
                keys.append(mixed(of_row ^ of_draw, other))
            word = mixed(unit, 0x24093822)
            word = (fold((keys[0] ^ word) * 0x7FEB352D) ^ keys[1]) * 0x4C957F2D
            return word % 2**32 // 256 / 2**24

        for seed in SEEDS:
            source = Hashed(torch.tensor(seed), range(3, 5), source=2)
            source.uniform(2, 2, LIKE)
            found = source.uniform(2, 3, LIKE).reshape(2, 2, 3)
            for draw, row, unit in np.ndindex(2, 2, 3):
                expected = number(seed, 2, 2, draw + 3, row, unit)
                assert found[draw, row, unit].item() == expected

    @pytest.mark.parametrize("opaque", [False, True])
    def test_products_do_not_overflow(self, opaque: bool):
        words = torch.tensor([0, 1, 2**32 - 1])
        assert 2**32 * max(noise.FIRST, noise.SECOND) < 2**63
        assert noise.mixed(words, 7).tolist() == [noise.mixed(word, 7) for word in words.tolist()]
        assert numbers(3, opaque=opaque).equal(numbers(3))

    def test_sources_and_calls_differ(self):
        one = Hashed(torch.tensor(1), range(2))
        calls = [one.uniform(30, 40, LIKE), one.uniform(30, 40, LIKE)]
        calls.append(Hashed(torch.tensor(1), range(2), source=1).uniform(30, 40, LIKE))
        for first, second in ((0, 1), (0, 2), (1, 2)):
            assert abs(z_of((calls[first] - 0.5) * (calls[second] - 0.5), 0, 1 / 144)) < 4


class TestDistribution:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_uniform(self, seed: int):
        found = numbers(seed)
        assert found.dtype == torch.float32
        assert found.min() >= 0
        assert found.max() < 1
        assert torch.equal(found, (found.double() * 2**24).floor() / 2**24)
        assert abs(z_of(found, 0.5, 1 / 12)) < 4
        assert p_of_counts((found * 1024).long(), 1024) > 1e-4
        assert p_of_counts((found * 2**24).long() % 256, 256) > 1e-4  # the lowest bits, too

    @pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
    def test_rates(self, rate: float):
        kept = torch.stack([numbers(seed) for seed in range(4)]) < rate
        assert abs(z_of(kept, rate, rate * (1 - rate))) < 4
        per_unit = kept.double().mean((0, 1, 2)).sub(rate) * math.sqrt(4 * 1200 / rate / (1 - rate))
        assert per_unit.abs().max() < 4.5

    def test_neighbours_are_independent(self):
        """Seeds, draws, rows and units beside each other: all pairs of sixteenths as frequent."""
        found = torch.stack([numbers(seed, range(10)) for seed in range(6)])
        for axis in range(4):
            count = found.shape[axis] - 1
            first, second = found.narrow(axis, 0, count), found.narrow(axis, 1, count)
            pairs = (first * 16).long() * 16 + (second * 16).long()
            assert p_of_counts(pairs, 256) > 1e-4
            assert abs(z_of((first - 0.5) * (second - 0.5), 0, 1 / 144)) < 4

    def test_no_pair_is_correlated(self):
        found = (numbers(3, range(100), rows=100) - 0.5) * math.sqrt(12)
        for axis in range(3):
            rows = found.movedim(axis, 0).flatten(1)
            z = rows @ rows.T / math.sqrt(rows.shape[1])
            apart = z[~torch.eye(len(z), dtype=torch.bool)]
            assert apart.abs().max() < 5.5
            assert abs(apart.std() - 1) < 0.05

    def test_corners_of_a_square_are_independent(self):
        """What a product of row and column numbers would fail."""
        signs = (numbers(8) < 0.5).double() * 2 - 1
        square = signs[:, 1:, 1:] * signs[:, :-1, 1:] * signs[:, 1:, :-1] * signs[:, :-1, :-1]
        assert abs(z_of(square, 0, 1)) < 4

    @pytest.mark.parametrize("units", [1, 2, 51])
    def test_normal(self, units: int):
        found = Hashed(torch.tensor(4), range(30)).normal(100, units, LIKE)
        assert found.shape == (3000, units)
        assert stats.kstest(found.flatten().numpy(), "norm").pvalue > 1e-4
        half = units // 2
        if half:
            first, second = found[:, :half], found[:, -half:]
            assert abs(z_of(first * second, 0, 1)) < 4
            assert abs(z_of((first**2 - 1) * (second**2 - 1), 0, 4)) < 4
