"""Answers as classes and their official accuracy: normalisation, vocabulary, counts, scores.

Normalisation and accuracy agree with the official evaluation code of VQA (``vqaEval.py``), oddities
included.
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
from gflowout.data.errors import check_texts

MIN_COUNT = 8
"""Published MCAN keeps answers that are given to more than eight questions."""
TYPES = ("yes/no", "number", "other")
"""Kinds of questions, as the official evaluation reports them; the position is the id."""
SCORINGS = ("capped", "accuracy")
"""Training targets: min(count / 3, 1), or the official accuracy of the answer."""

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_THOUSANDS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
# The official code passes re.UNICODE, which is 32, to `sub` as the number of replacements.
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
# Contractions by their spellings without one of the apostrophes.
_CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in _CONTRACTED.split()
    for place, letter in enumerate(word)
    if letter == "'"
}
_CONTRACTIONS["somebody'd"] = "somebodyd"  # the wrong way round in the official table, too


def strip_punctuation(text: str) -> str:
    """Remove punctuation as the official evaluation does.

    A mark is removed if it touches a space anywhere in the text, or if the text has a comma between
    digits; otherwise it becomes a space. Periods are removed unless a digit follows.
    """
    thousands = _THOUSANDS.search(text) is not None
    out = text
    for mark in _MARKS:
        removed = thousands or f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if removed else " ")
    return _PERIOD.sub("", out, count=_MOST_PERIODS)


@lru_cache(maxsize=1 << 16)
def normalise(answer: str) -> str:
    """Normalise an answer as the official evaluation normalises predictions.

    Punctuation and articles are removed, letters become lower case, number words up to ten (and
    "none") digits, and contractions get their apostrophe.

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
        index: Classes of a question's answers, int64 [N, K], padded with class 0.
        counts: Number of annotators who gave them, int64 [N, K], padded with 0.
        annotators: Number of annotators, int64 [N]; 0 if the answers are not published.
        missed: Number of annotators whose answer is not in the vocabulary, int64 [N].

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
        check_texts("answers", answers)
        checks.integer("min_count", min_count, low=0)
        counts = Counter(normalise(answer) for answer in answers)
        kept = [answer for answer, count in counts.items() if count > min_count and answer]
        return cls(tuple(sorted(kept, key=lambda answer: (-counts[answer], answer))))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """Class of every answer."""
        return {name: position for position, name in enumerate(self.names)}

    def count(self, annotators: Sequence[Sequence[str]]) -> Counts:
        """Count the annotators' answers, normalised, per question and class."""
        per_question = []
        for answers in annotators:
            classes = (self.index.get(normalise(answer)) for answer in answers)
            per_question.append(Counter(number for number in classes if number is not None))
        width = max(map(len, per_question), default=0) or 1
        padded = [[*given.items(), *[(0, 0)] * (width - len(given))] for given in per_question]
        table = torch.tensor(padded, dtype=torch.int64).reshape(-1, width, 2)
        index, counts = table[..., 0].contiguous(), table[..., 1].contiguous()
        total = torch.tensor([len(answers) for answers in annotators], dtype=torch.int64)
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


def count_accuracy(matches: Tensor, annotators: Tensor | int = 10) -> Tensor:
    r"""Official accuracy of an answer that ``matches`` of the annotators gave.

    An answer scores min(matches / 3, 1), averaged over leaving out each of n annotators in turn. If
    k of them gave it, that is

    .. math:: \frac{k \min((k-1)/3, 1) + (n-k) \min(k/3, 1)}{n}.

    With one annotator nobody is left out: a match scores 1. Without annotators the score is 0.

    Args:
        matches: Number of annotators who gave the answer, any shape.
        annotators: Number of annotators; broadcast to ``matches``.

    Returns:
        Float32 of the shape of ``matches``.

    Examples:
        >>> count_accuracy(torch.tensor([0, 1, 2, 3, 4, 10]))
        tensor([0.0000, 0.3000, 0.6000, 0.9000, 1.0000, 1.0000])
    """
    k = matches.to(torch.float64)
    n = torch.as_tensor(annotators, dtype=torch.float64, device=k.device)
    left_in = (n - k) * (k / 3).clamp(max=1)
    left_out = k * ((k - 1) / 3).clamp(max=1)
    score = (left_in + left_out) / n.clamp(min=1)
    return torch.where(n == 1, k, score).float()


def soft_scores(counts: Tensor, annotators: Tensor | int = 10, scoring: str = "capped") -> Tensor:
    """Training targets from counts of annotators.

    Args:
        counts: Number of annotators who gave each answer, any shape.
        annotators: Number of annotators; broadcast to ``counts``.
        scoring: ``"capped"``: min(count / 3, 1). ``"accuracy"``: the official accuracy, that is
            0.3, 0.6, 0.9 and 1 with ten annotators, as the published MCAN code has it.

    Returns:
        Float32 of the shape of ``counts``; the only annotator's answer scores 1.

    Examples:
        >>> soft_scores(torch.tensor([0, 1, 3, 9]))
        tensor([0.0000, 0.3333, 1.0000, 1.0000])
    """
    checks.choice("scoring", scoring, SCORINGS)
    if scoring == "accuracy":
        return count_accuracy(counts, annotators)
    several = torch.as_tensor(annotators, device=counts.device) > 1
    return torch.where(several, (counts / 3).clamp(max=1), counts.float()).float()


def question_accuracy(predicted: Sequence[str], annotators: Sequence[Sequence[str]]) -> Tensor:
    """Official accuracy of each answer, float32 [N].

    As in the official code, predictions are always normalised; of annotators' answers, only the
    punctuation is, and only if they differ. So no prediction matches ten times "the dog"; the
    published annotations hardly have such answers. If a question has a single annotator, a case
    that the official code does not have, both are normalised in full.

    Examples:
        >>> question_accuracy(["red"], [["red"] * 2 + ["blue"] * 8])
        tensor([0.6000])
    """
    check_texts("predicted", predicted)
    if len(predicted) != len(annotators):
        got = f"{len(predicted)} and {len(annotators)}"
        raise ValueError(f"predicted and annotators must have one entry per question, got {got}")
    matches = []
    for position, (answer, given) in enumerate(zip(predicted, annotators, strict=True)):
        if isinstance(given, str) or not given:
            got = f"{given!r} for question {position}"
            raise ValueError(f"annotators must hold a list of answers per question, got {got}")
        if len(given) == 1:
            given = [normalise(given[0])]
        elif len(set(given)) > 1:
            given = [strip_punctuation(other) for other in given]
        ours = normalise(answer)
        matches.append(sum(other == ours for other in given))
    total = torch.tensor([len(given) for given in annotators], dtype=torch.int64)
    return count_accuracy(torch.tensor(matches, dtype=torch.int64), total)


def accuracy(
    predicted: Sequence[str],
    annotators: Sequence[Sequence[str]],
    types: Tensor | Sequence[str] | None = None,
) -> dict[str, float]:
    """Mean official accuracy over all questions and over each type of question.

    Args:
        predicted: One answer per question.
        annotators: The answers of each question's annotators.
        types: Type of each question, as ids or names of :data:`TYPES`.

    Returns:
        Fractions: ``"all"``, and every type that occurs.

    Examples:
        >>> ten = [["yes"] * 7 + ["no"] * 3, ["2"] * 9 + ["3"]]
        >>> {k: round(v, 2) for k, v in accuracy(["no", "two"], ten, ["yes/no", "number"]).items()}
        {'all': 0.95, 'yes/no': 0.9, 'number': 1.0}
    """
    return by_type(question_accuracy(predicted, annotators), types)


def by_type(scores: Tensor, types: Tensor | Sequence[str] | None = None) -> dict[str, float]:
    """Mean of scores [N] over all questions (``"all"``) and over each type that occurs.

    Examples:
        >>> by_type(torch.tensor([1.0, 0.0, 1.0]), ["yes/no", "other", "other"])
        {'all': 0.666..., 'yes/no': 1.0, 'other': 0.5}
    """
    if len(scores) == 0:
        raise ValueError("there must be at least one question, got none")
    means = {"all": scores.double().mean().item()}
    if types is None:
        return means
    if not isinstance(types, Tensor):
        types = torch.tensor([TYPES.index(checks.choice("types", kind, TYPES)) for kind in types])
    if len(types) != len(scores):
        got = f"{len(types)} for {len(scores)}"
        raise ValueError(f"types must have one entry per question, got {got}")
    for position, kind in enumerate(TYPES):
        chosen = scores[types == position]
        if len(chosen):
            means[kind] = chosen.double().mean().item()
    return means
