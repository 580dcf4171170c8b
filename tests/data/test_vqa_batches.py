"""Batches of questions: their order, their noise, and training with them."""

from pathlib import Path

import pytest
import torch
from torch import nn
from vqa_files import FEATURES, write_rad, write_v2

import gflowout as gfo
from gflowout.backbones import MCAN
from gflowout.data.shifts import feature_noise
from gflowout.data.vqa import VQABatches, VQASet, rad, v2


@pytest.fixture
def regions(tmp_path: Path) -> VQASet:
    """Four questions about two pictures, with region features that are read on demand."""
    folder = write_v2(tmp_path / "vqa_v2")
    return v2.load("train", folder, features=FEATURES, regions=4, min_count=0)


@pytest.fixture
def many(regions: VQASet) -> VQASet:
    return regions.subset([0, 1, 2, 3] * 8)


@pytest.fixture
def pictures(tmp_path: Path) -> VQASet:
    write_rad(tmp_path / "vqa_rad")
    return rad.load("train", tmp_path, size=8)


def same(left, right) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_without_shuffling_they_are_the_batches_of_the_set(regions: VQASet) -> None:
    batches = VQABatches(regions, batch_size=3)
    assert len(batches) == 2
    assert same(batches, [regions.batch([0, 1, 2]), regions.batch([3])])
    assert len(VQABatches(regions, batch_size=3, drop_last=True)) == 1


def test_an_epoch_has_every_question_once_in_an_order_of_its_own(many: VQASet) -> None:
    batches = VQABatches(many, batch_size=5, shuffle=True, seed=0)
    for epoch in range(2):
        expected = [many.batch(rows) for rows in batches.order(epoch).split(5)]
        assert sorted(batches.order(epoch).tolist()) == list(range(32))
        assert same(batches, expected)
    assert not torch.equal(batches.order(0), batches.order(1))
    first = list(VQABatches(many, batch_size=5, shuffle=True, seed=0))
    batches.set_epoch(0)
    assert same(batches, first)
    batches.load_state_dict({"epoch": 0, "batch": 4})
    assert same(batches, first[4:])


def test_shares_of_two_processes_are_together_the_whole(many: VQASet) -> None:
    for options in ({"shuffle": True, "seed": 0}, {}):
        whole = VQABatches(many, batch_size=8, noise=0.5, **{"seed": 1} | options)
        parts = [list(whole.shard(rank, 2)) for rank in (0, 1)]
        found = torch.cat([visual for part in parts for visual, _, _ in part])
        expected = torch.cat([visual for visual, _, _ in whole])
        assert sorted(found.flatten(1).tolist()) == sorted(expected.flatten(1).tolist())


def test_a_picture_has_one_noise(many: VQASet) -> None:
    clean = {int(many.image_index[row]): many.batch([row])[0][0] for row in (0, 2)}
    batches = VQABatches(many, batch_size=5, shuffle=True, seed=3, noise=0.5)
    noises: dict[int, torch.Tensor] = {}
    for epoch in range(2):
        shown = many.image_index[batches.order(epoch)].tolist()
        for picture, found in zip(
            shown, torch.cat([visual for visual, _, _ in batches]), strict=True
        ):
            noise = noises.setdefault(picture, found - clean[picture])
            assert torch.equal(found - clean[picture], noise)
            padded = (clean[picture] == 0).all(-1)
            assert not found[padded].any()
    assert len(noises) == 2
    assert not torch.equal(noises[0][0], noises[1][0])  # the first region is real in both
    # The same by hand, and in a set of some of the questions.
    by_hand = feature_noise(
        many.batch([7])[0], 0.5, seed=3, index=many.image_index[torch.tensor([7])]
    )
    (alone,) = VQABatches(many.subset([7]), batch_size=1, seed=3, noise=0.5)
    assert torch.equal(alone[0], by_hand)
    (other,) = VQABatches(many.subset([7]), batch_size=1, seed=4, noise=0.5)
    assert not torch.equal(other[0], by_hand)


def test_grid_features_of_pictures_get_noise_after_their_encoder(pictures: VQASet) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Flatten(2))
    batches = VQABatches(pictures, batch_size=9, seed=0, transform=encoder, noise=0.1)
    ((grid, tokens, scores),) = batches
    images, *rest = pictures.batch(slice(None))
    assert same([(tokens, scores)], [rest])
    with torch.no_grad():
        clean = encoder(images)
    assert torch.equal(grid, feature_noise(clean, 0.1, seed=0, index=pictures.image_index))
    assert not grid.requires_grad
    first, second = (pictures.image_index == 0).nonzero().flatten()[:2].tolist()
    assert torch.equal(grid[first], grid[second])


def test_batches_leave_the_global_generator_alone(many: VQASet) -> None:
    state = torch.get_rng_state()
    list(VQABatches(many, batch_size=5, shuffle=True, seed=3, noise=0.5))
    assert torch.equal(torch.get_rng_state(), state)


def test_errors_name_the_argument(regions: VQASet, pictures: VQASet) -> None:
    with pytest.raises(ValueError, match="seed must be given with shuffle=True"):
        VQABatches(regions, batch_size=2, shuffle=True)
    with pytest.raises(ValueError, match=r"seed must be given with noise=0\.5"):
        VQABatches(regions, batch_size=2, noise=0.5)
    with pytest.raises(ValueError, match="noise must be"):
        VQABatches(regions, batch_size=2, noise=-1, seed=0)
    with pytest.raises(ValueError, match="noise is for features, and the set has pictures"):
        VQABatches(pictures, batch_size=2, noise=0.5, seed=0)
    with pytest.raises(ValueError, match="questions must hold at least one"):
        VQABatches(regions.subset([]), batch_size=2)
    with pytest.raises(TypeError, match="questions must be a VQASet, got Tensor"):
        VQABatches(torch.ones(2), batch_size=2)
    with pytest.raises(TypeError, match="transform must be callable"):
        VQABatches(regions, batch_size=2, transform=3)


def test_fit_trains_mcan(many: VQASet) -> None:
    pytest.importorskip("lightning")
    from gflowout.training import FitOptions, fit

    def trained() -> tuple[list[dict[str, float]], torch.Tensor]:
        torch.manual_seed(0)
        net = MCAN(20, many.classes, FEATURES, width=16, heads=2, layers=1, embedding_size=8)
        model = gfo.wrap(
            net,
            "mc",
            net.sites,
            likelihood=gfo.MultiLabel(many.classes),
            example=many.batch([0, 1])[:2],
        )
        train = VQABatches(many, batch_size=8, shuffle=True, seed=0)
        valid = VQABatches(many.subset(slice(0, 4)), batch_size=4)
        options = FitOptions(epochs=2, lr=1e-2, valid_samples=2, accelerator="cpu")
        result = fit(model, train, valid, options, progress=False)
        return result.history, torch.cat([p.detach().flatten() for p in net.parameters()])

    with torch.random.fork_rng():
        history, weights = trained()
        _, again = trained()
    assert len(history) == 2
    assert history[1]["valid/nll"] < history[0]["valid/nll"]
    assert torch.equal(weights, again)
