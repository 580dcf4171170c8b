"""Batches of questions about pictures, for a training loop or :func:`gflowout.training.fit`.

Order, epochs, shares of processes and going on where one stopped are those of
:class:`gflowout.data.batches.Batches`, over the numbers of the questions. Knows nothing of files.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.batches import Batches
from gflowout.data.shifts import feature_noise
from gflowout.data.transforms import Transform, check_transform
from gflowout.data.vqa.sets import VQASet


class VQABatches(Batches):
    """An iterable over ``(visual, tokens, scores)``, with a length.

    Region features are read when their batch is due, so a set larger than memory will do.

    Args:
        questions: The set.
        batch_size: Questions per batch; the last batch may have fewer.
        shuffle: A new order in each epoch. Without it the questions come as they are.
        seed: Of order and noise; needed with either.
        transform: Maps the pictures or features of a batch, without gradients; for instance an
            image encoder that is not trained, or no longer.
        noise: Standard deviation of Gaussian noise on features, after ``transform``. A picture has
            one noise, which follows from the seed and its number in the set: the same in every
            epoch and for all its questions. See :func:`gflowout.data.shifts.feature_noise`.
        drop_last: Leave out a last batch that is not full.
        device: Where batches go, before they are transformed.

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
    ) -> None:
        if not isinstance(questions, VQASet):
            raise TypeError(f"questions must be a VQASet, got {type(questions).__name__}")
        if not len(questions):
            raise ValueError(
                f"questions must hold at least one question, got the empty {questions!r}"
            )
        numbers = torch.arange(len(questions))
        super().__init__(
            numbers, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        self.questions = questions
        self.noise = checks.number("noise", noise, low=0)
        if noise and seed is None:
            raise ValueError(f"seed must be given with noise={noise:g}, got None")
        if noise and transform is None and _pictures(questions):
            raise ValueError(
                "noise is for features, and the set has pictures: name what makes features of "
                "them, such as transform=net.encoder"
            )
        # What the parent holds are numbers of questions: neither of these is for them.
        self._transform = None if transform is None else check_transform("transform", transform)
        self._device = None if device is None else torch.device(device)

    def _take(self, order: Tensor, epoch: int, batch: int) -> tuple[Tensor, ...]:
        (rows,) = super()._take(order, epoch, batch)
        visual, tokens, scores = self.questions.batch(rows)
        if self._device is not None:
            visual, tokens, scores = (each.to(self._device) for each in (visual, tokens, scores))
        if self._transform is not None:
            with torch.no_grad():
                visual = self._transform(visual)
        if self.noise and self.seed is not None:
            shown = self.questions.image_index[rows]
            visual = feature_noise(visual, self.noise, seed=self.seed, index=shown)
        return visual, tokens, scores


def _pictures(questions: VQASet) -> bool:
    return isinstance(questions.visual, Tensor) and questions.visual.dtype == torch.uint8
