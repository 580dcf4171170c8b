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
from sklearn.exceptions import NotFittedError

from gflowout.core import checks, policy
from gflowout.core.random import draw_seeds
from gflowout.core.sites import INPUT
from gflowout.core.units import Units
from gflowout.integrations.sklearn.chains import Chain, draw
from gflowout.integrations.sklearn.tabular import Floats


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

    def shown(number: int) -> str:
        return str(number) if names is None else repr(names[number])

    grouped = _grouped(groups, names, count)
    kept = [] if always is None else _numbers("always", always, names, count)
    seen: set[int] = set()
    for number in (number for group in grouped for number in group):
        if number in seen:
            raise ValueError(f"groups: feature {shown(number)} is named twice")
        if number in kept:
            raise ValueError(f"always: feature {shown(number)} is in a group as well; name it once")
        seen.add(number)
    if hasattr(keep, "to_dict"):  # a Series goes by its index
        keep = keep.to_dict()
    rates: Any = keep
    if isinstance(keep, Mapping):
        given = {number_of("keep", one, names, count): rate for one, rate in keep.items()}
    elif keep is not None and np.ndim(keep):
        if len(keep) != count:
            raise ValueError(
                f"keep must be one rate or one for each of the {count} features, got {len(keep)}"
            )
        given = dict(enumerate(keep))
    else:
        rates = None if keep is None else before("keep", keep, sparsity)
        return Units(groups=grouped, keep=rates, always=kept)
    found = np.full(count, 0.5 if prior_keep is None else prior_keep)
    for together in [*grouped, *([one] for one in range(count) if one not in seen)]:
        own = {number: given[number] for number in together if number in given}
        if len(set(own.values())) > 1:
            listed = ", ".join(f"{rate} for {shown(number)}" for number, rate in own.items())
            raise ValueError(f"keep must be the same within a group, got {listed}")
        for rate in own.values():
            # Features that stay have no use for a rate: a list may say 1.
            found[together] = 0.5 if together[0] in kept else before("keep", rate, sparsity)
    return Units(groups=grouped, keep=tuple(float(rate) for rate in found), always=kept)


def _grouped(groups: Any, names: Sequence[str] | None, count: int) -> list[list[int]]:
    """Groups by numbers."""
    wanted = 'groups must be a list of lists of features, such as [["a", "b"]]'
    if groups is None:
        return []
    if isinstance(groups, str) or not hasattr(groups, "__iter__"):
        raise TypeError(f"{wanted}, got {groups!r}")
    groups = list(groups)
    if any(isinstance(group, str) or not hasattr(group, "__iter__") for group in groups):
        raise TypeError(f"{wanted}, got {groups!r}")
    return [_numbers("groups", group, names, count) for group in groups]


def _numbers(name: str, features: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """Numbers of features that a user listed, or marked in a boolean mask."""
    if isinstance(features, str) or not hasattr(features, "__iter__"):
        raise TypeError(f"{name} must be a list of features, got {features!r}")
    features = list(features)
    if features and all(isinstance(one, bool | np.bool_) for one in features):
        if len(features) != count:
            raise ValueError(
                f"{name} must be a list of features, or a mask of {count} of them, got a mask of "
                f"{len(features)}"
            )
        return [int(number) for number in np.flatnonzero(features)]
    return [number_of(name, feature, names, count) for feature in features]


def before(name: str, rate: Any, sparsity: float) -> float:
    """The keep rate that becomes ``rate`` once the prior charges ``sparsity``.

    Examples:
        >>> round(before("keep", 0.5, math.log(3)), 3)
        0.75
    """
    if rate == 1:
        raise ValueError(f"{name} must be below 1, got 1; name features that must stay in always")
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
        draws = draw_seeds(samples, source)
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

    These are the one-hot columns of a ``OneHotEncoder`` or ``KBinsDiscretizer``, and a column and
    its missing-value indicator of an imputer with ``add_indicator=True``; alone, or in a
    ``Pipeline``, ``ColumnTransformer`` or ``FeatureUnion``, with scalers and selectors before and
    after. Numbers are those of this fitted transformer's output: fitted on other rows, an encoder
    may have other columns.

    Args:
        transformer: Fitted, with dense output.

    Returns:
        For the argument ``groups`` of the estimators.

    Raises:
        ValueError: If a transformer makes columns of several others, or does not say what they are.

    Examples:
        >>> from sklearn.compose import make_column_transformer
        >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
        >>> x = np.array([[0.5, 1, 0], [0.1, 2, 1], [0.2, 3, 0]])
        >>> encode = make_column_transformer((StandardScaler(), [0]), (OneHotEncoder(), [1, 2]))
        >>> one_hot_groups(encode.fit(x))
        [[1, 2, 3], [4, 5]]
    """
    members: dict[int, list[int]] = {}
    for column, source in enumerate(_sources(transformer)):
        members.setdefault(source, []).append(column)
    return [columns for columns in members.values() if len(columns) > 1]


def _sources(transformer: Any) -> list[int]:
    """Number of the input column that each output column comes from."""
    if hasattr(transformer, "steps"):  # Pipeline
        found: list[int] | None = None
        for _, step in transformer.steps:
            if step is not None and step != "passthrough":
                own = _sources(step)
                found = own if found is None else [found[one] for one in own]
        if found is None:
            raise _mixed(transformer)
        return found
    if hasattr(transformer, "output_indices_"):  # ColumnTransformer
        size = max((part.stop for part in transformer.output_indices_.values()), default=0)
        found = [-1] * size
        for name, part, _ in transformer.transformers_:
            place = transformer.output_indices_[name]
            if (isinstance(part, str) and part == "drop") or place.stop == place.start:
                continue
            inputs = transformer._transformer_to_input_indices[name]
            through = isinstance(part, str)  # "passthrough", in older versions
            own = list(range(len(inputs))) if through else _sources(part)
            found[place] = [int(inputs[one]) for one in own]
        return found
    if hasattr(transformer, "transformer_list"):  # FeatureUnion
        parts = [part for _, part in transformer.transformer_list if part != "drop"]
        return [source for part in parts for source in _sources(part)]
    if hasattr(transformer, "get_support"):
        return [int(number) for number in transformer.get_support(indices=True)]
    return _by_names(transformer)


def _by_names(transformer: Any) -> list[int]:
    """The same of a transformer that keeps the names of its columns, or those of its parts."""
    if hasattr(transformer, "n_bins_") and transformer.encode != "ordinal":  # KBinsDiscretizer
        return [column for column, bins in enumerate(transformer.n_bins_) for _ in range(bins)]
    if getattr(transformer, "keep_empty_features", False):  # imputers; some names then lack columns
        indicator = getattr(transformer, "indicator_", None)
        marked = [] if indicator is None else [int(number) for number in indicator.features_]
        return [*range(transformer.n_features_in_), *marked]
    plain = copy.copy(transformer)
    if hasattr(plain, "drop_idx_"):  # OneHotEncoder
        plain.feature_name_combiner = lambda feature, category: feature
    if hasattr(plain, "feature_names_in_"):
        del plain.feature_names_in_  # which could be ambiguous
    numbers = {f"x{number}": number for number in range(getattr(plain, "n_features_in_", 0))}
    try:
        names = [one.removeprefix("missingindicator_") for one in plain.get_feature_names_out()]
        return [numbers[name] for name in names]
    except NotFittedError:
        raise
    except (AttributeError, KeyError) as error:
        raise _mixed(transformer) from error


def _mixed(transformer: Any) -> ValueError:
    name = type(transformer).__name__
    return ValueError(f"cannot tell which columns {name} mixes; give groups yourself")
