"""The mathematics of calibration as pure functions: losses, isotonic fits, shifts of draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

ROUNDS, TOLERANCE = 500, 1e-6
"""Of the shifts that give draws a wanted mean."""


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log of the mean probability of labels [n], from logits [samples, n, classes]."""
    index = labels.expand(len(logits), -1).unsqueeze(-1)
    scores = logits.log_softmax(-1).gather(-1, index).squeeze(-1)
    return math.log(len(logits)) - scores.logsumexp(0).mean()


def minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is least: the best of a grid, then golden-section search around it."""
    points = 41
    step = (high - low) / (points - 1)
    grid = [low + step * place for place in range(points)]
    best = min(grid, key=function)
    left, right = max(low, best - step), min(high, best + step)
    ratio = (math.sqrt(5) - 1) / 2
    a, b = right - ratio * (right - left), left + ratio * (right - left)
    at_a, at_b = function(a), function(b)
    while right - left > 1e-7:
        if at_a <= at_b:
            right, b, at_b = b, a, at_a
            a = right - ratio * (right - left)
            at_a = function(a)
        else:
            left, a, at_a = a, b, at_b
            b = left + ratio * (right - left)
            at_b = function(b)
    return min((best, (left + right) / 2), key=function)


def isotonic(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The increasing least-squares fit of y to x, [n] each: where it bends, and its values there.

    Pools adjacent violators: neighbours in the wrong order are replaced by their mean, until none
    are left. Equal x count as one.

    Examples:
        >>> isotonic(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
        (tensor([1., 2., 3., 4.]), tensor([0.0000, 0.5000, 0.5000, 1.0000]))
    """
    places, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    sums = torch.zeros_like(places).index_add_(0, inverse, y.to(places.dtype))
    blocks: list[tuple[float, float, int]] = []  # sum, weight, number of places
    for total, weight in zip(sums.tolist(), counts.tolist(), strict=True):
        block = (total, float(weight), 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    sizes = torch.tensor([size for _, _, size in blocks], device=x.device)
    means = places.new_tensor([total / weight for total, weight, _ in blocks])
    ends = sizes.cumsum(0) - 1
    # The first and last place of every block; a block of one place has one knot.
    knots = torch.stack((ends - sizes + 1, ends), 1).flatten()
    keep = torch.ones_like(knots, dtype=torch.bool)
    keep[1::2] = sizes > 1
    return places[knots[keep]], means.repeat_interleave(2)[keep]


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Piecewise linear functions through knots, constant beyond them.

    Args:
        x: [functions, n].
        knots: In increasing order, [functions, knots].
        values: [functions, knots].

    Examples:
        >>> knots, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 10.0]])
        >>> interpolate(torch.tensor([[-1.0, 0.25, 2.0]]), knots, values)
        tensor([[ 0.0000,  2.5000, 10.0000]])
    """
    after = torch.searchsorted(knots, x).clamp(max=knots.shape[-1] - 1)
    before = (after - 1).clamp(min=0)
    x0, x1 = knots.gather(-1, before), knots.gather(-1, after)
    y0, y1 = values.gather(-1, before), values.gather(-1, after)
    width = x1 - x0
    share = torch.where(width > 0, (x - x0) / width.clamp(min=1e-300), torch.ones_like(x))
    return y0 + (y1 - y0) * share.clamp(0, 1)


def with_mean(log_probs: Tensor, target: Tensor) -> Tensor:
    """Shift the logits of all draws by the same vector, so that their mean is ``target``.

    The shift exists and is unique up to a constant. It is found by scaling the matrix draws x
    classes of every example to rows that sum to 1 and columns that average to the target in turn
    (Sinkhorn's iteration).

    Args:
        log_probs: [samples, ..., classes].
        target: Positive probabilities, [..., classes].

    Examples:
        >>> draws = torch.tensor([[0.9, 0.1], [0.7, 0.3]], dtype=torch.float64)
        >>> shifted = with_mean(draws.log(), torch.tensor([0.5, 0.5], dtype=torch.float64)).exp()
        >>> shifted.mean(0)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    goal, shifted = target.log(), log_probs
    for _ in range(ROUNDS):
        mean = shifted.logsumexp(0) - math.log(len(shifted))
        if not mean.numel() or float((mean.exp() - target).abs().max()) < TOLERANCE:
            break
        shifted = (shifted + (goal - mean)).log_softmax(-1)
    return shifted
