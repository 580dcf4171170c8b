"""Scores of features, [rows, features], as pure functions of tensors; higher is stranger."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROWS = 1024
"""Rows that are compared with all stored ones at a time."""


def whitening(covariance: Tensor) -> Tensor:
    """Matrix W with ``W W^T`` the inverse of a covariance, [features, features].

    Directions without variance are left out, as in the pseudo-inverse.

    Examples:
        >>> w = whitening(torch.diag(torch.tensor([4.0, 1.0, 0.0])))
        >>> w @ w.T
        tensor([[0.2500, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    values, vectors = torch.linalg.eigh(covariance)
    least = len(values) * torch.finfo(values.dtype).eps * values[-1].clamp(min=0)
    scale = torch.where(values > least, values, torch.inf).rsqrt()
    whiten: Tensor = vectors * scale
    return whiten


def mahalanobis(features: Tensor, means: Tensor, whiten: Tensor) -> Tensor:
    """Squared Mahalanobis distance to the nearest mean, ``min of |W^T (z - m_c)|^2``, [rows].

    Lee et al. (2018), *A simple unified framework for detecting out-of-distribution samples and
    adversarial attacks*.

    Args:
        features: [rows, features].
        means: Of every class, [classes, features].
        whiten: From :func:`whitening`, of the covariance that all classes share.

    Examples:
        >>> means = torch.tensor([[0.0, 0.0], [9.0, 0.0]])
        >>> mahalanobis(torch.tensor([[0.0, 2.0], [9.0, 0.0]]), means, torch.eye(2))
        tensor([4., 0.])
    """
    centre = means.mean(0)  # differences of large numbers would lose digits
    z, m = (features - centre) @ whiten, (means - centre) @ whiten
    squares = z.square().sum(1, keepdim=True) + m.square().sum(1) - 2 * z @ m.T
    return squares.amin(1).clamp(min=0)


def knn(features: Tensor, stored: Tensor, k: int) -> Tensor:
    """Distance to the k-th nearest of the stored rows, [rows].

    Sun et al. (2022), *Out-of-distribution detection with deep nearest neighbors*.

    Args:
        features: [rows, features].
        stored: [stored rows, features].
        k: From 1 to the number of stored rows.

    Examples:
        >>> knn(torch.tensor([[0.0]]), torch.tensor([[1.0], [-3.0], [8.0]]), k=2)
        tensor([3.])
    """
    centre = stored.mean(0)  # far from zero, products would lose the digits of distances
    features, stored = features - centre, stored - centre
    squares = stored.square().sum(1) / 2
    parts = []
    for rows in torch.split(features, _ROWS):
        # Nearest first; |z|^2 is the same for all of them.
        order = _top(torch.addmm(-squares, rows, stored.T), k)[:, -1]
        parts.append(torch.linalg.vector_norm(rows - stored[order], dim=1))
    return torch.cat(parts)


def _top(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest in every row, largest first, [rows, k], as ``topk`` finds them.

    They are in the k groups with the largest maxima, and maxima are faster to find.
    """
    rows, count = values.shape
    groups = math.isqrt(count)
    size = count // groups
    if groups <= 2 * k:
        return values.topk(k, dim=1).indices
    whole = values[:, : groups * size].view(rows, groups, size)
    best = whole.amax(2).topk(k, dim=1).indices
    columns = (best[:, :, None] * size + torch.arange(size, device=values.device)).flatten(1)
    rest = torch.arange(groups * size, count, device=values.device).expand(rows, -1)
    columns = torch.cat([columns, rest], 1)
    places = values.gather(1, columns).topk(k, dim=1).indices
    return columns.gather(1, places)


def vim(
    features: Tensor, weight: Tensor, bias: Tensor, origin: Tensor, null: Tensor, alpha: Tensor
) -> Tensor:
    """Virtual-logit matching: ``alpha |N^T (z - o)| - log sum of exp(l_c)``, [rows].

    Wang et al. (2022), *ViM: Out-of-distribution with virtual-logit matching*. Their score is the
    softmax probability of the virtual logit, which has the same order.

    Args:
        features: What the last linear layer reads, [rows, features].
        weight: Of that layer, [classes, features].
        bias: Of that layer, [classes].
        origin: Where all logits are zero, [features].
        null: Directions that training features hardly have, [features, directions].
        alpha: Scale of the residual.

    Examples:
        >>> z, null = torch.tensor([[1.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [1.0]])
        >>> vim(z, torch.zeros(2, 2), torch.zeros(2), torch.zeros(2), null, torch.tensor(2.0))
        tensor([-0.6931,  5.3069])
    """
    residual = torch.linalg.vector_norm((features - origin) @ null, dim=1)
    score: Tensor = alpha * residual - torch.addmm(bias, features, weight.T).logsumexp(1)
    return score


def fdbd(features: Tensor, weight: Tensor, bias: Tensor, mean: Tensor) -> Tensor:
    """Mean distance to the decision boundaries over that to the training mean, negative, [rows].

    Liu and Qin (2024), *Fast decision boundary based out-of-distribution detector*: with ``f`` the
    predicted class, ``-mean over c != f of |l_f - l_c| / |w_f - w_c| / |z - mean|``.
    Classes whose weights are those of the predicted one have no boundary with it.

    Args:
        features: What the last linear layer reads, [rows, features].
        weight: Of that layer, [classes, features].
        bias: Of that layer, [classes].
        mean: Of the training features, [features].

    Examples:
        >>> z = torch.tensor([[4.0, 0.0], [2.0, 2.0]])
        >>> fdbd(z, torch.eye(2), torch.zeros(2), torch.tensor([1.0, 0.0]))
        tensor([-0.9428, -0.0000])
    """
    logits = torch.addmm(bias, features, weight.T)
    largest, predicted = logits.max(1, keepdim=True)
    apart = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
    boundaries = apart[predicted[:, 0]]
    distances = torch.where(boundaries > 0, (largest - logits) / boundaries, 0.0)
    count = (boundaries > 0).sum(1).clamp(min=1)
    away = torch.linalg.vector_norm(features - mean, dim=1)
    relative: Tensor = distances.sum(1) / count / away.clamp(min=torch.finfo(away.dtype).tiny)
    return -relative
