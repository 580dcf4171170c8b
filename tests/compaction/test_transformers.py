"""Heads, feed-forward units, blocks and LoRA ranks of models made from a config."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

import gflowout as gfo  # noqa: E402
from gflowout.integrations.huggingface import wrap_transformer  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "initializer_range": 0.3,  # outputs that depend on everything
}
TEXT: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 32, "pad_token_id": 0}
UNITS = {"bert": "*.intermediate", "vit": "*.activation_fn", "llama": "*.act_fn", "gpt2": "*.act"}
if int(transformers.__version__.partition(".")[0]) < 5:
    UNITS["vit"] = "*.intermediate"


@cache
def backbone(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(**SIZES, **TEXT, num_labels=3)
        return transformers.BertForSequenceClassification(config).eval()
    if name == "vit":
        config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
        return transformers.ViTForImageClassification(config).eval()
    if name == "llama":
        config = transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 2}, **TEXT)
        return transformers.LlamaForCausalLM(config).eval()
    config = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=4, initializer_range=0.3, vocab_size=40, n_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def inputs(name: str) -> dict[str, Tensor]:
    """Other inputs than the example: longer, more of them, and padded."""
    generator = torch.Generator().manual_seed(5)
    if name == "vit":
        return {"pixel_values": torch.randn(5, 3, 8, 8, generator=generator)}
    ids = torch.randint(1, 40, (5, 19), generator=generator)
    real = torch.arange(19) < torch.tensor([[19], [3], [8], [19], [12]])
    return {"input_ids": ids, "attention_mask": real.long()}


def masks_of(model: Any) -> list[Tensor]:
    """Masks that drop every second unit, or of sites of one unit every second one."""
    return [(torch.arange(site.units) + at) % 2 == 0 for at, site in enumerate(model.sites)]


def compacted(name: str, net: nn.Module, **options: Any) -> tuple[Any, nn.Module, Any]:
    """A model, and what is compacted, after a comparison."""
    sites = options.pop("sites", None)
    model = wrap_transformer(net, "id-gflowout", sites, train_size=9, rescale="kept", **options)
    small, report = gfo.compact(model, masks=masks_of(model), return_report=True)
    assert not isinstance(small, gfo.MaskedModel)
    with torch.no_grad():
        expected = model.eval()(**inputs(name), masks=report.masks).logits
        output = small(**inputs(name)).logits
    scale = max(1.0, float(expected.abs().max()))
    assert float((output - expected).abs().max()) < 1e-5 * scale
    return model, small, report


@pytest.mark.parametrize("name", UNITS)
def test_heads(name: str) -> None:
    net = backbone(name)
    model, small, report = compacted(name, net, units="heads")
    assert [site.how for site in report.sites] == ["removed"] * 2
    heads = model.sites[0].units
    shared = 4 // heads  # queries for each head of values
    size = 24 // 4
    weights = heads // 2 * size * 24 * (2 + 2 * shared)  # keys and values, queries and output
    biases = {"llama": 0}.get(name, heads // 2 * size * 3)
    assert report.parameters[0] - report.parameters[1] == 2 * (weights + biases)
    if name == "bert":
        attention = small.bert.encoder.layer[0].attention.self
        assert (attention.num_attention_heads, attention.all_head_size) == (2, 12)
        assert net.bert.encoder.layer[0].attention.self.num_attention_heads == 4


@pytest.mark.parametrize("name", UNITS)
def test_feed_forward_units(name: str) -> None:
    _, _, report = compacted(name, backbone(name), sites=[UNITS[name]])
    assert [site.how for site in report.sites] == ["removed"] * 2
    assert report.parameters[1] < report.parameters[0]
    assert report.flops[1] < report.flops[0]


@pytest.mark.parametrize("name", UNITS)
def test_blocks(name: str) -> None:
    """Every second one, the MLP of each layer, is gone as a whole."""
    _, small, report = compacted(name, backbone(name), units="blocks")
    assert [site.how for site in report.sites] == ["", "removed"] * 2
    inner = [own for own, _ in small.named_parameters() if "mlp" in own or "intermediate" in own]
    assert not inner


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_features_of_the_residual_stream_keep_their_place(name: str) -> None:
    _, _, report = compacted(name, backbone(name), units="features")
    assert [site.how for site in report.sites[:2]] == ["padded"] * 2
    assert report.parameters[1] < report.parameters[0]


def test_text_is_generated_with_fewer_heads() -> None:
    _, small, _ = compacted("llama", backbone("llama"), units="heads")
    prompt = inputs("llama")["input_ids"][:2, :4]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cached = small.generate(prompt, **options)
    assert torch.equal(cached, small.generate(prompt, use_cache=False, **options))


@pytest.mark.parametrize("units", ["heads", "features"])
def test_layers_with_adapters(units: str) -> None:
    """Factors of kept units go to the weights of a layer and of its adapter."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["v_proj", "o_proj", "down_proj"])
    net = peft.get_peft_model(transformers.LlamaForCausalLM(backbone("llama").config), config)
    for own, parameter in net.named_parameters():
        if "lora_B" in own:
            nn.init.normal_(parameter)
    _, small, report = compacted("llama", net.eval(), units=units)
    way = {"heads": "removed", "features": "padded"}[units]
    assert [site.how for site in report.sites] == [way] * 2
    layer = small.base_model.model.model.layers[0]
    if units == "heads":
        assert layer.self_attn.v_proj.lora_B["default"].weight.shape == (6, 4)
        assert layer.self_attn.o_proj.lora_A["default"].weight.shape == (4, 12)


def test_ranks_of_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=6, lora_alpha=9, target_modules=["q_proj", "v_proj"])
    net = peft.get_peft_model(transformers.LlamaForCausalLM(backbone("llama").config), config)
    for own, parameter in net.named_parameters():
        if "lora_B" in own:
            nn.init.normal_(parameter)
    _, small, report = compacted("llama", net.eval(), units="ranks")
    assert [site.how for site in report.sites] == ["removed"] * 4
    layer = small.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.lora_A["default"].weight.shape == (3, 24)
    assert layer.r["default"] == 3
    with torch.no_grad():
        expected = small(**inputs("llama")).logits
    # peft writes and reads the smaller adapter, and merges it.
    small.save_pretrained(tmp_path)
    plain = transformers.LlamaForCausalLM(backbone("llama").config)
    plain.load_state_dict({key.replace(".base_layer", ""): value
                           for key, value in net.get_base_model().state_dict().items()
                           if "lora_" not in key})  # fmt: skip
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path).eval()
    for again in (loaded, small.merge_and_unload()):
        with torch.no_grad():
            torch.testing.assert_close(
                again(**inputs("llama")).logits, expected, atol=1e-4, rtol=1e-4
            )
