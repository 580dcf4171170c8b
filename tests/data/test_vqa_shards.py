"""Region features in shards: the same as in files of pictures, by any process that reads them."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner
from vqa_files import FEATURES, regions, write_v2

from gflowout.cli import commands
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.vqa import PackedRegions, VQABatches, VQASet, pack, v2
from gflowout.data.vqa.shards import INDEX, SHARD_BYTES

NAMES = [f"{number}.npz" for number in range(7)]


def made(count: int = 7, width: int = 5) -> list[torch.Tensor]:
    """Features of pictures with one to four regions."""
    source = torch.Generator().manual_seed(0)
    return [torch.rand(n % 4 + 1, width, generator=source) + 0.1 for n in range(count)]


@pytest.mark.parametrize("shard_bytes", [1, 100, SHARD_BYTES])
def test_pictures_come_back_whatever_the_size_of_shards(tmp_path: Path, shard_bytes: int) -> None:
    features = made()
    pack(NAMES, iter(features), tmp_path, shard_bytes=shard_bytes)
    counts = {1: 7, SHARD_BYTES: 1}
    shards = sorted(tmp_path.glob("shard-*"))
    assert len(shards) == counts.get(shard_bytes, len(shards))
    assert len(shards) == 1 or all(path.stat().st_size <= max(40, shard_bytes) for path in shards)
    wanted = [NAMES[number] for number in (5, 0, 6, 3)]
    packed = PackedRegions(tmp_path, wanted, regions=3, features=5)
    assert len(packed) == 4
    found = packed[torch.tensor([3, 0, 2, 0])]
    assert found.dtype == torch.float32
    for row, number in zip(found, (3, 5, 6, 5), strict=True):
        rows = features[number][:3]
        torch.testing.assert_close(row[: len(rows)], rows, rtol=2**-11, atol=0)
        assert not row[len(rows) :].any()


def test_only_what_is_asked_for_is_open_and_nothing_is_copied(tmp_path: Path) -> None:
    pack(NAMES, made(), tmp_path, shard_bytes=1)
    packed = PackedRegions(tmp_path, NAMES, regions=4, features=5)
    whole = packed[torch.arange(7)]
    (tmp_path / "shard-00002.f16").unlink()
    again = pickle.loads(pickle.dumps(packed))
    assert torch.equal(again[torch.tensor([0, 6])], whole[[0, 6]])
    with pytest.raises(MissingDataError, match=r"shard-00002\.f16: no such shard"):
        again[torch.tensor([2])]
    found = packed[torch.tensor([0])]
    found.zero_()
    assert torch.equal(packed[torch.tensor([0])], whole[:1])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (made(6), "features must be as many as names, 7, got 6"),
        ([torch.ones(2, 3), torch.ones(2, 4)], r"picture 1 must have shape \[regions, 3\]"),
        ([torch.ones(0, 3)], r"picture 0 must have shape \[regions, 3\], got \[0, 3\]"),
        ([torch.full((1, 3), 1e5)], "picture 0 must be finite in half precision.*100000"),
    ],
)
def test_what_cannot_be_packed(tmp_path: Path, features: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(NAMES, features, tmp_path)
    assert not (tmp_path / INDEX).exists()  # so it is not taken for complete


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    pack(NAMES, made(), tmp_path)
    with pytest.raises(DataError, match=r"has 5 numbers per region, not 6; .*features="):
        PackedRegions(tmp_path, NAMES, features=6)
    with pytest.raises(MissingDataError, match="no picture 'other'"):
        PackedRegions(tmp_path, ["other"], features=5)
    shard = tmp_path / "shard-00000.f16"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"shard-00000\.f16: must have 160 bytes, has 158; pack"):
        PackedRegions(tmp_path, NAMES, features=5)[torch.tensor([0])]
    index = json.loads((tmp_path / INDEX).read_text())
    for broken in ({**index, "format": 9}, {**index, "rows": [1]}, {**index, "shards": [9]}):
        (tmp_path / INDEX).write_text(json.dumps(broken))
        with pytest.raises(DataError, match="no index of format 1"):
            PackedRegions(tmp_path, NAMES, features=5)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        PackedRegions(tmp_path, NAMES, features=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_v2(tmp_path / "vqa_v2")


def loaded(folder: Path) -> VQASet:
    return v2.load("train", folder, features=FEATURES, regions=4, min_count=0)


def test_v2_is_packed_once_and_then_read_from_shards(folder: Path) -> None:
    files = loaded(folder)
    assert v2.pack(folder, features=FEATURES, progress=False) == folder / "packed"
    packed = loaded(folder)
    assert isinstance(packed.visual, PackedRegions)
    rows = [2, 0, 3, 0]
    torch.testing.assert_close(packed.batch(rows)[0], files.batch(rows)[0], rtol=2**-11, atol=1e-7)
    for part in ("train2014", "val2014"):  # files of pictures are not needed any more
        for path in (folder / part).iterdir():
            path.unlink()
    assert torch.equal(loaded(folder).batch(rows)[0], packed.batch(rows)[0])
    moved = (folder / "packed").rename(folder.parent / "elsewhere")
    named = v2.load("train", folder, features=FEATURES, min_count=0, features_dir=moved)
    assert torch.equal(named.batch(rows)[0][:, :4], packed.batch(rows)[0])


def test_the_command_packs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(v2.pack.__kwdefaults__, "features", FEATURES)
    done = CliRunner().invoke(commands.app, ["data", "pack", "--data-dir", str(folder), "--quiet"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{folder / 'packed'}: ")
    index = json.loads((folder / "packed" / INDEX).read_text())
    assert index["rows"] == [len(regions(image)) for image in (9, 25, 42)]
    (folder / "train2014" / index["names"][0].split("/")[1]).unlink()
    done = CliRunner().invoke(commands.app, ["data", "pack", "--data-dir", str(folder)])
    assert done.exit_code == 1
    assert "no such file of region features" in done.output


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
def test_workers_give_the_batches_of_one_process(folder: Path) -> None:
    v2.pack(folder, features=FEATURES, progress=False)
    many = loaded(folder).subset([0, 1, 2, 3] * 6)
    options = {"batch_size": 5, "shuffle": True, "seed": 3, "noise": 0.5}
    alone, ahead = (VQABatches(many, **options, workers=n) for n in (0, 2))
    before = torch.get_rng_state()
    for _ in range(2):  # epochs, each in an order of its own
        for one, other in zip(alone, ahead, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    for batches in (alone, ahead):
        batches.load_state_dict({"epoch": 1, "batch": 3})
    assert torch.equal(next(iter(alone))[0], next(iter(ahead))[0])
    assert ahead.state_dict() == {"epoch": 1, "batch": 4}
    with pytest.raises(ValueError, match="workers must be an integer >= 0, got -1"):
        VQABatches(many, batch_size=5, workers=-1)
