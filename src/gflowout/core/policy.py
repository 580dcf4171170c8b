"""Mask distributions and the small networks that parametrise them.

A site's mask is a vector of Bernoulli units, independent given the generator's inputs and the
blocks before; dependence between sites comes from conditioning on earlier masks. Everything is kept
as logits, so that log-probabilities come from log-sigmoid and never from the log of a clamped
probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflowout.core.noise import Noise
from gflowout.core.trajectory import Trajectory

Choose = Callable[[Tensor, slice], Tensor]
"""``choose(logits of a block, its units) -> mask of the block``, drawn or given."""

SUMMARY = 64
"""Size of a :class:`MaskHistory`."""

DIRECT_GAIN = 10.0
"""Logits per unit of a parameter where a generator has no inputs.

Adam moves every parameter by about its learning rate. A network moves its logits through many
parameters at once, a plain logit through one: the gain lets one learning rate serve both.
"""


def logit(probability: float) -> float:
    """Log-odds of a probability.

    Examples:
        >>> logit(0.5)
        0.0
    """
    return math.log(probability) - math.log1p(-probability)


def log_prob(mask: Tensor, logits: Tensor) -> Tensor:
    r"""Log-probability of masks under independent Bernoulli units.

    .. math:: \log q(z) = \sum_j z_j \log \pi_j + (1 - z_j) \log (1 - \pi_j),
              \qquad \pi = \mathrm{sigmoid}(\text{logits})

    ``mask`` is [..., units] and 1 where a unit is kept; ``logits``, the log-odds of keeping a unit,
    broadcast to it. The result is [...].

    Examples:
        >>> log_prob(torch.tensor([1.0, 0.0]), torch.zeros(2)).exp()
        tensor(0.2500)
    """
    # log sigmoid(a) = a - softplus(a), log(1 - sigmoid(a)) = -softplus(a)
    spread = logits.expand_as(mask)
    kept: Tensor = torch.linalg.vecdot(spread, mask.to(logits.dtype))
    return kept - F.softplus(spread).sum(-1)


def log_prob_at_rate(mask: Tensor, logit: float | Tensor) -> Tensor:
    """Log-probability of masks whose units are all kept with the same log-odds, or each its own.

    Examples:
        >>> log_prob_at_rate(torch.tensor([1.0, 0.0]), 0.0).exp()
        tensor(0.2500)
    """
    if isinstance(logit, Tensor):
        return log_prob(mask, logit.to(mask.dtype))
    none = -mask.shape[-1] * (max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))
    if logit == 0:
        return mask.new_full(mask.shape[:-1], none)
    return mask.sum(-1) * logit + none


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Masks with log-odds ``logits`` from uniform random numbers of the masks' shape.

    Logits of fewer rows serve one copy of the batch after the other.

    Examples:
        >>> draw(torch.zeros(3), torch.tensor([0.1, 0.6, 0.4]))
        tensor([1., 0., 1.])
    """
    copies = uniform.reshape(-1, *logits.shape[:-1], uniform.shape[-1])
    kept = below(copies, torch.sigmoid(logits.detach()))
    return kept.reshape(uniform.shape).to(logits.dtype)


def below(uniform: Tensor, probability: Tensor | float) -> Tensor:
    """1 where ``uniform`` is below ``probability``, else 0, in the dtype of ``uniform``.

    Examples:
        >>> below(torch.tensor([0.1, 0.6]), 0.5)
        tensor([1., 0.])
    """
    # Ten times as fast on a CPU as comparing to bool and converting.
    return torch.lt(uniform, probability, out=torch.empty_like(uniform))


def bernoulli(noise: Noise, keep: float | Tensor, rows: int, units: int, like: Tensor) -> Tensor:
    """Draw masks, [copies * rows, units], whose units are kept at the rate ``keep``, or at its own.

    Without noise the result is the mean, the keep rate, [1, units].

    Examples:
        >>> from gflowout.core.noise import NoNoise
        >>> bernoulli(NoNoise(), 0.9, rows=5, units=2, like=torch.zeros(()))
        tensor([[0.9000, 0.9000]])
    """
    if noise.expected:
        return torch.as_tensor(keep, dtype=torch.float32, device=like.device).expand(1, units)
    return below(noise.uniform(rows, units, like), keep)


def explore(
    logits: Tensor, centre: float | Tensor, temperature: float, random: Tensor | None
) -> Tensor:
    """Logits of the training policy: tempered towards the prior, with random masks mixed in.

    ``centre`` is the log-odds of the prior's keep rate, common or per unit; rows where ``random``
    [batch] is true take the prior. At a keep rate of 0.5 this is the paper's policy; at any other,
    the uncentred form would drag masks back to 0.5.

    Examples:
        >>> explore(torch.tensor([[2.0]]), centre=0.0, temperature=2.0, random=None)
        tensor([[1.]])
    """
    if random is None:
        return logits if temperature == 1 else centre + (logits - centre) / temperature
    scale = (~random).to(logits.dtype).div_(temperature).unsqueeze(-1)
    return torch.addcmul(centre * (1 - scale), logits, scale)


def given(mask: Tensor) -> Choose:
    """Choose the units of a mask that exists already."""
    return lambda _, part: mask[..., part]


def drawing(noise: Noise, rows: int, units: int, like: Tensor) -> Choose:
    """Choose by drawing from the logits, ``rows`` masks per copy of the batch.

    Without noise the keep rates themselves are chosen, which later blocks and sites then see.
    """
    if noise.expected:
        places = range(units)
        return lambda logits, part: _keep_rates(logits, len(places[part]))
    uniform = noise.uniform(rows, units, like)
    return lambda logits, part: draw(logits, uniform[..., part])


def _keep_rates(logits: Tensor, units: int) -> Tensor:
    """Keep rates, [rows or 1, units], of log-odds that may be one number for all units."""
    keep = torch.sigmoid(logits.detach())
    return keep.expand(*(keep.shape[:-1] or (1,)), units)


def exploring(method: Any, site: int, trajectory: Trajectory, rows: int, like: Tensor) -> Choose:
    """Choose a site's mask in training: the given one, or a draw from the training policy.

    ``method`` has ``starts`` of keep rates and options ``temperature`` and ``epsilon``, the
    probability that one of the ``rows`` masks per copy of the batch is random; see :func:`explore`.
    """
    if trajectory.given is not None:
        return given(trajectory.given[site])
    options, centre, noise = method.options, method.starts.at(site), trajectory.noise
    random = None
    if options.epsilon:
        random = noise.uniform(rows, 1, like).squeeze(-1) < options.epsilon
    uniform = noise.uniform(rows, method.sites[site].units, like)

    def choose(logits: Tensor, part: slice) -> Tensor:
        around = centre[part] if isinstance(centre, Tensor) else centre
        tempered = explore(logits.detach(), around, options.temperature, random)
        return draw(tempered, uniform[..., part])

    return choose


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
        >>> mask, logits = two([], lambda logits, part: draw(logits, torch.rand(3, 2)))
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

    def forward(self, inputs: Sequence[Tensor], choose: Choose) -> tuple[Tensor, Tensor]:
        """Return the mask, and its logits given the blocks before, [rows, units] each."""
        masks: list[Tensor] = []
        logits: list[Tensor] = []
        for part, generator in zip(self.parts, self.blocks, strict=True):
            before = [torch.cat(masks, -1).to(logits[0].dtype)] if masks else []
            logits.append(generator(*inputs, *before))
            masks.append(choose(logits[-1], part))
        if len(masks) == 1:
            return masks[0], logits[0]
        rows = masks[0].shape[:-1]
        return torch.cat(masks, -1), torch.cat([part.expand(*rows, -1) for part in logits], -1)


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
            encoded = [encode(value) for encode, value in zip(self.encoders, present, strict=True)]
            joined = _activate(torch.stack(encoded, -2)).flatten(-2)
        else:
            joined = torch.cat(present, -1)
        for layer in self.join:
            joined = _activate(layer(joined))
        moved = isinstance(self.start, Tensor) or self.start != 0
        bias = self.bias + self.start if moved else self.bias
        return F.linear(joined, self.weight, bias)

    def __repr__(self) -> str:
        """One line: a model has many of these."""
        return f"{type(self).__name__}({self._shown})"


def _activate(value: Tensor) -> Tensor:
    """LeakyReLU and LayerNorm, whose scale and shift are left to the linear map that follows."""
    return F.layer_norm(F.leaky_relu(value), value.shape[-1:])
