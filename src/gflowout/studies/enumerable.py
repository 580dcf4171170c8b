"""Networks so small that every mask can be enumerated, and posteriors over their masks.

Two sites of four units, one example, and a q(z) whose second site depends on the first. Negative
ELBO and evidence are exact sums over all 256 masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflowout.core import policy
from gflowout.methods.contextual import Bernoulli

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
    """An MLP with masks at both hidden layers, and a posterior of 16 equal modes.

    The seed is that of the MLP's weights and its example.
    """
    draws = torch.Generator().manual_seed(seed)
    sizes = [(4, UNITS), (UNITS, UNITS), (3, UNITS)]
    first, second, last = (1.5 * torch.randn(*size, generator=draws) for size in sizes)
    hidden = torch.tanh(first.T @ torch.randn(4, generator=draws))

    def mlp(masks: Tensor) -> Tensor:
        early, late = by_site(masks)
        output = (torch.tanh((early * hidden) @ second.T) * late) @ last.T
        return output.log_softmax(-1)[..., 0]

    def pairs(masks: Tensor) -> Tensor:
        """Each of four labels is explained by one unit of a pair, one at each site, as in XOR."""
        early, late = by_site(masks)
        output = torch.distributions.Normal(1.5 * (early + late), 0.5, validate_args=False)
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
        """Choose the masks of one site after the other, from a site and its logits."""
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
    masks = all_masks().unsqueeze(0)
    parts = by_site(masks.expand(len(posterior.first), -1, -1))
    walk = posterior.walk(lambda site, _: parts[site], masks.shape[1])
    log_q = total(walk.log_q())
    return (log_q.exp() * (log_q - problem.log_reward(masks))).sum(-1)


def log_evidence(problem: Problem) -> Tensor:
    """Exact log p(y | x) over all masks."""
    return problem.log_reward(all_masks()).logsumexp(-1)


def all_masks() -> Tensor:
    """Every mask of both sites, [256, 2 * UNITS]."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * (2 * UNITS))


def by_site(values: Tensor) -> list[Tensor]:
    """Cut [..., 2 * UNITS] into the two sites' parts."""
    return [values[..., :UNITS], values[..., UNITS:]]


def total(values: list[Tensor]) -> Tensor:
    """Sum over sites."""
    return torch.stack(values).sum(0)
