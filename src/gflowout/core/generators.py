"""The small networks whose outputs are log-odds of masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core import policy

SUMMARY = 64
"""Size of a :class:`MaskHistory`."""

DIRECT_GAIN = 10.0
"""Logits per unit of a parameter where a generator has no inputs.

Adam moves every parameter by about its learning rate. A network moves its logits through many
parameters at once, a plain logit through one: the gain lets one learning rate serve both.
"""


class MaskHistory(nn.Module):
    """A running summary of the masks so far: the sum of one linear map of each.

    Its size is the same at every site, so generators that see it, and not the masks themselves,
    grow with the number of sites and not with its square.

    Examples:
        >>> history = MaskHistory([4, 3, 5], size=2)
        >>> first = history([torch.ones(6, 4)], None)
        >>> history([torch.ones(6, 4), torch.ones(6, 3)], first).shape
        torch.Size([6, 2])
    """

    def __init__(self, units: Sequence[int], size: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(count, size, bias=False) for count in units[:-1])

    def forward(self, masks: Sequence[Tensor], before: Tensor | None) -> Tensor:
        """Add the latest of ``masks`` to the summary of those before, [rows, size]."""
        latest = self.maps[len(masks) - 1]
        assert isinstance(latest, nn.Linear)
        added: Tensor = latest(masks[-1].to(latest.weight.dtype))
        return added if before is None else before + added


class MaskPolicy(nn.Module):
    """Distribution of one site's mask, unit by unit or in autoregressive blocks.

    The units are cut into ``blocks`` of about equal size. Units of a block are independent given
    the inputs and the blocks before; one block is the paper's factorisation, as many blocks as
    units can represent any distribution. For the other arguments see :class:`MaskGenerator`.

    Examples:
        >>> two = MaskPolicy([], units=4, hidden=(8,), start=0.0, blocks=2)
        >>> mask, logits = two([], lambda logits, part: policy.draw(logits, torch.rand(3, 2)))
        >>> mask.shape, logits.shape
        (torch.Size([3, 4]), torch.Size([3, 4]))
    """

    def __init__(
        self,
        inputs: Sequence[int],
        units: int,
        hidden: Sequence[int],
        start: float | Tensor,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        blocks = min(blocks, units)
        bounds = [units * block // blocks for block in range(blocks + 1)]
        self.parts = [slice(*pair) for pair in pairwise(bounds)]
        self.blocks = nn.ModuleList(
            MaskGenerator(
                [*inputs, part.start],
                part.stop - part.start,
                hidden,
                start[part] if isinstance(start, Tensor) else start,
            )
            for part in self.parts
        )

    def forward(self, inputs: Sequence[Tensor], choose: policy.Choose) -> tuple[Tensor, Tensor]:
        """Return the mask, and its logits given the blocks before, [rows, units] each."""
        masks: list[Tensor] = []
        logits: list[Tensor] = []
        for part, generator in zip(self.parts, self.blocks, strict=True):
            seen = [*inputs, *_before(masks, logits)]
            logits.append(generator(*seen))
            masks.append(choose(logits[-1], part))
        return _side_by_side(masks, masks), _side_by_side(logits, masks)


def constant(
    start: float | Tensor, parts: Sequence[slice], inputs: Sequence[Tensor], choose: policy.Choose
) -> tuple[Tensor, Tensor]:
    """Mask and logits as of a :class:`MaskPolicy` with log-odds ``start`` for any inputs."""
    logits = torch.as_tensor(start, dtype=inputs[0].dtype, device=inputs[0].device)
    logits = logits.expand(1, parts[-1].stop)
    masks = [choose(logits[:, part], part) for part in parts]
    return _side_by_side(masks, masks), logits


def _before(masks: list[Tensor], logits: list[Tensor]) -> list[Tensor]:
    """What a block sees of the blocks before."""
    return [torch.cat(masks, -1).to(logits[0].dtype)] if masks else []


def _side_by_side(parts: list[Tensor], masks: list[Tensor]) -> Tensor:
    """Values of all blocks side by side, in as many rows as there are masks."""
    if len(parts) == 1:
        return parts[0]
    rows = masks[0].shape[:-1]
    return torch.cat([part.expand(*rows, -1) for part in parts], -1)


class MaskCorrection(MaskPolicy):
    r"""A posterior as a correction of the prior, with which it starts.

    .. math:: \operatorname{logit} q = \text{stopgrad}(\operatorname{logit} p)
              + r \, [0.015 \, G(x, y, z_{<}) + 0.2 \, W y]

    So q and p cannot drift apart for no reason. r, [rows, units], is how active each unit is: the
    mask of a unit whose activation is 0 everywhere changes nothing, and its correction must be 0.
    The label, the last of the ``inputs``, also has a linear map W of its own. The factors are
    for optimisers such as Adam, which move parameters by their learning rate however small the
    gradient is: on a network that fits, a unit is worth some hundredths of a nat.

    Examples:
        >>> prior = MaskPolicy([], units=4, hidden=(8,), start=2.0)
        >>> posterior = MaskCorrection([3], units=4, hidden=(8,))
        >>> uniform = torch.rand(5, 4)
        >>> _, logits, _ = posterior(
        ...     [torch.randn(5, 3)], lambda logits, part: policy.draw(logits, uniform[:, part]),
        ...     prior, [], torch.ones(5, 4), batch=5,
        ... )
        >>> logits.unique()
        tensor([2.], grad_fn=<Unique2Backward0>)
    """

    gain, label_gain = 0.015, 0.2

    def __init__(
        self, inputs: Sequence[int], units: int, hidden: Sequence[int], blocks: int = 1
    ) -> None:
        super().__init__(inputs, units, hidden, 0.0, blocks)
        self.of_label = nn.Parameter(torch.zeros(units, inputs[-1]))

    def forward(  # type: ignore[override]
        self,
        inputs: Sequence[Tensor],
        choose: policy.Choose,
        prior: nn.Module,
        seen_by_prior: Sequence[Tensor],
        activity: Tensor,
        batch: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mask, its logits, and the prior's, [rows, units] each.

        Labels are those of ``batch`` examples, repeated.
        """
        masks: list[Tensor] = []
        logits: list[Tensor] = []
        label = inputs[-1][:batch]

        def corrected(base: Tensor, part: slice) -> Tensor:
            own = self.blocks[len(masks)](*inputs, *_before(masks, logits))
            of_label: Tensor = self.of_label
            active = activity
            if len(self.parts) > 1:  # slices have a price in the backward pass
                of_label, active = of_label[part], active[:, part]
            corrections = (own, of_label, label, active, self.gain, self.label_gain)
            logits.append(_Correct.apply(base.detach(), *corrections))  # type: ignore[no-untyped-call]
            masks.append(choose(logits[-1], part))
            return masks[-1]

        mask, of_prior = prior(seen_by_prior, corrected)
        return mask, _side_by_side(logits, masks), of_prior


class _Correct(torch.autograd.Function):
    """Logits of a :class:`MaskCorrection`; written out by hand, it takes half the time."""

    @staticmethod
    def forward(
        ctx: Any,
        base: Tensor,
        own: Tensor,
        weight: Tensor,
        label: Tensor,
        activity: Tensor,
        gain: float,
        label_gain: float,
    ) -> Tensor:
        ctx.save_for_backward(label, activity)
        ctx.set_materialize_grads(False)
        ctx.gain, ctx.ratio = gain, label_gain / gain
        of_label = label.mm(weight.t())
        moved = torch.add(own.reshape(-1, *of_label.shape), of_label, alpha=ctx.ratio)
        return torch.addcmul(base, activity, moved.reshape(own.shape), value=gain)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:  # of a loss that has none in the posterior
            return (None,) * 7
        label, activity = ctx.saved_tensors
        own = (gradient * activity).mul_(ctx.gain)
        copies = own.reshape(-1, len(label), own.shape[-1])
        summed = copies.sum(0) if len(copies) > 1 else copies.squeeze(0)
        weight = label.t().mm(summed).mul_(ctx.ratio).t()
        return None, own, weight, None, None, None, None


def like(policies: nn.ModuleList) -> Tensor:
    """A tensor of the device and dtype of the logits of mask policies."""
    first = policies[0]
    assert isinstance(first, MaskPolicy)
    bias = first.blocks[0].bias
    assert isinstance(bias, Tensor)
    return bias


class MaskGenerator(nn.Module):
    """Logits of one site's mask from several inputs, each with a small encoder of its own.

    Separate encoders keep a short input (a label) from being drowned by a long one (an
    activation). The first of the widths ``hidden`` is that of every encoder, the rest join them;
    without widths the generator is a linear map. Inputs of size 0 are left out; with none left, the
    logits are plain parameters. All units start with the log-odds ``start``, or each with its own.

    Examples:
        >>> generator = MaskGenerator([4, 2], units=3, hidden=(8, 8), start=0.5)
        >>> generator(torch.randn(5, 4), torch.randn(5, 2)).detach().unique()
        tensor([0.5000])
    """

    start: float | Tensor

    def __init__(
        self, inputs: Sequence[int], units: int, hidden: Sequence[int], start: float | Tensor
    ) -> None:
        super().__init__()
        sizes = [size for size in inputs if size]
        if isinstance(start, Tensor):
            self.register_buffer("start", start.clone(), persistent=False)
        else:
            self.start = start
        self._shown = f"inputs={sizes}, units={units}, hidden={tuple(hidden)}"
        width = sum(sizes)
        self.encoders = nn.ModuleList()
        if hidden and sizes:
            self.encoders.extend(nn.Linear(size, hidden[0]) for size in sizes)
            width = hidden[0] * len(sizes)
        self.join = nn.ModuleList()
        for size in hidden[1:] if sizes else ():
            self.join.append(nn.Linear(width, size))
            width = size
        self.weight = nn.Parameter(torch.zeros(units, width)) if width else None
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map inputs of shape [batch, size] to logits [batch, units] ([1, units] without any)."""
        present = [value for value in inputs if value.shape[-1]]
        if self.weight is None:
            return (DIRECT_GAIN * self.bias + self.start).unsqueeze(0)
        if len(self.encoders):
            encoded = [_linear(*pair) for pair in zip(self.encoders, present, strict=True)]
            if len(encoded) == 1:
                joined = _activate(encoded[0])
            else:
                joined = _activate(torch.stack(encoded, -2)).flatten(-2)
        else:
            joined = torch.cat(present, -1)
        for layer in self.join:
            joined = _activate(_linear(layer, joined))
        moved = isinstance(self.start, Tensor) or self.start != 0
        bias = self.bias + self.start if moved else self.bias
        return F.linear(joined, self.weight, bias)

    def __repr__(self) -> str:
        """One line: a model has many of these."""
        return f"{type(self).__name__}({self._shown})"


def _linear(layer: nn.Module, value: Tensor) -> Tensor:
    """What an ``nn.Linear`` gives, without the overhead of calling a module."""
    assert isinstance(layer, nn.Linear)
    return F.linear(value, layer.weight, layer.bias)


def _activate(value: Tensor) -> Tensor:
    """LeakyReLU and LayerNorm, whose scale and shift are left to the linear map that follows."""
    return torch.layer_norm(F.leaky_relu(value), value.shape[-1:])
