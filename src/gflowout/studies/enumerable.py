"""Networks so small that every mask can be enumerated, and estimators of a posterior's gradient.

Two sites of four units, one example, and a q(z) whose second site depends on the first. Negative
ELBO and evidence are exact sums over all 256 masks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflowout.core import objectives, policy
from gflowout.methods.contextual import Bernoulli, arm

UNITS = 4
"""Units of each of the two sites."""

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """One example, a frozen network and a prior.

    Attributes:
        name: Of the network.
        log_likelihood: Maps masks [..., 2 * UNITS], also soft ones, to log p(y | x, z), [...].
        prior: Log-odds of the prior's keep rate.
    """

    name: str
    log_likelihood: Network
    prior: Tensor

    def log_reward(self, masks: Tensor) -> Tensor:
        """Log of the unnormalised posterior of masks, [...]."""
        return self.log_likelihood(masks) + policy.log_prob(masks, self.prior)


def problems(seed: int = 0) -> list[Problem]:
    """Return an MLP with masks at both hidden layers, and a posterior of 16 equal modes."""
    draws = torch.Generator().manual_seed(seed)
    sizes = [(4, UNITS), (UNITS, UNITS), (3, UNITS)]
    first, second, last = (1.5 * torch.randn(*size, generator=draws) for size in sizes)
    hidden = torch.tanh(first.T @ torch.randn(4, generator=draws))

    def mlp(masks: Tensor) -> Tensor:
        one, other = by_site(masks)
        output = (torch.tanh((one * hidden) @ second.T) * other) @ last.T
        return output.log_softmax(-1)[..., 0]

    def pairs(masks: Tensor) -> Tensor:
        """Each of four labels wants one unit of a pair, one unit at each site: as in XOR."""
        one, other = by_site(masks)
        output = torch.distributions.Normal(1.5 * (one + other), 0.5, validate_args=False)
        log_prob: Tensor = output.log_prob(torch.tensor(1.5))  # type: ignore[no-untyped-call]
        return log_prob.sum(-1)

    return [
        Problem("MLP", mlp, torch.tensor(policy.logit(0.7))),
        Problem("pairs", pairs, torch.tensor(0.0)),
    ]


@dataclass(frozen=True)
class Posterior:
    """q(z): logits of the first site, and of the second as a linear map of the first mask.

    Attributes:
        first: [steps, UNITS].
        second: [steps, UNITS].
        link: [steps, UNITS, UNITS].
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
        return Posterior(
            *(
                value.detach().expand(steps, *value.shape[1:]).clone().requires_grad_()
                for value in (self.first, self.second, self.link)
            )
        )

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of the summed loss, [steps, parameters]."""
        parts = torch.autograd.grad(loss.sum(), (self.first, self.second, self.link))
        return torch.cat([part.flatten(1) for part in parts], -1)

    def logits(self, site: int, earlier: Tensor) -> Tensor:
        """Log-odds of a site's units given earlier masks [steps, masks, units so far]."""
        if site == 0:
            return self.first.unsqueeze(1).expand(-1, earlier.shape[1], -1)
        return self.second.unsqueeze(1) + (2 * earlier - 1) @ self.link

    def walk(self, choose: Callable[[int, Tensor], Tensor], masks: int) -> Walk:
        """Go through the sites, for some masks per step chosen from a site and its logits."""
        seen = self.first.new_zeros(len(self.first), masks, 0)
        logits: list[Tensor] = []
        for site in range(2):
            logits.append(self.logits(site, seen))
            seen = torch.cat([seen, choose(site, logits[site])], -1)
        return Walk(seen, logits)

    def draw(self, uniform: Tensor) -> Walk:
        """Draw hard masks from uniform numbers, [steps, masks, 2 * UNITS]."""
        parts = by_site(uniform)
        return self.walk(lambda site, logits: policy.draw(logits, parts[site]), uniform.shape[1])


@dataclass(frozen=True)
class Walk:
    """Masks [steps, masks, 2 * UNITS] and the logits of each site that they were drawn from."""

    masks: Tensor
    logits: list[Tensor]

    def log_q(self) -> list[Tensor]:
        """Log-probability of each site's mask, [steps, masks] per site."""
        parts = by_site(self.masks)
        pairs = zip(parts, self.logits, strict=True)
        return [policy.log_prob(mask, logits) for mask, logits in pairs]

    def kl(self, prior: Tensor) -> list[Tensor]:
        """KL divergence of each site from the prior given earlier masks, [steps, masks] each."""
        return [Bernoulli.kl(logits, prior) for logits in self.logits]


def negative_elbo(problem: Problem, posterior: Posterior) -> Tensor:
    """Exact expectation over all masks, [steps]."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=2 * UNITS))).unsqueeze(0)
    parts = by_site(masks.expand(len(posterior.first), -1, -1))
    walk = posterior.walk(lambda site, _: parts[site], masks.shape[1])
    log_q = total(walk.log_q())
    return (log_q.exp() * (log_q - problem.log_reward(masks))).sum(-1)


def log_evidence(problem: Problem) -> Tensor:
    """Exact log p(y | x) over all masks."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=2 * UNITS)))
    return problem.log_reward(masks).logsumexp(-1)


def by_site(values: Tensor) -> list[Tensor]:
    """Cut [..., 2 * UNITS] into the two sites' parts."""
    return [values[..., :UNITS], values[..., UNITS:]]


def total(values: list[Tensor]) -> Tensor:
    """Sum over sites."""
    return torch.stack(values).sum(0)


# Estimators of the gradient

BUDGET = 12
"""Masks that an estimator runs through the network in one step."""

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
    """Concrete masks between 0 and 1, differentiated through the network."""

    def loss(problem: Problem, posterior: Posterior, uniform: Tensor) -> Tensor:
        parts = by_site(torch.logit(uniform, eps=1e-6))

        def soft(site: int, logits: Tensor) -> Tensor:
            return torch.sigmoid((logits + parts[site]) / temperature)

        walk = posterior.walk(soft, uniform.shape[1])
        return (total(walk.kl(problem.prior)) - problem.log_likelihood(walk.masks)).mean(-1)

    return loss


def estimators(problem: Problem, posterior: Posterior) -> dict[str, Estimator]:
    """All that are compared, by the name in the tables; the problem is for estimates of log Z."""
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
