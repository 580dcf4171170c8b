"""Tables as they are: pandas and polars frames with categories, strings and missing values.

Every column of a frame becomes one or more columns of numbers, which are one unit: its mask keeps
or drops them together. So features are those of the frame, whatever it takes to encode them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_X_y, validate_data

from gflowout.core.units import Units
from gflowout.integrations.sklearn.tabular import Floats, Ints

MOST_LEVELS = 50
"""Categories of a column; rarer ones are like unknown ones."""


@dataclass(frozen=True)
class Numeric:
    """A column of numbers.

    Missing ones are the mean; there is an indicator of them if there were any in ``fit``.
    """

    mean: float
    indicator: bool

    @classmethod
    def of(cls, column: Any) -> Numeric:
        """From the values of a column."""
        values = _floats(column)
        missing = np.isnan(values)
        mean = 0.0 if missing.all() else float(values[~missing].mean())
        return cls(mean, bool(missing.any()))

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        return 1 + self.indicator

    def apply(self, column: Any) -> Floats:
        """Values, and the indicator, [rows, width]."""
        values = _floats(column)
        missing = np.isnan(values)
        filled = np.where(missing, self.mean, values)[:, None]
        return np.hstack([filled, missing[:, None]]) if self.indicator else filled


@dataclass(frozen=True)
class Levels:
    """A column of categories or strings: one column of 0 and 1 for each level, missing is one.

    Levels that were not there in ``fit``, or are rarer than others of many, are 0 in all columns.
    """

    levels: tuple[str | None, ...]

    @classmethod
    def of(cls, column: Any) -> Levels:
        """From the values of a column."""
        counts = Counter(_labels(column))
        most = sorted(counts, key=lambda level: (-counts[level], level is None, str(level)))
        return cls(tuple(sorted(most[:MOST_LEVELS], key=lambda level: (level is None, str(level)))))

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        return len(self.levels)

    def apply(self, column: Any) -> Floats:
        """Indicators, [rows, width]."""
        place = {level: number for number, level in enumerate(self.levels)}
        at = np.array([place.get(label, -1) for label in _labels(column)], dtype=int)
        indicators: Floats = (at[:, None] == np.arange(self.width)).astype(np.float64)
        return indicators


@dataclass(frozen=True)
class Encoder:
    """How the columns of a frame become numbers, learned from the frame of ``fit``.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"dose": [1.0, None, 3.0], "ward": ["b", "a", None]})
        >>> encoder = Encoder.of(frame)
        >>> encoder.apply(frame).tolist()
        [[1.0, 0.0, 0.0, 1.0, 0.0], [2.0, 1.0, 1.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0, 1.0]]
        >>> encoder.source.tolist()
        [0, 0, 1, 1, 1]
    """

    columns: tuple[Numeric | Levels, ...]

    @classmethod
    def of(cls, frame: Any) -> Encoder:
        """From the frame that is fitted to."""
        names, series = list(frame.columns), _series(frame)
        for name, column in zip(names, series, strict=True):
            if _is_time(column):
                raise ValueError(
                    f"X has dates or times in the column {name!r}: make numbers of them, such as "
                    "days since the first"
                )
        return cls(tuple((Numeric if _is_numeric(c) else Levels).of(c) for c in series))

    @property
    def source(self) -> Ints:
        """Number of the frame's column that each column of numbers comes from."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    def apply(self, frame: Any) -> Floats:
        """The frame as numbers, [rows, columns]."""
        parts = zip(self.columns, _series(frame), strict=True)
        return np.hstack([kind.apply(column) for kind, column in parts])

    def units(self, units: Units) -> Units:
        """Units of the frame's columns as units of the columns of numbers."""
        cells = [np.flatnonzero(self.source == number).tolist() for number in range(self.width)]
        grouped = {number for group in units.groups for number in group}
        free = [n for n in range(self.width) if n not in grouped and n not in units.always]
        groups = [[cell for number in group for cell in cells[number]] for group in units.groups]
        groups += [cells[number] for number in free if len(cells[number]) > 1]
        keep = units.keep
        if keep is not None and not isinstance(keep, Real):
            keep = tuple(keep[number] for number in self.source)  # type: ignore[index]
        always = [cell for number in units.always for cell in cells[number]]
        return Units(groups=groups, keep=keep, always=always)

    @property
    def width(self) -> int:
        """Number of the frame's columns."""
        return len(self.columns)


def is_frame(table: Any) -> bool:
    """Whether a table is a frame of pandas or polars."""
    return hasattr(table, "columns") and (hasattr(table, "iloc") or hasattr(table, "to_series"))


def is_plain(frame: Any) -> bool:
    """Whether a frame holds numbers only, none of them missing: it needs no encoder."""
    return all(
        _is_numeric(column) and not _is_object(column) and not np.isnan(_floats(column)).any()
        for column in _series(frame)
    )


def _series(frame: Any) -> list[Any]:
    pick = frame.to_series if hasattr(frame, "to_series") else lambda n: frame.iloc[:, n]
    return [pick(number) for number in range(len(frame.columns))]


def _is_pandas(column: Any) -> bool:
    return hasattr(column, "iloc")


def _is_object(column: Any) -> bool:
    return str(column.dtype).lower() == "object"


def _is_numeric(column: Any) -> bool:
    """Whether a column holds numbers or booleans, whatever their type."""
    if _is_object(column):  # one string makes strings of all
        return all(value is None or isinstance(value, Real) for value in _values(column))
    if _is_pandas(column):
        return column.dtype.name != "category" and getattr(column.dtype, "kind", "O") in "biuf"
    return bool(column.dtype.is_numeric()) or str(column.dtype) == "Boolean"


def _is_time(column: Any) -> bool:
    if _is_pandas(column):
        return getattr(column.dtype, "kind", "O") in "mM"
    return bool(column.dtype.is_temporal())


def _values(column: Any) -> list[Any]:
    """The values of a column, ``None`` where one is missing."""
    if not _is_pandas(column):
        return list(column.to_list())
    return column.astype(object).where(column.notna(), None).tolist()  # type: ignore[no-any-return]


def _labels(column: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in _values(column)]


def _floats(column: Any) -> Floats:
    """The numbers of a column, NaN where one is missing."""
    try:
        values = np.array([np.nan if v is None else v for v in _values(column)], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X: column {column.name!r} must hold numbers, as in fit ({error})"
        ) from error
    if np.isinf(values).any():
        raise ValueError(f"X: column {column.name!r} holds infinity")
    return values


class TableReader(BaseEstimator):  # type: ignore[misc]
    """An estimator whose tables may be arrays or frames."""

    _encoder: ClassVar[Encoder | None] = None  # of a frame that is not plain numbers, set by fit

    def _numbers(self, X: Any) -> Floats:  # noqa: N803
        """The columns of numbers of a table like that of ``fit``, [rows, columns]."""
        encoder = self._encoder
        if encoder is None:
            plain: Floats = validate_data(self, X, dtype=np.float64, reset=False)
            return plain
        if not is_frame(X):
            raise TypeError(
                "X must be a DataFrame with the columns of fit, some of which are not plain "
                f"numbers, got {type(X).__name__}"
            )
        validate_data(self, X, reset=False, skip_check_array=True)
        return encoder.apply(X)

    def _learned(self, X: Any, y: Any, **how: Any) -> tuple[Floats, Any]:  # noqa: N803
        """The columns of numbers of the table that is fitted to, and its checked targets."""
        self.__dict__["_encoder"] = None
        if not is_frame(X) or is_plain(X):
            return cast(tuple[Floats, Any], validate_data(self, X, y, dtype=np.float64, **how))
        validate_data(self, X, y, skip_check_array=True)
        encoder = Encoder.of(X)
        self.__dict__["_encoder"] = encoder
        return cast(tuple[Floats, Any], check_X_y(encoder.apply(X), y, estimator=self, **how))

    @property
    def _first(self) -> Ints:
        """The first column of numbers of every feature, [features]."""
        if self._encoder is None:
            return np.arange(self.n_features_in_)
        return np.unique(self._encoder.source, return_index=True)[1]
