"""The detectors: kNN, Mahalanobis and relative Mahalanobis, ViM, fDBD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.decisions.ood import scores
from gflowout.decisions.ood.detector import Detector, State, Stream
from gflowout.decisions.ood.streams import Moments, Reservoir, shrunk

_SAMPLE = 10_000
"""Rows from which ViM estimates the scale of its residuals."""


class Mahalanobis(Detector):
    r"""Distance to the nearest class mean, in units of the spread within classes.

    .. math:: \min_c \; (z - \mu_c)^\top \Sigma^{-1} (z - \mu_c)

    with one covariance for all classes (Lee et al. 2018). Data without labels are one class. The
    covariance is shrunk towards a multiple of the identity, so that it can be inverted and a
    feature that was constant in training counts when it moves.

    Args:
        layer: Name of a submodule or site, or ``"input"``; ``None`` for what the last linear layer
            reads. See :class:`Detector`.
        shrinkage: Weight of the identity, 0 to 1; ``None`` estimates it (oracle approximating
            shrinkage). 0 is the pseudo-inverse, which leaves constant directions out.
        draws: Drawn masks to average the score over; ``None``: one deterministic pass.
        axis: Of the features; see :class:`Detector`.

    Examples:
        >>> import gflowout as gfo
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 3
        >>> alarm = gfo.ood.Mahalanobis("1").fit(net, (x, y))
        >>> bool((alarm(20 + x[:5]) > alarm.threshold(x)).all())
        True
    """

    LABELS = True
    AXES = {"means": "cf", "whitening": "ff"}
    OPTIONS = ("shrinkage",)

    def __init__(
        self,
        layer: str | None = None,
        *,
        shrinkage: float | None = None,
        draws: int | None = None,
        axis: int | None = None,
    ) -> None:
        super().__init__(layer, draws=draws, axis=axis)
        if shrinkage is not None:
            checks.number("shrinkage", shrinkage, low=0, high=1)
        self.shrinkage = shrinkage

    def _fit(self, stream: Stream) -> dict[str, Tensor]:
        return self._state(_moments(stream))

    def _state(self, moments: Moments) -> dict[str, Tensor]:
        return {"means": moments.means, "whitening": self._whitening(moments, moments.within)}

    def _whitening(self, moments: Moments, covariance: Tensor) -> Tensor:
        if not float(covariance.trace()) > 0:
            raise ValueError(
                f"features at layer {self.layer or self.head!r} do not vary within classes in "
                f"{moments.rows} rows: fit on more data, or at another layer"
            )
        return scores.whitening(shrunk(covariance, moments.rows, self.shrinkage))

    def _score(self, features: Tensor, state: State) -> Tensor:
        return scores.mahalanobis(features, state["means"], state["whitening"])


class RelativeMahalanobis(Mahalanobis):
    r"""Mahalanobis distance less the distance to all training data as one Gaussian.

    .. math:: \min_c \; d_c^2(z) - d_0^2(z)

    (Ren et al. 2021). What is unusual for all classes alike cancels, which helps against unknown
    inputs that resemble the training data. It needs labels.

    Args:
        layer: Name of a submodule or site, or ``"input"``; ``None`` for what the last linear layer
            reads. See :class:`Detector`.
        shrinkage: As for :class:`Mahalanobis`, of both covariances.
        draws: Drawn masks to average the score over; ``None``: one deterministic pass.
        axis: Of the features; see :class:`Detector`.

    Examples:
        >>> import gflowout as gfo
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 3
        >>> alarm = gfo.ood.RelativeMahalanobis("input").fit(torch.nn.Linear(4, 3), (x, y))
        >>> alarm(x[:5]).shape
        torch.Size([5])
    """

    AXES = {**Mahalanobis.AXES, "mean": "f", "background": "ff"}

    def _state(self, moments: Moments) -> dict[str, Tensor]:
        if len(moments.means) < 2:
            raise ValueError(
                f"RelativeMahalanobis needs labels of two classes or more, got {len(moments.means)}"
                "; use Mahalanobis for data without labels"
            )
        overall = self._whitening(moments, moments.about(moments.mean))
        return {**super()._state(moments), "mean": moments.mean, "background": overall}

    def _score(self, features: Tensor, state: State) -> Tensor:
        background = scores.mahalanobis(features, state["mean"][None], state["background"])
        return super()._score(features, state) - background


class KNN(Detector):
    """Distance to the k-th nearest training example (Sun et al. 2022).

    It keeps a random sample of the training features, and its time grows with their number.

    Args:
        layer: Name of a submodule or site, or ``"input"``; ``None`` for what the last linear layer
            reads. See :class:`Detector`.
        k: Which neighbour.
        size: Rows to keep at most.
        normalize: Scale features to length 1 first, as in the paper.
        draws: Drawn masks to average the score over; ``None``: one deterministic pass.
        axis: Of the features; see :class:`Detector`.

    Examples:
        >>> import gflowout as gfo
        >>> x = torch.randn(200, 4)
        >>> alarm = gfo.ood.KNN("input", k=5, normalize=False).fit(torch.nn.Linear(4, 3), x)
        >>> bool(alarm(torch.full((1, 4), 9.0)) > alarm(torch.zeros(1, 4)))
        True
    """

    AXES = {"stored": "nf"}
    OPTIONS = ("k", "size", "normalize")

    def __init__(
        self,
        layer: str | None = None,
        *,
        k: int = 10,
        size: int = 10_000,
        normalize: bool = True,
        draws: int | None = None,
        axis: int | None = None,
    ) -> None:
        super().__init__(layer, draws=draws, axis=axis)
        self.k, self.size = checks.integer("k", k, low=1), checks.integer("size", size, low=1)
        self.normalize = checks.boolean("normalize", normalize)
        if k > size:
            raise ValueError(f"k must be at most size, the rows that are kept: {size}, got {k}")

    def _fit(self, stream: Stream) -> dict[str, Tensor]:
        reservoir = Reservoir(self.size)
        for features, _ in stream:
            if self.normalize and features.shape[1] == 1:
                raise ValueError(
                    f"normalize=True makes the only feature of layer {self.layer or self.head!r} 1 "
                    "or -1 in every row: take normalize=False, or another layer"
                )
            reservoir.add(self._scaled(features))
        if len(reservoir.stored) < self.k:
            raise ValueError(
                f"data must have at least k={self.k} rows, got {len(reservoir.stored)}"
            )
        return {"stored": reservoir.stored}

    def _score(self, features: Tensor, state: State) -> Tensor:
        return scores.knn(self._scaled(features), state["stored"], self.k).double()

    def _scaled(self, features: Tensor) -> Tensor:
        single = features.float()
        return torch.nn.functional.normalize(single, dim=1) if self.normalize else single


class ViM(Detector):
    r"""Virtual-logit matching: how much of the features the training data's subspace leaves out.

    .. math:: \alpha \, \lVert N^\top (z - o) \rVert - \log \sum_c \exp l_c

    (Wang et al. 2022): N are the directions with least variance about the origin
    :math:`o = -W^+ b`, logits are those of the last linear layer, and :math:`\alpha` makes the
    residual as large as the largest logit is on average, by size; it is estimated from 10,000
    training rows at most.

    Args:
        layer: ``None``, or the name of the last linear layer, for what that layer reads; or another
            one whose output has as many features.
        dim: Dimension of the subspace; ``None``: 1000 of 2048 features or more, 512 of 768 or more,
            else half of them.
        draws: Drawn masks to average the score over; ``None``: one deterministic pass.
        axis: Of the features; see :class:`Detector`.

    Examples:
        >>> import gflowout as gfo
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> alarm = gfo.ood.ViM().fit(net, torch.randn(200, 4))
        >>> alarm(torch.randn(5, 4)).shape
        torch.Size([5])
    """

    HEAD = True
    AXES = {"weight": "cf", "bias": "c", "origin": "f", "null": "fr", "alpha": ""}
    OPTIONS = ("dim",)

    def __init__(
        self,
        layer: str | None = None,
        *,
        dim: int | None = None,
        draws: int | None = None,
        axis: int | None = None,
    ) -> None:
        super().__init__(layer, draws=draws, axis=axis)
        self.dim = None if dim is None else checks.integer("dim", dim, low=1)

    def _fit(self, stream: Stream) -> dict[str, Tensor]:
        moments, reservoir = Moments(), Reservoir(_SAMPLE)
        for features, _ in stream:
            moments.add(features)
            reservoir.add(features)
        size = moments.means.shape[1]
        dim = 1000 if size >= 2048 else 512 if size >= 768 else size // 2
        dim = dim if self.dim is None else self.dim
        if dim >= size:
            raise ValueError(f"dim must be below the number of features, {size}, got {dim}")
        weight, bias = self._head(size)
        origin = -torch.linalg.pinv(weight) @ bias
        vectors = torch.linalg.eigh(moments.about(origin)).eigenvectors  # least first
        null = vectors[:, : size - dim].contiguous()
        z = reservoir.stored.to(weight)
        away = z - origin
        residual = torch.linalg.vector_norm(away @ null, dim=1).mean()
        # Features in a subspace: what leaves it by as much as rounding does is not strange.
        least = 1e-6 * torch.linalg.vector_norm(away, dim=1).mean()
        largest = torch.addmm(bias, z, weight.T).amax(1).mean().abs()
        alpha = largest / residual.clamp(min=float(least.clamp(min=1e-300)))
        return {"weight": weight, "bias": bias, "origin": origin, "null": null, "alpha": alpha}

    def _score(self, features: Tensor, state: State) -> Tensor:
        return scores.vim(features, **state)


class FDBD(Detector):
    r"""Distance to the decision boundaries, relative to that from the training mean.

    .. math:: - \frac{1}{C - 1} \sum_{c \ne f}
              \frac{|l_f - l_c|}{\lVert w_f - w_c \rVert \, \lVert z - \mu \rVert}

    (fDBD, Liu and Qin 2024): f is the predicted class, logits and weights are those of the
    last linear layer. Fast, with nothing to choose.

    Args:
        layer: ``None``, or the name of the last linear layer, for what that layer reads; or another
            one whose output has as many features.
        draws: Drawn masks to average the score over; ``None``: one deterministic pass.
        axis: Of the features; see :class:`Detector`.

    Examples:
        >>> import gflowout as gfo
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> alarm = gfo.ood.FDBD().fit(net, torch.randn(200, 4))
        >>> bool((alarm(torch.randn(5, 4)) <= 0).all())
        True
    """

    HEAD = True
    AXES = {"weight": "cf", "bias": "c", "mean": "f"}

    def _fit(self, stream: Stream) -> dict[str, Tensor]:
        moments = _moments(stream)
        weight, bias = self._head(moments.means.shape[1])
        return {"weight": weight, "bias": bias, "mean": moments.mean}

    def _score(self, features: Tensor, state: State) -> Tensor:
        return scores.fdbd(features, **state)


def _moments(stream: Any) -> Moments:
    moments = Moments()
    for features, classes in stream:
        moments.add(features, classes)
    if not moments.rows:
        raise ValueError("data has no rows with a label that counts")
    return moments
