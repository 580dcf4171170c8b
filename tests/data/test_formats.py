"""Single files: what is read is what was written, and everything odd is an error that says so."""

import contextlib
import gzip
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import pixels, write_cifar10, write_cifar_c, write_idx, write_svhn
from hypothesis import given
from hypothesis import strategies as st

from gflowout.data import formats
from gflowout.data.errors import DataError
from gflowout.data.formats import read_matlab


@pytest.mark.parametrize("name", ["a-idx3-ubyte.gz", "a-idx3-ubyte"])
def test_idx_gives_back_the_bytes(tmp_path: Path, name: str) -> None:
    images = pixels(3, 1, 5)[:, 0]
    write_idx(tmp_path / name, images)
    assert torch.equal(formats.read_idx(tmp_path / name, 3), images)


def test_idx_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "images"
    write_idx(path, pixels(3, 1, 5)[:, 0])
    whole = path.read_bytes()
    for end in (0, 3, 4, 15, 16, 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"images: (starts with|cut short)"):
            formats.read_idx(path, 3)
    path.write_bytes(whole + b"x")
    with pytest.raises(DataError, match="too long; its header says 3x5x5 = 75 bytes, it has 76"):
        formats.read_idx(path, 3)


def test_idx_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    write_idx(path, torch.arange(4))
    with pytest.raises(DataError, match=r"starts with bytes 00 00 08 01.*starts with 00 00 08 03"):
        formats.read_idx(path, 3)
    path.write_bytes(bytes((0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0)))
    with pytest.raises(DataError, match="00 00 0d 01"):
        formats.read_idx(path, 1)
    write_idx(path, torch.zeros(0))
    with pytest.raises(DataError, match="holds no data"):
        formats.read_idx(path, 1)


def test_gzip_that_is_cut_short_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    write_idx(path, pixels(3, 1, 28)[:, 0])
    whole = path.read_bytes()
    for end in (5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"images\.gz: damaged gzip"):
            formats.read_idx(path, 3)
    path.write_bytes(whole[:-6] + bytes((whole[-6] ^ 1,)) + whole[-5:])
    with pytest.raises(DataError, match=r"damaged gzip .*CRC"):
        formats.read_idx(path, 3)


def test_cifar_gives_back_the_bytes(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    images, labels = formats.read_cifar(tmp_path / "data_batch_3", "labels")
    assert torch.equal(images, pixels(4, 3, 32, 3))
    assert labels.tolist() == [3, 4, 5, 6]
    names = formats.read_cifar_classes(tmp_path / "batches.meta", "label_names")
    assert names == tuple(f"class {label}" for label in range(10))


class _Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (_Evil(exec, ("raise SystemExit",)), "exec"),
        (_Evil(getattr, (b"", "decode")), "getattr"),
        (np.float64(1.0), "scalar"),
        (torch.zeros(1), "torch"),
    ],
)
def test_pickles_that_name_other_code_are_refused(
    tmp_path: Path, value: object, named: str
) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": value, b"labels": []}, protocol=2))
    with pytest.raises(DataError, match=f"names .*{named}.*was not run. Do not trust"):
        formats.read_cifar(path, "labels")


def test_pickle_with_a_damaging_codec_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.")
    with pytest.raises(DataError, match="names the encoding 'rot13'"):
        formats.read_cifar(path, "labels")


def test_pickle_cannot_change_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for name in (b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"):
        path.write_bytes(b"\x80\x02" + name + b"}X\x01\x00\x00\x00aK\x01sb.")
        with pytest.raises(DataError, match=r"batch: not a pickle"):
            formats.read_cifar(path, "labels")
    assert not any(hasattr(stand_in, "a") for stand_in in formats._STAND_INS.values())


def test_pickle_that_is_cut_short(tmp_path: Path) -> None:
    write_cifar10(tmp_path, batches=(1,))
    path = tmp_path / "data_batch_1"
    whole = path.read_bytes()
    for end in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="data_batch_1: not a pickle, or cut short"):
            formats.read_cifar(path, "labels")


@given(st.binary(max_size=200))
def test_any_bytes_give_an_error_and_never_something_else(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        with pytest.raises(DataError, match="file: "):
            formats.read_cifar(path, "labels")
        with pytest.raises(DataError, match="file: "):
            formats.read_idx(path, 3)
        with pytest.raises(DataError, match="file: "):
            formats.read_severity(path, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": None}, "'data' must be an array, got NoneType"),
        ({b"data": np.zeros((2, 3), np.uint8)}, r"must be \[N, 3072\], got \[2, 3\]"),
        ({b"data": np.zeros((4, 3072), np.float32)}, "must be bytes"),
        ({b"data": np.zeros((3072, 4), np.uint8).T}, "in C order"),
        ({b"labels": [1, 2]}, "has 4 pictures and 2 labels"),
        ({b"labels": b"no"}, "'labels' must be a list of integers"),
        ({b"labels": ["0"] * 4}, "'labels' must be a list of integers"),
    ],
)
def test_cifar_with_other_content(
    tmp_path: Path, change: dict[bytes, object], message: str
) -> None:
    path = tmp_path / "batch"
    content = {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 4} | change
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=message):
        formats.read_cifar(path, "labels")


def test_cifar_without_its_keys(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    with pytest.raises(DataError, match="has no 'fine_labels', only 'batch_label', 'data'"):
        formats.read_cifar(tmp_path / "test_batch", "fine_labels")
    (tmp_path / "list").write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match="must hold a dictionary, got list"):
        formats.read_cifar_classes(tmp_path / "list", "label_names")
    (tmp_path / "names").write_bytes(pickle.dumps({"label_names": [1]}))
    with pytest.raises(DataError, match="'label_names' must be a list of names"):
        formats.read_cifar_classes(tmp_path / "names", "label_names")


def test_array_whose_shape_does_not_fit_its_bytes(tmp_path: Path) -> None:
    whole = pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 4}, protocol=2)
    path = tmp_path / "batch"
    path.write_bytes(whole.replace(b"K\x04M\x00\x0c\x86", b"K\x05M\x00\x0c\x86"))
    assert path.read_bytes() != whole
    with pytest.raises(DataError, match="a shape that does not fit its bytes"):
        formats.read_cifar(path, "labels")


def test_mat_gives_back_pictures_and_digits(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    images, labels = formats.read_mat(tmp_path / "test_32x32.mat")
    assert torch.equal(images, pixels(10, 3, 32, 1))
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_mat_that_is_damaged(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for content in (b"", b"not a file of MATLAB" * 20, whole[: len(whole) // 2], whole[:-3]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"test_32x32\.mat: (not a MATLAB|has no variable)"):
            formats.read_mat(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.zeros((32, 32, 3), np.uint8)}, r"X must be bytes of shape \[32, 32, 3, N\]"),
        ({"X": np.zeros((32, 32, 3, 2))}, "got float64"),
        ({"y": np.ones((3, 1))}, "has 2 pictures and 3 labels"),
        ({"y": np.zeros((2, 1))}, r"y must hold 1 to 10, got \[0\]"),
        ({"y": np.full((2, 1), 1.5)}, "y must hold whole numbers, got float64"),
        ({"y": np.array([["a"], ["b"]], object)}, "y must hold numbers, got MATLAB's class 1"),
        ({"y": np.ones((2, 1), np.complex64)}, "y must hold numbers, got MATLAB's class 7"),
    ],
)
def test_mat_with_other_content(tmp_path: Path, change: dict[str, object], message: str) -> None:
    from scipy.io import savemat

    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1))} | change
    savemat(tmp_path / "a.mat", content)
    with pytest.raises(DataError, match=message):
        formats.read_mat(tmp_path / "a.mat")
    savemat(tmp_path / "a.mat", {"X": content["X"]})
    with pytest.raises(DataError, match="has no variable 'y'"):
        formats.read_mat(tmp_path / "a.mat")


def test_mat_is_read_as_scipy_reads_it(tmp_path: Path) -> None:
    from scipy.io import loadmat, savemat

    path, draw = tmp_path / "a.mat", np.random.default_rng(0)
    kinds = "f8 f4 i1 u1 i2 u2 i4 u4 i8 u8".split()  # noqa: SIM905
    content = {kind: draw.integers(0, 100, (2, 3, 4)).astype(kind) for kind in kinds}
    content |= {"text": "abc", "cell": np.array([["a"], [1]], object), "none": np.zeros((0, 3))}
    for packed in (False, True):
        savemat(path, content, do_compression=packed)
        wanted, arrays = loadmat(path), read_matlab(path, [*kinds, "none", "missing"])
        assert arrays.keys() == {*kinds, "none"}
        for name, array in arrays.items():
            assert array.dtype == wanted[name].dtype
            assert np.array_equal(array, wanted[name])


def test_mat_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    from scipy.io import savemat

    path, draw = tmp_path / "a.mat", np.random.default_rng(0)
    for packed in (False, True):
        savemat(path, {"X": np.arange(6), "y": np.ones((2, 1))}, do_compression=packed)
        whole = path.read_bytes()
        for _ in range(500):
            damaged = bytearray(whole)
            for place in draw.integers(124, len(whole), draw.integers(1, 4)):
                damaged[place] = draw.integers(256)
            path.write_bytes(damaged)
            with contextlib.suppress(DataError):
                read_matlab(path, ["X", "y"])


def test_mat_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.mat"
    body = zlib.compress(struct.pack("<II", 14, 2**32 - 16) + bytes(10**6))
    head = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    path.write_bytes(head + struct.pack("<II", 15, len(body)) + body)
    with pytest.raises(DataError, match=r"bomb\.mat: \d+ bytes that unpack to 4294967288"):
        formats.read_mat(path)


def test_npy_gives_the_rows_of_one_severity(tmp_path: Path) -> None:
    write_cifar_c(tmp_path)
    rows = formats.read_severity(tmp_path / "snow.npy", 2)
    assert torch.equal(rows, pixels(15, 3, 32).permute(0, 2, 3, 1)[3:6])


def test_npy_of_the_other_byte_order(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(10, dtype=">i4"))
    assert formats.read_severity(tmp_path / "labels.npy", 2).tolist() == [2, 3]


def test_npy_that_is_odd(tmp_path: Path) -> None:
    path = tmp_path / "snow.npy"
    np.save(path, np.zeros((7, 2), np.uint8))
    with pytest.raises(DataError, match="rows for 5 severities"):
        formats.read_severity(path, 1)
    np.save(path, np.zeros((50, 20), np.uint8))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"snow\.npy: not an \.npy array, or cut short"):
        formats.read_severity(path, 1)
    for shape in (b"(5, 9999999999999999999), }", b"(5, 1" + b"0" * 30 + b"), }"):
        np.save(path, np.zeros((50, 20), np.uint8))
        right = b"(50, 20), }".ljust(len(shape))
        assert right in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(right, shape))
        with pytest.raises(DataError, match=r"not an \.npy array"):
            formats.read_severity(path, 1)
    np.save(path, np.array([{}] * 5), allow_pickle=True)
    with pytest.raises(DataError, match=r"not an .npy array"):
        formats.read_severity(path, 1)


def test_gzip_inside_is_what_counts_not_the_name(tmp_path: Path) -> None:
    images = pixels(2, 1, 4)[:, 0]
    write_idx(tmp_path / "a.gz", images)
    (tmp_path / "b").write_bytes((tmp_path / "a.gz").read_bytes())
    (tmp_path / "c.gz").write_bytes(gzip.decompress((tmp_path / "a.gz").read_bytes()))
    assert torch.equal(formats.read_idx(tmp_path / "b", 3), images)
    assert torch.equal(formats.read_idx(tmp_path / "c.gz", 3), images)
