"""Keep rates: how many units a trained model keeps, and random dropout that keeps as many."""

from __future__ import annotations

from typing import Any

import torch

from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.options import dropping
from gflowout.studies.framework.arms import RATE, Options

KEEP = "keep"
"""Metric of a run: the share of units that is kept in predictions on validation data."""
EXAMPLES, DRAWS = 500, 10
"""Validation examples, and draws of masks for each, from which keep rates are measured."""
_DIGITS = 3


def kept(model: MaskedModel | Ensemble, *inputs: Any) -> float | None:
    """Share of units that a model keeps in predictions; ``None`` if it draws no masks.

    Examples:
        >>> import gflowout as gfo
        >>> x = torch.zeros(100, 8)
        >>> likelihood = gfo.Categorical(2)
        >>> net = torch.nn.Linear(8, 2)
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=likelihood, example=(x,), rate=0.25)
        >>> 0.72 < kept(model, x) < 0.78
        True
    """
    if isinstance(model, Ensemble) or model.method.deterministic:
        return None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        pred = model.predict(*inputs, samples=DRAWS, generator=generator, return_masks=True)
    assert pred.masks is not None
    units = sum(mask.numel() for mask in pred.masks)
    return float(sum(mask.double().sum() for mask in pred.masks)) / units


def as_metric(keep: float | None) -> dict[str, float]:
    """The keep rate among the metrics of a run; nothing if there is none."""
    return {} if keep is None else {KEEP: keep}


def drop_rate(keep: float | None) -> Options:
    """Option of random dropout that keeps as many units.

    Examples:
        >>> drop_rate(0.8204)
        {'method.options.rate': 0.18}
    """
    assert keep is not None
    return {RATE: dropping(round(keep, _DIGITS))}
