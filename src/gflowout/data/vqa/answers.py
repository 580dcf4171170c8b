"""Answers as classes: the official normalisation, a vocabulary, and counts of annotators.

The normalisation behaves as the official evaluation code of VQA (``vqaEval.py``) does, oddities
included. Knows nothing of files, questions or images.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gflowout.core import checks

MIN_COUNT = 8
"""Published MCAN keeps answers that are given to more than eight questions."""

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_THOUSANDS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
# The official code hands re.UNICODE, which is 32, to `sub` where it takes a number of replacements.
_MOST_PERIODS = 32
_ARTICLES = {"a", "an", "the"}
_COUNTED = "zero one two three four five six seven eight nine ten"
_NUMBERS = {word: str(number) for number, word in enumerate(_COUNTED.split())} | {"none": "0"}
_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
"""


def _spellings() -> dict[str, str]:
    """Every contraction by its spellings that lack one apostrophe."""
    table = {
        word[:place] + word[place + 1 :]: word
        for word in _CONTRACTED.split()
        for place, letter in enumerate(word)
        if letter == "'"
    }
    return table | {"somebody'd": "somebodyd"}  # the wrong way round in the official table, too


_CONTRACTIONS = _spellings()


def strip_punctuation(text: str) -> str:
    """Take out punctuation as the official evaluation does.

    A mark goes if it touches a space anywhere in the text, or if a comma stands between digits;
    otherwise it becomes a space. Periods go unless a digit follows.

    Examples:
        >>> strip_punctuation("black/white"), strip_punctuation("1,000"), strip_punctuation("no.")
        ('black white', '1000', 'no')
    """
    thousands = _THOUSANDS.search(text) is not None
    out = text
    for mark in _MARKS:
        goes = thousands or f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if goes else " ")
    return _PERIOD.sub("", out, count=_MOST_PERIODS)


@lru_cache(maxsize=1 << 16)
def normalise(answer: str) -> str:
    """Normalise an answer as the official evaluation normalises predictions.

    Punctuation goes, letters become small, number words up to ten (and "none") digits, articles
    go, contractions get their apostrophe.

    Examples:
        >>> normalise("The Dog."), normalise("two"), normalise("dont know")
        ('dog', '2', "don't know")
    """
    plain = strip_punctuation(answer.replace("\n", " ").replace("\t", " ").strip())
    numbered = [_NUMBERS.get(word, word) for word in plain.lower().split()]
    kept = [word for word in numbered if word not in _ARTICLES]
    return " ".join(_CONTRACTIONS.get(word, word) for word in kept)


@dataclass(frozen=True, eq=False)
class Counts:
    """How many annotators gave which answers of a vocabulary.

    A question has few answers, so only those are kept: a dense table of VQA v2 has 5.5 GB.

    Attributes:
        index: Classes of a question's answers, int64 [N, K], filled up with class 0.
        counts: Annotators who gave them, int64 [N, K], filled up with 0.
        annotators: Annotators of the question, int64 [N]; 0 if its answers are not known.
        missed: Annotators whose answer is not in the vocabulary, int64 [N].

    Examples:
        >>> counts = Answers.fit(["red", "red", "blue"]).count([["red", "red", "blue"]])
        >>> counts.annotators.tolist(), counts.counts.sum().item()
        ([3], 3)
    """

    index: Tensor
    counts: Tensor
    annotators: Tensor
    missed: Tensor

    def __getitem__(self, rows: Tensor) -> Counts:
        """Return the counts of some questions."""
        return Counts(self.index[rows], self.counts[rows], self.annotators[rows], self.missed[rows])

    def of(self, classes: Tensor) -> Tensor:
        """Return how many annotators gave one class per question: int64 [N] of int64 [N]."""
        return (self.counts * (self.index == classes[:, None])).sum(1)

    def dense(self, values: Tensor, classes: int) -> Tensor:
        """Spread values [N, K] of the answers over all classes, [N, classes]."""
        table = torch.zeros(len(values), classes, dtype=values.dtype)
        return table.scatter_add_(1, self.index, values)


@dataclass(frozen=True)
class Answers:
    """The answers a model chooses from.

    Attributes:
        names: Normalised answers; the position is the class.

    Examples:
        >>> answers = Answers.fit(["yes", "Yes.", "no", "two"])
        >>> answers.names
        ('yes', '2', 'no')
        >>> counts = answers.count([["yes", "yes", "no", "maybe"]])
        >>> counts.dense(counts.counts, len(answers)), counts.missed
        (tensor([[2, 0, 1]]), tensor([1]))
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            twice = Counter(self.names).most_common(1)[0][0]
            raise ValueError(f"names must hold each answer once, got {twice!r} twice")

    @classmethod
    def fit(cls, answers: Iterable[str], *, min_count: int = 0) -> Answers:
        """Collect the answers given to more than ``min_count`` training questions.

        Args:
            answers: One answer per training question: the most frequent of its annotators.
            min_count: Answers of so many questions or fewer are left out.

        Returns:
            The answers by decreasing frequency, then by the alphabet, so that the order of the
            questions does not matter.
        """
        if isinstance(answers, str):
            raise TypeError(f"answers must be a list of texts, got the text {answers!r}")
        checks.integer("min_count", min_count, low=0)
        counts = Counter(normalise(answer) for answer in answers)
        kept = [answer for answer, count in counts.items() if count > min_count and answer]
        return cls(tuple(sorted(kept, key=lambda answer: (-counts[answer], answer))))

    def __len__(self) -> int:
        """Number of classes."""
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """Class of every answer."""
        return {name: position for position, name in enumerate(self.names)}

    def count(self, annotators: Sequence[Sequence[str]]) -> Counts:
        """Count the annotators' answers, normalised, per question and class."""
        found = [Counter(normalise(answer) for answer in given) for given in annotators]
        known = [{a: n for a, n in each.items() if a in self.index} for each in found]
        width = max((len(each) for each in known), default=0) or 1
        index = torch.zeros(len(found), width, dtype=torch.int64)
        counts = torch.zeros(len(found), width, dtype=torch.int64)
        cells = [
            (row, column, self.index[answer], number)
            for row, each in enumerate(known)
            for column, (answer, number) in enumerate(each.items())
        ]
        if cells:
            rows, columns, classes, numbers = torch.tensor(cells).unbind(1)
            index[rows, columns] = classes
            counts[rows, columns] = numbers
        total = torch.tensor([len(given) for given in annotators], dtype=torch.int64)
        return Counts(index, counts, total, total - counts.sum(1))

    def decode(self, classes: Tensor) -> list[str]:
        """Return the answers of classes [N]."""
        return [self.names[position] for position in classes.tolist()]

    def to_json(self) -> str:
        """Return the vocabulary as JSON text."""
        return json.dumps({"answers": self.names})

    @classmethod
    def from_json(cls, text: str) -> Answers:
        """Return the vocabulary that :meth:`to_json` wrote."""
        try:
            return cls(tuple(map(str, json.loads(text)["answers"])))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"text must be JSON of Answers.to_json, got {text[:40]!r}") from error
