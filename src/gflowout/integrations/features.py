"""Features by name or number, groups of them, and how probable it is that each is needed.

Knows scikit-learn's transformers only by what :func:`one_hot_groups` reads from fitted ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gflowout import checks, policy
from gflowout.integrations.chains import Chain, draw
from gflowout.integrations.tabular import Floats
from gflowout.sites import INPUT
from gflowout.units import Units


def number_of(name: str, feature: Any, names: Sequence[str] | None, count: int) -> int:
    """Number of a feature that a user named, or numbered.

    Args:
        name: What the user calls the argument.
        feature: A column name, or a number from 0.
        names: Column names, if the training data had any.
        count: Number of features.

    Examples:
        >>> number_of("always", "age", ["sex", "age"], 2)
        1
        >>> number_of("always", 2, None, 2)
        Traceback (most recent call last):
            ...
        ValueError: always must name features by numbers from 0 to 1, got 2
    """
    if isinstance(feature, str):
        if names is None:
            raise ValueError(
                f"{name} names the feature {feature!r}, but X has no column names: fit on a "
                "DataFrame, or give numbers"
            )
        if feature not in names:
            raise ValueError(f"{name}: X has no column {feature!r}{checks.suggest(feature, names)}")
        return list(names).index(feature)
    number = checks.integer(name, feature, low=0)
    if number >= count:
        raise ValueError(
            f"{name} must name features by numbers from 0 to {count - 1}, got {number}"
        )
    return number


def units_of(
    groups: Any,
    always: Any,
    keep: Any,
    names: Sequence[str] | None,
    count: int,
    prior_keep: float | None,
    sparsity: float = 0.0,
) -> Units:
    """What one unit of the input is.

    Args:
        groups: Lists of features that live or die together, or ``None``.
        always: Features that are never masked, or ``None``.
        keep: Prior keep rate: one number, one per feature, or a mapping from features; or ``None``.
        names: Column names, if the training data had any.
        count: Number of features.
        prior_keep: Rate of features that a mapping leaves out.
        sparsity: What the prior will charge for every feature in the end. Rates that the user gave
            are to hold then, so they start higher.

    Examples:
        >>> units_of([["b", "c"]], ["a"], {"b": 0.5}, ["a", "b", "c", "d"], 4, 0.1)
        Units(axis=None, groups=[[1, 2]], patch=None, keep=(0.1, 0.5, 0.5, 0.1), always=[0])
    """

    def numbers(name: str, features: Any) -> list[int]:
        if isinstance(features, str) or not hasattr(features, "__iter__"):
            raise TypeError(f"{name} must be a list of features, got {features!r}")
        return [number_of(name, feature, names, count) for feature in features]

    if groups is not None and (isinstance(groups, str) or not hasattr(groups, "__iter__")):
        raise TypeError(f"groups must be a list of lists of features, got {groups!r}")
    grouped = [numbers("groups", group) for group in groups or ()]
    rates: Any = keep
    if isinstance(keep, Mapping):
        found = np.full(count, 0.5 if prior_keep is None else prior_keep)
        for feature, rate in keep.items():
            number = number_of("keep", feature, names, count)
            together = next((group for group in grouped if number in group), [number])
            found[together] = before("keep", rate, sparsity)
        rates = tuple(float(rate) for rate in found)
    elif keep is not None and np.ndim(keep):
        rates = tuple(before("keep", float(rate), sparsity) for rate in keep)
    elif keep is not None:
        rates = before("keep", keep, sparsity)
    return Units(
        groups=grouped, keep=rates, always=[] if always is None else numbers("always", always)
    )


def before(name: str, rate: Any, sparsity: float) -> float:
    """The keep rate that becomes ``rate`` once the prior charges ``sparsity``.

    Examples:
        >>> round(before("keep", 0.5, math.log(3)), 3)
        0.75
    """
    rate = checks.number(name, rate, low=0, high=1, open_low=True, open_high=True)
    return rate if not sparsity else 1 / (1 + math.exp(-policy.logit(rate) - sparsity))


def input_masks(
    chains: Sequence[Chain], x: Floats, samples: int, seeds: Sequence[int]
) -> list[torch.Tensor]:
    """Masks of the inputs as each chain draws them, [samples, rows, features] per chain.

    Args:
        chains: Trained networks with masked inputs.
        x: Rows, scaled.
        samples: Draws per chain.
        seeds: One per chain.
    """
    found = []
    for chain, seed in zip(chains, seeds, strict=True):
        model = chain.model
        first = next(model.parameters())
        site = [one.name for one in model.sites].index(INPUT)
        source = torch.Generator().manual_seed(seed)
        draws: list[int] = torch.randint(2**62, (samples,), generator=source).tolist()
        rows = torch.tensor(x, dtype=first.dtype, device=first.device)
        masks = draw(model, rows, draws, return_masks=True).masks
        assert masks is not None
        mask, layout = masks[site].cpu(), model.sites[site].layout
        if layout is not None:
            mask = layout.widen(mask.flatten(0, 1)).reshape(*mask.shape[:2], -1)
        found.append((mask > 0).float())  # rescaled ones, and gates, have other values than 1
    return found


def one_hot_groups(transformer: Any) -> list[list[int]]:
    """Columns of a fitted transformer's output that come from one column of its input.

    These are the one-hot columns of a ``OneHotEncoder``, and a column and its missing-value
    indicator of a ``SimpleImputer(add_indicator=True)``; alone, in a ``Pipeline`` or in a
    ``ColumnTransformer``. What other transformers give is taken column by column.

    Args:
        transformer: Fitted, with dense output.

    Returns:
        For the argument ``groups`` of the estimators.

    Examples:
        >>> from sklearn.compose import make_column_transformer
        >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
        >>> x = np.array([[0.5, 1, 0], [0.1, 2, 1], [0.2, 3, 0]])
        >>> encode = make_column_transformer((StandardScaler(), [0]), (OneHotEncoder(), [1, 2]))
        >>> one_hot_groups(encode.fit(x))
        [[1, 2, 3], [4, 5]]
    """
    members: dict[Any, list[int]] = {}
    for column, source in enumerate(_sources(transformer)):
        members.setdefault(source, []).append(column)
    return [columns for columns in members.values() if len(columns) > 1]


def _sources(transformer: Any) -> list[Any]:
    """What each output column comes from; the same thing for columns of one group."""
    if hasattr(transformer, "output_indices_"):  # ColumnTransformer
        size = max((part.stop for part in transformer.output_indices_.values()), default=0)
        found: list[Any] = list(range(size))
        for name, part, _ in transformer.transformers_:
            place = transformer.output_indices_[name]
            if part not in ("drop", "passthrough") and place.stop > place.start:
                found[place] = [(name, source) for source in _sources(part)]
        return found
    if hasattr(transformer, "steps"):  # Pipeline
        found = []
        for _, step in transformer.steps:
            if step is None or step == "passthrough":
                continue
            own = _sources(step)
            inside = not found or any(not isinstance(one, int) or one >= len(found) for one in own)
            found = own if inside else [found[one] for one in own]
        return found
    if hasattr(transformer, "drop_idx_"):  # OneHotEncoder
        plain = copy.copy(transformer)
        plain.feature_name_combiner = lambda feature, category: feature
        sources = [f"x{number}" for number in range(plain.n_features_in_)]
        if hasattr(plain, "feature_names_in_"):
            del plain.feature_names_in_
        return [sources.index(name) for name in plain.get_feature_names_out()]
    indicator = getattr(transformer, "indicator_", None)
    if indicator is not None:  # SimpleImputer
        kept = [
            number
            for number in range(transformer.n_features_in_)
            if transformer.keep_empty_features
            or transformer.statistics_[number] == transformer.statistics_[number]
        ]
        return [*kept, *(int(number) for number in indicator.features_)]
    return list(range(len(transformer.get_feature_names_out())))


def _empty(statistic: Any) -> bool:
    """Whether an imputer found no value in a column."""
    return isinstance(statistic, float) and math.isnan(statistic)
