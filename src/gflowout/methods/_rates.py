"""Numbers per site or per unit: keep rates that masks start from, and rates to be learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gflowout.core import policy
from gflowout.core.sites import Site


class Starts(nn.Module):
    """Log-odds of the keep rates that masks start from, or have as their prior.

    Args:
        sites: In execution order; those with rates of their own have one number per unit.
        keep: Keep rate of all other sites.

    Examples:
        >>> sites = [Site("fc", 2, 1, 2), Site("input", 2, 1, 2, keep=(0.5, 0.5))]
        >>> starts = Starts(sites, 0.5)
        >>> starts.at(0), starts.at(1)
        (0.0, tensor([0., 0.]))
    """

    def __init__(self, sites: Sequence[Site], keep: float) -> None:
        super().__init__()
        self.common = policy.logit(keep)
        for index, site in enumerate(sites):
            own = None if site.keep is None else torch.tensor(list(map(policy.logit, site.keep)))
            self.register_buffer(f"site{index}", own, persistent=False)

    def at(self, site: int) -> float | Tensor:
        """Of a site: one number, or one per unit, [units]."""
        own: Tensor | None = getattr(self, f"site{site}")
        return self.common if own is None else own


class SiteNumbers(nn.Module):
    """Learned numbers of all sites, one for the site or one per unit, as one parameter.

    Args:
        sites: In execution order.
        start: What every number starts with; weight decay pulls back to it. A tensor has one
            for every number.
        per_unit: One number per unit instead of one per site.

    Examples:
        >>> numbers = SiteNumbers([Site("fc", units=3, axis=1, rank=2)], start=2.0, per_unit=True)
        >>> [site.tolist() for site in numbers.split(numbers())]
        [[2.0, 2.0, 2.0]]
    """

    units: Tensor
    """Units that a number stands for, [numbers]."""
    start: float | Tensor

    def __init__(self, sites: Sequence[Site], start: float | Tensor, per_unit: bool) -> None:
        super().__init__()
        if isinstance(start, Tensor):
            self.register_buffer("start", start, persistent=False)
        else:
            self.start = start
        self.sizes = [site.units if per_unit else 1 for site in sites]
        self.moved = nn.Parameter(torch.zeros(sum(self.sizes)))
        units = torch.tensor([site.units for site in sites])
        units = torch.ones(sum(self.sizes)) if per_unit else units.float()
        self.register_buffer("units", units, persistent=False)

    def forward(self) -> Tensor:
        """Return all numbers, [numbers]."""
        # One parameter must do what a generator does with many; see policy.DIRECT_GAIN.
        return self.start + policy.DIRECT_GAIN * self.moved

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cut what was made of the numbers into the part of each site, [units or 1]."""
        return torch.split(values, self.sizes)
