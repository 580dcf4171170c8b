"""What methods with a learned mask posterior share: options, earlier masks, how masks are chosen.

The distributions themselves are in :mod:`gflowout.core.policy`; the losses are each method's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gflowout.core import checks, policy
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory

Temper = Callable[[Tensor, slice], Tensor]
"""Turns the logits of a policy, those of some units, into those that are drawn from."""


def check_sizes(options: Any) -> None:
    """Check the options that methods with masks shared by several examples have."""
    for name in ("group_size", "train_size"):
        value = getattr(options, name)
        if value is not None:
            checks.integer(name, value, low=1)


def _as_is(logits: Tensor, _: slice) -> Tensor:
    return logits


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


def seen_of_earlier(
    history: policy.MaskHistory | None, name: str, trajectory: Trajectory, like: Tensor
) -> Tensor:
    """Return what a generator sees of the earlier masks: all of them, or their summary.

    Args:
        history: Keeps the summary; ``None`` for all masks.
        name: Of the summary: posterior and prior each keep one, trained by their own loss.
        trajectory: Of the pass.
        like: Gives rows and dtype.
    """
    if history is None or not trajectory.masks:
        return trajectory.earlier(like)
    summary: Tensor = history(trajectory.masks, trajectory.summaries.get(name))
    trajectory.summaries[name] = summary
    return summary


def choosing(
    trajectory: Trajectory, site: int, rows: int, units: int, like: Tensor, temper: Temper = _as_is
) -> policy.Choose:
    """Return what chooses a site's mask, block by block: the given one, or a drawn one.

    Args:
        trajectory: Of the pass.
        site: Index of the site.
        rows: Masks per copy of the batch.
        units: Units of the site.
        like: Gives device and dtype of the random numbers.
        temper: Turns the logits into those that are drawn from.
    """
    if trajectory.given is not None:
        given = trajectory.given[site]
        return lambda _, part: given[..., part]
    uniform = trajectory.noise.uniform(rows, units, like)
    return lambda logits, part: policy.draw(temper(logits.detach(), part), uniform[..., part])


def exploring(
    options: Any, start: float | Tensor, trajectory: Trajectory, rows: int, like: Tensor
) -> Temper:
    """Return what turns logits into those of the training policy; see :func:`policy.explore`.

    Args:
        options: With ``temperature`` and ``epsilon``.
        start: Log-odds of the prior's keep rate, or of every unit's.
        trajectory: Of the pass.
        rows: Masks per copy of the batch.
        like: Gives device and dtype of the random numbers.
    """
    random = random_rows(options.epsilon, trajectory, rows, like)

    def temper(logits: Tensor, part: slice) -> Tensor:
        centre = start[part] if isinstance(start, Tensor) else start
        return policy.explore(logits, centre, options.temperature, random)

    return temper


def random_rows(epsilon: float, trajectory: Trajectory, rows: int, like: Tensor) -> Tensor | None:
    """Choose the rows that take a random mask at one site: [copies * rows] of bool."""
    if epsilon == 0:
        return None
    return trajectory.noise.uniform(rows, 1, like).squeeze(-1) < epsilon
