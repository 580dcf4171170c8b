"""Models of transformers, made from a config: wrapped, trained by Trainer, kept in folders."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    EvalPrediction,
    FunnelConfig,
    FunnelForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    OPTConfig,
    OPTForSequenceClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.utils.generic import find_labels

import gflowout as gfo
from gflowout.core import random, serialization
from gflowout.core.optional import MissingExtraError
from gflowout.integrations.huggingface import (
    TrainerModel,
    default_example,
    default_likelihood,
    default_sites,
    load_pretrained,
    next_tokens,
    predict_dataset,
    save_pretrained,
    wrap_transformer,
)
from gflowout.integrations.huggingface.defaults import mean_logits
from gflowout.methods._shared import keep_rate

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "num_labels": 3,
    "initializer_range": 0.5,  # outputs that depend on everything
}


def bert(kind: Any = BertForSequenceClassification, **more: Any) -> PreTrainedModel:
    return kind(BertConfig(**SIZES | more))


def vit() -> PreTrainedModel:
    picture = {"image_size": 8, "patch_size": 4, "num_channels": 2}
    return ViTForImageClassification(ViTConfig(**SIZES, **picture))


def gpt2() -> PreTrainedModel:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    return GPT2ForSequenceClassification(GPT2Config(**SIZES, **tokens))


def llama() -> PreTrainedModel:
    return LlamaForSequenceClassification(
        LlamaConfig(**SIZES, num_key_value_heads=1, pad_token_id=0)
    )


def opt() -> PreTrainedModel:
    own = {"ffn_dim": 24, "word_embed_proj_dim": 16, "init_std": 0.5, "pad_token_id": 0}
    return OPTForSequenceClassification(OPTConfig(**SIZES, **own))


BUILD: dict[str, Any] = {
    "bert": bert,
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**SIZES)),
    "tags": lambda: bert(BertForTokenClassification),
    "gpt2": gpt2,
    "llama": llama,
    "opt": opt,
    "vit": vit,
}
TEXTS = ["bert", "roberta", "tags", "gpt2", "llama", "opt"]
SITES = {
    "bert": "bert.encoder.layer.{}.output.dropout",
    "roberta": "roberta.encoder.layer.{}.output.dropout",
    "tags": "bert.encoder.layer.{}.output.dropout",
    "gpt2": "transformer.h.{}.mlp.dropout",
    "llama": "model.layers.{}.mlp",
    "opt": "model.decoder.layers.{}.self_attn",  # the MLP has no batch axis
    "vit": "vit.layers.{}.mlp",
}
LAST = {"gpt2": "transformer.h.{}.mlp.c_proj", "llama": "model.layers.{}.mlp.down_proj"}
LAST |= {"vit": "vit.layers.{}.mlp.fc2", "roberta": "roberta.encoder.layer.{}.output.dense"}
LAST |= {"opt": "model.decoder.layers.{}.self_attn.out_proj"}
LAST |= dict.fromkeys(["bert", "tags"], "bert.encoder.layer.{}.output.dense")
if not hasattr(vit().vit, "layers"):  # of transformers before 5
    SITES["vit"] = "vit.encoder.layer.{}.output.dropout"
    LAST["vit"] = "vit.encoder.layer.{}.output.dense"


def wrapped(name: str, method: str = "gflowout", **more: Any) -> gfo.MaskedModel:
    """A model whose generators are far from their start."""
    torch.manual_seed(0)
    model = wrap_transformer(BUILD[name](), method, **more)
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def sentences(tokens: int = 8) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 40, (3, 8), generator=source)
    real = (torch.arange(tokens) < torch.tensor([[5], [8], [3]])).long()
    return {
        "input_ids": nn.functional.pad(ids, (0, tokens - 8)) * real,
        "attention_mask": real,
    }


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("name", BUILD)
def test_defaults(name: str) -> None:
    model = wrapped(name)
    layers = [SITES[name].format(number) for number in (0, 1)]
    head = ["dropout"] if name in ("bert", "tags") else []  # that of RoBERTa runs twice
    assert [site.name for site in model.sites] == layers + head
    tokens = [None if name == "vit" else 1] * 2 + [1 if name == "tags" else None] * len(head)
    assert [site.tokens for site in model.sites] == tokens
    assert model.spec.padding == (None if name == "vit" else "attention_mask")
    assert model.spec.foldable
    assert [keep_rate(site) for site in model.sites] == pytest.approx([0.9] * len(model.sites))
    assert model.likelihood.config() == (
        {"classes": 3, "ignore_index": -100} if name == "tags" else {"classes": 3}
    )


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("method", ["gflowout", "contextual"])
def test_predictions_do_not_depend_on_padding(name: str, method: str) -> None:
    model = wrapped(name, method)

    def outputs(tokens: int, **how: Any) -> Tensor:
        return model.predict(**sentences(tokens), samples=6, generator=seeded(), **how).outputs

    short = outputs(8)
    assert short.std(0).max() > 1e-3
    real = sentences()["attention_mask"].bool() if name == "tags" else slice(None)
    for chunk in (None, 1):
        long = outputs(12, chunk=chunk)
        long = long[:, :, :8] if name == "tags" else long
        torch.testing.assert_close(long[:, real], short[:, real], atol=1e-4, rtol=1e-4)
    model.spec = dataclasses.replace(model.spec, padding=None)
    long = outputs(12)[:, :, :8] if name == "tags" else outputs(12)
    assert not torch.allclose(long[:, real], short[:, real], atol=1e-3)


@pytest.mark.parametrize("name", BUILD)
def test_masks_of_zero_are_layers_without_their_mlp(name: str) -> None:
    model = wrapped(name, "mc")
    call = default_example(model.backbone) if name == "vit" else sentences()
    without = copy.deepcopy(model.backbone).eval()
    for number in (0, 1):
        last = without.get_submodule(LAST[name].format(number))
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
    with torch.no_grad():
        expected = without(**call).logits
    masks = [torch.zeros(1, 3, site.units) for site in model.sites]
    if len(masks) == 3:
        masks[2] = torch.ones_like(masks[2])  # the head's
    model.set_options(rescale="none")
    torch.testing.assert_close(model.predict(**call, masks=masks).outputs[0], expected)


@pytest.mark.parametrize("name", BUILD)
def test_a_step_reaches_backbone_and_generators(name: str) -> None:
    model = TrainerModel(wrapped(name)).train()
    call = default_example(model.model.backbone)
    labels = torch.tensor([0, 2, 1])
    if name == "tags":
        labels = torch.where(call["attention_mask"] == 1, labels.unsqueeze(1), -100)
    found = model(**call, labels=labels)
    found.loss.backward()
    for part in (model.model.backbone.base_model, model.model.method.posterior[1]):
        assert any(each.grad is not None and each.grad.any() for each in part.parameters())
    model.eval()
    pred = model.model.predict(**call, samples=20, generator=random.generator(0, "evaluate", 0))
    scores = pred.samples.log()
    if name == "tags":  # one mask for all tokens of a sentence
        real, known = labels != -100, labels.clamp(min=0)
        each = scores.gather(-1, known.expand(20, -1, -1).unsqueeze(-1)).squeeze(-1)
        each, count = (each * real).sum(-1), real.sum()
    else:
        each, count = scores[:, range(3), labels], torch.tensor(3)
    expected = -each.exp().mean(0).log().sum() / count
    torch.testing.assert_close(model(**call, labels=labels).loss, expected)


def test_likelihood_by_problem_type() -> None:
    def of(labels: int, problem: str | None, kind: Any = BertForSequenceClassification) -> str:
        return repr(default_likelihood(bert(kind, num_labels=labels, problem_type=problem)))

    assert of(3, None) == of(3, "single_label_classification") == "Categorical(classes=3)"
    assert of(1, None).startswith("Gaussian(dim=1")
    assert of(2, "regression").startswith("Gaussian(dim=2")
    assert of(4, "multi_label_classification") == "MultiLabel(labels=4)"
    tags = of(5, None, BertForTokenClassification)
    assert tags == "Categorical(classes=5, ignore_index=-100)"


def test_patterns_and_options_of_ones_own() -> None:
    sites = ["bert.encoder.layer.*.attention.output.dropout", "dropout"]
    model = wrap_transformer(bert(), "mc", sites, rate=0.3, padding=None)
    assert [site.name.split(".")[-3] for site in model.sites[:2]] == ["attention"] * 2
    assert (model.method.options.rate, model.spec.padding) == (0.3, None)
    paper = wrap_transformer(bert(), preset="paper")
    assert paper.method.options.prior_keep == 0.5
    own = {"input_ids": torch.randint(1, 40, (2, 9))}
    assert wrap_transformer(bert(), "mc", example=own).spec.padding is None


@pytest.mark.parametrize("method", ["mc", "gflowout"])
def test_layers_that_are_computed_again_have_the_same_gradients(method: str) -> None:
    """With dropout inside the layers, before and behind the masks."""
    model = TrainerModel(wrapped("bert", method)).train()
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)
        model.zero_grad()
        model(**sentences(), labels=torch.tensor([0, 2, 1])).loss.backward()
        gradients.append({key: value.grad for key, value in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for key, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], expected, msg=key)
    with pytest.raises(ValueError, match="use_reentrant must be False, got True"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


def test_what_cannot_be_wrapped_is_told() -> None:
    with pytest.raises(TypeError, match=r"backbone must be a model of transformers, .* got Linear"):
        wrap_transformer(nn.Linear(2, 2))
    net = bert(num_hidden_layers=0)
    net.dropout = nn.Identity()
    with pytest.raises(ValueError, match=r"sites: BertForSequenceClassification has no layers"):
        default_sites(net)
    net = bert()
    net.main_input_name = "input_values"
    with pytest.raises(ValueError, match=r"example must be given .* main input is 'input_values'"):
        wrap_transformer(net)
    with pytest.raises(TypeError, match=r"model must come from wrap_transformer or gfo\.wrap"):
        TrainerModel(bert())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [BertForQuestionAnswering, BertForMultipleChoice, BertForMaskedLM, BertModel]
)
def test_other_heads_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"head for sequence .* got {kind.__name__}; .* example="):
        wrap_transformer(bert(kind), likelihood=gfo.Categorical(2))


def test_heads_that_are_not_refused() -> None:
    class Own(BertForQuestionAnswering):
        def forward(self, input_ids: Tensor) -> Any:
            return self.qa_outputs(self.bert(input_ids)[0][:, 0])

    example = {"input_ids": sentences()["input_ids"]}
    torch.manual_seed(0)
    assert wrap_transformer(bert(Own, num_labels=2)).predict(**example).mean.shape == (3, 2)
    config = GPT2Config(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    with pytest.warns(UserWarning, match="averages over all tokens"):
        model = wrap_transformer(GPT2LMHeadModel(config))
    assert model.likelihood.config() == {"classes": 40, "ignore_index": -100}
    assert model.predict(**example).mean.shape == (3, 8, 40)


def test_labels_of_a_causal_language_model_are_shifted() -> None:
    """Trainer's labels are those of transformers, and the loss is theirs, too."""
    config = GPT2Config(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    ids = sentences()["input_ids"]
    example, net = {"input_ids": ids}, GPT2LMHeadModel(config).eval()
    model = wrap_transformer(net, "none", example=example)
    trainable = TrainerModel(model).eval()
    half = ids.clone()
    half[:, :3] = -100  # a prompt that is not learned
    for labels in (ids, half):
        with pytest.raises(ValueError, match=r"are the tokens of input_ids.*labels\[:, :-1\] = in"):
            model(**example, y=labels)
        shifted = next_tokens(labels)
        assert torch.equal(shifted[:, :-1], labels[:, 1:])
        with torch.no_grad():
            expected = net(**example, labels=labels).loss
        for given in (labels, shifted):
            torch.testing.assert_close(trainable(**example, labels=given).loss, expected)
    trainable.train()(**example, labels=half).loss.backward()
    plain = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(40), example=example)
    with pytest.raises(ValueError, match="are the tokens of input_ids"):  # no label for the last
        TrainerModel(plain)(**example, labels=ids)
    model(input_ids=torch.full_like(ids, 7), y=torch.full_like(ids, 7))  # both: one token for ever


def test_labels_of_other_heads_may_be_their_input() -> None:
    ids = sentences()["input_ids"]
    net = bert(BertForTokenClassification, num_labels=40)
    model = wrap_transformer(net, example={"input_ids": ids})
    model(input_ids=ids, y=ids)


def test_sites_without_a_batch_axis_are_told() -> None:
    net = opt()
    for layer in net.model.decoder.layers:
        layer.attention = layer.__dict__["_modules"].pop("self_attn")
        object.__setattr__(layer, "self_attn", layer.attention)  # by another name
    with pytest.raises(
        ValueError, match=r"default cannot be used for OPT\w+: .* no.* batch axis at 'model\S*fc2'"
    ):
        wrap_transformer(net)
    assert len(wrap_transformer(net, sites=["model.decoder.layers.*.attention"]).sites) == 2


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # Funnel of transformers 4
def test_positions_that_are_not_those_of_the_padding_are_told() -> None:
    config = FunnelConfig(
        vocab_size=40, d_model=16, n_head=2, d_head=8, d_inner=24, block_sizes=[1, 1],
        num_decoder_layers=1, num_labels=3,
    )  # fmt: skip
    net = FunnelForSequenceClassification(config)
    with pytest.warns(UserWarning, match=r"at funnel\S*blocks\.1\.0\S* are not those of 'att"):
        model = wrap_transformer(net, "mc")
    assert [site.tokens for site in model.sites] == [1, None, None]
    wrap_transformer(net, "mc", ["funnel.encoder.blocks.0.*.ffn.dropout"])
    wrap_transformer(net, "mc", padding=None)


def test_examples_that_fail_are_told() -> None:
    example = {"ids": torch.ones(2, 3).long()}
    with pytest.raises(ValueError, match=r"example must be .* got ids, on .* takes input_ids, att"):
        wrap_transformer(bert(), example=example)
    with pytest.raises(ValueError, match=r"failed on `example`"):
        wrap_transformer(bert(), sites=["dropout"], example=example)
    with pytest.raises(ValueError, match=r"example must be .* got argument 0, on which it fails"):
        wrap_transformer(bert(), example=(torch.zeros(2, 3),))


def test_layers_that_share_their_weights_are_told() -> None:
    config = AlbertConfig(
        vocab_size=50, hidden_size=16, embedding_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, num_labels=3,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"run more than once each .* masks are at dropout alone"):
        model = wrap_transformer(AlbertForSequenceClassification(config))
    assert [site.name for site in model.sites] == ["dropout"]


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "gflowout.integrations.huggingface")
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[huggingface\]'"):
        importlib.import_module("gflowout.integrations.huggingface")


def test_a_training_pass_is_that_of_the_model() -> None:
    model, labels = wrapped("bert", draws=2), torch.tensor([0, 2, 1])
    trainable = TrainerModel(model).train()
    torch.manual_seed(5)
    found = trainable(**sentences(), labels=labels)
    torch.manual_seed(5)
    losses = model(**sentences(), y=labels)
    torch.testing.assert_close(found.loss, losses.total)
    torch.testing.assert_close(found.nll + found.tb + found.prior, found.loss)
    assert found.loss.requires_grad
    assert not found.logits.requires_grad
    assert found.logits.shape == (3, 3)
    with pytest.raises(ValueError, match="labels must be given in training"):
        trainable(**sentences())
    assert not model.backbone._forward_hooks


def test_evaluation_is_the_mean_over_masks() -> None:
    model, labels = wrapped("bert"), torch.tensor([0, 2, 1])
    trainable = TrainerModel(model, samples=5, seed=7)
    found = trainable(**sentences(), labels=labels)
    source = random.generator(7, "evaluate", 0)
    samples = model.predict(**sentences(), samples=5, generator=source).samples
    mean = torch.stack(list(samples)).sum(0) / 5
    torch.testing.assert_close(found.logits.softmax(-1), mean)
    torch.testing.assert_close(found.loss, -mean[range(3), labels].log().mean())
    second = trainable(**sentences(), labels=labels)
    assert not torch.equal(second.logits, found.logits)  # the next batch, other draws
    again = trainable.eval()(**sentences())
    assert torch.equal(again.logits, found.logits)  # the next evaluation, the same ones
    assert again.loss is None


def test_logits_of_other_likelihoods() -> None:
    outputs = torch.randn(4, 3, 2)
    several = gfo.Predictive(outputs, gfo.MultiLabel(2))
    torch.testing.assert_close(mean_logits(several).sigmoid(), outputs.sigmoid().mean(0))
    settled, likelihood = gfo.Gaussian(2).settle(outputs.flatten(0, 1))
    values = gfo.Predictive(settled.reshape(4, 3, 4).detach(), likelihood)
    torch.testing.assert_close(mean_logits(values), outputs.mean(0))
    sure = gfo.Predictive(torch.tensor([[[500.0, -500.0]]]), gfo.Categorical(2))
    assert mean_logits(sure).isfinite().all()


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.tensor([[0.5, 1.0], [0.0, 2.0], [1.0, 1.0]])),
        ("multi_label_classification", torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])),
    ],
)
def test_other_problems_train_and_evaluate(problem: str, labels: Tensor) -> None:
    model = TrainerModel(wrap_transformer(bert(num_labels=2, problem_type=problem)))
    assert model(**sentences(), labels=labels).loss.isfinite()
    pred = model.model.predict(**sentences(), generator=random.generator(0, "evaluate", 0))
    found = model.eval()(**sentences(), labels=labels)
    by = labels.numel() if problem == "multi_label_classification" else len(labels)
    torch.testing.assert_close(found.loss, -pred.log_prob(labels).sum() / by)


@pytest.mark.parametrize("problem", ["one", "tags", "several", "sequence without padding"])
def test_the_loss_in_evaluation_is_that_of_the_plain_model(problem: str) -> None:
    call = sentences()
    real = call["attention_mask"]
    ids, several = real.cumsum(1) % 3, "multi_label_classification"
    net, labels = {
        "one": (bert(), torch.tensor([0, 2, 1])),
        "tags": (bert(BertForTokenClassification), torch.where(real == 1, ids, -100)),
        "several": (bert(problem_type=several), torch.eye(3)),
        "sequence without padding": (bert(BertForTokenClassification), ids),
    }[problem]
    own = {"likelihood": gfo.Categorical(3)} if "without" in problem else {}
    model = TrainerModel(wrap_transformer(net, "none", (), **own)).eval()
    with torch.no_grad():
        expected = net(**call, labels=labels).loss
    torch.testing.assert_close(model(**call, labels=labels).loss, expected)


def test_labels_that_all_count_for_nothing() -> None:
    model = TrainerModel(wrapped("tags")).eval()
    assert model(**sentences(), labels=torch.full((3, 8), -100)).loss == 0


def test_trainer_sees_what_it_looks_for() -> None:
    model = TrainerModel(wrapped("gpt2"))
    inside = model.model.backbone
    assert inspect.signature(model.forward) == inspect.signature(inside.forward)
    assert find_labels(TrainerModel) == ["labels"]
    assert model.config is inside.config
    copied = copy.deepcopy(model)
    assert copied.forward.args[0] is copied
    TrainerModel(wrapped("bert", "id-gflowout"))  # train_size is needed in training only


def test_learning_rates_of_the_parts(tmp_path: Path) -> None:
    model = TrainerModel(wrapped("bert"))
    model.model.backbone.bert.embeddings.requires_grad_(False)
    args = TrainingArguments(str(tmp_path), learning_rate=3e-5, weight_decay=0.1, use_cpu=True)
    optimizer, schedule = model.optimizers(args, generator_lr=2e-3, log_z_lr=4e-2)
    assert schedule is None
    rates = {
        id(parameter): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        expected = (3e-5, 0.1 if parameter.dim() > 1 else 0.0)
        if "log_z" in name:
            expected = (4e-2, 0.0)
        elif ".method." in name:
            expected = (2e-3, 0.0)
        learned = "embeddings" not in name
        assert rates.get(id(parameter)) == (expected if learned else None), name
    assert len(rates) == len([p for p in model.parameters() if p.requires_grad])


def test_tied_weights_can_be_written(tmp_path: Path) -> None:
    config = T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, num_labels=3,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = TrainerModel(wrap_transformer(T5ForSequenceClassification(config), "mc"))
    save_file(model.state_dict(), tmp_path / "all.safetensors")  # what Trainer does
    tied = model.model.backbone.transformer
    assert tied.shared.weight is tied.encoder.embed_tokens.weight


# A task: which half of the vocabulary has the majority? Where all words are "?", nobody knows.
UNSURE, HALF = 22, 10


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, size: int = 1) -> Tensor:
        return torch.randint(low, high, (size,), generator=source)

    made = []
    for _ in range(count):
        length, label, doubt = 2 * int(draw(1, 6)) + 1, int(draw(0, 2)), int(draw(0, 4)) == 0
        kinds = torch.full((length,), label)
        kinds[: int(draw(0, length // 2 + 1))] = 1 - label
        ids = 2 + HALF * kinds + draw(0, HALF, length)
        if doubt:
            ids, label = torch.full_like(ids, UNSURE), int(draw(0, 2))
        made.append({"input_ids": [1, *ids.tolist()], "labels": label, "note": "unused"})
    return made


def padded(ids: list[list[int]]) -> Tensor:
    longest = max(map(len, ids))
    return torch.tensor([each + [0] * (longest - len(each)) for each in ids])


def collate(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    assert set(batch[0]) == {"input_ids", "labels"}
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.tensor(
        [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch]
    )
    labels = torch.tensor([row["labels"] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def right(found: EvalPrediction) -> dict[str, float]:
    return {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())}


class Own(Trainer):
    """Somebody's subclass, which looks at logits in training."""

    seen = 0

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        assert outputs.logits.shape == (len(inputs["labels"]), 2)
        self.seen += model.training
        return (loss, outputs) if return_outputs else loss


TRAIN, TEST = rows(640, 0), rows(300, 1)


def trainer(folder: Path, **more: Any) -> Own:
    torch.manual_seed(0)
    own = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "num_labels": 2}
    own["initializer_range"] = 0.2
    config = BertConfig(**SIZES | own)
    model = TrainerModel(wrap_transformer(BertForSequenceClassification(config)), samples=10)
    args = TrainingArguments(
        str(folder), num_train_epochs=4, per_device_train_batch_size=40,
        per_device_eval_batch_size=100, learning_rate=5e-3, eval_strategy="epoch",
        save_strategy="epoch", logging_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False, max_grad_norm=0.0, seed=1, **more,
    )  # fmt: skip
    return Own(
        model, args, train_dataset=TRAIN, eval_dataset=TEST, data_collator=collate,
        optimizers=model.optimizers(args),
        compute_metrics=right,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Own:
    made = trainer(tmp_path_factory.mktemp("trained"))
    made.train()
    return made


def test_trainer_learns_and_knows_what_nobody_knows(trained: Own) -> None:
    assert trained.seen == trained.state.global_step == 4 * 16
    history = [entry for entry in trained.state.log_history if "eval_loss" in entry]
    doubt = torch.tensor([UNSURE in row["input_ids"] for row in TEST])
    labels = torch.tensor([row["labels"] for row in TEST])
    pred = predict_dataset(trained.model, TEST, trained.data_collator, batch_size=100)
    correct = (pred.mean.argmax(-1) == labels).float()
    assert correct[~doubt].mean() > 0.95
    total, disagreement = pred.entropy(), pred.mutual_information()
    assert total[doubt].mean() > total[~doubt].mean() + 0.3
    assert disagreement[doubt].mean() > 2 * disagreement[~doubt].mean() > 1e-4
    assert history[-1]["eval_loss"] < history[0]["eval_loss"] < math.log(2) + 0.05
    assert abs(history[-1]["eval_loss"] + pred.log_prob(labels).mean()) < 0.02  # other draws


def test_trainer_evaluates_the_same_twice(trained: Own) -> None:
    first, second = (trained.predict(TEST[:120]) for _ in range(2))
    assert first.metrics["test_loss"] == second.metrics["test_loss"]
    assert first.predictions.shape == (120, 2)


def test_a_run_is_taken_up_from_its_checkpoint(trained: Own, tmp_path: Path) -> None:
    folder = Path(trained.args.output_dir)
    assert {each.name for each in folder.iterdir()} >= {f"checkpoint-{16 * n}" for n in (3, 4)}
    second = trainer(tmp_path)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-48"))
    assert second.seen == 16
    expected = trained.model.state_dict()
    found = second.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_folders(trained: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    save_pretrained(trained.model, folder)
    names = {each.name for each in folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "gflowout.safetensors"}
    with safe_open(str(folder / "gflowout.safetensors"), framework="pt") as file:
        assert all(key.startswith("gflowout.") for key in file.keys())  # noqa: SIM118
    batch = collate([{name: row[name] for name in ("input_ids", "labels")} for row in TEST[:50]])
    labels = batch.pop("labels")
    plain = BertForSequenceClassification.from_pretrained(folder)
    inside = trained.model.model.backbone.eval()
    with torch.no_grad():
        assert torch.equal(plain(**batch).logits, inside(**batch).logits)
    expected = trained.model.model.predict(**batch, generator=seeded()).outputs
    for loaded in (
        load_pretrained(folder),
        load_pretrained(folder, BertForSequenceClassification),
        gfo.load(folder / "gflowout.safetensors", plain),
    ):
        assert torch.equal(loaded.predict(**batch, generator=seeded()).outputs, expected)
        assert loaded.spec.padding == "attention_mask"
    loaded.train()(**batch, y=labels).total.backward()
    with monkeypatch.context() as stopped:
        stopped.setattr(serialization, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_pretrained(trained.model, folder)
    with pytest.raises(FileNotFoundError, match=r"folder must hold"):  # no new beside old
        load_pretrained(folder)
    save_pretrained(trained.model, folder)
    with pytest.raises(FileNotFoundError, match=r"folder must hold 'gflowout.safetensors'"):
        load_pretrained(tmp_path)
    with pytest.raises(TypeError, match=r"kind must be a class .* got 'BertForSequenceClass"):
        load_pretrained(folder, "BertForSequenceClassification")  # type: ignore[arg-type]
    with pytest.raises(NotADirectoryError, match=r"folder must be .* got the file .*config.json"):
        save_pretrained(trained.model, folder / "config.json")
    with pytest.raises(TypeError, match="model must be a wrapped model of transformers"):
        save_pretrained(plain, folder)  # type: ignore[arg-type]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Mine"]}))
    with pytest.raises(ValueError, match=r"kind must be given: .* names 'Mine'"):
        load_pretrained(folder)


def test_data_sets_of_tags() -> None:
    model = wrapped("tags")
    ids = [[1, 5, 6], [1, 7], [1, 8, 9, 3, 2], [4, 4]]
    data = [{"input_ids": each, "labels": [0] * len(each), "note": 0} for each in ids]

    def pad(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        made = padded([row["input_ids"] for row in batch])
        return {"input_ids": made, "attention_mask": (made != 0).long(), "labels": made}

    found = predict_dataset(model, data, pad, batch_size=2, samples=4, seed=3)
    assert found.outputs.shape == (4, 4, 5, 3)
    assert (found.outputs[:, :2, 3:] == 0).all()
    source = seeded()
    for start in (0, 2):
        batch = pad(data[start : start + 2])
        del batch["labels"]
        part = model.predict(**batch, samples=4, generator=source).outputs
        assert torch.equal(found.outputs[:, start : start + 2, : part.shape[2]], part)
    whole = predict_dataset(TrainerModel(model), [{"input_ids": [1, 5, 6]}] * 2, samples=2)
    assert whole.outputs.shape == (2, 2, 3, 3)
    with pytest.raises(TypeError, match="model must come from wrap_transformer, got Bert"):
        predict_dataset(model.backbone, data, pad)  # type: ignore[arg-type]


def test_data_sets_that_cannot_be_read_are_told() -> None:
    model = wrapped("bert")
    ragged = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [1, 2, 3], "labels": 0}]
    with pytest.raises(ValueError, match=r"collate must be given"):
        predict_dataset(model, ragged)
    with pytest.raises(ValueError, match=r"collate must be given"):
        predict_dataset(model, [{"input_ids": torch.ones(n).long()} for n in (2, 3)])
    with pytest.raises(ValueError, match=r"dataset .* got text, label; it takes input_ids, att"):
        predict_dataset(model, [{"text": "a", "label": 0}])
    with pytest.raises(TypeError, match=r"dataset .* got tuple; .* takes the columns input_ids"):
        predict_dataset(model, [([1, 2], 0)])


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "docs/guides/transformers.md"
    text = (Path(__file__).parents[2] / name).read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("wrap_transformer(") >= 3
    page: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code, name, "exec"), page)
    assert (page["pred"].mean.argmax(-1) == page["labels"]).float().mean() > 0.9
