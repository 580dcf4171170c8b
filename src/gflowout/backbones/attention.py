"""Parts of attention networks: attention with padding, feed-forward layers, pooling of a sequence.

Modules of tensors [batch, positions, width]. Ordinary dropout is a submodule of its own, so that it
can be seen and switched off.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from gflowout.core import checks


def attention_weights(scores: Tensor, padding: Tensor) -> Tensor:
    """Softmax over the last axis that gives padded places a weight of exactly 0.

    Where all places are padded all weights are 0: there is nothing to look at, and no NaN.
    ``padding`` is true where a place is padded; it broadcasts against ``scores`` [..., places].

    Examples:
        >>> attention_weights(torch.zeros(3), torch.tensor([False, False, True]))
        tensor([0.5000, 0.5000, 0.0000])
        >>> attention_weights(torch.zeros(2), torch.tensor([True, True]))
        tensor([0., 0.])
    """
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(padding, lowest).softmax(-1)
    return weights.masked_fill(padding, 0.0)


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017).

    With queries Q, keys K and values V, each a linear map of the input, a head gives
    softmax(Q K' / sqrt(width / heads)) V; a last linear map joins the heads. ``dropout`` is the
    rate of ordinary dropout on the weights.

    Examples:
        >>> attention = MultiHeadAttention(width=8, heads=2)
        >>> image, words = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
        >>> attention(image, words, torch.tensor([[False, False, True]])).shape
        torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        checks.integer("width", width, low=1)
        checks.integer("heads", heads, low=1)
        if width % heads:
            raise ValueError(f"heads must divide width, which is {width}, got {heads}")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dropout = ordinary_dropout(dropout)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, padding: Tensor) -> Tensor:
        """Let every position of ``x`` [batch, positions, width] look at those of ``source``.

        ``source`` is [batch, places, width], ``x`` itself for self-attention; ``padding``
        [batch, places] is true at places that must not be seen. The result has the shape of ``x``.
        """
        query, key, value = (
            linear(sequence).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, sequence in ((self.query, x), (self.key, source), (self.value, source))
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = self.dropout(attention_weights(scores, padding[:, None, None]))
        joined: Tensor = self.merge((weights @ value).transpose(1, 2).flatten(2))
        return joined


def feed_forward(width: int, hidden: int, out: int, dropout: float = 0.0) -> nn.Sequential:
    """Linear, ReLU, ordinary dropout, linear.

    Examples:
        >>> feed_forward(4, 16, 4)(torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """
    for name, value in (("width", width), ("hidden", hidden), ("out", out)):
        checks.integer(name, value, low=1)
    return nn.Sequential(
        OrderedDict(
            expand=nn.Linear(width, hidden),
            act=nn.ReLU(),
            dropout=ordinary_dropout(dropout),
            contract=nn.Linear(hidden, out),
        )
    )


class AttentionReduction(nn.Module):
    """Make one vector of a sequence: a weighted mean with learned weights, then a linear map.

    The weights are a softmax over positions of a two-layer network's single output. A sequence
    that is all padding gives the linear map's bias.

    Examples:
        >>> reduce = AttentionReduction(width=8, hidden=4, out=6)
        >>> reduce(torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 6])
    """

    def __init__(self, width: int, hidden: int, out: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = feed_forward(width, hidden, 1, dropout)
        self.merge = nn.Linear(width, checks.integer("out", out, low=1))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Map [batch, positions, width] to [batch, out]; ``padding`` is [batch, positions]."""
        weights = attention_weights(self.score(x).squeeze(-1), padding)
        reduced: Tensor = self.merge((weights.unsqueeze(-1) * x).sum(1))
        return reduced


def ordinary_dropout(rate: float) -> nn.Module:
    """``nn.Dropout``, or ``nn.Identity`` if there is nothing to drop.

    Examples:
        >>> ordinary_dropout(0.0), ordinary_dropout(0.1)
        (Identity(), Dropout(p=0.1, inplace=False))
    """
    rate = checks.number("dropout", rate, low=0, high=1, open_high=True)
    return nn.Dropout(rate) if rate else nn.Identity()
