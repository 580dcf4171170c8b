"""Uncertainty scores from samples, as pure functions of tensors.

``probabilities`` are [samples, ..., classes], one distribution per drawn mask; ``means`` and
``variances`` of Gaussian predictions are [samples, ...]. :class:`gflowout.Predictive` offers the
same as methods. Higher always means less certain, or stranger, except for :func:`max_probability`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gflowout.core import checks

Combine = Literal["mean", "draws"]
"""Score the mean over draws, or average the scores of the draws."""
_COMBINE = ("mean", "draws")


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


def energy(logits: Tensor, combine: Combine = "mean") -> Tensor:
    """Energy (Liu et al. 2020), ``-log sum of exp(l_k)``: low where some class has evidence, [...].

    Args:
        logits: [samples, ..., classes].
        combine: ``"mean"`` scores the mean logits; ``"draws"`` averages the score over draws.

    Examples:
        >>> energy(torch.tensor([[[9.0, 0.0], [0.0, 0.0]]]))  # the second input is stranger
        tensor([-9.0001, -0.6931])
    """
    return -_mean_if(logits, combine).logsumexp(-1).mean(0)


def max_logit(logits: Tensor, combine: Combine = "mean") -> Tensor:
    """Largest logit with its sign turned (Hendrycks et al. 2022), ``-max of l_k``, [...].

    Args:
        logits: [samples, ..., classes].
        combine: ``"mean"`` scores the mean logits; ``"draws"`` averages the score over draws.

    Examples:
        >>> logits = torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]])
        >>> max_logit(logits), max_logit(logits, "draws")
        (tensor([-2.]), tensor([-4.]))
    """
    return -_mean_if(logits, combine).amax(-1).mean(0)


def gen(
    probabilities: Tensor, combine: Combine = "mean", gamma: float = 0.1, top: int = 100
) -> Tensor:
    """Generalised entropy (Liu et al. 2023): ``sum of p_k^gamma (1 - p_k)^gamma``, [...].

    The sum is over the largest probabilities. A small exponent makes it notice the small ones among
    them: it is 0 only where one class has everything.

    Args:
        probabilities: [samples, ..., classes].
        combine: ``"mean"`` scores the mean probabilities; ``"draws"`` averages the score over
            draws.
        gamma: Exponent, between 0 and 1.
        top: How many of the largest probabilities count; all, if there are fewer classes.

    Examples:
        >>> gen(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
        tensor([0.0000, 1.7411])
    """
    checks.probability("gamma", gamma)
    checks.integer("top", top, low=1)
    p = _mean_if(probabilities, combine)
    if top < p.shape[-1]:
        p = p.topk(top, dim=-1).values
    return (p * (1 - p)).clamp(min=0).pow(gamma).sum(-1).mean(0)


def variation_ratio(probabilities: Tensor, combine: Combine = "draws") -> Tensor:
    """Share of draws that do not vote for the class with most votes, 0 to 1, [...].

    NaN where a draw holds NaN.

    Args:
        probabilities: [samples, ..., classes]; logits give the same votes.
        combine: ``"draws"`` lets every draw vote for its most probable class; ``"mean"`` takes the
            mean probabilities as shares of the votes: 1 - :func:`max_probability`.

    Examples:
        >>> three = torch.tensor([[[0.9, 0.1]], [[0.6, 0.4]], [[0.2, 0.8]]])
        >>> variation_ratio(three), variation_ratio(three, "mean")
        (tensor([0.3333]), tensor([0.4333]))
    """
    if checks.choice("combine", combine, _COMBINE) == "mean":
        return 1 - max_probability(probabilities)
    largest, choice = probabilities.max(-1, keepdim=True)  # NaN counts as the largest
    votes = torch.zeros_like(probabilities).scatter_(-1, choice, 1.0)
    ratio = 1 - votes.mean(0).amax(-1)
    return ratio.masked_fill(largest.isnan().any(0).squeeze(-1), math.nan)


def logit_disagreement(logits: Tensor) -> Tensor:
    """Variance of the logits between samples, averaged over classes, [...].

    A number that a sample adds to all its logits changes no probability, and counts for nothing
    here. Unlike :func:`variance`, the score still grows where probabilities are all but 0 and 1.
    It compares draws, so that there is nothing to combine.

    Args:
        logits: [samples, ..., classes].

    Examples:
        >>> logit_disagreement(torch.tensor([[[1.0, -1.0]], [[-1.0, 1.0]]]))
        tensor([1.])
        >>> logit_disagreement(torch.tensor([[[5.0, 3.0]], [[2.0, 0.0]]]))  # the same twice
        tensor([0.])
    """
    centred = logits - logits.mean(-1, keepdim=True)
    return (centred - centred.mean(0)).square_().mean((0, -1))


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


def mixture_quantile(
    cdf: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    probability: float,
    whole: bool = False,
) -> Tensor:
    """Quantile of an equally weighted mixture, by bisection on its CDF, [...].

    Args:
        cdf: Returns the CDFs of all components at a value [...], [samples, ...].
        low: Start of a search that widens the interval until it brackets the quantile, [...].
        high: Above ``low``, [...].
        probability: Between 0 and 1, both excluded.
        whole: Whether values are whole numbers: the smallest one at which the CDF reaches the
            probability. ``low`` must then be a whole number below all of them.

    Examples:
        >>> rates = torch.tensor([[2.0], [4.0]])  # an exponential distribution for each draw
        >>> start = torch.zeros(1)
        >>> mixture_quantile(lambda x: 1 - torch.exp(-rates * x), start, start + 1, 0.5)
        tensor([0.2406])
    """
    checks.probability("probability", probability)

    def below(value: Tensor) -> Tensor:
        return cdf(value).mean(0) < probability

    for _ in range(64 if not whole else 0):
        outside = ~below(low)
        if not bool(outside.any()):
            break
        low = torch.where(outside, low - 2 * (high - low), low)
    for _ in range(64):
        outside = below(high)
        if not bool(outside.any()):
            break
        low, high = torch.where(outside, high, low), torch.where(outside, 3 * high - 2 * low, high)
    for _ in range(60):
        middle = (low + high) / 2
        middle = middle.floor() if whole else middle
        under = below(middle)
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        if whole and bool((high - low <= 1).all()):
            break
    return high if whole else (low + high) / 2


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def _mean_if(values: Tensor, combine: Combine) -> Tensor:
    """The mean over samples as the only one, or all: [1 or samples, ...]."""
    one = checks.choice("combine", combine, _COMBINE) == "mean"
    return values.mean(0, keepdim=True) if one else values
