"""Adapters of peft on models made from a config: ranks, heads and blocks as units, and folders."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    CodeGenConfig,
    CodeGenForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MptForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    T5ForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

import gflowout as gfo
from gflowout.integrations.huggingface import (
    CausalModel,
    TrainerModel,
    default_example,
    default_sites,
    load_adapter,
    load_pretrained,
    predict_dataset,
    save_pretrained,
    wrap_transformer,
)
from gflowout.methods import METHODS

peft = pytest.importorskip("peft")
LoraConfig = peft.LoraConfig
PeftModel = peft.PeftModel
get_peft_model = peft.get_peft_model

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "initializer_range": 0.5,  # outputs that depend on everything
}
TEXT: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 32, "pad_token_id": 0}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "bert":
        return BertForSequenceClassification(BertConfig(**SIZES, **TEXT, num_labels=3)).eval()
    if name == "vit":
        picture = {"image_size": 8, "patch_size": 4, "num_channels": 2}
        return ViTForImageClassification(ViTConfig(**SIZES, **picture, num_labels=3)).eval()
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**SIZES, **TEXT, bos_token_id=1, eos_token_id=2)).eval()
    if name == "bloom":  # its MLP adds its input itself
        return BloomForCausalLM(BloomConfig(**SIZES, **TEXT, n_layer=2, n_head=4)).eval()
    if name == "phi3":  # one projection to four heads of queries, two of keys and two of values
        own = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
        return Phi3ForCausalLM(Phi3Config(**SIZES, **TEXT, **own)).eval()
    return LlamaForCausalLM(LlamaConfig(**SIZES, **TEXT, num_key_value_heads=2)).eval()


NEW_VIT = hasattr(build("vit").vit, "layers")  # of transformers 5
OLD, NEW = ["query", "value"], ["q_proj", "v_proj"]
TARGETS = {"bert": OLD, "vit": NEW if NEW_VIT else OLD, "llama": NEW}


def adapted(name: str = "bert", rank: int = 3, **more: Any) -> PeftModel:
    """With adapters that are far from 0, where they start."""
    more = {"target_modules": TARGETS[name], **more}
    task = {"bert": "SEQ_CLS", "vit": None, "llama": "CAUSAL_LM"}[name]
    config = LoraConfig(task_type=task, r=rank, **more)
    model = get_peft_model(build(name), config)
    return randomised(model)


def randomised(model: Any) -> Any:
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.copy_(torch.randn(parameter.shape, generator=draws))
    return model.eval()


def call(model: nn.Module) -> dict[str, Tensor]:
    return default_example(model)


def labels(name: str, example: dict[str, Tensor]) -> Tensor:
    if name == "llama":
        ids = example["input_ids"]
        return torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
    return torch.tensor([0, 2, 1])


@pytest.mark.parametrize("name", TARGETS)
def test_ranks_of_every_adapted_layer_are_sites(name: str) -> None:
    net = adapted(name)
    model = wrap_transformer(net, "id-gflowout", train_size=9)
    assert len(model.sites) == 4
    assert all(site.name.endswith(".lora_A.default") for site in model.sites)
    assert {site.units for site in model.sites} == {3}
    assert gfo.unwrap(model) is net
    assert model.spec.foldable
    assert model.spec.padding == (None if name == "vit" else "attention_mask")


@pytest.mark.parametrize("name", TARGETS)
def test_a_dropped_rank_is_a_row_of_zeros(name: str) -> None:
    """By peft alone: rows of A that are 0."""
    net = adapted(name)
    model, example = wrap_transformer(net, "mc", rate=0.5, rescale="none"), call(net)
    masks = [torch.tensor([[1.0, 0.0, float(at % 2)]]) for at in range(4)]
    other = copy.deepcopy(net)
    with torch.no_grad():
        for site, mask in zip(model.sites, masks, strict=True):
            other.get_submodule(site.name).weight.mul_(mask.T)
        expected, plain = other(**example).logits, net(**example).logits
        output = model(**example, masks=masks).logits
    torch.testing.assert_close(output, expected)
    assert (output - plain).abs().max() > 1e-2


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_the_adapter_alone(method: str) -> None:
    net = adapted("bert", target_modules=["0.attention.self.query", "1.output.dense"])
    frozen = {key: value.clone() for key, value in net.named_parameters() if "lora_" not in key}
    own = {"train_size": 30} if "train_size" in METHODS[method].Options.__dataclass_fields__ else {}
    model = wrap_transformer(net, method, **own).train()
    before = {key: value.clone() for key, value in net.named_parameters() if "lora_" in key}
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-2))
    example = call(net)
    model(**example, y=labels("bert", example)).total.backward()
    optimiser.step()
    for key, value in net.named_parameters():
        if key in before:
            assert not torch.equal(value, before[key]), key
        elif "modules_to_save" not in key:
            assert torch.equal(value, frozen[key]), key
    pred = model.predict(**example, samples=5)
    assert pred.mean.sum(-1).allclose(torch.ones(3))
    assert method in ("none",) or pred.outputs.std(0).max() > 1e-3


def test_the_active_adapter_is_masked_or_the_named_one(tmp_path: Path) -> None:
    net = adapted("llama", rank=3)
    net.add_adapter("wide", LoraConfig(task_type="CAUSAL_LM", r=5, target_modules=["q_proj"]))
    randomised(net)
    assert {site.units for site in wrap_transformer(net, "mc").sites} == {3}
    with pytest.raises(ValueError, match=r"adapter must be active, got 'wide', and active is 'def"):
        wrap_transformer(net, "mc", adapter="wide")
    with pytest.raises(ValueError, match=r"adapter must be one of 'default', 'wide', got 'wid'"):
        wrap_transformer(net, "mc", adapter="wid")
    net.set_adapter("wide")
    model = wrap_transformer(net, "mc", adapter="wide")
    assert [site.units for site in model.sites] == [5, 5]
    net.base_model.set_adapter(["default", "wide"])
    both = wrap_transformer(net, "mc")
    assert len(both.sites) == 6
    one = wrap_transformer(net, "mc", adapter="default")
    assert len(one.sites) == 4
    for model_ in (both, one, wrap_transformer(net, "mc", units="heads")):  # the other runs, too
        with pytest.raises(
            ValueError, match="several active adapters, 'default', 'wide', and a fo"
        ):
            save_pretrained(model_, tmp_path)
    # Layers without the adapter that took the place of a deleted one keep theirs.
    net.set_adapter("default")
    net.base_model.model.model.layers[0].self_attn.q_proj.set_adapter("wide")
    assert [site.name.partition("layers.")[2] for site in wrap_transformer(net, "mc").sites] == [
        "0.self_attn.q_proj.lora_A.wide", "0.self_attn.v_proj.lora_A.default",
        "1.self_attn.q_proj.lora_A.default", "1.self_attn.v_proj.lora_A.default",
    ]  # fmt: skip
    net.set_adapter("default")
    with pytest.raises(ValueError, match=r"site '\S+lora_A\.wide' did not run .* not active\?"):
        model.predict(**call(net))


def test_adapters_that_cannot_be_masked_are_told() -> None:
    net = adapted("bert")
    net.merge_adapter()
    with pytest.raises(ValueError, match=r"'default' is merged into .*unmerge_adapter\(\)"):
        wrap_transformer(net)
    net.unmerge_adapter()
    with net.disable_adapter(), pytest.raises(ValueError, match="are switched off"):
        wrap_transformer(net)
    wrap_transformer(net, "mc")
    with pytest.raises(ValueError, match="is no plain LoRA"):
        wrap_transformer(adapted("bert", use_dora=True))
    with pytest.raises(ValueError, match=r"units='ranks' needs .* LoRA .* got BertFor\w+ without"):
        wrap_transformer(build("bert"), units="ranks")
    causal = {"task_type": "CAUSAL_LM"}
    only = LoraConfig(**causal, r=2, target_modules=["embed_tokens"])
    with pytest.raises(ValueError, match=r"adapters on its layers, got .* without any"):
        wrap_transformer(get_peft_model(build("llama"), only), units="ranks")
    inside = LoraConfig(**causal, r=2, target_modules=[], target_parameters=["q_proj.weight"])
    with pytest.raises(ValueError, match=r"adapters on its parameter 'weight'.* target_modules"):
        wrap_transformer(get_peft_model(build("llama"), inside))
    virtual = peft.PrefixTuningConfig(**causal, num_virtual_tokens=2)
    with pytest.raises(ValueError, match="PrefixTuningConfig puts virtual tokens before the text"):
        wrap_transformer(get_peft_model(build("llama"), virtual))
    plain = net.merge_and_unload()
    assert wrap_transformer(plain, "mc").sites[0].units == 16  # features
    with pytest.raises(ValueError, match=r"units must be one of 'ranks', 'heads', .* got 'head'"):
        wrap_transformer(plain, units="head")
    with pytest.raises(ValueError, match="adapter is for units='ranks' only"):
        wrap_transformer(plain, units="heads", adapter="default")
    with pytest.raises(ValueError, match="give either, got units='heads'"):
        wrap_transformer(plain, sites=["dropout"], units="heads")


def test_adapters_inside_a_model_of_transformers(tmp_path: Path) -> None:
    net = build("bert")
    net.add_adapter(LoraConfig(r=2, target_modules=["query"]), "own")
    model = wrap_transformer(randomised(net), "mc")
    assert [site.name for site in model.sites] == [
        f"bert.encoder.layer.{at}.attention.self.query.lora_A.own" for at in (0, 1)
    ]
    save_pretrained(model, tmp_path)
    loaded, example = load_adapter(tmp_path, build("bert")), call(net)
    torch.testing.assert_close(outputs(loaded, example), outputs(model, example))


HEADS = {
    "bert": ("bert.encoder.layer.{}.attention.self.value", 4),
    "vit": ("vit.layers.{}.attention.v_proj", 4),
    "llama": ("model.layers.{}.self_attn.v_proj", 2),  # heads of queries share values by twos
    "gpt2": ("transformer.h.{}.attn.c_attn", 4),
    "phi3": ("model.layers.{}.self_attn.qkv_proj", 2),
}
READERS = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "vit": "vit.layers.{}.attention.o_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "phi3": "model.layers.{}.self_attn.o_proj",
    "bloom": "transformer.h.{}.self_attention.dense",
}
MLPS = {
    "bert": "bert.encoder.layer.{}.output.dense",
    "vit": "vit.layers.{}.mlp.fc2",
    "llama": "model.layers.{}.mlp.down_proj",
    "gpt2": "transformer.h.{}.mlp.c_proj",
    "phi3": "model.layers.{}.mlp.down_proj",
    "bloom": "transformer.h.{}.mlp.dense_4h_to_h",
}
if not NEW_VIT:
    HEADS["vit"] = ("vit.encoder.layer.{}.attention.attention.value", 4)
    READERS["vit"] = "vit.encoder.layer.{}.attention.output.dense"
    MLPS["vit"] = "vit.encoder.layer.{}.output.dense"


@pytest.mark.parametrize("name", HEADS)
def test_a_dropped_head_is_read_by_nothing(name: str) -> None:
    """The columns of the output projection that read the head are 0."""
    net = build(name)
    model, example = wrap_transformer(net, "mc", units="heads", rescale="none"), call(net)
    place, heads = HEADS[name]
    assert [(site.name, site.units) for site in model.sites] == [
        (place.format(at), heads) for at in (0, 1)
    ]
    mask = torch.ones(1, heads)
    mask[0, 1] = 0
    other = copy.deepcopy(net)
    for at in (0, 1):
        reader = other.get_submodule(READERS[name].format(at))
        keep = mask[0].repeat_interleave(16 // heads)
        with torch.no_grad():
            reader.weight.mul_(keep[:, None] if name == "gpt2" else keep)
    with torch.no_grad():
        output = model(**example, masks=[mask, mask]).logits
        torch.testing.assert_close(output, other(**example).logits)
        assert (output - net(**example).logits).abs().max() > 1e-2


@pytest.mark.parametrize("name", MLPS)
def test_a_dropped_block_adds_nothing(name: str) -> None:
    net = build(name)
    model, example = wrap_transformer(net, "mc", units="blocks", rescale="none"), call(net)
    assert [site.units for site in model.sites] == [1] * 4
    masks = [torch.tensor([[value]]) for value in (0.0, 1.0, 1.0, 0.0)]
    other = copy.deepcopy(net)
    for last in (READERS[name].format(0), MLPS[name].format(1)):
        for parameter in other.get_submodule(last).parameters():
            nn.init.zeros_(parameter)
    with torch.no_grad():
        output = model(**example, masks=masks).logits
        torch.testing.assert_close(output, other(**example).logits)
        assert (output - net(**example).logits).abs().max() > 1e-2


def test_a_projection_in_another_order_is_told() -> None:
    """Queries, values and keys of several parts one after the other."""
    own = {"bos_token_id": 1, "eos_token_id": 2, "rotary_dim": 4, "n_layer": 2, "n_head": 4}
    net = CodeGenForCausalLM(CodeGenConfig(vocab_size=40, n_embd=16, n_positions=32, **own))
    with pytest.raises(
        ValueError, match=r"of 'transformer\.h\.0\.attn\.qkv_proj' are not those of"
    ):
        wrap_transformer(net, "mc", units="heads")


BLOCKS: dict[str, tuple[Any, Any, list[str]]] = {
    "gpt-neo": (
        GPTNeoForCausalLM,
        {"hidden_size": 16, "num_layers": 1, "num_heads": 4, "attention_types": [[["global"], 1]]},
        ["transformer.h.0.attn.attention.resid_dropout", "transformer.h.0.mlp.dropout"],
    ),
    "mpt": (
        MptForCausalLM,
        {"d_model": 16, "n_layers": 1, "n_heads": 4},
        ["transformer.blocks.0.attn.out_proj", "transformer.blocks.0.ffn"],
    ),
    "t5": (
        T5ForSequenceClassification,
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4,
         "decoder_start_token_id": 0},
        ["transformer.encoder.block.0.layer.0.SelfAttention.o",
         "transformer.encoder.block.0.layer.1.DenseReluDense",
         "transformer.decoder.block.0.layer.0.SelfAttention.o",
         "transformer.decoder.block.0.layer.1.EncDecAttention.o",
         "transformer.decoder.block.0.layer.2.DenseReluDense"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_attention_are_found(name: str) -> None:
    kind, sizes, sites = BLOCKS[name]
    net = kind(kind.config_class(vocab_size=40, **sizes))
    assert [site.name for site in wrap_transformer(net, "mc", units="blocks").sites] == sites


def test_blocks_of_one_kind_alone_are_told() -> None:
    net = build("llama")
    for layer in net.model.layers:
        layer.self_attn.other = layer.self_attn.__dict__["_modules"].pop("o_proj")
        object.__setattr__(layer.self_attn, "o_proj", layer.self_attn.other)
    with pytest.warns(UserWarning, match=r"no attention .* of LlamaForCausalLM, so that the masks"):
        model = wrap_transformer(net, "mc", units="blocks")
    assert len(model.sites) == 2


@pytest.mark.parametrize("units", ["heads", "blocks", "features"])
def test_other_units_of_an_adapted_model(units: str) -> None:
    net, plain = adapted("bert"), build("bert")
    inside, outside = (
        [site.name for site in wrap_transformer(own, "mc", units=units).sites]
        for own in (net, plain)
    )
    assert inside == [f"base_model.model.{name}" for name in outside]
    assert list(default_sites(net)) != inside  # ranks


def test_attention_that_is_not_found_is_told() -> None:
    net = build("bert")
    for layer in net.bert.encoder.layer:
        layer.attention.self.val = layer.attention.self.__dict__["_modules"].pop("value")
        object.__setattr__(layer.attention.self, "value", layer.attention.self.val)
    with pytest.raises(ValueError, match=r"no layers with an attention with a projection"):
        wrap_transformer(net, units="heads")


def trained(name: str = "bert", method: str = "id-gflowout", **more: Any) -> gfo.MaskedModel:
    own = {"train_size": 9} if method == "id-gflowout" else {}
    model = wrap_transformer(adapted(name), method, **own, **more)
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def outputs(model: Any, example: dict[str, Tensor]) -> Tensor:
    seeded = torch.Generator().manual_seed(3)
    return model.predict(**example, samples=4, generator=seeded).outputs


@pytest.mark.parametrize(("name", "units"), [("bert", "ranks"), ("bert", "heads"), ("llama", None)])
def test_a_folder_gives_the_model_back(name: str, units: str | None, tmp_path: Path) -> None:
    model = trained(name, units=units)
    save_pretrained(TrainerModel(model), tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors", "gflowout.safetensors"} < {
        *os.listdir(tmp_path)
    }
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size < 40_000  # no base model
    example = call(model.backbone)
    loaded = load_adapter(tmp_path, build(name))
    assert isinstance(loaded, CausalModel) == (name == "llama")
    assert torch.equal(outputs(loaded, example), outputs(model, example))
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(build(name), tmp_path).eval()
        torch.testing.assert_close(theirs(**example).logits, model.backbone(**example).logits)


def test_a_folder_without_masks_is_a_plain_adapter(tmp_path: Path) -> None:
    net = adapted("bert")
    net.save_pretrained(tmp_path)
    plain = load_adapter(tmp_path, build("bert"))
    assert isinstance(plain, PeftModel)
    with torch.no_grad():
        example = call(net)
        torch.testing.assert_close(plain.eval()(**example).logits, net(**example).logits)


def test_an_adapter_of_another_name_is_in_its_own_folder(tmp_path: Path) -> None:
    net = adapted("bert")
    net.add_adapter("style", LoraConfig(task_type="SEQ_CLS", r=5, target_modules=["query"]))
    net.set_adapter("style")
    model = wrap_transformer(randomised(net), "id-gflowout", train_size=9)
    save_pretrained(model, tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()  # the other one is not written
    loaded = load_adapter(tmp_path / "style", build("bert"))
    assert [site.name for site in loaded.sites] == [site.name for site in model.sites]
    example = call(net)
    assert torch.equal(outputs(loaded, example), outputs(model, example))


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"folder must hold 'adapter_config\.json'"):
        load_adapter(tmp_path, build("bert"))
    save_pretrained(trained(), tmp_path)
    with pytest.raises(ValueError, match="read it with load_adapter"):
        load_pretrained(tmp_path)
    inside = build("bert")
    inside.add_adapter(LoraConfig(r=2, target_modules=["query"]), "own")
    for base in (adapted("bert"), inside):
        with pytest.raises(TypeError, match="base must be the model without adapters"):
            load_adapter(tmp_path, base)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors"):  # a pickle
        load_adapter(tmp_path, build("bert"))


def test_an_adapter_of_another_rank_does_not_fit(tmp_path: Path) -> None:
    save_pretrained(trained(), tmp_path / "one")
    wide = wrap_transformer(adapted("bert", rank=4), "id-gflowout", train_size=9)
    save_pretrained(wide, tmp_path / "other")
    ours = tmp_path / "other" / "gflowout.safetensors"
    ours.write_bytes((tmp_path / "one" / "gflowout.safetensors").read_bytes())
    with pytest.raises(ValueError, match="does not fit the backbone"):
        load_adapter(tmp_path / "other", build("bert"))


def test_all_columns_of_a_data_set_reach_the_base_model() -> None:
    """``forward`` of peft takes some arguments as ``**kwargs``."""
    model = trained("bert", "mc")
    row = {"input_ids": [1, 7, 9], "attention_mask": [1, 1, 1], "token_type_ids": [0, 1, 1]}
    other = {**row, "token_type_ids": [0, 0, 0]}
    pred = predict_dataset(model, [row, other], samples=3)
    assert (pred.outputs[:, 0] - pred.outputs[:, 1]).abs().max() > 1e-3
    assert "token_type_ids" in model.spec.batched
    json.dumps(model.spec.shapes)  # names without parts that a file could not have
