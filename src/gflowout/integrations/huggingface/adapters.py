"""Adapters of ``peft``: the transformer inside them, and the ranks of LoRA as sites."""

from __future__ import annotations

from typing import Any

from torch import nn

from gflowout.core import checks


def base_of(backbone: nn.Module) -> Any:
    """The transformer inside a ``PeftModel``; any other model is returned as it is."""
    inside = getattr(backbone, "get_base_model", None)
    return inside() if callable(inside) else backbone


def refuse_virtual_tokens(backbone: nn.Module) -> None:
    """Raise if adapters put tokens before a text: positions of the output are not its own."""
    if getattr(getattr(backbone, "active_peft_config", None), "is_prompt_learning", False):
        kind = type(backbone.active_peft_config).__name__
        raise ValueError(
            f"backbone: the adapter of {kind} puts virtual tokens before the text, so that scores "
            "would belong to other tokens: use LoRA, or wrap the model with gfo.wrap"
        )


def is_adapted(backbone: nn.Module) -> bool:
    """Whether a model has LoRA layers of ``peft``."""
    return bool(lora_layers(backbone))


def lora_layers(backbone: nn.Module) -> dict[str, Any]:
    """Layers with LoRA adapters, by name: those with one module ``lora_A`` for each adapter.

    Adapters of embeddings have none, and their ranks are never masked.
    """
    return {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(inside := getattr(module, "lora_A", None), nn.ModuleDict) and len(inside)
    }


def rank_sites(backbone: nn.Module, adapter: str | None = None) -> list[str]:
    """Names of the modules whose outputs are the ranks of LoRA adapters.

    An adapted layer computes ``W x + s B (z * (A x))``: the mask ``z`` has one bit for each rank,
    and nothing that is masked belongs to the base model.

    Args:
        backbone: With LoRA layers of ``peft``.
        adapter: Name of the adapter; ``None``: every adapter that is active, usually one.

    Examples:
        >>> from peft import LoraConfig, get_peft_model
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> rank_sites(get_peft_model(net, LoraConfig(r=3, target_modules=["0"])))
        ['base_model.model.0.lora_A.default']
    """
    layers = lora_layers(backbone)
    if not layers:
        raise ValueError(
            f"units='ranks' needs a model with LoRA adapters on its layers, got "
            f"{type(backbone).__name__} without any: peft.get_peft_model(model, LoraConfig(...)) "
            "adds them"
        )
    names = {own: None for layer in layers.values() for own in layer.lora_A}
    active = {own: None for layer in layers.values() for own in layer.active_adapters}
    chosen = [own for own in active if own in names]
    if adapter is not None:
        chosen = [checks.choice("adapter", adapter, names)]
        if adapter not in active:
            raise ValueError(
                f"adapter must be active, got {adapter!r}, and active is "
                f"{', '.join(map(repr, active)) or 'none'}: call set_adapter({adapter!r}) on the "
                "peft model first"
            )
    for name, layer in layers.items():
        _refuse_layer(name, layer, chosen)
    sites = [
        f"{name}.lora_A.{own}"
        for name, layer in layers.items()
        for own in chosen
        if own in layer.lora_A and own in layer.active_adapters
    ]
    if not sites:
        raise ValueError(
            f"adapter: none of {', '.join(map(repr, names))} is active: call set_adapter on the "
            "peft model first"
        )
    return sites


def _refuse_layer(name: str, layer: Any, adapters: list[str]) -> None:
    """Raise if the ranks of a layer cannot be masked: merged, switched off, or no plain LoRA."""
    if layer.merged:
        merged = ", ".join(map(repr, layer.merged_adapters))
        raise ValueError(
            f"backbone: adapter {merged} is merged into the weights of {name!r}, so that its ranks "
            "do not run: call unmerge_adapter() on the peft model first"
        )
    if layer.disable_adapters:
        raise ValueError(
            f"backbone: the adapters of {name!r} are switched off, so that their ranks do not run: "
            "call enable_adapter_layers() on the peft model first"
        )
    if hasattr(layer, "parameter_name"):
        raise ValueError(
            f"backbone: {name!r} has adapters on its parameter {layer.parameter_name!r}, whose "
            "ranks are the output of no module: use target_modules instead of target_parameters"
        )
    variants = getattr(layer, "lora_variant", {})
    for own in adapters:
        if own in variants or getattr(layer, "use_dora", {}).get(own, False):
            kind = type(variants[own]).__name__ if own in variants else "DoRA"
            raise ValueError(
                f"backbone: adapter {own!r} of {name!r} is no plain LoRA but {kind}, whose weights "
                "do not depend on single ranks in this way; use LoraConfig without it, or "
                "units='features'"
            )
