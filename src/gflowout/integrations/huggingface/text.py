"""Causal language models with masks: generated text, scores of tokens, multiple choice.

A sequence has one mask from its first token to its last. Masks are drawn from the prompt and then
stay fixed, so that every mask is one language model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gflowout.core import checks
from gflowout.core.call import is_causal
from gflowout.core.hooks import MaskedBackbone, Visit
from gflowout.core.likelihoods import Categorical
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.predictive import Predictive
from gflowout.core.random import draw_seeds
from gflowout.core.runner import given_masks
from gflowout.core.token_scores import TokenScores, token_scores
from gflowout.core.trajectory import Trajectory
from gflowout.core.view import evaluating
from gflowout.integrations.huggingface.adapters import base_of
from gflowout.integrations.huggingface.defaults import MASK, parameters
from gflowout.integrations.huggingface.tokens import Generated

_AT_A_TIME = 2**25
"""Logits that are computed at a time when sequences are scored."""

_REFUSED = ("num_beams", "num_return_sequences")
"""Options of ``generate`` that change the number or the order of rows, if above 1."""

_STOPS = ("stop_strings", "stopping_criteria")
"""Options of ``generate`` by which single sequences end without a token that says so."""

Masks = int | Sequence[Tensor]
"""How many masks to draw, or masks, [masks, batch, units] per site."""


class CausalModel(MaskedModel):
    """A wrapped causal language model, which also generates and scores text under its masks.

    :func:`wrap_transformer` returns it for causal language models.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> config = LlamaConfig(
        ...     vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=24, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ... )
        >>> model = wrap_transformer(LlamaForCausalLM(config), "mc", units="heads")
        >>> text = model.generate(torch.tensor([[1, 5, 7]]), masks=4, max_new_tokens=6)
        >>> text.tokens.shape[:2], text.disagreement.shape == text.tokens.shape
        (torch.Size([4, 1]), True)
    """

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        masks: Masks = 20,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Generated:
        """Let every mask continue every prompt.

        Masks are drawn once from the prompt, and all sequences are then scored under all of them.

        Args:
            input_ids: Prompts, [batch, tokens], padded on the left.
            attention_mask: 0 for padding; ``None``: there is none.
            masks: How many to draw, or masks to use, [masks, batch, units] per site.
            generator: Source of randomness, also of sampled tokens, as for :meth:`predict`.
            **options: Of ``generate`` of ``transformers``, such as ``max_new_tokens`` and
                ``do_sample``. Beams and several sequences per mask are not possible.
        """
        config = options.get("generation_config")
        for name in _REFUSED:
            if (value := options.get(name, getattr(config, name, 1))) not in (None, 1):
                raise ValueError(f"{name} must be 1: every mask writes one sequence, got {value!r}")
        real = _real(input_ids, attention_mask)
        if not bool(real[:, -1].all()):
            raise ValueError(
                "attention_mask must end with 1 in every row, as text is added at the end: pad on "
                'the left (tokenizer.padding_side = "left")'
            )
        source = torch.default_generator if generator is None else generator
        drawn = self._masks(masks, input_ids, real, source)
        count = len(drawn[0])
        rows = [mask.flatten(0, 1) for mask in drawn]
        prompts, marks = input_ids.repeat(count, 1), real.repeat(count, 1)

        def begin() -> Visit:
            trajectory = Trajectory(Noise(), rows)
            trajectory.batch = len(prompts)
            return lambda site, activation: method.draw(site, activation, trajectory)

        devices = [input_ids.device] if input_ids.is_cuda else []
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            evaluating(self) as resting,
            torch.random.fork_rng(devices),
        ):
            torch.manual_seed(draw_seeds(1, source)[0])
            method, backbone = resting.method, resting.backbone
            masked = MaskedBackbone(backbone, self.sites)
            with masked.every_call(base_of(backbone), begin) as writer:
                plain = {"return_dict_in_generate": False, **dict.fromkeys(_REFUSED, 1)}
                new = writer.generate(  # type: ignore[operator]
                    input_ids=prompts, attention_mask=marks, **{**options, **plain}
                )
        start = input_ids.shape[1]
        written = self._written(new[:, start:], options)
        marks = torch.cat([marks, torch.ones_like(new[:, start:])], 1)
        # Masks of a prompt score all sequences of that prompt.
        every = [mask.repeat(1, count, 1) for mask in drawn]
        scores = self._scores(new, marks, every, start)
        shape = (count, len(input_ids), -1)
        return Generated(
            new.reshape(shape), start, written.reshape(shape),
            TokenScores(
                scores.log_probs.reshape(count, *shape), scores.entropy.reshape(shape),
                scores.expected_entropy.reshape(shape),
            ),
            drawn,
        )  # fmt: skip

    @torch.no_grad()
    def token_scores(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        masks: Masks = 20,
        generator: torch.Generator | None = None,
    ) -> TokenScores:
        """Score the tokens of given text, each from those before it.

        Masks that depend on the input are drawn from the whole text, later tokens included: pass
        masks that were drawn from a prompt to avoid it.

        Args:
            input_ids: [batch, tokens].
            attention_mask: 0 for padding; ``None``: there is none.
            masks: How many to draw, or masks to use, [masks, batch, units] per site.
            generator: Source of randomness, as for :meth:`predict`.

        Returns:
            Scores of tokens 1, 2, ..., each [..., batch, tokens - 1]; leave out those of padding.

        Examples:
            >>> from transformers import GPT2Config, GPT2LMHeadModel
            >>> from gflowout.integrations.huggingface import wrap_transformer
            >>> config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2)
            >>> model = wrap_transformer(GPT2LMHeadModel(config), "mc")
            >>> model.token_scores(torch.tensor([[1, 5, 7]])).mutual_information.shape
            torch.Size([1, 2])
        """
        real = _real(input_ids, attention_mask)
        drawn = self._masks(masks, input_ids, real, generator)
        return self._scores(input_ids, real, drawn, start=1)

    @torch.no_grad()
    def predict_choices(
        self,
        prompts: Sequence[Sequence[int]],
        choices: Sequence[Sequence[Sequence[int]]],
        *,
        masks: Masks = 20,
        generator: torch.Generator | None = None,
        per_token: bool = False,
    ) -> Predictive:
        """Answer multiple-choice questions by the probability of the tokens of every answer.

        A question has one mask for all its answers. Score the result like any classification:
        ``gflowout.metrics.classification(pred.mean, labels, pred.log_prob(labels))`` has accuracy,
        NLL and ECE.

        Args:
            prompts: Tokens of every question.
            choices: For every question, the tokens of its answers: the same number of answers.
            masks: How many to draw from the questions, or masks, [masks, questions, units] per
                site.
            generator: Source of randomness, as for :meth:`predict`.
            per_token: Take the mean of the log-probabilities of an answer's tokens instead of their
                sum, so that long answers are not less probable.

        Returns:
            Its outputs are log-probabilities of answers, [masks, questions, answers].

        Examples:
            >>> from transformers import GPT2Config, GPT2LMHeadModel
            >>> from gflowout.integrations.huggingface import wrap_transformer
            >>> config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2)
            >>> model = wrap_transformer(GPT2LMHeadModel(config), "mc")
            >>> model.predict_choices([[1, 5], [1, 6, 8]], [[[3], [4, 2]]] * 2).mean.shape
            torch.Size([2, 2])
        """
        counts = sorted({len(answers) for answers in choices})
        if len(prompts) != len(choices) or not len(prompts):
            raise ValueError(
                f"choices must have answers for each of {len(prompts)} prompts, at least one, got "
                f"{len(choices)}"
            )
        if len(counts) != 1 or counts[0] < 2:
            raise ValueError(
                f"choices must have the same number of answers for every question, at least two, "
                f"got {counts}"
            )
        if not all(map(len, prompts)) or not all(len(one) for row in choices for one in row):
            raise ValueError("prompts and choices must have at least one token each")
        device = next(self.backbone.parameters()).device
        asked, real = _padded(list(prompts), device)
        drawn = self._masks(masks, asked, real, generator)
        texts = [[*p, *one] for p, row in zip(prompts, choices, strict=True) for one in row]
        ids, marks = _padded(texts, device)
        every = [mask.repeat_interleave(counts[0], 1) for mask in drawn]
        log_probs = self._scores(ids, marks, every, start=1).log_probs
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        lengths = lengths.repeat_interleave(counts[0])[:, None]
        place = torch.arange(1, ids.shape[1], device=device)
        answer = (place >= lengths) & (marks[:, 1:] != 0)
        total = (log_probs * answer).sum(-1)
        if per_token:
            total = total / answer.sum(-1)
        outputs = total.reshape(len(total), len(prompts), counts[0])
        return Predictive(outputs, Categorical(counts[0]), drawn)

    def _masks(
        self, masks: Masks, input_ids: Tensor, real: Tensor, generator: torch.Generator | None
    ) -> list[Tensor]:
        """Masks of prompts, [masks, batch, units] per site: given ones, or drawn ones."""
        if not isinstance(masks, int):
            return given_masks(masks, self.method, len(input_ids), self.validate, several=True)
        count = checks.integer("masks", masks, low=1)
        source = torch.default_generator if generator is None else generator
        call = self._call(input_ids, real)
        draws = [  # one at a time: the logits of a whole vocabulary take memory
            self.predict(**call, samples=1, generator=source, return_masks=True).masks or []
            for _ in range(count)
        ]
        return [torch.cat(site) for site in zip(*draws, strict=True)]

    def _call(self, input_ids: Tensor, real: Tensor) -> dict[str, Any]:
        """Arguments of a pass; positions are counted from the first real token on."""
        taken = parameters(self.backbone)
        call = {"input_ids": input_ids, MASK: real}
        if "position_ids" in taken and not bool(real.all()):
            call["position_ids"] = (real.cumsum(-1) - 1).clamp(min=0)
        return {name: value for name, value in call.items() if name in taken}

    def _scores(
        self, ids: Tensor, real: Tensor, masks: Sequence[Tensor], start: int
    ) -> TokenScores:
        """Scores of the tokens from ``start`` on, [..., rows, tokens - start]."""
        vocabulary = base_of(self.backbone).config.get_text_config().vocab_size
        rows = max(1, _AT_A_TIME // (ids.shape[1] * vocabulary))

        def logits(part: slice) -> Iterator[Tensor]:
            call = self._call(ids[part], real[part])
            for mask in range(len(masks[0])):
                given = [site[mask : mask + 1, part] for site in masks]
                yield self.predict(**call, masks=given).outputs[0, :, start - 1 : -1]

        parts = [
            token_scores(logits(part), ids[part, start:])
            for part in (slice(at, at + rows) for at in range(0, len(ids), rows))
        ]
        return TokenScores(
            torch.cat([part.log_probs for part in parts], 1),
            torch.cat([part.entropy for part in parts]),
            torch.cat([part.expected_entropy for part in parts]),
        )

    def _written(self, new: Tensor, options: dict[str, Any]) -> Tensor:
        """Which new tokens count: all up to the first one that ends a sequence."""
        configs = (options.get("generation_config"), base_of(self.backbone).generation_config)

        def option(name: str) -> Any:
            given = [getattr(config, name, None) for config in configs]
            return options.get(name, given[1] if given[0] is None else given[0])

        end, pad = option("eos_token_id"), option("pad_token_id")
        count = torch.zeros_like(new)
        if end is not None:
            last = torch.isin(new, torch.as_tensor(end, device=new.device)).long()
            count = last.cumsum(-1) - last
        written = count == 0
        if pad is not None and any(option(name) for name in _STOPS):  # padding without an end
            trailing = (new == pad).long().flip(-1).cumprod(-1).flip(-1).bool()
            written &= ~trailing | torch.isin(new, torch.as_tensor(_list(end), device=new.device))
        return written


def as_causal(model: MaskedModel) -> MaskedModel:
    """A wrapped causal language model as a :class:`CausalModel`; others as they are."""
    if not is_causal(model.backbone) or isinstance(model, CausalModel):
        return model
    return CausalModel(model.backbone, model.method, model.likelihood, model.spec, model.validate)


def _real(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Check tokens and what is padding among them, int64 [batch, tokens]."""
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.shape[1] < 1:
        shape = list(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
        raise ValueError(f"input_ids must be tokens, [batch, tokens], got {shape}")
    if attention_mask is None:
        return torch.ones_like(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {list(input_ids.shape)}, got "
            f"{list(attention_mask.shape)}"
        )
    return (attention_mask != 0).long()


def _padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens padded on the right, [texts, tokens], and where they are none of the padding."""
    rows = [torch.as_tensor(text, device=device) for text in texts]
    ids = pad_sequence(rows, batch_first=True)
    real = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return ids, real


def _list(end: Any) -> list[int]:
    return [] if end is None else [end] if isinstance(end, int) else list(end)
