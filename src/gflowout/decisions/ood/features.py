"""Features of a model at a layer, by name: recorded on a view, so that the model never changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gflowout.core import random, tree
from gflowout.core.call import Args, BoundCall, Kwargs
from gflowout.core.checks import suggest
from gflowout.core.hooks import input_tensor
from gflowout.core.model import MaskedModel
from gflowout.core.sites import INPUT, Site
from gflowout.core.view import View, evaluating, own_hooks

Part = Literal["output", "input"]
"""What a layer returns, or what it reads."""

Batch = tuple[Args, Kwargs, Tensor | None]
"""Arguments of the backbone, and labels."""

_ROWS = 256
"""Rows of tensors that pass through the model at a time."""


@torch.no_grad()
def features(
    model: nn.Module,
    layer: str,
    args: Args,
    kwargs: Kwargs,
    *,
    part: Part = "output",
    axis: int | None = None,
    draws: int | None = None,
    generator: torch.Generator | None = None,
    stop: bool = False,
) -> Tensor:
    """Features at a layer, [draws, batch, features]: its output, averaged over all other axes.

    The pass runs in eval mode. At a site it is the activation before the site's own mask.

    Args:
        model: From :func:`gflowout.wrap`, or any module.
        layer: Name of a submodule of the backbone, or ``"input"``.
        args: Positional arguments of the backbone.
        kwargs: Keyword arguments of the backbone.
        part: Take the layer's output or what it reads.
        axis: Of the features; ``None``: that of the site, else axis 1 of four or more and the last
            of fewer.
        draws: Number of drawn masks; ``None`` for one deterministic pass.
        generator: Source of randomness of the draws.
        stop: End every pass at the layer. What comes behind it is saved, and a layer that runs
            twice goes unnoticed.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(5, 2))
        >>> features(net, "0", (torch.zeros(4, 1, 3, 3),), {}).shape
        torch.Size([1, 4, 5])
    """
    inputs = tree.tensors((args, kwargs))
    if not inputs:
        raise TypeError("a call must have at least one torch.Tensor, got none")
    batch, real, seeds = inputs[0][1].shape[0], None, [0]
    if isinstance(model, MaskedModel):
        real = BoundCall(model.backbone, args, kwargs, model.spec).real_positions()
        if draws is not None and not model.method.deterministic:
            seeds = random.draw_seeds(draws, generator)
    passes = []
    for seed in seeds:
        recording = _recording(model, layer, part, stop)
        with recording as (view, activations), _forked(inputs[0][1]), suppress(_ReachedError):
            if layer == INPUT and stop:
                pass
            elif isinstance(view, MaskedModel) and draws is not None:
                noise = torch.Generator().manual_seed(seed)
                view.predict(*args, samples=1, generator=noise, **kwargs)
            else:
                view(*args, **kwargs)
        if layer == INPUT:
            activations.append(input_tensor(args, kwargs)[1])
        if len(activations) != 1:
            times = "did not run" if not activations else f"ran {len(activations)} times"
            raise ValueError(
                f"layer {layer!r} {times} in one forward pass: name a submodule that runs once (an "
                "nn.Identity at the place will do)"
            )
        site = _site(model, layer, part, activations[0], axis, batch, real)
        passes.append(site.pool(site.unfold(activations[0], batch), real))
    return torch.stack(passes)


class _ReachedError(Exception):
    """Ends a pass at the layer whose features are wanted."""


@contextmanager
def _recording(
    model: nn.Module, layer: str, part: Part, stop: bool
) -> Iterator[tuple[nn.Module, list[Tensor]]]:
    """Yield a view of the model in eval mode, and a list that gets what the layer gives."""
    activations: list[Tensor] = []

    def output_hook(module: nn.Module, args: Any, output: Any) -> None:
        activations.append(_tensor(output, layer))
        if stop:
            raise _ReachedError

    def input_hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        activations.append(input_tensor(args, kwargs)[1])
        if stop:
            raise _ReachedError

    module = find_layer(model, layer)
    view = View(model, set() if module is None else {module})
    if module is not None:
        twin = own_hooks(view[module])
        if part == "input":
            twin.register_forward_pre_hook(input_hook, with_kwargs=True)
        else:
            twin.register_forward_hook(output_hook)
        if isinstance(view.root, MaskedModel):
            view.root.__dict__["validate"] = False  # strange inputs are what an alarm is for
    view.ready()
    try:
        with evaluating(view.root) as resting:
            yield resting, activations
    finally:
        view.hand_back()


@contextmanager
def _forked(like: Tensor) -> Iterator[None]:
    """Put PyTorch's random state back, for backbones that draw random numbers themselves."""
    with torch.random.fork_rng([like.device] if like.device.type == "cuda" else []):
        yield


def find_layer(model: nn.Module, layer: str) -> nn.Module | None:
    """The submodule of a name; ``None`` for ``"input"``.

    Examples:
        >>> find_layer(nn.Sequential(nn.Linear(2, 2)), "1")
        Traceback (most recent call last):
            ...
        ValueError: layer: '1' is no submodule of Sequential; it has '0'
    """
    if layer == INPUT:
        return None
    backbone = model.backbone if isinstance(model, MaskedModel) else model
    modules: dict[str, nn.Module] = dict(backbone.named_modules(remove_duplicate=False))
    if not layer or layer not in modules:
        names = [name for name in modules if name]
        shown = ", ".join(map(repr, names[:12]))
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        raise ValueError(
            f"layer: {layer!r} is no submodule of {type(backbone).__name__}; it has {shown}{more}"
            f"{suggest(layer, names)}"
        )
    return modules[layer]


def find_head(model: nn.Module, args: Args, kwargs: Kwargs) -> str:
    """Name of the last linear layer that runs in a call: the one that gives the logits.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> find_head(net, (torch.zeros(2, 4),), {})
        '2'
    """
    backbone = model.backbone if isinstance(model, MaskedModel) else model
    linear = {n: m for n, m in backbone.named_modules() if isinstance(m, nn.Linear) and n}
    order: list[str] = []
    view = View(model, set(linear.values()))
    for name, module in linear.items():
        own_hooks(view[module]).register_forward_hook(_noting(name, order))
    forked = _forked(tree.tensors((args, kwargs))[0][1])
    with torch.no_grad(), forked, evaluating(view.root) as resting:
        resting(*args, **kwargs)
    if not order:
        raise ValueError(f"{type(backbone).__name__} has no nn.Linear that runs and gives logits")
    return order[-1]


def _noting(name: str, order: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, args, output: order.append(name)


def _tensor(output: Any, layer: str) -> Tensor:
    """The tensor that a layer gives: its output, or the first item of a tuple."""
    value = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(output).__name__
        raise TypeError(
            f"layer {layer!r} must give a floating-point tensor, or a tuple that starts with one, "
            f"got {kind}"
        )
    return value.detach()


def _site(
    model: nn.Module,
    layer: str,
    part: Part,
    activation: Tensor,
    axis: int | None,
    batch: int,
    real: Tensor | None,
) -> Site:
    """How to pool an activation: as the site of that name does, or by its shape."""
    sites = model.sites if isinstance(model, MaskedModel) else ()
    named = [site for site in sites if site.name == layer]
    if named and part == "output" and axis is None:
        if named[0].folded != "batch":
            return named[0]
        raise ValueError(f"layer {layer!r} has rows of the whole batch, none of a single example")
    shape, rank = tuple(activation.shape), activation.dim()
    at = (1 if rank >= 4 else rank - 1) if axis is None else axis
    if rank < 2 or shape[0] != batch or not -rank <= at < rank or at % rank == 0:
        raise ValueError(
            f"layer {layer!r} gives shape {list(shape)} for a batch of {batch}: it must have the "
            f"batch on axis 0 and features on {'another' if axis is None else f'axis {axis}'}"
        )
    site = Site(layer, units=shape[at], axis=at % rank, rank=rank)
    return site if real is None else site.with_tokens(shape, real.shape[1])


# Data


def batches(data: Any, model: nn.Module) -> Iterator[Batch]:
    """Batches of inputs, on the device of the model, with labels where there are any.

    Args:
        data: A tensor of inputs; a tuple ``(input, ..., labels)`` of tensors; or an iterable of
            batches: such tensors or tuples, lists as a ``DataLoader`` gives them, or mappings with
            the labels as ``y`` or ``labels``.
        model: Whose device to use.

    Examples:
        >>> data = torch.zeros(300, 4), torch.arange(300)
        >>> [len(labels) for _, _, labels in batches(data, nn.Linear(4, 2))]
        [256, 44]
    """
    if isinstance(data, list) and data and all(isinstance(part, Tensor) for part in data):
        raise TypeError("data: write inputs and labels as a tuple (x, y), got a list of tensors")
    whole = isinstance(data, Tensor | tuple | Mapping)
    if not whole and not hasattr(data, "__iter__"):
        raise TypeError(
            "data must be a tensor, a tuple (x, y) or an iterable of batches, got "
            f"{type(data).__name__}"
        )
    device = next((p.device for p in model.parameters()), None)
    for batch in _slices(data) if whole else data:
        args, kwargs, labels = _unpack(batch)
        if device is not None:
            args, kwargs = tree.map_tensors(lambda _, t: t.to(device), (args, kwargs))
        yield args, kwargs, labels


def _slices(data: Any) -> Iterator[Any]:
    lengths = {len(tensor) for _, tensor in tree.tensors(data)}
    if not lengths:
        parts = data.values() if isinstance(data, Mapping) else data
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise TypeError(f"data must hold tensors, such as (x, y), got {kinds or 'nothing'}")
    if len(lengths) != 1:
        raise ValueError(f"data must hold tensors of one length, got lengths {sorted(lengths)}")
    for start in range(0, lengths.pop(), _ROWS):
        yield tree.map_tensors(_rows(slice(start, start + _ROWS)), data)


def _rows(rows: slice) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor[rows]


def _unpack(batch: Any) -> Batch:
    if isinstance(batch, Tensor):
        return (batch,), {}, None
    if isinstance(batch, Mapping):
        key = next((name for name in ("y", "labels") if name in batch), None)
        inputs = {name: value for name, value in batch.items() if name != key}
        return (), inputs, None if key is None else batch[key]
    if isinstance(batch, tuple | list) and batch:
        return (tuple(batch), {}, None) if len(batch) == 1 else (tuple(batch[:-1]), {}, batch[-1])
    raise TypeError(
        "a batch must be a tensor, (input, ..., labels) or a mapping with 'y' or 'labels', got "
        f"{type(batch).__name__}"
    )


def class_labels(labels: Any, rows: int) -> Tensor:
    """Labels as whole numbers, [rows]; an error for labels that are no classes.

    Examples:
        >>> class_labels(torch.tensor([[1.0], [0.0]]), rows=2)
        tensor([1, 0])
    """
    given = torch.as_tensor(labels)
    flat = given[:, 0] if given.dim() == 2 and given.shape[1] == 1 else given
    whole = not flat.is_floating_point() or bool(((flat == 0) | (flat == 1)).all())
    if flat.shape != (rows,) or flat.is_complex() or not whole:
        raise ValueError(
            f"labels must be classes as whole numbers of shape [{rows}], got {given.dtype} of "
            f"shape {list(given.shape)}; pass inputs alone to fit without classes"
        )
    return flat.to(torch.int64)


def first(stream: Iterator[Batch]) -> tuple[Batch, Iterator[Batch]]:
    """The first batch, and all of them; an error if there is none."""
    head = list(islice(stream, 1))
    if not head:
        raise ValueError("data has no rows")

    def again() -> Iterator[Batch]:
        yield head[0]
        yield from stream

    return head[0], again()
