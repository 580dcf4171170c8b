"""Selective prediction: answer where the model is sure, and leave the rest to a person.

``risk_coverage`` says what a score is worth for this; ``Defer`` finds a threshold whose risk is
bounded for new examples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.predictive import SCORES, Predictive
from gflowout.decisions._shared import Fitted, check_count, check_single, has_classes
from gflowout.decisions.risk import (
    RiskCoverage,
    binomial_cdf,
    losses_of,
    plot_risk_coverage,
    risk_bound,
    risk_coverage,
    uncertainty_of,
)

__all__ = ["Defer", "RiskCoverage", "plot_risk_coverage", "risk_bound", "risk_coverage"]

LEVELS = 20
"""Thresholds that are tested, at equal steps of coverage."""

REFERENCE = 5
"""Every so many-th held-out example sets the thresholds that the others test."""


class Defer(Fitted):
    r"""A rule that leaves uncertain examples to a person, so that the others have a bounded risk.

    With a probability of at least 1 - ``delta`` over the held-out examples, the share of wrong
    answers among new examples that are answered is at most ``risk``, if these are drawn as the
    held-out ones were. The answered ones are those with a score of at most ``threshold``.

    The threshold is chosen among many without losing the bound, by a sequence of tests in a fixed
    order (Learn then Test, Angelopoulos et al. 2021). Every fifth held-out example is used for its
    score only: 20 of their quantiles are the thresholds to test, from few answers to all. On the
    others, a threshold passes if so few errors have a probability of at most ``delta`` at a risk of
    ``risk``: the exact binomial test, whose upper bound is :func:`risk_bound`. The last one before
    the first that does not pass is taken. The sequence starts where twice as many answers are
    expected as would pass without any error.

    If none passes, every example is deferred, with a warning: more held-out examples or a larger
    risk are needed. For ``risk=0.05`` and ``delta=0.05`` a few hundred examples are the least.

    Args:
        score: Uncertainty: the name of a score of a prediction, or a function of a prediction that
            returns values [batch], higher for less certain.
        risk: Largest share of wrong answers among those given.
        delta: Probability with which the bound may fail.

    Attributes:
        threshold: Largest score that is answered; -inf if none is.
        coverage: Share of held-out examples that are answered.
        bound: Upper confidence bound of the risk at this threshold, at most ``risk``; NaN if every
            example is deferred.

    Examples:
        >>> from gflowout import Categorical
        >>> sure = torch.linspace(0, 6, 1000)
        >>> pred = Predictive(torch.stack((sure, -sure), -1)[None], Categorical(2))
        >>> y = (sure < 1).long() * (torch.arange(1000) % 2)  # guesses where it is not sure
        >>> rule = Defer("entropy", risk=0.05).fit(pred, y)
        >>> rule(pred)[[0, 999]]  # True: leave to a person
        tensor([ True, False])
        >>> bool(rule.bound <= 0.05)
        True
    """

    arguments = ("score", "risk", "delta")
    tensors = ("threshold", "coverage", "bound")
    threshold: Tensor
    coverage: Tensor
    bound: Tensor

    def __init__(
        self,
        score: str | Callable[[Predictive], Tensor] = "entropy",
        risk: float = 0.05,
        delta: float = 0.05,
    ) -> None:
        if not isinstance(score, str) and not callable(score):
            raise TypeError(
                "score must be the name of a score or a function of a prediction, got "
                f"{type(score).__name__}"
            )
        if isinstance(score, str):
            checks.choice("score", score, SCORES)
        self.score = score
        self.risk = checks.probability("risk", risk)
        self.delta = checks.probability("delta", delta)

    def fit(self, pred: Predictive, y: Tensor) -> Defer:
        """Find the threshold on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels, [batch].
        """
        scores = self._scores(pred)
        wrong, counted = losses_of(pred, y)
        scores, wrong = scores[counted], wrong[counted]
        check_count(wrong)
        chosen = torch.arange(len(scores), device=scores.device) % REFERENCE == 0
        reference, tested = scores[chosen].sort().values, scores[~chosen]
        errors = wrong[~chosen]
        best, last = -math.inf, (0, 0)
        for level in self._levels(len(tested)):
            threshold = float(reference[math.ceil(level * len(reference)) - 1])
            answered = tested <= threshold
            wrong_answers, answers = int(errors[answered].sum()), int(answered.sum())
            if binomial_cdf(wrong_answers, answers, self.risk) > self.delta:
                break
            best, last = threshold, (wrong_answers, answers)
        bound = risk_bound(*last, self.delta)
        if math.isinf(best):
            bound = math.nan
            warnings.warn(
                f"no threshold has a risk of at most {self.risk:g} with a confidence of "
                f"{1 - self.delta:g} on {len(scores)} held-out examples: all examples will be "
                "deferred. Take more of them, a larger risk or delta, or a better model",
                stacklevel=2,
            )
        share = (scores <= best).double().mean()
        self.threshold, self.coverage, self.bound = (
            torch.tensor(float(value), dtype=torch.float64) for value in (best, share, bound)
        )
        return self

    def __call__(self, pred: Predictive) -> Tensor:
        """Return whether to leave examples to a person, bool [batch].

        Args:
            pred: Of the same model.
        """
        return self.margins(pred) > 0

    def margins(self, pred: Predictive) -> Tensor:
        """By how much scores are above the threshold, [batch].

        Args:
            pred: Of the same model.
        """
        return self._scores(pred) - self.state_dict()["threshold"].to(pred.outputs.device)

    def _levels(self, tested: int) -> Sequence[float]:
        """Shares of answers to test, in order; they depend on the number of examples only."""
        least = 2 * math.log(self.delta) / math.log1p(-self.risk)  # (1 - risk)^m = delta, twice
        levels = [place / LEVELS for place in range(1, LEVELS + 1)]
        return [level for level in levels if level * tested >= least] or levels[-1:]

    def _scores(self, pred: Predictive) -> Tensor:
        check_single(pred, "Defer")
        if not has_classes(pred.likelihood):
            raise TypeError(
                f"Defer is for classes, whose answers are right or wrong; the prediction has "
                f"{pred.likelihood}: take pred.defer(score, share=...)"
            )
        scores = uncertainty_of(pred, self.score).double()
        if scores.shape != (pred.outputs.shape[1],):
            raise ValueError(
                f"score must give one number for each of {pred.outputs.shape[1]} examples, got "
                f"shape {list(scores.shape)}"
            )
        return scores

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set what ``fit`` would have set.

        Args:
            state: From :meth:`state_dict`.
        """
        values = {name: tensor for name, tensor in state.items() if name != "bound"}
        bound = state.get("bound", torch.tensor(math.nan))
        # NaN is the bound of a rule that defers all examples.
        super().load_state_dict({**values, "bound": bound.nan_to_num(1.0)})
        self.bound = bound.clone()

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        if any(tensor.dim() for tensor in state.values()):
            raise ValueError("threshold, coverage and bound must be one number each")
