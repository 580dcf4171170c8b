"""Image sets: found in any of their folders, read whole, and checked against the real files."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    pixels,
    write_cifar10,
    write_cifar100,
    write_cifar_c,
    write_idx,
    write_mnist,
    write_svhn,
)

from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.images import (
    IMAGE_SETS,
    ImageSet,
    find_idx,
    load_corrupted,
    load_images,
)
from gflowout.data.store import ENTRIES, entry

IDX_SETS = ("mnist", "fashion-mnist", "kmnist", "notmnist")


@pytest.mark.parametrize("name", IDX_SETS)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_sets_in_each_of_their_folders(tmp_path: Path, name: str, suffix: str) -> None:
    for place, folder in enumerate(entry(name).folders):
        root = tmp_path / str(place)
        images = write_mnist(root / folder, suffix=suffix)
        found = load_images(name, "train", root)
        assert torch.equal(found.images, images)
        assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]
        assert torch.equal(load_images(name, "test", root).images, pixels(6, 1, 28, 1))
        assert len(found.classes) == 10


def test_the_folder_of_the_data_set_itself_is_good(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    assert len(load_images("mnist", "train", tmp_path / "mnist")) == 6
    with pytest.raises(MissingDataError, match="no kmnist here"):
        load_images("kmnist", "train", tmp_path / "mnist")


def test_a_folder_of_any_name_is_good_where_files_or_checksums_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path / "pictures")
    assert len(load_images("cifar10", "test", tmp_path / "pictures")) == 4
    write_mnist(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path / "mnist")
    assert len(load_images("mnist", "test", ".")) == 6
    (tmp_path / "mnist").rename(tmp_path / "digits")
    with pytest.raises(MissingDataError, match="no mnist here"):  # or is it fashion-mnist?
        load_images("mnist", "test", tmp_path / "digits")


def test_real_mnist_is_known_by_its_checksums(
    real_data: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "digits").symlink_to(real_data("mnist"))
    linked = tmp_path / "other"
    linked.mkdir()
    for path in real_data("mnist").iterdir():
        (linked / path.name).symlink_to(path)
    assert len(load_images("mnist", "test", linked)) == 10_000
    with pytest.raises(MissingDataError, match="no kmnist here"):
        load_images("kmnist", "test", linked)


def test_vqa_v2_in_the_layout_of_mcan(tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "vqa"
    folder.mkdir(parents=True)
    (folder / "v2_mscoco_train2014_annotations.json").write_text("{}")
    assert store.locate("vqa-v2", tmp_path) == tmp_path / "datasets"
    assert store.locate("vqa-v2", tmp_path / "datasets") == tmp_path / "datasets"


@pytest.mark.parametrize("inside", ["eicu-crd/2.0", "physionet.org/files/eicu-crd/2.0"])
def test_eicu_as_wget_leaves_it(tmp_path: Path, inside: str) -> None:
    folder = tmp_path / inside
    folder.mkdir(parents=True)
    (folder / "patient.csv.gz").write_bytes(b"x")
    assert store.locate("eicu", tmp_path) == folder
    assert store.locate("eicu", folder) == folder
    with pytest.raises(MissingDataError):
        store.locate("eicu-demo", folder)


def test_the_variable_names_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("GFLOWOUT_DATA", str(tmp_path))
    assert len(load_images("mnist", "train")) == 6
    monkeypatch.setenv("GFLOWOUT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError, match=r"nowhere: \$GFLOWOUT_DATA must name a directory"):
        load_images("mnist", "train")
    with pytest.raises(MissingDataError, match="data_dir must name a directory"):
        load_images("mnist", "train", tmp_path / "none")


def test_without_a_directory_the_cache_of_the_user_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"{tmp_path}/gflowout: no mnist here"):
        load_images("mnist", "train")


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="Run `gflowout data get svhn`") as caught:
        load_images("svhn", "test", tmp_path)
    assert "train_32x32.mat, test_32x32.mat or extra_32x32.mat" in str(caught.value)
    assert "sub-folders svhn or SVHN" in str(caught.value)
    with pytest.raises(MissingDataError, match="Get it by hand: access needs training"):
        store.locate("eicu", tmp_path)
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingDataError, match=r"mnist: misses t10k-labels-idx1-ubyte\.gz"):
        load_images("mnist", "test", tmp_path)
    assert len(load_images("mnist", "train", tmp_path)) == 6


def test_wrong_names_are_errors_that_list_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        load_images("minst", "train", tmp_path)
    with pytest.raises(ValueError, match="split must be one of 'train', 'test', got 'valid'"):
        load_images("mnist", "valid", tmp_path)
    with pytest.raises(ValueError, match="coarse=True is for 'cifar100' only"):
        load_images("cifar10", "train", tmp_path, coarse=True)
    with pytest.raises(ValueError, match="name must be one of 'cifar10-c', 'cifar100-c'"):
        load_corrupted("cifar10", "snow", 1, tmp_path)


def test_labels_of_another_set_are_an_error(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", torch.arange(5))
    with pytest.raises(DataError, match=r"6 pictures in .*, 5 labels in .*belong together"):
        load_images("mnist", "train", tmp_path)
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", torch.full((6,), 11))
    with pytest.raises(DataError, match=r"labels must be in \[0, 9\] for 10 classes"):
        load_images("mnist", "train", tmp_path)


def test_pictures_of_another_shape_are_an_error(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    images = torch.zeros(6, 14, 56)
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", images)
    with pytest.raises(DataError, match="pictures of mnist must be 28x28, got 14x56"):
        load_images("mnist", "train", tmp_path)
    write_cifar_c(tmp_path / "CIFAR-10-C")
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", np.zeros((15, 28, 28, 3), np.uint8))
    with pytest.raises(DataError, match=r"must be bytes \[5 N, 32, 32, 3\], got .*\[15, 28, 28"):
        load_corrupted("cifar10-c", "fog", 1, tmp_path)
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.arange(15) + 0.5)
    with pytest.raises(DataError, match=r"labels\.npy: must hold whole numbers, got float64"):
        load_corrupted("cifar10-c", "snow", 1, tmp_path)
    with pytest.raises(ValueError, match="use load_corrupted"):
        load_images("cifar10-c", "test", tmp_path)


def test_files_that_cannot_be_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").mkdir()
    with pytest.raises(MissingDataError, match=r"misses t10k-labels-idx1-ubyte\.gz"):
        load_images("mnist", "test", tmp_path)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); check its perm"):
        load_images("mnist", "train", tmp_path)


def test_loading_verifies_on_request(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    assert len(load_images("mnist", "train", tmp_path)) == 6
    with pytest.raises(DataError, match=r"train-images.*md5 is .*, the published file has f68b3c2"):
        load_images("mnist", "train", tmp_path, verify=True)


def test_real_files_pass_verification(real_data: Callable[[str], Path]) -> None:
    assert len(load_images("mnist", "test", real_data("mnist"), verify=True)) == 10_000


def test_parts_that_are_not_downloaded_are_said_to_be_so(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn")
    with pytest.raises(MissingDataError, match=r"`gflowout data get` leaves this part out: see"):
        load_images("svhn", "extra", tmp_path)


def test_cifar10_joins_its_batches_in_order(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    found = load_images("cifar10", "train", tmp_path)
    assert torch.equal(found.images, torch.cat([pixels(4, 3, 32, seed) for seed in range(1, 6)]))
    assert found.labels[:8].tolist() == [1, 2, 3, 4, 2, 3, 4, 5]
    assert found.classes[3] == "class 3"
    assert torch.equal(load_images("cifar10", "test", tmp_path).images, pixels(4, 3, 32, 6))


def test_cifar10_in_part_only_on_request(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar10", batches=(2, 4))
    with pytest.raises(
        MissingDataError, match=r"misses data_batch_1, data_batch_3, data_batch_5.*partial=True"
    ):
        load_images("cifar10", "train", tmp_path)
    found = load_images("cifar10", "train", tmp_path, partial=True)
    assert torch.equal(found.images, torch.cat([pixels(4, 3, 32, seed) for seed in (2, 4)]))
    (tmp_path / "cifar10" / "batches.meta").unlink()
    with pytest.raises(MissingDataError, match=r"batches\.meta: not there"):
        load_images("cifar10", "test", tmp_path)


def test_cifar100_fine_and_coarse(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-python")
    fine = load_images("cifar100", "train", tmp_path)
    assert (len(fine.classes), fine.labels.tolist()) == (100, [99, 98, 97, 96])
    coarse = load_images("cifar100", "train", tmp_path, coarse=True)
    assert (coarse.classes[19], coarse.labels.tolist()) == ("coarse 19", [19, 18, 17, 16])
    assert torch.equal(fine.images, coarse.images)


def test_svhn(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn")
    found = load_images("svhn", "train", tmp_path)
    assert torch.equal(found.images, pixels(10, 3, 32, 0))
    assert found.classes[int(found.labels[9])] == "0"
    with pytest.raises(MissingDataError, match=r"misses extra_32x32.mat"):
        load_images("svhn", "extra", tmp_path)


def test_published_corruptions(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    write_cifar_c(folder, kinds=("snow", "fog"))
    found = load_corrupted("cifar10-c", "fog", 5, tmp_path)
    assert torch.equal(found.images, pixels(15, 3, 32)[12:])
    assert found.labels.tolist() == [0, 1, 2]
    assert found.split == "fog-5"
    assert found.classes[3] == "cat"
    with pytest.raises(ValueError, match="corruption must be one of 'fog', 'snow', got 'frost'"):
        load_corrupted("cifar10-c", "frost", 5, tmp_path)
    with pytest.raises(ValueError, match="severity must be an integer from 1 to 5, got 6"):
        load_corrupted("cifar10-c", "fog", 6, tmp_path)
    (folder / "labels.npy").unlink()
    with pytest.raises(MissingDataError, match=r"labels\.npy: not there"):
        load_corrupted("cifar10-c", "fog", 5, tmp_path)


def test_checksums(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    for algorithm in ("md5", "sha256"):
        expected = hashlib.new(algorithm, b"content").hexdigest()
        store.verify(path, f"{algorithm}:{expected}")
    path.write_bytes(b"contenT")
    with pytest.raises(DataError, match=f"file: sha256 is .*, the published file has {expected}"):
        store.verify(path, f"sha256:{expected}")


def test_image_sets_refuse_what_does_not_fit() -> None:
    images, labels = pixels(2, 1, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="images must be uint8"):
        ImageSet(images.float(), labels, ("a", "b"), "x", "train")
    with pytest.raises(ValueError, match=r"labels must be int64 \[2\]"):
        ImageSet(images, labels[:1], ("a", "b"), "x", "train")
    with pytest.raises(ValueError, match="got labels from 0 to 1"):
        ImageSet(images, labels, ("a",), "x", "train")


def test_fingerprint_follows_the_content() -> None:
    images, labels = pixels(4, 1, 3), torch.tensor([0, 1, 0, 1])
    found = ImageSet(images, labels, ("a", "b"), "x", "train")
    same = ImageSet(images.clone(), labels.clone(), ("a", "b"), "x", "train")
    assert found.fingerprint() == same.fingerprint()
    assert found.relabelled(1 - labels).fingerprint() != found.fingerprint()
    assert found.subset(slice(2)).fingerprint() != found.fingerprint()


def test_every_entry_is_complete() -> None:
    assert set(IMAGE_SETS) == {*IDX_SETS, "cifar10", "cifar100", "svhn"}
    for name, found in ENTRIES.items():
        assert found.name == name
        assert found.licence
        assert found.citation
        assert found.home.startswith("http")
        assert found.downloads or found.by_hand
        for download in found.downloads:
            kind, _, value = download.checksum.partition(":")
            assert {"md5": len(value) == 32, "sha256": len(value) == 64, "sums": True}[kind]


# The files themselves, where there is a copy.


@pytest.mark.parametrize(
    ("name", "split", "count", "side"),
    [
        ("mnist", "train", 60_000, 28),
        ("mnist", "test", 10_000, 28),
        ("notmnist", "test", 10_000, 28),
        ("cifar10", "test", 10_000, 32),
        ("cifar100", "train", None, 32),
        ("cifar100", "test", 10_000, 32),
    ],
)
def test_real_files(
    real_data: Callable[[str], Path], name: str, split: str, count: int | None, side: int
) -> None:
    found = load_images(name, split, real_data(name))
    assert count is None or len(found) == count
    assert found.images.shape[2:] == (side, side)
    shares = found.labels.bincount(minlength=len(found.classes)) / len(found)
    assert float(shares.min()) > 0.85 / len(found.classes)
    assert len(found.classes) == (100 if name == "cifar100" else 10)


def test_real_mnist_is_the_one_everybody_knows(real_data: Callable[[str], Path]) -> None:
    train = load_images("mnist", "train", real_data("mnist"))
    scaled = train.images.double() / 255
    assert float(scaled.mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(scaled.std()) == pytest.approx(0.3081, abs=5e-5)
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_real_cifar10_is_the_one_everybody_knows(real_data: Callable[[str], Path]) -> None:
    test = load_images("cifar10", "test", real_data("cifar10"))
    known = ["cat", "ship", "ship", "airplane", "frog"]
    assert [test.classes[label] for label in test.labels[:5].tolist()] == known
    assert test.images[0, :, 0, 0].tolist() == [158, 112, 49]
    store.verify(real_data("cifar10") / "test_batch", "md5:40351d587109b95175f43aff81a1287e")


def test_real_cifar10_agrees_with_plain_unpickling(real_data: Callable[[str], Path]) -> None:
    import pickle

    folder = real_data("cifar10")
    plain = pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")
    found = load_images("cifar10", "train", folder, partial=True).subset(slice(10_000))
    assert torch.equal(found.images, torch.from_numpy(plain[b"data"]).view(-1, 3, 32, 32))
    assert found.labels.tolist() == plain[b"labels"]


def test_names_of_classes_are_those_of_the_meta_files(real_data: Callable[[str], Path]) -> None:
    for name in ("cifar10", "cifar100"):
        assert load_images(name, "test", real_data(name)).classes == entry(name).classes


def test_the_idx_file_of_a_folder_is_that_of_test_pictures(tmp_path: Path) -> None:
    assert find_idx(tmp_path) is None
    assert find_idx(tmp_path / "nowhere") is None
    write_mnist(tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    assert find_idx(tmp_path) == file
    assert find_idx(tmp_path / "train-images-idx3-ubyte.gz") != file
    assert find_idx(tmp_path / "t10k-labels-idx1-ubyte.gz") is None
    file.unlink()
    assert find_idx(tmp_path) == tmp_path / "train-images-idx3-ubyte.gz"
    (tmp_path / "more-idx3-ubyte").touch()
    with pytest.raises(DataError, match=r"several idx files of pictures, name one of more-idx3"):
        find_idx(tmp_path)
