"""What models must have in common to be the members of one ensemble, and what weights they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflowout.core import checks
from gflowout.core.likelihoods import Likelihood
from gflowout.core.model import MaskedModel


def check_members(models: Sequence[MaskedModel]) -> None:
    """Raise unless models can be the members of one ensemble."""
    if not models:
        raise ValueError("members is empty: an ensemble needs at least one model")
    owners: dict[int, int] = {}
    first = models[0].likelihood
    learns = any(not name.startswith("label_noise.") for name, _ in first.named_parameters())
    if len(models) > 1 and learns and type(first).settle is Likelihood.settle:
        raise TypeError(
            f"predictions with {first!r} cannot be pooled: what every member has learned in it is "
            f"lost unless {type(first).__name__}.settle writes it into the output, as that of "
            "gfo.Gaussian does"
        )
    for index, model in enumerate(models):
        if _meaning(model.likelihood) != _meaning(models[0].likelihood):
            raise ValueError(
                f"members must have one likelihood, got {models[0].likelihood!r} for member 0 and "
                f"{model.likelihood!r} for member {index}"
            )
        # Frozen parameters may be shared: nothing that one member learns reaches another.
        learned = {name: part for name, part in model.named_parameters() if part.requires_grad}
        for name, part in {"": model, "backbone": model.backbone, **learned}.items():
            owner = owners.setdefault(id(part), index)
            if owner != index:
                what = repr(name) if name in learned else "the same module"
                raise ValueError(
                    f"members {owner} and {index} share {what}: every member needs weights of its "
                    "own; copy.deepcopy one of them, or build it anew"
                )


def check_same_sites(models: Sequence[MaskedModel]) -> None:
    """Raise unless masks of all models can stand side by side."""
    sizes = [
        {site.name: site.units * model.method.mask_parts for site in model.sites}
        for model in models
    ]
    for index, size in enumerate(sizes):
        if size != sizes[0]:
            raise ValueError(
                "masks can be pooled only if all members have masks of one size at the same sites, "
                f"but member 0 has {sizes[0]} and member {index} has {size}; call each member's "
                "own predict"
            )


def _meaning(likelihood: Likelihood) -> tuple[type[Likelihood], dict[str, Any]]:
    """What must be the same for outputs to be pooled; noise, also of labels, may differ."""
    config = likelihood.config()
    return type(likelihood), {name: config[name] for name in config if name not in likelihood.free}


def normalised(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Weights that sum to 1."""
    if weights is None:
        return (1 / count,) * count
    numbers = [checks.number("weights", weight, low=0) for weight in weights]
    if len(numbers) != count:
        raise ValueError(f"weights must hold one for each of {count} members, got {len(numbers)}")
    total = sum(numbers)
    if not 0 < total < math.inf:
        raise ValueError(f"weights must have a positive, finite sum, got {total}")
    return tuple(number / total for number in numbers)
