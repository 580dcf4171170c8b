"""What all detectors share: fit on features of training data, score, choose a threshold, save."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gflowout.core import atomic_io, checks, random
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.saved_file import FORMAT
from gflowout.decisions.ood import features as reading
from gflowout.decisions.ood.streams import double

Stream = Iterable[tuple[Tensor, Tensor | None]]
"""Features, [rows, features], and classes, [rows], batch by batch."""

State = Mapping[str, Tensor]
"""What a detector has learned, by name."""

KEY = "gflowout.ood"
"""Where the header of a file has the configuration."""


class Detector(ABC):
    """Base of detectors: an alarm for inputs unlike the training data, from features of a layer.

    Features are the layer's output, averaged over all axes but batch and features, in eval mode; at
    a site, before the site's own mask. Fitting and scoring leave the model, its mode, its
    buffers and PyTorch's random state as they are.

    Args:
        layer: Name of a submodule of the backbone, such as a site, or ``"input"``; ``None`` for
            what the last linear layer reads.
        draws: ``None`` takes one deterministic pass, with the mean masks; a number takes features
            under as many drawn masks, all of them for the fit, and averages the scores.
        axis: Of the features in the layer's output; ``None``: channels (axis 1) of four or more
            axes, else the last; at a site, that of its units.

    Examples:
        >>> import gflowout as gfo
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(300, 4)
        >>> alarm = gfo.ood.Mahalanobis("1").fit(net, x[:200])
        >>> limit = alarm.threshold(x[200:], false_alarms=0.05)
        >>> int((alarm(x[200:]) > limit).sum())
        4
    """

    LABELS: ClassVar[bool] = False
    """Whether the fit reads labels, which must then be classes."""
    HEAD: ClassVar[bool] = False
    """Whether the score needs the weights of the last linear layer."""
    AXES: ClassVar[Mapping[str, str]] = {}
    """Names of the fitted tensors, with a letter for each axis; ``f`` is that of the features."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Names of its own arguments."""

    def __init__(
        self, layer: str | None = None, *, draws: int | None = None, axis: int | None = None
    ) -> None:
        if not isinstance(layer, str | None):
            raise TypeError(f"layer must be the name of a submodule or None, got {layer!r}")
        if draws is not None:
            checks.integer("draws", draws, low=1)
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
            raise TypeError(f"axis must be an integer or None, got {axis!r}")
        self.layer, self.draws, self.axis = layer, draws, axis
        self.model: nn.Module | None = None
        self.state: dict[str, Tensor] = {}
        self.head: str | None = None

    @abstractmethod
    def _fit(self, stream: Stream) -> dict[str, Tensor]:
        """What the score needs to know of the training data, as named in ``AXES``."""

    @abstractmethod
    def _score(self, features: Tensor, state: State) -> Tensor:
        """Scores of features [rows, features], [rows]; both in double precision."""

    def fit(self, model: nn.Module, data: Any) -> Self:
        """Learn what training data look like, in one pass over them.

        Args:
            model: From :func:`gflowout.wrap`, or any module; it is kept for scoring.
            data: Training inputs: a tensor, a tuple ``(x, y)`` of tensors, or an iterable of
                batches such as a ``DataLoader``.

        Returns:
            The detector itself.
        """
        check_model(model, self.draws)
        (args, kwargs, _), stream = reading.first(reading.batches(data, model))
        needed = self.HEAD or self.layer is None
        head = reading.find_head(model, args, kwargs) if needed else None
        before = self.model, self.head
        self.model, self.head = model, head
        try:
            self.state = self._fit(self._features(stream))
        except BaseException:
            self.model, self.head = before
            raise
        return self

    @torch.no_grad()
    def __call__(
        self, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
    ) -> Tensor:
        """Score a batch: higher is stranger. Features that are not finite score infinity.

        Args:
            *args: Positional arguments of the backbone.
            generator: Source of randomness of the draws. Without one, the same masks are drawn in
                every call.
            **kwargs: Keyword arguments of the backbone.

        Returns:
            Scores, [batch].
        """
        if self.model is None:
            raise RuntimeError(f"{type(self).__name__} is not fitted: call fit(model, data) first")
        if generator is None and self.draws is not None:
            generator = random.generator(0, "alarm")
        z = self._read(args, kwargs, generator, stop=True)
        draws, batch, size = z.shape
        expected = self._size
        if size != expected:
            raise ValueError(
                f"layer {self.layer or self.head!r} gives {size} features, the detector was fitted "
                f"with {expected}"
            )
        rows = double(z.reshape(-1, size))
        state = {name: tensor.to(rows.device) for name, tensor in self.state.items()}
        finite = rows.isfinite().all(1)
        scores = self._score(rows.where(finite[:, None], 0), state)
        scores = scores.where(finite, torch.inf).reshape(draws, batch).mean(0)
        precise = z.dtype if z.dtype == torch.float64 else torch.float32
        return scores.to(z.device, precise)

    def threshold(
        self, data: Any, false_alarms: float = 0.05, generator: torch.Generator | None = None
    ) -> float:
        """Score above which to sound the alarm, from data that were not used for the fit.

        It is the k-th smallest score of n, with ``k = ceil((n + 1) (1 - false_alarms))``: for
        a new input like these, ``detector(x) > threshold`` has probability ``false_alarms`` at
        most.

        Args:
            data: Inputs without a reason for an alarm, as for :meth:`fit`; labels are not read.
            false_alarms: Wanted rate, between 0 and 1.
            generator: Source of randomness of the draws.
        """
        checks.probability("false_alarms", false_alarms)
        if self.model is None:
            raise RuntimeError(f"{type(self).__name__} is not fitted: call fit(model, data) first")
        stream = reading.batches(data, self.model)
        parts = [self(*args, generator=generator, **kwargs) for args, kwargs, _ in stream]
        scores = torch.cat(parts) if parts else torch.empty(0)
        count = len(scores)
        # The small number takes back what (1 - false_alarms) is rounded up by.
        place = math.ceil((count + 1) * (1 - false_alarms) - 1e-9)
        if place > count:
            least = math.ceil(1 / false_alarms - 1 - 1e-9)
            raise ValueError(
                f"data must have at least {least} rows for false_alarms={false_alarms:g}, got "
                f"{count}"
            )
        level = float(scores.double().kthvalue(max(1, place)).values)
        if math.isinf(level):
            raise ValueError(
                f"data must have finite features in at least {place} of {count} rows for "
                f"false_alarms={false_alarms:g}, got {int(scores.isfinite().sum())}: no input "
                "would ever be an alarm"
            )
        return level

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector, without the model, to a safetensors file.

        Args:
            path: Where to; replaced if it exists. :func:`gflowout.ood.load` reads it.
        """
        if not self.state:
            raise RuntimeError(f"{type(self).__name__} is not fitted: call fit(model, data) first")
        target = checks.target("path", path)
        config = {"format": FORMAT, "kind": type(self).__name__, "head": self.head}
        text = json.dumps({**config, "options": self.config()}, allow_nan=False)
        atomic_io.write_safetensors(target, self.state, {KEY: text})

    def config(self) -> dict[str, Any]:
        """Arguments that build this detector again."""
        return {name: getattr(self, name) for name in ("layer", "draws", "axis", *self.OPTIONS)}

    def __repr__(self) -> str:
        """Show the arguments that were given."""
        given = [f"{name}={v!r}" for name, v in self.config().items() if v is not None]
        return f"{type(self).__name__}({', '.join(given)})"

    @property
    def _size(self) -> int:
        """Number of features."""
        name, axes = next((name, axes) for name, axes in self.AXES.items() if "f" in axes)
        return self.state[name].shape[axes.index("f")]

    def _read(
        self, args: Any, kwargs: Any, generator: torch.Generator | None, stop: bool = False
    ) -> Tensor:
        """Features [draws, batch, features]."""
        assert self.model is not None
        layer = self.head if self.layer is None else self.layer
        assert layer is not None
        part: reading.Part = "input" if layer == self.head else "output"
        return reading.features(
            self.model,
            layer,
            args,
            kwargs,
            part=part,
            axis=self.axis,
            draws=self.draws,
            generator=generator,
            stop=stop,
        )

    def _features(self, stream: Iterator[reading.Batch]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Features of training data, draws as further rows."""
        generator = random.generator(0, "fit")
        likelihood = self.model.likelihood if isinstance(self.model, MaskedModel) else None
        ignored = getattr(likelihood, "ignore_index", None)
        for args, kwargs, labels in stream:
            z = self._read(args, kwargs, generator)
            draws, batch, size = z.shape
            bad = int((~z.isfinite()).any(2).any(0).sum())
            if bad:
                raise ValueError(
                    f"features at layer {self.layer or self.head!r} must be finite to fit, got "
                    f"NaN or infinity in {bad} of {batch} rows"
                )
            if not self.LABELS or labels is None:
                yield z.reshape(-1, size), None
                continue
            if likelihood is not None and not likelihood.has_classes:
                raise ValueError(
                    f"labels of {likelihood} are no classes: pass inputs alone to fit without them"
                )
            classes = reading.class_labels(labels, batch)
            counted = torch.ones_like(classes) if ignored is None else classes != ignored
            rows = counted.nonzero().flatten()
            if len(rows):
                yield z[:, rows.to(z.device)].reshape(-1, size), classes[rows].repeat(draws)

    def _head(self, size: int) -> tuple[Tensor, Tensor]:
        """Weight [classes, features] and bias [classes] of the last linear layer."""
        assert self.model is not None
        assert self.head is not None
        module = reading.find_layer(self.model, self.head)
        assert isinstance(module, nn.Linear)
        weight = double(module.weight.detach()).clone()
        bias = weight.new_zeros(len(weight))
        if module.bias is not None:
            bias += double(module.bias.detach())
        if weight.shape[1] != size:
            raise ValueError(
                f"layer {self.layer!r} gives {size} features, but the last linear layer, "
                f"{self.head!r}, reads {weight.shape[1]}, and {type(self).__name__} needs its "
                "weights: leave layer out for what that layer reads"
            )
        if len(weight) == 1:  # log-odds of yes: two classes
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        return weight, bias


def check_model(model: Any, draws: int | None) -> None:
    """Raise if a model has no features of its own, or no masks to draw."""
    if isinstance(model, Ensemble):
        raise TypeError("model: every member has features of its own; fit a detector to each one")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if draws is not None and not isinstance(model, MaskedModel):
        raise TypeError(
            f"draws={draws} needs a model from gfo.wrap, got {type(model).__name__}; leave draws "
            "out for one deterministic pass"
        )
