"""Snow, frost and Gaussian noise of the common-corruptions benchmark, for batches of images.

Hendrycks and Dietterich (2019), five severities each. Every corruption is a pure function of the
images and of random numbers (``apply_*``), truncated to bytes as published; :func:`corrupt` draws
the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.data.errors import check_images
from gflowout.data.overlays import clipped_zoom, crop_overlays, fit_overlays, load_overlays

KINDS = ("snow", "frost", "gaussian_noise")
"""Corruptions, as the files of CIFAR-10-C are called."""

SEVERITIES = (1, 2, 3, 4, 5)

_BLOCK = 64  # images that share a generator and are processed at once


@dataclass(frozen=True)
class Snow:
    """Constants of snow at one severity; lengths are in pixels."""

    mean: float  # of the normal numbers of the layer
    std: float  # of the normal numbers of the layer
    zoom: float  # factor by which the layer is enlarged
    threshold: float  # below this there is no flake
    radius: int  # of the motion blur
    sigma: float  # standard deviation of the motion blur
    keep: float  # weight of the image; the rest is the weight of its bleached version


@dataclass(frozen=True)
class Constants:
    """One published set of constants, with the points where the two published programs differ."""

    noise: tuple[float, ...]  # standard deviations, images in [0, 1]
    frost: tuple[tuple[float, float], ...]  # weights of image and overlay
    snow: tuple[Snow, ...]
    overlays: int  # how many of the overlays are drawn from, counted from the first
    # Factor of the overlays' size; None enlarges them, see fit_overlays.
    shrink: float | None
    # Whether the snow layer is cut to its centre and to 8 bits before the blur, or is blurred as it
    # is and cut to its top left corner afterwards.
    centred: bool


TABLES = {
    "cifar-c": Constants(
        noise=(0.04, 0.06, 0.08, 0.09, 0.10),
        frost=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        snow=(
            Snow(0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            Snow(0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            Snow(0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            Snow(0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            Snow(0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        overlays=5,
        shrink=0.2,
        centred=True,
    ),
    "imagenet-c": Constants(
        noise=(0.08, 0.12, 0.18, 0.26, 0.38),
        frost=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        snow=(
            Snow(0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            Snow(0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            Snow(0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            Snow(0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            Snow(0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        overlays=6,
        shrink=None,
        centred=False,
    ),
}
"""Published constants: of CIFAR-10-C, for small images; of ImageNet-C, as in imagecorruptions."""


def corrupt(
    images: Tensor,
    kind: str,
    severity: int,
    *,
    seed: int,
    constants: str = "cifar-c",
    overlays: Sequence[Tensor] | None = None,
) -> Tensor:
    """Corrupt each image with its own random numbers.

    The numbers of image i depend on the seed, the kind and i only: not on the number of images, and
    not on the severity, so that severities can be compared on the same flakes.

    Args:
        images: uint8 [N, C, H, W], 1 or 3 channels. One channel gets the grey of frost.
        kind: One of :data:`KINDS`.
        severity: 1 to 5; 0 returns the images as they are.
        seed: Seed of all draws.
        constants: ``"cifar-c"`` or ``"imagenet-c"``.
        overlays: Images of frost, uint8 [3, h, w]; by default
            :func:`gflowout.data.overlays.load_overlays`.

    Examples:
        >>> grey = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
        >>> noisy = corrupt(grey, "gaussian_noise", 3, seed=0)
        >>> bool((noisy.double() / 255).std() > 0.07)
        True
        >>> corrupt(grey, "snow", 2, seed=0).float().mean() > grey.float().mean()
        tensor(True)
    """
    check_images("images", images)
    checks.choice("kind", kind, KINDS)
    table = TABLES[checks.choice("constants", constants, TABLES)]
    severity = checks.integer("severity", severity, low=0)
    if severity > 5:
        raise ValueError(f"severity must be an integer from 0 to 5, got {severity}")
    checks.integer("seed", seed, low=0)
    if severity == 0:
        return images
    size = height, width = images.shape[2], images.shape[3]
    frosts: list[Tensor] = []
    if kind == "frost":
        drawn = (load_overlays() if overlays is None else overlays)[: table.overlays]
        frosts = fit_overlays(drawn, size, table.shrink)
    result = torch.empty_like(images)
    for block, start in enumerate(range(0, len(images), _BLOCK)):
        part = images[start : start + _BLOCK]
        # Numbers for a full block are drawn, so that those of an image do not depend on the others.
        draw: Any = {"dtype": torch.float64, "generator": random.generator(seed, kind, block)}
        if kind == "gaussian_noise":
            normal = torch.randn(_BLOCK, *images.shape[1:], **draw)[: len(part)]
            corrupted = apply_gaussian_noise(part, normal, table.noise[severity - 1])
        elif kind == "snow":
            normal = torch.randn(_BLOCK, height, width, **draw)[: len(part)]
            angle = -135 + 90 * torch.rand(_BLOCK, **draw)[: len(part)]
            layer = snow_layer(normal, angle, table, severity)
            corrupted = apply_snow(part, layer, table.snow[severity - 1].keep)
        else:
            places = torch.rand(_BLOCK, 3, **draw)[: len(part)]
            crops = crop_overlays(frosts, places, size)
            corrupted = apply_frost(part, crops, *table.frost[severity - 1])
        result[start : start + _BLOCK] = corrupted
    return result


def apply_gaussian_noise(images: Tensor, normal: Tensor, scale: float) -> Tensor:
    """Add standard normal numbers n, of the images' shape: clip(x + scale n), with x in [0, 1]."""
    noisy = (images.double() / 255 + scale * normal.double()).clamp_(0, 1)
    return (noisy * 255).to(torch.uint8)


def apply_frost(images: Tensor, frost: Tensor, keep: float, cover: float) -> Tensor:
    """Blend images x with crops of the overlays, uint8 [N, 3, H, W]: clip(keep x + cover frost)."""
    layer = _grey(frost.double()) if images.shape[1] == 1 else frost.double()
    return (keep * images.double() + cover * layer).clamp_(0, 255).to(torch.uint8)


def apply_snow(images: Tensor, layer: Tensor, keep: float) -> Tensor:
    """Bleach images and add a layer of snow, once as it is and once turned by 180 degrees.

    With x and the layer [N, H, W] in [0, 1]:
    clip(keep x + (1 - keep) max(x, 1.5 grey(x) + 0.5) + layer + turned layer).
    """
    x = images.float() / 255  # single precision, as published: it decides the truncation
    x = keep * x + (1 - keep) * torch.maximum(x, _grey(x) * 1.5 + 0.5)
    both = layer + layer.flip(-2, -1)
    return ((x.double() + both[:, None]).clamp_(0, 1) * 255).to(torch.uint8)


def snow_layer(normal: Tensor, angle: Tensor, table: Constants, severity: int) -> Tensor:
    """Make blurred flakes, float64 [N, H, W] in steps of 1/255.

    ``normal`` [N, H, W] are standard normal numbers, ``angle`` [N] is the direction of the fall in
    degrees.
    """
    c = table.snow[severity - 1]
    height, width = normal.shape[1:]
    layer = clipped_zoom(c.mean + c.std * normal.double(), c.zoom)
    layer = torch.where(layer < c.threshold, 0.0, layer).clamp_(0, 1)
    if table.centred:
        top, left = (layer.shape[1] - height) // 2, (layer.shape[2] - width) // 2
        layer = layer[:, top : top + height, left : left + width]
        layer = (layer * 255).floor_() / 255
    layer = motion_blur(layer, angle, c.radius, c.sigma)[:, :height, :width]
    return (layer * 255).round_() / 255


def motion_blur(layers: Tensor, angle: Tensor, radius: int, sigma: float) -> Tensor:
    r"""Blur each layer of [N, H, W] along its own angle, in degrees [N], as ImageMagick does.

    The mean of the pixels at :math:`i (\cos a, \sin a)`, rounded, for i = 0 .. 2 radius, with
    weights :math:`\propto \exp(-i^2 / 2 \sigma^2)`. Beyond the border, the border pixel is read.
    """
    count, height, width = layers.shape
    taps = torch.arange(2 * radius + 1, dtype=torch.float64)
    kernel = torch.exp(-(taps**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    radians = torch.deg2rad(angle.double())[:, None]
    down = torch.ceil(taps * radians.sin() - 0.5).long()
    right = torch.ceil(taps * radians.cos() - 0.5).long()
    rows, columns = torch.arange(height), torch.arange(width)
    flat = layers.reshape(count, -1)
    blurred = torch.zeros_like(flat)
    for tap, weight in enumerate(kernel.tolist()):
        row = (rows + down[:, tap, None]).clamp_(0, height - 1) * width
        column = (columns + right[:, tap, None]).clamp_(0, width - 1)
        source = (row[:, :, None] + column[:, None, :]).reshape(count, -1)
        blurred.add_(flat.gather(1, source), alpha=weight)
    return blurred.view(count, height, width)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue
