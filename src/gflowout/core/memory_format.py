"""Choose the memory format of convolutional networks, and warn of the one that crashes PyTorch.

PyTorch 2.13.0 corrupts memory in the backward pass of a strided 1x1 convolution with fewer than
8 input channels, if its input or weight is in ``channels_last`` and oneDNN runs its AVX2 kernels,
as it does on CPUs without AVX-512. The process crashes, hangs or computes wrong gradients. The
fault is oneDNN's (its issue 6035): the kernel writes whole blocks of 8 channels into a workspace
that is sized for fewer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

SAFE_CHANNELS = 8
"""Input channels from which a strided 1x1 convolution is safe in ``channels_last``."""

FIXED_IN = "2.14"
"""The first release of PyTorch that is not known to have the fault; it was seen in 2.13.0."""

Module = TypeVar("Module", bound=nn.Module)


def unsafe_layers(module: nn.Module) -> list[str]:
    """Names of the convolutions that must not run in ``channels_last`` on a CPU.

    Examples:
        >>> unsafe_layers(nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 8, 1, 2)))
        ['1']
    """
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < SAFE_CHANNELS
    ]


def to_fastest_format(module: Module) -> Module:
    """Convert weights, in place, to the format in which 2-D convolutions train fastest and safely.

    That is ``channels_last`` if every convolution is safe in it, else ``contiguous_format``.
    ``gflowout bench --only channels-last`` measures what it is worth.

    Examples:
        >>> layers = [to_fastest_format(nn.Conv2d(size, 16, 1, stride=2)) for size in (8, 4)]
        >>> [layer.weight.stride() for layer in layers]
        [(8, 1, 8, 8), (4, 1, 1, 1)]
    """
    fastest = torch.contiguous_format if unsafe_layers(module) else torch.channels_last
    return module.to(memory_format=fastest)  # type: ignore[call-overload, no-any-return]


def warn_of_unsafe_layers(module: nn.Module, inputs: Iterable[object] = ()) -> None:
    """Warn if the memory format of weights or inputs can crash PyTorch in training on a CPU."""
    if TorchVersion(torch.__version__) >= FIXED_IN:
        return
    layers = unsafe_layers(module)
    tensors = [*module.parameters(), *(value for value in inputs if isinstance(value, Tensor))]
    if not layers or not any(_is_channels_last(tensor) for tensor in tensors):
        return
    warnings.warn(
        f"layer {layers[0]!r} is a strided 1x1 convolution with fewer than {SAFE_CHANNELS} input "
        "channels in the memory format channels_last: its backward pass corrupts memory in PyTorch "
        f"{torch.__version__} on CPUs without AVX-512. Call "
        "model.to(memory_format=torch.contiguous_format), and give inputs in that format, before "
        "you train on a CPU",
        stacklevel=3,
    )


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether PyTorch runs a convolution of this tensor in ``channels_last`` on the CPU.

    A weight of a 1x1 convolution is contiguous in both formats; strides tell which it was given.
    """
    return (
        tensor.dim() == 4
        and tensor.device.type == "cpu"
        and tensor.stride(3) == tensor.shape[1] > 1
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )
