"""Masks applied at every site while a backbone runs.

Hooks are set on a view of the backbone (:mod:`gflowout.core.view`), never on the backbone itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.sites import DROPOUTS, INPUT, Site
from gflowout.core.view import View, own_hooks, parts_of, set_training

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
        parts = parts_of(backbone)
        fused = [part for part in parts if isinstance(part, _FUSED)]
        changes = set(parts if whole else fused)
        for site in sites:
            changes.add(backbone if site.name == INPUT else backbone.get_submodule(site.name))
        self._shared = View(backbone, changes)
        self.view = self._shared.root
        for part in fused:
            _stop_fast_path(self._shared[part])
        self._pass = _Pass(backbone, sites)
        for index, site in enumerate(sites):
            if site.name == INPUT:
                hook = self._pass.input_hook(index)
                own_hooks(self.view).register_forward_pre_hook(hook, with_kwargs=True)
                continue
            module = self.view.get_submodule(site.name)
            if isinstance(module, DROPOUTS):
                set_training(module, False)  # our masks stand in for its own
            own_hooks(module).register_forward_hook(self._pass.output_hook(index))

    def __call__(
        self,
        args: Any,
        kwargs: Any,
        visit: Visit = lambda index, activation: activation,
        copies: int = 1,
        parting: bool = False,
        batch: int | None = None,
    ) -> Any:
        """Run the backbone with the masks that ``visit`` gives for the sites' activations.

        The pass is over ``copies`` copies of the batch; with ``parting`` they part at the first
        site, up to which a single one serves all. ``batch`` is the size of one, for folded sites.
        """
        self._pass.start(visit, copies, parting, batch)
        self._shared.ready()
        try:
            output = self.view(*args, **kwargs)
        finally:
            self._pass.stop()
            self._shared.hand_back()
        self._pass.check()
        return output

    @contextmanager
    def every_call(self, part: nn.Module, begin: Callable[[], Visit]) -> Iterator[nn.Module]:
        """Let every call of a part be a pass of its own, such as the steps of a generated text.

        ``part`` is the backbone or a module inside that holds all sites; what stands for it in the
        view is returned, to be used as it is. ``begin`` is called before every pass.
        """
        twin = own_hooks(self._shared[part])

        def start(*_: Any) -> None:
            self._pass.start(begin(), copies=1, parting=False, batch=None)

        def stop(*_: Any) -> None:
            self._pass.stop()
            self._pass.check()

        twin.register_forward_pre_hook(start)
        twin.register_forward_hook(stop)
        self._shared.ready()
        try:
            yield twin
        finally:
            self._pass.stop()
            self._shared.hand_back()


class _Pass:
    """Masks of the pass that runs. It does not refer to the view, whose hooks refer to it."""

    def __init__(self, backbone: nn.Module, sites: Sequence[Site]) -> None:
        self._backbone, self._sites = backbone, sites
        self._masks: list[Tensor | None] = []  # None where gradients were off
        self._states: dict[int, _States] = {}  # by site, inside checkpoints
        self._visit: Visit | None = None

    def start(self, visit: Visit, copies: int, parting: bool, batch: int | None) -> None:
        self._masks, self._states = [], {}
        self._visit, self._copies, self._parting, self._batch = visit, copies, parting, batch

    def stop(self) -> None:
        self._visit = None

    def check(self) -> None:
        """Raise if a site did not run."""
        if len(self._masks) < len(self._sites):
            name = self._sites[len(self._masks)].name
            merged = ": is its adapter merged, switched off or not active?" * (".lora_A." in name)
            raise ValueError(f"site {name!r} did not run in the forward pass{merged}")

    def output_hook(self, index: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            activation = main_tensor(output, self._sites[index].name)
            return replace_main(output, self._mask(index, activation))

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
            return self._mask_again(index, self._unfolded(index, activation))
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
        activation = self._unfolded(index, activation)
        site.check(activation)
        if _saved_by_default():
            mask = self._visit(index, activation)
        else:
            mask = self._visit_in_checkpoint(index, activation, self._visit)
        self._masks.append(mask if torch.is_grad_enabled() else None)
        return self._apply(index, activation, mask)

    def _visit_in_checkpoint(self, index: int, activation: Tensor, visit: Visit) -> Tensor:
        """Draw a mask that is not drawn again when the part of the pass is."""
        before = _random_states(activation.device)
        # What drawing saves for its gradients is kept, not recomputed.
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            mask = visit(index, activation)
        self._states[index] = before, _random_states(activation.device)
        return mask

    def _mask_again(self, index: int, activation: Tensor) -> Tensor:
        """Activation checkpointing runs a part of the pass again, for its gradients."""
        mask = self._masks[index]
        if index in self._states:
            _skip(*self._states[index], activation.device)
        if mask is None:
            raise RuntimeError(
                f"site {self._sites[index].name!r} is inside activation checkpointing with "
                "use_reentrant=True, whose gradients would miss the mask's: pass "
                "use_reentrant=False to torch.utils.checkpoint (Hugging Face: model."
                'gradient_checkpointing_enable({"use_reentrant": False}))'
            )
        return self._apply(index, activation, mask)

    def _unfolded(self, index: int, activation: Tensor) -> Tensor:
        site = self._sites[index]
        if site.folded is None:
            return activation
        copies = 1 if self._parting and index == 0 else self._copies
        return site.unfold(activation, None if self._batch is None else copies * self._batch)

    def _apply(self, index: int, activation: Tensor, mask: Tensor) -> Tensor:
        parting = self._parting and index == 0
        site = self._sites[index]
        lazy = parting and not torch.is_grad_enabled() and _read_by_linear(self._backbone, site)
        if site.folded == "batch":
            mask = site.one_row(mask)
        try:
            masked = site.apply(activation, mask, self._copies, parting, lazy)
            return masked if site.folded is None else masked.flatten(0, 1)
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


def _saved_by_default() -> bool:
    """Whether gradients find what an operation saves: no checkpoint is to compute it again."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


_States = tuple[list[Tensor], list[Tensor]]
"""Random states before and after a mask was drawn."""


def _random_states(device: torch.device) -> list[Tensor]:
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _skip(before: list[Tensor], after: list[Tensor], device: torch.device) -> None:
    """Skip the random numbers of a mask, so that dropout behind it has the numbers that it had.

    Only where a checkpoint has put the random state back, which it also does in the end.
    """
    if not all(map(torch.equal, _random_states(device), before)):
        return
    torch.set_rng_state(after[0])
    for state in after[1:]:
        torch.cuda.set_rng_state(state, device)


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
