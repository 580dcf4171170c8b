"""Risk against coverage: what a score is worth for deferring, and bounds of a risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.core.predictive import Predictive
from gflowout.decisions._shared import (
    IGNORED,
    check_count,
    check_prediction,
    class_labels,
    everywhere,
    has_classes,
    label_shape,
    mean_probabilities,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Score = str | Tensor | Callable[[Predictive], Tensor]
"""An uncertainty: the name of a score of a prediction, its values, or a function of it."""


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk of the answers that are given, against the share of examples that get one.

    Attributes:
        coverage: Shares of examples whose score is at most the threshold, [points].
        risk: Mean loss of these, [points].
        threshold: The scores that occur, in increasing order, [points].
        aurc: Area under risk against coverage: the mean over k of the risk of the k most certain
            examples (Geifman and El-Yaniv 2017). Low is good, and the worth of a score depends on
            the risk of the model.
        augrc: Area under the generalised risk, which divides the loss of the answers given by the
            number of all examples (Traub et al. 2024): the average risk of undetected failures.

    Ties are in random order, of which areas are the average.

    Examples:
        >>> loss, score = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])
        >>> curve = RiskCoverage.of(loss, score)
        >>> curve.coverage.tolist(), [round(risk, 2) for risk in curve.risk.tolist()]
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.33, 0.5])
        >>> round(curve.aurc, 4), curve.augrc
        (0.2083, 0.125)
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor
    aurc: float
    augrc: float

    @classmethod
    def of(cls, loss: Tensor, score: Tensor) -> RiskCoverage:
        """The curve of losses [n] and uncertainties [n]."""
        threshold, group, size = torch.unique(score, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(size), dtype=torch.float64, device=loss.device)
        sums.index_add_(0, group, loss.double())
        total, ends = sums.cumsum(0), size.cumsum(0)
        # The expected loss of the k most certain grows evenly within a tie.
        even = (sums / size).repeat_interleave(size).cumsum(0)
        count = len(score)
        ranks = torch.arange(1, count + 1, device=loss.device)
        before = torch.cat((even.new_zeros(1), even[:-1]))
        return cls(
            ends / count,
            total / ends,
            threshold,
            float((even / ranks).mean()),
            float(((even + before) / 2).sum()) / count**2,
        )


def risk_coverage(
    pred: Predictive, y: Tensor, score: Score = "entropy", loss: Tensor | None = None
) -> RiskCoverage:
    """Risk against coverage, if the most certain examples are answered and the others deferred.

    Labels with several parts (tags, several yes-or-no labels) count one by one.

    Args:
        pred: A prediction.
        y: Its labels.
        score: Uncertainty by which examples are deferred, high first: the name of a score of a
            prediction, such as ``"entropy"``, ``"max_probability"`` (low first) or ``"variance"``;
            its values, of the shape of the labels; or a function of the prediction that returns
            them.
        loss: Losses of the shape of the labels; those at ignored labels do not count. ``None``: 1
            for a wrong class and 0 for a right one; the squared error for numbers.

    Examples:
        >>> from gflowout import Categorical
        >>> logits = torch.tensor([[[4.0, 0.0], [2.0, 0.0], [1.0, 0.0]]])
        >>> curve = risk_coverage(Predictive(logits, Categorical(2)), torch.tensor([0, 0, 1]))
        >>> curve.risk
        tensor([0.0000, 0.0000, 0.3333], dtype=torch.float64)
    """
    scores = uncertainty_of(pred, score)
    if loss is None:
        loss, counted = losses_of(pred, y)
    elif not isinstance(loss, Tensor) or bool(loss.isnan().any()):
        raise TypeError(f"loss must be a tensor without NaN, or None, got {loss!r}")
    else:
        counted = _counted(pred, y, loss)
    if scores.shape != loss.shape:
        raise ValueError(
            f"score must have the shape of the losses, one per label, {list(loss.shape)}, got "
            f"{list(scores.shape)}"
        )
    check_count(loss[counted])
    return RiskCoverage.of(loss[counted], scores[counted])


def risk_bound(errors: int, answers: int, delta: float = 0.05) -> float:
    """Exact (Clopper-Pearson) upper bound of a risk, which holds with probability 1 - ``delta``.

    The largest risk r for which so few errors have a probability of at least ``delta``:
    P(Binomial(answers, r) <= errors) = delta.

    Args:
        errors: Wrong answers.
        answers: All answers.
        delta: Probability with which the bound may fail.

    Examples:
        >>> round(risk_bound(0, 100), 4)  # the rule of three: about 3 / 100
        0.0295
        >>> round(risk_bound(5, 100), 4)
        0.1023
    """
    checks.integer("errors", errors, low=0)
    checks.integer("answers", answers, low=0)
    checks.probability("delta", delta)
    if errors > answers:
        raise ValueError(f"errors must be at most answers, {answers}, got {errors}")
    if errors == answers:
        return 1.0
    low, high = errors / answers, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if binomial_cdf(errors, answers, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def binomial_cdf(errors: int, answers: int, risk: float) -> float:
    """P(Binomial(answers, risk) <= errors): how probable so few errors are.

    Examples:
        >>> round(binomial_cdf(1, 2, 0.5), 4)
        0.75
    """
    if errors >= answers:
        return 1.0
    counts = torch.arange(errors + 1, dtype=torch.float64)
    total = torch.tensor(float(answers), dtype=torch.float64)
    terms = (total + 1).lgamma() - (counts + 1).lgamma() - (total - counts + 1).lgamma()
    terms += counts * math.log(risk) + (total - counts) * math.log1p(-risk)
    return float(terms.logsumexp(0).exp())


def plot_risk_coverage(
    pred: Predictive,
    y: Tensor,
    scores: Sequence[str] | Mapping[str, Score] = ("entropy",),
    ax: Axes | None = None,
) -> Axes:
    """Draw the risk of answered examples against their share, one line per score.

    Args:
        pred: A prediction.
        y: Its labels.
        scores: Names of scores, or scores as for :func:`risk_coverage` by name.
        ax: Where to draw; a new figure if not given.

    Examples:
        >>> from gflowout import Categorical
        >>> y = torch.randint(3, (50,))
        >>> pred = Predictive(torch.randn(4, 50, 3), Categorical(3))
        >>> ax = plot_risk_coverage(pred, y, ["entropy", "mutual_information"])
        >>> ax.get_xlabel()
        'coverage: share of examples that are answered'
    """
    pyplot = require("matplotlib.pyplot", extra="sklearn", purpose="plot_risk_coverage")
    if isinstance(scores, str):
        raise TypeError(f"scores must be a list of names, got {scores!r}; take [{scores!r}]")
    by_name = scores if isinstance(scores, Mapping) else {name: name for name in scores}
    curves = {name: risk_coverage(pred, y, score) for name, score in by_name.items()}
    if ax is None:
        _, ax = pyplot.subplots(figsize=(5.5, 3.6), layout="constrained")
    assert ax is not None
    for name, curve in curves.items():
        label = f"{name} (AURC {curve.aurc:.3g})"
        ax.step(curve.coverage.tolist(), curve.risk.tolist(), where="post", label=label)
    kind = "error" if has_classes(pred.likelihood) else "squared error"
    ax.set(xlabel="coverage: share of examples that are answered", ylabel=f"{kind} of these")
    ax.set_xlim(0, 1.01)
    ax.set_ylim(bottom=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return ax


def uncertainty_of(pred: Predictive, score: Score) -> Tensor:
    """Values of a score, higher for less certain."""
    check_prediction("pred", pred)
    if isinstance(score, Tensor):
        values = score
    elif isinstance(score, str):
        values = pred.score(score)
    else:
        values = score(pred)
    if not isinstance(values, Tensor):
        raise TypeError(f"score must give a tensor, got {type(values).__name__}")
    if not everywhere(~values.isnan()):
        raise ValueError("score must give numbers, got NaN")
    return values.detach().to(pred.outputs.device)


def _counted(pred: Predictive, y: Tensor, loss: Tensor) -> Tensor:
    """Which of the given losses count: all but those at labels that are to be ignored."""
    target = pred.likelihood.target(y)
    counted = torch.ones_like(loss, dtype=torch.bool)
    if not has_classes(pred.likelihood):
        return counted
    shape = label_shape(pred)
    if loss.shape != shape:
        raise ValueError(
            f"loss must have the shape of the labels, {list(shape)}, got {list(loss.shape)}"
        )
    ignored = getattr(pred.likelihood, "ignore_index", None)
    if ignored is not None and target.shape == shape:
        counted = target != ignored
    return counted


def losses_of(pred: Predictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """Losses in the shape of the labels, and which of these count."""
    check_prediction("pred", pred)
    if has_classes(pred.likelihood):
        labels = class_labels(pred, y)
        wrong = mean_probabilities(pred).argmax(-1) != labels
        return wrong.double(), labels != IGNORED
    if not pred.likelihood.comparable:
        raise TypeError(
            "pred must be a prediction of classes, or of expected labels whose squared error is "
            f"known; samples of {pred.likelihood} are neither"
        )
    target = pred.likelihood.target(y)
    if target.shape != pred.mean.shape:
        raise ValueError(
            f"y must have shape {list(pred.mean.shape)} for this prediction, got {list(y.shape)}"
        )
    loss = (pred.mean.detach() - target).double().square()
    return loss, torch.ones_like(loss, dtype=torch.bool)
