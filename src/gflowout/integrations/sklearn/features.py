"""Features by name or number, and groups of them, as units of the input."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from gflowout.core import checks, policy
from gflowout.core.units import Units


def number_of(name: str, feature: Any, names: Sequence[str] | None, count: int) -> int:
    """Number of a feature that the argument ``name`` gives by column name or by number.

    ``names`` are the column names, if the training data had any, of the ``count`` features.
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
    prior_keep: float,
    sparsity: float = 0.0,
) -> Units:
    """Units of the input from the arguments ``groups``, ``always`` and ``keep`` of an estimator.

    ``prior_keep`` is the rate of features that a mapping ``keep`` leaves out. Rates of the user are
    those after the prior's final charge of ``sparsity`` for every feature, so they start higher.
    """

    def shown(number: int) -> str:
        return str(number) if names is None else repr(names[number])

    groups = [] if groups is None else groups
    lists = list(groups) if is_list(groups) else [groups]
    if not all(map(is_list, lists)):
        raise TypeError(
            f'groups must be a list of lists of features, such as [["a", "b"]], got {groups!r}'
        )
    grouped = [_numbers("groups", group, names, count) for group in lists]
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
    if isinstance(keep, Mapping):
        given = {number_of("keep", feature, names, count): rate for feature, rate in keep.items()}
    elif keep is not None and np.ndim(keep):
        if len(keep) != count:
            raise ValueError(
                f"keep must be one rate or one for each of the {count} features, got {len(keep)}"
            )
        given = dict(enumerate(keep))
    else:
        rate = None if keep is None else rate_before(keep, sparsity)
        return Units(groups=grouped, keep=rate, always=kept)
    rates = np.full(count, prior_keep)
    for group in [*grouped, *([number] for number in range(count) if number not in seen)]:
        own = {number: given[number] for number in group if number in given}
        if len(set(own.values())) > 1:
            listed = ", ".join(f"{rate} for {shown(number)}" for number, rate in own.items())
            raise ValueError(f"keep must be the same within a group, got {listed}")
        for rate in own.values():
            # The rate of a feature that is always kept has no effect: a list may say 1.
            rates[group] = 0.5 if group[0] in kept else rate_before(rate, sparsity)
    return Units(groups=grouped, keep=tuple(float(rate) for rate in rates), always=kept)


def _numbers(name: str, features: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """Numbers of features that a user listed, or marked in a boolean mask."""
    if not is_list(features):
        raise TypeError(f"{name} must be a list of features, got {features!r}")
    features = list(features)
    if features and all(isinstance(feature, bool | np.bool_) for feature in features):
        if len(features) != count:
            raise ValueError(
                f"{name} must be a list of features, or a mask of {count} of them, got a mask of "
                f"{len(features)}"
            )
        return [int(number) for number in np.flatnonzero(features)]
    return [number_of(name, feature, names, count) for feature in features]


def is_list(value: Any) -> bool:
    """Whether a value is a list of something: an iterable, but no string."""
    return hasattr(value, "__iter__") and not isinstance(value, str)


def rate_before(rate: Any, sparsity: float) -> float:
    """The rate of ``keep`` that becomes ``rate`` once the prior charges ``sparsity``."""
    if rate == 1:
        raise ValueError("keep must be below 1, got 1; name features that must stay in always")
    rate = checks.number("keep", rate, low=0, high=1, open_low=True, open_high=True)
    return rate if not sparsity else 1 / (1 + math.exp(-policy.logit(rate) - sparsity))


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
        steps = [step for _, step in transformer.steps if step not in (None, "passthrough")]
        if not steps:
            raise _mixed(transformer)
        sources = _sources(steps[0])
        for step in steps[1:]:
            sources = [sources[column] for column in _sources(step)]
        return sources
    if hasattr(transformer, "output_indices_"):  # ColumnTransformer
        size = max((part.stop for part in transformer.output_indices_.values()), default=0)
        sources = [-1] * size
        for name, part, _ in transformer.transformers_:
            place = transformer.output_indices_[name]
            if (isinstance(part, str) and part == "drop") or place.stop == place.start:
                continue
            inputs = transformer._transformer_to_input_indices[name]
            through = isinstance(part, str)  # "passthrough", in older versions
            columns = range(len(inputs)) if through else _sources(part)
            sources[place] = [int(inputs[column]) for column in columns]
        return sources
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
        names = plain.get_feature_names_out()
        return [numbers[name.removeprefix("missingindicator_")] for name in names]
    except NotFittedError:
        raise
    except (AttributeError, KeyError) as error:
        raise _mixed(transformer) from error


def _mixed(transformer: Any) -> ValueError:
    name = type(transformer).__name__
    return ValueError(f"which columns {name} mixes is unknown: give groups yourself")
