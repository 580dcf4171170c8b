"""Multilayer perceptron whose hidden activations are submodules, so that each can be a site."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gflowout.core import checks

MNIST_WIDTHS = (784, 300, 100, 10)
"""Input, two hidden layers and classes of the paper's MNIST network."""

CLINICAL_HIDDEN = (128, 128, 128)
"""Hidden layers of the clinical network; the paper does not give their widths."""


class MLP(nn.Module):
    """Fully connected layers with an activation after each but the last.

    Inputs of more than two axes are flattened, so images can be passed as they are.

    Args:
        widths: Size of the input, of each hidden layer and of the output; an attribute, too.
        activation: Makes an activation module; a class such as ``nn.ReLU`` will do.

    Attributes:
        sites: Names of the hidden activations, in execution order.

    Examples:
        >>> import torch
        >>> net = MLP((784, 300, 100, 10))
        >>> net.sites
        ('hidden.0.act', 'hidden.1.act')
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, widths: Sequence[int] = MNIST_WIDTHS, activation: Callable[[], nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        if not isinstance(widths, tuple | list):
            raise TypeError(f"widths must be a list of integers, got {widths!r}")
        if len(widths) < 2:
            raise ValueError(f"widths must hold at least an input and an output, got {widths!r}")
        self.widths = tuple(checks.integer("widths", width, low=1) for width in widths)
        self.hidden = nn.ModuleList()
        for before, after in zip(self.widths[:-2], self.widths[1:-1], strict=True):
            layer = OrderedDict(linear=nn.Linear(before, after), act=_module(activation))
            self.hidden.append(nn.Sequential(layer))
        self.output = nn.Linear(self.widths[-2], self.widths[-1])
        self.sites = tuple(f"hidden.{index}.act" for index in range(len(self.hidden)))

    @classmethod
    def mnist(cls) -> MLP:
        """The paper's MNIST network: 784-300-100-10 with ReLU.

        Examples:
            >>> MLP.mnist().widths
            (784, 300, 100, 10)
        """
        return cls(MNIST_WIDTHS)

    @classmethod
    def clinical(cls, features: int, hidden: Sequence[int] = CLINICAL_HIDDEN) -> MLP:
        """One for predicting death in intensive care: one logit, for ``gfo.Binary()``.

        The paper says "3-layer MLP" and no more. It calls 784-300-100-10 a two-layer one, so three
        hidden layers are meant here; their widths are our choice.

        Args:
            features: Number of inputs.
            hidden: Width of each hidden layer.

        Examples:
            >>> MLP.clinical(20).widths
            (20, 128, 128, 128, 1)
        """
        checks.integer("features", features, low=1)
        if not isinstance(hidden, tuple | list):
            raise TypeError(f"hidden must be a list of integers, got {hidden!r}")
        widths = [checks.integer("hidden", width, low=1) for width in hidden]
        return cls((features, *widths, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, ...] with ``widths[0]`` numbers per example to [batch, widths[-1]]."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x)
        output: Tensor = self.output(x)
        return output


def _module(activation: Callable[[], nn.Module]) -> nn.Module:
    buildable = callable(activation) and not isinstance(activation, nn.Module)
    module: object = activation() if buildable else None
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"activation must make a new nn.Module when called, such as nn.ReLU, got {activation!r}"
        )
    return module
