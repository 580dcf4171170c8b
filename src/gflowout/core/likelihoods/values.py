"""Base of likelihoods of numbers: ``dim`` of them per example, each distributed on its own."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.likelihoods.base import Likelihood, by_draw, label_tensor, last_axis, precise


class Values(Likelihood):
    """Labels of ``dim`` numbers, [batch, ..., dim], or [batch] if ``dim`` is 1.

    Args:
        dim: Number of values per example.
    """

    parts: ClassVar[int] = 1
    """Outputs per value."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = checks.integer("dim", dim, low=1)
        self.label_size = self.dim

    def _columns(self, y: Tensor) -> Tensor:
        """Labels, [batch, ..., dim]."""
        label_tensor(y)
        if self.dim == 1 and y.dim() == 1:
            y = y.unsqueeze(-1)
        last_axis(self, y, self.dim, label=True)
        return y

    def _outputs(self, output: Tensor, parts: int = 1) -> Tensor:
        """Outputs in single precision at least, [batch, ..., dim * parts]."""
        if self.dim == parts == 1 and output.dim() == 1:
            output = output.unsqueeze(-1)
        last_axis(self, output, self.dim * parts)
        return precise(output)


class Spread(Values):
    """Values with a location, from the backbone, and a spread.

    The spread is one learned number per value, or, with ``heteroscedastic``, an output of the
    backbone: it then gives [batch, ..., 2 * dim], locations first, logs of the spread after.

    Args:
        dim: Number of values per example.
        start: Log of the spread to start from.
        learn: Whether it is learned or stays as it starts.
        heteroscedastic: Whether the backbone gives it.
    """

    parameter: ClassVar[str]
    """Name of the parameter that holds the log of the spread, [dim]."""

    free = ("noise", "learn_noise", "heteroscedastic")

    def __init__(self, dim: int, start: float, learn: bool, heteroscedastic: bool) -> None:
        super().__init__(dim)
        self.heteroscedastic = checks.boolean("heteroscedastic", heteroscedastic)
        if not heteroscedastic:
            logs = nn.Parameter(torch.full((dim,), start), requires_grad=learn)
            self.register_parameter(self.parameter, logs)

    def _split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log of the spread, [batch, ..., dim] each."""
        if self.heteroscedastic:
            location, log_spread = self._outputs(output, 2).chunk(2, -1)
            return location, log_spread
        location = self._outputs(output)
        return location, precise(getattr(self, self.parameter)).expand_as(location)

    def _split_draws(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log of the spread of all draws, [draws, batch, ..., dim] each."""
        both = by_draw(lambda output: torch.stack(self._split(output), -1), outputs)
        location, log_spread = both.unbind(-1)
        return location, log_spread

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Write the learned spread into the output."""
        settled = self._with(heteroscedastic=True).eval()  # trained no more
        return torch.cat(self._split(output), -1), settled


def start_of(name: str, value: float, learn: bool) -> tuple[float, bool]:
    """Check a spread to start from, and whether it is learned."""
    number = checks.number(name, value, low=0, open_low=True)
    return number, checks.boolean(f"learn_{name}", learn)
