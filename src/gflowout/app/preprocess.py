"""What a trained model takes and gives, learned from training data and kept beside the model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from gflowout.core import checks
from gflowout.core.likelihoods import Binary, Categorical, Gaussian, Likelihood
from gflowout.data.errors import DataError
from gflowout.data.transforms import Normalize, Transform

FORMAT = 1
MOST_LEVELS = 100  # of a categorical column; one with more is taken for an identifier
MOST_CODES = 10  # different numbers in a categorical column of text; one with more, which are
NUMERIC_SHARE = 0.9  # of all values at least, is taken for numbers with odd cells


@dataclass(frozen=True)
class Images:
    """Images of one size, shifted and scaled per channel."""

    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, images: Tensor) -> Images:
        """Learn from training images, uint8 [N, C, H, W]."""
        learned = Normalize.fit(images)
        _, channels, height, width = images.shape
        mean, std = tuple(learned.mean.tolist()), tuple(learned.std.tolist())
        return cls((channels, height, width), mean, std)

    @property
    def transform(self) -> Transform:
        """Maps stored images to what the network takes."""
        return Normalize(torch.tensor(self.mean), torch.tensor(self.std))


@dataclass(frozen=True)
class Column:
    """One column of a table: a number with its mean and scale in training, or a category."""

    name: str
    mean: float = 0.0
    std: float = 1.0  # also where the number never varies
    levels: tuple[str, ...] | None = None  # of a category, one input each; None for a number
    missing: bool = False  # whether missing values, seen in training, have an input of their own


@dataclass
class Remarks:
    """What happened to inputs that training has not prepared for, counted."""

    ignored: set[str] = field(default_factory=set)  # columns that the model does not take
    unknown: Counter[str] = field(default_factory=Counter)  # values per column that become zeros
    missing: Counter[str] = field(default_factory=Counter)  # values per column that become the mean
    resized: int = 0  # images

    def lines(self, total: int) -> list[str]:
        """One sentence each, of ``total`` examples."""
        ignored = f"columns that the model does not take: {', '.join(sorted(self.ignored))}"
        resized = f"{self.resized:,} of {total:,} images had another size and were resized"
        unseen = "values that training has not seen"
        missing = "missing values, of which training had none"
        return [
            *([ignored] if self.ignored else []),
            *(f"column {name!r}: {count:,} {unseen}" for name, count in self.unknown.items()),
            *(f"column {name!r}: {count:,} {missing}" for name, count in self.missing.items()),
            *([resized] if self.resized else []),
        ]


@dataclass(frozen=True)
class Table:
    """The columns of a table in the order of the inputs: numbers standardised, categories one-hot.

    Examples:
        >>> frame = pd.DataFrame({"age": [20.0, 40.0, None], "unit": ["a", "b", "a"]})
        >>> table = Table.fit(frame)
        >>> table.names
        ['age', 'age missing', 'unit=a', 'unit=b']
        >>> table.encode(frame, Remarks())
        tensor([[-1.,  0.,  1.,  0.],
                [ 1.,  0.,  0.,  1.],
                [ 0.,  1.,  1.,  0.]])
    """

    columns: tuple[Column, ...]
    transform: ClassVar[None] = None  # an encoded table is what the network takes

    @classmethod
    def fit(cls, frame: pd.DataFrame, categorical: Sequence[str] = ()) -> Table:
        """Learn from training rows without the target; ``categorical`` names columns of codes."""
        if not len(frame.columns):
            raise DataError("the table has no column besides the target")
        return cls(tuple(_learn(frame[name], name in categorical) for name in frame.columns))

    @classmethod
    def plain(cls, names: Sequence[str]) -> Table:
        """Columns of numbers that are taken as they are."""
        return cls(tuple(Column(name) for name in names))

    @property
    def names(self) -> list[str]:
        """Of the inputs."""
        names = []
        for column in self.columns:
            if column.levels is None:
                names.append(column.name)
            else:
                names += [f"{column.name}={level}" for level in column.levels]
            names += [f"{column.name} missing"] * column.missing
        return names

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return (len(self.names),)

    def encode(self, frame: pd.DataFrame, remarks: Remarks) -> Tensor:
        """Turn rows with columns in any order into inputs, float32 [N, inputs]; add remarks."""
        names = [column.name for column in self.columns]
        ignored = {str(name) for name in frame.columns} - set(names)
        missing = [name for name in names if name not in frame.columns]
        if missing:
            listed = ", ".join(repr(name) for name in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            columns = "column" if len(missing) == 1 else "columns"
            hint = checks.suggest(missing[0], sorted(ignored))
            raise DataError(f"misses the {columns} {listed}{more}{hint}")
        remarks.ignored |= ignored
        parts = [_encoded(column, frame[column.name], remarks) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, 1).astype("float32"))


@dataclass(frozen=True)
class Target:
    """What is predicted: classes, or a number with its mean and scale in training."""

    likelihood: str  # "categorical", "binary" or "gaussian"
    name: str = "label"
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def fit(cls, likelihood: str, name: str, labels: pd.Series[Any]) -> Target:
        """Learn the classes, or the mean and scale of numbers."""
        if likelihood == "gaussian":
            mean, std = _mean_and_scale(_label_numbers(name, labels))
            return cls(likelihood, name, mean=mean, std=std)
        return cls(likelihood, name, sorted_levels(labels.tolist()))

    def encode(self, labels: pd.Series[Any]) -> Tensor:
        """Labels as the likelihood takes them: classes by number, numbers standardised."""
        if self.likelihood == "gaussian":
            numbers = _label_numbers(self.name, labels)
            return torch.from_numpy((numbers - self.mean) / self.std).float()
        codes = {name: code for code, name in enumerate(self.classes)}
        names = [level(value) for value in labels.tolist()]
        unknown = next((name for name in names if name not in codes), None)
        if unknown is not None:
            listed = ", ".join(self.classes[:12]) + (", ..." if len(codes) > 12 else "")
            raise DataError(f"the label {unknown!r} is none of the classes of the model: {listed}")
        encoded = torch.tensor([codes[name] for name in names])
        return encoded.float() if self.likelihood == "binary" else encoded

    @property
    def outputs(self) -> int:
        """Numbers that the network gives."""
        return len(self.classes) if self.likelihood == "categorical" else 1

    def build(self) -> Likelihood:
        """The likelihood itself."""
        if self.likelihood == "categorical":
            return Categorical(len(self.classes))
        return Binary() if self.likelihood == "binary" else Gaussian(1)


@dataclass(frozen=True)
class Problem:
    """What a model takes and gives: all that its use needs beside its weights."""

    source: str
    inputs: Images | Table
    target: Target
    train_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.inputs.shape

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        kind = "images" if isinstance(self.inputs, Images) else "table"
        return {"format": FORMAT, "kind": kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Problem:
        """The problem of :meth:`to_dict`."""
        if values.get("format") != FORMAT:
            raise ValueError(f"format {values.get('format')!r} is not known here, only {FORMAT}")
        inputs: Images | Table
        if values["kind"] == "images":
            inputs = Images(**lists_to_tuples(values["inputs"]))
        else:
            columns = values["inputs"]["columns"]
            inputs = Table(tuple(Column(**lists_to_tuples(column)) for column in columns))
        target = Target(**lists_to_tuples(values["target"]))
        return cls(values["source"], inputs, target, int(values["train_size"]))


def level(value: Any) -> str:
    """Name of a categorical value; 3 and 3.0 are the same."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def sorted_levels(values: Sequence[Any]) -> tuple[str, ...]:
    """Names of all categorical values, numbers by their size."""
    distinct = set(values)
    try:
        ordered = sorted(distinct)
    except TypeError:
        ordered = sorted(distinct, key=str)
    return tuple(dict.fromkeys(level(value) for value in ordered))


def check_numbers(frame: pd.DataFrame, categorical: Sequence[str]) -> None:
    """Raise if a few cells that are no numbers make a column of numbers one of text.

    Needs all rows of a file: a part of it may have numbers only.
    """
    for name in frame.columns:
        if name in categorical or pd.api.types.is_numeric_dtype(frame[name]):
            continue
        present = frame[name].dropna()
        numbers = pd.to_numeric(present.astype(str), errors="coerce")
        odd, count = present[numbers.isna()], numbers.count()
        mostly = NUMERIC_SHARE * len(present) <= count < len(present)
        if mostly and numbers.nunique() > MOST_CODES:
            raise DataError(
                f"column {name!r}: {count:,} of {len(present):,} values are numbers, but not "
                f"{odd.iloc[0]!r} in {_row(odd.index[0])}: correct the cell or leave it empty; for "
                "codes, add the column to data.categorical (the target: set data.likelihood)"
            )


def _row(index: Any) -> str:
    return f"row {index + 1} (the header is not counted)"


def _learn(values: pd.Series[Any], categorical: bool) -> Column:
    name = str(values.name)
    present = values[values.notna()]
    missing = len(present) < len(values)
    if not len(present):
        raise DataError(f"column {name!r} has no value in the training rows: add it to data.drop")
    if pd.api.types.is_numeric_dtype(values) and not categorical:
        return Column(name, *_mean_and_scale(_numbers(name, present)), missing=missing)
    nameable = all(isinstance(v, str | bool | int | float | np.generic) for v in present[:100])
    if pd.api.types.is_datetime64_any_dtype(values) or not nameable:
        raise DataError(
            f"column {name!r} is {values.dtype}, neither a number nor a name: add it to data.drop"
        )
    levels = sorted_levels(present.tolist())
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"column {name!r} has {len(levels):,} distinct values (such as {levels[0]!r}), more "
            f"than {MOST_LEVELS}: is it an identifier? Add it to data.drop"
        )
    return Column(name, levels=levels, missing=missing)


def _label_numbers(name: str, labels: pd.Series[Any]) -> NDArray[np.float64]:
    try:
        numbers: NDArray[np.float64] = labels.to_numpy(dtype="float64")
    except (TypeError, ValueError) as error:
        raise DataError(f"the labels {name!r} must be numbers") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"the labels {name!r} hold infinity")
    return numbers


def _mean_and_scale(numbers: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation, which is 1 for numbers that never vary."""
    std = float(numbers.std())
    return float(numbers.mean()), std if std > 0 else 1.0


def _numbers(name: str, values: pd.Series[Any]) -> NDArray[np.float64]:
    """Numbers of a column, NaN where missing."""
    try:
        numbers: NDArray[np.float64] = values.to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError):
        parsed = pd.to_numeric(values, errors="coerce")
        odd = values[parsed.isna() & values.notna()]
        if len(odd):
            raise DataError(
                f"column {name!r} must hold numbers as in training, got {odd.iloc[0]!r} in "
                f"{_row(odd.index[0])}"
            ) from None
        numbers = parsed.to_numpy(dtype="float64")
    if np.isinf(numbers).any():
        where = _row(values.index[np.isinf(numbers)][0])
        raise DataError(f"column {name!r} holds infinity in {where}")
    return numbers


def _encoded(column: Column, values: pd.Series[Any], remarks: Remarks) -> NDArray[np.float64]:
    absent = values.isna().to_numpy()
    if column.levels is None:
        numbers = (_numbers(column.name, values) - column.mean) / column.std
        block = np.where(absent, 0.0, numbers)[:, None]
    else:
        names = pd.Index([level(value) for value in values.tolist()], dtype="object")
        codes = pd.Index(column.levels, dtype="object").get_indexer(names)
        codes[absent] = -1  # a level may be called "nan"
        block = (codes[:, None] == np.arange(len(column.levels))).astype("float64")
        if unknown := int(((codes < 0) & ~absent).sum()):
            remarks.unknown[column.name] += unknown
    if column.missing:
        return np.concatenate([block, absent[:, None].astype("float64")], 1)
    if absent.any():
        remarks.missing[column.name] += int(absent.sum())
    return block


def lists_to_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, as they were before JSON or YAML made lists of tuples."""
    return {key: tuple(part) if isinstance(part, list) else part for key, part in values.items()}
