"""A training pass: run the backbone under masks and score the labels; and masks given by the user.

A method asks a :class:`Scorer` for passes and never sees the backbone, the inputs or the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gflowout.core import tree
from gflowout.core.call import logits_of
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import DrawMask
from gflowout.core.runner import Runner
from gflowout.core.sites import Site, weights_by_unit
from gflowout.core.trajectory import Noise, Trajectory, merge


class Scorer:
    """Runs the backbone for a method's training step and scores the labels.

    Args:
        runner: Holds the backbone and the inputs.
        likelihood: Scores outputs.
        y: Labels.
        masks: Masks to score instead of drawing: [batch or 1, units] per site, or
            [draws, batch or 1, units].
        values: Check the values of the labels, not only their type and shape.
        parts: Masks per unit that may stand side by side in given masks.
    """

    def __init__(
        self,
        runner: Runner,
        likelihood: Likelihood,
        y: Tensor,
        masks: Sequence[Tensor] | None,
        values: bool,
        parts: int = 1,
    ) -> None:
        self.parts = parts
        self.runner = runner
        self.likelihood = likelihood
        self.masks = masks
        self.target = likelihood.target(y, values=values)
        self.batch = runner.batch_size()
        if len(y) == 0:
            raise ValueError(f"the batch is empty: got y of shape {list(y.shape)}")
        if self.batch is not None and len(y) != self.batch:
            raise ValueError(
                f"y must have one label per example of the batch of {self.batch}, got shape "
                f"{list(y.shape)}"
            )
        self.label = likelihood.encode(self.target)

    def __call__(self, draw: DrawMask, copies: int = 1) -> Trajectory:
        """Return the trajectory with its log-likelihood, the batch taken ``copies`` times."""
        if self.masks is not None:
            return merge([self._pass(draw, 1, given) for given in self._given(self.masks)])
        if copies == 1 or self.runner.can_fold():
            return self._pass(draw, copies, None)
        return merge([self._pass(draw, 1, None) for _ in range(copies)])

    def weight(self, site: int) -> Tensor | None:
        """Weights of the layer that reads a site, [units, ...]; ``None`` if none is known."""
        place = self.runner.sites[site]
        if place.consumer is None or place.layout is not None:
            return None
        return weights_by_unit(self.runner.backbone.get_submodule(place.consumer), place.units)

    def _given(self, masks: Sequence[Tensor]) -> list[list[Tensor]]:
        """Masks of each pass."""
        sites = self.runner.sites
        if not any(mask.dim() == 3 for mask in _per_site(masks, sites)):
            return [masks_of_pass(masks, sites, self.batch, self.parts)]
        draws = masks_of_draws(masks, sites, self.batch, self.parts)
        return [list(one) for one in zip(*draws, strict=True)]

    def _pass(self, draw: DrawMask, copies: int, given: list[Tensor] | None) -> Trajectory:
        trajectory = Trajectory(
            noise=Noise(copies=copies), given=given, label=tree.repeat(self.label, copies)
        )
        output = logits_of(self.runner.run(draw, trajectory))
        try:
            trajectory.log_likelihood = self.likelihood.log_prob(
                output, tree.repeat(self.target, copies)
            )
        except ValueError:
            self.likelihood.log_prob(output[: len(self.target)], self.target)  # as the user sees it
            raise
        return trajectory


def check_mask_values(masks: Any, binary: bool) -> None:
    """Raise unless given masks hold numbers that a method can take.

    Args:
        masks: One tensor per site.
        binary: Whether only 0 and 1 have a probability.
    """
    tensors = masks if isinstance(masks, Sequence) else ()  # what else is wrong is named later
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


def masks_of_pass(
    masks: Any, sites: Sequence[Site], batch: int | None, parts: int = 1
) -> list[Tensor]:
    """Check masks for one pass and return them as [batch, units] per site.

    Args:
        masks: One [batch or 1, units] per site.
        sites: In execution order.
        batch: Size of the batch, if known.
        parts: Masks per unit that may stand side by side.
    """
    given = []
    for mask, site in zip(_per_site(masks, sites), sites, strict=True):
        rows = mask.shape[0] if mask.dim() else 0
        fits = batch is None or rows in (1, batch)
        if mask.dim() != 2 or mask.shape[1] not in (site.units, parts * site.units) or not fits:
            raise ValueError(
                f"masks: the one of site {site.name!r} must have shape "
                f"[{batch or 'batch'}, {site.units}] or [1, {site.units}], got "
                f"{list(mask.shape)}"
            )
        given.append(mask if batch is None else mask.expand(batch, -1))
    return given


def masks_of_draws(
    masks: Any, sites: Sequence[Site], batch: int | None, parts: int = 1
) -> list[Tensor]:
    """Check masks for several draws and return them as [draws, batch, units] per site.

    Args:
        masks: One [draws, batch or 1, units] per site.
        sites: In execution order.
        batch: Size of the batch, if known.
        parts: Masks per unit that may stand side by side.
    """
    given = _per_site(masks, sites)
    counts = {mask.shape[0] for mask in given if mask.dim() == 3}
    for mask, site in zip(given, sites, strict=True):
        widths = (site.units, parts * site.units)
        fits = mask.dim() == 3 and (batch is None or mask.shape[1] in (1, batch))
        if not fits or mask.shape[2] not in widths or len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"masks: the one of site {site.name!r} must have shape [samples, "
                f"{batch or 'batch'}, {site.units}], with the same number of samples at every "
                f"site, got {list(mask.shape)}"
            )
    return [mask if batch is None else mask.expand(-1, batch, -1) for mask in given]


def _per_site(masks: Any, sites: Sequence[Site]) -> list[Tensor]:
    if not isinstance(masks, Sequence) or len(masks) != len(sites):
        count = f"{len(masks)}" if isinstance(masks, Sequence) else type(masks).__name__
        raise ValueError(f"masks must hold one tensor per site ({len(sites)}), got {count}")
    for mask in masks:
        if not isinstance(mask, Tensor):
            raise TypeError(f"masks must hold tensors, got {type(mask).__name__}")
    return [mask if mask.is_floating_point() else mask.float() for mask in masks]
