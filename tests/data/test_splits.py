"""Splits: disjoint, covering, of exact size, with whole groups and even classes."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gflowout.data.splits import apportion, split


def flat(parts: tuple[torch.Tensor, ...]) -> list[int]:
    return [index for part in parts for index in part.tolist()]


@given(
    n=st.integers(1, 200),
    weights=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    seed=st.integers(0, 9),
)
def test_shares_that_sum_to_one_cover(n: int, weights: list[int], seed: int) -> None:
    total = sum(weights)
    if not total:
        return
    fractions = [weight / total for weight in weights]
    assume(all(not share or share * n >= 1 for share in fractions))
    parts = split(n, fractions, seed=seed)
    assert sorted(flat(parts)) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * n) < 1
        assert part.dtype == torch.int64
        assert part.tolist() == sorted(part.tolist())


def test_counts_and_leftovers() -> None:
    parts = split(100, (50, 20), seed=0)
    assert [len(part) for part in parts] == [50, 20]
    assert len(set(flat(parts))) == 70
    parts = split(100, (0.5, 0.2), seed=0)
    assert [len(part) for part in parts] == [50, 20]
    assert len(set(flat(parts))) == 70
    assert [len(part) for part in split(3, (1, 2, 0), seed=0)] == [1, 2, 0]


def test_three_thirds_and_tenths_are_whole() -> None:
    assert sum(map(len, split(100, (1 / 3, 1 / 3, 1 / 3), seed=0))) == 100
    assert [len(part) for part in split(10, (0.7, 0.2, 0.1), seed=0)] == [7, 2, 1]


def test_the_seed_decides() -> None:
    first, again, other = (split(1000, (0.5, 0.5), seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    overlap = len(set(first.tolist()) & set(other.tolist()))
    assert 180 < overlap < 320
    state = torch.get_rng_state()
    split(10, (0.5,), seed=0, stratify=[0, 1] * 5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "options",
    [{}, {"stratify": [0, 1, 1, 1] * 5}, {"groups": list(range(20))}, {"groups": [0, 1] * 10}],
)
def test_every_point_is_equally_likely(options: dict[str, list[int]]) -> None:
    counts = torch.zeros(20)
    size = 10 if options.get("groups") == [0, 1] * 10 else 5
    for seed in range(600):
        counts[split(20, (size,), seed=seed, **options)[0]] += 5 / size
    assert ((counts - 150).abs() < 5 * 150**0.5).all()


@given(
    sizes=st.lists(st.integers(1, 12), min_size=4, max_size=40),
    seed=st.integers(0, 9),
)
def test_groups_stay_together(sizes: list[int], seed: int) -> None:
    groups = [f"hospital {g}" for g, size in enumerate(sizes) for _ in range(size)]
    n = len(groups)
    generator = torch.Generator().manual_seed(seed)
    groups = [groups[i] for i in torch.randperm(n, generator=generator).tolist()]
    parts = split(n, (0.5, 0.5), seed=seed, groups=groups)
    assert sorted(flat(parts)) == list(range(n))
    left, right = ({groups[index] for index in part.tolist()} for part in parts)
    assert not left & right
    # Dealing to whoever lacks most leaves them at most one group apart, beside rounding.
    assert abs(len(parts[0]) - len(parts[1])) <= max(sizes) + n % 2


def test_groups_with_leftovers_and_tensors() -> None:
    groups = torch.arange(1000) // 5
    train, test = split(1000, (0.6, 0.2), seed=0, groups=groups)
    assert abs(len(train) - 600) <= 5
    assert abs(len(test) - 200) <= 5
    kept = set(train.tolist()) | set(test.tolist())
    rest = [index for index in range(1000) if index not in kept]
    sides = [set(groups[part].tolist()) for part in (train, test, torch.tensor(rest))]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 200


def test_too_few_groups_are_an_error() -> None:
    with pytest.raises(ValueError, match="no group is left for part 1"):
        split(10, (0.9, 0.1), seed=0, groups=[0] * 10)


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_classes_keep_their_shares(counts: list[int], weights: list[int], seed: int) -> None:
    labels = torch.tensor([c for c, count in enumerate(counts) for _ in range(count)])
    n = len(labels)
    fractions = [weight / sum(weights) for weight in weights]
    assume(all(share * n >= 1 for share in fractions))
    parts = split(n, fractions, seed=seed, stratify=labels)
    assert sorted(flat(parts)) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * n) < 1
        found = torch.bincount(labels[part], minlength=len(counts)).tolist()
        exact = [len(part) / n * count for count in counts]
        assert all(abs(have - want) < 2 for have, want in zip(found, exact, strict=True))


def test_even_classes_are_even() -> None:
    labels = torch.arange(60_000) % 10
    small, rest = split(60_000, (500, 59_500), seed=0, stratify=labels)
    assert torch.bincount(labels[small]).tolist() == [50] * 10
    assert len(rest) == 59_500


def test_ties_do_not_always_favour_the_same_class() -> None:
    labels = ["a", "b", "c", "d"] * 3
    gained = {tuple(sorted(labels[i] for i in split(12, (2,), seed=s, stratify=labels)[0]))
              for s in range(40)}  # fmt: skip
    assert len(gained) == 6


@pytest.mark.parametrize(
    ("total", "shares", "counts"),
    [
        (10, [1, 1, 1], [4, 3, 3]),
        (7, [0.5, 0.3, 0.2], [4, 2, 1]),
        (3, [0.0, 1.0], [0, 3]),
        (100, [0.335, 0.335, 0.33], [34, 33, 33]),
    ],
)
def test_largest_remainders_by_hand(total: int, shares: list[float], counts: list[int]) -> None:
    assert apportion(total, shares) == counts


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"n": 0}, ValueError, "n must be an integer >= 1, got 0"),
        ({"fractions": (0.8, 0.3)}, ValueError, "fractions must be shares that sum to at most 1"),
        ({"fractions": (8, 3)}, ValueError, "counts that sum to at most n=10"),
        ({"fractions": 0.5}, TypeError, "fractions must be a list"),
        ({"fractions": ()}, TypeError, "fractions must be a list"),
        ({"fractions": (-0.1, 0.5)}, ValueError, "fractions must be a number"),
        ({"fractions": (-1, 5)}, ValueError, "fractions must be an integer >= 0"),
        ({"groups": [1, 2]}, ValueError, "groups must have one value for each of the n=10 points"),
        ({"stratify": [None] * 10}, ValueError, "stratify must have a value for each point"),
        ({"stratify": [0] * 10, "groups": [0] * 10}, ValueError, "cannot both be given"),
        ({"seed": -3}, ValueError, "seed must be an integer >= 0"),
    ],
)
def test_errors_name_the_argument(
    arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        split(**({"n": 10, "fractions": (0.5, 0.5), "seed": 0} | arguments))  # type: ignore[arg-type]


def test_a_share_that_is_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a share of 0\.1 of n=3 points holds no point"):
        split(3, (0.9, 0.1), seed=0)
    assert [len(part) for part in split(3, (1.0, 0.0), seed=0)] == [3, 0]
