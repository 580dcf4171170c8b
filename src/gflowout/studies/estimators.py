"""How good is the gradient of a mask posterior? Bias, variance and cost of its estimators.

On networks with few units every mask can be enumerated, so the gradient of the negative ELBO for
the logits of q(z) is known exactly. Each estimator gets the same budget: masks run through the
network per step. Knows nothing of tables, plots and files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gflowout.core import objectives
from gflowout.methods.contextual import arm
from gflowout.studies.enumerable import (
    UNITS,
    Network,
    Posterior,
    Problem,
    Walk,
    by_site,
    log_evidence,
    negative_elbo,
    total,
)

BUDGET = 12
"""Masks that an estimator runs through the network in one step."""

CHUNK = 500
"""Steps computed at once."""

BASELINE = "REINFORCE, leave-one-out"
"""The estimator that variance and cost of the others are compared with."""

Estimator = Callable[[Problem, Posterior, Tensor], Tensor]
"""``estimator(problem, posterior, uniform) -> loss``, [steps], whose gradient is the estimate.

The uniform numbers are [steps, BUDGET, 2 * UNITS].
"""


def trajectory_balance(log_z: Tensor | None) -> Estimator:
    """Half of the on-policy loss, whose gradient is that of the reverse KL divergence.

    Args:
        log_z: The estimate of log Z; ``None`` for the mean over the step's masks, the log-variance
            form.
    """

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        walk = posterior.draw(uniform)
        log_q = total(walk.log_q()).T
        reward = _evaluate(problem.log_reward, walk.masks).T
        if log_z is None:
            estimate = objectives.batch_log_z(log_q, reward)
        else:
            estimate = log_z.expand_as(log_q)
        return 0.5 * objectives.trajectory_balance(log_q, reward, estimate).mean(0)

    return loss


def reinforce(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on log q - log R; the baseline is the mean of the step's other masks."""
    walk = posterior.draw(uniform)
    log_q = total(walk.log_q())
    cost = log_q.detach() - _evaluate(problem.log_reward, walk.masks)
    return ((cost - _others_mean(cost)) * log_q).mean(-1)


class RunningReinforce:
    """REINFORCE whose baseline is a running mean of the costs of earlier steps."""

    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self.mean: float | None = None

    def __call__(self, problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        """Take the steps one after the other."""
        walk = posterior.draw(uniform)
        log_q = total(walk.log_q())
        cost = log_q.detach() - _evaluate(problem.log_reward, walk.masks)
        baselines = []
        for mean in cost.mean(-1).tolist():
            earlier = 0.0 if self.mean is None else self.mean
            baselines.append(earlier)
            self.mean = (
                mean if self.mean is None else earlier + (1 - self.momentum) * (mean - earlier)
            )
        return ((cost - torch.tensor(baselines).unsqueeze(-1)) * log_q).mean(-1)


def reinforce_kl(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on the likelihood; the KL divergence of each site is differentiated as it is."""
    walk = posterior.draw(uniform)
    kl = walk.kl(problem.prior)
    costs = _costs(problem, walk, kl)
    terms = zip(costs, walk.log_q(), strict=True)
    scores = [(cost - _others_mean(cost)) * log_q for cost, log_q in terms]
    return (total(kl) + total(scores)).mean(-1)


def arm_two_passes(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """ARM as in the method "contextual": all sites flipped together, each pass its own logits."""
    return _arm_together(problem, posterior, uniform, own_logits=True)


def arm_first_logits(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """ARM with the logits of the first pass only: as if they did not depend on earlier masks."""
    return _arm_together(problem, posterior, uniform, own_logits=False)


def arm_rollouts(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """ARM with one more pass per site: flip that site alone, draw the later ones anew."""
    uniform = uniform[:, : BUDGET // 3]
    true = posterior.draw(uniform)
    kl = true.kl(problem.prior)
    costs = _costs(problem, true, kl)
    loss = total(kl)
    for site, cost in enumerate(costs):
        own = slice(site * UNITS, (site + 1) * UNITS)
        flipped = uniform.clone()
        flipped[..., own] = 1 - uniform[..., own]
        pseudo = posterior.draw(flipped)
        pseudo_cost = _costs(problem, pseudo, pseudo.kl(problem.prior))[site]
        logits = true.logits[site]
        loss = loss + arm(uniform[..., own], logits, logits, cost, pseudo_cost)
    return loss.mean(-1)


def relaxed(temperature: float) -> Estimator:
    """Concrete masks between 0 and 1, differentiated through the network.

    Args:
        temperature: Of the relaxation.
    """

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        parts = by_site(torch.logit(uniform, eps=1e-6))

        def soft(site: int, logits: Tensor) -> Tensor:
            return torch.sigmoid((logits + parts[site]) / temperature)

        walk = posterior.walk(soft, uniform.shape[1])
        return (total(walk.kl(problem.prior)) - problem.log_likelihood(walk.masks)).mean(-1)

    return loss


def estimators(problem: Problem, posterior: Posterior) -> dict[str, Estimator]:
    """All that are compared, by the name in the tables.

    Args:
        problem: Network and prior, for the estimates of log Z.
        posterior: For one step.
    """
    # Where learning log Z on-policy ends: the mean of log R - log q.
    learned = -negative_elbo(problem, posterior)[0]
    return {
        BASELINE: reinforce,
        "REINFORCE, running mean": RunningReinforce(),
        "REINFORCE, leave-one-out, exact KL": reinforce_kl,
        "TB, exact log Z": trajectory_balance(log_evidence(problem)),
        "TB, learned log Z": trajectory_balance(learned),
        "TB, batch log Z": trajectory_balance(None),
        "ARM, two passes": arm_two_passes,
        "ARM, two passes, first logits": arm_first_logits,
        "ARM, a pass per site": arm_rollouts,
        "relaxed, temperature 0.1": relaxed(0.1),
        "relaxed, temperature 0.5": relaxed(0.5),
    }


@dataclass(frozen=True)
class Quality:
    """What many steps say of an estimator.

    Attributes:
        bias: Length of the mean error over that of the exact gradient, sampling noise taken off.
        bias_low: Lower end of its 95 % bootstrap interval.
        bias_high: Upper end.
        max_z: Largest distance of a parameter's mean from the truth, in standard errors.
        length: Projection of the mean on the exact gradient, over its length; 1 if unbiased.
        variance: Of one step, averaged over parameters.
    """

    bias: float
    bias_low: float
    bias_high: float
    max_z: float
    length: float
    variance: float


def gradients(
    estimator: Estimator, problem: Problem, posterior: Posterior, steps: int, seed: int
) -> Tensor:
    """Gradients of independent steps, [steps, parameters].

    Args:
        estimator: To be tried.
        problem: Network and prior.
        posterior: For one step.
        steps: How many.
        seed: Of the random numbers.
    """
    draws = torch.Generator().manual_seed(seed)
    rows = []
    for start in range(0, steps, CHUNK):
        count = min(CHUNK, steps - start)
        copies = posterior.repeat(count)
        uniform = torch.rand(count, BUDGET, 2 * UNITS, generator=draws)
        rows.append(copies.gradient(estimator(problem, copies, uniform)))
    return torch.cat(rows)


def quality(rows: Tensor, exact: Tensor, resamples: int = 1000) -> Quality:
    """Compare gradients of many steps with the exact one.

    Args:
        rows: [steps, parameters].
        exact: [parameters].
        resamples: Of the bootstrap.
    """
    errors = (rows - exact).double()
    steps, size = len(errors), exact.double().norm()
    variances = errors.var(0)
    noise = variances.sum() / steps  # what chance alone adds to the squared length of the mean
    mean = errors.mean(0)
    # Resampling means of blocks is as good as resampling steps, and much less work.
    blocks = torch.stack([block.mean(0) for block in errors.chunk(min(200, steps))])
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(blocks), (resamples, len(blocks)), generator=draws)
    squares = blocks[chosen].mean(1).square().sum(-1) - 2 * noise
    low, high = squares.quantile(torch.tensor([0.025, 0.975]).double()).clamp(min=0).sqrt() / size
    floor = 1e-6 * exact.abs().max()
    return Quality(
        bias=((mean.square().sum() - noise).clamp(min=0).sqrt() / size).item(),
        bias_low=low.item(),
        bias_high=high.item(),
        max_z=(mean.abs() / (variances / steps).sqrt().clamp(min=floor.item())).max().item(),
        length=(1 + mean @ exact.double() / size.square()).item(),
        variance=variances.mean().item(),
    )


def costs(problem: Problem, posterior: Posterior, rounds: int, steps: int = 64) -> dict[str, float]:
    """Time of a step relative to :data:`BASELINE`, every round measuring all side by side.

    Args:
        problem: Network and prior.
        posterior: For one step.
        rounds: The median over these is returned.
        steps: Taken at once, as a batch of that many examples would.
    """
    draws = torch.Generator().manual_seed(0)
    uniform = torch.rand(steps, BUDGET, 2 * UNITS, generator=draws)
    compared = estimators(problem, posterior)
    times: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(rounds + 1):
        for name, estimator in compared.items():
            copies = posterior.repeat(steps)
            begun = time.perf_counter()
            copies.gradient(estimator(problem, copies, uniform))
            if turn:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
    ratios = {
        name: [own / other for own, other in zip(values, times[BASELINE], strict=True)]
        for name, values in times.items()
    }
    return {name: median(values) for name, values in ratios.items()}


def _evaluate(network: Network, masks: Tensor) -> Tensor:
    with torch.no_grad():
        return network(masks)


def _costs(problem: Problem, walk: Walk, kl: list[Tensor]) -> list[Tensor]:
    """What each site's mask brings about: the NLL, and the KL divergence of the later site."""
    nll = -_evaluate(problem.log_likelihood, walk.masks)
    return [nll + kl[1].detach(), nll]


def _arm_together(
    problem: Problem, posterior: Posterior, uniform: Tensor, own_logits: bool
) -> Tensor:
    uniform = uniform[:, : BUDGET // 2]
    true, pseudo = posterior.draw(uniform), posterior.draw(1 - uniform)
    kl = true.kl(problem.prior)
    loss = total(kl)
    sites = zip(
        by_site(uniform),
        true.logits,
        pseudo.logits if own_logits else true.logits,
        _costs(problem, true, kl),
        _costs(problem, pseudo, pseudo.kl(problem.prior)),
        strict=True,
    )
    for site in sites:
        loss = loss + arm(*site)
    return loss.mean(-1)


def _others_mean(values: Tensor) -> Tensor:
    return (values.sum(-1, keepdim=True) - values) / (values.shape[-1] - 1)
