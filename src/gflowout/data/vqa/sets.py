"""Questions about pictures, as the files have them and as a model takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.data import store
from gflowout.data.vqa.answers import SCORINGS, TYPES, Answers, Counts, count_accuracy, soft_scores
from gflowout.data.vqa.inputs import LENGTH, Regions, Tokenizer, words

Rows = Tensor | Sequence[int] | slice
"""What chooses questions: indices, a mask, or a slice."""
Row = tuple[str, int, Any, tuple[str, ...], str, int]
"""One question: text, number, picture, annotators' answers, main answer, type."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Questions:
    """Questions of one split about pictures, as the files have them: N questions, M pictures."""

    name: str
    split: str
    questions: tuple[str, ...]
    question_ids: Tensor  # int64 [N]
    picture_names: tuple[str, ...]  # files, relative to the data set's folder
    image_index: Tensor  # which picture each question is about, int64 [N]
    answers: tuple[tuple[str, ...], ...]  # of each question's annotators; empty if not published
    main: tuple[str, ...] = ()  # what each contributes to the vocabulary of answers; may be empty
    types: Tensor  # position in TYPES, int64 [N]; -1 if unknown
    notes: dict[str, int] = field(default_factory=dict)  # counts of irregular entries

    _ROWS: ClassVar = "questions question_ids image_index answers main types"  # one per question

    def __len__(self) -> int:
        return len(self.questions)

    def subset(self, rows: Rows) -> Self:
        """Return a set of some of the questions; pictures are shared."""
        chosen = positions(rows, len(self))
        selected: dict[str, Any] = {}
        for name in self._ROWS.split():
            values = getattr(self, name)
            if not isinstance(values, tuple):
                selected[name] = values[chosen]
            elif values:
                selected[name] = tuple(values[row] for row in chosen.tolist())
        return replace(self, **selected)

    def fitted_answers(self, min_count: int) -> Answers:
        """Return the vocabulary of answers that these questions give."""
        return Answers.fit((answer for answer in self.main if answer), min_count=min_count)


@dataclass(frozen=True, eq=False, kw_only=True)
class VQASet(Questions):
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
        types: Position in ``TYPES``, int64 [N]; -1 if unknown.
        scoring: How scores are computed from counts, see :func:`soft_scores`.
        notes: Counts of irregular entries in the whole split.

    Examples:
        >>> from gflowout.data import vqa
        >>> questions = vqa.load("vqa-rad", "data").train  # doctest: +SKIP
        >>> questions.questions[0], questions.answers[0]  # doctest: +SKIP
    """

    tokens: Tensor
    visual: Tensor | Regions
    counts: Counts
    classes: int
    scoring: str = "capped"

    _ROWS: ClassVar = f"{Questions._ROWS} tokens counts"

    def __repr__(self) -> str:
        return (
            f"VQASet({self.name} {self.split}: {len(self)} questions, {self.classes} answers, "
            f"{self.unanswerable} questions without an answer among them)"
        )

    @property
    def unanswerable(self) -> int:
        """Number of questions with no answer in the vocabulary: any prediction scores 0."""
        return int((self.counts.counts.sum(1) == 0).sum())

    @property
    def type_names(self) -> tuple[str, ...]:
        """Names of the types."""
        return TYPES

    def scores(self, rows: Rows) -> Tensor:
        """Return the target of some questions, float32 [B, classes]."""
        counts = self.counts[positions(rows, len(self))]
        values = soft_scores(counts.counts, counts.annotators[:, None], self.scoring)
        return counts.dense(values, self.classes)

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

        Compares fully normalised answers. The official code normalises annotators' answers less
        (:func:`question_accuracy`), so its accuracy can be lower where they are not in normal form.
        """
        chosen = positions(rows, len(self))
        if predicted.shape != chosen.shape:
            expected = f"one class per question, shape {list(chosen.shape)}"
            raise ValueError(f"predicted must have {expected}, got {list(predicted.shape)}")
        counts = self.counts[chosen]
        return count_accuracy(counts.of(predicted.cpu()), counts.annotators)


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
        **vars(questions),
        tokens=tokenizer.encode(questions.questions),
        visual=visual,
        counts=answers.count(questions.answers),
        classes=len(answers),
        scoring=scoring,
    )


def pooled(parts: Sequence[Questions]) -> list[Questions]:
    """Give several splits one common list of pictures, so that each is read once."""
    names = list(dict.fromkeys(name for part in parts for name in part.picture_names))
    place = {name: position for position, name in enumerate(names)}
    moved = [torch.tensor([place[name] for name in part.picture_names]) for part in parts]
    return [
        replace(part, picture_names=tuple(names), image_index=new[part.image_index])
        for part, new in zip(parts, moved, strict=True)
    ]


def hold_out(
    questions: Questions, valid: float, *, by_image: bool, seed: int, length: int = LENGTH
) -> tuple[Tensor, Tensor]:
    """Choose validation questions: sorted indices of the rest and of the held-out questions.

    ``valid`` is the fraction of the different questions, or, with ``by_image``, of the pictures:
    then all questions of some pictures are held out. Questions in the same words about the same
    picture stay together, so that none is on both sides; ``length`` words of a question count.
    """
    checks.number("valid", valid, low=0, high=1, open_high=True)
    checks.boolean("by_image", by_image)
    checks.integer("length", length, low=1)
    keys: list[Hashable] = questions.image_index.tolist()
    if not by_image:
        texts = zip(keys, questions.questions, strict=True)
        keys = [(key, *words(text)[:length]) for key, text in texts]
    groups: dict[Hashable, int] = {}
    group = torch.tensor([groups.setdefault(key, len(groups)) for key in keys], dtype=torch.int64)
    order = torch.randperm(len(groups), generator=random.generator(seed, "valid"))
    count = round(valid * len(groups))
    if groups and count == len(groups):
        got = f"{valid:g}, which holds out all {count} "
        got += "pictures" if by_image else "different questions"
        raise ValueError(f"valid must leave questions to train on, got {got}")
    held_out = torch.isin(group, order[:count])
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


class Source(ABC):
    """A data set of questions about pictures."""

    name: str
    splits: tuple[str, ...]  # parts that can be read; training is always called "train"
    evaluation: str  # the part with published answers that models are evaluated on
    min_count: int = 0  # by default, answers of so many training questions or fewer are no class
    by_image: bool  # whether evaluation is on new pictures, so that validation should be, too
    options: tuple[str, ...]  # keywords of visual
    files: tuple[str, ...]  # patterns of all pictures, or files of features, in the folder

    @abstractmethod
    def read(self, split: str, folder: Path) -> Questions:
        """Read the questions of a split."""

    @abstractmethod
    def visual(self, folder: Path, names: tuple[str, ...], **options: Any) -> Tensor | Regions:
        """Read pictures or their features."""

    def pictures(self, folder: Path) -> int:
        """Count the pictures, or files of features, in a data set's folder."""
        return sum(1 for pattern in self.files for _ in folder.glob(pattern))

    def collect(
        self, split: str, file: str, rows: Sequence[Row], notes: dict[str, int] | None = None
    ) -> Questions:
        """Put rows together; ``file`` is the pattern of a picture's path in the folder."""
        columns = list(zip(*rows, strict=True)) or [()] * 6
        texts, ids, pictures, answers, main, types = columns
        distinct = sorted(set(pictures))
        position = {picture: index for index, picture in enumerate(distinct)}
        return Questions(
            name=self.name,
            split=split,
            questions=texts,
            question_ids=torch.tensor(ids, dtype=torch.int64),
            picture_names=tuple(file.format(picture) for picture in distinct),
            image_index=torch.tensor([position[name] for name in pictures], dtype=torch.int64),
            answers=answers,
            main=main,
            types=torch.tensor(types, dtype=torch.int64),
            notes=notes or {},
        )

    def load(
        self,
        split: str,
        data_dir: str | Path | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        answers: Answers | None = None,
        min_count: int | None = None,
        scoring: str = "capped",
        **options: Any,
    ) -> VQASet:
        """Load one split; words and answers are by default those of all training questions.

        Answers of ``min_count`` training questions or fewer are left out. ``scoring`` is that of
        :func:`soft_scores`, ``options`` are those of :meth:`visual`.
        """
        self.check(options)
        folder = store.find(self.name, data_dir)
        questions = self.read(split, folder)
        if tokenizer is None or answers is None:
            train = questions if split == "train" else self.read("train", folder)
            if tokenizer is None:
                tokenizer = Tokenizer.fit(train.questions)
            if answers is None:
                answers = train.fitted_answers(self.min_count if min_count is None else min_count)
        visual = self.visual(folder, questions.picture_names, **options)
        return encode(questions, tokenizer, answers, visual, scoring=scoring)

    def check(self, options: dict[str, Any]) -> None:
        """Raise an error for options that the data set does not have."""
        for option in options:
            if option not in self.options:
                hint = f"got {option!r}{checks.suggest(option, self.options)}"
                raise TypeError(f"{self.name} takes the options {', '.join(self.options)}, {hint}")


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
