"""Run the example call under observation: sites in execution order, shapes, layers that read them.

:mod:`gflowout.core.probe` draws conclusions from what is recorded here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Args, Call, Kwargs, logits_of
from gflowout.core.hooks import evaluating, input_tensor, main_tensor, masked_pass
from gflowout.core.sites import INPUT, input_size
from gflowout.core.units import Units

_CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)


class Trace:
    """What a pass over the example shows."""

    def __init__(self) -> None:
        self.output = torch.empty(0)
        self.sites: list[tuple[str, tuple[int, ...], Units]] = []
        self.readers: list[dict[str, int]] = []  # per site, layers that ran later: input sizes
        self.runs: dict[str, int] = {}
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.largest = 0
        self.random = False


def trace_call(call: Call, names: Mapping[str, Units]) -> Trace:
    """Run a call once and record what it shows, at the named sites above all."""
    trace = Trace()
    units: tuple[int, int] | None = None  # axis and size of the last output of a known kind
    follows: Tensor | None = None  # that output, or what modules that keep its shape made of it

    def record(name: str, activation: Tensor) -> None:
        trace.runs[name] = trace.runs.get(name, 0) + 1
        wanted = names[name]
        axis = wanted.axis
        if axis is None and units is not None and activation.dim() > 2:
            last_axis, size = units
            axis = last_axis if activation.shape[last_axis] == size else None
            square = activation.dim() == 3 and activation.shape[1] == activation.shape[2]
            if axis == 1 and square and activation is not follows:
                raise ValueError(
                    f"site {name!r} gives shape {list(activation.shape)}, in which axes 1 and 2 "
                    "are of one size: say which holds the units, as in "
                    f"sites={{{name!r}: 2}}"
                )
        wanted = dataclasses.replace(wanted, axis=axis)
        trace.sites.append((name, tuple(activation.shape), wanted))
        trace.readers.append({})

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        nonlocal units, follows
        tensors = [tensor for _, tensor in tree.tensors(output)]
        trace.shapes.setdefault(name, []).extend(tuple(tensor.shape) for tensor in tensors)
        trace.largest = max([trace.largest, *(tensor.numel() for tensor in tensors)])
        size = input_size(module)
        if size is not None:
            for later in trace.readers:
                later.setdefault(name, size)
        if tensors and tensors[0].dim() > 2:
            first = tensors[0]
            if isinstance(module, _CHANNELS_FIRST):
                units = (1, first.shape[1])
            elif isinstance(module, _FEATURES_LAST):
                units = (-1, first.shape[-1])
            chained = follows is not None and len(args) == 1 and args[0] is follows
            same = chained and first.shape == args[0].shape
            if same or isinstance(module, _CHANNELS_FIRST + _FEATURES_LAST):
                follows = first
        if name in names:
            record(name, main_tensor(output, name))

    handles = [
        module.register_forward_hook(partial(hook, name))
        for name, module in call.backbone.named_modules()
        if name
    ]
    try:
        if INPUT in names:
            record(INPUT, input_tensor(call.args, call.kwargs)[1])
        output, trace.random = quiet(call.backbone, call.args, call.kwargs)
        trace.output = logits_of(output)
    finally:
        for handle in handles:
            handle.remove()
    return trace


def quiet(backbone: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Any, bool]:
    """Return the backbone's output, and whether it drew random numbers, which are put back.

    It runs in eval mode and without gradients.
    """
    with (
        torch.no_grad(),
        evaluating(backbone),
        torch.random.fork_rng(devices=[]),
        masked_pass(backbone, (), lambda index, activation: activation),
    ):
        before = torch.get_rng_state()
        output = backbone(*args, **kwargs)
        return output, not torch.equal(torch.get_rng_state(), before)


def doubled_call(call: Call, batched: Sequence[str]) -> Call:
    """The example call with other rows added to its batch; a copy, which may be changed."""
    inputs = {id(tensor) for path, tensor in call.tensors.items() if path in batched}

    def doubled(_: str, tensor: Tensor) -> Tensor:
        if id(tensor) in inputs:
            return torch.cat([tensor, _other_rows(tensor)])
        return tensor.clone()

    return Call(call.backbone, *tree.map_tensors(doubled, (call.args, call.kwargs)))


def close(output: Tensor, expected: Tensor) -> bool:
    """Whether two passes gave the same, up to rounding."""
    return output.shape == expected.shape and torch.allclose(
        output, expected, rtol=1e-3, atol=1e-4, equal_nan=True
    )


def _other_rows(tensor: Tensor) -> Tensor:
    """Rows that differ from the given ones and are as valid as can be told."""
    other = tensor.flip(0)
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        return other + 0.1 * noise.to(tensor)
    return other.flip(-1) if tensor.dim() > 1 else other
