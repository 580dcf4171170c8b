"""Backbones of the experiments: plain PyTorch modules without masks.

Each names the submodules whose outputs are worth masking in its attribute ``sites``.
"""

from gflowout.backbones.grid import ConvGrid, ImageMCAN, PatchGrid
from gflowout.backbones.mcan import MCAN, region_padding
from gflowout.backbones.mlp import MLP, MNIST_WIDTHS
from gflowout.backbones.resnet import ResNet18

__all__ = [
    "MCAN",
    "MLP",
    "MNIST_WIDTHS",
    "ConvGrid",
    "ImageMCAN",
    "PatchGrid",
    "ResNet18",
    "region_padding",
]
