"""Scores of a risk of death: macro F1, deferral to a doctor; and the linear baseline."""

from __future__ import annotations

import torch
from torch import Tensor

COVERAGES = tuple(round(0.05 * step, 2) for step in range(1, 21))
"""Shares of patients that are not deferred, at which curves are kept."""
_DECIMALS = 6
"""Uncertainties that agree to here are equal: further digits are rounding."""
_NEWTON = 50


def macro(risk: Tensor, died: Tensor, threshold: float) -> dict[str, float]:
    """F1, precision and recall, each the mean over the two outcomes.

    A class that is never predicted has precision and F1 of 0. Patients at or above the threshold
    are expected to die.

    Examples:
        >>> risk, died = torch.tensor([0.9, 0.2, 0.4, 0.1]), torch.tensor([1, 1, 0, 0])
        >>> {name: round(value, 3) for name, value in macro(risk, died, 0.5).items()}
        {'f1': 0.733, 'precision': 0.833, 'recall': 0.75}
    """
    expected, truth = risk >= threshold, died == 1
    f1, precision, recall = [], [], []
    for said, real in ((expected, truth), (~expected, ~truth)):
        hits = float((said & real).sum())
        precision.append(hits / max(1.0, float(said.sum())))
        recall.append(hits / max(1.0, float(real.sum())))
        f1.append(2 * hits / max(1.0, float(said.sum() + real.sum())))
    return {"f1": sum(f1) / 2, "precision": sum(precision) / 2, "recall": sum(recall) / 2}


def best_threshold(risk: Tensor, died: Tensor) -> float:
    """The threshold with the best macro F1; of equals the lowest.

    Examples:
        >>> best_threshold(torch.tensor([0.125, 0.25, 0.5, 1.0]), torch.tensor([0, 0, 1, 1]))
        0.375
    """
    values = torch.unique(risk.double())
    between = [*((values[1:] + values[:-1]) / 2).tolist()]
    places: list[float] = [float(values[0]), *between, float(values[-1]) + 1e-6]
    return max(places, key=lambda place: (macro(risk.double(), died, place)["f1"], -place))


def risk_coverage(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Mean loss among the k most certain patients, for k = 1, 2, ... [patients].

    Among patients who are equally uncertain any may be deferred first: the expected value over
    their orders is taken.

    Examples:
        >>> risk_coverage(torch.tensor([0.1, 0.3, 0.3]), torch.tensor([0.0, 1.0, 0.0])).tolist()
        [0.0, 0.25, 0.333...]
    """
    level, place = torch.unique((uncertainty.double() * 10**_DECIMALS).round(), return_inverse=True)
    total = torch.zeros(len(level), dtype=torch.float64).index_add_(0, place, loss.double())
    size = torch.zeros(len(level), dtype=torch.float64).index_add_(
        0, place, torch.ones_like(loss, dtype=torch.float64)
    )
    expected = (total / size)[place.sort().values]
    return expected.cumsum(0) / torch.arange(1, len(loss) + 1)


def at_coverages(curve: Tensor) -> list[float]:
    """A curve of :func:`risk_coverage` at :data:`COVERAGES`."""
    kept = [max(1, -(-round(100 * share) * len(curve) // 100)) for share in COVERAGES]
    return [round(float(curve[count - 1]), 6) for count in kept]


def logistic(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Weights of a logistic regression, the intercept last, by Newton's method in double precision.

    Minimises the summed log loss plus penalty / 2 times the squared weights; the intercept is free.
    """
    inputs = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    ridge = torch.full((inputs.shape[1],), penalty, dtype=torch.float64)
    ridge[-1] = 1e-9
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    weights[-1] = torch.logit(y.double().mean().clamp(1e-6, 1 - 1e-6))

    def loss(at: Tensor) -> Tensor:
        fit = torch.nn.functional.binary_cross_entropy_with_logits(
            inputs @ at, y.double(), reduction="sum"
        )
        return fit + (ridge * at.square()).sum() / 2

    for _ in range(_NEWTON):
        p = (inputs @ weights).sigmoid()
        gradient = inputs.T @ (p - y.double()) + ridge * weights
        if float(gradient.abs().max()) < 1e-8:
            break
        hessian = (inputs * (p * (1 - p))[:, None]).T @ inputs + torch.diag(ridge)
        step, share = torch.linalg.solve(hessian, gradient), 1.0
        while loss(weights - share * step) > loss(weights) and share > 1e-6:
            share /= 2  # far from the minimum a full step can go too far
        weights = weights - share * step
    return weights


def linear_risk(x: Tensor, weights: Tensor) -> Tensor:
    """Risk of death by the weights of :func:`logistic`, [rows]."""
    return (x.double() @ weights[:-1] + weights[-1]).sigmoid()
