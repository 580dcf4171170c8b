"""Our corruptions against the package imagecorruptions, on the same images and drawn numbers.

``python tests/corruption_parity.py --data-dir DIR`` prints the table of docs/guides/data.md.
The package is only an oracle: it works on one image at a time with NumPy, SciPy and OpenCV.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gflowout.data.corruptions import (
    KINDS,
    SEVERITIES,
    TABLES,
    apply_frost,
    apply_gaussian_noise,
    apply_snow,
    corrupt,
    snow_layer,
)
from gflowout.data.overlays import crop_overlays, fit_overlays

TABLE = TABLES["imagenet-c"]


@dataclass(frozen=True)
class Difference:
    """Differences in grey levels at one corruption and severity.

    Attributes:
        largest: Largest absolute difference of a pixel, same drawn numbers.
        mean: Mean absolute difference, same drawn numbers.
        equal: Share of pixels that are equal, same drawn numbers.
        means: Mean grey level of the oracle and of ours, with numbers of our own.
        stds: Standard deviation of the grey levels of the oracle and of ours.
    """

    largest: int
    mean: float
    equal: float
    means: tuple[float, float]
    stds: tuple[float, float]


def oracle(images: Tensor, kind: str, severity: int, seed: int) -> Tensor:
    """Corrupt with the package; image i with NumPy's generator seeded with ``seed + i``."""
    from imagecorruptions import corrupt as reference

    made = []
    for index, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        np.random.seed(seed + index)
        made.append(reference(image, severity=severity, corruption_name=kind))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def ours(images: Tensor, kind: str, severity: int, seed: int, overlays: list[Tensor]) -> Tensor:
    """Corrupt with our functions and the numbers that the package draws."""
    size = (images.shape[2], images.shape[3])
    states = [np.random.RandomState(seed + index) for index in range(len(images))]
    if kind == "gaussian_noise":
        shape = (*size, images.shape[1])
        normal = np.stack([state.standard_normal(shape) for state in states])
        normals = torch.from_numpy(normal).permute(0, 3, 1, 2)
        return apply_gaussian_noise(images, normals, TABLE.noise[severity - 1])
    if kind == "snow":
        normals = torch.from_numpy(np.stack([state.standard_normal(size) for state in states]))
        angles = torch.tensor([state.uniform(-135, -45) for state in states], dtype=torch.float64)
        layer = snow_layer(normals, angles, TABLE, severity)
        return apply_snow(images, layer, TABLE.snow[severity - 1].keep)
    fitted = fit_overlays(overlays[: TABLE.overlays], size, TABLE.shrink)
    places = []
    for state in states:
        which = state.randint(6)
        room = [have - need for have, need in zip(fitted[which].shape[1:], size, strict=True)]
        top, left = (state.randint(0, high) for high in room)
        places.append(((which + 0.5) / 6, (top + 0.5) / room[0], (left + 0.5) / room[1]))
    crops = crop_overlays(fitted, torch.tensor(places, dtype=torch.float64), size)
    return apply_frost(images, crops, *TABLE.frost[severity - 1])


def compare(images: Tensor, kind: str, severity: int, overlays: list[Tensor]) -> Difference:
    """Compare on the same numbers, and in distribution on others."""
    expected = oracle(images, kind, severity, seed=0)
    same = (ours(images, kind, severity, 0, overlays).int() - expected.int()).abs()
    own = corrupt(images, kind, severity, seed=1, constants="imagenet-c", overlays=overlays)
    return Difference(
        largest=int(same.max()),
        mean=float(same.double().mean()),
        equal=float((same == 0).double().mean()),
        means=(float(expected.double().mean()), float(own.double().mean())),
        stds=(float(expected.double().std()), float(own.double().std())),
    )


def main() -> None:
    """Print the table."""
    from gflowout.data.images import load_images
    from gflowout.data.overlays import load_overlays

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=None, help="directory of cifar10 and frost")
    parser.add_argument("--overlays-dir", default=None, help="directory of frost, if another one")
    parser.add_argument("--images", type=int, default=500)
    arguments = parser.parse_args()
    overlays = load_overlays(arguments.overlays_dir or arguments.data_dir)
    images = load_images("cifar10", "test", arguments.data_dir).images[: arguments.images]
    print("| corruption | severity | max | mean | equal % | mean grey | ours | std | ours |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for severity in SEVERITIES:
            d = compare(images, kind, severity, overlays)
            print(
                f"| {kind} | {severity} | {d.largest} | {d.mean:.5f} | {100 * d.equal:.3f} "
                f"| {d.means[0]:.2f} | {d.means[1]:.2f} | {d.stds[0]:.2f} | {d.stds[1]:.2f} |"
            )


if __name__ == "__main__":
    main()
