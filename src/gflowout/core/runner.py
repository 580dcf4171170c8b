"""Running a backbone under drawn or given masks: one pass, or many draws at the price of few.

Draws are folded into larger batches where that is safe and pays; what comes before the first mask
is shared by all of them (:mod:`gflowout.core.prefix_cache`). A method asks a :class:`Scorer` for
training passes and never sees the backbone, the inputs or the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Args, BoundCall, CallSpec, Kwargs, check_shift, logits_of
from gflowout.core.hooks import MaskedBackbone
from gflowout.core.lazy import cached_property
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import DrawMask, Method
from gflowout.core.noise import Noise, SeededNoise
from gflowout.core.prefix_cache import Prefix
from gflowout.core.sites import Site, weights_by_unit
from gflowout.core.trajectory import Scored, Trajectory, merge

FOLDED_ELEMENTS = 3 * 2**18
"""Elements of the largest activation up to which folding draws into a batch pays on a CPU.

3 MB in single precision: 20 draws of a batch of 128 on 300 units. More brings nothing, and memory
must not grow with the number of draws.
"""

FOLDED_ON_DEVICE = 2**26
"""The same on an accelerator, which is only busy with large passes: 256 MB in single precision.

A backbone keeps a few such activations at a time, so a pass stays below about 1 GB.
"""

AHEAD = 64
"""Draws whose masks are drawn ahead at a time, at least, where masks do not depend on the batch."""


class Runner:
    """Runs one backbone on one set of arguments, any number of times."""

    def __init__(
        self, backbone: nn.Module, sites: Sequence[Site], spec: CallSpec, args: Args, kwargs: Kwargs
    ) -> None:
        self.backbone, self.sites, self.spec = backbone, sites, spec
        self.call = BoundCall(backbone, args, kwargs, spec)
        self.call.check()
        self.real = None if spec.padding is None else self.call.real_positions()
        self._prefix: Prefix | None = None

    @cached_property
    def _masked(self) -> MaskedBackbone:
        masked = MaskedBackbone(self.backbone, self.sites, whole=self._prefix is not None)
        if self._prefix is not None:
            self._prefix.attach(masked.view)
        return masked

    def run(self, draw: DrawMask, trajectory: Trajectory) -> Any:
        """Run the backbone under masks from ``draw`` and return its output as it comes."""
        trajectory.real = self.real
        copies = trajectory.copies
        parting = copies > 1 and self.spec.parts_at_first_site
        entering = 1 if parting else copies
        args, kwargs = self.call.repeated(entering)
        learning = torch.is_grad_enabled()

        def visit(site: int, activation: Tensor) -> Tensor:
            if site == 0:
                if self._prefix is not None:
                    self._prefix.close()
                trajectory.batch = self._examples(activation, trajectory) // entering
            # Masks are accounted for in full precision, and also inside a part without gradient.
            with torch.set_grad_enabled(learning), _full_precision(activation.device.type):
                return draw(site, activation, trajectory)

        try:
            # A checkpoint may run parts of a training pass again later: each has its own masks.
            masked = MaskedBackbone(self.backbone, self.sites) if learning else self._masked
            return masked(args, kwargs, visit, copies, parting, self.call.batch_size)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            plain = self.call.explain(error)
            if plain is None:
                if "argument" in str(error):
                    error.add_note(
                        "labels are passed by keyword, model(x, y=labels), in training passes "
                        "only; all other arguments go to the backbone"
                    )
                raise
            raise plain from error

    def _examples(self, activation: Tensor, trajectory: Trajectory) -> int:
        """Examples at the first site: where its rows are of the whole batch, as many as labels."""
        if self.sites[0].folded == "batch" and isinstance(trajectory, Scored):
            return trajectory.label.shape[0]
        return activation.shape[self.sites[0].batch_axis]

    def own_random_state(self) -> AbstractContextManager[Any]:
        """Give a backbone that draws numbers itself a random state to do so, and put it back."""
        if not self.spec.random:
            return nullcontext()
        device = self.call.device
        return torch.random.fork_rng([device] if device.type == "cuda" else [])

    def sample(
        self,
        method: Method,
        seeds: Sequence[int],
        chunk: int | None,
        given: Sequence[Tensor] | None,
        keep_masks: bool,
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Return outputs [draws, batch, ...] and masks [draws, batch, units] per site.

        A draw depends on nothing but its seed. A pass is of at most ``chunk`` draws; ``None``
        chooses. Masks ``given``, [draws, batch, units] per site, are used instead of drawing.
        """
        outputs = torch.empty(0)
        kept: list[list[Tensor]] = []
        most, parts = self._chunk(chunk), self.spec.parts_at_first_site
        several = len(seeds) > (most if parts else 1)
        masks, end = given, 0 if given is None else len(seeds)
        prefix = self._prefix = Prefix(self.spec) if several and self.sites else None
        start = offset = 0
        while start < len(seeds):
            if start == end:
                end = min(start + most * -(-AHEAD // most), len(seeds))
                noise = SeededNoise(seeds[start:end], self.call.device)
                masks, offset = method.draw_ahead(Trajectory(noise)), start
            # Unless draws part at the first site, the first pass is a single one, so that the
            # common layers run on one batch.
            limit = 1 if start == 0 and prefix is not None and not parts else most
            copies = min(limit, end - start)
            part = slice(start, start + copies)
            if masks is None:
                trajectory = Trajectory(SeededNoise(seeds[part], self.call.device))
            else:
                rows = slice(start - offset, start - offset + copies)
                own = [mask[rows].flatten(0, -2) for mask in masks]
                trajectory = Trajectory(Noise(copies=copies), own)
            if self.spec.random:
                torch.manual_seed(seeds[start])
            if prefix is not None:
                prefix.start(1 if parts else copies)
            output = logits_of(self.run(method.draw, trajectory))
            if prefix is not None:
                prefix.stop()
            batch = output.shape[0] // copies
            if start == 0:  # filled in place: parts that are joined in the end take it twice
                outputs = output.new_empty(len(seeds), batch, *output.shape[1:])
                if chunk is None:
                    most = self._beside(most, batch, outputs)
            outputs[part] = output.reshape(copies, batch, *output.shape[1:])
            if keep_masks:
                drawn = trajectory.full_masks(len(output))
                kept.append([mask.reshape(copies, batch, -1) for mask in drawn])
            start += copies
            del trajectory, output  # not to be held while the next pass runs
        if prefix is not None:
            prefix.detach(self._masked.view)
        if not keep_masks:
            return outputs, None
        return outputs, [torch.cat(site) for site in zip(*kept, strict=True)]

    def _chunk(self, chunk: int | None) -> int:
        if not self.call.can_fold:
            return 1
        if chunk is not None:
            return chunk
        return max(1, self._most_elements // ((self.call.batch_size or 1) * self.spec.footprint))

    @property
    def _most_elements(self) -> int:
        """Elements of the largest activation of a pass of several draws."""
        return FOLDED_ELEMENTS if self.call.device.type == "cpu" else FOLDED_ON_DEVICE

    def _beside(self, most: int, batch: int, outputs: Tensor) -> int:
        """Draws per pass once the result takes memory, too: down to half as many."""
        left = self._most_elements - outputs.numel()
        return max(-(-most // 2), min(most, left // (max(1, batch) * self.spec.footprint)))


class Scorer:
    """Runs the backbone for a method's training step and scores the labels ``y``.

    Given ``masks``, [batch or 1, units] or [draws, batch or 1, units] per site, are scored instead
    of drawn ones. ``values`` checks the values of labels and masks, not only type and shape.
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
        self.runner, self.method, self.likelihood = runner, method, likelihood
        self.masks, self.values = masks, values
        self.target = likelihood.target(y, values=values)
        self.batch = runner.call.batch_size
        if len(y) == 0:
            raise ValueError(f"the batch is empty: got y of shape {list(y.shape)}")
        if self.batch is not None and len(y) != self.batch:
            raise ValueError(
                f"y must have one label per example of the batch of {self.batch}, got shape "
                f"{list(y.shape)}"
            )
        if values and self.target.dim() == 2:  # a label per token
            check_shift(runner.call, self.target, getattr(likelihood, "ignore_index", None))
        self.label = likelihood.encode(self.target)

    def __call__(self, draw: DrawMask, copies: int = 1) -> Scored:
        """Return the trajectory with its log-likelihood, the batch taken ``copies`` times."""
        if self.masks is not None:
            passes = given_masks_of_passes(self.masks, self.method, self.batch, self.values)
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
        if trajectory.log_likelihood.shape != target.shape[:1]:
            raise ValueError(
                f"log_prob of {self.likelihood} must return one number per example, shape "
                f"{list(target.shape[:1])}, got {list(trajectory.log_likelihood.shape)}; "
                "gflowout.testing.check_likelihood checks a likelihood of your own"
            )
        return trajectory


def _full_precision(device: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def given_masks(
    masks: Any, method: Method, batch: int | None, values: bool, several: bool = False
) -> list[Tensor]:
    """Check given masks, [batch or 1, units] per site; return them as [batch, units].

    ``batch`` is the size of the batch, if known; ``values`` checks what the masks hold. If
    ``several``, they have an axis of draws in front. They may hold the method's ``mask_parts`` side
    by side instead of one mask per unit.
    """
    tensors = _per_site(masks, method, values)
    counts = {mask.shape[0] for mask in tensors if mask.dim() == 3}
    uneven = several and (len(counts) > 1 or 0 in counts)
    for mask, site in zip(tensors, method.sites, strict=True):
        fits = mask.dim() == 2 + several and (batch is None or mask.shape[-2] in (1, batch))
        widths = (site.units, method.mask_parts * site.units)
        if uneven or not fits or mask.shape[-1] not in widths:
            size = f"{batch or 'batch'}, {site.units}"
            shape = f"[{size}] or [1, {site.units}]"
            if several:
                shape = f"[samples, {size}], with the same number of samples at every site"
            raise ValueError(
                f"masks: the one of site {site.name!r} must have shape {shape}, got "
                f"{list(mask.shape)}"
            )
    return [mask if batch is None else mask.expand(*mask.shape[:-2], batch, -1) for mask in tensors]


def given_masks_of_passes(
    masks: Any, method: Method, batch: int | None, values: bool
) -> list[list[Tensor]]:
    """Check masks for one pass or, with three axes, for several; return those of every pass."""
    if not any(mask.dim() == 3 for mask in _per_site(masks, method, values=False)):
        return [given_masks(masks, method, batch, values)]
    draws = zip(*given_masks(masks, method, batch, values, several=True), strict=True)
    return [list(draw) for draw in draws]


def _per_site(masks: Any, method: Method, values: bool) -> list[Tensor]:
    count = len(method.sites)
    if not isinstance(masks, Sequence) or len(masks) != count:
        got = f"{len(masks)}" if isinstance(masks, Sequence) else type(masks).__name__
        raise ValueError(f"masks must hold one tensor per site ({count}), got {got}")
    for site, mask in enumerate(masks):
        if not isinstance(mask, Tensor):
            raise TypeError(f"masks must hold tensors, got {type(mask).__name__}")
        if values and bool(mask.isnan().any()):
            raise ValueError(f"masks must hold no NaN, got some in the one of site {site}")
        if values and method.binary_masks and not bool(((mask == 0) | (mask == 1)).all()):
            wrong = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(
                f"masks must hold 0 (drop) and 1 (keep) only, got {wrong:g} in the one of site "
                f"{site}"
            )
    return [mask if mask.is_floating_point() else mask.float() for mask in masks]
