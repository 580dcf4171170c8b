"""Networks whose masks can be enumerated, posteriors over these, and estimators of their gradient.

Two sites of four units, one example, and a q(z) whose second site depends on the first. Negative
ELBO and evidence are exact sums over all 256 masks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gflowout.core import objectives, policy
from gflowout.methods.contextual import Bernoulli, arm

UNITS = 4
"""Units of each of the two sites."""
MASKS = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * (2 * UNITS))
"""Every mask of both sites, [256, 2 * UNITS]."""
BUDGET = 12
"""Masks that an estimator runs through the network in one step."""
BASELINE = "REINFORCE, leave-one-out"
"""The estimator that variance and cost of the others are compared with."""


class Problem(NamedTuple):
    """One example, a frozen network and the log-odds of the prior's keep rate.

    ``log_likelihood`` maps masks [..., 2 * UNITS], also soft ones, to log p(y | x, z), [...].
    """

    name: str
    log_likelihood: Callable[[Tensor], Tensor]
    prior: Tensor

    def log_reward(self, masks: Tensor) -> Tensor:
        """Log of the unnormalised posterior of masks, [...]."""
        return self.log_likelihood(masks) + policy.log_prob(masks, self.prior)


def problems(seed: int = 0) -> list[Problem]:
    """An MLP with masks at both hidden layers, and a posterior of 16 equal modes.

    The seed is that of the MLP's weights and its example.
    """
    draws = torch.Generator().manual_seed(seed)
    sizes = [(4, UNITS), (UNITS, UNITS), (3, UNITS)]
    first, second, last = (1.5 * torch.randn(*size, generator=draws) for size in sizes)
    hidden = torch.tanh(first.T @ torch.randn(4, generator=draws))

    def mlp(masks: Tensor) -> Tensor:
        early, late = _by_site(masks)
        output = (torch.tanh((early * hidden) @ second.T) * late) @ last.T
        return output.log_softmax(-1)[..., 0]

    def pairs(masks: Tensor) -> Tensor:
        """Each of four labels is explained by one unit of a pair, one at each site, as in XOR."""
        early, late = _by_site(masks)
        output = torch.distributions.Normal(1.5 * (early + late), 0.5, validate_args=False)
        log_prob: Tensor = output.log_prob(torch.tensor(1.5))  # type: ignore[no-untyped-call]
        return log_prob.sum(-1)

    return [
        Problem("MLP", mlp, torch.tensor(policy.logit(0.7))),
        Problem("pairs", pairs, torch.tensor(0.0)),
    ]


class Walk(NamedTuple):
    """Masks [steps, masks, 2 * UNITS] and the logits of each site that they were drawn from."""

    masks: Tensor
    logits: tuple[Tensor, Tensor]

    def log_q(self) -> Tensor:
        """Log-probability of each site's mask, [sites, steps, masks]."""
        sites = zip(_by_site(self.masks), self.logits, strict=True)
        return torch.stack([policy.log_prob(mask, logits) for mask, logits in sites])

    def kl(self, prior: Tensor) -> Tensor:
        """KL divergence of each site from the prior given earlier masks, [sites, steps, masks]."""
        return torch.stack([Bernoulli.kl(logits, prior) for logits in self.logits])


class Posterior(NamedTuple):
    """q(z): logits of the first site, and of the second as a linear map of the first mask.

    The logits are [steps, UNITS], the link is [steps, UNITS, UNITS].
    """

    first: Tensor
    second: Tensor
    link: Tensor

    @staticmethod
    def random(seed: int = 0) -> Posterior:
        """A posterior away from the prior, for one step."""
        draws = torch.Generator().manual_seed(seed)
        sizes = [(1, UNITS), (1, UNITS), (1, UNITS, UNITS)]
        return Posterior(*(torch.randn(*size, generator=draws) for size in sizes))

    def repeat(self, steps: int) -> Posterior:
        """Copies, one per step, so that every step has a gradient of its own."""
        copies = (value.detach().expand(steps, *value.shape[1:]).clone() for value in self)
        return Posterior(*(value.requires_grad_() for value in copies))

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of the summed loss, [steps, parameters]."""
        parts = torch.autograd.grad(loss.sum(), tuple(self))
        return torch.cat([part.flatten(1) for part in parts], -1)

    def walk(self, choose: Callable[[int, Tensor], Tensor], masks: int) -> Walk:
        """Choose the masks of one site after the other, from a site and its logits."""
        first = self.first.unsqueeze(1).expand(-1, masks, -1)
        early = choose(0, first)
        second = self.second.unsqueeze(1) + (2 * early - 1) @ self.link
        return Walk(torch.cat([early, choose(1, second)], -1), (first, second))

    def draw(self, uniform: Tensor) -> Walk:
        """Draw hard masks, without gradient, from uniform numbers, [steps, masks, 2 * UNITS]."""
        parts = _by_site(uniform)
        return self.walk(lambda site, logits: policy.draw(logits, parts[site]), uniform.shape[1])


def negative_elbo(problem: Problem, posterior: Posterior) -> Tensor:
    """Exact expectation over all masks, [steps]."""
    masks = MASKS.unsqueeze(0)
    parts = _by_site(masks.expand(len(posterior.first), -1, -1))
    log_q = posterior.walk(lambda site, _: parts[site], masks.shape[1]).log_q().sum(0)
    return (log_q.exp() * (log_q - problem.log_reward(masks))).sum(-1)


def log_evidence(problem: Problem) -> Tensor:
    """Exact log p(y | x) over all masks."""
    return problem.log_reward(MASKS).logsumexp(-1)


def _by_site(values: Tensor) -> tuple[Tensor, Tensor]:
    """Cut [..., 2 * UNITS] into the two sites' parts."""
    return values[..., :UNITS], values[..., UNITS:]


# Estimators of the gradient

Estimator = Callable[[Problem, Posterior, Tensor], Tensor]
"""``estimator(problem, posterior, uniform) -> loss``, [steps], whose gradient is the estimate.

The uniform numbers are [steps, BUDGET, 2 * UNITS].
"""


def trajectory_balance(
    problem: Problem, posterior: Posterior, uniform: Tensor, log_z: Tensor | None
) -> Tensor:
    """Half of the on-policy loss, whose gradient is that of the reverse KL divergence.

    Without an estimate of log Z it is the mean over the step's masks, the log-variance form.
    """
    walk = posterior.draw(uniform)
    log_q, reward = walk.log_q().sum(0).T, problem.log_reward(walk.masks).T
    if log_z is None:
        log_z = objectives.batch_log_z(log_q, reward)
    return 0.5 * objectives.trajectory_balance(log_q, reward, log_z.expand_as(log_q)).mean(0)


def reinforce(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on log q - log R; the baseline is the mean of the step's other masks."""
    log_q, cost = _log_q_and_cost(problem, posterior, uniform)
    return ((cost - _others_mean(cost)) * log_q).mean(-1)


class RunningReinforce:
    """REINFORCE whose baseline is a running mean of the costs of earlier steps."""

    momentum = 0.9

    def __init__(self) -> None:
        self.mean: float | None = None

    def __call__(self, problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        """Take the steps one after the other."""
        log_q, cost = _log_q_and_cost(problem, posterior, uniform)
        baselines = []
        for mean in cost.mean(-1).tolist():
            earlier = 0.0 if self.mean is None else self.mean
            baselines.append(earlier)
            share = 1 if self.mean is None else 1 - self.momentum
            self.mean = earlier + share * (mean - earlier)
        return ((cost - torch.tensor(baselines).unsqueeze(-1)) * log_q).mean(-1)


def reinforce_kl(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """REINFORCE on the likelihood; the KL divergence of each site is differentiated as it is."""
    walk = posterior.draw(uniform)
    kl = walk.kl(problem.prior)
    costs = _costs(problem, walk, kl)
    scores = (costs - _others_mean(costs)) * walk.log_q()
    return (kl.sum(0) + scores.sum(0)).mean(-1)


def arm_two_passes(
    problem: Problem, posterior: Posterior, uniform: Tensor, own_logits: bool
) -> Tensor:
    """ARM as in the method "contextual": all sites are flipped together.

    The second pass has its own logits, or those of the first, as if they did not depend on earlier
    masks.
    """
    uniform = uniform[:, : BUDGET // 2]
    true, pseudo = posterior.draw(uniform), posterior.draw(1 - uniform)
    kl = true.kl(problem.prior)
    sites = zip(
        _by_site(uniform),
        true.logits,
        pseudo.logits if own_logits else true.logits,
        _costs(problem, true, kl),
        _costs(problem, pseudo, pseudo.kl(problem.prior)),
        strict=True,
    )
    return (kl.sum(0) + sum(arm(*site) for site in sites)).mean(-1)


def arm_rollouts(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
    """ARM with one more pass per site: flip that site alone, draw the later ones anew."""
    uniform = uniform[:, : BUDGET // 3]
    true = posterior.draw(uniform)
    kl = true.kl(problem.prior)
    loss = kl.sum(0)
    for site, cost in enumerate(_costs(problem, true, kl)):
        own = slice(site * UNITS, (site + 1) * UNITS)
        flipped = uniform.clone()
        flipped[..., own] = 1 - uniform[..., own]
        pseudo = posterior.draw(flipped)
        pseudo_cost = _costs(problem, pseudo, pseudo.kl(problem.prior))[site]
        logits = true.logits[site]
        loss = loss + arm(uniform[..., own], logits, logits, cost, pseudo_cost)
    return loss.mean(-1)


def relaxed(problem: Problem, posterior: Posterior, uniform: Tensor, temperature: float) -> Tensor:
    """Concrete masks between 0 and 1, differentiated through the network."""
    parts = _by_site(torch.logit(uniform, eps=1e-6))

    def soft(site: int, logits: Tensor) -> Tensor:
        return torch.sigmoid((logits + parts[site]) / temperature)

    walk = posterior.walk(soft, uniform.shape[1])
    return (walk.kl(problem.prior).sum(0) - problem.log_likelihood(walk.masks)).mean(-1)


def estimators(problem: Problem, posterior: Posterior) -> dict[str, Estimator]:
    """All that are compared, by the name in the tables.

    Estimates of log Z come from the problem and the posterior, which is for one step.
    """
    # Where learning log Z on-policy ends: the mean of log R - log q.
    learned = -negative_elbo(problem, posterior)[0]
    return {
        BASELINE: reinforce,
        "REINFORCE, running mean": RunningReinforce(),
        "REINFORCE, leave-one-out, exact KL": reinforce_kl,
        "TB, exact log Z": partial(trajectory_balance, log_z=log_evidence(problem)),
        "TB, learned log Z": partial(trajectory_balance, log_z=learned),
        "TB, batch log Z": partial(trajectory_balance, log_z=None),
        "ARM, two passes": partial(arm_two_passes, own_logits=True),
        "ARM, two passes, first logits": partial(arm_two_passes, own_logits=False),
        "ARM, a pass per site": arm_rollouts,
        "relaxed, temperature 0.1": partial(relaxed, temperature=0.1),
        "relaxed, temperature 0.5": partial(relaxed, temperature=0.5),
    }


def _costs(problem: Problem, walk: Walk, kl: Tensor) -> Tensor:
    """The cost that each site's mask affects: the NLL, and the KL divergence of the later site."""
    nll = -problem.log_likelihood(walk.masks)
    return torch.stack([nll + kl[1].detach(), nll])


def _log_q_and_cost(
    problem: Problem, posterior: Posterior, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of drawn masks and its difference to their log-reward, [steps, masks]."""
    walk = posterior.draw(uniform)
    log_q = walk.log_q().sum(0)
    return log_q, log_q.detach() - problem.log_reward(walk.masks)


def _others_mean(values: Tensor) -> Tensor:
    return (values.sum(-1, keepdim=True) - values) / (values.shape[-1] - 1)
