"""The layers before the first mask, run once for many draws.

They see the same input in every draw, so their outputs are kept from the first pass and handed out
in the others. Module calls are what is skipped: the code between them runs as it is written.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import CallSpec
from gflowout.core.sites import INPUT, Site

_prefix_lock = threading.Lock()


class _Call:
    """A call of a module that ended before the first mask, and what later passes do instead.

    As ``how`` says: ``"keep"`` returns the kept output; ``"clone"`` a copy of it, since it is
    changed in place later; ``"run"`` calls the module again; ``"enter"`` does so and stands in for
    the modules inside it.
    """

    def __init__(self, args: Any) -> None:
        self.kept: Any = None
        self.how = "enter"
        self._given = _versions(args)
        self._used: list[tuple[Tensor, int]] = []

    def finish(self, output: Any) -> None:
        """Note the output, unless the module changed its arguments: later passes must, too."""
        if not _changed(self._given):
            self.kept, self.how, self._used = tree.clone(output), "keep", _versions(output)

    def settle(self) -> None:
        """At the end of the pass, see whether the output was changed after the call."""
        if self.how == "keep" and _changed(self._used):
            # A copy of an output that is (a view of) an argument would no longer follow it.
            shared = _memory(self._given) & _memory(self._used)
            self.kept, self.how = (None, "run") if shared else (self.kept, "clone")
        self._given, self._used = [], []


class Prefix:
    """Outputs of the modules that finish before the first mask, kept from the first pass on."""

    def __init__(self, spec: CallSpec, active: bool) -> None:
        self.active = active
        self._spec = spec
        self._thread = threading.get_ident()
        self._records: list[tuple[str, _Call]] = []
        self._queues: dict[str, list[_Call]] | None = None
        self._pending: dict[str, Iterator[_Call]] = {}  # in this pass
        self._open = False
        self._inside = False  # a module that runs again as a whole
        self._copies = 1

    def start(self, copies: int) -> None:
        """Begin a pass over ``copies`` copies of the batch."""
        self._copies = copies
        self._open = self.active and self._queues is None
        self._pending = {name: iter(calls) for name, calls in (self._queues or {}).items()}

    def close(self, *_: Any) -> None:
        """The first mask is about to be drawn: nothing after this is common to all draws."""
        if threading.get_ident() == self._thread:
            self._open = False

    def stop(self) -> None:
        """End a pass; after the first, decide what can be handed out and how."""
        if self.active and self._queues is None:
            self._queues = {}
            for name, call in self._records:
                call.settle()
                self._queues.setdefault(name, []).append(call)
            self._records = []

    def call(self, name: str, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Stand in for a module's ``forward``."""
        if self._inside or threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        if self._open:
            return self._record(name, forward, args, kwargs)
        call = next(self._pending.get(name, iter(())), None)
        if call is None or call.how == "enter":
            return forward(*args, **kwargs)
        if call.how == "run" or (self._copies > 1 and name in self._spec.unfoldable):
            self._inside = True
            try:
                return forward(*args, **kwargs)
            finally:
                self._inside = False
        if self._copies > 1 and name not in self._spec.fixed:
            return tree.map_tensors(lambda _, tensor: tree.repeat(tensor, self._copies), call.kept)
        if call.how == "clone":
            return tree.clone(call.kept)
        # Containers are made anew: callers may take things out of them.
        return tree.map_tensors(lambda _, tensor: tensor.detach(), call.kept)

    def _record(self, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call, before = _Call((args, kwargs)), len(self._records)
        output = forward(*args, **kwargs)
        if self._open:
            call.finish(output)
            if call.how == "keep":
                # A module that is done covers all that ran inside it.
                del self._records[before:]
            self._records.append((name, call))
        return output


@contextmanager
def prefix_once(
    backbone: nn.Module, sites: Sequence[Site], spec: CallSpec, several: bool
) -> Iterator[Prefix]:
    """Within the block, let modules before the first mask run in the first pass only.

    Only one thread at a time gets this, and only if there are ``several`` passes; others run every
    pass in full, with the same results.
    """
    with ExitStack() as stack:
        active = several and bool(sites) and _prefix_lock.acquire(blocking=False)
        prefix = Prefix(spec, active)
        if active:
            stack.callback(_prefix_lock.release)
            for name, module in backbone.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    stack.callback(_set_forward, module, module.__dict__.get("forward"))
                    _set_forward(module, functools.partial(prefix.call, name, module.forward))
            first = sites[0].name
            if first == INPUT:
                handle = backbone.register_forward_pre_hook(prefix.close)
            else:
                handle = backbone.get_submodule(first).register_forward_hook(prefix.close)
            stack.callback(handle.remove)
        yield prefix


def _set_forward(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Let a module call this function, or, with ``None``, its class's own ``forward`` again."""
    if forward is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = forward


def _versions(value: Any) -> list[tuple[Tensor, int]]:
    return [
        (tensor, -1 if tensor.is_inference() else tensor._version)
        for _, tensor in tree.tensors(value)
    ]


def _changed(versions: Sequence[tuple[Tensor, int]]) -> bool:
    """Tell whether a tensor was changed in place; one of inference mode cannot tell and may be."""
    return any(version < 0 or tensor._version != version for tensor, version in versions)


def _memory(versions: Sequence[tuple[Tensor, int]]) -> set[int]:
    return {
        tensor.untyped_storage().data_ptr()
        for tensor, _ in versions
        if tensor.layout == torch.strided and tensor.numel()
    }
