"""How a backbone is called: its arguments, its output, and what a failed call says.

All of it is learned from one example (:mod:`gflowout.core.probe`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gflowout.core import checks, tree

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


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
        random: Whether the backbone draws random numbers itself, even in eval mode.
        parts_at_first_site: Whether all that depends on the batch passes through the first site, so
            that one copy of the batch serves all draws up to there.
        padding: Name of the argument that tells real positions from padding, if there is one.
    """

    shapes: dict[str, tuple[int, ...]]
    floating: dict[str, bool]
    batched: tuple[str, ...]
    foldable: bool
    fixed: tuple[str, ...]
    unfoldable: tuple[str, ...]
    mutates: bool
    footprint: int
    random: bool
    parts_at_first_site: bool = False
    padding: str | None = None

    def __post_init__(self) -> None:
        """Check the types: a specification may come from a file."""
        names = [self.batched, self.fixed, self.unfoldable]
        if not all(isinstance(name, str) for group in names for name in group):
            raise TypeError("batched, fixed and unfoldable must hold names")
        flags = (self.foldable, self.mutates, self.random, self.parts_at_first_site)
        if not all(isinstance(flag, bool) for flag in flags):
            raise TypeError(
                "foldable, mutates, random and parts_at_first_site must be true or false"
            )
        if not isinstance(self.padding, str | None):
            raise TypeError(f"padding must be the name of an argument, got {self.padding!r}")
        if self.shapes.keys() != self.floating.keys():
            raise ValueError("shapes and floating must have the same paths")
        for shape in self.shapes.values():
            for size in shape:
                checks.integer("shapes", size, low=0)
        checks.integer("footprint", self.footprint, low=1)

    def prepare(self, backbone: nn.Module, args: Args, kwargs: Kwargs, copies: int) -> Any:
        """Return the arguments for one pass, the batch repeated ``copies`` times."""
        if copies > 1:
            names = named_tensors(backbone, args, kwargs)
            batched = {id(tensor) for path, tensor in names.items() if path in self.batched}

            def fold(_: str, tensor: Tensor) -> Tensor:
                if id(tensor) in batched:
                    return tree.repeat(tensor, copies)
                return tensor.clone() if self.mutates else tensor

            return tree.map_tensors(fold, (args, kwargs))
        return tree.clone((args, kwargs)) if self.mutates else (args, kwargs)

    def batch_size(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> int | None:
        """Return the size of a call's batch, or ``None`` if the example did not show it."""
        named = named_tensors(backbone, args, kwargs)
        sizes = [first_size(named[path]) or 1 for path in self.batched if path in named]
        return max(sizes, default=None)  # an argument of one row is broadcast

    def can_fold(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> bool:
        """Tell whether this call has only arguments that the example had, of one batch size."""
        named = named_tensors(backbone, args, kwargs)
        sizes = {first_size(named[path]) for path in self.batched if path in named}
        if not self.foldable or len(sizes) != 1 or not named.keys() <= self.shapes.keys():
            return False
        # An argument that grew with the batch carries it, though the example could not show it.
        return not any(
            first_size(tensor) in sizes and tuple(tensor.shape) != self.shapes[path]
            for path, tensor in named.items()
            if path not in self.batched
        )

    def real_positions(self, backbone: nn.Module, args: Args, kwargs: Kwargs) -> Tensor | None:
        """Tell real positions from padding, [batch or 1, tokens] of bool; ``None`` if all count."""
        if self.padding is None:
            return None
        given = named_tensors(backbone, args, kwargs).get(self.padding)
        if given is None:
            return None
        return real_positions(self.padding, given, self.batch_size(backbone, args, kwargs))

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
        for path, tensor in named_tensors(backbone, args, kwargs).items():
            if path not in self.shapes:
                continue
            expected_dtype = next((p.dtype for p in backbone.parameters()), tensor.dtype)
            both_float = self.floating[path] and tensor.is_floating_point()
            if both_float and tensor.dtype != expected_dtype and "dtype" in str(error):
                return TypeError(
                    f"argument {path!r} must be of the backbone's dtype {expected_dtype}, got "
                    f"{tensor.dtype}"
                )
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
        for path, tensor in named_tensors(backbone, args, kwargs).items():
            count = int(tensor.isnan().sum()) if tensor.is_floating_point() else 0
            if count:
                return ValueError(
                    f"argument {path!r} must hold no NaN, got {count} in a tensor of shape "
                    f"{list(tensor.shape)}"
                )
        return None


def logits_of(output: Any) -> Tensor:
    """Return the output tensor of a backbone: itself, its ``logits``, or a tuple's first item.

    Examples:
        >>> import torch
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
        keys = f" with keys {list(output)}" if isinstance(output, Mapping) else ""
        raise TypeError(
            "the backbone must return a tensor with a batch axis, or a dict or dataclass with "
            f"such a tensor as `logits`, got {type(output).__name__}{keys}"
        )
    return value


def real_positions(name: str, given: Tensor, batch: int | None) -> Tensor:
    """Check the argument that tells real positions from padding; return where it is not 0.

    Args:
        name: Of the argument.
        given: Its value.
        batch: Size of the batch, if known.

    Examples:
        >>> import torch
        >>> real_positions("attention_mask", torch.tensor([[1, 1, 0]]), batch=1)
        tensor([[ True,  True, False]])
    """
    if given.dim() != 2 or (batch is not None and len(given) not in (1, batch)):
        raise ValueError(
            f"argument {name!r}, which padding names, must have shape [{batch or 'batch'}, tokens] "
            f"and not be 0 where a position is real, got {list(given.shape)}"
        )
    if given.is_floating_point() and bool((given < 0).any()):
        raise ValueError(
            f"argument {name!r}, which padding names, must be 0 for padding and 1 for real "
            f"positions, got values down to {float(given.min()):g}: a mask that is added to scores?"
        )
    return given != 0


def named_tensors(backbone: nn.Module, args: Args, kwargs: Kwargs) -> dict[str, Tensor]:
    """Return tensor arguments by path, positional ones under their names in ``forward``."""
    try:
        bound = _signature(backbone.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    return dict(tree.tensors(bound))


def _signature(forward: Any) -> inspect.Signature:
    """Signature of a bound method, worked out once for all its instances; or of what else it is."""
    function = getattr(forward, "__func__", None)
    return inspect.signature(forward) if function is None else _without_self(function)


@functools.lru_cache(maxsize=256)
def _without_self(function: Any) -> inspect.Signature:
    whole = inspect.signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def first_size(tensor: Tensor) -> int | None:
    """Size of a tensor's first axis, if it has one."""
    return tensor.shape[0] if tensor.dim() else None
