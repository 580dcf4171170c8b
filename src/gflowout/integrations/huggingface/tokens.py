"""Tokens as labels of a causal language model, and as text that several masks wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflowout.core.token_scores import TokenScores
from gflowout.integrations.huggingface.defaults import IGNORED


def next_tokens(tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Labels of a causal language model: the label of a position is the token after it.

    Args:
        tokens: ``input_ids``, [batch, tokens]; or labels as ``transformers`` has them, with -100
            for those that are not to be learned, such as the tokens of a prompt.
        attention_mask: 0 for padding, which is not learned; ``None``: there is none.

    Returns:
        Labels, with -100 for the last position and for padding.

    Examples:
        >>> next_tokens(torch.tensor([[5, 7, 9, 0]]), torch.tensor([[1, 1, 1, 0]]))
        tensor([[   7,    9, -100, -100]])
    """
    labels = torch.full_like(tokens, IGNORED)
    labels[:, :-1] = tokens[:, 1:]
    if attention_mask is not None:
        if attention_mask.shape != tokens.shape:
            raise ValueError(
                f"attention_mask must have the shape of tokens, {list(tokens.shape)}, got "
                f"{list(attention_mask.shape)}"
            )
        real = attention_mask != 0
        labels[:, :-1].masked_fill_(~(real[:, 1:] & real[:, :-1]), IGNORED)
    return labels


@dataclass(frozen=True, eq=False)
class Generated:
    """Text that each of several masks wrote.

    Attributes:
        sequences: Prompt and new tokens, [masks, batch, tokens].
        start: Number of tokens of the prompt.
        real: Which new tokens count, [masks, batch, new tokens]: those up to the end of a sequence.
        scores: Scores of the new tokens under all masks, each [..., masks, batch, new tokens]: the
            second axis of ``scores.log_probs`` says who wrote the token, the first who scores it.
        masks: The masks, [masks, batch, units] per site.

    Examples:
        From :meth:`CausalModel.generate`::

            text = model.generate(input_ids, masks=10, max_new_tokens=30)
            text.disagreement.sum(-1).mean(0)  # of every prompt, in nats
            text.samples(tokenizer)["sample_texts"]
    """

    sequences: Tensor
    start: int
    real: Tensor
    scores: TokenScores
    masks: list[Tensor]

    @property
    def tokens(self) -> Tensor:
        """New tokens, [masks, batch, new tokens]."""
        return self.sequences[..., self.start :]

    @property
    def log_probs(self) -> Tensor:
        """Log-probability of new tokens under the mask that wrote them; 0 after the end."""
        return self.scores.log_probs.diagonal(dim1=0, dim2=1).movedim(-1, 0) * self.real

    @property
    def disagreement(self) -> Tensor:
        """Mutual information of new tokens and masks, in nats; 0 after the end."""
        return self.scores.mutual_information * self.real

    def samples(self, tokenizer: Any = None) -> dict[str, list[Any]]:
        """Lists with one entry for each prompt, under the names that lm-polygraph has for them.

        ``sample_tokens``, ``sample_log_likelihoods`` (of tokens) and ``sample_mutual_information``
        (the disagreement about tokens, which lm-polygraph has no name for) have one list for each
        mask, ``sample_log_probs`` the log-probability of the whole text. ``sample_texts``, with a
        tokenizer, is also what uqlm takes as ``sampled_responses``.

        Args:
            tokenizer: With ``decode``.
        """
        masks, batch = self.real.shape[:2]
        log_probs = self.log_probs

        def of(values: Tensor) -> list[list[list[Any]]]:
            return [
                [values[mask, row][self.real[mask, row]].tolist() for mask in range(masks)]
                for row in range(batch)
            ]

        tokens = of(self.tokens)
        samples: dict[str, list[Any]] = {
            "sample_tokens": tokens,
            "sample_log_likelihoods": of(log_probs),
            "sample_mutual_information": of(self.disagreement),
            "sample_log_probs": log_probs.sum(-1).T.tolist(),
        }
        if tokenizer is not None:
            samples["sample_texts"] = [
                [tokenizer.decode(text, skip_special_tokens=True) for text in row] for row in tokens
            ]
        return samples
