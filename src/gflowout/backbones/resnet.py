"""ResNet-18 for 32x32 images, in two orders of its blocks, with one site per block.

Submodules are named as in the usual ImageNet model (``layer1.0.bn2`` and so on).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import checks

Order = Literal["conv-bn", "bn-conv"]


class ResNet18(nn.Module):
    """ResNet-18 with the stem for small images: one 3x3 convolution and no max pooling.

    Two orders: ``"conv-bn"``, the usual blocks (He et al. 2016), with the last activation after
    the shortcut; and ``"bn-conv"``, BatchNorm-Conv-BatchNorm-Conv, with an activation after each
    BatchNorm and one more BatchNorm before the pooling.

    Args:
        classes: Number of outputs.
        width: Channels of the first of the four stages; each later one has twice as many.
        order: Of convolutions and BatchNorms in a block.
        in_channels: Channels of the images.

    Attributes:
        sites: For each of the eight blocks, the last module of the residual branch, whose output
            is added to the shortcut: ``bn2`` in the usual order, ``conv2`` in the other.

    Examples:
        >>> import torch
        >>> net = ResNet18(classes=10, width=8)
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> net.sites[0], net.sites[-1], len(net.sites)
        ('layer1.0.bn2', 'layer4.1.bn2', 8)
    """

    def __init__(
        self, classes: int = 10, width: int = 64, order: Order = "conv-bn", in_channels: int = 3
    ) -> None:
        super().__init__()
        checks.integer("classes", classes, low=1)
        checks.integer("width", width, low=1)
        checks.integer("in_channels", in_channels, low=1)
        checks.choice("order", order, _BLOCKS)
        block, site = _BLOCKS[order]
        usual = order == "conv-bn"
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width) if usual else nn.Identity()
        self.layer1 = nn.Sequential(block(width, width, 1), block(width, width, 1))
        self.layer2 = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(block(2 * width, 4 * width, 2), block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(block(4 * width, 8 * width, 2), block(8 * width, 8 * width, 1))
        self.bn2 = nn.Identity() if usual else nn.BatchNorm2d(8 * width)
        self.fc = nn.Linear(8 * width, classes)
        self.order = order
        self.sites = tuple(f"layer{at}.{index}.{site}" for at in range(1, 5) for index in (0, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images [batch, in_channels, height, width] to logits [batch, classes]."""
        x = self.conv1(x)
        if self.order == "conv-bn":
            x = F.relu(self.bn1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        if self.order == "bn-conv":
            x = F.relu(self.bn2(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class BasicBlock(nn.Module):
    """Conv-BatchNorm-ReLU-Conv-BatchNorm, plus the shortcut, then ReLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, before, ...] to [batch, after, ...]."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self.downsample(x))


class BNConvBlock(nn.Module):
    """BatchNorm-ReLU-Conv-BatchNorm-ReLU-Conv, plus the shortcut.

    Where the shape changes, the shortcut is a convolution of the first activation.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, before, ...] to [batch, after, ...]."""
        active = F.relu(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(active)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return residual + shortcut


_BLOCKS: dict[str, tuple[type[BasicBlock] | type[BNConvBlock], str]] = {
    "conv-bn": (BasicBlock, "bn2"),
    "bn-conv": (BNConvBlock, "conv2"),
}
