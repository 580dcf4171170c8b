"""Masks applied at every site while a backbone runs.

Hooks exist only while a pass runs, so a backbone at rest is untouched: it can be copied, pickled,
unwrapped or called on its own. This file does not know where masks come from.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gflowout.core import tree
from gflowout.core.modes import held
from gflowout.core.sites import DROPOUTS, INPUT, Site

Visit = Callable[[int, Tensor], Tensor]
"""``visit(site index, activation) -> mask``; for its shapes see :meth:`Site.apply`."""


class MaskedPass(contextlib.AbstractContextManager["MaskedPass"]):
    """Applies ``visit`` at every site while the backbone runs inside the ``with`` block.

    Hooks act only in the thread that opened the block, so several threads can predict with one
    model at the same time. On a clean exit, a site that did not run is an error.

    Args:
        backbone: The module that holds the sites.
        sites: In execution order.
        visit: Gives the mask for a site's activation.
        copies: Copies of the batch that the pass is over.
        parting: Whether these part at the first site, up to which a single one serves all.
    """

    def __init__(
        self,
        backbone: nn.Module,
        sites: Sequence[Site],
        visit: Visit,
        copies: int = 1,
        parting: bool = False,
    ) -> None:
        self._copies = copies
        self._parting = parting
        self._backbone = backbone
        self._sites = sites
        self._visit = visit
        self._done = 0
        self._thread = threading.get_ident()
        self._handles: list[RemovableHandle] = []
        self._resting: list[nn.Module] = []

    def __enter__(self) -> MaskedPass:
        dropouts = []
        for index, site in enumerate(self._sites):
            if site.name == INPUT:
                hook = self._input_hook(index)
                self._handles.append(
                    self._backbone.register_forward_pre_hook(hook, with_kwargs=True)
                )
                continue
            module = self._backbone.get_submodule(site.name)
            if isinstance(module, DROPOUTS):
                dropouts.append(module)
            self._handles.append(module.register_forward_hook(self._output_hook(index)))
        self._resting = held.rest(dropouts)  # our masks stand in for their own
        held.stop_fastpath()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        held.wake(self._resting)
        held.allow_fastpath()
        if error is None and self._done < len(self._sites):
            raise ValueError(
                f"site {self._sites[self._done].name!r} did not run in the forward pass"
            )

    def _output_hook(self, index: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if threading.get_ident() != self._thread:
                return None
            activation = main_tensor(output, self._sites[index].name)
            return replace_main(output, self._mask(index, activation))

        return hook

    def _input_hook(self, index: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return None
            path, activation = input_tensor(args, kwargs)
            masked = self._mask(index, activation)
            return tree.map_tensors(
                lambda at, tensor: masked if at == path else tensor, (args, kwargs)
            )

        return hook

    def _mask(self, index: int, activation: Tensor) -> Tensor:
        site = self._sites[index]
        if index < self._done:
            raise ValueError(
                f"site {site.name!r} ran twice in one forward pass: give each place a submodule of "
                "its own (an nn.Identity will do) and name those"
            )
        if index > self._done:
            raise ValueError(
                f"site {self._sites[self._done].name!r} did not run before {site.name!r}, as it "
                "did with `example`: sites must run in the same order in every pass"
            )
        site.check(activation)
        self._done += 1
        mask = self._visit(index, activation)
        parting = self._parting and index == 0
        put_off = parting and not torch.is_grad_enabled() and self._read_by_linear(site)
        return site.apply(activation, mask, self._copies, parting, put_off)

    def _read_by_linear(self, site: Site) -> bool:
        if site.consumer is None:
            return False
        return type(self._backbone.get_submodule(site.consumer)) is nn.Linear


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


def replace_main(output: Any, value: Tensor) -> Any:
    """Return ``output`` with ``value`` where :func:`main_tensor` found its tensor."""
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
