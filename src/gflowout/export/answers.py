"""What a file answers: mean, samples and scores, and decisions that were fitted to predictions.

Decisions are scalers, after which all answers are calibrated, sets, intervals, and what to leave to
a person.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gflowout.core import uncertainty
from gflowout.core.likelihoods import Categorical, Quantile
from gflowout.core.predictive import Predictive
from gflowout.decisions.calibration import Temperature, Vector
from gflowout.decisions.conformal import Intervals, Sets
from gflowout.decisions.selective import Defer

SCORES = (
    "mean", "samples", "entropy", "expected_entropy", "mutual_information", "max_probability",
    "dempster_shafer", "variance", "epistemic_variance", "aleatoric_variance",
)  # fmt: skip
"""Outputs that a file can have without decisions."""

Decision = Temperature | Vector | Sets | Intervals | Defer

_OUTPUTS = {Sets: ("set",), Intervals: ("low", "high"), Defer: ("defer",)}
_FAR = 1e3
"""Margin of a threshold at infinity."""


def checked(decisions: Any) -> tuple[Decision, ...]:
    """One fitted decision, or several, as a tuple; an error for what a file cannot hold.

    Examples:
        >>> checked(Sets())
        Traceback (most recent call last):
            ...
        RuntimeError: Sets is not fitted: call fit(pred, y) with predictions of held-out ... first
    """
    listed = tuple(decisions) if isinstance(decisions, list | tuple) else (decisions,)
    for decision in listed:
        if not isinstance(decision, Decision):
            raise TypeError(
                "decisions must be fitted Temperature, Vector, Sets, Intervals or Defer objects, "
                f"got {decision!r}"
            )
        decision.state_dict()  # which raises if it is not fitted
        if isinstance(decision, Defer) and not isinstance(decision.score, str):
            raise TypeError(
                f"decisions: the score of {decision} is a function, which a file cannot hold: name "
                "a score"
            )
    names = outputs_of(listed)
    if len(set(names)) < len(names):
        raise ValueError(f"decisions must give every output once, got {', '.join(names)}")
    return listed


def outputs_of(decisions: Sequence[Decision]) -> list[str]:
    """Names of the outputs that decisions add to a file.

    Examples:
        >>> outputs_of([Temperature(), Sets(), Defer()])
        ['set', 'defer']
    """
    return [name for decision in decisions for name in _OUTPUTS.get(type(decision), ())]


def check_fit(decisions: Sequence[Decision], pred: Predictive) -> None:
    """Raise unless decisions can be applied to predictions of this kind."""
    for decision in decisions:
        quantiles = isinstance(decision, Intervals) and decision.method == "quantile"
        if quantiles and not isinstance(pred.likelihood, Quantile):
            raise TypeError(
                f"decisions: {decision} would search for quantiles of {pred.likelihood}, which a "
                "file cannot do: take method='spread' or 'residual'"
            )
        result = decision(pred)
        pred = result if isinstance(result, Predictive) else pred


def values(
    pred: Predictive, decisions: Sequence[Decision], scale: tuple[float, float] | None
) -> dict[str, Tensor]:
    """All answers by name, with margins in place of yes or no; see :func:`decided`.

    A decision is about the prediction after the scalers before it. See :class:`Deployed` for
    ``scale``.
    """
    mean, deviation = (0.0, 1.0) if scale is None else scale
    answers: dict[str, Tensor] = {}
    for decision in decisions:
        match decision:
            case Temperature() | Vector():
                pred = decision(pred)
            case Sets():
                answers["set"] = decision.margins(pred)
            case Intervals():
                assert len(pred.samples)  # kept, so that the mean does not go part by part
                low, high = decision(pred)
                answers |= {"low": low * deviation + mean, "high": high * deviation + mean}
            case Defer():
                # The threshold is infinite if every example is deferred.
                answers["defer"] = decision.margins(pred).clamp(max=_FAR)
    return {**scores(pred, scale), **answers}


def decided(answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Answers with margins as yes or no. NaN is in no set, and is left to a person.

    Examples:
        >>> import torch
        >>> margins = torch.tensor([0.1, 0.0, -0.1, torch.nan])
        >>> answers = decided({"set": margins, "defer": margins})
        >>> answers["set"]
        tensor([ True,  True, False, False])
        >>> answers["defer"]
        tensor([ True, False, False,  True])
    """
    rules = {"set": lambda margin: margin >= 0, "defer": lambda margin: ~(margin <= 0)}
    return {name: rules[name](value) if name in rules else value for name, value in answers.items()}


def scores(pred: Predictive, scale: tuple[float, float] | None = None) -> dict[str, Tensor]:
    """Mean, samples and uncertainty scores of a prediction, by name.

    Computed here and not by :class:`gflowout.Predictive`, which works through large outputs part by
    part: a trace would fix the size of the parts. See :class:`Deployed` for ``scale``.
    """
    outputs, likelihood = pred.outputs, pred.likelihood
    draws, flat = outputs.shape[0], outputs.flatten(0, 1)

    def split(values: Tensor) -> Tensor:
        return values.reshape(draws, -1, *values.shape[1:])

    if not likelihood.has_classes:
        means = split(likelihood.samples(flat))
        noise = split(likelihood.variance(flat)) if likelihood.has_variance else None
        if scale is not None:  # of a Gaussian
            means = means * scale[1] + scale[0]
            noise = None if noise is None else noise * scale[1] ** 2
        numbers = {"mean": means.mean(0), "samples": means}
        if noise is not None:
            numbers["variance"] = uncertainty.total_variance(means, noise)
        numbers["epistemic_variance"] = uncertainty.epistemic_variance(means)
        if noise is not None:
            numbers["aleatoric_variance"] = uncertainty.aleatoric_variance(noise)
        return numbers
    logits = split(likelihood.class_logits(flat))
    probabilities = logits.softmax(-1)
    categorical = isinstance(likelihood, Categorical)
    samples = probabilities if categorical else split(likelihood.samples(flat))
    return {
        "mean": samples.mean(0),
        "samples": samples,
        "entropy": uncertainty.predictive_entropy(probabilities),
        "expected_entropy": uncertainty.expected_entropy(probabilities),
        "mutual_information": uncertainty.mutual_information(probabilities),
        "max_probability": uncertainty.max_probability(probabilities),
        "dempster_shafer": uncertainty.dempster_shafer(logits),
        "variance": uncertainty.variance(probabilities),
    }


def described(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Decisions as JSON values: kind, arguments and what was fitted; infinity and NaN as null."""
    return [
        {
            "kind": type(decision).__name__,
            **{name: getattr(decision, name) for name in decision.arguments},
            **{name: _finite(value.tolist()) for name, value in decision.state_dict().items()},
        }
        for decision in decisions
    ]


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None
