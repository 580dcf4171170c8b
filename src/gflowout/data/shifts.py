"""Rotations, label noise and feature noise: pure functions of tensors and a seed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks, random
from gflowout.data.errors import check_images, check_labels, check_tensor, describe

_BLOCK = 512  # images that are rotated at once
_ROWS = 64  # rows of features that are processed at once


def draw_angles(count: int, *, seed: int, low: float = 0, high: float = 360) -> Tensor:
    """Draw the angles of :func:`rotate`, in degrees and uniform in [low, high), float64 [count]."""
    checks.integer("count", count, low=0)
    low = checks.number("low", low)
    high = checks.number("high", high, low=low)
    drawn = torch.rand(count, dtype=torch.float64, generator=random.generator(seed, "rotate"))
    return low + (high - low) * drawn


def rotate(images: Tensor, *, seed: int, low: float = 0, high: float = 360) -> Tensor:
    """Rotate each image of uint8 [N, C, H, W] by its own angle.

    See :func:`draw_angles` and :func:`rotate_by`. The angle of an image depends on the seed and its
    position, not on the number of images.

    Examples:
        >>> images = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
        >>> by_hand = rotate_by(images, draw_angles(3, seed=0))
        >>> torch.equal(rotate(images, seed=0), by_hand)
        True
    """
    check_images("images", images)
    return rotate_by(images, draw_angles(len(images), seed=seed, low=low, high=high))


def rotate_by(images: Tensor, degrees: Tensor | float) -> Tensor:
    """Rotate images counterclockwise about their centre: bilinear, zeros from outside, same size.

    ``degrees`` is one angle for all images uint8 [N, C, H, W], or one per image, [N].

    Examples:
        >>> square = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
        >>> rotate_by(square, 90)
        tensor([[[[2, 4],
                  [1, 3]]]], dtype=torch.uint8)
    """
    check_images("images", images)
    count, _, height, width = images.shape
    if isinstance(degrees, Tensor):
        if degrees.shape != (count,) or not bool(degrees.isfinite().all()):
            expected = f"a number or finite and [{count}]"
            raise ValueError(f"degrees must be {expected}, got {describe(degrees)}")
        angles = degrees.double()
    else:
        angles = torch.full((count,), checks.number("degrees", degrees), dtype=torch.float64)
    radians = torch.deg2rad(angles)
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    result = torch.empty_like(images)
    for start in range(0, count, _BLOCK):
        part = slice(start, start + _BLOCK)
        sine, cosine = radians[part].sin()[:, None, None], radians[part].cos()[:, None, None]
        # From centred pixels to the coordinates of grid_sample, -1 to 1 between the edges.
        grid = torch.stack(
            [2 / width * (cosine * x - sine * y), 2 / height * (sine * x + cosine * y)], -1
        )
        rotated = F.grid_sample(
            images[part].float(), grid.float(), padding_mode="zeros", align_corners=False
        )
        result[part] = rotated.round_().to(torch.uint8)
    return result


def label_noise(
    labels: Tensor, fraction: float, classes: int, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw new labels for a fraction of the points, uniformly over all classes.

    Exactly round(fraction N) of the labels, int64 [N], are drawn. A new label can be the old one,
    so about fraction (1 - 1/classes) of them change. Returns the new labels and which points were
    drawn, bool [N]. Draw the noise once for a training set, not in each epoch.

    Examples:
        >>> labels = torch.zeros(1000, dtype=torch.int64)
        >>> noisy, drawn = label_noise(labels, 0.3, 10, seed=0)
        >>> int(drawn.sum()), bool((noisy[~drawn] == 0).all())
        (300, True)
    """
    check_labels("labels", labels)
    fraction = checks.number("fraction", fraction, low=0, high=1)
    classes = checks.integer("classes", classes, low=1)
    if len(labels) and int(labels.max()) >= classes:
        raise ValueError(f"labels must be less than classes={classes}, got {int(labels.max())}")
    generator = random.generator(seed, "label_noise")
    count = round(fraction * len(labels))
    points = torch.randperm(len(labels), generator=generator)[:count]
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    drawn[points] = True
    noisy = labels.clone()
    noisy[points] = torch.randint(classes, (count,), generator=generator)
    return noisy, drawn


def feature_noise(
    features: Tensor,
    scale: float,
    *,
    seed: int,
    mask: Tensor | None = None,
    index: Tensor | None = None,
) -> Tensor:
    """Add Gaussian noise to the features of image regions; padded regions stay exactly zero.

    The noise of a row depends on the seed and the number of the row only. With the numbers of
    pictures as ``index``, a picture has the same noise in every batch.

    Args:
        features: Floating point [N, R, D]: N examples, R regions, D features.
        scale: Standard deviation of the noise.
        seed: Seed of the noise.
        mask: Which regions are real, bool [N, R]; by default those that are not all zero.
        index: Number of each row, int64 [N]; by default 0 to N - 1.

    Examples:
        >>> features = torch.ones(2, 3, 4)
        >>> features[1, 2] = 0
        >>> noisy = feature_noise(features, 0.5, seed=0)
        >>> (noisy != 0).all(-1).tolist()
        [[True, True, True], [True, True, False]]
        >>> alone = feature_noise(features[1:], 0.5, seed=0, index=torch.tensor([1]))
        >>> torch.equal(alone, noisy[1:])
        True
    """
    expected = "floating point [N, R, D]"
    check_tensor("features", features, expected)
    if features.ndim != 3 or not features.dtype.is_floating_point:
        raise ValueError(f"features must be {expected}, got {describe(features)}")
    scale = checks.number("scale", scale, low=0)
    checks.integer("seed", seed, low=0)
    if mask is not None:
        check_tensor("mask", mask, "bool [N, R]")
        if mask.dtype != torch.bool or mask.shape != features.shape[:2]:
            raise ValueError(f"mask must be bool {[*features.shape[:2]]}, got {describe(mask)}")
    count = len(features)
    if index is None:
        index = torch.arange(count)
    elif len(check_labels("index", index)) != count:
        raise ValueError(f"index must have a number for each of the {count} rows, got {len(index)}")
    result = torch.empty_like(features)
    for start in range(0, count, _ROWS):
        part = slice(start, start + _ROWS)
        clean = features[part]
        real = (clean != 0).any(-1) if mask is None else mask[part]
        generators = [random.generator(seed, "feature_noise", row) for row in index[part].tolist()]
        noise = torch.stack([torch.randn(clean.shape[1:], generator=g) for g in generators])
        noisy = clean + scale * noise.to(clean)
        result[part] = torch.where(real[:, :, None].to(clean.device), noisy, 0.0)
    return result
