"""Work instead of seconds: what an action makes PyTorch do, the same on every run and machine.

Of a model, counting knows only which modules are the backbone's and which are the method's.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gflowout.core.model import MaskedModel


@dataclass
class Work:
    """What an action did.

    Attributes:
        passes: Calls of the backbone.
        rows: Rows that went through each layer of the backbone that has parameters, by its name:
            rows of the batch, over all calls that were really made.
        calls: Calls of the method's own networks, the mask generators.
        random_numbers: Random numbers drawn, of any size.
        operations: PyTorch operations, forward and backward, views included.
        products: Those of them that are matrix products or convolutions.
        flops: Floating-point operations of these.
        allocated: Bytes of all tensors that were made.
        peak: Most bytes of such tensors alive at one time.
        held: Bytes of those that are alive in the end, as part of what the action returns.
    """

    passes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    random_numbers: int = 0
    operations: int = 0
    products: int = 0
    flops: int = 0
    allocated: int = 0
    peak: int = 0
    held: int = 0


def count(action: Callable[[], object], model: MaskedModel | None = None) -> Work:
    """Run an action once and count its work.

    Memory is that of tensors which operations make, not of what a kernel needs inside. An action
    that prepares something when it first runs should have run before.

    Args:
        action: What to run, in this thread.
        model: The model that it uses: without it, ``passes``, ``rows`` and ``calls`` stay empty.

    Examples:
        >>> x = torch.zeros(2, 3)
        >>> work = count(lambda: torch.rand(3, 4) + (x @ torch.ones(3, 4)).sum())
        >>> work.random_numbers, work.products, work.flops, work.held
        (12, 1, 48, 48)
    """
    work = Work()
    collecting = gc.isenabled()
    gc.disable()  # what is alive must not depend on when garbage was last collected
    try:
        with _watched(work, model), _Counter(work) as counter:
            result = action()
            work.held = counter.alive
        del result
    finally:
        if collecting:
            gc.enable()
    return work


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation below autograd."""

    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = 0
        self._work = work
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind not in (Tensor, nn.Parameter) for kind in types):
            return NotImplemented  # tensors that know what to do: what they do comes by here
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func._can_decompose():  # asked for by such tensors as a whole
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        work = self._work
        work.operations += 1
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        if formula is not None:
            work.products += 1
            work.flops += formula(*args, **kwargs, out_val=result)
        elif torch.Tag.nondeterministic_seeded in func.tags and made:
            work.random_numbers += made[0].numel()
        given = {
            value.untyped_storage()._cdata
            for value in tree_leaves((args, kwargs))
            if isinstance(value, Tensor)
        }
        for tensor in made:
            if tensor.untyped_storage()._cdata not in given:
                self._note(tensor.untyped_storage())
        return result

    def _note(self, memory: torch.UntypedStorage) -> None:
        """Add memory that an operation made, until it is given back."""
        key, size = memory._cdata, memory.nbytes()
        if key in self._known:
            return

        def gone(_: object) -> None:
            self.alive -= size
            del self._known[key]

        self._known[key] = weakref.ref(memory, gone)
        self.alive += size
        self._work.allocated += size
        self._work.peak = max(self._work.peak, self.alive)


@contextmanager
def _watched(work: Work, model: MaskedModel | None) -> Iterator[None]:
    """Count calls of a model's parts.

    Stands in for ``forward``, not as a hook: hooks also run where an output is handed out that was
    kept from an earlier call.
    """
    if model is None:
        yield
        return
    inside = 0  # of the method's networks

    def enter_backbone(*_: object) -> None:
        work.passes += 1

    def layer(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            first = next(value for value in tree_leaves((args, kwargs)) if hasattr(value, "shape"))
            work.rows[name] = work.rows.get(name, 0) + first.shape[0]
            return forward(*args, **kwargs)

        return stand_in

    def network(forward: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            work.calls += not inside
            inside += 1
            try:
                return forward(*args, **kwargs)
            finally:
                inside -= 1

        return stand_in

    handle = model.backbone.register_forward_pre_hook(enter_backbone)
    layers = [
        (module, layer(name, module.forward))
        for name, module in model.backbone.named_modules()
        if name and any(True for _ in module.parameters(recurse=False))
    ]
    networks = [
        (module, network(module.forward))
        for module in model.method.modules()
        if module is not model.method and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    ]
    changed = [(module, module.__dict__.get("forward")) for module, _ in [*layers, *networks]]
    try:
        for module, stand_in in [*layers, *networks]:
            module.__dict__["forward"] = stand_in
        yield
    finally:
        handle.remove()
        for module, own in changed:
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def figures(work: Work) -> dict[str, float]:
    """Work as columns of a table."""
    return {
        "passes": work.passes,
        "generator calls": work.calls,
        "random numbers": work.random_numbers,
        "operations": work.operations,
        "products": work.products,
        "MFLOP": work.flops / 1e6,
        "MB made": work.allocated / 1e6,
        "MB at once": work.peak / 1e6,
    }
