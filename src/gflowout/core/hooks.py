"""Masks applied at every site while a backbone runs.

Hooks exist only while a pass runs, so a backbone at rest is untouched: it can be copied, pickled,
unwrapped or called on its own. What a pass changes beyond that (eval mode, PyTorch's fused
attention) belongs to the whole process, and passes run in any number of threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.sites import DROPOUTS, INPUT, Site

Visit = Callable[[int, Tensor], Tensor]
"""``visit(site index, activation) -> mask``; for its shapes see :meth:`Site.apply`."""


@contextlib.contextmanager
def masked_pass(
    backbone: nn.Module, sites: Sequence[Site], visit: Visit, copies: int = 1, parting: bool = False
) -> Iterator[None]:
    """Apply ``visit`` at every site while the backbone runs inside the ``with`` block.

    Hooks act only in the thread that opened the block, so several threads can predict with one
    model at the same time. On a clean exit, a site that did not run is an error. The pass is over
    ``copies`` of the batch; if ``parting``, one of them serves all up to the first site.
    """
    masking = _Masking(backbone, sites, visit, copies, parting)
    handles, dropouts = [], []
    for index, site in enumerate(sites):
        if site.name == INPUT:
            hook = partial(masking.input_hook, index)
            handles.append(backbone.register_forward_pre_hook(hook, with_kwargs=True))
            continue
        module = backbone.get_submodule(site.name)
        if isinstance(module, DROPOUTS):
            dropouts.append(module)
        handles.append(module.register_forward_hook(partial(masking.output_hook, index)))
    resting = _modes.rest(dropouts)  # our masks stand in for their own
    _modes.stop_fastpath()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        _modes.wake(resting)
        _modes.allow_fastpath()
    if masking.done < len(sites):
        raise ValueError(f"site {sites[masking.done].name!r} did not run in the forward pass")


@dataclass(eq=False)
class _Masking:
    """The hooks of one pass; for the fields see :func:`masked_pass`."""

    backbone: nn.Module
    sites: Sequence[Site]
    visit: Visit
    copies: int
    parting: bool
    done: int = 0
    thread: int = field(default_factory=threading.get_ident)

    def output_hook(self, index: int, module: nn.Module, args: Any, output: Any) -> Any:
        if threading.get_ident() != self.thread:
            return None
        activation = main_tensor(output, self.sites[index].name)
        return _replace_main(output, self._mask(index, activation))

    def input_hook(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return None
        path, activation = input_tensor(args, kwargs)
        masked = self._mask(index, activation)
        return tree.map_tensors(lambda at, tensor: masked if at == path else tensor, (args, kwargs))

    def _mask(self, index: int, activation: Tensor) -> Tensor:
        site = self.sites[index]
        if index < self.done:
            raise ValueError(
                f"site {site.name!r} ran twice in one forward pass: give each place a submodule of "
                "its own (an nn.Identity will do) and name those"
            )
        if index > self.done:
            raise ValueError(
                f"site {self.sites[self.done].name!r} did not run before {site.name!r}, as it "
                "did with `example`: sites must run in the same order in every pass"
            )
        site.check(activation)
        self.done += 1
        mask = self.visit(index, activation)
        parting = self.parting and index == 0
        lazy = parting and not torch.is_grad_enabled() and self._read_by_linear(site)
        return site.apply(activation, mask, self.copies, parting, lazy)

    def _read_by_linear(self, site: Site) -> bool:
        if site.consumer is None:
            return False
        return type(self.backbone.get_submodule(site.consumer)) is nn.Linear


def main_tensor(output: Any, name: str) -> Tensor:
    """Return the tensor that a site masks: the output itself, or the first item of a tuple."""
    value = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(value, Tensor):
        raise TypeError(
            f"site {name!r} must give a tensor, or a tuple that starts with one, "
            f"got {type(output).__name__}"
        )
    if not value.is_floating_point():
        raise TypeError(f"site {name!r} must give a floating-point tensor, got {value.dtype}")
    return value


def _replace_main(output: Any, value: Tensor) -> Any:
    """Return ``output`` with ``value`` in place of its :func:`main_tensor`."""
    if isinstance(output, Tensor):
        return value
    if hasattr(output, "_replace"):
        return output._replace(**{output._fields[0]: value})
    return type(output)([value, *output[1:]])


def input_tensor(args: Any, kwargs: Any) -> tuple[str, Tensor]:
    """Return path and value of the first floating-point tensor among a call's arguments."""
    for path, tensor in tree.tensors((args, kwargs)):
        if tensor.is_floating_point():
            return path, tensor
    raise TypeError('site "input" needs a floating-point tensor among the inputs, found none')


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode without calling its ``train`` methods, and back again."""
    resting = _modes.rest(module.modules())
    try:
        yield
    finally:
        _modes.wake(resting)


class _Modes:
    """State outside a pass that passes change while they run, in any number of threads.

    The first pass in changes it and the last one out restores it, so that a thread that is done
    does not disturb one that is still running.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resting: dict[nn.Module, int] = {}  # only while they rest
        self._passes = 0
        self._fastpath = True

    def rest(self, modules: Iterable[nn.Module]) -> list[nn.Module]:
        """Put modules in eval mode, one by one; return those that :meth:`wake` is to restore."""
        with self._lock:
            taken = [module for module in modules if module.training or module in self._resting]
            for module in taken:
                self._resting[module] = self._resting.get(module, 0) + 1
                _set_training(module, False)
        return taken

    def wake(self, modules: Iterable[nn.Module]) -> None:
        """Put modules back in train mode unless another pass still needs them at rest."""
        with self._lock:
            for module in modules:
                self._resting[module] -= 1
                if self._resting[module] == 0:
                    del self._resting[module]
                    _set_training(module, True)

    def stop_fastpath(self) -> None:
        """Keep nn.TransformerEncoder off its fused path, which calls no submodule: no masks."""
        with self._lock:
            if self._passes == 0:
                self._fastpath = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._passes += 1

    def allow_fastpath(self) -> None:
        """Allow it again, as before, once no pass is left."""
        with self._lock:
            self._passes -= 1
            if self._passes == 0:
                torch.backends.mha.set_fastpath_enabled(self._fastpath)


_modes = _Modes()  # of this process


def _set_training(module: nn.Module, value: bool) -> None:
    # nn.Module looks whether the value is a parameter, a module or a buffer: most of the time that
    # a small prediction would spend here.
    if type(module).__setattr__ is nn.Module.__setattr__:
        module.__dict__["training"] = value
    else:
        module.training = value
