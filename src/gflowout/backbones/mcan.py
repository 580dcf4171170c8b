"""MCAN: deep modular co-attention between the words of a question and the regions of an image.

After Yu et al. 2019, "Deep Modular Co-Attention Networks for Visual Question Answering", in the
form of their published code: the encoder-decoder cascade. One difference: their LayerNorm divides
by the unbiased standard deviation plus 1e-6, ours is ``nn.LayerNorm``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflowout.backbones.attention import AttentionReduction, MultiHeadAttention, feed_forward
from gflowout.core import checks

PADDING_TOKEN = 0
"""Token that stands for no word."""


def region_padding(features: Tensor) -> Tensor:
    """Tell which regions are padding, [batch, regions] of bool: those whose features are all zero.

    Args:
        features: [batch, regions, feature_size].

    Examples:
        >>> region_padding(torch.tensor([[[0.0, 2.0], [0.0, 0.0]]]))
        tensor([[False,  True]])
    """
    return (features == 0).all(-1)


class SelfAttentionLayer(nn.Module):
    """Self-attention and feed-forward layer, each added to its input and normalised.

    Ordinary dropout is inside both, not at their outputs.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden, width, dropout)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Map [batch, positions, width] to the same; ``padding`` is [batch, positions]."""
        x = self.norm1(x + self.attention(x, x, padding))
        x = self.norm2(x + self.feed_forward(x))
        return x


class GuidedAttentionLayer(nn.Module):
    """Self-attention, attention to another sequence and feed-forward layer, in that order.

    Ordinary dropout is inside all three, not at their outputs.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.guided = MultiHeadAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden, width, dropout)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, x: Tensor, guide: Tensor, padding: Tensor, guide_padding: Tensor) -> Tensor:
        """Map ``x`` [batch, positions, width] to the same; it looks at ``guide``, too."""
        x = self.norm1(x + self.attention(x, x, padding))
        x = self.norm2(x + self.guided(x, guide, guide_padding))
        x = self.norm3(x + self.feed_forward(x))
        return x


class MCAN(nn.Module):
    """Answers questions about images, both given as sequences.

    Words are embedded and read by an LSTM, then by the encoder's self-attention layers. Regions are
    mapped linearly, then read by the decoder's layers, each of which also looks at the last
    encoder layer's words. Both sequences are reduced to a vector by attention; the normalised sum
    of the two gives one logit per answer.

    Padding is masked out everywhere: token 0, and regions whose features are all zero. It must come
    after the words, because the LSTM reads from left to right.

    Args:
        vocabulary: Number of tokens, with token 0 for padding; an attribute, too.
        answers: Number of answers; an attribute, too.
        feature_size: Numbers per region; an attribute, too.
        layers: Of the encoder and of the decoder, each.
        width: Size of a word or region inside.
        heads: Of every attention; divides ``width``.
        hidden: Size inside the feed-forward layers.
        embedding_size: Numbers per word; the table's own if ``embeddings`` is given.
        reduction_hidden: Size inside the two reductions.
        reduced: Size of the vectors that are added.
        dropout: Rate of ordinary dropout where the published network has it besides the sites: on
            attention weights and inside the two-layer networks. The published rate is 0.1.
        embeddings: Table of word vectors to start from, [vocabulary, numbers per word], copied.

    Attributes:
        sites: Names of the outputs of every attention and feed-forward layer, before they are
            added to their input, in execution order.

    Examples:
        >>> net = MCAN.tiny(vocabulary=50, answers=10, feature_size=16)
        >>> features, tokens = torch.randn(2, 9, 16), torch.tensor([[4, 7, 0], [9, 2, 5]])
        >>> net(features, tokens).shape
        torch.Size([2, 10])
        >>> net.sites[:3]
        ('encoder.0.attention', 'encoder.0.feed_forward', 'encoder.1.attention')
        >>> net.sites[-3:]
        ('decoder.1.attention', 'decoder.1.guided', 'decoder.1.feed_forward')
    """

    def __init__(
        self,
        vocabulary: int,
        answers: int,
        feature_size: int = 2048,
        *,
        layers: int = 6,
        width: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        embedding_size: int = 300,
        reduction_hidden: int = 512,
        reduced: int = 1024,
        dropout: float = 0.0,
        embeddings: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = checks.integer("vocabulary", vocabulary, low=2)
        self.answers = checks.integer("answers", answers, low=1)
        self.feature_size = checks.integer("feature_size", feature_size, low=1)
        checks.integer("layers", layers, low=1)
        checks.integer("embedding_size", embedding_size, low=1)
        checks.integer("reduction_hidden", reduction_hidden, low=1)
        checks.integer("reduced", reduced, low=1)
        if embeddings is not None:
            embedding_size = _table_size(embeddings, vocabulary)
        block = (width, heads, hidden, dropout)
        reduction = (width, reduction_hidden, reduced, dropout)
        # Made first, as they check what the layers below are made of.
        encoder = nn.ModuleList([SelfAttentionLayer(*block) for _ in range(layers)])
        decoder = nn.ModuleList([GuidedAttentionLayer(*block) for _ in range(layers)])
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        if embeddings is not None:
            with torch.no_grad():
                self.embedding.weight.copy_(embeddings)
        self.lstm = nn.LSTM(embedding_size, width, batch_first=True)
        self.image = nn.Linear(feature_size, width)
        self.encoder = encoder
        self.decoder = decoder
        self.reduce_words = AttentionReduction(*reduction)
        self.reduce_regions = AttentionReduction(*reduction)
        self.norm = nn.LayerNorm(reduced)
        self.output = nn.Linear(reduced, answers)
        self.sites = tuple(
            f"{part}.{index}.{name}"
            for part, names in (
                ("encoder", ("attention", "feed_forward")),
                ("decoder", ("attention", "guided", "feed_forward")),
            )
            for index in range(layers)
            for name in names
        )

    @classmethod
    def small(
        cls,
        vocabulary: int,
        answers: int = 3129,
        feature_size: int = 2048,
        *,
        dropout: float = 0.0,
        embeddings: Tensor | None = None,
    ) -> MCAN:
        """The published MCAN-small: 6 + 6 layers of width 512; for its arguments see the class.

        By default for VQA-v2, with its 3129 answers and the usual bottom-up features. The published
        network starts from 300-dimensional GloVe vectors.
        """
        return cls(vocabulary, answers, feature_size, dropout=dropout, embeddings=embeddings)

    @classmethod
    def tiny(
        cls,
        vocabulary: int,
        answers: int,
        feature_size: int = 128,
        *,
        dropout: float = 0.0,
        embeddings: Tensor | None = None,
    ) -> MCAN:
        """One that trains on two cores: 2 + 2 layers of width 128; for its arguments see the class.

        The sizes are our choice.
        """
        return cls(
            vocabulary, answers, feature_size, layers=2, width=128, heads=4, hidden=256,
            embedding_size=64, reduction_hidden=128, reduced=256, dropout=dropout,
            embeddings=embeddings,
        )  # fmt: skip

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        region_padding: Tensor | None = None,
        token_padding: Tensor | None = None,
    ) -> Tensor:
        """Map images and questions to one logit per answer, [batch, answers].

        A question or an image that is all padding is allowed: nothing of it is seen.

        Args:
            features: Of the image's regions, [batch, regions, feature_size].
            tokens: Of the question's words, integers [batch, words].
            region_padding: ``True`` where there is no region, [batch, regions]. If not given, where
                all features are zero.
            token_padding: ``True`` where there is no word, [batch, words]. If not given, where
                the token is 0.
        """
        self._check(features, tokens)
        no_region = _padding("region_padding", region_padding, features)
        no_word = _padding("token_padding", token_padding, tokens)
        words = self.lstm(self.embedding(tokens))[0]
        regions = self.image(features)
        for layer in self.encoder:
            words = layer(words, no_word)
        for layer in self.decoder:
            regions = layer(regions, words, no_region, no_word)
        fused = self.reduce_regions(regions, no_region) + self.reduce_words(words, no_word)
        logits: Tensor = self.output(self.norm(fused))
        return logits

    def _check(self, features: Tensor, tokens: Tensor) -> None:
        shape, words = list(features.shape), list(tokens.shape)
        if len(shape) != 3 or shape[2] != self.feature_size:
            raise ValueError(
                f"features must have shape [batch, regions, {self.feature_size}], got {shape}"
            )
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"tokens must be int64 or int32, got {tokens.dtype}")
        if len(words) != 2 or words[0] != shape[0] or words[1] == 0:
            raise ValueError(
                f"tokens must have shape [{shape[0]}, words], as features has {shape}, got {words}"
            )
        # On an accelerator this would wait for it in every pass.
        readable = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
        if readable and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            raise ValueError(
                f"tokens must be in [0, {self.vocabulary - 1}], the vocabulary of this network, "
                f"got {int(tokens.min())} to {int(tokens.max())}"
            )


def _padding(name: str, given: Tensor | None, sequence: Tensor) -> Tensor:
    """The padding that was given, or else what the sequence shows."""
    if given is None:
        return region_padding(sequence) if sequence.dim() == 3 else sequence == PADDING_TOKEN
    if given.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, True for padding, got {given.dtype}")
    shape = sequence.shape[:2]
    if given.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(given.shape)}")
    return given


def _table_size(embeddings: Tensor, vocabulary: int) -> int:
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        kind = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise TypeError(f"embeddings must be a floating-point torch.Tensor, got {kind}")
    if embeddings.dim() != 2 or len(embeddings) != vocabulary or embeddings.shape[1] == 0:
        raise ValueError(
            f"embeddings must have shape [{vocabulary}, numbers per word], one row per token of "
            f"the vocabulary, got {list(embeddings.shape)}"
        )
    if not torch.isfinite(embeddings).all():
        raise ValueError("embeddings must be finite, got NaN or infinity")
    return embeddings.shape[1]
