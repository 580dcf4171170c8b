"""What is done at one site: slices of weights cut out or scaled, modules replaced, or a mask kept.

A step is tried on a perturbed copy (:mod:`gflowout.compaction.evidence`) and repeated on the
result, so it is stored as names and places and applied with the multipliers of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.compaction.evidence import Slices, by_group, is_grouped
from gflowout.core import tree
from gflowout.core.hooks import input_tensor, main_tensor, replace_main
from gflowout.core.sites import INPUT, Site

MASK = "gflowout_mask"
"""Buffer of a module whose output is still masked."""

PLACES = "gflowout_places"
"""Buffer of a module to whose output zeros are added: where the others are."""

_COUNTS = frozenset(
    {"num_heads", "num_attention_heads", "num_key_value_heads", "n_heads", "all_head_size",
     "split_size", "embed_dim", "inner_dim", "intermediate_size"}
)  # fmt: skip
"""Attributes with a number of heads, or of features of all of them together."""


class Silent(nn.Module):
    """Gives zeros where a module stood whose output the result does not depend on.

    Args:
        features: Size of the last axis of the output; other axes are those of the input.
        more: Further items of the output, all ``None``; ``None`` for a tensor alone.

    Examples:
        >>> Silent(3)(torch.ones(2, 5))
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """

    def __init__(self, features: int, more: int | None = None) -> None:
        super().__init__()
        self.features, self.more = features, more

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return zeros of the input's shape but for the last axis."""
        values = input_tensor(args, kwargs)[1]
        zeros = values.new_zeros(*values.shape[:-1], self.features)
        return zeros if self.more is None else (zeros, *[None] * self.more)

    def extra_repr(self) -> str:
        """Show the size."""
        return f"features={self.features}"


@dataclass
class Step:
    """One change of a module.

    Attributes:
        site: Whose units go.
        cut: Slices to remove.
        zero: Slices to set to 0.
        fold: Slices to multiply: unit of every place, -1 for none, by parameter and axis.
        silent: What takes the place of modules, by name.
        padded: Whether zeros take the place of the units behind the site.
        masked: Whether the mask stays, as a product in the forward pass.
        counted: Whether attributes with numbers of heads change, too.
    """

    site: Site
    cut: Slices = field(default_factory=dict)
    zero: Slices = field(default_factory=dict)
    fold: Slices = field(default_factory=dict)
    silent: dict[str, Silent] = field(default_factory=dict)
    padded: bool = False
    masked: bool = False
    counted: bool = True

    def apply(self, module: nn.Module, multiplier: Tensor) -> None:
        """Change a module; ``multiplier`` is that of the site's units, [units]."""
        for name, silent in self.silent.items():
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, silent)
        for name in {**self.cut, **self.zero, **self.fold}:
            self._change(module, name, multiplier)
        if self.cut and self.counted:
            self._count(module, len(_kept_units(multiplier)))
        if self.padded:
            pad(module, self.site, multiplier)
        if self.masked:
            keep_mask(module, self.site, multiplier)
        if self.padded or self.masked:
            for part in module.modules():
                if isinstance(part, nn.TransformerEncoder):
                    part.use_nested_tensor = False  # hooks do not take these

    def _change(self, module: nn.Module, name: str, multiplier: Tensor) -> None:
        prefix, _, last = name.rpartition(".")
        owner = module.get_submodule(prefix)
        parameter = owner.get_parameter(last)
        value = parameter.detach()
        for axis, dead in self.zero.get(name, {}).items():
            value = _scaled(value, owner, name, axis, (~dead).to(value))
        for axis, unit in self.fold.get(name, {}).items():
            factor = torch.where(unit < 0, 1.0, multiplier[unit.clamp(min=0)])
            value = _scaled(value, owner, name, axis, factor.to(value))
        cut = self.cut.get(name, {})
        if is_grouped(owner, name):
            value = _cut_groups(value, owner, cut)
        else:
            for axis, dead in cut.items():
                value = value.index_select(axis, _left(dead, value))
        changed = nn.Parameter(value.contiguous(), requires_grad=parameter.requires_grad)
        for part in module.modules():  # tied weights are one parameter of several modules
            for own, tensor in part._parameters.items():
                if tensor is parameter:
                    part._parameters[own] = changed
                    _cut_buffers(part, parameter, cut)
                    _set_sizes(part)

    def _count(self, module: nn.Module, kept: int) -> None:
        """Scale numbers of heads in the modules around the layers that were cut."""
        paths = [name.split(".")[:-1] for name in self.cut]
        common = 0
        while all(len(path) > common for path in paths) and len({p[common] for p in paths}) == 1:
            common += 1
        around = {".".join(path[:end]) for path in paths for end in range(common, len(path) + 1)}
        for name in around:
            part = module.get_submodule(name)
            for attribute in _COUNTS & part.__dict__.keys():
                number = part.__dict__[attribute]
                if isinstance(number, int) and number * kept % self.site.units == 0:
                    setattr(part, attribute, number * kept // self.site.units)


def _left(dead: Tensor, value: Tensor) -> Tensor:
    return (~dead).nonzero().flatten().to(value.device)


def _scaled(value: Tensor, owner: nn.Module, name: str, axis: int, factor: Tensor) -> Tensor:
    """Multiply by a factor for each place on an axis; with groups, for each input channel."""
    if axis == 1 and is_grouped(owner, name):
        parts = by_group(value, owner)
        shape = (len(parts), 1, parts.shape[2], *[1] * (parts.dim() - 3))
        return (parts * factor.reshape(shape)).reshape(value.shape)
    shape = tuple(-1 if at == axis else 1 for at in range(value.dim()))
    return value * factor.reshape(shape)


def _cut_groups(weight: Tensor, owner: Any, cut: dict[int, Tensor]) -> Tensor:
    """Cut the weight of a convolution with groups, which must stay of one size; set their number.

    Examples:
        >>> conv = nn.Conv2d(6, 6, 3, groups=6)
        >>> dead = torch.tensor([True, False, False, True, False, False])
        >>> _cut_groups(conv.weight, conv, {0: dead, 1: dead}).shape, conv.groups
        (torch.Size([4, 1, 3, 3]), 4)
    """
    parts = by_group(weight, owner)
    groups, outputs, inputs = parts.shape[:3]
    none = torch.zeros((), dtype=torch.bool)
    rows = ~cut.get(0, none).expand(groups * outputs).reshape(groups, outputs)
    columns = ~cut.get(1, none).expand(groups * inputs).reshape(groups, inputs)
    left = [
        part[row.to(weight.device)][:, column.to(weight.device)]
        for part, row, column in zip(parts, rows, columns, strict=True)
        if bool(row.any()) or bool(column.any())
    ]
    if len({part.shape for part in left}) != 1 or 0 in left[0].shape:
        raise ValueError(f"the {groups} groups of a convolution would differ in size")
    owner.groups = len(left)
    return torch.cat(left)


def _cut_buffers(owner: nn.Module, parameter: Tensor, cut: dict[int, Tensor]) -> None:
    """Let buffers of a normalisation, such as running means, follow its scale and shift."""
    if parameter.dim() == 1 and 0 in cut:
        for name, buffer in owner._buffers.items():
            if buffer is not None and buffer.shape == parameter.shape:
                owner._buffers[name] = buffer[_left(cut[0], buffer)]


def _set_sizes(owner: Any) -> None:
    """Set the sizes that a layer shows, and those that it checks, from its weight."""
    weight = owner._parameters.get("weight")
    if weight is None:
        return
    if isinstance(owner, nn.Linear):
        owner.out_features, owner.in_features = weight.shape
    elif isinstance(owner, nn.modules.conv._ConvNd):
        first, second = weight.shape[0], weight.shape[1] * owner.groups
        pair = (second, first) if owner.transposed else (first, second)
        owner.out_channels, owner.in_channels = pair
    elif isinstance(owner, nn.modules.batchnorm._NormBase):
        owner.num_features = len(weight)
    elif isinstance(owner, nn.Embedding):
        owner.num_embeddings, owner.embedding_dim = weight.shape
    elif hasattr(owner, "nf") and hasattr(owner, "nx"):  # Conv1D of transformers
        owner.nx, owner.nf = weight.shape


def _kept_units(multiplier: Tensor) -> Tensor:
    """Units that are not cut: those with a multiplier; of a site without any, the first."""
    return multiplier.nonzero().flatten() if bool(multiplier.any()) else torch.zeros(1).long()


def pad(module: nn.Module, site: Site, multiplier: Tensor) -> None:
    """Put zeros between the kept units in the output of a site's module, in every forward pass."""
    unit = torch.tensor(site.layout.unit) if site.layout is not None else torch.arange(site.units)
    kept = torch.isin(unit, _kept_units(multiplier)) | (unit < 0)
    part = module.get_submodule(site.name)
    part.register_buffer(PLACES, kept.nonzero().flatten())
    axis = site.axis - site.rank
    part.register_forward_hook(_Pad(axis, len(unit)))


@dataclass(frozen=True)
class _Pad:
    """A forward hook that gives the last axes of an output their size before compaction."""

    axis: int
    size: int

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        value = main_tensor(output, "")
        shape = list(value.shape)
        shape[self.axis] = self.size
        padded = value.new_zeros(shape)
        padded = padded.index_copy(self.axis, module.get_buffer(PLACES), value)
        return replace_main(output, padded)


def keep_mask(module: nn.Module, site: Site, multiplier: Tensor) -> None:
    """Multiply the output of a site's module, or the input, by a mask in every forward pass."""
    mask = multiplier.unsqueeze(0)
    if site.layout is not None:
        mask = site.layout.widen(mask)
    mask = site.spread(mask)
    part = module if site.name == INPUT else module.get_submodule(site.name)
    part.register_buffer(MASK, mask if site.folded is None else mask.squeeze(0))
    if site.name == INPUT:
        part.register_forward_pre_hook(_mask_input, with_kwargs=True)
    else:
        part.register_forward_hook(_mask_output)


def _mask_output(module: nn.Module, args: Any, output: Any) -> Any:
    value = main_tensor(output, "")
    return replace_main(output, value * module.get_buffer(MASK).to(value.dtype))


def _mask_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
    path, value = input_tensor(args, kwargs)
    masked = value * module.get_buffer(MASK).to(value.dtype)
    return tree.map_tensors(lambda at, tensor: masked if at == path else tensor, (args, kwargs))


def snapshot(module: nn.Module) -> Callable[[], None]:
    """Note how a module is; the result puts it back."""
    tables = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
              "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
              "_non_persistent_buffers_set")  # fmt: skip
    before = [
        (part, {**part.__dict__, **{name: part.__dict__[name].copy() for name in tables}})
        for part in module.modules()
    ]

    def restore() -> None:
        for part, attributes in before:
            part.__dict__.clear()
            part.__dict__.update(attributes)

    return restore


def silent_parts(idle: Sequence[str], calls: dict[str, tuple[Any, Any, Any]]) -> dict[str, Silent]:
    """What can take the place of parts without influence; of nested ones, of the outermost.

    Args:
        idle: Names of the parts, outer ones first.
        calls: Arguments, keyword arguments and output of every part in the example call.
    """
    parts: dict[str, Silent] = {}
    for name in idle:
        inside = any(name.startswith(f"{outer}.") for outer in parts)
        silent = _silent(*calls[name]) if name and name in calls and not inside else None
        if silent is not None:
            parts[name] = silent
    return parts


def _silent(args: Any, kwargs: Any, output: Any) -> Silent | None:
    """What gives zeros of an output's shape, if they follow from the input's."""
    more = len(output) - 1 if isinstance(output, tuple) else None
    value = output[0] if more is not None else output
    rest = output[1:] if more is not None else ()
    try:
        given = input_tensor(args, kwargs)[1]
    except TypeError:
        return None
    fits = isinstance(value, Tensor) and value.shape[:-1] == given.shape[:-1]
    return Silent(value.shape[-1], more) if fits and all(x is None for x in rest) else None


def adapt_ranks(module: Any) -> None:
    """Let LoRA layers of ``peft`` know the ranks that are left, and their configuration, too.

    So an adapter that is saved by ``peft`` can be loaded by it.
    """
    configs = getattr(module, "peft_config", {})
    for path, layer in module.named_modules():
        adapters: Any = getattr(layer, "lora_A", None)
        for name in adapters if isinstance(adapters, nn.ModuleDict) else ():
            rank = adapters[name].out_features
            if rank == layer.r[name]:
                continue
            layer.r[name] = rank
            key = path.removeprefix("base_model.model.")
            configs[name].rank_pattern[key] = rank
            scale = rank**0.5 if configs[name].use_rslora else rank
            configs[name].alpha_pattern[key] = layer.scaling[name] * scale
