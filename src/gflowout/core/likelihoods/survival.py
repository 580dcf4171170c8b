"""Times until an event, some of them censored: ``Cox``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import checks, uncertainty
from gflowout.core.likelihoods.base import (
    Likelihood,
    by_draw,
    finite,
    label_tensor,
    last_axis,
    precise,
    squeeze,
)


class Cox(Likelihood):
    r"""Time until an event, with censoring: proportional hazards. Label [batch, 2]: time, event.

    The output, [batch] or [batch, 1], is the log-risk f(x) of an example. Its hazard is
    :math:`h(t \mid x) = h_0(t) \, e^{f(x)}`, with a baseline :math:`h_0` that is constant between
    ``cuts`` and learned. The log-likelihood of an example is the full one,

    .. math:: \log p(t, e \mid x) = e \, \log h(t \mid x) - \int_0^t h(u \mid x) \, du

    where e is 1 for an event and 0 for a time at which the example was last known to have had none.

    This is not Cox's partial likelihood: the term of an example there depends on who else is in the
    batch, and on their masks, so it is no p(y | x, z) of one example that a reward, a mixture over
    draws or an evidence could be made of; a censored example would have none. The two agree where
    they meet: with a cut at every event time and the baseline at its optimum for given risks
    (Breslow's estimate), this likelihood is the partial likelihood, times a constant.

    ``pred.mean`` is the probability of no event until each cut, [batch, cuts]; ``pred.variance()``
    that of whether there was one; ``pred.quantile(0.5)`` the median time; :meth:`survival` gives
    probabilities at other times.

    Args:
        cuts: Times at which the baseline may change, increasing, above 0. A time at a cut belongs
            to the interval before it. Ten quantiles of the event times are enough for most data;
            see :meth:`from_labels`.
        hazard: Hazard to start from: events per unit of time.
        proportional: If ``False``, the backbone gives the log-hazard of every interval instead,
            [batch, cuts + 1], and no baseline is learned.

    Examples:
        >>> likelihood = Cox(cuts=[1.0, 2.0], hazard=0.5)
        >>> y = torch.tensor([[3.0, 0.0], [3.0, 1.0]])  # censored at 3, event at 3
        >>> likelihood.log_prob(torch.zeros(2), y).detach()
        tensor([-1.5000, -2.1931])
        >>> likelihood.samples(torch.zeros(1)).detach()  # exp(-0.5), exp(-1)
        tensor([[0.6065, 0.3679]])
    """

    arguments = ("cuts", "hazard", "proportional")
    free = ("hazard", "proportional")
    comparable = False
    label_size = 2
    edges: Tensor

    def __init__(
        self, cuts: Sequence[float] | Tensor, hazard: float = 1.0, proportional: bool = True
    ) -> None:
        super().__init__()
        self.cuts = _increasing(cuts)
        self.hazard = checks.number("hazard", hazard, low=0, open_low=True)
        self.proportional = checks.boolean("proportional", proportional)
        # Not in the state: the configuration has it.
        self.register_buffer("edges", torch.tensor((0.0, *self.cuts)), persistent=False)
        if proportional:
            start = torch.full((len(self.cuts) + 1,), math.log(self.hazard))
            self.log_hazard = nn.Parameter(start)

    @classmethod
    def from_labels(cls, y: Tensor, intervals: int = 10) -> Cox:
        """Cuts at quantiles of the event times, the hazard at events per unit of time.

        Args:
            y: Labels of the training data, [batch, 2].
            intervals: Number of intervals; fewer if events coincide.

        Examples:
            >>> time, event = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 1.0, 0.0, 1.0])
            >>> Cox.from_labels(torch.stack([time, event], 1), intervals=2)
            Cox(cuts=(2.0,), hazard=0.3, proportional=True)
        """
        checks.integer("intervals", intervals, low=2)
        time, event = cls(cuts=[1.0]).target(y).double().unbind(-1)
        times = time[(event == 1) & (time > 0)]
        if len(times) < 2:
            raise ValueError(f"y must hold at least two events after time 0, got {len(times)}")
        levels = torch.arange(1, intervals, dtype=times.dtype, device=times.device) / intervals
        cuts = torch.quantile(times, levels, interpolation="lower")
        return cls(sorted(set(cuts.tolist())), hazard=float(event.sum() / time.sum()))

    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Check that labels are pairs of a time, at least 0, and 1 (event) or 0 (censored)."""
        label_tensor(y)
        if y.dim() != 2 or y.shape[1] != 2:
            raise ValueError(
                f"y must have shape [batch, 2] for {self}, a time and 1 for an event or 0 for a "
                f"censored time, got {list(y.shape)}"
            )
        y = precise(y)
        if values and y.numel():
            finite(self, y)
            time, event = y.unbind(-1)
            if float(time.min()) < 0:
                raise ValueError(f"y must hold times >= 0 for {self}, got {float(time.min()):g}")
            wrong = event[(event != 0) & (event != 1)]
            if len(wrong):
                raise ValueError(
                    f"y must hold 1 (event) or 0 (censored) in its second column for {self}, got "
                    f"{float(wrong[0]):g}"
                )
        return y

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of an event, log-probability of a censored time."""
        log_hazards = self._log_hazards(output)
        if len(target) != len(log_hazards):
            raise ValueError(
                f"y must have shape {[len(log_hazards), 2]} for {self} with this output, got "
                f"{list(target.shape)}"
            )
        time, event = target.to(log_hazards.dtype).unbind(-1)
        interval = torch.bucketize(time.contiguous(), self.edges[1:].to(time.dtype))
        at_event = log_hazards.gather(-1, interval.unsqueeze(-1)).squeeze(-1)
        return event * at_event - (self._exposure(time) * log_hazards.exp()).sum(-1)

    def encode(self, target: Tensor) -> Tensor:
        """Log of time, relative to the middle cut, plus one; and 1 for an event, else -1."""
        time, event = target.float().unbind(-1)
        return torch.stack([torch.log1p(time / self.cuts[len(self.cuts) // 2]), 2 * event - 1], -1)

    def samples(self, output: Tensor) -> Tensor:
        """Probabilities of no event until each cut, [batch, cuts]."""
        log_hazards = self._log_hazards(output)
        widths = self.edges.to(log_hazards.dtype).diff()
        return torch.exp(-(widths * log_hazards[..., :-1].exp()).cumsum(-1))

    def variance(self, output: Tensor) -> Tensor:
        """Variance of whether there was no event until each cut, [batch, cuts]."""
        probability = self.samples(output)
        return probability * (1 - probability)

    def survival(self, output: Tensor, times: Tensor) -> Tensor:
        """Probabilities of no event until given times, [batch, times].

        Args:
            output: Of the backbone; of a prediction, ``pred.outputs.flatten(0, 1)``.
            times: [times].
        """
        log_hazards = self._log_hazards(output)
        return torch.exp(-log_hazards.exp() @ self._exposure(times.to(log_hazards.dtype)).mT)

    def quantile(self, outputs: Tensor, probability: float) -> Tensor:
        """Time until which the mixture of all draws has an event with a probability, [batch]."""
        log_hazards = by_draw(self._log_hazards, outputs)
        hazards = log_hazards.exp()
        start = torch.zeros_like(hazards[0, :, 0])
        return uncertainty.mixture_quantile(
            lambda time: -torch.expm1(-(self._exposure(time) * hazards).sum(-1)),
            start,
            start + self.cuts[-1],
            probability,
        )

    def settle(self, output: Tensor) -> tuple[Tensor, Likelihood]:
        """Write the learned baseline into the output: log-hazards of all intervals."""
        return self._log_hazards(output), self._with(proportional=False).eval()

    def _log_hazards(self, output: Tensor) -> Tensor:
        """Log-hazards of all intervals, [batch, cuts + 1]."""
        if not self.proportional:
            last_axis(self, output, len(self.cuts) + 1)
            return precise(output)
        risk = precise(squeeze(output))
        if risk.dim() != 1:
            raise ValueError(
                f"{self} takes an output of shape [batch] or [batch, 1], the backbone gives "
                f"{list(output.shape)}"
            )
        return risk.unsqueeze(-1) + self.log_hazard.to(risk.dtype)

    def _exposure(self, time: Tensor) -> Tensor:
        """Time spent in each interval, [..., cuts + 1]."""
        edges = self.edges.to(time.dtype)
        widths = torch.cat([edges.diff(), edges.new_full((1,), math.inf)])
        return torch.minimum((time.unsqueeze(-1) - edges).clamp(min=0), widths)


def _increasing(cuts: Any) -> tuple[float, ...]:
    cuts = cuts.tolist() if hasattr(cuts, "tolist") else cuts
    if isinstance(cuts, str) or not isinstance(cuts, Sequence) or not cuts:
        raise TypeError(f"cuts must be a sequence of at least one time above 0, got {cuts!r}")
    times = tuple(checks.number("cuts", cut, low=0, open_low=True) for cut in cuts)
    if any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"cuts must increase, got {times}")
    return times
