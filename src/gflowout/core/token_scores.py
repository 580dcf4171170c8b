"""Scores of single tokens from the outputs of several masks, with one mask's outputs at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class TokenScores:
    """How probable tokens are under several masks, and how much the masks disagree about them.

    All are in nats.

    Attributes:
        log_probs: Log-probability of every token under every mask, [masks, ..., tokens].
        entropy: Entropy of the mean distribution over the vocabulary, [..., tokens]: all that is
            uncertain.
        expected_entropy: Mean entropy of the masks' distributions, [..., tokens]: what is uncertain
            under every mask.

    Examples:
        >>> scores = token_scores([torch.zeros(1, 1, 2)] * 3, torch.tensor([[1]]))
        >>> scores.entropy, scores.mutual_information
        (tensor([[0.6931]]), tensor([[0.]]))
    """

    log_probs: Tensor
    entropy: Tensor
    expected_entropy: Tensor

    @property
    def mutual_information(self) -> Tensor:
        """Disagreement of the masks, [..., tokens], >= 0: entropy minus expected entropy."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @property
    def log_prob(self) -> Tensor:
        """Log of the mean probability of every token, [..., tokens]."""
        return self.log_probs.logsumexp(0) - math.log(len(self.log_probs))


def token_scores(logits: Iterable[Tensor], tokens: Tensor) -> TokenScores:
    """Scores of tokens from the logits of one mask after the other.

    Only the sum of the distributions is kept: memory does not grow with the number of masks.

    Args:
        logits: For every mask [..., tokens, vocabulary].
        tokens: [..., tokens].

    Examples:
        >>> sure = torch.tensor([[[99.0, 0.0]]])
        >>> scores = token_scores([sure, -sure], torch.tensor([[0]]))
        >>> scores.mutual_information, scores.log_prob.exp()
        (tensor([[0.6931]]), tensor([[0.5000]]))
    """
    log_probs: list[Tensor] = []
    total = entropy = torch.zeros(())
    for values in logits:
        scores = F.log_softmax(values.float(), -1)
        log_probs.append(scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        probabilities = scores.exp()
        entropy = entropy + torch.special.entr(probabilities).sum(-1)
        total = total + probabilities
    if not log_probs:
        raise ValueError("logits must hold those of at least one mask, got none")
    count = len(log_probs)
    mean = torch.special.entr(total / count).sum(-1)
    return TokenScores(torch.stack(log_probs), mean, entropy / count)
