"""Questions as token ids, with the preprocessing of the published MCAN code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.errors import DataError, MissingDataError

PAD, UNKNOWN = 0, 1
"""Token ids of padding and of words that training did not have."""
LENGTH = 14
"""Tokens per question in the published model; later words are cut off."""

_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_SPACED = re.compile(r"[-/]")


def words(question: str) -> list[str]:
    """Split a question into lower-case words, as the published MCAN code does.

    Examples:
        >>> words("What's on the left-hand side / top?")
        ['whats', 'on', 'the', 'left', 'hand', 'side', 'top']
    """
    return _SPACED.sub(" ", _DROPPED.sub("", question.lower())).split()


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary of words that maps questions to token ids.

    Attributes:
        vocabulary: The words; the first has id 2, after padding (0) and unknown words (1).
        length: Tokens per question.

    Examples:
        >>> tokenizer = Tokenizer.fit(["Is there a dog?", "Is it red?"], length=5)
        >>> tokenizer.encode(["Is there a cat?"])
        tensor([[2, 3, 4, 1, 0]])
    """

    vocabulary: tuple[str, ...]
    length: int = LENGTH

    def __post_init__(self) -> None:
        checks.integer("length", self.length, low=1)
        if len(set(self.vocabulary)) != len(self.vocabulary):
            twice = Counter(self.vocabulary).most_common(1)[0][0]
            raise ValueError(f"vocabulary must hold each word once, got {twice!r} twice")

    @classmethod
    def fit(
        cls, questions: Iterable[str], *, length: int = LENGTH, min_count: int = 1
    ) -> Tokenizer:
        """Collect the words of the training questions, in the order of their first appearance.

        Args:
            questions: Texts of the training questions, and of no others.
            length: Tokens per question.
            min_count: Rarer words are unknown.
        """
        _not_a_text(questions)
        checks.integer("min_count", min_count, low=1)
        counts = Counter(word for question in questions for word in words(question))
        return cls(tuple(word for word, count in counts.items() if count >= min_count), length)

    def __len__(self) -> int:
        """Number of token ids, padding and unknown included."""
        return len(self.vocabulary) + 2

    @cached_property
    def index(self) -> dict[str, int]:
        """Token id of every word."""
        return {word: position + 2 for position, word in enumerate(self.vocabulary)}

    def encode(self, questions: Sequence[str]) -> Tensor:
        """Return token ids, int64 [N, T].

        A question without any word becomes one unknown word, since a row of padding alone has
        nothing to attend to.
        """
        _not_a_text(questions)
        rows = []
        for question in questions:
            ids = [self.index.get(word, UNKNOWN) for word in words(question)[: self.length]]
            ids = ids or [UNKNOWN]
            rows.append(ids + [PAD] * (self.length - len(ids)))
        return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), self.length)

    def decode(self, tokens: Tensor) -> list[str]:
        """Return the words of token ids [N, T], with ``?`` for unknown ones."""
        return [
            " ".join("?" if i == UNKNOWN else self.vocabulary[i - 2] for i in row if i != PAD)
            for row in tokens.tolist()
        ]

    def to_json(self) -> str:
        """Return the tokenizer as JSON text."""
        return json.dumps({"length": self.length, "vocabulary": self.vocabulary})

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Return the tokenizer that :meth:`to_json` wrote."""
        try:
            fields = json.loads(text)
            vocabulary, length = fields["vocabulary"], fields["length"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"text must come from Tokenizer.to_json, got {text[:40]!r}") from error
        return cls(tuple(map(str, vocabulary)), length)

    def embeddings(self, path: str | Path) -> Tensor:
        """Read word vectors from a GloVe text file into a table, float32 [V, D].

        Rows of padding and of words that the file does not have are zero. The row of unknown words
        is the file's ``<unk>`` or ``unk``, if it has one.

        Args:
            path: A file of lines ``word number number ...``, such as ``glove.6B.300d.txt``.

        Raises:
            MissingDataError: If there is no such file.
            DataError: If it has another format, is cut off, or has no word of the vocabulary.
        """
        path = Path(path)
        if not path.is_file():
            raise MissingDataError(f"{path}: no such file; name a GloVe text file that you have")
        ids = {"unk": UNKNOWN, "<unk>": UNKNOWN} | self.index
        vectors: dict[int, list[float]] = {}
        size = 0
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.rstrip().split(" ")
                if number == 1 and len(fields) == 2:  # the header of word2vec's text format
                    continue
                size = size or len(fields) - 1
                if len(fields) > size + 1:  # a "word" with spaces, as glove.840B has some
                    continue
                if len(fields) <= size or size < 1:
                    raise DataError(
                        f"{path}: line {number} has {len(fields) - 1} numbers, the first has "
                        f"{size}; the file is cut off or no GloVe text file: get it again"
                    )
                row = ids.get(fields[0])
                if row is not None and row not in vectors:
                    vectors[row] = _floats(path, number, fields[1:])
        if not vectors.keys() - {UNKNOWN}:
            raise DataError(
                f"{path}: has none of the {len(self.vocabulary)} words of the vocabulary; "
                "name a GloVe text file of the same language"
            )
        table = torch.zeros(len(self), size)
        table[list(vectors)] = torch.tensor(list(vectors.values()))
        return table


def _not_a_text(questions: object) -> None:
    if isinstance(questions, str):
        raise TypeError(f"questions must be a list of texts, got the text {questions!r}")


def _floats(path: Path, number: int, fields: list[str]) -> list[float]:
    try:
        return [float(field) for field in fields]
    except ValueError as error:
        raise DataError(
            f"{path}: line {number} is not a word and numbers; name a GloVe text file"
        ) from error
