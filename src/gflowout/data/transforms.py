"""Normalisation of image batches, and augmentation of training batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.data.errors import check_images, check_tensor, describe

Transform = Callable[[Tensor], Tensor]
"""A deterministic map from batch to batch."""

_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Normalize:
    """Shift and scale each channel: (x / 255 - mean) / std.

    Examples:
        >>> images = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
        >>> normalize = Normalize.fit(images)
        >>> normalize
        Normalize(mean=[0.5000], std=[0.5000])
        >>> normalize(images)
        tensor([[[[-1.,  1.]]]])
    """

    mean: Tensor  # of each channel, images in [0, 1], float32 [C]
    std: Tensor  # standard deviation of each channel; 1 for a constant channel

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("std", self.std)):
            check_tensor(name, value, "one number per channel [C]")
            if value.ndim != 1 or not value.dtype.is_floating_point:
                raise ValueError(f"{name} must be floating point [C], got {describe(value)}")
        if self.mean.shape != self.std.shape or not bool((self.std > 0).all()):
            got = f"{self.mean.tolist()} and {self.std.tolist()}"
            raise ValueError(
                f"mean and std must have one number per channel and std be positive, got {got}"
            )

    @classmethod
    def fit(cls, images: Tensor) -> Normalize:
        """Compute mean and standard deviation of training images, uint8 [N, C, H, W].

        Sums are of integers, so the result is exact and does not depend on the order.
        """
        check_images("images", images)
        if not len(images):
            raise ValueError("images must hold at least one image, got none")
        total, squares = torch.zeros(2, images.shape[1], dtype=torch.int64)
        for block in images.split(_BLOCK):  # type: ignore[no-untyped-call]
            values = block.to(torch.int32)
            total += values.sum((0, 2, 3)).cpu()
            squares += values.square().sum((0, 2, 3)).cpu()
        count = images.numel() // images.shape[1]
        # N sum x^2 - (sum x)^2 can exceed 64 bits.
        spread = [count * s - t * t for s, t in zip(squares.tolist(), total.tolist(), strict=True)]
        std = torch.tensor([value**0.5 / count for value in spread], dtype=torch.float64) / 255
        mean = total.double() / count / 255
        return cls(mean.float(), torch.where(std == 0, 1.0, std).float())

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [B, C, H, W] to float32 [B, C, H, W]."""
        check_images("images", images)
        if images.shape[1] != len(self.mean):
            channels = f"{len(self.mean)} channels as in fit"
            raise ValueError(f"images must have {channels}, got {images.shape[1]}")
        scale, offset = 1 / (255 * self.std), -self.mean / self.std
        result = images.to(torch.float32)
        if len(scale) == 1:  # numbers are faster than tensors that broadcast
            return result.mul_(scale.item()).add_(offset.item())
        scale, offset = (value.to(result)[:, None, None] for value in (scale, offset))
        return result.mul_(scale).add_(offset)

    def inverse(self, values: Tensor) -> Tensor:
        """Map float [B, C, H, W] back to uint8, clipped to 0 .. 255."""
        if values.ndim != 4 or values.shape[1] != len(self.mean):
            raise ValueError(f"values must be [B, {len(self.mean)}, H, W], got {describe(values)}")
        mean, std = (v.to(values)[:, None, None] for v in (self.mean, self.std))
        return ((values * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def __repr__(self) -> str:
        mean, std = (", ".join(f"{v:.4f}" for v in t.tolist()) for t in (self.mean, self.std))
        return f"Normalize(mean=[{mean}], std=[{std}])"


@dataclass(frozen=True)
class Augment:
    """Pad, crop at random, and mirror half of the images.

    For training data only: ``Batches(..., shuffle=True, augment=Augment())``. It needs a generator
    and is refused as a :data:`Transform`, so that validation data cannot be augmented by mistake.

    Examples:
        >>> images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
        >>> Augment()(images, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 32, 32])
    """

    pad: int = 4  # zeros around the image, in pixels; 0 does not crop
    flip: bool = True  # mirror left and right with probability 1/2; not for digits or letters

    def __post_init__(self) -> None:
        checks.integer("pad", self.pad, low=0)
        checks.boolean("flip", self.flip)

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Augment each image of uint8 [B, C, H, W]; the generator is on the CPU."""
        check_images("images", images)
        count, _, height, width = images.shape
        if self.pad:
            room = 2 * self.pad + 1
            top, left = torch.randint(room, (2, count), generator=generator).to(images.device)
            padded = F.pad(images, (self.pad,) * 4)
            # All windows as a view [B, C, room, room, H, W]; one gather takes one for each image.
            windows = padded.unfold(2, height, 1).unfold(3, width, 1)
            images = windows[torch.arange(count, device=images.device), :, top, left]
        if self.flip:
            mirrored = torch.rand(count, generator=generator).to(images.device) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        return images


class Compose:
    """Several transforms, one after the other; an augmentation is refused.

    Examples:
        >>> images = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
        >>> Compose(Normalize(torch.tensor([0.1]), torch.tensor([0.3])), flatten)(images).shape
        torch.Size([2, 784])
    """

    def __init__(self, *steps: Transform) -> None:
        self.steps = tuple(check_transform("steps", step) for step in steps)

    def __call__(self, batch: Tensor) -> Tensor:
        """Apply all steps."""
        for step in self.steps:
            batch = step(batch)
        return batch

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.steps))})"


def flatten(batch: Tensor) -> Tensor:
    """Map [B, ...] to [B, numbers per example]."""
    return batch.flatten(1)


def check_transform(name: str, value: Any) -> Transform:
    """Return ``value`` if it can be used on training and validation data."""
    if isinstance(value, Augment):
        hint = "training data take it as augment="
        raise TypeError(f"{name} must give the same for the same images, got {value!r}; {hint}")
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}")
    return value  # type: ignore[no-any-return]
