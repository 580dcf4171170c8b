"""What every data set of questions offers: how to read it, and one way to load a split.

Knows nothing of any data set; those describe themselves with a :class:`Source`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gflowout.core.checks import suggest
from gflowout.data.vqa.answers import Answers
from gflowout.data.vqa.regions import Regions
from gflowout.data.vqa.sets import Questions, VQASet, encode
from gflowout.data.vqa.text import Tokenizer


@dataclass(frozen=True)
class Source:
    """A data set of questions about pictures.

    Attributes:
        name: Of the data set.
        splits: Parts that can be read; training is always called ``"train"``.
        evaluation: The part with published answers that models are evaluated on.
        min_count: Answers of so many training questions or fewer are no class, unless the caller
            says otherwise.
        by_image: Whether evaluation is on new pictures, so that validation should be, too.
        find: Data directory to the data set's folder.
        read: Split and folder to questions.
        visual: Folder and names of pictures to the pictures or their features.
        options: Keywords of ``visual``.
        pictures: Folder to the number of pictures in it.
    """

    name: str
    splits: tuple[str, ...]
    evaluation: str
    min_count: int
    by_image: bool
    find: Callable[[str | Path | None], Path]
    read: Callable[[str, Path], Questions]
    visual: Callable[..., Tensor | Regions]
    options: tuple[str, ...]
    pictures: Callable[[Path], int]

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
        """Load one split.

        Args:
            split: Part of the data.
            data_dir: Directory of all data sets.
            tokenizer: Words. Default: those of all training questions.
            answers: Classes. Default: those of all training questions.
            min_count: Answers of so many training questions or fewer are left out.
            scoring: How scores come from counts of annotators; see
                :func:`~gflowout.data.vqa.accuracy.soft_scores`.
            options: As the data set's ``visual`` takes them.
        """
        self.check(options)
        folder = self.find(data_dir)
        questions = self.read(split, folder)
        if tokenizer is None or answers is None:
            train = questions if split == "train" else self.read("train", folder)
            if tokenizer is None:
                tokenizer = Tokenizer.fit(train.texts)
            if answers is None:
                answers = train.fitted_answers(self.min_count if min_count is None else min_count)
        shown = self.visual(folder, questions.pictures, **options)
        return encode(questions, tokenizer, answers, shown, scoring=scoring)

    def check(self, options: dict[str, Any]) -> None:
        """Raise an error for options that the data set does not have."""
        for option in options:
            if option not in self.options:
                raise TypeError(
                    f"{self.name} takes the options {', '.join(self.options)}, got {option!r}"
                    f"{suggest(option, self.options)}"
                )
