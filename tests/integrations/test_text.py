"""Causal language models under fixed masks: generated text, scores of tokens, multiple choice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from gflowout import metrics, uncertainty
from gflowout.core.token_scores import token_scores
from gflowout.integrations.huggingface import CausalModel, wrap_transformer
from gflowout.integrations.huggingface import text as text_module

peft = pytest.importorskip("peft")
LoraConfig = peft.LoraConfig
get_peft_model = peft.get_peft_model

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.5,  # outputs that depend on everything
}


def backbone(name: str) -> Any:
    torch.manual_seed(1)
    if name == "gpt2":  # positions are absolute
        return GPT2LMHeadModel(GPT2Config(**SIZES)).eval()
    net = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=24)).eval()
    if name == "llama":
        return net
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(net, config).eval()
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_" in key:
                parameter.copy_(torch.randn(parameter.shape, generator=draws))
    return adapted


def wrapped(name: str, method: str = "mc") -> CausalModel:
    options = {"rate": 0.4} if method == "mc" else {"train_size": 9, "prior_keep": 0.6}
    model = wrap_transformer(backbone(name), method, **options)
    assert isinstance(model, CausalModel)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PROMPTS = torch.tensor([[0, 0, 1, 7, 9], [1, 5, 3, 4, 8]])
REAL = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def with_mask(model: CausalModel, masks: list[Tensor], mask: int, row: int) -> Any:
    """A bare model whose weights have one mask of one prompt folded into them."""
    net = copy.deepcopy(model.backbone)
    scale = 1 / 0.6 if model.method.name == "mc" else 1.0
    with torch.no_grad():
        for site, drawn in zip(model.sites, masks, strict=True):
            net.get_submodule(site.name).weight.mul_(scale * drawn[mask, row][:, None])
    return net


@pytest.mark.parametrize("method", ["mc", "id-gflowout"])
def test_every_mask_writes_as_a_model_of_its_own(method: str) -> None:
    """Ranks are masked by peft alone: rows of A."""
    model = wrapped("lora", method)
    text = model.generate(PROMPTS, REAL, masks=3, generator=seeded(), max_new_tokens=5)
    assert text.sequences.shape[:2] == (3, 2)
    assert len(torch.unique(text.tokens.flatten(0, 1), dim=0)) > 2
    for mask in range(3):
        for row in range(2):
            net = with_mask(model, text.masks, mask, row)
            prompt = PROMPTS[row : row + 1, int((REAL[row] == 0).sum()) :]
            alone = net.generate(
                input_ids=prompt, max_new_tokens=5, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
            tokens = alone.sequences[0, prompt.shape[1] :]
            written = text.real[mask, row]
            assert text.tokens[mask, row][written].tolist() == tokens.tolist()
            logits = torch.stack(alone.logits)[:, 0].log_softmax(-1)
            expected = logits.gather(1, tokens[:, None])[:, 0]
            torch.testing.assert_close(
                text.log_probs[mask, row][written], expected, atol=1e-4, rtol=1e-4
            )
            assert not text.log_probs[mask, row][~written].any()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_on_the_left_changes_nothing(name: str) -> None:
    model = wrapped(name)
    first = model.generate(PROMPTS[:1, 2:], masks=4, generator=seeded(), max_new_tokens=4)
    padded = model.generate(PROMPTS[:1], REAL[:1], masks=first.masks, max_new_tokens=4)
    assert torch.equal(padded.tokens, first.tokens)
    torch.testing.assert_close(padded.log_probs, first.log_probs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(padded.disagreement, first.disagreement, atol=1e-4, rtol=1e-4)


def test_disagreement_is_that_of_all_masks_on_one_text() -> None:
    model = wrapped("lora")
    text = model.generate(PROMPTS[1:], masks=4, generator=seeded(), max_new_tokens=4)
    for writer in range(4):
        pred = model.predict(input_ids=text.sequences[writer], masks=text.masks)
        information = pred.mutual_information()[:, text.start - 1 : -1]
        expected = information * text.real[writer]
        torch.testing.assert_close(text.disagreement[writer], expected, atol=1e-5, rtol=1e-4)
    assert text.disagreement.max() > 0.05


def test_generation_follows_its_seed_and_leaves_the_rest_alone() -> None:
    model = wrapped("lora").train()
    state, options = torch.get_rng_state(), {"max_new_tokens": 6, "do_sample": True}
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    one, two, other = (
        model.generate(PROMPTS, REAL, masks=3, generator=seeded(seed), **options).sequences
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert one.shape != other.shape or not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.backbone.training
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    with torch.no_grad():  # no hook is left behind
        model.backbone.generate(input_ids=PROMPTS[1:], max_new_tokens=2)


def test_tokens_after_the_end_do_not_count() -> None:
    model = wrapped("llama")
    new = torch.tensor([[5, 2, 0, 0], [5, 6, 7, 8], [2, 5, 5, 5], [5, 6, 0, 0], [5, 0, 6, 2]])
    expected = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert model._written(new, {}).long().tolist() == expected
    config = GenerationConfig(do_sample=True)  # its special tokens are those of the model
    assert model._written(new, {"generation_config": config}).long().tolist() == expected
    # A text may end in a token that stands for padding elsewhere, but not where it was cut short.
    expected[3] = [1, 1, 0, 0]
    assert model._written(new, {"stop_strings": ["x"]}).long().tolist() == expected
    assert model._written(new[:1], {"eos_token_id": [5, 2]}).long().tolist() == [[1, 0, 0, 0]]
    assert model._written(new[:1], {"eos_token_id": None}).long().tolist() == [[1, 1, 1, 1]]
    same = {"pad_token_id": 2}  # a tokenizer without a token for padding
    assert model._written(torch.tensor([[5, 2, 2, 2]]), same).long().tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("pad", [0, 2])
def test_a_generation_config_ends_a_text_at_the_same_token(pad: int) -> None:
    model, options = wrapped("llama"), {"max_new_tokens": 12, "do_sample": True}
    prompts = torch.randint(3, 20, (16, 4), generator=seeded())
    config = GenerationConfig(**options, pad_token_id=pad)
    plain, given = (
        model.generate(prompts, masks=2, generator=seeded(), **own)
        for own in ({**options, "pad_token_id": pad}, {"generation_config": config})
    )
    ends = (given.tokens == 2).long()
    assert ends.any()
    assert torch.equal(given.real, ends.cumsum(-1) - ends == 0)
    assert torch.equal(given.sequences, plain.sequences)
    assert torch.equal(given.log_probs, plain.log_probs)


def test_samples_are_lists_for_other_libraries() -> None:
    model = wrapped("lora")
    text = model.generate(PROMPTS, REAL, masks=3, generator=seeded(), max_new_tokens=5)

    class Letters:
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return "".join(chr(97 + token) for token in tokens if token > 2)

    samples = text.samples(Letters())
    assert set(samples) == {
        "sample_tokens", "sample_log_likelihoods", "sample_log_probs", "sample_texts",
        "sample_mutual_information",
    }  # fmt: skip
    for row in range(2):
        for mask in range(3):
            tokens = samples["sample_tokens"][row][mask]
            scores = samples["sample_log_likelihoods"][row][mask]
            assert tokens == text.tokens[mask, row][text.real[mask, row]].tolist()
            assert len(scores) == len(tokens)
            disagreement = samples["sample_mutual_information"][row][mask]
            assert disagreement == text.disagreement[mask, row][text.real[mask, row]].tolist()
            assert sum(scores) == pytest.approx(samples["sample_log_probs"][row][mask], abs=1e-4)
            assert isinstance(samples["sample_texts"][row][mask], str)
    assert "sample_texts" not in text.samples()


@pytest.mark.parametrize("rows", [1, 1000])
def test_token_scores_are_those_of_a_prediction(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("gpt2")
    ids = torch.randint(3, 20, (3, 6), generator=seeded())
    pred = model.predict(input_ids=ids, samples=7, generator=seeded(), return_masks=True)
    monkeypatch.setattr(text_module, "_AT_A_TIME", rows * 120)
    scores = model.token_scores(ids, masks=pred.masks)
    probabilities = pred.samples[:, :, :-1]
    for own, theirs in (
        (scores.entropy, uncertainty.predictive_entropy(probabilities)),
        (scores.expected_entropy, uncertainty.expected_entropy(probabilities)),
        (scores.mutual_information, uncertainty.mutual_information(probabilities)),
        (scores.log_prob.exp(), probabilities.mean(0).gather(-1, ids[:, 1:, None])[..., 0]),
    ):
        torch.testing.assert_close(own, theirs, atol=1e-5, rtol=1e-4)
    drawn = model.token_scores(ids, masks=5, generator=seeded(1))
    assert drawn.log_probs.shape == (5, 3, 5)
    assert drawn.mutual_information.max() > 1e-3


def test_scores_need_a_mask() -> None:
    with pytest.raises(ValueError, match="at least one mask, got none"):
        token_scores([], torch.zeros(1, 1).long())


def test_one_mask_answers_a_question() -> None:
    model = wrapped("lora")
    prompts, choices = [[1, 7, 9, 4], [1, 5]], [[[3], [4, 6]], [[8, 9, 3], [7]]]
    pred = model.predict_choices(prompts, choices, masks=3, generator=seeded())
    means = model.predict_choices(prompts, choices, masks=pred.masks, per_token=True)
    for mask in range(3):
        for row in range(2):
            net = with_mask(model, list(pred.masks or []), mask, row)
            for at, answer in enumerate(choices[row]):
                ids = torch.tensor([prompts[row] + answer])
                with torch.no_grad():
                    scores = net(input_ids=ids).logits[0, :-1].log_softmax(-1)
                own = scores.gather(1, ids[0, 1:, None])[-len(answer) :]
                ours = (prediction.outputs[mask, row, at] for prediction in (pred, means))
                for score, expected in zip(ours, (own.sum(), own.mean()), strict=True):
                    torch.testing.assert_close(score, expected, atol=1e-4, rtol=0)
    labels = torch.tensor([1, 0])
    scores = metrics.classification(pred.mean, labels, pred.log_prob(labels))
    chosen = pred.outputs.softmax(-1).mean(0)[[0, 1], labels]
    assert scores["nll"] == pytest.approx(-chosen.log().mean().item(), abs=1e-5)
    assert scores["accuracy"] == pytest.approx((chosen > 0.5).float().mean().item())
    assert 0 <= scores["ece"] <= 1
    rows = [torch.tensor([1, 5]), torch.tensor([1, 7])]
    both = [model.predict_choices(own, choices, masks=2, generator=seeded()).outputs
            for own in (rows, torch.stack(rows))]  # fmt: skip
    assert torch.equal(*both)


def test_what_cannot_be_generated_is_told() -> None:
    model = wrapped("llama")
    with pytest.raises(ValueError, match=r"num_beams must be 1: every mask .* got 4"):
        model.generate(PROMPTS, masks=2, num_beams=4)
    with pytest.raises(ValueError, match="num_return_sequences must be 1"):
        model.generate(PROMPTS, masks=2, num_return_sequences=2)
    config = GenerationConfig(num_return_sequences=3, do_sample=True)
    with pytest.raises(ValueError, match=r"num_return_sequences must be 1: .* got 3"):
        model.generate(PROMPTS, masks=2, generation_config=config)
    with pytest.raises(ValueError, match=r"attention_mask must end with 1 .* pad on the left"):
        model.generate(PROMPTS, REAL.flip(1), masks=2)
    with pytest.raises(ValueError, match=r"attention_mask must have the shape .*\[2, 5\], got"):
        model.generate(PROMPTS, REAL[:, 1:], masks=2)
    with pytest.raises(ValueError, match=r"input_ids must be tokens, .* got \[5\]"):
        model.generate(PROMPTS[0], masks=2)
    with pytest.raises(ValueError, match="masks must be an integer >= 1, got 0"):
        model.token_scores(PROMPTS, masks=0)
    with pytest.raises(ValueError, match=r"same number of answers .* got \[1, 2\]"):
        model.predict_choices([[1], [1]], [[[3]], [[3], [4]]])
    with pytest.raises(ValueError, match="answers for each of 2 prompts"):
        model.predict_choices([[1], [1]], [[[3], [4]]])
    with pytest.raises(ValueError, match="at least one token"):
        model.predict_choices([[1]], [[[3], []]])


def test_masks_that_see_the_whole_text_are_told() -> None:
    with pytest.warns(UserWarning, match="'gflowout' draws masks from averages over all tokens"):
        model = wrap_transformer(backbone("lora"), "gflowout")
    assert isinstance(model, CausalModel)
    text = model.generate(PROMPTS, REAL, masks=2, max_new_tokens=3)
    again = model.generate(PROMPTS, REAL, masks=text.masks, max_new_tokens=3)
    assert torch.equal(text.tokens, again.tokens)
