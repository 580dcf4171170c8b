"""Tiny image files in the exact published formats, for the tests to make and to damage."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import torch

from gflowout.data import formats, ratings


def pixels(count: int, channels: int, side: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side), generator=generator).byte()


def write_idx(path: Path, values: torch.Tensor) -> None:
    header = bytes((0, 0, 8, values.dim()))
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    content = header + sizes + values.byte().numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, count: int = 6, suffix: str = ".gz") -> torch.Tensor:
    """Both splits; returns the training images."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, part in enumerate(("train", "t10k")):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", pixels(count, 1, 28, seed)[:, 0])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", torch.arange(count) % 10)
    return pixels(count, 1, 28, 0)


def write_cifar10(folder: Path, count: int = 4, batches: tuple[int, ...] = (1, 2, 3, 4, 5)) -> None:
    """As the published archive unpacks; the pictures of batch i are those of seed i, of test 6."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {f"data_batch_{batch}": batch for batch in batches} | {"test_batch": 6}
    for name, seed in names.items():
        content = {
            b"batch_label": b"a batch",
            b"labels": [(seed + place) % 10 for place in range(count)],
            b"data": pixels(count, 3, 32, seed).reshape(count, -1).numpy(),
            b"filenames": [b"x.png"] * count,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {b"label_names": [f"class {label}".encode() for label in range(10)], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))


def write_cifar100(folder: Path, count: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("train", "test")):
        content = {
            "fine_labels": [99 - place for place in range(count)],
            "coarse_labels": [19 - place for place in range(count)],
            "data": pixels(count, 3, 32, seed).reshape(count, -1).numpy(),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {
        "fine_label_names": [f"fine {label}" for label in range(100)],
        "coarse_label_names": [f"coarse {label}" for label in range(20)],
    }
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))


def write_svhn(folder: Path, count: int = 10) -> None:
    """Labels 1 to 10, where 10 stands for the digit 0."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("train", "test")):
        images = pixels(count, 3, 32, seed).permute(2, 3, 1, 0).numpy()
        labels = (np.arange(count) % 10 + 1).reshape(-1, 1).astype("uint8")
        savemat(folder / f"{name}_32x32.mat", {"X": images, "y": labels}, do_compression=True)


def write_cifar_c(folder: Path, count: int = 3, kinds: tuple[str, ...] = ("snow",)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        np.save(folder / f"{kind}.npy", pixels(5 * count, 3, 32).permute(0, 2, 3, 1).numpy())
    np.save(folder / "labels.npy", np.tile(np.arange(count), 5).astype("uint8"))


def write_first(folder: Path, source: Path, count: int) -> None:
    """The first pictures and labels of each file of MNIST, notMNIST or CIFAR, and no other file."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*-ubyte*"):
        axes = int(path.name.partition("-idx")[2][0])
        write_idx(folder / path.name, formats.read_idx(path, axes)[:count])
    for name in ("data_batch_*", "test_batch", "train", "test"):
        for path in source.glob(name):
            fine, coarse = ("fine_labels", "coarse_labels") if len(name) < 6 else ("labels", "")
            images, labels = formats.read_cifar(path, fine)
            content = {fine: labels[:count].tolist(), "data": images[:count].flatten(1).numpy()}
            if coarse:
                content[coarse] = formats.read_cifar(path, coarse)[1][:count].tolist()
            (folder / path.name).write_bytes(pickle.dumps(content, protocol=2))
    for path in source.glob("*meta"):
        (folder / path.name).write_bytes(path.read_bytes())


def write_vader(folder: Path, count: int = 40) -> None:
    """So many sentences of each kind, two of each source but for tweets; good, bad or neither."""
    path = folder / ratings.ARCHIVE
    path.parent.mkdir(parents=True, exist_ok=True)
    words = {"bad awful": -2.1, "plain usual": 0.1, "good great": 1.9}
    with tarfile.open(path, "w:gz") as archive:
        for domain, name in ratings.DOMAINS.items():
            lines = []
            for place in range(count):
                mood, value = list(words.items())[place % 3]
                number = place + 1 if domain == "tweets" else f"{place // 2 + 1}_{place % 2 + 1}"
                lines.append(f"{number}\t{value}\tthe {domain} were {mood}, said people.\n")
            content = "".join(lines).encode()
            entry = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
