"""Modes that passes change while they run and give back: eval mode, PyTorch's fused attention.

They belong to the whole process, and passes run in any number of threads. This file knows nothing
of sites, masks or calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

import torch
from torch import nn


@contextlib.contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Put a module in eval mode without calling its ``train`` methods, and back again."""
    resting = held.rest(backbone.modules())
    try:
        yield
    finally:
        held.wake(resting)


class Held:
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


held = Held()
"""The one of this process."""


def _set_training(module: nn.Module, value: bool) -> None:
    # nn.Module looks whether the value is a parameter, a module or a buffer: most of the time that
    # a small prediction would spend here.
    if type(module).__setattr__ is nn.Module.__setattr__:
        module.__dict__["training"] = value
    else:
        module.training = value
