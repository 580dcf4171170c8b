"""Visual question answering: three data sets of questions about pictures in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gflowout.core import checks
from gflowout.data import store
from gflowout.data.batches import Batches
from gflowout.data.shifts import feature_noise
from gflowout.data.transforms import Transform
from gflowout.data.vqa.answers import (
    SCORINGS,
    TYPES,
    Answers,
    Counts,
    accuracy,
    by_type,
    count_accuracy,
    normalise,
    question_accuracy,
    soft_scores,
)
from gflowout.data.vqa.datasets import SOURCES, easy, rad, v2
from gflowout.data.vqa.inputs import LENGTH, Regions, Tokenizer
from gflowout.data.vqa.sets import VQASet, encode, hold_out, pooled
from gflowout.data.vqa.shards import PackedRegions, pack

__all__ = [
    "SOURCES",
    "TYPES",
    "Answers",
    "Counts",
    "PackedRegions",
    "Regions",
    "Tokenizer",
    "VQABatches",
    "VQASet",
    "VQASplit",
    "accuracy",
    "by_type",
    "count_accuracy",
    "easy",
    "load",
    "normalise",
    "pack",
    "question_accuracy",
    "rad",
    "soft_scores",
    "summarise",
    "v2",
]


@dataclass(frozen=True, eq=False)
class VQASplit:
    """The sets of an experiment.

    Attributes:
        train: Training questions, without those held out.
        valid: Training questions that were held out.
        test: Evaluation questions with published answers.
        tokenizer: Words of ``train``.
        answers: Classes, from the answers of ``train``.

    Examples:
        >>> split = load("easy-vqa", "data")  # doctest: +SKIP
        >>> split.train, split.valid, split.test  # doctest: +SKIP
    """

    train: VQASet
    valid: VQASet
    test: VQASet
    tokenizer: Tokenizer
    answers: Answers


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    valid: float = 0.1,
    by_image: bool | None = None,
    length: int = LENGTH,
    min_count: int | None = None,
    scoring: str = "capped",
    seed: int = 0,
    visual: Callable[[Path, tuple[str, ...]], Tensor | Regions] | None = None,
    **options: Any,
) -> VQASplit:
    """Load a data set of questions: three sets that share their pictures, and the vocabularies.

    Args:
        name: ``"vqa-v2"``, ``"vqa-rad"`` or ``"easy-vqa"``.
        data_dir: Directory of all data sets.
        valid: Fraction of the training questions, or of their pictures, held out for validation.
            Questions in the same words about the same picture count once and stay together.
        by_image: Hold out all questions of some pictures. Default: as for the test questions, which
            are about new pictures (VQA v2, easy-VQA) or about those of training (VQA-RAD).
        length: Tokens per question.
        min_count: Answers of so many training questions or fewer are no class. Default: 8 for VQA
            v2, as published, else 0.
        scoring: Targets from counts of annotators: ``"capped"``, min(count / 3, 1), or
            ``"accuracy"``, the official accuracy of the answer.
        seed: Seed of the choice of validation questions.
        visual: Function of the data set's folder and the names of the pictures that returns your
            own pictures or features, in that order. Then there are no ``options``.
        options: ``size``, ``fit``, ``channels``, ``progress`` where there are pictures;
            ``features_dir``, ``regions``, ``features``, ``cache_bytes`` where there are features.

    Examples:
        >>> split = load("vqa-rad", "data", size=64)  # doctest: +SKIP
        >>> len(split.train), len(split.answers)  # doctest: +SKIP
    """
    source = SOURCES[checks.choice("name", name, SOURCES)]
    checks.choice("scoring", scoring, SCORINGS)
    source.check(options)
    if visual is not None and options:
        raise TypeError(f"visual leaves nothing to the options {', '.join(options)}")
    folder = store.find(name, data_dir)
    training, test = pooled([source.read("train", folder), source.read(source.evaluation, folder)])
    if by_image is None:
        by_image = source.by_image
    rest, held_out = hold_out(training, valid, by_image=by_image, seed=seed, length=length)
    train = training.subset(rest)
    tokenizer = Tokenizer.fit(train.questions, length=length)
    answers = train.fitted_answers(source.min_count if min_count is None else min_count)
    read = source.visual if visual is None else visual
    pictures = read(folder, train.picture_names, **options)
    sets = [
        encode(part, tokenizer, answers, pictures, scoring=scoring)
        for part in (train, training.subset(held_out), test)
    ]
    return VQASplit(sets[0], replace(sets[1], split="valid"), sets[2], tokenizer, answers)


def summarise(name: str, folder: Path) -> dict[str, int | str]:
    """Count pictures, questions per split and type, answers and irregular entries of a folder.

    Every JSON file is read and checked. Files of features count as pictures.

    Examples:
        >>> summarise("vqa-rad", Path("data/vqa_rad"))["pictures"]  # doctest: +SKIP
    """
    source = SOURCES[checks.choice("name", name, SOURCES)]
    parts = {split: source.read(split, folder) for split in ("train", source.evaluation)}
    counts: dict[str, int | str] = {"pictures": source.pictures(folder)}
    for split, part in parts.items():
        counts[f"{split} questions"] = len(part)
        for position, kind in enumerate(TYPES):
            counts[f"{split} questions, {kind}"] = int((part.types == position).sum())
        counts[f"pictures of {split} questions"] = len(part.picture_names)
        for note, number in part.notes.items():
            counts[f"{split}: {note}"] = number
    train, test = parts.values()
    counts["pictures of both"] = len(set(train.picture_names) & set(test.picture_names))
    answers = train.fitted_answers(source.min_count)
    counts["answers"] = len(answers)
    unknown = answers.count(test.answers).counts.sum(1) == 0
    counts["test questions without a known answer"] = int(unknown.sum())
    longest = max(len(text.split()) for text in train.questions)
    counts["words in the longest training question"] = longest
    counts["words"] = len(Tokenizer.fit(train.questions).vocabulary)
    return counts


class VQABatches(Batches):
    """An iterable over ``(visual, tokens, scores)``, with a length.

    Epochs, shards and states are those of :class:`gflowout.data.batches.Batches`. Region features
    are read batch by batch, so a set may be larger than memory.

    Args:
        questions: The set.
        batch_size: Questions per batch; the last batch may have fewer.
        shuffle: A new order in each epoch. Without it the questions keep their order.
        seed: Seed of order and noise; required with either.
        transform: Maps the pictures or features of a batch, without gradients; for instance a
            frozen image encoder.
        noise: Standard deviation of Gaussian noise on features, after ``transform``. The noise of a
            picture depends on the seed and its number in the set: it is the same in every epoch and
            for all its questions. See :func:`gflowout.data.shifts.feature_noise`.
        drop_last: Drop the last batch if it is not full.
        device: Where to move batches, before they are transformed.
        workers: Processes that read batches ahead of time, two each; with 0 they are read when they
            are asked for.

    Examples:
        >>> from gflowout.data import vqa
        >>> split = vqa.load("vqa-rad", "data")  # doctest: +SKIP
        >>> for visual, tokens, scores in VQABatches(split.train, batch_size=64):  # doctest: +SKIP
        ...     losses = model(visual, tokens, y=scores)
    """

    def __init__(
        self,
        questions: VQASet,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        transform: Transform | None = None,
        noise: float = 0.0,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        workers: int = 0,
    ) -> None:
        if not isinstance(questions, VQASet):
            raise TypeError(f"questions must be a VQASet, got {type(questions).__name__}")
        if not len(questions):
            raise ValueError(f"questions must hold at least one question, got {questions!r}")
        super().__init__(
            torch.arange(len(questions)),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            transform=transform,
            drop_last=drop_last,
            device=device,
        )
        self.questions = questions
        self.workers = checks.integer("workers", workers, low=0)
        self.noise = checks.number("noise", noise, low=0)
        if noise and seed is None:
            raise ValueError(f"seed must be given with noise={noise:g}, got None")
        pictures = getattr(questions.visual, "dtype", None) == torch.uint8
        if noise and transform is None and pictures:
            raise ValueError(
                "noise is for features, and the set has pictures: name what makes features of "
                "them, such as transform=net.encoder"
            )

    def _read(self, order: Tensor, numbers: range) -> Iterator[tuple[Tensor, ...]]:
        """In this process, or ahead of time by workers; the batches are the same."""
        if not self.workers:
            return super()._read(order, numbers)
        rows = [self._numbers(order, batch) for batch in numbers]
        return iter(
            DataLoader(
                _Reader(self.questions, rows),
                batch_size=None,
                num_workers=min(self.workers, len(rows)),
                pin_memory=torch.cuda.is_available(),
                generator=torch.Generator(),  # else a number of the global one would be drawn
            )
        )

    def _rows(self, order: Tensor, batch: int) -> tuple[Tensor, ...]:
        return self.questions.batch(self._numbers(order, batch))

    def _numbers(self, order: Tensor, batch: int) -> Tensor:
        return super()._rows(order, batch)[0]

    def _take(
        self, rows: tuple[Tensor, ...], order: Tensor, epoch: int, batch: int
    ) -> tuple[Tensor, ...]:
        with torch.no_grad():
            visual, tokens, scores = super()._take(rows, order, epoch, batch)
        if self.noise and self.seed is not None:
            index = self.questions.image_index[self._numbers(order, batch)]
            visual = feature_noise(visual, self.noise, seed=self.seed, index=index)
        return visual, tokens, scores


class _Reader(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Batches of questions by number, for the workers of a loader."""

    def __init__(self, questions: VQASet, rows: Sequence[Tensor]) -> None:
        self.questions, self.rows = questions, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.questions.batch(self.rows[batch])
