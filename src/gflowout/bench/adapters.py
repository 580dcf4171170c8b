"""A training step of LoRA with masks on the ranks, beside plain LoRA: time and memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.bench.methods import METHODS
from gflowout.bench.timing import Case, Table
from gflowout.bench.work import count
from gflowout.core.optional import require

LORA = "plain LoRA"
LORA_METHODS = ("mc", "concrete", "id-gflowout draws=1", "gflowout", "id-gflowout")
MEMORY = "memory ÷ plain LoRA's"
"""Most bytes of tensors at a time: weights, gradients, state of Adam, activations."""

TARGETED = ("mc", "concrete", "id-gflowout draws=1", "gflowout")
"""Methods with targets: those that score one mask per example."""

_LAYERS = {"qv": ["q_proj", "v_proj"], "all": "all-linear"}
_RANK, _BATCH, _TOKENS = 8, 8, 64
_FULL = {"vocab_size": 8000, "hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1376}
_QUICK = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}


class Step:
    """One step of Adam on what a model learns; ``loss`` computes what it minimises."""

    def __init__(self, model: nn.Module, groups: Any, loss: Any) -> None:
        self.model, self.loss = model, loss
        self.optimizer = torch.optim.Adam(groups, lr=1e-3)

    def __call__(self) -> None:
        """Take the step."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    @property
    def resident(self) -> int:
        """Bytes between two steps without gradients: weights, buffers and the state of Adam."""
        state = (value for own in self.optimizer.state.values() for value in own.values())
        tensors = chain(self.model.parameters(), self.model.buffers(), state)
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def lora_tables(repeats: int, quick: bool = False) -> list[Table]:
    """Steps of a Llama-like model with adapters on queries and values, and on all linear layers.

    ``quick`` is the first alone, with a tiny model.
    """
    sizes = _QUICK if quick else _FULL
    kind = "Llama-like model of {} layers of {}".format(
        sizes["num_hidden_layers"], sizes["hidden_size"]
    )
    rest = f"rank {_RANK}, {kind}, {_BATCH} texts of {_TOKENS} tokens"
    titles = {
        "qv": f"Training step, LoRA on queries and values, {rest}",
        "all": f"Training step, LoRA on all linear layers, {rest}",
    }
    return [
        Table(
            f"lora-{name}", title, (LORA,), repeats, partial(lora_cases, _LAYERS[name], sizes),
            memory, cost=0.2 if quick else 9.0, needs=("transformers", "peft"),
        )
        for name, title in list(titles.items())[: 1 if quick else None]
    ]  # fmt: skip


def lora_cases(layers: str | Sequence[str], sizes: dict[str, int]) -> dict[str, Case]:
    """A step with plain LoRA, by the loss of ``transformers``, and with every method."""
    transformers = require("transformers", extra="huggingface", purpose="the benchmark of adapters")
    peft = require("peft", extra="huggingface", purpose="the benchmark of adapters")
    from gflowout.integrations.huggingface import next_tokens, wrap_transformer

    def adapted() -> Any:
        config = transformers.LlamaConfig(
            **sizes, num_attention_heads=8, max_position_embeddings=2 * _TOKENS
        )
        net = transformers.LlamaForCausalLM(config)
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=_RANK, target_modules=layers)
        return peft.get_peft_model(net, lora).train()

    ids = torch.randint(3, sizes["vocab_size"], (_BATCH, _TOKENS))
    labels, plain = next_tokens(ids), adapted()
    learned = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    cases: dict[str, Case] = {
        LORA: Step(plain, learned, lambda: plain(input_ids=ids, labels=ids).loss)
    }
    for name in LORA_METHODS:
        with warnings.catch_warnings():  # "gflowout" warns that its masks see a whole text
            warnings.simplefilter("ignore", UserWarning)
            model = wrap_transformer(adapted(), name.split()[0], **METHODS[name]).train()
        loss = partial(_total, model, ids, labels)
        cases[name] = Step(model, model.parameter_groups(), loss)
    return cases


def _total(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    total: Tensor = model(input_ids=ids, y=labels).total
    return total


def memory(cases: dict[str, Case], _: dict[str, float]) -> dict[str, dict[str, float]]:
    """Most memory at a time of each case, weights included, and its ratio to plain LoRA's."""
    steps = {name: case for name, case in cases.items() if isinstance(case, Step)}
    total = {name: step.resident + count(step).peak for name, step in steps.items()}
    return {name: {"MB": own / 1e6, MEMORY: own / total[LORA]} for name, own in total.items()}
