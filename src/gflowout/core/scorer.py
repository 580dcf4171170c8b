"""A training pass: run the backbone under masks and score the labels.

A method asks a :class:`Scorer` for passes and never sees the backbone, the inputs or the labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gflowout.core import tree
from gflowout.core.call import logits_of
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import DrawMask, Method
from gflowout.core.noise import Noise
from gflowout.core.runner import Runner, given_masks_of_passes
from gflowout.core.sites import weights_by_unit
from gflowout.core.trajectory import Scored, merge


class Scorer:
    """Runs the backbone for a method's training step and scores the labels ``y``.

    Given ``masks``, [batch or 1, units] or [draws, batch or 1, units] per site, are scored instead
    of drawn ones. ``values`` checks the values of labels, not only their type and shape.
    """

    def __init__(
        self,
        runner: Runner,
        method: Method,
        likelihood: Likelihood,
        y: Tensor,
        masks: Sequence[Tensor] | None,
        values: bool,
    ) -> None:
        self.runner = runner
        self.method = method
        self.likelihood = likelihood
        self.masks = masks
        self.target = likelihood.target(y, values=values)
        self.batch = runner.call.batch_size
        if len(y) == 0:
            raise ValueError(f"the batch is empty: got y of shape {list(y.shape)}")
        if self.batch is not None and len(y) != self.batch:
            raise ValueError(
                f"y must have one label per example of the batch of {self.batch}, got shape "
                f"{list(y.shape)}"
            )
        self.label = likelihood.encode(self.target)

    def __call__(self, draw: DrawMask, copies: int = 1) -> Scored:
        """Return the trajectory with its log-likelihood, the batch taken ``copies`` times."""
        if self.masks is not None:
            passes = given_masks_of_passes(self.masks, self.method, self.batch)
            return merge([self._pass(draw, 1, masks) for masks in passes])
        if copies == 1 or self.runner.call.can_fold:
            return self._pass(draw, copies, None)
        return merge([self._pass(draw, 1, None) for _ in range(copies)])

    def weight(self, site: int) -> Tensor | None:
        """Weights of the layer that reads a site, [units, ...]; ``None`` if none is known."""
        place = self.runner.sites[site]
        if place.consumer is None or place.layout is not None:
            return None
        layer = self.runner.call.backbone.get_submodule(place.consumer)
        return weights_by_unit(layer, place.units)

    def _pass(self, draw: DrawMask, copies: int, given: list[Tensor] | None) -> Scored:
        label, target = self.label, self.target
        if copies > 1:
            label, target = tree.repeat(label, copies), tree.repeat(target, copies)
        trajectory = Scored(Noise(copies=copies), given)
        trajectory.label = label
        output = logits_of(self.runner.run(draw, trajectory))
        try:
            trajectory.log_likelihood = self.likelihood.log_prob(output, target)
        except ValueError:
            self.likelihood.log_prob(output[: len(self.target)], self.target)  # as the user sees it
            raise
        return trajectory
