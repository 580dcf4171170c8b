"""The mathematics of conformal prediction as pure functions: scores, their quantile, reports."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gflowout.core import checks

SET_METHODS = ("lac", "aps", "raps")


def quantile(scores: Tensor, coverage: float) -> Tensor:
    r"""The conformal quantile: the :math:`\lceil (n + 1) \cdot \mathrm{coverage} \rceil`-th score.

    The + 1 stands for the new example, whose score is as likely as any other to have any rank.
    Without it, coverage is too low by up to 1 / (n + 1).

    Args:
        scores: Of held-out examples, [n, ...]; smallest first along the first axis.
        coverage: Between 0 and 1.

    Raises:
        ValueError: If n is below coverage / (1 - coverage).

    Examples:
        >>> quantile(torch.arange(1.0, 20.0), 0.9)
        tensor(18.)
        >>> quantile(torch.arange(8.0), 0.9)
        Traceback (most recent call last):
            ...
        ValueError: coverage=0.9 needs at least 9 held-out examples, got 8
    """
    checks.probability("coverage", coverage)
    rank = rank_of(len(scores), coverage)
    if rank > len(scores):
        raise ValueError(
            f"coverage={coverage:g} needs at least {least_count(coverage)} held-out examples, got "
            f"{len(scores)}"
        )
    if bool(scores.isnan().any()):
        raise ValueError("scores must be numbers, got NaN")
    return scores.kthvalue(rank, 0).values


def set_scores(
    probabilities: Tensor, method: str = "lac", penalty: float = 0.1, free: int = 1
) -> Tensor:
    r"""How badly every class fits, [..., classes]: low scores are in the set.

    With p the probability of a class and r its rank, 1 for the most probable:

    - ``"lac"`` (Sadinle et al. 2019): 1 - p;
    - ``"aps"`` (Romano et al. 2020, without random numbers): the sum of the probabilities of all
      classes up to rank r;
    - ``"raps"`` (Angelopoulos et al. 2021, the same): the latter + penalty * max(0, r - free).

    Args:
        probabilities: [..., classes].
        method: ``"lac"``, ``"aps"`` or ``"raps"``.
        penalty: Of ``"raps"``.
        free: Of ``"raps"``.

    Examples:
        >>> probabilities = torch.tensor([0.25, 0.5, 0.25])
        >>> set_scores(probabilities)
        tensor([0.7500, 0.5000, 0.7500])
        >>> set_scores(probabilities, "aps")
        tensor([0.7500, 0.5000, 1.0000])
        >>> set_scores(probabilities, "raps")
        tensor([0.8500, 0.5000, 1.2000])
    """
    checks.choice("method", method, SET_METHODS)
    if method == "lac":
        return 1 - probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    sums = ordered.cumsum(-1)
    if method == "raps":
        ranks = torch.arange(1, sums.shape[-1] + 1, device=sums.device)
        sums = sums + penalty * (ranks - free).clamp(min=0)
    return torch.empty_like(sums).scatter(-1, order, sums)


def report_sets(sets: Tensor, y: Tensor) -> dict[str, float]:
    """How often sets hold the truth, and how large they are.

    Args:
        sets: bool [batch, classes].
        y: True classes, [batch].

    Returns:
        ``coverage``; ``worst_class``, the least coverage of any class that occurs; ``size``, the
        mean number of classes in a set; ``empty`` and ``single``, the shares of sets with no and
        with one class.

    Examples:
        >>> sets = torch.tensor([[True, False], [True, True], [True, False], [False, False]])
        >>> report_sets(sets, torch.tensor([0, 1, 1, 0]))
        {'coverage': 0.5, 'worst_class': 0.5, 'size': 1.0, 'empty': 0.25, 'single': 0.5}
    """
    if sets.dim() != 2 or sets.dtype != torch.bool:
        raise ValueError(f"sets must be bool [batch, classes], got {sets.dtype} {list(sets.shape)}")
    if y.is_floating_point() and bool((y != y.floor()).any()):
        raise ValueError("y must hold classes as whole numbers, got fractions or NaN")
    labels = y.long().reshape(-1).to(sets.device)
    if len(labels) != len(sets) or not len(sets):
        raise ValueError(f"y must have one label for each of {len(sets)} sets, got {len(labels)}")
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= sets.shape[1]:
        raise ValueError(
            f"y must be in [0, {sets.shape[1] - 1}] for these sets, got labels from {low} to "
            f"{high}; leave out examples whose label is to be ignored"
        )
    hit = sets.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    size = sets.sum(1)
    worst = min(float(hit[labels == label].mean()) for label in torch.unique(labels))
    return {
        "coverage": float(hit.mean()),
        "worst_class": worst,
        "size": float(size.double().mean()),
        "empty": float((size == 0).double().mean()),
        "single": float((size == 1).double().mean()),
    }


def report_intervals(low: Tensor, high: Tensor, y: Tensor) -> dict[str, float]:
    """How often intervals hold the truth, and how wide they are.

    Args:
        low: Lower ends.
        high: Upper ends, of the same shape.
        y: True numbers, of the same shape; an axis of size 1 more or less at the end is no matter.

    Returns:
        ``coverage``; ``width``, the mean; ``median_width``.

    Examples:
        >>> low, high = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [3.0]])
        >>> report_intervals(low, high, torch.tensor([0.5, 4.0]))
        {'coverage': 0.5, 'width': 2.0, 'median_width': 1.0}
    """
    same = low.shape in (y.shape, (*y.shape, 1)) or y.shape == (*low.shape, 1)
    if low.shape != high.shape or not same or not low.numel():
        raise ValueError(
            "low, high and y must have the same shape and hold numbers, got shapes "
            f"{list(low.shape)}, {list(high.shape)} and {list(y.shape)}"
        )
    truth = y.reshape(low.shape).to(low.device)
    if any(bool(part.isnan().any()) for part in (low, high, truth)):
        raise ValueError("low, high and y must hold numbers, got NaN")
    width = (high - low).double()
    return {
        "coverage": float(((low <= truth) & (truth <= high)).double().mean()),
        "width": float(width.mean()),
        "median_width": float(width.median()),
    }


def rank_of(count: int, coverage: float) -> int:
    """Rank of the quantile among ``count`` scores, 1 for the least."""
    # 0.95 * 20 may be rounded up to a bit more than 19.
    return max(1, math.ceil((count + 1) * coverage - 1e-9))


def least_count(coverage: float) -> int:
    """Least number of examples for which the rank is among them."""
    count = max(1, math.floor(coverage / (1 - coverage)) - 1)
    while rank_of(count, coverage) > count:
        count += 1
    return count
