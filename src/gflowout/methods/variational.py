r"""Variational dropout (Kingma, Salimans & Welling 2015): Gaussian noise of learned variance.

Every unit is multiplied by a factor :math:`\xi \sim N(1, \alpha)`, in training and in prediction;
dropout of rate p has the same mean and variance at :math:`\alpha = p / (1 - p)`. The loss is the
negative log-likelihood plus the KL divergence of the factors from the log-uniform prior over N
training examples. The prior is improper, so the divergence has no zero; it is measured from that of
:math:`\alpha = \infty` and approximated as by Molchanov et al. (2017), for any :math:`\alpha`:

.. math:: \mathrm{KL}(\alpha) \approx \tfrac12 \log(1 + 1 / \alpha)
          + k_1 \, \mathrm{sigmoid}(-k_2 - k_3 \log \alpha).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses
from gflowout.core.options import dropping
from gflowout.core.sites import Site
from gflowout.core.trajectory import Trajectory
from gflowout.methods._shared import SiteNumbers, check_sizes, keep_rate

LARGEST = 8.0
"""Bound of log alpha: a unit that nothing needs would drift upwards for ever."""


@dataclass(frozen=True, repr=False)
class VariationalDropoutOptions(Options):
    """Options of variational dropout.

    Attributes:
        alpha: Variance of the factors at the start. ``None``: p / (1 - p), p being the rate of the
            ``nn.Dropout`` that the site replaces, and 0.1 where there was none. ``keep`` sets it,
            too: (1 - keep) / keep.
        per_unit: Learn a variance per unit instead of one per site.
        kl_weight: Weight of the KL divergence; 1 is the ELBO. To anneal, let it grow during
            training: ``model.set_options(kl_weight=min(1.0, step / 1000))``.
        train_size: Number of training examples, N.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.Variational(keep=0.8)
        Variational(alpha=0.25)
    """

    alpha: float | None = None
    per_unit: bool = False
    kl_weight: float = 1.0
    train_size: int | None = None

    if TYPE_CHECKING:
        keep: float | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = "Variational"
    KEEP: ClassVar[bool] = True
    STRUCTURAL: ClassVar[frozenset[str]] = frozenset({"alpha", "per_unit"})

    def __post_init__(self) -> None:
        """Check the values."""
        if self.alpha is not None:
            checks.number("alpha", self.alpha, low=0, open_low=True)
        checks.boolean("per_unit", self.per_unit)
        checks.number("kl_weight", self.kl_weight, low=0)
        check_sizes(self)

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variance that dropout has at this rate."""
        return {"alpha": dropping(keep) / keep}


class VariationalDropout(Method):
    """Gaussian factors around 1, anew for each example and draw, with learned variances.

    Masks are the factors themselves: real numbers, not 0 and 1.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(
        ...     net, "variational", ["input"], likelihood=gfo.Categorical(2), example=(x,),
        ...     train_size=100,
        ... )
        >>> masks = model.predict(x, return_masks=True).masks[0]  # Gaussian factors around 1
        >>> bool(((masks != 0) & (masks != 1)).all())
        True
    """

    name = "variational"
    keep_rates = False
    Options = VariationalDropoutOptions

    def __init__(
        self, sites: Sequence[Site], likelihood: Likelihood, options: VariationalDropoutOptions
    ) -> None:
        super().__init__(sites, likelihood, options)
        starts = [log(options.alpha or 1 / keep_rate(site) - 1) for site in sites]
        self.log_alpha = SiteNumbers(sites, starts, options.per_unit)

    def alpha(self, site: int) -> Tensor:
        """Learned variance of a site's factors, [1], or of each unit's, [units]."""
        return self.log_alpha.split(self._bounded().exp())[site]

    def draw_training(
        self, site: int, activation: Tensor, trajectory: Trajectory, deviations: tuple[Tensor, ...]
    ) -> Tensor:
        """Draw a factor per example and unit, differentiable in its standard deviation."""

        def draw() -> Tensor:
            units = self.sites[site].units
            normal = trajectory.noise.normal(trajectory.batch, units, activation)
            return 1 + deviations[site] * normal

        return trajectory.mask(site, draw).to(activation.dtype)

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Draw a factor per example and unit, as in training."""
        return self.draw_training(site, activation, trajectory, self._deviations(self._bounded()))

    def step(self, score: Score) -> Losses:
        """One pass; likelihood and divergence both reach the variances."""
        log_alpha = self._bounded()
        trajectory = score(partial(self.draw_training, deviations=self._deviations(log_alpha)))
        # A sum of products, not a matrix product, which autocast would round.
        divergence = (self.log_alpha.units * log_uniform_kl(log_alpha)).sum()
        weight = self.options.kl_weight
        size = self.examples_in_training(trajectory.batch) if weight else 1
        return likelihood_losses(trajectory, divergence * (weight / size))

    def _bounded(self) -> Tensor:
        return LARGEST - F.softplus(LARGEST - self.log_alpha())

    def _deviations(self, log_alpha: Tensor) -> tuple[Tensor, ...]:
        return self.log_alpha.split((log_alpha / 2).exp())


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL divergence of N(1, alpha) from the log-uniform prior, less its limit for large alpha.

    Examples:
        >>> [round(kl, 2) for kl in log_uniform_kl(torch.tensor([-4.0, 0.0, 40.0])).tolist()]
        [2.63, 0.43, 0.0]
    """
    return 0.5 * F.softplus(-log_alpha) + 0.63576 * torch.sigmoid(-1.8732 - 1.48695 * log_alpha)
