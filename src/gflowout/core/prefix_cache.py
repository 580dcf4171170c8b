"""The layers before the first mask, run once for many draws.

They see the same input in every draw, so their outputs are kept from the first pass and handed out
in the others. Module calls are what is skipped: the code between them runs as it is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import CallSpec


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

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        self._records: list[tuple[str, _Call]] = []
        self._queues: dict[str, list[_Call]] | None = None
        self._pending: dict[str, Iterator[_Call]] = {}  # in this pass
        self._open = False
        self._inside = False  # a module that runs again as a whole
        self._copies = 1

    def attach(self, view: nn.Module) -> None:
        """Stand in for the modules of a view whose modules are all copies."""
        for name, module in view.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):
                module.__dict__["forward"] = functools.partial(self.call, name, module.forward)

    def detach(self, view: nn.Module) -> None:
        """Undo :meth:`attach`, so that nothing is kept alive by itself."""
        for _, module in view.named_modules():
            module.__dict__.pop("forward", None)

    def start(self, copies: int) -> None:
        """Begin a pass over ``copies`` copies of the batch."""
        self._copies = copies
        self._open = self._queues is None
        self._pending = {name: iter(calls) for name, calls in (self._queues or {}).items()}

    def close(self) -> None:
        """The first mask is about to be drawn: nothing after this is common to all draws."""
        self._open = False

    def stop(self) -> None:
        """End a pass; after the first, decide what can be handed out and how."""
        if self._queues is None:
            self._queues = {}
            for name, call in self._records:
                call.settle()
                self._queues.setdefault(name, []).append(call)
            self._records = []

    def call(self, name: str, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Stand in for a module's ``forward``."""
        if self._inside:
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
