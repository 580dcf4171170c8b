"""What several methods share: checks of options, keep rates to start from, learned numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import checks, generators, policy
from gflowout.core.sites import Site

DEFAULT_KEEP = 0.9
"""Keep rate that masks start from where neither an option nor the backbone gives one."""


def keep_rate(site: Site, option: float | None = None) -> float:
    """Keep rate that a site starts from: the option, or that of the ``nn.Dropout`` that stood here.

    A dropout that keeps or drops everything is none to start from.

    Examples:
        >>> keep_rate(Site("fc", 2, 1, 2, rate=0.25)), keep_rate(Site("fc", 2, 1, 2, rate=0.0))
        (0.75, 0.9)
    """
    if option is not None:
        return option
    return 1 - site.rate if site.rate is not None and 0 < site.rate < 1 else DEFAULT_KEEP


def check_policy(options: Any) -> None:
    """Check the options that methods with a learned mask posterior share."""
    checks.number("temperature", options.temperature, low=0, open_low=True)
    checks.number("epsilon", options.epsilon, low=0, high=1)
    checks.number("beta", options.beta, low=0)
    if options.prior_keep is not None:
        checks.probability("prior_keep", options.prior_keep)
    checks.choice("rescale", options.rescale, ["none", "kept"])
    checks.choice("log_z", options.log_z, ["learned", "batch"])
    checks.integer("draws", options.draws, low=1)
    checks.integer("blocks", options.blocks, low=1)
    checks.choice("history", options.history, ["all", "summary"])
    check_hidden(options.hidden)


def check_hidden(hidden: Any) -> None:
    """Check widths of a generator."""
    if not isinstance(hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, got {hidden!r}")
    for width in hidden:
        checks.integer("hidden", width, low=1)


def check_bound(options: Any) -> None:
    """Check what the backbone is trained by: ``bound``, and the number of ``draws``."""
    checks.choice("bound", options.bound, ["mean", "marginal"])
    checks.integer("draws", options.draws, low=1)
    if options.bound == "marginal" and options.draws < 2:
        raise ValueError(
            'bound="marginal" averages over the draws of one example: draws must be an integer '
            f">= 2, got {options.draws}"
        )


def check_sizes(options: Any) -> None:
    """Check the options that are numbers of examples, or ``None``."""
    for name in ("group_size", "train_size"):
        value = getattr(options, name, None)
        if value is not None:
            checks.integer(name, value, low=1)


def history_of(sites: Sequence[Site], options: Any) -> generators.MaskHistory | None:
    """What keeps a summary of earlier masks, if the options ask for one."""
    if options.history == "all":
        return None
    return generators.MaskHistory([site.units for site in sites], generators.SUMMARY)


def history_sizes(sites: Sequence[Site], options: Any) -> list[int]:
    """Size of what a generator sees of the earlier masks, per site."""
    if options.history == "summary":
        return [generators.SUMMARY if index else 0 for index in range(len(sites))]
    return [sum(site.units for site in sites[:index]) for index in range(len(sites))]


class Starts(nn.Module):
    """Log-odds of the keep rates that masks start from, or have as their prior.

    Sites with rates of their own have one number per unit; all others have the rate ``keep``, or
    without one that of :func:`keep_rate`.

    Examples:
        >>> sites = [Site("fc", 2, 1, 2), Site("input", 2, 1, 2, keep=(0.5, 0.5))]
        >>> starts = Starts(sites, 0.5)
        >>> starts.at(0), starts.at(1)
        (0.0, tensor([0., 0.]))
    """

    def __init__(self, sites: Sequence[Site], keep: float | None) -> None:
        super().__init__()
        self.common = [policy.logit(keep_rate(site, keep)) for site in sites]
        for index, site in enumerate(sites):
            own = None if site.keep is None else torch.tensor(list(map(policy.logit, site.keep)))
            self.register_buffer(f"site{index}", own, persistent=False)

    def at(self, site: int) -> float | Tensor:
        """Of a site: one number, or one per unit, [units]."""
        own: Tensor | None = getattr(self, f"site{site}")
        return self.common[site] if own is None else own


class SiteNumbers(nn.Module):
    """Learned numbers of all sites, one for the site or one per unit, as one parameter.

    Numbers begin with ``start``, one for all or one per site, or with what ``from_keep`` makes of a
    unit's own keep rate; weight decay pulls back to that.

    Examples:
        >>> numbers = SiteNumbers([Site("fc", units=3, axis=1, rank=2)], start=2.0, per_unit=True)
        >>> [site.tolist() for site in numbers.split(numbers())]
        [[2.0, 2.0, 2.0]]
    """

    units: Tensor  # that a number stands for, [numbers]
    start: float | Tensor

    def __init__(
        self,
        sites: Sequence[Site],
        start: float | Sequence[float],
        per_unit: bool,
        from_keep: Callable[[float], float] = policy.logit,
    ) -> None:
        super().__init__()
        common = list(start) if isinstance(start, Sequence) else [start] * len(sites)
        if all(site.keep is None for site in sites) and len(set(common)) == 1:
            self.start = common[0]
        else:
            pairs = zip(sites, common, strict=True)
            starts = [_starts(site, number, per_unit, from_keep) for site, number in pairs]
            self.register_buffer("start", torch.cat(starts), persistent=False)
        self.sizes = [site.units if per_unit else 1 for site in sites]
        self.moved = nn.Parameter(torch.zeros(sum(self.sizes)))
        counts = torch.tensor([site.units for site in sites]).float()
        units = torch.ones(sum(self.sizes)) if per_unit else counts
        self.register_buffer("units", units, persistent=False)

    def forward(self) -> Tensor:
        """Return all numbers, [numbers]."""
        # One parameter must do what a generator does with many; see generators.DIRECT_GAIN.
        return self.start + generators.DIRECT_GAIN * self.moved

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cut what was made of the numbers into the part of each site, [units or 1]."""
        return torch.split(values, self.sizes)


def _starts(
    site: Site, common: float, per_unit: bool, from_keep: Callable[[float], float]
) -> Tensor:
    """What the numbers of a site start from, [units or 1]."""
    if site.keep is None:
        return torch.full((site.units if per_unit else 1,), float(common))
    numbers = list(map(from_keep, site.keep))
    if not per_unit and len(set(numbers)) > 1:
        raise ValueError(
            f"keep has several rates for site {site.name!r}, but one rate is learned per site: set "
            "per_unit=True"
        )
    return torch.tensor(numbers if per_unit else numbers[:1])
