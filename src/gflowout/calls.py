"""What one example call teaches about a backbone, and how it is called from then on.

The example shows the order and shapes of the sites, which arguments carry the batch, and whether
several draws can be folded into one larger batch. Knows nothing of methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gflowout import tree
from gflowout.sites import (
    DROPOUTS,
    INPUT,
    MaskedPass,
    Site,
    evaluating,
    input_tensor,
    main_tensor,
)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

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
_FEATURES_LAST = (
    nn.Linear,
    nn.LayerNorm,
    nn.Embedding,
    nn.MultiheadAttention,
    nn.RNNBase,
)


@dataclass(frozen=True)
class CallSpec:
    """How a backbone is called, as learned from ``example``.

    Attributes:
        shapes: Shape of every tensor argument of the example, by path.
        floating: Whether it was a floating-point tensor, by path.
        batched: Paths of the arguments whose first axis is the batch.
        foldable: Whether a batch of repeated inputs gives the outputs repeated.
        fixed: Modules whose output does not depend on the batch.
        unfoldable: Modules whose output cannot be repeated along its first axis.
        mutates: Whether the backbone changes its inputs in place.
        footprint: Elements per example in the largest module output.
    """

    shapes: dict[str, tuple[int, ...]]
    floating: dict[str, bool]
    batched: tuple[str, ...]
    foldable: bool
    fixed: tuple[str, ...]
    unfoldable: tuple[str, ...]
    mutates: bool
    footprint: int

    def prepare(self, backbone: nn.Module, args: Args, kwargs: Kwargs, copies: int) -> Any:
        """Return the arguments for one pass, the batch repeated ``copies`` times."""
        if copies > 1:
            names = _named(backbone, args, kwargs)
            batched = {id(tensor) for path, tensor in names.items() if path in self.batched}

            def fold(_: str, tensor: Tensor) -> Tensor:
                if id(tensor) in batched:
                    return tree.repeat(tensor, copies)
                return tensor.clone() if self.mutates else tensor

            return tree.map_tensors(fold, (args, kwargs))
        return tree.clone((args, kwargs)) if self.mutates else (args, kwargs)

    def batch_size(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> int | None:
        """Return the size of a call's batch, or ``None`` if the example did not show it."""
        named = _named(backbone, args, kwargs)
        return next((len(named[path]) for path in self.batched if path in named), None)

    def can_fold(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> bool:
        """Tell whether this call has only arguments that the example had, of one batch size."""
        named = _named(backbone, args, kwargs)
        sizes = {_first(named[path]) for path in self.batched if path in named}
        return self.foldable and len(sizes) == 1 and named.keys() <= self.shapes.keys()

    def check(self, args: Args, kwargs: Kwargs) -> None:
        """Raise if a call has no tensor, a NumPy array, or an empty batch."""
        for key, value in [*enumerate(args), *kwargs.items()]:
            if type(value).__module__ == "numpy" and hasattr(value, "shape") and value.shape:
                raise TypeError(
                    f"argument {key!r} must be a torch.Tensor, got numpy.{type(value).__name__}; "
                    "use torch.as_tensor"
                )
        found = next(tree.tensors((args, kwargs)), None)
        if found is None:
            kinds = ", ".join(type(value).__name__ for value in [*args, *kwargs.values()])
            raise TypeError(
                f"the model must be called with at least one torch.Tensor, got ({kinds})"
            )
        if found[1].dim() and found[1].shape[0] == 0:
            raise ValueError(f"the batch is empty: got an input of shape {list(found[1].shape)}")

    def explain(
        self, backbone: nn.Module, args: Args, kwargs: Kwargs, error: Exception
    ) -> Exception | None:
        """After a failed pass, return a plain error if the arguments differ from the example."""
        for path, tensor in _named(backbone, args, kwargs).items():
            if path not in self.shapes:
                continue
            if self.floating[path] != tensor.is_floating_point():
                kind = "a floating-point" if self.floating[path] else "an integer"
                return TypeError(
                    f"argument {path!r} must be {kind} tensor, as in `example`, got {tensor.dtype}"
                )
            if tuple(tensor.shape[1:]) != self.shapes[path][1:]:
                expected = ["batch", *self.shapes[path][1:]]
                return ValueError(
                    f"argument {path!r} has shape {list(tensor.shape)}, the backbone was wrapped "
                    f"with [{', '.join(map(str, expected))}] and fails on this one: {error}"
                )
        return None

    def explain_nan(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> ValueError | None:
        """After a NaN in the output, return an error if an argument already held one."""
        for path, tensor in _named(backbone, args, kwargs).items():
            count = int(tensor.isnan().sum()) if tensor.is_floating_point() else 0
            if count:
                return ValueError(
                    f"argument {path!r} must hold no NaN, got {count} in a tensor of shape "
                    f"{list(tensor.shape)}"
                )
        return None


def split_example(example: Any) -> tuple[Args, Kwargs]:
    """Return the positional and keyword arguments of ``example``."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    raise TypeError(
        "example must be a tuple of positional arguments or a dict of keyword arguments of the "
        f"backbone, such as example=(x[:2],), got {type(example).__name__}"
    )


def logits_of(output: Any) -> Tensor:
    """Return the output tensor of a backbone: itself, its ``logits``, or a tuple's first item.

    Examples:
        >>> logits_of({"logits": torch.zeros(2, 3), "loss": None}).shape
        torch.Size([2, 3])
    """
    value = output
    if isinstance(output, Mapping):
        value = output.get("logits")
    elif hasattr(output, "logits"):
        value = output.logits
    elif isinstance(output, tuple | list) and output:
        value = output[0]
    if not isinstance(value, Tensor) or value.dim() == 0:
        raise TypeError(
            "the backbone must return a tensor with a batch axis, or a dict or dataclass with "
            f"such a tensor as `logits`, got {type(output).__name__}"
        )
    return value


def learn(
    backbone: nn.Module, names: Mapping[str, int | None], args: Args, kwargs: Kwargs
) -> tuple[list[Site], CallSpec, Tensor]:
    """Run the example; return the sites in execution order, how to call, and the output."""
    named = _named(backbone, args, kwargs)
    if not named:
        raise TypeError("example must hold at least one torch.Tensor")
    for path, tensor in named.items():
        if tensor.numel() == 0:
            raise ValueError(
                f"example must hold a batch of real inputs, got {path!r} of shape "
                f"{list(tensor.shape)}"
            )
    pristine = tree.clone((args, kwargs))
    copied = _named(backbone, *pristine)
    versions = {path: _version(tensor) for path, tensor in copied.items()}
    try:
        trace = _trace(backbone, names, *pristine)
    except Exception as error:
        if str(error).startswith(("site ", "the backbone must")):
            raise
        raise ValueError(
            f"the backbone failed on `example` ({_described(named)}): {error}"
        ) from error
    mutates = any(_version(tensor) != versions[path] for path, tensor in copied.items())
    batch = trace.output.shape[0]
    for name in names:
        if trace.runs.get(name, 0) != 1:
            raise ValueError(
                f"site {name!r} did not run in the forward pass of `example`"
                if name not in trace.runs
                else f"site {name!r} ran {trace.runs[name]} times in the forward pass of "
                "`example`: give each place a submodule of its own and name those"
            )
    batched = tuple(path for path, tensor in named.items() if _first(tensor) == batch)
    doubled = _double(backbone, batched, trace, args, kwargs)
    fixed, unfoldable = _compare(trace, doubled)
    sites = [
        _site(name, shape, axis, batch, backbone, doubled) for name, shape, axis in trace.sites
    ]
    spec = CallSpec(
        shapes={path: tuple(tensor.shape) for path, tensor in named.items()},
        floating={path: tensor.is_floating_point() for path, tensor in named.items()},
        batched=batched,
        foldable=doubled is not None,
        fixed=fixed,
        unfoldable=unfoldable,
        mutates=mutates,
        footprint=max(trace.largest // max(batch, 1), 1),
    )
    return sites, spec, trace.output


class _Trace:
    """What a pass over the example shows."""

    def __init__(self) -> None:
        self.output = torch.empty(0)
        self.sites: list[tuple[str, tuple[int, ...], int | None]] = []
        self.runs: dict[str, int] = {}
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.largest = 0


def _trace(
    backbone: nn.Module, names: Mapping[str, int | None], args: Args, kwargs: Kwargs
) -> _Trace:
    trace = _Trace()
    units: tuple[int, int] | None = None  # axis and size of the last output of a known kind
    follows: Tensor | None = None  # that output, or what modules that keep its shape made of it

    def record(name: str, activation: Tensor) -> None:
        trace.runs[name] = trace.runs.get(name, 0) + 1
        axis = names[name]
        if axis is None and units is not None and activation.dim() > 2:
            known, size = units
            axis = known if activation.shape[known] == size else None
            square = activation.dim() == 3 and activation.shape[1] == activation.shape[2]
            if axis == 1 and square and activation is not follows:
                raise ValueError(
                    f"site {name!r} gives shape {list(activation.shape)}, in which axes 1 and 2 "
                    "are of one size: say which holds the units, as in "
                    f"sites={{{name!r}: 2}}"
                )
        trace.sites.append((name, tuple(activation.shape), axis))

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal units, follows
            found = [tensor for _, tensor in tree.tensors(output)]
            trace.shapes.setdefault(name, []).extend(tuple(tensor.shape) for tensor in found)
            trace.largest = max([trace.largest, *(tensor.numel() for tensor in found)])
            if found and found[0].dim() > 2:
                if isinstance(module, _CHANNELS_FIRST):
                    units = (1, found[0].shape[1])
                elif isinstance(module, _FEATURES_LAST):
                    units = (-1, found[0].shape[-1])
                chained = follows is not None and len(args) == 1 and args[0] is follows
                same = chained and found[0].shape == args[0].shape
                if same or isinstance(module, _CHANNELS_FIRST + _FEATURES_LAST):
                    follows = found[0]
            if name in names:
                record(name, main_tensor(output, name))

        return hook

    handles = [
        module.register_forward_hook(hook_for(name))
        for name, module in backbone.named_modules()
        if name
    ]
    try:
        if INPUT in names:
            record(INPUT, input_tensor(args, kwargs)[1])
        trace.output = logits_of(_quiet(backbone, args, kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return trace


def _quiet(backbone: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    """Run the backbone without gradients, in eval mode, leaving the random state alone."""
    with (
        torch.no_grad(),
        evaluating(backbone),
        torch.random.fork_rng(devices=[]),
        MaskedPass(backbone, (), lambda index, activation: activation),
    ):
        return backbone(*args, **kwargs)


def _site(
    name: str,
    shape: tuple[int, ...],
    axis: int | None,
    batch: int,
    backbone: nn.Module,
    doubled: _Trace | None,
) -> Site:
    rank = len(shape)
    if rank < 2:
        raise ValueError(
            f"site {name!r} gives shape {list(shape)}: it needs a batch axis and a unit axis"
        )
    if axis is None:
        axis = 1 if rank >= 4 else -1
    if not -rank <= axis < rank:
        raise ValueError(f"sites: axis {axis} of {name!r} is outside its shape {list(shape)}")
    axis %= rank
    module = None if name == INPUT else backbone.get_submodule(name)
    sequence_first = getattr(module, "batch_first", True) is False
    candidates = [at for at in ((1, 0) if sequence_first else (0, 1)) if at != axis]
    if doubled is not None and name in doubled.shapes:
        # As many steps as examples look alike, but only the batch grows with the batch.
        after = doubled.shapes[name][0]
        candidates = [at for at in candidates if after[at] == 2 * shape[at]]
    batch_axis = next((at for at in candidates if shape[at] == batch), None)
    if batch_axis is None or (rank == 2 and batch_axis == 1):
        raise ValueError(
            f"site {name!r} gives shape {list(shape)}, in which no axis before the units (axis "
            f"{axis}) is the batch of {batch} that the backbone returns for `example`"
        )
    rate = float(module.p) if isinstance(module, DROPOUTS) else None
    return Site(name, shape[axis], axis, rank, batch_axis, rate)


def _double(
    backbone: nn.Module, batched: Sequence[str], trace: _Trace, args: Args, kwargs: Kwargs
) -> _Trace | None:
    """Run the example with its batch doubled; return the pass if it proves that folding is safe."""
    inputs = {id(tensor) for path, tensor in _named(backbone, args, kwargs).items()
              if path in batched}  # fmt: skip
    doubled = tree.map_tensors(
        lambda _, tensor: tree.repeat(tensor, 2) if id(tensor) in inputs else tensor.clone(),
        (args, kwargs),
    )
    try:
        second = _trace(backbone, {}, *doubled)
    except Exception:
        return None
    expected = tree.repeat(trace.output, 2)
    if second.output.shape != expected.shape or not torch.allclose(
        second.output, expected, rtol=1e-3, atol=1e-4, equal_nan=True
    ):
        return None
    return second


def _compare(trace: _Trace, doubled: _Trace | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules whose output ignores the batch, and those that cannot be repeated."""
    fixed: list[str] = []
    unfoldable: list[str] = []
    if doubled is None:
        return (), ()
    for name, shapes in trace.shapes.items():
        after = doubled.shapes.get(name)
        if after == shapes:
            fixed.append(name)
        elif after != [(2 * shape[0], *shape[1:]) if shape else () for shape in shapes]:
            unfoldable.append(name)
    return tuple(fixed), tuple(unfoldable)


def _named(backbone: nn.Module, args: Args, kwargs: Kwargs) -> dict[str, Tensor]:
    """Tensor arguments by path, positional ones under the name that ``forward`` gives them."""
    try:
        bound = inspect.signature(backbone.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    return dict(tree.tensors(bound))


def _described(named: Mapping[str, Tensor]) -> str:
    return ", ".join(
        f"{path}: {list(tensor.shape)} {tensor.dtype}" for path, tensor in named.items()
    )


def _first(tensor: Tensor) -> int | None:
    return tensor.shape[0] if tensor.dim() else None


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
