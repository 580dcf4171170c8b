"""Reading the files of detectors, with every value checked."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.saved_file import contents, damage
from gflowout.decisions.ood.detector import KEY, Detector, check_model
from gflowout.decisions.ood.detectors import FDBD, KNN, Mahalanobis, RelativeMahalanobis, ViM
from gflowout.decisions.ood.features import find_layer

KINDS: dict[str, type[Detector]] = {
    kind.__name__: kind for kind in (FDBD, KNN, Mahalanobis, RelativeMahalanobis, ViM)
}
"""Detectors by the name that files have."""


def load(path: str | os.PathLike[str], model: nn.Module) -> Detector:
    """Read a detector that ``detector.save(path)`` wrote; nothing is unpickled.

    Args:
        path: The file.
        model: The model that the detector was fitted to, or one with the same weights.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged or not of a detector, or the model has no such layer.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> import gflowout as gfo
        >>> net, x = nn.Linear(4, 3), torch.randn(50, 4)
        >>> alarm = gfo.ood.KNN("input").fit(net, x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     alarm.save(f"{folder}/alarm.safetensors")
        ...     again = gfo.ood.load(f"{folder}/alarm.safetensors", net)
        >>> torch.equal(again(x), alarm(x))
        True
    """
    tensors, config = contents(checks.path("path", path), KEY, "a detector's save")
    with damage(repr(str(path))):
        kind = KINDS[checks.choice("kind", config["kind"], KINDS)]
        detector = kind(**config["options"])
        detector.head = config["head"]
        needed = kind.HEAD or detector.layer is None
        if not isinstance(detector.head, str if needed else type(None)):
            raise TypeError(f"head must be a name, got {detector.head!r}")
        _check_tensors(tensors, kind.AXES)
        if isinstance(detector, KNN) and len(tensors["stored"]) < detector.k:
            raise ValueError(
                f"k must be at most the {len(tensors['stored'])} rows that are kept, "
                f"got {detector.k}"
            )
    check_model(model, detector.draws)
    find_layer(model, detector.layer or str(detector.head))
    detector.state, detector.model = tensors, model
    return detector


def _check_tensors(tensors: dict[str, Tensor], axes: Mapping[str, str]) -> None:
    """Raise unless the tensors are those of a detector, in sizes that fit each other."""
    if tensors.keys() != axes.keys():
        raise ValueError(f"tensors must be {', '.join(axes)}, got {', '.join(tensors)}")
    sizes: dict[str, int] = {}
    for name, letters in axes.items():
        tensor = tensors[name]
        fits = tensor.dim() == len(letters) and all(
            sizes.setdefault(letter, size) == size and size > 0
            for letter, size in zip(letters, tensor.shape, strict=False)
        )
        if not fits or not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has shape {list(tensor.shape)} or values that do not fit")
