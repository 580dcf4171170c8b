"""Running a backbone under masks: one pass, or many draws at the price of few.

Draws are folded into larger batches where that is safe and pays; what comes before the first mask
is shared by all of them (:mod:`gflowout.core.prefix_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Args, CallSpec, Kwargs, logits_of
from gflowout.core.hooks import MaskedPass
from gflowout.core.method import DrawAhead, DrawMask
from gflowout.core.prefix_cache import prefix_once
from gflowout.core.sites import Site
from gflowout.core.trajectory import Noise, Trajectory

FOLDED_ELEMENTS = 3 * 2**18
"""Elements of the largest activation up to which folding draws into a batch pays on a CPU.

3 MB in single precision: 20 draws of a batch of 128 on 300 units. More brings nothing, and memory
must not grow with the number of draws.
"""

AHEAD = 64
"""Draws whose masks are drawn ahead at a time, at least, where masks do not depend on the batch."""


class Runner:
    """Runs one backbone on one set of arguments, any number of times.

    Args:
        backbone: The module that holds the sites.
        sites: In execution order.
        spec: How the backbone is called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """

    def __init__(
        self,
        backbone: nn.Module,
        sites: Sequence[Site],
        spec: CallSpec,
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        spec.check(args, kwargs)
        self.backbone = backbone
        self.sites = sites
        self.spec = spec
        self.args = args
        self.kwargs = kwargs
        self.real = spec.real_positions(backbone, args, kwargs)

    def run(self, draw: DrawMask, trajectory: Trajectory) -> Any:
        """Run the backbone under masks from ``draw`` and return its output as it comes."""
        trajectory.real = self.real
        copies = trajectory.copies
        parting = copies > 1 and self.spec.parts_at_first_site
        entering = 1 if parting else copies
        args, kwargs = self.spec.prepare(self.backbone, self.args, self.kwargs, entering)
        learning = torch.is_grad_enabled()

        def visit(site: int, activation: Tensor) -> Tensor:
            if site == 0:
                trajectory.batch = activation.shape[self.sites[0].batch_axis] // entering
            # Masks are accounted for in full precision, and also inside a part without gradient.
            with torch.set_grad_enabled(learning), _full_precision(activation.device.type):
                return draw(site, activation, trajectory)

        try:
            with MaskedPass(self.backbone, self.sites, visit, copies, parting):
                return self.backbone(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            plain = self.spec.explain(self.backbone, self.args, self.kwargs, error)
            if plain is None:
                if "argument" in str(error):
                    error.add_note(
                        "labels go in by keyword, model(x, y=labels), and into training passes "
                        "only; all else is handed to the backbone"
                    )
                raise
            raise plain from error

    def batch_size(self) -> int | None:
        """Size of the batch, if the example showed which argument carries it."""
        return self.spec.batch_size(self.backbone, self.args, self.kwargs)

    def can_fold(self) -> bool:
        """Tell whether this call may be repeated along its batch axis."""
        return self.spec.can_fold(self.backbone, self.args, self.kwargs)

    @contextmanager
    def own_random_state(self) -> Iterator[None]:
        """Give a backbone that draws numbers itself a random state to do so, and put it back."""
        devices = [self._device()] if self._device().type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=self.spec.random):
            yield

    def sample(
        self,
        draw: DrawMask,
        ahead: DrawAhead,
        seeds: Sequence[int],
        chunk: int | None,
        given: Sequence[Tensor] | None,
        keep_masks: bool,
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Draw one output per seed.

        Args:
            draw: Draws a site's mask.
            ahead: Draws the masks of many draws and all sites, if they do not depend on the batch.
            seeds: One per draw; a draw depends on nothing but its seed.
            chunk: Draws per pass at most; ``None`` chooses.
            given: Masks to use instead of drawing, [draws, batch, units] per site.
            keep_masks: Return the masks, too.

        Returns:
            Outputs, [draws, batch, ...], and masks, [draws, batch, units] per site, or ``None``.
        """
        outputs = torch.empty(0)
        masks: list[list[Tensor]] = []
        most, parts = self._chunk(chunk), self.spec.parts_at_first_site
        several = len(seeds) > (most if parts else 1)
        known, end = given, 0 if given is None else len(seeds)
        with prefix_once(self.backbone, self.sites, self.spec, several) as prefix:
            start = offset = 0
            while start < len(seeds):
                if start == end:
                    end = min(start + most * -(-AHEAD // most), len(seeds))
                    known, offset = ahead(Trajectory(noise=self._noise(seeds[start:end]))), start
                # Unless draws part at the first site, the first pass is a single one, so that the
                # common layers run on one batch.
                limit = 1 if start == 0 and prefix.active and not parts else most
                copies = min(limit, end - start)
                part = slice(start, start + copies)
                rows = slice(start - offset, start - offset + copies)
                trajectory = Trajectory(
                    noise=self._noise(seeds[part]) if known is None else Noise(copies=copies),
                    given=None if known is None else [mask[rows].flatten(0, -2) for mask in known],
                )
                if self.spec.random:
                    torch.manual_seed(seeds[start])
                prefix.start(1 if parts else copies)
                output = logits_of(self.run(draw, trajectory))
                prefix.stop()
                batch = output.shape[0] // copies
                if start == 0:  # filled in place: parts that are joined in the end take it twice
                    outputs = output.new_empty(len(seeds), batch, *output.shape[1:])
                    if chunk is None:
                        most = self._beside(most, batch, outputs)
                outputs[part] = output.reshape(copies, batch, *output.shape[1:])
                if keep_masks:
                    drawn = trajectory.full_masks(len(output))
                    masks.append([mask.reshape(copies, batch, -1) for mask in drawn])
                start += copies
                del trajectory, output  # not to be held while the next pass runs
        joined = [torch.cat(parts) for parts in zip(*masks, strict=True)] if keep_masks else None
        return outputs, joined

    def _chunk(self, chunk: int | None) -> int:
        if not self.can_fold():
            return 1
        if chunk is not None:
            return chunk
        batch = self.batch_size() or 1
        return max(1, FOLDED_ELEMENTS // (batch * self.spec.footprint))

    def _beside(self, most: int, batch: int, outputs: Tensor) -> int:
        """Draws per pass once the result takes memory, too: down to half as many."""
        left = FOLDED_ELEMENTS - outputs.numel()
        return max(-(-most // 2), min(most, left // (max(1, batch) * self.spec.footprint)))

    def _noise(self, seeds: Sequence[int]) -> Noise:
        return Noise(_Generators(seeds, self._device()))

    def _device(self) -> torch.device:
        return next(tensor.device for _, tensor in tree.tensors((self.args, self.kwargs)))


class _Generators(Sequence[torch.Generator]):
    """One generator per seed, made when the first is asked for: not all methods ask."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._seeds = seeds
        self._device = device
        self._made: list[torch.Generator] = []

    def __len__(self) -> int:
        return len(self._seeds)

    def __iter__(self) -> Iterator[torch.Generator]:
        if not self._made:
            self._made = [torch.Generator(self._device).manual_seed(seed) for seed in self._seeds]
        return iter(self._made)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _full_precision(device: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
