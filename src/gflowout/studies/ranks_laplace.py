"""Laplace's approximation of the posterior of a linear classification head, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class LastLayer:
    """A Gaussian around the trained weights of a linear head with a softmax.

    With features phi (1 appended, for the bias) and probabilities p of the rows n, the precision of
    the weights is ``sum_n (diag(p_n) - p_n p_n') x phi_n phi_n' + precision I``: the generalised
    Gauss-Newton matrix of the log-likelihood, which for a linear head is its Hessian, and that of a
    Gaussian prior. Logits are linear in the weights, so that they are Gaussian, too.

    Args:
        features: Inputs of the head for the training rows, [rows, features].
        logits: Its outputs, [rows, classes].
        precision: Of the prior of every weight and bias.

    Examples:
        >>> head = LastLayer(torch.zeros(4, 1), torch.zeros(4, 2), precision=1.0)
        >>> head.covariance(torch.ones(1, 1)).squeeze(0)  # of the feature: the prior's; of the bias
        tensor([[1.6667, 0.3333],
                [0.3333, 1.6667]])
    """

    def __init__(self, features: Tensor, logits: Tensor, precision: float) -> None:
        inputs, p = _with_one(features), logits.double().softmax(-1)
        curvature = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        weighted = torch.einsum("nab,ni->nabi", curvature, inputs)
        hessian = torch.einsum("nabi,nj->aibj", weighted, inputs)
        classes, size = p.shape[1], inputs.shape[1]
        matrix = hessian.reshape(classes * size, classes * size)
        matrix = matrix + precision * torch.eye(len(matrix), dtype=matrix.dtype)
        weights = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
        self.weights = weights.reshape(classes, size, classes, size)

    def covariance(self, features: Tensor) -> Tensor:
        """Covariance of the logits of rows, [rows, classes, classes]."""
        inputs = _with_one(features)
        half = torch.einsum("ni,aibj->nabj", inputs, self.weights)
        return torch.einsum("nabj,nj->nab", half, inputs).float()

    def sample(
        self, features: Tensor, logits: Tensor, samples: int, source: torch.Generator
    ) -> Tensor:
        """Draws of the logits of rows, [samples, rows, classes]."""
        root = torch.linalg.cholesky(self.covariance(features))
        noise = torch.randn(samples, *logits.shape, generator=source)
        return logits + torch.einsum("nab,snb->sna", root, noise)


def _with_one(features: Tensor) -> Tensor:
    return F.pad(features, (0, 1), value=1.0).double()
