"""How latency falls with the units that ``gfo.compact`` removes, network by network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.bench.methods import CLASSES, resnet
from gflowout.bench.timing import Case, Table
from gflowout.core.optional import require

WHOLE = "all units"
KEPT = (0.75, 0.5, 0.25)
"""Shares of the units that are kept at every site."""

_WORDS = 4000
Built = tuple[nn.Module, Any, dict[str, Tensor]]
"""A backbone, its sites and the arguments of a call."""


@dataclass(frozen=True)
class _Call:
    """One call of a module, with what it costs."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    parameters: int
    flops: int

    @torch.no_grad()
    def __call__(self) -> None:
        self.module(**self.inputs)


def compact_tables(width: int, repeats: int, quick: bool = False) -> list[Table]:
    """One table per kind of unit; ``quick`` is the MLP alone."""
    blocks = f"channels inside the blocks of ResNet-18 of width {width}, batch 8"
    llama, both = "a Llama-like model, 2 texts of 128 tokens", ("transformers", "peft")
    tables = [
        _table("mlp", "units of an MLP 784-1024-1024-10, batch 128", _mlp, repeats),
        _table("resnet", blocks, lambda: _resnet(width), repeats),
        _table(
            "heads", "attention heads of a BERT-like model, 8 texts of 128 tokens", _heads, repeats,
            needs=both[:1],
        ),
        _table("units", f"feed-forward units of {llama}", _feed_forward, repeats, needs=both[:1]),
        _table("ranks", f"LoRA ranks of {llama}", _ranks, repeats, needs=both),
    ]  # fmt: skip
    return tables[:1] if quick else tables


def _table(
    name: str, title: str, build: Callable[[], Built], repeats: int, needs: Sequence[str] = ()
) -> Table:
    def cases() -> dict[str, Case]:
        backbone, sites, inputs = build()
        example = {name: tensor[:2] for name, tensor in inputs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # masks after normalisation layers
            model = gfo.wrap(
                backbone.eval(), "mc", sites, likelihood="classification", example=example,
                rescale="none",
            )  # fmt: skip
        calls: dict[str, Case] = {}
        for share in KEPT:
            masks = [_mask(site.units, share) for site in model.sites]
            small, report = gfo.compact(
                model, masks=masks, example=example, strict=True, return_report=True
            )
            sizes = zip(report.parameters, report.flops, strict=True)
            before, after = (
                dict(zip(("parameters", "flops"), size, strict=True)) for size in sizes
            )
            calls.setdefault(WHOLE, _Call(backbone, inputs, **before))
            calls[f"{share:.0%} kept"] = _Call(small, inputs, **after)
        return calls

    def columns(calls: dict[str, Any], _: dict[str, float]) -> dict[str, dict[str, float]]:
        whole = calls[WHOLE]
        return {
            case: {
                "parameters": call.parameters / whole.parameters,
                "FLOPs": call.flops / whole.flops,
            }
            for case, call in calls.items()
        }

    title = f"Compacted: {title}"
    return Table(f"compact-{name}", title, (WHOLE,), repeats, cases, columns, cost=1, needs=needs)


def _mask(units: int, share: float) -> Tensor:
    kept = torch.randperm(units)[: max(1, round(share * units))]
    return torch.zeros(units).scatter(0, kept, 1.0)


def _mlp() -> Built:
    net = MLP((784, 1024, 1024, CLASSES))
    return net, net.sites, {"x": torch.randn(128, 784)}


def _resnet(width: int) -> Built:
    network = resnet(width)
    return network.build(), ["layer*.*.bn1"], {"x": network.batch(8)}


def _heads() -> Built:
    transformers = require("transformers", extra="huggingface", purpose="the benchmark of heads")
    config = transformers.BertConfig(
        vocab_size=_WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=8,
        intermediate_size=1024, num_labels=CLASSES,
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config)
    heads = {f"bert.encoder.layer.{at}.attention.self.value": _HEADS for at in range(4)}
    return net, heads, {"input_ids": torch.randint(_WORDS, (8, 128))}


_HEADS = gfo.Units(axis=-1, patch=32)


def _llama() -> tuple[nn.Module, dict[str, Tensor]]:
    transformers = require("transformers", extra="huggingface", purpose="the benchmark of units")
    config = transformers.LlamaConfig(
        vocab_size=_WORDS, hidden_size=384, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, intermediate_size=1536,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(_WORDS, (2, 128))}


def _feed_forward() -> Built:
    net, inputs = _llama()
    return net, ["*.mlp.act_fn"], inputs


def _ranks() -> Built:
    peft = require("peft", extra="huggingface", purpose="the benchmark of ranks")
    net, inputs = _llama()
    config = peft.LoraConfig(r=32, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(net, config), ["*.lora_A.default"], inputs
