"""Check that models can be members of one ensemble, and wrap bare modules as members."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from gflowout.core.likelihoods import Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.wrap import wrap

_NOISE = frozenset({"noise", "learn_noise", "heteroscedastic"})
"""Arguments of a Gaussian that say how its noise is found, not what a label is."""


def wrapped(index: int, member: Any, likelihood: Likelihood | None, example: Any) -> MaskedModel:
    """A bare module as a model of method "none" without sites."""
    if not isinstance(member, nn.Module):
        raise TypeError(
            f"member {index} must be a model from gfo.wrap or an nn.Module, got "
            f"{type(member).__name__}"
        )
    if likelihood is None or example is None:
        raise TypeError(
            f"member {index} is a bare {type(member).__name__}: give likelihood= and example=, "
            "or wrap it"
        )
    return wrap(member, "none", (), likelihood=copy.deepcopy(likelihood), example=example)


def check_members(models: Sequence[MaskedModel]) -> None:
    """Raise unless models can be the members of one ensemble."""
    if not models:
        raise ValueError("members is empty: an ensemble needs at least one model")
    owners: dict[int, int] = {}
    for index, model in enumerate(models):
        own, first = (_meaning(one.likelihood) for one in (model, models[0]))
        if own != first:
            raise ValueError(
                f"members must have one likelihood, got {models[0].likelihood!r} for member 0 and "
                f"{model.likelihood!r} for member {index}"
            )
        # Frozen parameters may be shared: nothing that one member learns reaches another.
        learned = {name: one for name, one in model.named_parameters() if one.requires_grad}
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
    for index, model in enumerate(models):
        own, first = (_mask_sizes(one) for one in (model, models[0]))
        if own != first:
            raise ValueError(
                "masks can be pooled only if all members have masks of one size at the same sites, "
                f"but member 0 has {first} and member {index} has {own}; call each member's own "
                "predict"
            )


def _mask_sizes(model: MaskedModel) -> dict[str, int]:
    return {site.name: site.units * model.method.mask_parts for site in model.sites}


def _meaning(likelihood: Likelihood) -> tuple[type[Likelihood], dict[str, Any]]:
    """What must be the same for outputs to be pooled; a Gaussian's noise may differ."""
    config = likelihood.config()
    return type(likelihood), {name: config[name] for name in config if name not in _NOISE}
