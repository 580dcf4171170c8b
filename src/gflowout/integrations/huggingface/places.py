"""Where a transformer is masked: ranks of adapters, attention heads, blocks or features.

Places are found in the modules of a layer by their paths, and one call shows which of them run
exactly once and have a batch axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.call import Args, Call, Kwargs
from gflowout.core.probe import split_example
from gflowout.core.site_names import SiteNames
from gflowout.core.trace import masked_call
from gflowout.core.units import Units
from gflowout.integrations.huggingface.adapters import base_of, is_adapted, rank_sites
from gflowout.integrations.huggingface.defaults import default_example, parameters

UNITS = ("ranks", "heads", "blocks", "features")
"""What one unit of a mask may be."""

# Paths in a layer: of the dropout after the MLP, which a mask replaces; without one, of the MLP or
# its last part; of the attention, which is masked where the MLP has no batch axis.
_DROPOUTS = ("output.dropout", "mlp.dropout", "ffn.dropout")
_MLPS = ("mlp.dense_4h_to_h", "mlp", "ffn", "feed_forward", "DenseReluDense", "output.dense", "fc2")
_ATTENTION = "self_attn"
# Of what the attention adds to the residual stream: its dropout, or its last projection.
_ATTENDED = (
    "attention.output.dropout", "attention.output.dense", "attn.resid_dropout", "attn.c_proj",
    "self_attn.o_proj", "self_attn.out_proj", "attention.o_proj", "attention.out_lin",
    "self_attn.dense", "self_attention.dense", "attention.dense", "attn.Wo", "attn.out_proj",
    "attn.attention.resid_dropout", "attention.attn.o", "SelfAttention.o",
)  # fmt: skip
# The same of the attention of a decoder to an encoder.
_CROSSED = ("encoder_attn.out_proj", "EncDecAttention.o")
# Last names of projections to values; of one projection to queries, keys and values, in this order.
_VALUES = ("value", "v_proj", "v_lin", "v", "value_proj")
_FUSED = ("c_attn", "Wqkv", "qkv_proj")
# Attributes of an attention with the features of one head.
_HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")

Places = list[list[str]]
"""For every place, names of modules that may be its site; the best first."""


def default_sites(
    backbone: nn.Module,
    example: Any = None,
    units: str | None = None,
    adapter: str | None = None,
) -> SiteNames:
    """Sites of a transformer, by what one unit is.

    - ``"ranks"``: ranks of the LoRA adapters, at the output of every ``lora_A``.
    - ``"heads"``: attention heads. A mask multiplies the values that a head averages, which is the
      same as its result. Where several heads of queries share values, they are one unit.
    - ``"blocks"``: what the attention and what the MLP of a layer add to the residual stream, one
      unit each. A layer without both is left out as a whole.
    - ``"features"``: features of what each layer's MLP adds, and of the head's dropout.

    The residual stream itself is never masked, only what is added to it. Where a layer has an
    ``nn.Dropout`` after a block, the mask replaces it; other dropout stays. Modules that do not run
    exactly once are left out, and so are those whose output has no batch axis; where that is the
    MLP (OPT puts the tokens of all sentences in one row), features of what the layer's attention
    adds are masked instead.

    Args:
        backbone: A model of ``transformers``, with or without adapters of ``peft``.
        example: One call, as for :func:`wrap_transformer`.
        units: One of these; ``None``: ranks if there are LoRA adapters, else features.
        adapter: Name of the adapter whose ranks are masked; ``None``: the active one.

    Returns:
        Names of the sites; with units where these are not features.

    Examples:
        >>> from transformers import GPT2Config, GPT2ForSequenceClassification
        >>> config = GPT2Config(
        ...     vocab_size=50, n_embd=16, n_layer=2, n_head=2, pad_token_id=0, eos_token_id=1,
        ...     bos_token_id=1,
        ... )
        >>> default_sites(GPT2ForSequenceClassification(config))
        ['transformer.h.0.mlp.dropout', 'transformer.h.1.mlp.dropout']
    """
    units = ("ranks" if is_adapted(backbone) else "features") if units is None else units
    checks.choice("units", units, UNITS)
    if units == "ranks":
        return rank_sites(backbone, adapter)
    if adapter is not None:
        raise ValueError(f"adapter is for units='ranks' only, got {adapter!r} and units={units!r}")
    layers = _layers(backbone, units)
    heads = _dropouts_of_head(backbone) if units == "features" else []
    tried = [name for names in layers + heads for name in names]
    args, kwargs = split_example(default_example(backbone) if example is None else example)
    shapes, batch = _shapes(backbone, tried, args, kwargs)
    # They run once, and their output has a batch axis before that of the features.
    usable = {name for name, runs in shapes.items() if len(runs) == 1 and batch in runs[0][:-1][:2]}
    masked = [next((name for name in names if name in usable), None) for names in layers + heads]
    sites = [name for name in masked if name is not None]
    _check(base_of(backbone), units, layers, masked, shapes)
    if units == "features":
        return sites
    described = {name: _units(backbone, name, shapes[name][0][-1], units) for name in sites}
    if units == "blocks":
        _warn_of_missing_blocks(base_of(backbone), sites)
    else:
        _check_fused(backbone, described, args, kwargs)
    return described


def _layers(backbone: nn.Module, units: str) -> Places:
    """Places in all layers."""
    inside = {"heads": _values, "blocks": _blocks, "features": _features}[units]
    return [
        [f"{name}.{number}.{path}" for path in paths]
        for name, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList)
        for number, layer in enumerate(module)
        for paths in inside(layer)
    ]


def _features(layer: nn.Module) -> Places:
    """The output of an MLP; with the attention as a second choice."""
    inside = dict(layer.named_modules())
    paths = _mlp(inside)
    return [paths + [_ATTENTION] * (_ATTENTION in inside)] if paths else []


def _blocks(layer: nn.Module) -> Places:
    """The outputs of attention and MLP."""
    inside = dict(layer.named_modules())
    attended = [path for path in _ATTENDED if path in inside][:1]
    crossed = [path for path in _CROSSED if path in inside][:1]
    return [paths for paths in (attended, crossed, _mlp(inside)) if paths]


def _values(layer: nn.Module) -> Places:
    """Projections to values."""
    names = (name for name, _ in layer.named_modules() if name)
    return [[name] for name in names if name.rpartition(".")[2] in _VALUES + _FUSED]


def _mlp(inside: dict[str, nn.Module]) -> list[str]:
    """Path of the module that gives the output of an MLP, if the layer has one."""
    paths = [path for path in _DROPOUTS if isinstance(inside.get(path), nn.Dropout)]
    return (paths + [path for path in _MLPS if path in inside])[:1]


def _dropouts_of_head(backbone: nn.Module) -> Places:
    """Dropout outside the body of a transformer."""
    base = base_of(backbone)
    prefix = next(f"{name}." * bool(name) for name, m in backbone.named_modules() if m is base)
    body = f"{prefix}{base.base_model_prefix}."
    return [
        [name]
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Dropout) and not name.startswith(body)
    ]


def _units(backbone: nn.Module, name: str, width: int, units: str) -> Units:
    """What the units of a site of some width are: one for all its features, or heads."""
    if units == "blocks":
        return Units(axis=-1, patch=width)
    path, _, last = name.rpartition(".")
    attention = backbone.get_submodule(path)
    config = base_of(backbone).config.get_text_config()
    sizes = [getattr(attention, size, None) for size in _HEAD_SIZES]
    given = next((size for size in sizes if isinstance(size, int)), None)
    size = config.hidden_size // config.num_attention_heads if given is None else given
    heads = config.num_attention_heads
    values = getattr(config, "num_key_value_heads", None) or heads
    always = heads + values if last in _FUSED else 0  # queries and keys
    if width % size or (always and width != (always + values) * size):
        raise ValueError(
            f"units='heads': {name!r} gives {width} features, which are no whole heads of {size}; "
            "name the sites, as in sites={'...v_proj': gfo.Units(axis=-1, patch=64)}"
        )
    return Units(axis=-1, patch=size, always=tuple(range(always)))


def _check_fused(backbone: nn.Module, units: dict[str, Units], args: Args, kwargs: Kwargs) -> None:
    """Raise if a projection to queries, keys and values has them in another order.

    Attention gives the same for all tokens if what are taken to be the values are all 0.
    """
    fused = {name: own for name, own in units.items() if own.always}
    outputs: dict[str, Tensor] = {}

    def drop_values(own: Units, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output * (torch.arange(output.shape[-1], device=output.device) < len(own.always))

    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        outputs[name] = output[0] if isinstance(output, tuple) else output

    with ExitStack() as hooks:
        for name, own in fused.items():
            module, attention = (backbone.get_submodule(n) for n in (name, name.rpartition(".")[0]))
            hooks.enter_context(module.register_forward_hook(partial(drop_values, own)))
            hooks.enter_context(attention.register_forward_hook(partial(note, name)))
        if fused:
            masked_call(Call(backbone, args, kwargs))
    for name, output in outputs.items():
        rows = output.flatten(0, -2)
        if not torch.allclose(rows, rows[:1].expand_as(rows), equal_nan=True):
            raise ValueError(
                f"units='heads': the last features of {name!r} are not those of the values, as in "
                "a projection to queries, keys and values in this order; use units='blocks', or "
                "sites with gfo.Units of your own"
            )


def _warn_of_missing_blocks(base: nn.Module, sites: Sequence[str]) -> None:
    """Warn if the blocks of one kind alone are masked."""
    paths = tuple(f".{path}" for path in _ATTENDED + _CROSSED)
    attended = [f".{name}".endswith(paths) for name in sites]
    if all(attended) or not any(attended):
        warnings.warn(
            f"units='blocks': no {'MLP' if all(attended) else 'attention'} with a batch axis was "
            f"found in the layers of {type(base).__name__}, so that the masks are at "
            f"{', '.join(sites)} alone",
            stacklevel=4,
        )


def _check(
    base: nn.Module,
    units: str,
    layers: Places,
    masked: Sequence[str | None],
    shapes: dict[str, list[tuple[int, ...]]],
) -> None:
    """Raise without any site; warn if all layers are left out."""
    first = [names[0] for names in layers]
    shared = any(len(shapes[name]) > 1 for name in first)
    why = "run more than once each (shared weights)" if shared else "give nothing with a batch axis"
    kind = type(base).__name__
    if not any(masked) and first:
        raise ValueError(
            f"sites: the default cannot be used for {kind}: its layers {why} at {first[0]!r}; name "
            "other submodules whose output, [batch, ..., features], is to be masked, as in "
            'sites=["encoder.layer.*.attention.output"]'
        )
    if not any(masked):
        part = "attention with a projection to values" if units == "heads" else "MLP"
        raise ValueError(
            f"sites: {kind} has no layers with an {part} that could be found; name the submodules "
            'whose output is to be masked, as in sites=["encoder.layer.*.output.dense"]'
        )
    if first and not any(masked[: len(layers)]):
        sites = ", ".join(name for name in masked if name is not None)
        warnings.warn(
            f"sites: the layers of {kind} {why}, so that the masks are at {sites} alone",
            stacklevel=3,
        )


def _shapes(
    backbone: nn.Module, names: list[str], args: Args, kwargs: Kwargs
) -> tuple[dict[str, list[tuple[int, ...]]], int]:
    """Output shapes of modules in a call, one for every time that they run; and the batch size."""
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}

    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple | list) and output else output
        shapes[name].append(tuple(value.shape) if isinstance(value, Tensor) else ())

    try:
        with ExitStack() as hooks:
            for name in shapes:
                module = backbone.get_submodule(name)
                hooks.enter_context(module.register_forward_hook(partial(note, name)))
            logits = masked_call(Call(backbone, args, kwargs))
    except Exception as error:
        given = ", ".join([f"argument {at}" for at in range(len(args))] + list(kwargs))
        taken = ", ".join(parameters(backbone))
        raise ValueError(
            f"example must be a call that {type(backbone).__name__} takes, got {given}, on which "
            f"it fails: {error} (it takes {taken})"
        ) from error
    return shapes, len(logits)
