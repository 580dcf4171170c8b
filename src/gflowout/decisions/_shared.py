"""What all decisions share: classes and labels of a prediction, and files of fitted objects."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gflowout.core import atomic_io, checks
from gflowout.core.likelihoods import Binary, Categorical, Likelihood, MultiLabel
from gflowout.core.predictive import Predictive, settled

FORMAT = 1
"""Version of the file format; a file of another version is refused."""

KEY = "gflowout.decisions"
"""Where the header of a file has the kind and the arguments of an object."""

IGNORED = -1
"""Label of positions that count for nothing."""


def check_prediction(name: str, pred: Any) -> Predictive:
    """Return ``pred`` if it is a prediction, or raise an error that names it."""
    if not isinstance(pred, Predictive):
        raise TypeError(
            f"{name} must be a gfo.Predictive, as model.predict returns it, got "
            f"{type(pred).__name__}"
        )
    return pred


def has_classes(likelihood: Likelihood) -> bool:
    """Whether a likelihood is over classes."""
    return likelihood.has_classes


def with_logits(pred: Predictive, purpose: str) -> Predictive:
    """A prediction whose outputs are logits, classes last; an error if it has none to scale."""
    check_prediction("pred", pred)
    if not isinstance(pred.likelihood, Categorical | Binary | MultiLabel):
        raise TypeError(
            f"{purpose} is for Categorical, Binary and MultiLabel, the prediction has "
            f"{pred.likelihood}; for numbers see gfo.conformal.Intervals"
        )
    if getattr(pred.likelihood, "axis", -1) == -1:
        return pred
    return settled(pred.outputs, pred.likelihood, pred.masks)


def everywhere(condition: Tensor) -> bool:
    """Whether a condition holds everywhere; assumed while a file is traced, which has no values."""
    return torch.compiler.is_compiling() or bool(condition.all())


def log_probabilities(pred: Predictive) -> Tensor:
    """Log-probabilities of the classes in double precision, [samples, batch, ..., classes]."""
    check_prediction("pred", pred)
    if not has_classes(pred.likelihood):
        raise TypeError(
            f"pred must be a prediction of classes, it has {pred.likelihood}; for numbers see "
            "gfo.conformal.Intervals"
        )
    logits = pred.likelihood.class_logits(pred.outputs.flatten(0, 1).double()).detach()
    if not everywhere(logits.isfinite()):
        raise ValueError("pred must have finite outputs, got NaN or infinity")
    return logits.reshape(*pred.outputs.shape[:2], *logits.shape[1:]).log_softmax(-1)


def mean_probabilities(pred: Predictive) -> Tensor:
    """Average probabilities of the classes in double precision, [batch, ..., classes]."""
    return average(log_probabilities(pred))


def average(log_probs: Tensor) -> Tensor:
    """Average probabilities [..., classes], from logs [samples, ..., classes]."""
    return (log_probs.logsumexp(0) - math.log(len(log_probs))).exp()


def class_labels(pred: Predictive, y: Tensor) -> Tensor:
    """Labels as classes, [batch, ...]; :data:`IGNORED` where a label counts for nothing."""
    target = pred.likelihood.target(y)
    if target.is_floating_point():
        if isinstance(pred.likelihood, Categorical):
            raise ValueError(
                f"y must hold classes as whole numbers for {pred.likelihood}, got soft labels of "
                f"shape {list(y.shape)}; take y.argmax(-1) for the most probable ones"
            )
        if bool(((target != 0) & (target != 1)).any()):
            raise ValueError(f"y must hold 0 and 1 for {pred.likelihood}, got soft labels")
        target = target.long()
    shape = label_shape(pred)
    if target.shape != shape:
        raise ValueError(
            f"y must have shape {list(shape)} for this prediction, got {list(target.shape)}"
        )
    ignored = getattr(pred.likelihood, "ignore_index", None)
    return target if ignored is None else target.masked_fill(target == ignored, IGNORED)


def label_shape(pred: Predictive) -> torch.Size:
    """The shape of the labels of a prediction of classes, [batch, ...]."""
    return pred.likelihood.class_logits(pred.outputs[0]).shape[:-1]


def check_single(pred: Predictive, purpose: str) -> None:
    """Raise unless every example has one label: guarantees are about independent examples."""
    check_prediction("pred", pred)
    if has_classes(pred.likelihood):
        shape = label_shape(pred)
        if len(shape) > 1:
            raise ValueError(
                f"{purpose} guarantees something about examples with one label each, this "
                f"prediction has labels of shape {list(shape[1:])} per example, which depend on "
                f"each other: take one of them, such as gfo.Predictive({_one_label(pred)})"
            )


def _one_label(pred: Predictive) -> str:
    """Arguments of a prediction of the first label of every example."""
    if isinstance(pred.likelihood, MultiLabel):
        return "pred.outputs[..., 0], gfo.Binary()"
    first = ", 0" * (pred.outputs.dim() - 3)
    return f"pred.outputs[:, :{first}], gfo.{pred.likelihood}"


def check_count(y: Tensor) -> None:
    """Raise if there is no label."""
    if not y.numel():
        raise ValueError("y must hold at least one label that counts, got none")


class Fitted:
    """Base of objects that are fitted to predictions with labels, and saved as one small file.

    Subclasses name the arguments of their constructor, which are attributes, too, and the tensors
    that ``fit`` sets.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    tensors: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that ``fit`` set."""
        lacking = [name for name in self.tensors if not hasattr(self, name)]
        if lacking:
            raise RuntimeError(
                f"{type(self).__name__} is not fitted: call fit(pred, y) with predictions of "
                "held-out examples first"
            )
        return {name: getattr(self, name) for name in self.tensors}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set what ``fit`` would have set.

        Args:
            state: From :meth:`state_dict`.
        """
        if set(state) != set(self.tensors):
            raise ValueError(
                f"state must hold {', '.join(self.tensors)} for {type(self).__name__}, got "
                f"{', '.join(state) or 'nothing'}"
            )
        for name, tensor in state.items():
            if not tensor.is_floating_point() or bool(tensor.isnan().any()):
                raise ValueError(f"state {name!r} must hold real numbers")
        self._check_state(state)
        for name, tensor in state.items():
            setattr(self, name, tensor.clone())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write arguments and fitted tensors to one safetensors file; nothing is pickled.

        Args:
            path: Where to; replaced if it exists, and only once the new file is complete.
        """
        target = checks.target("path", path)
        config = {name: getattr(self, name) for name in self.arguments}
        for name, value in config.items():
            if not isinstance(value, str | int | float | bool | None):
                raise TypeError(f"{name} cannot be saved, it is {value!r}: name a score instead")
        header = {"format": FORMAT, "kind": type(self).__name__, "arguments": config}
        text = json.dumps(header, allow_nan=False)
        atomic_io.write_safetensors(target, self.state_dict(), {KEY: text})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote, every value checked.

        Args:
            path: The file.
        """
        where = repr(str(path))
        if not Path(path).is_file():
            raise FileNotFoundError(f"path: there is no file {where}")
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{where} is truncated or not a safetensors file: {error}") from error
        if KEY not in metadata:
            raise ValueError(f"{where} does not hold a fitted object of gflowout")
        if not atomic_io.intact(Path(path), metadata.get(atomic_io.SHA256, "")):
            raise ValueError(f"{where} is damaged: take another copy")
        try:
            header = json.loads(metadata[KEY])
            if header["format"] != FORMAT or header["kind"] != cls.__name__:
                raise ValueError(f"it holds {header['kind']!r}, format {header['format']!r}")
            result = cls(**header["arguments"])
            result.load_state_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where} cannot be loaded as {cls.__name__}: {error}") from error
        return result

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless fitted tensors fit each other."""

    def __repr__(self) -> str:
        """Show the arguments, and whether it is fitted."""
        values = [f"{name}={getattr(self, name)!r}" for name in self.arguments]
        fitted = all(hasattr(self, name) for name in self.tensors)
        return f"{type(self).__name__}({', '.join([*values, *([] if fitted else ['not fitted'])])})"
