"""Batches: every row once, orders that repeat, resuming anywhere, weights, shards."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gflowout.data.batches import Batches, balanced_weights
from gflowout.data.transforms import Augment, Normalize


def rows(batches: Batches) -> list[list[int]]:
    return [batch[-1].tolist() for batch in batches]


def noise_images(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def training(**options: Any) -> Batches:
    images = noise_images(53, 3, 8, 8)
    arguments = {
        "batch_size": 10,
        "shuffle": True,
        "seed": 4,
        "transform": Normalize.fit(images),
        "augment": Augment(pad=2),
    }
    return Batches(images, torch.arange(53), **(arguments | options))


def equal(first: Any, second: Any) -> bool:
    return all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("size", "drop", "count"), [(10, False, 6), (10, True, 5), (53, True, 1)])
def test_every_row_comes_once(shuffle: bool, size: int, drop: bool, count: int) -> None:
    batches = Batches(
        torch.arange(53.0) * 2,
        torch.arange(53),
        batch_size=size,
        shuffle=shuffle,
        seed=0,
        drop_last=drop,
    )
    assert len(batches) == count
    seen = list(batches)
    assert len(seen) == count
    assert all(torch.equal(x, 2.0 * y) for x, y in seen)
    order = [row for _, y in seen for row in y.tolist()]
    assert len(set(order)) == len(order) == (count * size if drop else 53)
    assert (order == sorted(order)) is not shuffle


def test_each_epoch_has_its_own_order_which_repeats() -> None:
    batches = Batches(torch.arange(40), batch_size=7, shuffle=True, seed=1)
    epochs = [rows(batches) for _ in range(4)]
    assert all(a != b for a, b in itertools.combinations(epochs, 2))
    again = Batches(torch.arange(40), batch_size=7, shuffle=True, seed=1)
    again.set_epoch(2)
    assert rows(again) == epochs[2]
    assert rows(again) == epochs[3]
    other = Batches(torch.arange(40), batch_size=7, shuffle=True, seed=2)
    assert rows(other) != epochs[0]


def test_an_epoch_that_is_broken_off_is_not_repeated() -> None:
    batches = Batches(torch.arange(40), batch_size=7, shuffle=True, seed=1)
    first = next(iter(batches))[0]
    assert not torch.equal(first, next(iter(batches))[0])


@pytest.mark.parametrize("done", [0, 1, 5, 6, 7, 11, 12, 15])
def test_a_resumed_run_repeats_exactly(done: int) -> None:
    """Order and augmentation, whether it stopped inside an epoch or between two."""

    def stream(batches: Batches) -> Any:
        while True:
            yield from batches

    whole = list(itertools.islice(stream(training()), 20))
    stopped = training()
    before = list(itertools.islice(stream(stopped), done))
    state = copy.deepcopy(stopped.state_dict())
    resumed = training()
    resumed.load_state_dict(state)
    after = list(itertools.islice(stream(resumed), 20 - done))
    assert equal(whole, before + after)


def test_an_iterator_that_is_not_used_does_not_count() -> None:
    batches, other = training(), training()
    iter(batches)
    assert batches.state_dict() == {"epoch": 0, "batch": 0}
    assert rows(batches) == rows(other)


def test_state_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    batches = training()
    assert batches.state_dict() == {"epoch": 0, "batch": 0}
    running = iter(batches)
    assert batches.state_dict() == {"epoch": 0, "batch": 0}
    for _ in range(6):
        next(running)
    assert batches.state_dict() == {"epoch": 1, "batch": 0}
    batches.set_epoch(7)
    assert batches.state_dict() == {"epoch": 7, "batch": 0}


def test_transform_and_augment_act_on_the_first_tensor_only() -> None:
    images = noise_images(20, 3, 8, 8)
    normalize = Normalize.fit(images)
    plain = Batches(images, images, batch_size=8, transform=normalize)
    for made, kept in plain:
        assert torch.equal(made, normalize(kept))
    batches = training()
    made, labels = next(iter(batches))
    again = training(augment=None)
    unchanged, same = next(iter(again))
    assert torch.equal(labels, same)
    assert not torch.equal(made, unchanged)


def test_augmentation_differs_between_batches_and_epochs() -> None:
    images = noise_images(1, 3, 8, 8).expand(12, 3, 8, 8)
    batches = Batches(images, batch_size=6, shuffle=True, seed=0, augment=Augment(pad=2))
    made = [batch for _ in range(2) for (batch,) in batches]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(made, 2))


def test_batches_are_copies() -> None:
    source = torch.zeros(6, 2)
    for (batch,) in Batches(source, batch_size=3):
        batch += 1
    assert source.sum() == 0


def test_device_comes_before_the_transform() -> None:
    seen = []

    def transform(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return x

    (made,) = next(iter(Batches(torch.ones(4), batch_size=2, transform=transform, device="meta")))
    assert made.device.type == "meta"
    assert seen == ["meta"]


def test_balanced_weights_draw_classes_equally() -> None:
    labels = torch.cat([torch.zeros(900), torch.ones(90), torch.full((10,), 3)]).long()
    weights = balanced_weights(labels)
    assert float(weights.mean()) == pytest.approx(1)
    batches = Batches(labels, batch_size=100, shuffle=True, seed=0, weights=weights)
    counts = torch.zeros(4)
    for _ in range(5):
        for (batch,) in batches:
            counts += torch.bincount(batch, minlength=4)
    assert counts.sum() == 5000
    assert counts[2] == 0
    assert ((counts[[0, 1, 3]] - 5000 / 3).abs() < 5 * (5000 * 2 / 9) ** 0.5).all()
    batches.set_epoch(0)
    first = rows(batches)
    batches.set_epoch(0)
    assert rows(batches) == first


def test_rows_of_weight_zero_never_come() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0])
    batches = Batches(torch.arange(3), batch_size=3, shuffle=True, seed=0, weights=weights)
    drawn = torch.cat([batch for _ in range(600) for (batch,) in batches])
    counts = torch.bincount(drawn, minlength=3)
    assert counts[0] == 0
    assert abs(int(counts[2]) - 1200) < 100


def test_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    list(training())
    assert torch.equal(torch.get_rng_state(), state)


ONES = torch.ones(5, 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Batches(batch_size=2), TypeError, "tensors must hold at least one"),
        (lambda: Batches(ONES, torch.ones(4), batch_size=2), ValueError, r"got \[5, 4\]"),
        (lambda: Batches(ONES[:0], batch_size=2), ValueError, "at least one"),
        (lambda: Batches([1, 2], batch_size=2), TypeError, r"tensors\[0\] must be a tensor"),
        (lambda: Batches(ONES, batch_size=0), ValueError, "batch_size must be an integer >= 1"),
        (lambda: Batches(ONES, batch_size=2, shuffle=True), ValueError, "seed must be given"),
        (lambda: Batches(ONES, batch_size=6, drop_last=True), ValueError, "got 6 for 5 rows"),
        (
            lambda: Batches(ONES, batch_size=2, transform=Augment()),
            TypeError,
            "training data take it as augment=",
        ),
        (
            lambda: Batches(ONES, batch_size=2, seed=0, augment=Augment()),
            ValueError,
            "augment is for training data: it needs shuffle=True",
        ),
        (
            lambda: Batches(ONES, batch_size=2, shuffle=True, seed=0, augment=torch.relu),
            TypeError,
            "augment must be an Augment",
        ),
        (
            lambda: Batches(ONES, batch_size=2, seed=0, weights=torch.ones(5)),
            ValueError,
            "weights is for training data",
        ),
        (
            lambda: Batches(ONES, batch_size=2, shuffle=True, seed=0, weights=torch.ones(4)),
            ValueError,
            r"weights must be \[5\], got float32 \[4\]",
        ),
        (
            lambda: Batches(ONES, batch_size=2, shuffle=True, seed=0, weights=-torch.ones(5)),
            ValueError,
            "weights must be finite",
        ),
        (
            lambda: Batches(ONES, batch_size=2).load_state_dict({"epoch": 0, "batch": 3}),
            ValueError,
            "less than the 3 batches of an epoch, got 3",
        ),
        (lambda: Batches(ONES, batch_size=2).load_state_dict({}), ValueError, "state must have"),
    ],
)
def test_errors_name_the_argument(call, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        call()


def test_shards_of_training_batches_make_the_batch() -> None:
    x = torch.arange(50)
    whole = Batches(x, batch_size=12, shuffle=True, seed=3)
    parts = [whole.shard(rank, 2) for rank in range(2)]
    for epoch in range(2):
        for joint, one, other in zip(whole, *parts, strict=True):
            assert torch.equal(torch.cat((one[0], other[0])), joint[0]), epoch


def test_shards_have_equal_sizes_and_lose_the_remainder_only() -> None:
    whole = Batches(torch.arange(20), batch_size=7, shuffle=True, seed=3)
    parts = [list(whole.shard(rank, 3)) for rank in range(3)]
    assert [[len(rows) for (rows,) in part] for part in parts] == [[2, 2, 2]] * 3
    seen = torch.cat([rows for part in parts for (rows,) in part])
    assert len(seen.unique()) == 18
    with pytest.raises(ValueError, match=r"at most the rows of the smallest batch, 1, got 2"):
        Batches(torch.arange(8), batch_size=7, shuffle=True, seed=3).shard(0, 2)


def test_shards_of_evaluation_batches_cover_every_row_once() -> None:
    whole = Batches(torch.arange(11), batch_size=3)
    seen = [rows for rank in range(4) for (rows,) in whole.shard(rank, 4)]
    assert sorted(torch.cat(seen).tolist()) == list(range(11))


def test_shards_are_augmented_differently() -> None:
    images = torch.randint(256, (1, 1, 8, 8), dtype=torch.uint8).expand(64, -1, -1, -1)
    whole = Batches(images, batch_size=64, shuffle=True, seed=0, augment=Augment(pad=2))
    one, other = (next(iter(whole.shard(rank, 2)))[0] for rank in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        (2, 2, "rank must be less than world=2, got 2"),
        (-1, 2, "rank must be an integer >= 0"),
        (0, 0, "world must be an integer >= 1"),
    ],
)
def test_wrong_shards(rank: int, world: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(torch.arange(8), batch_size=4).shard(rank, world)
