"""Exact answers on networks with few units: every mask is enumerated.

Nothing here uses the library's own log-probabilities or objectives; generators are read through
hooks and their logits turned into probabilities by ``torch.distributions``.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

import gflowout as gfo

STARTS = 4


def all_masks(units: int) -> Tensor:
    """Every mask, [2**units, units]."""
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)))


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


@torch.no_grad()
def generator_log_prob(
    model: gfo.MaskedModel, generators: nn.ModuleList, x: Tensor, y: Tensor
) -> Tensor:
    """Log-probability of every mask under a stack of generators, [batch, masks]."""
    masks = all_masks(sum(site.units for site in model.sites))
    logits: list[Tensor] = []
    handles = [
        generator.register_forward_hook(lambda _, args, out: logits.append(out[1]))
        for generator in generators
    ]
    rows = []
    for one, label in zip(x, y, strict=True):
        logits.clear()
        count = len(masks)
        model(
            one.expand(count, *one.shape),
            y=label.expand(count, *label.shape),
            masks=[mask.expand(2, -1, -1) for mask in split(masks, model)],  # log Z may need two
        )
        scores = [
            torch.distributions.Bernoulli(logits=logit).log_prob(mask).sum(-1)
            for logit, mask in zip(logits, split(masks, model), strict=False)
        ]
        rows.append(sum(scores))
    for handle in handles:
        handle.remove()
    return torch.stack(rows)


def best_factorised(log_target: Tensor, units: list[int], steps: int = 1500) -> Tensor:
    """Closest distribution with independent units inside each site, given all earlier sites.

    A free table of logits for every combination of earlier masks, fitted to the enumerated target
    by its exact reverse KL divergence, the divergence that on-policy trajectory balance descends.
    Several starts; the best is returned.

    Args:
        log_target: Normalised, [batch, masks].
        units: Per site.

    Returns:
        Log-probabilities, [batch, masks].
    """
    masks = all_masks(sum(units))
    earlier = [0, *itertools.accumulate(units)]
    # row of each site's table that a full mask uses: the number its earlier bits spell
    weights = [2.0 ** torch.arange(count - 1, -1, -1) for count in earlier[:-1]]
    rows = [
        (masks[:, :count] @ weight).long() if count else torch.zeros(len(masks)).long()
        for count, weight in zip(earlier, weights, strict=False)
    ]
    batch = len(log_target)
    starts = []
    for start in range(STARTS):
        generator = torch.Generator().manual_seed(start)
        starts.append(
            [
                (start > 0) * torch.randn(batch, 2**count, unit, generator=generator)
                for count, unit in zip(earlier, units, strict=False)
            ]
        )
    tables = [torch.cat(begun).requires_grad_() for begun in zip(*starts, strict=True)]
    targets = log_target.repeat(STARTS, 1)  # all starts at once: no example knows of another
    optimiser = torch.optim.Adam(tables, lr=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        log_q = torch.zeros(())
        for table, row, count, unit in zip(tables, rows, earlier, units, strict=False):
            mask = masks[:, count : count + unit]
            keeps = torch.distributions.Bernoulli(logits=table[:, row], validate_args=False)
            log_q = log_q + keeps.log_prob(mask).sum(-1)
        kl = (log_q.exp() * (log_q - targets)).sum(-1)
        optimiser.zero_grad()
        kl.sum().backward()
        optimiser.step()
        schedule.step()
    best = kl.detach().reshape(STARTS, batch).argmin(0)
    return log_q.detach().reshape(STARTS, batch, -1)[best, torch.arange(batch)]


def total_variation(log_a: Tensor, log_b: Tensor) -> Tensor:
    return 0.5 * (log_a.exp() - log_b.exp()).abs().sum(-1)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(-1)
