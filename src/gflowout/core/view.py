"""Views of a module: modules of their own that share its parameters and buffers.

A pass needs hooks at the sites, and a prediction needs eval mode. Both are set on a view, so that
the module itself never changes: other threads may train, copy, pickle or save it meanwhile, and an
interrupt leaves nothing to restore.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Set
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Tables that a view has for itself, with what stands in them."""


class View:
    """A module whose parts can be changed without changing the module.

    Parts that are to change, and all modules that hold them, are copied shallowly: parameters and
    buffers stay the same tensors. All other parts are the module's own. ``changes`` are the modules
    inside ``module``, which may be a view, that are to be changed. ``root`` stands for ``module``,
    and is ``module`` if nothing is to change.

    Examples:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        >>> view = View(net, {net[1]})
        >>> view.root[1].training = False
        >>> net[1].training, view.root[0] is net[0]
        (True, True)
    """

    def __init__(self, module: nn.Module, changes: Set[nn.Module]) -> None:
        self._changes = changes
        self._views: dict[nn.Module, nn.Module] = {}
        self.root = self._visit(module)
        self._copies = [
            (part, twin)
            for part, twin in self._views.items()
            if twin is not part and not isinstance(part, torch.jit.ScriptModule)
        ]
        for _, twin in self._copies:
            self._rebind(twin)
        self._before: list[dict[str, Any]] = []

    def _visit(self, module: nn.Module) -> nn.Module:
        view = self._views.get(module)
        if view is not None:
            return view
        self._views[module] = module
        if isinstance(module, torch.jit.ScriptModule):
            if not self._changes.isdisjoint(module.modules()):
                self._views[module] = copy.copy(module)  # of all that is inside, tensors shared
            return self._views[module]
        children = {
            name: None if child is None else self._visit(child)
            for name, child in module._modules.items()
        }
        same = all(child is module._modules[name] for name, child in children.items())
        if same and module not in self._changes:
            return module
        twin = self._views[module] = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        for name in _HOOKS:
            twin.__dict__[name] = twin.__dict__[name].copy()
        twin.__dict__["_modules"] = children
        return twin

    def _rebind(self, twin: nn.Module) -> None:
        """Let code that is kept in attributes, such as a replaced ``forward``, act on the view."""
        for name, value in twin.__dict__.items():
            if callable(value):
                twin.__dict__[name] = self._rebound(value)
        twin.__dict__["_compiled_call_impl"] = None  # compiled for the module itself
        if type(twin).__module__ == "torch._dynamo.eval_frame":  # what torch.compile returns
            twin.__dict__["forward"] = twin.get_submodule("_orig_mod")

    def _rebound(self, value: Any, depth: int = 8) -> Any:
        """``value`` with views in place of the modules that it refers to, wrapper by wrapper."""
        if isinstance(value, nn.Module):
            return self._views.get(value, value)
        if depth == 0:
            return value
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self._rebound(value.__self__, depth - 1))
        if isinstance(value, functools.partial):
            function, *args = (self._rebound(part, depth - 1) for part in (value.func, *value.args))
            named = {name: self._rebound(part, depth - 1) for name, part in value.keywords.items()}
            return functools.partial(function, *args, **named)
        if isinstance(value, FunctionType) and value.__closure__:
            copied = FunctionType(
                value.__code__, value.__globals__, value.__name__, value.__defaults__,
                tuple(self._rebound(cell, depth - 1) for cell in value.__closure__),
            )  # fmt: skip
            copied.__kwdefaults__ = value.__kwdefaults__
            return copied
        if isinstance(value, CellType):
            try:
                content = value.cell_contents
            except ValueError:  # not filled yet
                return value
            new = self._rebound(content, depth)
            return value if new is content else CellType(new)
        return value

    def ready(self) -> None:
        """Note how the view is now, before it runs; see :meth:`hand_back`."""
        self._before = [twin.__dict__.copy() for _, twin in self._copies]

    def hand_back(self) -> None:
        """Give the module what its own code has set on the view since: counters, caches, ..."""
        for (module, twin), before in zip(self._copies, self._before, strict=True):
            for name, value in twin.__dict__.items():
                if before.get(name, self) is not value:
                    module.__dict__[name] = value


@contextmanager
def evaluating(module: Module) -> Iterator[Module]:
    """Yield the module in eval mode: itself if it is, else a view of it."""
    view = View(module, {part for part in module.modules() if part.training})
    for part in view.root.modules():
        if part.training:
            set_training(part, False)
    view.ready()
    try:
        yield view.root  # type: ignore[misc]
    finally:
        view.hand_back()


def set_training(module: nn.Module, value: bool) -> None:
    """Set the mode of a single module, quickly and without calling its ``train``."""
    # nn.Module looks whether the value is a parameter, a module or a buffer: most of the time that
    # a small prediction would spend here.
    if type(module).__setattr__ is nn.Module.__setattr__:
        module.__dict__["training"] = value
    else:
        module.training = value
