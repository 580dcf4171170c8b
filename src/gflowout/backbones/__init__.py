"""Backbones of the experiments: plain PyTorch modules that know nothing of masks.

Each names the submodules whose outputs are worth masking in its attribute ``sites``.
"""

from gflowout.backbones.mlp import MLP, MNIST_WIDTHS
from gflowout.backbones.resnet import ResNet18

__all__ = ["MLP", "MNIST_WIDTHS", "ResNet18"]
