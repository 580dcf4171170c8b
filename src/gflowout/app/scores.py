"""What a model says about inputs, as named tensors in the units of the data.

The one way from a model to numbers: evaluation and prediction on files both go through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gflowout.app import metrics
from gflowout.app.preprocess import Target
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive

UNCERTAINTIES = ("dempster_shafer", "entropy", "mutual_information")
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}

Answers = dict[str, Tensor]


def answer(
    model: MaskedModel | Ensemble,
    target: Target,
    x: Tensor,
    samples: int,
    generator: torch.Generator,
) -> tuple[Answers, Predictive]:
    """Predict a batch.

    Args:
        model: The model, or an ensemble.
        target: What it predicts.
        x: Inputs as the network takes them.
        samples: Draws of masks.
        generator: Of the draws.

    Returns:
        Classes: ``probabilities`` [batch, classes], ``confidence``, ``entropy``,
        ``mutual_information``, ``dempster_shafer``. Numbers: ``mean``, ``std``, ``aleatoric_std``,
        ``epistemic_std`` and quantiles, in the units of the data. And the prediction itself.
    """
    pred = model.predict(x, samples=samples, generator=generator)
    if target.likelihood == "gaussian":
        shift, scale = target.mean, target.std
        found = {
            "mean": pred.mean * scale + shift,
            "std": pred.variance().sqrt() * scale,
            "aleatoric_std": pred.aleatoric_variance().sqrt() * scale,
            "epistemic_std": pred.epistemic_variance().sqrt() * scale,
            **{name: pred.quantile(p) * scale + shift for name, p in QUANTILES.items()},
        }
        return {name: value.reshape(len(x)) for name, value in found.items()}, pred
    probabilities = pred.mean
    if target.likelihood == "binary":
        probabilities = torch.stack([1 - probabilities, probabilities], -1)
    disagreement = pred.mutual_information()
    if isinstance(model, MaskedModel) and model.method.deterministic:  # nothing but rounding
        disagreement = torch.zeros_like(disagreement)
    return {
        "probabilities": probabilities,
        "confidence": pred.max_probability(),
        "entropy": pred.entropy(),
        "mutual_information": disagreement,
        "dempster_shafer": pred.dempster_shafer(),
    }, pred


def collect(
    model: MaskedModel | Ensemble,
    target: Target,
    batches: Iterable[tuple[Tensor, ...]],
    samples: int,
    seed: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Answers:
    """Predict all batches; with labels, also their ``log_prob``.

    Args:
        model: The model, or an ensemble.
        target: What it predicts.
        batches: Inputs, or inputs and labels.
        samples: Draws of masks.
        seed: Of the draws.
        advance: Is told how many examples were done.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    parts: list[Answers] = []
    for batch in batches:
        x, *labels = (tensor.to(device) for tensor in batch)
        found, pred = answer(model, target, x, samples, generator)
        if labels:
            found["log_prob"] = pred.log_prob(labels[0])
            if target.likelihood == "gaussian":  # a density, per unit of the data
                found["log_prob"] = found["log_prob"] - math.log(target.std)
            found["labels"] = labels[0]
        parts.append({name: value.cpu() for name, value in found.items()})
        advance(len(x))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def measure(target: Target, answers: Answers) -> dict[str, float]:
    """Scores of answers whose labels are known."""
    labels = answers["labels"]
    if target.likelihood == "gaussian":
        values = labels * target.std + target.mean
        interval = answers["q05"], answers["q95"]
        return metrics.regression(answers["mean"], values, answers["log_prob"], interval)
    labels, probabilities = labels.long(), answers["probabilities"]
    found = metrics.classification(probabilities, labels, answers["log_prob"])
    if probabilities.shape[-1] == 2:
        one, other = probabilities[labels == 0, 1], probabilities[labels == 1, 1]
        ranked = metrics.detection(one, other) if len(one) and len(other) else {}
        found |= {name: ranked.get(name, math.nan) for name in ("auroc", "aupr")}
    return found
