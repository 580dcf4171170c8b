"""The number of training examples, N, which some methods need: counted in the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import SubsetRandomSampler

from gflowout.core.model import MaskedModel
from gflowout.data.batches import Batches


def examples_of(batches: Any, labels_of: Callable[[Any], Any] | None = None) -> int | None:
    """Number of examples in training data; ``None`` if they cannot be counted without a pass.

    Args:
        batches: ``Batches``; a loader with a ``dataset`` that has a length, of which a sampler of a
            subset takes its part; or a list of batches.
        labels_of: Returns the labels of a batch of such a list.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> examples_of(DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=4))
        10
        >>> examples_of([(torch.zeros(4, 2), torch.zeros(4))] * 2, lambda batch: batch[-1])
        8
    """
    if isinstance(batches, Batches):
        return batches.rows
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)
    data = getattr(batches, "dataset", None)
    if data is not None:
        try:
            return len(data)
        except TypeError:  # a stream
            return None
    if isinstance(batches, Sequence) and labels_of is not None:
        return sum(len(labels_of(batch)) for batch in batches)
    return None


def take_train_size(
    model: MaskedModel, batches: Any, labels_of: Callable[[Any], Any] | None = None
) -> None:
    """Give a method the ``train_size`` that it needs and was not given.

    The number stays in the model's options. The next call counts again, so that further training on
    other data has their number; one that was given stays as it is.

    Raises:
        ValueError: If the examples cannot be counted.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(12, 4)
        >>> model = gfo.wrap(
        ...     net, "concrete", ["input"], likelihood=gfo.Categorical(2), example=(x,)
        ... )
        >>> take_train_size(model, gfo.Batches(x, torch.zeros(12), batch_size=4))
        >>> model.method.options
        Concrete(train_size=12)
    """
    options = model.method.options
    if not hasattr(options, "train_size") or options.train_size not in (None, model.counted):
        return
    size = examples_of(batches, labels_of)
    if size is None:
        raise ValueError(
            f"train_size was not given, and the examples of a {type(batches).__name__} cannot be "
            f"counted: method {model.method.name!r} needs their number; pass train_size= to "
            "gfo.wrap, or call model.set_options(train_size=...)"
        )
    model.set_options(train_size=size)
    model.counted = size
