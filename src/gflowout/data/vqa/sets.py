"""Questions about pictures, as they are read and as a model takes them.

Every loader gives :class:`Questions`; with a vocabulary of words and one of answers they become a
:class:`VQASet`. Knows nothing of the files of any data set.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.data.vqa.accuracy import SCORINGS, TYPES, count_accuracy, soft_scores
from gflowout.data.vqa.answers import Answers, Counts
from gflowout.data.vqa.regions import Regions
from gflowout.data.vqa.text import LENGTH, Tokenizer, words

T = TypeVar("T")
Rows = Tensor | Sequence[int] | slice
"""What chooses questions: indices, a mask, or a slice."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions of one split, as the files have them.

    Attributes:
        name: Data set.
        split: Part of it.
        texts: The questions, N of them.
        ids: Their numbers, int64 [N].
        pictures: Files of the pictures, relative to the data set's folder, M of them.
        picture: Which picture each question is about, int64 [N].
        answers: Answers of each question's annotators; empty where they are not published.
        main: The answer that a question counts for in the vocabulary of answers; may be empty.
        types: Position in :data:`~gflowout.data.vqa.accuracy.TYPES`, int64 [N]; -1 if unknown.
        notes: Numbers of oddities that were met.
    """

    name: str
    split: str
    texts: tuple[str, ...]
    ids: Tensor
    pictures: tuple[str, ...]
    picture: Tensor
    answers: tuple[tuple[str, ...], ...]
    main: tuple[str, ...]
    types: Tensor
    notes: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.texts)

    def subset(self, rows: Rows) -> Questions:
        """Return some of the questions; the pictures stay."""
        chosen = positions(rows, len(self))
        return replace(
            self,
            texts=take(self.texts, chosen),
            ids=self.ids[chosen],
            picture=self.picture[chosen],
            answers=take(self.answers, chosen),
            main=take(self.main, chosen),
            types=self.types[chosen],
        )

    def fitted_answers(self, min_count: int) -> Answers:
        """Return the vocabulary of answers that these questions give."""
        return Answers.fit((answer for answer in self.main if answer), min_count=min_count)


@dataclass(frozen=True, eq=False)
class VQASet:
    """Questions about pictures as a model takes them.

    Attributes:
        name: Data set.
        split: Part of it.
        questions: Texts of the N questions.
        question_ids: Their numbers, int64 [N].
        tokens: Token ids, int64 [N, T], 0 for padding.
        visual: All M pictures, uint8 [M, C, H, W], or their region features. Sets of the same data
            share it.
        picture_names: Files of the pictures, relative to the data set's folder.
        image_index: Which picture each question is about, int64 [N].
        answers: Answers of each question's annotators.
        counts: How many annotators gave which class.
        classes: Number of classes.
        types: Position in :data:`~gflowout.data.vqa.accuracy.TYPES`, int64 [N]; -1 if unknown.
        scoring: How scores come from counts, see :func:`~gflowout.data.vqa.accuracy.soft_scores`.
        notes: Numbers of oddities that were met when the whole split was read.

    Examples:
        >>> from gflowout.data import vqa
        >>> questions = vqa.load("vqa-rad", "data").train  # doctest: +SKIP
        >>> questions.questions[0], questions.answers[0]  # doctest: +SKIP
    """

    name: str
    split: str
    questions: tuple[str, ...]
    question_ids: Tensor
    tokens: Tensor
    visual: Tensor | Regions
    picture_names: tuple[str, ...]
    image_index: Tensor
    answers: tuple[tuple[str, ...], ...]
    counts: Counts
    classes: int
    types: Tensor
    scoring: str = "capped"
    notes: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def __repr__(self) -> str:
        return (
            f"VQASet({self.name} {self.split}: {len(self)} questions, {self.classes} answers, "
            f"{self.unanswerable} questions without an answer among them)"
        )

    @property
    def unanswerable(self) -> int:
        """Questions none of whose answers is in the vocabulary: any prediction scores 0."""
        return int((self.counts.counts.sum(1) == 0).sum())

    @property
    def type_names(self) -> tuple[str, ...]:
        """Names of the types."""
        return TYPES

    def scores(self, rows: Rows) -> Tensor:
        """Return the target of some questions, float32 [B, classes]."""
        some = self.counts[positions(rows, len(self))]
        values = soft_scores(some.counts, some.annotators[:, None], self.scoring)
        return some.dense(values, self.classes)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a training step takes for some questions.

        Returns:
            Pictures, float32 [B, C, H, W] in [0, 1], or region features, float32 [B, R, D]; token
            ids, int64 [B, T]; scores, float32 [B, classes].
        """
        chosen = positions(rows, len(self))
        visual = self.visual[self.image_index[chosen]]
        if visual.dtype == torch.uint8:
            visual = visual.float() / 255
        return visual, self.tokens[chosen], self.scores(chosen)

    def accuracy(self, predicted: Tensor, rows: Rows = slice(None)) -> Tensor:
        """Official accuracy of predicted classes [B], one per question chosen: float32 [B].

        Counts answers after the full normalisation. The official code normalises those of
        annotators less (:func:`~gflowout.data.vqa.accuracy.question_accuracy`), so it can be lower
        where they were not published in normal form.
        """
        chosen = positions(rows, len(self))
        if predicted.shape != chosen.shape:
            raise ValueError(
                f"predicted must have one class per question, shape {list(chosen.shape)}, "
                f"got {list(predicted.shape)}"
            )
        some = self.counts[chosen]
        return count_accuracy(some.of(predicted.cpu()), some.annotators)

    def subset(self, rows: Rows) -> VQASet:
        """Return a set of some of the questions; pictures are shared."""
        chosen = positions(rows, len(self))
        return replace(
            self,
            questions=take(self.questions, chosen),
            question_ids=self.question_ids[chosen],
            tokens=self.tokens[chosen],
            image_index=self.image_index[chosen],
            answers=take(self.answers, chosen),
            counts=self.counts[chosen],
            types=self.types[chosen],
        )


def encode(
    questions: Questions,
    tokenizer: Tokenizer,
    answers: Answers,
    visual: Tensor | Regions,
    *,
    scoring: str = "capped",
) -> VQASet:
    """Make a set of questions; ``visual`` holds their pictures in the order of their names."""
    checks.choice("scoring", scoring, SCORINGS)
    if len(answers) == 0:
        raise ValueError("answers must hold at least one answer, got none; lower min_count")
    return VQASet(
        name=questions.name,
        split=questions.split,
        questions=questions.texts,
        question_ids=questions.ids,
        tokens=tokenizer.encode(questions.texts),
        visual=visual,
        picture_names=questions.pictures,
        image_index=questions.picture,
        answers=questions.answers,
        counts=answers.count(questions.answers),
        classes=len(answers),
        types=questions.types,
        scoring=scoring,
        notes=questions.notes,
    )


def pooled(parts: Sequence[Questions]) -> list[Questions]:
    """Give several splits one common list of pictures, so that each is read once."""
    names = list(dict.fromkeys(name for part in parts for name in part.pictures))
    place = {name: position for position, name in enumerate(names)}
    moved = [torch.tensor([place[name] for name in part.pictures]) for part in parts]
    return [
        replace(part, pictures=tuple(names), picture=new[part.picture])
        for part, new in zip(parts, moved, strict=True)
    ]


def hold_out(
    questions: Questions, valid: float, *, by_image: bool, seed: int, length: int = LENGTH
) -> tuple[Tensor, Tensor]:
    """Choose questions for validation.

    Questions about the same picture that a model sees in the same words go together, so none of
    them is on both sides.

    Args:
        questions: The training questions.
        valid: Share of the different questions, or of the pictures, in [0, 1).
        by_image: Hold out all questions of some pictures, rather than single questions.
        seed: Of the choice.
        length: Words that a model sees of a question.

    Returns:
        Sorted indices of the rest and of the held-out questions.

    Raises:
        ValueError: If nothing would be left to train on.
    """
    checks.number("valid", valid, low=0, high=1, open_high=True)
    checks.boolean("by_image", by_image)
    checks.integer("length", length, low=1)
    keys: list[Hashable] = questions.picture.tolist()
    if not by_image:
        keys = [
            (key, *words(text)[:length]) for key, text in zip(keys, questions.texts, strict=True)
        ]
    groups: dict[Hashable, int] = {}
    group = torch.tensor([groups.setdefault(key, len(groups)) for key in keys], dtype=torch.int64)
    order = torch.randperm(len(groups), generator=random.generator(seed, "valid"))
    count = round(valid * len(groups))
    if groups and count == len(groups):
        raise ValueError(
            f"valid must leave questions to train on, got {valid:g}, which holds out all "
            f"{count} {'pictures' if by_image else 'different questions'}"
        )
    chosen = torch.zeros(len(groups), dtype=torch.bool)
    chosen[order[:count]] = True
    held = chosen[group]
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def positions(rows: Rows, total: int) -> Tensor:
    """Return what chooses questions as indices, int64 [B]."""
    if isinstance(rows, slice):
        return torch.arange(total)[rows]
    chosen = torch.as_tensor(rows)
    if chosen.ndim != 1:
        raise ValueError(f"rows must have one axis, got shape {list(chosen.shape)}")
    if chosen.dtype == torch.bool:
        if len(chosen) != total:
            raise ValueError(f"a mask of rows must have {total} entries, got {len(chosen)}")
        return chosen.nonzero().flatten().cpu()
    if chosen.is_floating_point() and len(chosen):
        raise TypeError(f"rows must be integers, a mask or a slice, got {chosen.dtype}")
    chosen = chosen.long().cpu()
    if len(chosen) and (int(chosen.min()) < -total or int(chosen.max()) >= total):
        raise IndexError(f"rows must be in [{-total}, {total - 1}], got {chosen.tolist()[:5]}...")
    return chosen % total if total else chosen


def take(items: Sequence[T], rows: Tensor) -> tuple[T, ...]:
    """Return some of the items."""
    return tuple(items[row] for row in rows.tolist())
