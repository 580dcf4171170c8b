"""From a name to training, validation and test sets, with vocabularies from training alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.vqa import easy, rad, v2
from gflowout.data.vqa.accuracy import SCORINGS, TYPES
from gflowout.data.vqa.answers import Answers
from gflowout.data.vqa.regions import Regions
from gflowout.data.vqa.sets import VQASet, encode, hold_out, pooled
from gflowout.data.vqa.sources import Source
from gflowout.data.vqa.text import LENGTH, Tokenizer

SOURCES: dict[str, Source] = {each.SOURCE.name: each.SOURCE for each in (v2, rad, easy)}
"""The data sets of questions by name."""


@dataclass(frozen=True, eq=False)
class VQASplit:
    """What an experiment takes.

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
    """Load a data set of questions about pictures, ready for training.

    Args:
        name: ``"vqa-v2"``, ``"vqa-rad"`` or ``"easy-vqa"``.
        data_dir: Directory of all data sets.
        valid: Share of the training questions, or of their pictures, held out for validation.
            Questions in the same words about the same picture count once and stay together.
        by_image: Hold out all questions of some pictures. Default: as the test questions are, that
            is, about new pictures (VQA v2, easy-VQA) or about those of training (VQA-RAD).
        length: Tokens per question.
        min_count: Answers of so many training questions or fewer are no class. Default: 8 for VQA
            v2, as published, else 0.
        scoring: Targets from counts of annotators: ``"capped"``, min(count / 3, 1), or
            ``"accuracy"``, the official accuracy of the answer.
        seed: Of the choice of validation questions.
        visual: Gives pictures or features of your own, from the data set's folder and the names of
            the pictures, in their order. Then there are no ``options``.
        options: ``size``, ``fit``, ``channels``, ``progress`` where there are pictures;
            ``features_dir``, ``regions``, ``features``, ``cache_bytes`` where there are features.

    Returns:
        Three sets that share their pictures, and the two vocabularies.

    Examples:
        >>> split = load("vqa-rad", "data", size=64)  # doctest: +SKIP
        >>> len(split.train), len(split.answers)  # doctest: +SKIP
    """
    source = SOURCES[checks.choice("name", name, SOURCES)]
    checks.choice("scoring", scoring, SCORINGS)
    source.check(options)
    if visual is not None and options:
        raise TypeError(f"visual leaves nothing to the options {', '.join(options)}")
    folder = source.find(data_dir)
    learned, tested = pooled([source.read("train", folder), source.read(source.evaluation, folder)])
    if by_image is None:
        by_image = source.by_image
    rest, held = hold_out(learned, valid, by_image=by_image, seed=seed, length=length)
    train, kept = learned.subset(rest), learned.subset(held)
    tokenizer = Tokenizer.fit(train.texts, length=length)
    answers = train.fitted_answers(source.min_count if min_count is None else min_count)
    read = source.visual if visual is None else visual
    shown = read(folder, train.pictures, **options)
    sets = [
        encode(part, tokenizer, answers, shown, scoring=scoring) for part in (train, kept, tested)
    ]
    return VQASplit(sets[0], replace(sets[1], split="valid"), sets[2], tokenizer, answers)


def summarise(name: str, folder: Path) -> dict[str, int | str]:
    """Count what a data set's folder holds; every JSON file is read and checked.

    Returns:
        Numbers of pictures (or files of features), of questions per split and type, of pictures
        asked about, of answers, and of oddities.

    Examples:
        >>> summarise("vqa-rad", Path("data/vqa_rad"))["pictures"]  # doctest: +SKIP
    """
    source = SOURCES[checks.choice("name", name, SOURCES)]
    parts = {split: source.read(split, folder) for split in ("train", source.evaluation)}
    files = source.pictures(folder)
    counts: dict[str, int | str] = {"pictures": files}
    for split, part in parts.items():
        counts[f"{split} questions"] = len(part)
        for position, kind in enumerate(TYPES):
            counts[f"{split} questions, {kind}"] = int((part.types == position).sum())
        counts[f"pictures of {split} questions"] = len(part.pictures)
        for note, number in part.notes.items():
            counts[f"{split}: {note}"] = number
    train, test = parts.values()
    counts["pictures of both"] = len(set(train.pictures) & set(test.pictures))
    answers = train.fitted_answers(source.min_count)
    counts["answers"] = len(answers)
    counts["test questions without a known answer"] = int(
        (answers.count(test.answers).counts.sum(1) == 0).sum()
    )
    longest = torch.tensor([len(text.split()) for text in train.texts]).max()
    counts["words in the longest training question"] = int(longest)
    counts["words"] = len(Tokenizer.fit(train.texts).vocabulary)
    return counts
