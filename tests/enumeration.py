"""Exact answers on networks with few units: every mask is enumerated.

Nothing here uses the library's own log-probabilities or objectives; generators are read through
hooks and their logits turned into probabilities by ``torch.distributions``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo

STARTS, SWEEPS = 4, 30


def all_masks(units: int) -> Tensor:
    """Every mask, [2**units, units]."""
    return (torch.arange(2**units)[:, None] >> torch.arange(units - 1, -1, -1) & 1).float()


def split(masks: Tensor, model: gfo.MaskedModel) -> list[Tensor]:
    return list(masks.split([site.units for site in model.sites], -1))


@torch.no_grad()
def log_likelihoods(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> Tensor:
    """log p(y | x, z) for every example and mask, [batch, masks]."""
    masks = all_masks(sum(site.units for site in model.sites))
    rows = []
    for one, label in zip(x, y, strict=True):
        inputs = one.expand(len(masks), *one.shape)
        output = model(inputs, masks=split(masks, model))
        target = model.likelihood.target(label.expand(len(masks), *label.shape))
        rows.append(model.likelihood.log_prob(output, target))
    return torch.stack(rows)


def log_fixed_prior(masks: Tensor, keep: float) -> Tensor:
    return torch.distributions.Bernoulli(probs=keep).log_prob(masks).sum(-1)


def generator_log_prob(
    model: gfo.MaskedModel, generators: nn.ModuleList, x: Tensor, y: Tensor
) -> Tensor:
    """Log-probability of every mask under a stack of generators, [batch, masks]."""
    masks = all_masks(sum(site.units for site in model.sites))
    rows = []
    for one, label in zip(x, y, strict=True):
        scores = [
            torch.distributions.Bernoulli(logits=logit).log_prob(mask).sum(-1)
            for logit, mask in zip(
                generator_logits(model, generators, one, label, masks),
                split(masks, model),
                strict=False,
            )
        ]
        rows.append(sum(scores))
    return torch.stack(rows)


@torch.no_grad()
def generator_logits(
    model: gfo.MaskedModel, generators: nn.ModuleList, one: Tensor, label: Tensor, masks: Tensor
) -> list[Tensor]:
    """Logits of a stack of generators for one example under every given mask, [masks, units]."""
    logits: list[Tensor] = []
    handles = [
        generator.register_forward_hook(lambda _, args, out: logits.append(out[1]))
        for generator in generators
    ]
    count = len(masks)
    model(
        one.expand(count, *one.shape),
        y=label.expand(count, *label.shape),
        masks=[mask.expand(2, -1, -1) for mask in split(masks, model)],  # log Z may need two
    )
    for handle in handles:
        handle.remove()
    return logits


def best_factorised(
    log_target: Tensor, units: list[int], starts: int = STARTS, sweeps: int = SWEEPS
) -> Tensor:
    """Closest distribution with independent units inside each site, given all earlier sites.

    Closest in reverse KL divergence, which on-policy trajectory balance descends. What the last
    site can reach is found for every combination of earlier masks; that is the target of the site
    before it.

    Args:
        log_target: Normalised, [batch, masks].
        units: Per site.
        starts: From which the best is looked for.
        sweeps: Over all units of a site.

    Returns:
        Log-probabilities, [batch, masks].
    """
    value, sites = log_target, []
    for count in reversed(units):
        log_q, value = _mean_field(value.reshape(-1, 2**count), count, starts, sweeps)
        sites.append(log_q)
    best = torch.zeros(len(log_target), 1)
    for log_q in reversed(sites):
        best = (best.reshape(-1, 1) + log_q).reshape(len(log_target), -1)
    return best


def _mean_field(value: Tensor, units: int, starts: int, sweeps: int) -> tuple[Tensor, Tensor]:
    """Independent units that maximise E_q[value - log q], by coordinate ascent from several starts.

    Args:
        value: [rows, masks]; every row is a problem of its own.
        units: Of a mask.
        starts: The first is that of equal probabilities, others are random.
        sweeps: Over all units.

    Returns:
        log q, [rows, masks], and the maximum, [rows].
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(starts, len(value), units, generator=generator)
    logits[0] = 0
    for _ in range(sweeps):
        _sweep(value.expand(starts, -1, -1), logits)
    log_q = _log_prob(logits)
    maximum, start = (log_q.exp() * (value - log_q)).sum(-1).max(0)
    return log_q[start, torch.arange(len(value))], maximum


def _log_prob(logits: Tensor) -> Tensor:
    """Of every mask of independent units."""
    masks = all_masks(logits.shape[-1])
    return logits @ masks.T - F.softplus(logits).sum(-1, keepdim=True)


def _sweep(value: Tensor, logits: Tensor) -> None:
    """Set every logit to the best one given the others, in order.

    The best logit is the mean difference that the unit makes, over the other units. Means over one
    half of the units serve all units of the other half.
    """
    units = logits.shape[-1]
    if units == 1:
        logits[..., 0] = value[..., 1] - value[..., 0]
        return
    left, right = logits[..., : units // 2], logits[..., units // 2 :]
    table = value.unflatten(-1, (2 ** (units // 2), -1))
    _sweep((table @ _log_prob(right).exp().unsqueeze(-1)).squeeze(-1), left)
    _sweep((_log_prob(left).exp().unsqueeze(-2) @ table).squeeze(-2), right)


def total_variation(log_a: Tensor, log_b: Tensor) -> Tensor:
    return 0.5 * (log_a.exp() - log_b.exp()).abs().sum(-1)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(-1)
