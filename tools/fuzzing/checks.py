"""What must hold after a call: nothing changed, no NaN, the right answer, an error with a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PROPER = (ValueError, TypeError, OSError, AttributeError)
"""Kinds of errors that a user may get for a wrong argument."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4, torch.bfloat16: 0.1}


class Problem(Exception):  # noqa: N818
    """A line of the contract that a call broke.

    Args:
        kind: ``"state"``, ``"nan"``, ``"wrong"`` or ``"unnamed"``.
        text: What happened.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Refused(Exception):  # noqa: N818
    """A call was refused with a proper error: the end of a case, and a good one."""


def footprint(module: nn.Module) -> dict[str, Any]:
    """All that a call could leave behind in a module."""
    parts = dict(module.named_modules())
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {
        "mode": {name: part.training for name, part in parts.items()},
        "attributes": {name: sorted(vars(part)) for name, part in parts.items()},
        "hooks": {
            (name, key): list(value)
            for name, part in parts.items()
            for key, value in vars(part).items()
            if "_hooks" in key and isinstance(value, dict)
        },
        "gradients": {name: tensor.grad is None for name, tensor in tensors},
        "tensors": {name: tensor.detach().clone() for name, tensor in tensors},
    }


def surroundings() -> dict[str, Any]:
    """Switches of PyTorch, and its random state."""
    return {
        "random state": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "attention fast path": torch.backends.mha.get_fastpath_enabled(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
    }


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left.nan_to_num(), right.nan_to_num())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


@contextmanager
def unchanged(*modules: nn.Module, inputs: Any = (), but: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise a :class:`Problem` if modules, inputs or PyTorch's state changed, error or not.

    Args:
        modules: To be watched.
        inputs: Tensors of a call, which must not be changed in place.
        but: Parts of :func:`footprint` or :func:`surroundings` that may change.
    """

    def look() -> list[dict[str, Any]]:
        values = {str(at): tensor.clone() for at, tensor in enumerate(inputs)}
        return [surroundings(), {"inputs": values}, *map(footprint, modules)]

    before = look()
    try:
        yield
    finally:
        for old, new in zip(before, look(), strict=True):
            for key in old.keys() - set(but):
                if not _same(old[key], new[key]):
                    raise Problem("state", f"{key} changed")


def finite(name: str, value: Tensor) -> Tensor:
    """Return a result of valid inputs, which must hold finite numbers."""
    if not bool(value.isfinite().all()):
        raise Problem("nan", f"{name} holds NaN or infinity, and no error was raised")
    return value


def close(what: str, value: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Raise unless two results are the same up to rounding in ``dtype``."""
    if value.shape != expected.shape:
        raise Problem("wrong", f"{what}: {list(value.shape)} instead of {list(expected.shape)}")
    value, expected = value.detach().double(), expected.detach().double()
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    if not torch.allclose(value, expected, rtol=0, atol=TOLERANCE[dtype] * scale):
        raise Problem("wrong", f"{what}: differs by {float((value - expected).abs().max()):.3g}")


def true(what: str, value: bool) -> None:
    """Raise unless a fact holds."""
    if not value:
        raise Problem("wrong", f"not true: {what}")


def attempt(function: Callable[[], Any], *names: str) -> Any:
    """Return what a call returns; if it raises, the error must be proper and have a name."""
    try:
        return function()
    except Problem:
        raise
    except Exception as error:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
        if not isinstance(error, PROPER):
            raise Problem("unnamed", f"{type(error).__name__}: {text}") from error
        if not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names):
            wanted = " or ".join(dict.fromkeys(names))
            raise Problem("unnamed", f"{type(error).__name__} without {wanted}: {text}") from error
        raise Refused(text) from error


def refused(function: Callable[[], Any], *names: str) -> None:
    """Make a call that must be refused with an error that has one of the names."""
    value = attempt(function, *names)
    raise Problem("wrong", f"a wrong {names[0]} was accepted and gave {type(value).__name__}")
