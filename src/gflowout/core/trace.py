"""Run the example call under observation: sites in execution order, shapes, layers that read them.

:mod:`gflowout.core.probe` draws conclusions from what is recorded here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Call, logits_of
from gflowout.core.hooks import MaskedBackbone, Visit, input_tensor, main_tensor
from gflowout.core.sites import INPUT, Site, input_size
from gflowout.core.units import Units
from gflowout.core.view import evaluating, own_hooks

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
        self.activations: dict[str, Tensor] = {}  # of the sites, if they are kept
        self.readers: list[dict[str, int]] = []  # per site, layers that ran later: input sizes
        self.runs: dict[str, int] = {}
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.largest = 0
        self.random = False


def trace_call(call: Call, names: Mapping[str, Units], keep: bool = False) -> Trace:
    """Run a call once and record what it shows, at the named sites above all.

    ``keep`` also keeps the activations there.
    """
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
        if keep:
            trace.activations[name] = activation.clone()
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

    if INPUT in names:
        record(INPUT, input_tensor(call.args, call.kwargs)[1])
    with evaluating(call.backbone) as backbone:
        masked = MaskedBackbone(backbone, (), whole=True)
        for name, module in masked.view.named_modules():
            if name:
                own_hooks(module).register_forward_hook(partial(hook, name))
        output, trace.random = _quiet(masked, call)
    trace.output = logits_of(output)
    return trace


def masked_call(
    call: Call,
    sites: Sequence[Site] = (),
    visit: Visit | None = None,
    copies: int = 1,
    batch: int | None = None,
) -> Tensor:
    """Run a call in eval mode, its batch repeated at the first site; return the logits."""
    options: dict[str, Any] = {"copies": copies, "parting": copies > 1, "batch": batch}
    if visit is not None:
        options["visit"] = visit
    with evaluating(call.backbone) as backbone:
        return logits_of(_quiet(MaskedBackbone(backbone, sites), call, **options)[0])


def independent_rows(
    call: Call, batched: Sequence[str], sites: Sequence[Site], output: Tensor
) -> bool:
    """Whether the example comes out as it did alone, whatever masks the rows around it have.

    Other inputs alone may hardly move what the rows share: masks of any sign do. Copies that hardly
    differ become the nearest neighbours of the rows.
    """
    batch, generator = len(output), torch.Generator().manual_seed(0)

    def same(padded: Call, centre: float, spread: float) -> bool:
        def visit(index: int, activation: Tensor) -> Tensor:
            noise = torch.randn(3 * batch, sites[index].units, generator=generator)
            noise[batch : 2 * batch] = (1 - centre) / spread
            return (centre + spread * noise).to(activation)

        rows = masked_call(padded, sites, visit, batch=3 * batch)[batch : 2 * batch]
        return close(rows, output)

    try:
        return same(padded_call(call, batched, 1, 1), 0.0, 1.0) and same(
            padded_call(call, batched, 1, 1, copies=True), 1.0, 0.01
        )
    except Exception:
        return False


def unused_sites(call: Call, sites: Sequence[Site], output: Tensor) -> list[Site]:
    """Sites whose masks do not change the output: no gradient leads to them, and no value.

    A gradient alone does not tell, since a backbone may stop it, nor does a value, since the layer
    after a site may start at 0.
    """
    unused = list(sites)
    with (
        contextlib.suppress(RuntimeError),  # in-place changes, inference mode: no gradients
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        evaluating(call.backbone) as backbone,
    ):
        masks = [output.new_ones(1, site.units, requires_grad=True) for site in sites]
        masked = MaskedBackbone(backbone, sites)
        args, kwargs = tree.clone((call.args, call.kwargs))
        logits = logits_of(masked(args, kwargs, lambda index, _: masks[index]))
        gradients = torch.autograd.grad(logits.sum(), masks, allow_unused=True)
        unused = [site for site, value in zip(sites, gradients, strict=True) if value is None]

    def unchanged(site: Site, value: float) -> bool:
        at = sites.index(site)

        def visit(index: int, activation: Tensor) -> Tensor:
            return activation.new_full((1, sites[index].units), value if index == at else 1.0)

        copied = Call(call.backbone, *tree.clone((call.args, call.kwargs)))
        return torch.equal(masked_call(copied, sites, visit).nan_to_num(), output.nan_to_num())

    return [site for site in unused if unchanged(site, 0.0) and unchanged(site, 0.5)]


def _quiet(masked: MaskedBackbone, call: Call, **options: Any) -> tuple[Any, bool]:
    """Run without gradients, leaving the random state alone; tell whether it would have moved."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        output = masked(call.args, call.kwargs, **options)
        return output, not torch.equal(torch.get_rng_state(), before)


def padded_call(
    call: Call,
    batched: Sequence[str],
    before: int = 0,
    after: int = 1,
    rows: int | None = None,
    copies: bool = False,
) -> Call:
    """The example call with other rows around its batch; a copy, which may be changed.

    ``before`` and ``after`` count how many times as many rows are added; or that many times
    ``rows``, if given. With ``copies`` they are those of the batch itself.
    """
    inputs = {id(tensor) for path, tensor in call.tensors.items() if path in batched}

    def padded(_: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in inputs:
            return tensor.clone()
        others = (tensor if copies else _other_rows(tensor, at) for at in range(before + after))
        parts = [other[:rows] for other in others]
        return torch.cat([*parts[:before], tensor, *parts[before:]])

    return Call(call.backbone, *tree.map_tensors(padded, (call.args, call.kwargs)))


def rolled_call(call: Call, batched: Sequence[str]) -> Call:
    """A copy of a call with the last row of its batch in front of the others."""
    inputs = {id(tensor) for path, tensor in call.tensors.items() if path in batched}

    def rolled(_: str, tensor: Tensor) -> Tensor:
        return tensor.roll(1, 0) if id(tensor) in inputs else tensor.clone()

    return Call(call.backbone, *tree.map_tensors(rolled, (call.args, call.kwargs)))


def widened_call(call: Call, size: int) -> Call:
    """A copy of a call with twice the rows on axis 1, or on axis 0, where these are ``size``."""

    def widened(_: str, tensor: Tensor) -> Tensor:
        axis = next((at for at in (1, 0) if tensor.shape[at : at + 1] == (size,)), None)
        if axis is None:
            return tensor.clone()
        rows = tensor.movedim(axis, 0)
        return torch.cat([rows, _other_rows(rows, 0)]).movedim(0, axis)

    return Call(call.backbone, *tree.map_tensors(widened, (call.args, call.kwargs)))


def close(output: Tensor, expected: Tensor) -> bool:
    """Whether two passes gave the same, up to rounding."""
    precision = 1e-4 if output.dtype == torch.float64 else 1.0
    return output.shape == expected.shape and torch.allclose(
        output, expected, rtol=1e-3 * precision, atol=1e-4 * precision, equal_nan=True
    )


def _other_rows(tensor: Tensor, seed: int) -> Tensor:
    """Rows that differ from the given ones, in their mean, too, and are as valid as can be told."""
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
        return 0.5 * tensor.flip(0) + 0.1 * noise.to(tensor)
    row = tensor[seed - 1]  # first the last one, which comes to stand in front
    if tensor.dim() > 1 and torch.equal(tensor[0], tensor[-1]):
        row = row[..., [seed - 1]]
    return row.expand_as(tensor)
