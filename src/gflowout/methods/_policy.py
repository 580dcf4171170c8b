"""What methods with a learned mask posterior share: options, earlier masks, exploration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gflowout.core import checks, policy
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory


def check_policy(options: Any) -> None:
    """Check the options that methods with a learned mask posterior share."""
    checks.number("temperature", options.temperature, low=0, open_low=True)
    checks.number("epsilon", options.epsilon, low=0, high=1)
    checks.number("beta", options.beta, low=0)
    checks.number("prior_keep", options.prior_keep, low=0, high=1, open_low=True, open_high=True)
    checks.choice("rescale", options.rescale, ["none", "kept"])
    checks.choice("log_z", options.log_z, ["learned", "batch"])
    checks.integer("draws", options.draws, low=1)
    checks.integer("blocks", options.blocks, low=1)
    checks.choice("history", options.history, ["all", "summary"])
    if not isinstance(options.hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, got {options.hidden!r}")
    for width in options.hidden:
        checks.integer("hidden", width, low=1)


def check_sizes(options: Any) -> None:
    """Check the options of methods whose masks are shared by several examples."""
    for name in ("group_size", "train_size"):
        value = getattr(options, name)
        if value is not None:
            checks.integer(name, value, low=1)


def history_of(sites: Sequence[Site], options: Any) -> policy.MaskHistory | None:
    """What keeps a summary of earlier masks, if the options ask for one."""
    if options.history == "all":
        return None
    return policy.MaskHistory([site.units for site in sites], policy.SUMMARY)


def history_sizes(sites: Sequence[Site], options: Any) -> list[int]:
    """Size of what a generator sees of the earlier masks, per site."""
    if options.history == "summary":
        return [policy.SUMMARY if index else 0 for index in range(len(sites))]
    return [sum(site.units for site in sites[:index]) for index in range(len(sites))]


def exploring(
    method: Any, site: int, trajectory: Trajectory, rows: int, like: Tensor
) -> policy.Choose:
    """What chooses a site's mask in training: the given one, or a draw from the training policy.

    Args:
        method: With options ``temperature`` and ``epsilon``, and ``starts`` of keep rates.
        site: Index of the site.
        trajectory: Of the pass.
        rows: Masks per copy of the batch.
        like: Gives the device of the random numbers.
    """
    if trajectory.given is not None:
        return policy.given(trajectory.given[site])
    options, units = method.options, method.sites[site].units
    return policy.exploring(
        trajectory.noise, rows, units, like, method.starts.at(site), options.temperature,
        options.epsilon,
    )  # fmt: skip
