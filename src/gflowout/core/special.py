"""Special functions that PyTorch does not have."""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-300


def betainc(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    r"""Regularised incomplete beta function :math:`I_x(a, b)`, in double precision.

    By its continued fraction (DLMF 8.17.22), with Lentz's algorithm, on the side where it converges
    fast.

    Args:
        a: Above 0.
        b: Above 0.
        x: In [0, 1].

    Examples:
        >>> one = torch.tensor(1.0)
        >>> betainc(one, 2 * one, torch.tensor([0.0, 0.5, 1.0]))  # 1 - (1 - x)^2
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """
    zeros = 0 * (a + b + x).double()  # of the common shape
    a, b, x = a + zeros, b + zeros, x + zeros
    swapped = x > (a + 1) / (a + b + 2)
    first, second = torch.where(swapped, b, a), torch.where(swapped, a, b)
    part = torch.where(swapped, 1 - x, x)
    scale = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    front = (scale + torch.xlogy(a, x) + torch.xlogy(b, 1 - x)).exp() / first
    value = front * _fraction(first, second, part)
    return torch.where(swapped, 1 - value, value)


def student_t_cdf(t: Tensor, degrees: float) -> Tensor:
    """CDF of Student's t distribution, in double precision.

    Args:
        t: Anywhere.
        degrees: Degrees of freedom, above 0.

    Examples:
        >>> student_t_cdf(torch.tensor([0.0, 1.0]), 1.0)
        tensor([0.5000, 0.7500], dtype=torch.float64)
    """
    t = t.double()
    half = t.new_tensor(degrees / 2)
    tail = betainc(half, t.new_tensor(0.5), degrees / (degrees + t.square())) / 2
    return torch.where(t > 0, 1 - tail, tail)


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The continued fraction of the incomplete beta function."""
    c = torch.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for step in range(1, 20_000):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        before = value
        for coefficient in (even, odd):
            d = 1 / _away_from_zero(1 + coefficient * d)
            c = _away_from_zero(1 + coefficient / c)
            value = value * c * d
        if step % 8 == 0 and bool(((value - before).abs() <= 1e-13 * value.abs()).all()):
            break
    return value


def _away_from_zero(value: Tensor) -> Tensor:
    return torch.where(value.abs() < _TINY, torch.full_like(value, _TINY), value)
