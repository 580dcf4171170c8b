"""From images to the regions that MCAN reads: a small convolutional net, patches, and both joined.

An encoder maps images [batch, channels, height, width] to grid features [batch, regions,
feature_size], regions row by row.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gflowout.backbones.mcan import MCAN
from gflowout.core import checks


class ConvGrid(nn.Module):
    """Convolutions of stride 2, one per width, and a linear map of every cell of the last grid.

    Takes images of any size; each stage halves it, rounding up. Features carry no position, apart
    from what the borders show.

    Args:
        feature_size: Numbers per region; an attribute, too.
        in_channels: Channels of the images; an attribute, too.
        widths: Channels of each stage.

    Examples:
        >>> ConvGrid(feature_size=32)(torch.zeros(2, 3, 64, 48)).shape
        torch.Size([2, 48, 32])
    """

    def __init__(
        self, feature_size: int = 128, in_channels: int = 3, widths: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        self.feature_size = checks.integer("feature_size", feature_size, low=1)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        if not isinstance(widths, tuple | list) or not widths:
            raise TypeError(f"widths must be a list of integers, one per stage, got {widths!r}")
        channels = [in_channels, *(checks.integer("widths", width, low=1) for width in widths)]
        self.stages = nn.Sequential(*(_stage(*pair) for pair in pairwise(channels)))
        # Linear at the end: after a ReLU, a cell of zeros would pass for padding.
        self.project = nn.Conv2d(channels[-1], feature_size, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to grid features."""
        _check_images(images, self.in_channels)
        grid: Tensor = self.project(self.stages(images))
        return grid.flatten(2).transpose(1, 2)


class PatchGrid(nn.Module):
    """A linear map of every patch, plus a learned vector for its position.

    Args:
        image_size: Height and width, or one number for both; as an attribute, always two.
        patch: Side of a patch; divides height and width.
        feature_size: Numbers per region; an attribute, too.
        in_channels: Channels of the images; an attribute, too.

    Examples:
        >>> PatchGrid(image_size=32, patch=8, feature_size=16)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 16, 16])
    """

    def __init__(
        self,
        image_size: int | Sequence[int],
        patch: int = 8,
        feature_size: int = 128,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        sides = image_size if isinstance(image_size, tuple | list) else (image_size, image_size)
        if len(sides) != 2:
            raise ValueError(f"image_size must be height and width, got {image_size!r}")
        height, width = (checks.integer("image_size", side, low=1) for side in sides)
        checks.integer("patch", patch, low=1)
        if height % patch or width % patch:
            raise ValueError(f"patch must divide image_size, which is {image_size}, got {patch}")
        self.image_size = (height, width)
        self.feature_size = checks.integer("feature_size", feature_size, low=1)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        self.project = nn.Conv2d(in_channels, feature_size, patch, stride=patch)
        regions = (height // patch) * (width // patch)
        self.position = nn.Parameter(0.02 * torch.randn(regions, feature_size))

    def forward(self, images: Tensor) -> Tensor:
        """Map images of ``image_size`` to grid features."""
        _check_images(images, self.in_channels)
        if tuple(images.shape[2:]) != self.image_size:
            raise ValueError(
                f"images must be of height and width {self.image_size}, got "
                f"{tuple(images.shape[2:])}"
            )
        grid: Tensor = self.project(images)
        return grid.flatten(2).transpose(1, 2) + self.position


class ImageMCAN(nn.Module):
    """An encoder of images in front of MCAN, trained together.

    Takes grid features in place of images, too, so that they can be changed on the way:
    ``net(net.encoder(images) + noise, tokens)``. This works on the wrapped network as well. No
    region counts as padding.

    Args:
        encoder: Maps images [batch, channels, height, width] to [batch, regions, feature_size].
        mcan: Reads those features.

    Attributes:
        sites: Those of ``mcan``, as submodules of this network.

    Examples:
        >>> net = ImageMCAN(ConvGrid(feature_size=16), MCAN.tiny(50, 10, feature_size=16))
        >>> images, tokens = torch.randn(2, 3, 32, 32), torch.tensor([[4, 7, 0], [9, 2, 5]])
        >>> net(images, tokens).shape
        torch.Size([2, 10])
        >>> features = net.encoder(images)
        >>> torch.equal(net(features, tokens), net(images, tokens))
        True
        >>> net.sites[0]
        'mcan.encoder.0.attention'
    """

    def __init__(self, encoder: nn.Module, mcan: MCAN) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise TypeError(f"encoder must be an nn.Module, got {type(encoder).__name__}")
        if not isinstance(mcan, MCAN):
            raise TypeError(f"mcan must be an MCAN, got {type(mcan).__name__}")
        size = getattr(encoder, "feature_size", mcan.feature_size)
        if size != mcan.feature_size:
            raise ValueError(
                f"encoder gives {size} numbers per region, but mcan takes feature_size="
                f"{mcan.feature_size}"
            )
        self.encoder = encoder
        self.mcan = mcan
        self.sites = tuple(f"mcan.{site}" for site in mcan.sites)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Map images and questions to one logit per answer, [batch, answers].

        Args:
            images: [batch, channels, height, width]; or their grid features, [batch, regions,
                feature_size].
            tokens: Of the question's words, integers [batch, words], 0 for padding.
        """
        features = images if images.dim() == 3 else self.encoder(images)
        no_padding = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
        logits: Tensor = self.mcan(features, tokens, region_padding=no_padding)
        return logits


def _stage(before: int, after: int) -> nn.Sequential:
    # Not BatchNorm: it would mix the examples of a batch, and the draws that share one.
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(before, after, 3, stride=2, padding=1),
            norm=nn.GroupNorm(math.gcd(after, 8), after),
            act=nn.ReLU(),
        )
    )


def _check_images(images: Tensor, channels: int) -> None:
    if not images.is_floating_point():
        raise TypeError(f"images must be floating-point, got {images.dtype}; scale by 1 / 255")
    if images.dim() != 4 or images.shape[1] != channels:
        raise ValueError(
            f"images must have shape [batch, {channels}, height, width], got {list(images.shape)}"
        )
