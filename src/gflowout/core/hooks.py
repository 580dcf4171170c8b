"""Masks applied at every site while a backbone runs.

Hooks are set on a view of the backbone (:mod:`gflowout.core.view`), never on the backbone itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.sites import DROPOUTS, INPUT, Site
from gflowout.core.view import View, set_training

Visit = Callable[[int, Tensor], Tensor]
"""``visit(site index, activation) -> mask``; for its shapes see :meth:`Site.apply`."""

_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules with a fast path that calls none of their submodules, so that no mask would act there."""


class MaskedBackbone:
    """A view of a backbone that asks for a mask at every site; the backbone does not change.

    ``sites`` are in execution order. With ``whole``, all modules of ``view`` are copies, which may
    be changed further.
    """

    def __init__(self, backbone: nn.Module, sites: Sequence[Site], whole: bool = False) -> None:
        changes = {part for part in backbone.modules() if whole or isinstance(part, _FUSED)}
        for site in sites:
            changes.add(backbone if site.name == INPUT else backbone.get_submodule(site.name))
        self._shared = View(backbone, changes)
        self.view = self._shared.root
        for part in self.view.modules():
            if isinstance(part, _FUSED):
                _stop_fast_path(part)
        self._pass = _Pass(sites, [_read_by_linear(backbone, site) for site in sites])
        for index, site in enumerate(sites):
            if site.name == INPUT:
                hook = self._pass.input_hook(index)
                self.view.register_forward_pre_hook(hook, with_kwargs=True)
                continue
            module = self.view.get_submodule(site.name)
            if isinstance(module, DROPOUTS):
                set_training(module, False)  # our masks stand in for its own
            module.register_forward_hook(self._pass.output_hook(index))

    def __call__(
        self,
        args: Any,
        kwargs: Any,
        visit: Visit = lambda index, activation: activation,
        copies: int = 1,
        parting: bool = False,
    ) -> Any:
        """Run the backbone with the masks that ``visit`` gives for the sites' activations.

        The pass is over ``copies`` copies of the batch; with ``parting`` they part at the first
        site, up to which a single one serves all.
        """
        self._pass.start(visit, copies, parting)
        self._shared.ready()
        try:
            output = self.view(*args, **kwargs)
        finally:
            self._pass.stop()
            self._shared.hand_back()
        self._pass.check()
        return output


class _Pass:
    """Masks of the pass that runs. It does not refer to the view, whose hooks refer to it."""

    def __init__(self, sites: Sequence[Site], read_by_linear: Sequence[bool]) -> None:
        self._sites = sites
        self._read_by_linear = read_by_linear
        self._masks: list[Tensor | None] = []  # None where gradients were off
        self._visit: Visit | None = None

    def start(self, visit: Visit, copies: int, parting: bool) -> None:
        self._masks = []
        self._visit, self._copies, self._parting = visit, copies, parting

    def stop(self) -> None:
        self._visit = None

    def check(self) -> None:
        """Raise if a site did not run."""
        if len(self._masks) < len(self._sites):
            name = self._sites[len(self._masks)].name
            raise ValueError(f"site {name!r} did not run in the forward pass")

    def output_hook(self, index: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            activation = main_tensor(output, self._sites[index].name)
            return _replace_main(output, self._mask(index, activation))

        return hook

    def input_hook(self, index: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            path, activation = input_tensor(args, kwargs)
            masked = self._mask(index, activation)
            return tree.map_tensors(
                lambda at, tensor: masked if at == path else tensor, (args, kwargs)
            )

        return hook

    def _mask(self, index: int, activation: Tensor) -> Tensor:
        if self._visit is None:
            return self._mask_again(index, activation)
        site, done = self._sites[index], len(self._masks)
        if index < done:
            raise ValueError(
                f"site {site.name!r} ran twice in one forward pass: give each place a submodule of "
                "its own (an nn.Identity will do) and name those"
            )
        if index > done:
            raise ValueError(
                f"site {self._sites[done].name!r} did not run before {site.name!r}, as it "
                "did with `example`: sites must run in the same order in every pass"
            )
        site.check(activation)
        with _kept():
            mask = self._visit(index, activation)
        self._masks.append(mask if torch.is_grad_enabled() else None)
        return self._apply(index, activation, mask)

    def _mask_again(self, index: int, activation: Tensor) -> Tensor:
        """Activation checkpointing runs a part of the pass again, for its gradients."""
        mask = self._masks[index]
        if mask is None:
            raise RuntimeError(
                f"site {self._sites[index].name!r} is inside activation checkpointing with "
                "use_reentrant=True, whose gradients would miss the mask's: pass "
                "use_reentrant=False to torch.utils.checkpoint (Hugging Face: model."
                'gradient_checkpointing_enable({"use_reentrant": False}))'
            )
        return self._apply(index, activation, mask)

    def _apply(self, index: int, activation: Tensor, mask: Tensor) -> Tensor:
        parting = self._parting and index == 0
        lazy = parting and not torch.is_grad_enabled() and self._read_by_linear[index]
        site = self._sites[index]
        try:
            return site.apply(activation, mask, self._copies, parting, lazy)
        except Exception:  # PyTorch's message names neither the site nor the mask
            rows = activation.shape[site.batch_axis] * (self._copies if parting else 1)
            site.check_mask(mask, rows, self._copies)
            raise


def _read_by_linear(backbone: nn.Module, site: Site) -> bool:
    return site.consumer is not None and type(backbone.get_submodule(site.consumer)) is nn.Linear


def _stop_fast_path(module: nn.Module) -> None:
    """Keep a module of the view off its fused path."""
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.MultiheadAttention) and not module.training:
        # Its mode decides on dropout and on the fused path, and on nothing else.
        set_training(module, True)
        module.dropout = 0.0


def _kept() -> AbstractContextManager[Any]:
    """Keep what drawing a mask saves for its gradients: it is not drawn again in a checkpoint."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


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
