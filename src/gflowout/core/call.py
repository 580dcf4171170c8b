"""How a backbone is called: its arguments, its output, and errors that explain a failed call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import checks, tree
from gflowout.core.lazy import cached_property

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True)
class CallSpec:
    """How a backbone is called, as learned from ``example`` (:mod:`gflowout.core.probe`).

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
            raise TypeError("foldable, mutates, random, parts_at_first_site must be true or false")
        if not isinstance(self.padding, str | None):
            raise TypeError(f"padding must be the name of an argument, got {self.padding!r}")
        if self.shapes.keys() != self.floating.keys():
            raise ValueError("shapes and floating must have the same paths")
        for shape in self.shapes.values():
            for size in shape:
                checks.integer("shapes", size, low=0)
        checks.integer("footprint", self.footprint, low=1)


@dataclass(frozen=True, eq=False)
class Call:
    """A backbone with the arguments of one call."""

    backbone: nn.Module
    args: Args
    kwargs: Kwargs

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Tensor arguments by path; see :func:`named_tensors`."""
        return named_tensors(self.backbone, self.args, self.kwargs)

    def kinds(self) -> str:
        """Types of the arguments, for errors."""
        return ", ".join(type(value).__name__ for value in [*self.args, *self.kwargs.values()])


@dataclass(frozen=True, eq=False)
class BoundCall(Call):
    """A call of a wrapped backbone, which is called as ``spec`` says."""

    spec: CallSpec

    @cached_property
    def batch_size(self) -> int | None:
        """Size of the batch, or ``None`` if the example did not show which argument carries it."""
        sizes = [first_size(self.tensors[path]) or 1 for path in self._batched]
        return max(sizes, default=None)  # an argument of one row is broadcast

    @cached_property
    def can_fold(self) -> bool:
        """Whether the call has only arguments that the example had, of one batch size."""
        sizes = {first_size(self.tensors[path]) for path in self._batched}
        in_example = self.tensors.keys() <= self.spec.shapes.keys()
        if not (self.spec.foldable and len(sizes) == 1 and in_example):
            return False
        # An argument that grew with the batch carries it, though the example could not show it.
        return not any(
            first_size(tensor) in sizes and tuple(tensor.shape) != self.spec.shapes[path]
            for path, tensor in self.tensors.items()
            if path not in self.spec.batched
        )

    @cached_property
    def device(self) -> torch.device:
        """Device of the first tensor argument."""
        return tree.tensors((self.args, self.kwargs))[0][1].device

    @property
    def _batched(self) -> list[str]:
        return [path for path in self.spec.batched if path in self.tensors]

    def repeated(self, copies: int) -> tuple[Args, Kwargs]:
        """Arguments for one pass, the batch repeated ``copies`` times."""
        call: tuple[Args, Kwargs] = (self.args, self.kwargs)
        if copies == 1:
            return tree.clone(call) if self.spec.mutates else call
        batched = {id(self.tensors[path]) for path in self._batched}

        def fold(_: str, tensor: Tensor) -> Tensor:
            if id(tensor) in batched:
                return tree.repeat(tensor, copies)
            return tensor.clone() if self.spec.mutates else tensor

        folded: tuple[Args, Kwargs] = tree.map_tensors(fold, call)
        return folded

    def real_positions(self) -> Tensor | None:
        """Positions that are real tokens, [batch or 1, tokens] of bool; ``None`` if all count."""
        name = self.spec.padding
        if name is None or name not in self.tensors:
            return None
        return real_positions(name, self.tensors[name], self.batch_size)

    def check(self) -> None:
        """Raise if the call has no tensor, a NumPy array, or an empty batch."""
        for key, value in [*enumerate(self.args), *self.kwargs.items()]:
            if type(value).__module__ == "numpy" and hasattr(value, "shape") and value.shape:
                raise TypeError(
                    f"argument {key!r} must be a torch.Tensor, got numpy.{type(value).__name__}; "
                    "use torch.as_tensor"
                )
        tensors = tree.tensors((self.args, self.kwargs))
        if not tensors:
            raise TypeError(f"a call must have at least one torch.Tensor, got ({self.kinds()})")
        shape = tensors[0][1].shape
        if len(shape) and shape[0] == 0:
            raise ValueError(f"the batch is empty: got an input of shape {list(shape)}")

    def explain(self, error: Exception) -> Exception | None:
        """After a failed pass, return a plain error if the arguments differ from the example."""
        for path, tensor in self.tensors.items():
            if path not in self.spec.shapes:
                continue
            floating, shape = self.spec.floating[path], self.spec.shapes[path]
            dtype = next((p.dtype for p in self.backbone.parameters()), tensor.dtype)
            both_float = floating and tensor.is_floating_point()
            if both_float and tensor.dtype != dtype and "type" in str(error):
                return TypeError(
                    f"argument {path!r} must be of the backbone's dtype {dtype}, got {tensor.dtype}"
                )
            if floating != tensor.is_floating_point():
                kind = "a floating-point" if floating else "an integer"
                return TypeError(
                    f"argument {path!r} must be {kind} tensor, as in `example`, got {tensor.dtype}"
                )
            if tuple(tensor.shape[1:]) != shape[1:]:
                expected = ", ".join(map(str, ["batch", *shape[1:]]))
                return ValueError(
                    f"argument {path!r} has shape {list(tensor.shape)}, the backbone was wrapped "
                    f"with [{expected}] and fails on this one: {error}"
                )
        return None

    def check_finite(self) -> None:
        """After an output that is not finite, raise an error if an argument is the reason."""
        weights = [p for p in self.backbone.parameters() if p.is_floating_point()]
        dtype = weights[0].dtype if weights else torch.get_default_dtype()
        for path, tensor in self.tensors.items():
            if tensor.numel() == 0 or tensor.is_complex() or tensor.dtype == torch.bool:
                continue
            where = f"in a tensor of shape {list(tensor.shape)}"
            floating, limit = tensor.is_floating_point(), torch.finfo(dtype).max
            if floating and (count := int(tensor.isnan().sum())):
                raise ValueError(f"argument {path!r} must hold no NaN, got {count} {where}")
            # Scores of attention that are to be hidden have -inf added to them.
            hides = floating and bool(((tensor == 0) | (tensor == -torch.inf)).all())
            if floating and not hides and (count := int(tensor.isinf().sum())):
                raise ValueError(
                    f"argument {path!r} must hold finite numbers, got {count} infinite {where}"
                )
            # Products of numbers beyond the root of the limit overflow; integers may be indices.
            largest = 0.0 if hides else float(tensor.double().abs().max())
            if (
                largest > (limit**0.5 if floating else limit)
                and not self._are_indices(tensor)
                and all(bool(weight.isfinite().all()) for weight in weights)
            ):
                raise ValueError(
                    f"argument {path!r} must hold numbers that do not overflow in {dtype}, the "
                    f"backbone's type, got up to {largest:g} {where}: scale inputs to zero mean "
                    "and unit variance"
                )

    def _are_indices(self, tensor: Tensor) -> bool:
        """Whether integers can be the rows of an embedding."""
        tables = [m.num_embeddings for m in self.backbone.modules() if isinstance(m, nn.Embedding)]
        return not tensor.is_floating_point() and int(tensor.max()) < max(tables, default=0)


_CAUSAL = re.compile(r"\w*ForCausalLM|\w*(?<!XLNet)(?<!With)LMHeadModel")
"""Language models of ``transformers`` that predict the token after each position."""


def is_causal(backbone: nn.Module) -> bool:
    """Whether a backbone, or the one inside adapters, is a causal language model."""
    inside = getattr(backbone, "get_base_model", None)
    backbone = inside() if callable(inside) else backbone
    return any(_CAUSAL.fullmatch(kind.__name__) for kind in type(backbone).__mro__)


def are_tokens(call: Call, labels: Tensor, ignored: int | None) -> bool:
    """Whether labels of a causal language model are its input, and not the tokens that follow.

    Models of ``transformers`` shift such labels themselves when they compute a loss; here the
    output of a position is compared with the label of that position. ``ignored`` is the label that
    counts for nothing.
    """
    if not is_causal(call.backbone):
        return False
    tokens = call.tensors.get("input_ids")
    if tokens is None or labels.shape != tokens.shape:
        return False
    counted = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    copied = bool((labels == tokens)[counted].all()) and bool(counted.any())
    follow = (labels[:, :-1] == tokens[:, 1:])[counted[:, :-1]]
    return copied and not bool(follow.all())  # one token repeated for ever looks like both


def check_shift(call: Call, labels: Tensor, ignored: int | None) -> None:
    """Raise if a causal language model would learn to repeat its input: labels are the tokens."""
    if are_tokens(call, labels, ignored):
        raise ValueError(
            f"y (labels) of shape {list(labels.shape)} are the tokens of input_ids, but the label "
            "of a position must be the token after it, or the model learns to repeat its input: "
            "shift them, labels = torch.full_like(input_ids, -100); labels[:, :-1] = "
            "input_ids[:, 1:], with gfo.Categorical(vocabulary, ignore_index=-100)"
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
        keys = f" with keys {list(output)}" if isinstance(output, Mapping) else ""
        raise TypeError(
            "the backbone must return a tensor with a batch axis, or a dict or dataclass with "
            f"such a tensor as `logits`, got {type(output).__name__}{keys}"
        )
    return value


def real_positions(name: str, given: Tensor, batch: int | None) -> Tensor:
    """Check the argument that tells real positions from padding; return where it is not 0.

    Examples:
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
            f"positions, got values down to {float(given.min()):g}: is it a mask that is added to "
            "attention scores?"
        )
    return given != 0


def named_tensors(backbone: nn.Module, args: Args, kwargs: Kwargs) -> dict[str, Tensor]:
    """Return tensor arguments by path, positional ones under their names in ``forward``.

    Those that ``forward`` takes as ``**kwargs`` have their own names, too.
    """
    try:
        signature = _signature(backbone.forward)
        bound = dict(signature.bind(*args, **kwargs).arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound |= bound.pop(name, {})
    except (TypeError, ValueError):
        bound = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    return dict(tree.tensors(bound))


def _signature(forward: Any) -> inspect.Signature:
    """Signature of a bound method, computed once for all its instances, or of any callable."""
    function = getattr(forward, "__func__", None)
    return inspect.signature(forward) if function is None else _without_self(function)


@functools.lru_cache(maxsize=256)
def _without_self(function: Any) -> inspect.Signature:
    whole = inspect.signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def first_size(tensor: Tensor) -> int | None:
    """Size of a tensor's first axis, if it has one."""
    return tensor.shape[0] if tensor.dim() else None
