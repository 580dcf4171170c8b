"""Small data of the kinds that users bring, for the tests of the pipeline and its commands."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from data_files import write_idx
from PIL import Image


def patients(count: int = 120, seed: int = 0) -> pd.DataFrame:
    """Mixed columns with gaps; who is old or in unit "c" mostly died."""
    random = np.random.default_rng(seed)
    age = random.normal(60, 15, count)
    unit = random.choice(["a", "b", "c"], count)
    odds = (age - 60) / 8 + 2 * (unit == "c") - 1
    frame = pd.DataFrame(
        {
            "age": age.round(1),
            "unit": unit,
            "ward": random.integers(1, 4, count),
            "smoker": random.random(count) < 0.4,
            "lactate": np.where(random.random(count) < 0.2, np.nan, random.gamma(2, 1, count)),
            "days": (3 + age / 10 + random.normal(0, 0.5, count)).round(2),
            "died": np.where(odds + random.logistic(size=count) > 0, "yes", "no"),
        }
    )
    frame.loc[3, "unit"] = None
    return frame


def write_digits(root: Path, count: int = 200) -> Path:
    """A little MNIST that can be learned: a bright bar whose place is the label."""
    folder = root / "mnist"
    folder.mkdir(parents=True)
    for seed, part in enumerate(("train", "t10k")):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % 10
        images = torch.randint(0, 60, (count, 28, 28), generator=generator)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 4 : 2 * label + 6] += 180
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return root


def write_pictures(folder: Path, count: int = 12, size: int = 10) -> None:
    """Two classes of colour pictures: reddish and bluish."""
    random = np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / name).mkdir(parents=True)
        for place in range(count):
            pixels = random.integers(0, 80, (size, size, 3), dtype="uint8")
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(folder / name / f"{place:02d}.png")
