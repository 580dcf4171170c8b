"""The gradient of a step's loss in some numbers, against finite differences."""

from __future__ import annotations

import torch
from torch import Tensor

import gflowout as gfo


def assert_gradient(
    model: gfo.MaskedModel,
    moved: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    seed: int = 0,
    step: float = 1e-5,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Tensor:
    """Compare gradients of the loss in ``moved``, which are in double precision.

    Returns the gradient with the same masks given, so that they carry none: it must differ.
    """

    def total(masks: list[Tensor] | None = None) -> Tensor:
        torch.manual_seed(seed)
        return model(x, y=y, masks=masks).total

    (gradient,) = torch.autograd.grad(total(), moved)
    expected = []
    for unit in range(len(moved)):
        values = []
        for change in (step, -step):
            with torch.no_grad():
                moved[unit] += change
                values.append(total().item())
                moved[unit] -= change
        expected.append((values[0] - values[1]) / (2 * step))
    target = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(gradient, target, rtol=rtol, atol=atol)
    torch.manual_seed(seed)
    masks = model(x, y=y).masks
    (given,) = torch.autograd.grad(total(masks), moved)
    assert not torch.allclose(given, target, rtol=0.1)
    return given
