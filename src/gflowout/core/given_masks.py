"""Checks of masks that users give instead of drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gflowout.core.method import Method


def check_values(masks: Any, binary: bool) -> None:
    """Raise unless given masks hold numbers that a method can take.

    Args:
        masks: One tensor per site.
        binary: Whether only 0 and 1 have a probability.
    """
    tensors = masks if isinstance(masks, Sequence) else ()  # other errors are raised later
    for number, mask in enumerate(tensors):
        if not isinstance(mask, Tensor):
            continue
        if bool(mask.isnan().any()):
            raise ValueError(f"masks must hold no NaN, got some in the one of site {number}")
        if binary and not bool(((mask == 0) | (mask == 1)).all()):
            wrong = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(
                f"masks must hold 0 (drop) and 1 (keep) only, got {wrong:g} in the one of site "
                f"{number}"
            )


def of_pass(masks: Any, method: Method, batch: int | None) -> list[Tensor]:
    """Check masks for one pass, [batch or 1, units] per site; return them as [batch, units].

    ``batch`` is the size of the batch, if known. Masks may hold the method's ``mask_parts`` side by
    side instead of one mask per unit.
    """
    tensors = _per_site(masks, method)
    for mask, site in zip(tensors, method.sites, strict=True):
        rows = mask.shape[0] if mask.dim() else 0
        widths = (site.units, method.mask_parts * site.units)
        fits = batch is None or rows in (1, batch)
        if mask.dim() != 2 or mask.shape[1] not in widths or not fits:
            raise ValueError(
                f"masks: the one of site {site.name!r} must have shape "
                f"[{batch or 'batch'}, {site.units}] or [1, {site.units}], got "
                f"{list(mask.shape)}"
            )
    return [mask if batch is None else mask.expand(batch, -1) for mask in tensors]


def of_draws(masks: Any, method: Method, batch: int | None) -> list[Tensor]:
    """Check masks for several draws, [draws, batch or 1, units] per site; see :func:`of_pass`.

    Returns:
        [draws, batch, units] per site.
    """
    tensors = _per_site(masks, method)
    counts = {mask.shape[0] for mask in tensors if mask.dim() == 3}
    for mask, site in zip(tensors, method.sites, strict=True):
        widths = (site.units, method.mask_parts * site.units)
        fits = mask.dim() == 3 and (batch is None or mask.shape[1] in (1, batch))
        if not fits or mask.shape[2] not in widths or len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"masks: the one of site {site.name!r} must have shape [samples, "
                f"{batch or 'batch'}, {site.units}], with the same number of samples at every "
                f"site, got {list(mask.shape)}"
            )
    return [mask if batch is None else mask.expand(-1, batch, -1) for mask in tensors]


def of_passes(masks: Any, method: Method, batch: int | None) -> list[list[Tensor]]:
    """Check masks for one pass or, with three axes, for several; return those of every pass."""
    if not any(mask.dim() == 3 for mask in _per_site(masks, method)):
        return [of_pass(masks, method, batch)]
    return [list(draw) for draw in zip(*of_draws(masks, method, batch), strict=True)]


def _per_site(masks: Any, method: Method) -> list[Tensor]:
    count = len(method.sites)
    if not isinstance(masks, Sequence) or len(masks) != count:
        got = f"{len(masks)}" if isinstance(masks, Sequence) else type(masks).__name__
        raise ValueError(f"masks must hold one tensor per site ({count}), got {got}")
    for mask in masks:
        if not isinstance(mask, Tensor):
            raise TypeError(f"masks must hold tensors, got {type(mask).__name__}")
    return [mask if mask.is_floating_point() else mask.float() for mask in masks]
