"""Split-conformal prediction: sets of classes and intervals that hold the truth as often as asked.

Fitted on predictions of n held-out examples. If these and a new example are exchangeable (drawn in
the same way, in any order), then the truth is in the set or interval with a probability of at least
``coverage``, and at most ``coverage`` + 1 / (n + 1) where scores are not tied: whatever the network
is like, and on average over held-out and new examples. It says nothing about data that have
shifted, and held-out examples that the network was trained on, or that chose between networks,
break it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.likelihoods import Cox
from gflowout.core.predictive import Predictive
from gflowout.decisions._shared import (
    IGNORED,
    Fitted,
    check_prediction,
    check_single,
    class_labels,
    everywhere,
    has_classes,
    mean_probabilities,
)
from gflowout.decisions.conformal_scores import (
    SET_METHODS,
    least_count,
    quantile,
    report_intervals,
    report_sets,
    set_scores,
)

__all__ = ["Intervals", "Sets", "quantile", "report_intervals", "report_sets", "set_scores"]

INTERVAL_METHODS = ("spread", "residual", "quantile")


class Sets(Fitted):
    r"""Sets of classes that hold the true one with a probability of ``coverage``.

    A class is in the set if its score, see :func:`set_scores`, is at most the
    :math:`\lceil (n + 1) \cdot \mathrm{coverage} \rceil`-th smallest score of the n true labels.
    Scores come from ``pred.mean``; calibrate first (:mod:`gflowout.calibration`) if you like: the
    guarantee holds either way, but on other held-out examples than those of the calibration.

    - ``"lac"``: classes above one probability. The smallest sets on average.
    - ``"aps"``: the most probable classes up to a sum. Larger sets, of which hard examples have
      more, so that coverage is more even between easy and hard ones.
    - ``"raps"``: the same with a charge for each class beyond the first few: fewer very large sets.

    Sets can be empty: no class is probable enough. It happens where the network is right more often
    than ``coverage``.

    Args:
        coverage: Wanted probability, between 0 and 1.
        method: ``"lac"``, ``"aps"`` or ``"raps"``.
        per_class: Guarantee the coverage for the examples of every class, with a threshold for
            each; every class then needs enough held-out examples.
        allow_empty: If ``False``, the most probable class is in every set. Coverage can then be
            higher than asked.
        penalty: Of ``"raps"``, for each class beyond the ``free`` most probable ones.
        free: Number of classes that ``"raps"`` does not charge for.

    Attributes:
        threshold: Largest score in a set: [] or, with ``per_class``, [classes].

    Examples:
        >>> from gflowout import Categorical
        >>> y = torch.tensor([0, 0, 0, 1]).repeat(10)
        >>> pred = Predictive(torch.tensor([[2.0, 1.0, -9.0]]).repeat(1, 40, 1), Categorical(3))
        >>> Sets(coverage=0.9).fit(pred, y)(pred)[0]
        tensor([ True,  True, False])
        >>> Sets(coverage=0.7).fit(pred, y)(pred)[0]
        tensor([ True, False, False])
    """

    arguments = ("coverage", "method", "per_class", "allow_empty", "penalty", "free")
    tensors = ("threshold",)
    threshold: Tensor

    def __init__(
        self,
        coverage: float = 0.9,
        method: str = "lac",
        per_class: bool = False,
        allow_empty: bool = True,
        penalty: float = 0.1,
        free: int = 1,
    ) -> None:
        self.coverage = checks.probability("coverage", coverage)
        self.method = checks.choice("method", method, SET_METHODS)
        self.per_class = checks.boolean("per_class", per_class)
        self.allow_empty = checks.boolean("allow_empty", allow_empty)
        self.penalty = checks.number("penalty", penalty, low=0)
        self.free = checks.integer("free", free, low=0)

    def fit(self, pred: Predictive, y: Tensor) -> Sets:
        """Find the threshold on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels, [batch].

        Raises:
            ValueError: If there are fewer than coverage / (1 - coverage) examples, with
                ``per_class`` of any class: the set would have to hold all classes.
        """
        check_single(pred, "Sets")
        scores, labels = self._scores(pred), class_labels(pred, y)
        scores, labels = scores[labels != IGNORED], labels[labels != IGNORED]
        true_scores = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        if not self.per_class:
            self.threshold = quantile(true_scores, self.coverage)
            return self
        counts = torch.bincount(labels, minlength=scores.shape[-1]).tolist()
        needed = least_count(self.coverage)
        few = [f"{count} of class {at}" for at, count in enumerate(counts) if count < needed]
        if few:
            raise ValueError(
                f"y must hold at least {needed} labels of every class for per_class=True and "
                f"coverage={self.coverage:g}, got {', '.join(few)}"
            )
        own = [quantile(true_scores[labels == at], self.coverage) for at in range(len(counts))]
        self.threshold = torch.stack(own)
        return self

    def __call__(self, pred: Predictive) -> Tensor:
        """Return the sets, bool [batch, classes].

        Args:
            pred: Of the same model.
        """
        return self.margins(pred) >= 0

    def margins(self, pred: Predictive) -> Tensor:
        """By how much classes are in the set, [batch, classes]; those below 0 are not in it.

        Args:
            pred: Of the same model.
        """
        check_single(pred, "Sets")
        threshold = self.state_dict()["threshold"].to(pred.outputs.device)
        scores = self._scores(pred)
        if threshold.dim() and len(threshold) != scores.shape[-1]:
            raise ValueError(
                f"pred must have {len(threshold)} classes as in fit, got {scores.shape[-1]}"
            )
        margins = threshold - scores
        if self.allow_empty:
            return margins
        # The most probable class has the least score.
        return margins.scatter(-1, scores.argmin(-1, keepdim=True), 1.0)

    def _scores(self, pred: Predictive) -> Tensor:
        probabilities = mean_probabilities(pred)
        return set_scores(probabilities, self.method, self.penalty, self.free)

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        if state["threshold"].dim() != int(self.per_class):
            raise ValueError("threshold must be one number, or with per_class one per class")


class Intervals(Fitted):
    r"""Intervals that hold the true number with a probability of ``coverage``.

    With the score s of a number and q the :math:`\lceil (n + 1) \cdot \mathrm{coverage}
    \rceil`-th smallest score of the n true ones, the interval is where :math:`s \le q`:

    - ``"spread"``: :math:`|y - \mathrm{mean}| / \mathrm{std}`, with the standard deviation of the
      prediction, draws and noise together: wide where the model is unsure.
    - ``"residual"``: :math:`|y - \mathrm{mean}|`: equally wide everywhere.
    - ``"quantile"``: distance from the interval between the predictive quantiles
      :math:`(1 \mp \mathrm{coverage}) / 2`, negative inside (conformalised quantiles).

    A label with several numbers has an interval for each: every one of them, not all at once, is
    covered as often as asked.

    Args:
        coverage: Wanted probability, between 0 and 1.
        method: ``"spread"``, ``"residual"`` or ``"quantile"``.

    Attributes:
        threshold: q, of the shape of one label.

    Examples:
        >>> from gflowout import Gaussian
        >>> pred = Predictive(torch.zeros(1, 99, 1), Gaussian(noise=0.1, learn_noise=False))
        >>> y = torch.linspace(-1, 1, 99)
        >>> low, high = Intervals(coverage=0.9).fit(pred, y)(pred)
        >>> low[0], high[0]
        (tensor([-0.9184]), tensor([0.9184]))
    """

    arguments = ("coverage", "method")
    tensors = ("threshold",)
    threshold: Tensor

    def __init__(self, coverage: float = 0.9, method: str = "spread") -> None:
        self.coverage = checks.probability("coverage", coverage)
        self.method = checks.choice("method", method, INTERVAL_METHODS)

    def fit(self, pred: Predictive, y: Tensor) -> Intervals:
        """Find q on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels.

        Raises:
            ValueError: If there are fewer than coverage / (1 - coverage) examples: the interval
                would have to hold all numbers.
        """
        low, high, unit = self._parts(pred)
        target = pred.likelihood.target(y).to(low.dtype)
        target = target.squeeze(-1) if target.shape == (*low.shape, 1) else target
        if target.shape != low.shape:
            raise ValueError(
                f"y must have shape {list(low.shape)} for this prediction, got {list(y.shape)}"
            )
        self.threshold = quantile(torch.maximum(low - target, target - high) / unit, self.coverage)
        return self

    def __call__(self, pred: Predictive) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends, each of the shape of ``pred.mean``.

        With ``"quantile"`` and a prediction whose own quantiles are too far apart, the ends move
        inwards. Where they would cross, no number is in the interval: both ends are in the middle.

        Args:
            pred: Of the same model.
        """
        low, high, unit = self._parts(pred)
        threshold = self.state_dict()["threshold"].to(low.device)
        if threshold.shape != low.shape[1:]:
            raise ValueError(
                f"pred must have numbers of shape {list(threshold.shape)} per example as in fit, "
                f"got {list(low.shape[1:])}"
            )
        middle, change = (low + high) / 2, threshold * unit
        dtype = pred.mean.dtype
        return (
            (low - change).minimum(middle).to(dtype),
            (high + change).maximum(middle).to(dtype),
        )

    def _parts(self, pred: Predictive) -> tuple[Tensor, Tensor, Tensor]:
        """Lower and upper end before the correction, and the unit of the correction."""
        check_prediction("pred", pred)
        if has_classes(pred.likelihood):
            raise TypeError(
                f"Intervals are for numbers, the prediction has {pred.likelihood}; for classes "
                "take gfo.conformal.Sets"
            )
        if isinstance(pred.likelihood, Cox):
            raise TypeError(
                f"Intervals are for numbers, the prediction has {pred.likelihood}: whether an "
                "interval holds a censored time is not known; take pred.quantile(probability)"
            )
        if self.method != "quantile" and not pred.likelihood.comparable:
            raise TypeError(
                f"method must be 'quantile' for {pred.likelihood}, whose samples are no expected "
                f"labels, got {self.method!r}"
            )
        with torch.no_grad():
            if self.method == "quantile":
                tail = (1 - self.coverage) / 2
                low, high = pred.quantile(tail).double(), pred.quantile(1 - tail).double()
            else:
                low = high = pred.mean.double()
            unit = torch.ones_like(low)
            if self.method == "spread":
                unit = pred.variance().double().sqrt()
        if not everywhere(torch.cat((low, high, unit)).isfinite()):
            raise ValueError(
                "pred must have finite outputs, and a finite variance for method='spread', got NaN "
                "or infinity"
            )
        if not everywhere(unit > 0):
            raise ValueError(
                "pred must have a positive variance for method='spread', got 0; take "
                "method='residual'"
            )
        return low, high, unit

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        if not bool(torch.isfinite(state["threshold"]).all()):
            raise ValueError("threshold must be finite")
