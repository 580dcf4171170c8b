"""Find the weights of a unit: those whose gradient is exactly 0 when the unit is dropped.

A dropped unit passes on neither values nor gradients. So the rows that write it, the columns that
read it, and whatever acts only together with it, such as the queries and keys of an attention head
without values, have a gradient of exactly 0 under the mask and another one without it. No rule for
a kind of layer is needed, and flattened channels, heads, ranks and concatenations are all the same.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gflowout.core import tree
from gflowout.core.call import BoundCall, logits_of
from gflowout.core.hooks import MaskedBackbone
from gflowout.core.sites import Site

Slices = dict[str, dict[int, Tensor]]
"""Of parameters, by name and axis: which places on the axis, [size] of bool."""

_VECTOR_NOISE = 0.2
"""Standard deviation of what is added to inputs, biases and scales."""
_FLAT = frozenset(
    {"celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "mish", "relu6", "selu",
     "sigmoid", "silu", "softplus", "tanh"}
)  # fmt: skip
"""Activation functions that are flat somewhere, some only where single precision ends."""


class Leaky(TorchFunctionMode):
    """Activation functions are flat nowhere: no unit is silent by its value.

    A unit without a gradient for all examples would look as if it were dropped. Rectifiers stay
    such that a factor may come before or after them, others such that it may not; values at 0 stay.

    Examples:
        >>> with Leaky():
        ...     F.relu(torch.tensor([-2.0, 2.0])), F.gelu(torch.tensor([-9.0, 0.0]))
        (tensor([-1.,  2.]), tensor([-0.9000,  0.0000]))
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace activation functions; call everything else."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        inplace = name.endswith("_") or bool(kwargs.get("inplace", False))
        name, values = name.removesuffix("_"), args[0] if args else kwargs.get("input")
        floor = kwargs.get("min", args[1] if len(args) > 1 else None)
        if name == "relu" or (name in ("clamp", "clamp_min") and _is_zero(floor)):
            return F.leaky_relu(values, 0.5, inplace=inplace)
        if name in _FLAT and "out" not in kwargs:
            own = {key: kwargs[key] for key in kwargs if key not in ("input", "inplace")}
            given = values.clone() if inplace else values
            sloped = getattr(F, name)(given, *args[1:], **own) + F.softsign(given)
            return values.copy_(sloped) if inplace else sloped
        return func(*args, **kwargs)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


class Probe:
    """A copy of a backbone with perturbed weights, on which changes are tried.

    Its weights have no zeros and its units are never silent, so that a change which gives the
    same output is right for any weights.

    Args:
        backbone: To copy.
        call: An example call of it.
    """

    def __init__(self, backbone: nn.Module, call: BoundCall) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.module = copy.deepcopy(backbone).eval()
        for parameter in self.module.parameters():
            if parameter.is_floating_point():
                parameter.requires_grad_(True)
                parameter.data = self._perturbed(parameter.data)
        floats = [id(tensor) for tensor in call.tensors.values() if tensor.is_floating_point()]

        def perturbed(_: str, tensor: Tensor) -> Tensor:
            # Further arguments may be masks of 0 and 1, or positions.
            if id(tensor) not in floats[:1]:
                return tensor
            noise = torch.randn(tensor.shape, generator=self._generator)
            return tensor + _VECTOR_NOISE * noise.to(tensor)

        self._args, self._kwargs = tree.map_tensors(perturbed, (call.args, call.kwargs))
        self._batch = call.batch_size

    def _perturbed(self, values: Tensor) -> Tensor:
        """Add noise: to matrices as much as keeps the size of what they multiply."""
        inputs = values.numel() // max(len(values), 1) if values.dim() > 1 else 0
        scale = inputs**-0.5 if inputs else _VECTOR_NOISE
        return values + scale * torch.randn(values.shape, generator=self._generator).to(values)

    def run(self, sites: Sequence[Site] = (), masks: Sequence[Tensor] = ()) -> Tensor:
        """Logits under one mask, [units], for each of some sites."""
        masked = MaskedBackbone(self.module, sites)
        args, kwargs = tree.clone((self._args, self._kwargs))
        with Leaky(), torch.random.fork_rng(devices=[]):
            output = masked(
                args, kwargs, lambda at, value: masks[at].unsqueeze(0).to(value), batch=self._batch
            )
        return logits_of(output)

    def alive(self, site: Site, mask: Tensor) -> dict[str, Tensor]:
        """Elements of all parameters that have a gradient under a mask; {} if none is known."""
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        with (
            contextlib.suppress(RuntimeError),  # in-place changes, no gradients in the backbone
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            logits = self.run([site], [mask])
            direction = torch.randn(logits.shape, generator=self._generator).to(logits)
            loss = (logits * direction).sum()
            gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            return {
                name: torch.zeros_like(parameter, dtype=torch.bool) if grad is None else grad != 0
                for (name, parameter), grad in zip(named.items(), gradients, strict=True)
            }
        return {}

    def calls(self) -> dict[str, tuple[Any, Any, Any]]:
        """Arguments, keyword arguments and output of every part that runs, by name."""
        calls: dict[str, tuple[Any, Any, Any]] = {}
        with contextlib.ExitStack() as hooks, torch.no_grad():
            for name, part in self.module.named_modules():

                def note(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    calls[name] = (args, kwargs, output)

                hooks.enter_context(part.register_forward_hook(note, with_kwargs=True))
            self.run()
        return calls


class Evidence:
    """Which weights of a probe belong to the units of a site."""

    def __init__(self, probe: Probe, site: Site) -> None:
        self._probe, self._site = probe, site
        self._before = probe.alive(site, torch.ones(site.units))

    def slices(self, units: Tensor) -> Slices:
        """Slices of the weights of some units together, [units] of bool."""
        if not self._before or not bool(units.any()):
            return {}
        after = self._probe.alive(self._site, (~units).float())
        return dead_slices(self._probe.module, self._before, after, int(units.sum()))

    def idle_parts(self) -> list[str]:
        """Names of the parts that have weights, none of which matters without the site."""
        if not self._before:
            return []
        after = self._probe.alive(self._site, torch.zeros(self._site.units))
        idle = []
        for name, part in self._probe.module.named_modules():
            own = [f"{name}.{key}" if name else key for key, _ in part.named_parameters()]
            own = [key for key in own if key in after]
            if any(bool(self._before[key].any()) for key in own) and not any(
                bool(after[key].any()) for key in own
            ):
                idle.append(name)
        return idle


def dead_slices(
    module: nn.Module, before: dict[str, Tensor], after: dict[str, Tensor], units: int
) -> Slices:
    """Places on the axes of parameters that lose their gradient with some units.

    Their number must be a multiple of that of the units; if not, some were not seen, or are shared.

    Args:
        module: With the parameters.
        before: Elements with a gradient, by parameter.
        after: The same without the units.
        units: Number of units.
    """
    slices: Slices = {}
    vectors = []
    for name, alive in before.items():
        prefix = name.rpartition(".")[0]
        owner = module.get_submodule(prefix)
        matrix = any(p is not None and p.dim() > 1 for p in owner._parameters.values())
        if alive.dim() == 1 and matrix:
            vectors.append(name)
            continue
        for axis in range(alive.dim()):
            was, now = (_along(owner, name, value, axis) for value in (alive, after[name]))
            dead = (was & ~now).cpu()
            count = int(dead.sum())
            if not count or count % units or (axis > 0 and not bool(now.any())):
                continue
            slices.setdefault(name, {})[axis] = dead
    for name in vectors:
        followed = _followed(name, after[name].cpu(), slices)
        if followed is not None:
            slices[name] = {0: followed}
    return slices


def is_grouped(owner: nn.Module, name: str) -> bool:
    """Whether a parameter is the weight of a convolution with groups."""
    grouped = isinstance(owner, nn.modules.conv._ConvNd) and owner.groups > 1
    return grouped and not owner.transposed and name.rpartition(".")[2] == "weight"


def by_group(weight: Tensor, owner: Any) -> Tensor:
    """View the weight of a convolution as [groups, outputs, inputs, ...] of every group."""
    return weight.reshape(owner.groups, -1, *weight.shape[1:])


def _along(owner: nn.Module, name: str, alive: Tensor, axis: int) -> Tensor:
    """Whether anything is alive at each place on an axis; with groups, at each input channel."""
    if axis == 1 and is_grouped(owner, name):
        return by_group(alive, owner).flatten(3).any(3).any(1).flatten()
    return alive.movedim(axis, 0).flatten(1).any(1) if alive.dim() > 1 else alive


def _followed(name: str, alive: Tensor, slices: Slices) -> Tensor | None:
    """Places of a bias that go with those of its weight, if it has no gradient there.

    Its own gradients do not tell: that of keys is 0 but for rounding, since they shift all scores
    of a query.
    """
    prefix = name.rpartition(".")[0]
    for other, axes in slices.items():
        if other.rpartition(".")[0] == prefix:
            for dead in axes.values():
                if len(dead) == len(alive) and not bool((alive & dead).any()):
                    return dead
    return None
