"""A LoRA adapter whose ranks are masked: train, answer with uncertainty, generate, save, load.

A small language model that knows additions and differences of digits, trained here from scratch,
learns products by an adapter from 70 of the 100 facts; the other 30 are asked. The same adapter is
trained without masks, with MC dropout of its ranks, and with a posterior over ranks.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gflowout import metrics
from gflowout.integrations.huggingface import (
    CausalModel,
    load_adapter,
    next_tokens,
    save_pretrained,
    wrap_transformer,
)

PAD, BOS, EOS, EQUALS, PLUS, MINUS, TIMES = range(10, 17)  # tokens 0 to 9 are digits
PROMPT, SHOWN = 5, 70  # tokens of a question; facts that the adapter learns from
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain LoRA": ("none", {}),
    "MC dropout of ranks": ("mc", {"keep": 0.8}),
    "posterior over ranks": ("id-gflowout", {"keep": 0.8, "train_size": SHOWN}),
}


def facts(sign: int, result: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Sentences such as "7 x 8 = 5 6", [100, 8]."""
    first, second = torch.arange(10).repeat_interleave(10), torch.arange(10).repeat(10)
    value = result(first, second)
    rows = torch.full((100, 8), BOS)
    rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4] = first, sign, second, EQUALS
    rows[:, 5], rows[:, 6], rows[:, 7] = value // 10, value % 10, EOS
    return rows


def pretrain(steps: int, width: int) -> LlamaForCausalLM:
    """A model from a configuration; in practice it comes from ``from_pretrained``."""
    config = LlamaConfig(
        vocab_size=17, hidden_size=width, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=2 * width, max_position_embeddings=16, pad_token_id=PAD,
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    ids = torch.cat([facts(PLUS, torch.add), facts(MINUS, lambda a, b: (a - b).abs())])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        net(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return net


def train(base: LlamaForCausalLM, name: str, ids: Tensor, steps: int) -> CausalModel:
    """Add an adapter, mask its ranks and train it on answers; the base model stays frozen."""
    config = LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_alpha=16,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    method, options = METHODS[name]
    adapted = get_peft_model(copy.deepcopy(base), config)
    model = wrap_transformer(adapted, method, example={"input_ids": ids[:2]}, **options)
    assert isinstance(model, CausalModel)
    labels = ids.clone()
    labels[:, :PROMPT] = -100  # questions are not learned
    optimizer = torch.optim.Adam(model.parameter_groups(lr=5e-3, generator_lr=1e-2))
    for _ in range(steps):
        losses = model(input_ids=ids, y=next_tokens(labels))
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    return model.eval()


def choose(
    model: CausalModel, ids: Tensor, masks: int, generator: torch.Generator
) -> dict[str, float]:
    """Ask each question with four answers, the first of which is right."""
    products = facts(TIMES, torch.mul)[:, PROMPT:]
    answers = []
    for row in ids[:, PROMPT:]:
        others = products[(products != row).any(1)].unique(dim=0)
        picked = torch.randperm(len(others), generator=generator)[:3]
        answers.append([row.tolist(), *others[picked].tolist()])
    prompts = ids[:, :PROMPT].tolist()
    pred = model.predict_choices(prompts, answers, masks=masks, generator=generator)
    right = torch.zeros(len(ids), dtype=torch.long)
    return metrics.classification(pred.mean, right, pred.log_prob(right))


def generate(model: CausalModel, ids: Tensor, masks: int, generator: torch.Generator) -> np.ndarray:
    """Let every mask write an answer; whether the most frequent is right, most certain first."""
    text = model.generate(ids[:, :PROMPT], masks=masks, generator=generator, max_new_tokens=3)
    value = text.tokens[..., 0] * 10 + text.tokens[..., 1]
    right = value.mode(0).values == ids[:, PROMPT] * 10 + ids[:, PROMPT + 1]
    entropy = (text.scores.entropy * text.real).sum(-1).mean(0)
    return right[entropy.argsort()].double().numpy()


def save_and_load(model: CausalModel, base: LlamaForCausalLM, ids: Tensor) -> bool:
    """Whether an adapter and its masks give the same scores after a round trip."""
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)  # adapter_config.json, adapter weights and masks
        loaded = load_adapter(folder, copy.deepcopy(base))
    assert isinstance(loaded, CausalModel)
    first, second = (
        one.token_scores(ids, masks=5, generator=torch.Generator().manual_seed(0)).log_prob
        for one in (model, loaded)
    )
    return torch.equal(first, second)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train on several seeds, print what came out, plot which answers can be trusted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="adapter.png", help="file of the plot")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of peft
    seeds, masks, steps, width = options.seeds, 20, (250, 150), 64
    if options.quick:
        seeds, masks, steps, width = 2, 5, (30, 10), 16
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    trusted: dict[str, list[np.ndarray]] = {name: [] for name in METHODS}
    same = True
    for seed in range(seeds):
        torch.manual_seed(seed)
        base = pretrain(steps[0], width)
        ids = facts(TIMES, torch.mul)[torch.randperm(100)]
        for name in METHODS:
            torch.manual_seed(seed)
            model = train(base, name, ids[:SHOWN], steps[1])
            generator = torch.Generator().manual_seed(seed)
            right = generate(model, ids[SHOWN:], masks, generator)
            own = choose(model, ids[SHOWN:], masks, generator)
            half = right[: len(right) // 2]
            scores[name].append({**own, "right": right.mean(), "half": half.mean()})
            trusted[name].append(right.cumsum() / np.arange(1, len(right) + 1))
            same = same and save_and_load(model, base, ids[SHOWN:])
    print(f"{seeds} seeds, products that were not shown: " + "; ".join(map(say, scores.items())))
    plot(trusted, options.out)
    return {"same": same, **{name: rows[-1] for name, rows in scores.items()}}


def say(item: tuple[str, list[dict[str, float]]]) -> str:
    """One method in words, with standard errors over seeds."""
    name, rows = item

    def number(key: str, scale: float, digits: int) -> str:
        values = scale * np.array([row[key] for row in rows])
        return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(rows) ** 0.5:.{digits}f}"

    return (
        f"{name}: of four answers {number('accuracy', 100, 0)} % right, NLL {number('nll', 1, 2)}, "
        f"ECE {number('ece', 1, 2)}; of written ones {number('right', 100, 0)} % right, of the "
        f"more certain half {number('half', 100, 0)} %"
    )


def plot(trusted: dict[str, list[np.ndarray]], path: str) -> None:
    """Share of right answers among the most certain ones."""
    figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for name, curves in trusted.items():
        mean = np.mean(curves, 0)
        axes.plot(np.arange(1, len(mean) + 1) / len(mean), mean, label=name)
    axes.set(xlabel="share of the questions answered, most certain first", ylim=(0, 1.02))
    axes.set(ylabel="share of right answers")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
