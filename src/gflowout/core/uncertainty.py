"""Uncertainty scores from samples, as pure functions of tensors.

``probabilities`` are [samples, ..., classes], one distribution per drawn mask; ``means`` and
``variances`` of Gaussian predictions are [samples, ...]. :class:`gflowout.Predictive` offers the
same as methods. Higher always means less certain, except for :func:`max_probability`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gflowout.core import checks


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of the average distribution, ``H[mean of p_s]``: total uncertainty in nats, [...].

    Args:
        probabilities: [samples, ..., classes].

    Examples:
        >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    return _entropy(probabilities.mean(0))


def expected_entropy(probabilities: Tensor) -> Tensor:
    """Average entropy of the distributions, ``mean of H[p_s]``: noise in the data in nats, [...].

    Args:
        probabilities: [samples, ..., classes].

    Examples:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.])
    """
    return _entropy(probabilities).mean(0)


def mutual_information(probabilities: Tensor) -> Tensor:
    """Predictive minus expected entropy: how much the masks disagree in nats, >= 0, [...].

    Args:
        probabilities: [samples, ..., classes].

    Examples:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    difference = predictive_entropy(probabilities) - expected_entropy(probabilities)
    return difference.clamp(min=0)


def variance(probabilities: Tensor) -> Tensor:
    """Variance of the probabilities between samples, summed over classes, [...].

    Args:
        probabilities: [samples, ..., classes].

    Examples:
        >>> variance(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.5000])
    """
    return probabilities.var(0, correction=0).sum(-1)


def max_probability(probabilities: Tensor) -> Tensor:
    """Largest average probability: confidence in the predicted class, [...].

    Args:
        probabilities: [samples, ..., classes].

    Examples:
        >>> max_probability(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
        tensor([0.8000])
    """
    return probabilities.mean(0).amax(-1)


def dempster_shafer(logits: Tensor, combine: Literal["logits", "draws"] = "logits") -> Tensor:
    """Dempster-Shafer score (Sensoy et al. 2018), 0 to 1: ``K / (K + sum of exp(l_k))``, [...].

    Args:
        logits: [samples, ..., classes].
        combine: ``"logits"`` scores the mean logits; ``"draws"`` averages the score over draws.

    Examples:
        >>> dempster_shafer(torch.zeros(1, 1, 4))
        tensor([0.5000])
    """
    checks.choice("combine", combine, ["logits", "draws"])
    classes = logits.shape[-1]
    if combine == "logits":
        logits = logits.mean(0, keepdim=True)
    # sigmoid keeps it finite where the sum of exponentials would overflow.
    return torch.sigmoid(math.log(classes) - logits.logsumexp(-1)).mean(0)


def epistemic_variance(means: Tensor) -> Tensor:
    """Variance of the predicted means between samples: what the model does not know.

    Args:
        means: [samples, ...].

    Examples:
        >>> epistemic_variance(torch.tensor([[0.0], [2.0]]))
        tensor([1.])
    """
    return means.var(0, correction=0)


def aleatoric_variance(variances: Tensor) -> Tensor:
    """Average noise variance: what no model could know.

    Args:
        variances: [samples, ...].

    Examples:
        >>> aleatoric_variance(torch.tensor([[1.0], [3.0]]))
        tensor([2.])
    """
    return variances.mean(0)


def total_variance(means: Tensor, variances: Tensor) -> Tensor:
    """Variance of the mixture of Gaussians: epistemic plus aleatoric.

    Args:
        means: [samples, ...].
        variances: [samples, ...].

    Examples:
        >>> total_variance(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]]))
        tensor([3.])
    """
    return epistemic_variance(means) + aleatoric_variance(variances)


def gaussian_mixture_quantile(means: Tensor, variances: Tensor, probability: float) -> Tensor:
    """Quantile of an equally weighted mixture of Gaussians, by bisection on its CDF, [...].

    Args:
        means: [samples, ...].
        variances: [samples, ...].
        probability: Between 0 and 1, both excluded.

    Examples:
        >>> gaussian_mixture_quantile(torch.zeros(1, 1), torch.ones(1, 1), 0.975)
        tensor([1.9600])
    """
    checks.probability("probability", probability)
    deviations = variances.sqrt()
    # Each component's own quantile brackets that of the mixture.
    standard = torch.special.ndtri(means.new_tensor(probability))
    own = means + standard * deviations
    low, high = own.amin(0), own.amax(0)
    for _ in range(60):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - means) / deviations).mean(0) < probability
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    quantile: Tensor = (low + high) / 2
    return quantile


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy
