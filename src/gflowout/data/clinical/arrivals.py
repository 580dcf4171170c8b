"""What is known of a stay when it begins, as columns: age, gender, diagnosis, unit, source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.clinical.tables import read_arrivals

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Arrivals", "read_arrivals"]

NUMBERS = ("age", "admissionheight", "admissionweight")
WORDS = (
    "gender", "ethnicity", "unittype", "unitstaytype", "unitadmitsource", "hospitaladmitsource",
    "apacheadmissiondx",
)  # fmt: skip


@dataclass(frozen=True)
class Arrivals:
    """Columns for what is known at admission, learned from training stays.

    A number is standardised; where it is missing it is 0, the mean, and marked in a column of its
    own. A word is one column per value that is frequent enough in training.

    Attributes:
        numbers: Mean and standard deviation by column of the table.
        words: Frequent values by column of the table.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({"age": [60.0, 80.0], "gender": ["Female", "Male"]})
        >>> arrivals = Arrivals.fit(stays, min_count=1)
        >>> arrivals.features
        ('age', 'age missing', 'gender: Female', 'gender: Male')
        >>> arrivals.encode(stays)
        tensor([[-1.,  0.,  1.,  0.],
                [ 1.,  0.,  0.,  1.]])
    """

    numbers: Mapping[str, tuple[float, float]]
    words: Mapping[str, tuple[str, ...]]

    @classmethod
    def fit(cls, stays: pd.DataFrame, min_count: int = 15) -> Arrivals:
        """Learn means, spreads and frequent values from training stays.

        Args:
            stays: With any of the columns :data:`NUMBERS` and :data:`WORDS`.
            min_count: Number of training stays that must have a value.
        """
        checks.integer("min_count", min_count, low=1)
        numbers, words = {}, {}
        for name in (name for name in NUMBERS if name in stays):
            values = stays[name].dropna()
            spread = float(values.std(ddof=0)) if len(values) else 1.0
            numbers[name] = (float(values.mean()) if len(values) else 0.0, spread or 1.0)
        for name in (name for name in WORDS if name in stays):
            counts = stays[name].value_counts()
            words[name] = tuple(sorted(map(str, counts.index[counts >= min_count])))
        return cls(numbers, words)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns."""
        numbers = [text for name in self.numbers for text in (name, f"{name} missing")]
        return (
            *numbers,
            *(f"{name}: {value}" for name, values in self.words.items() for value in values),
        )

    def encode(self, stays: pd.DataFrame) -> Tensor:
        """Columns of stays, float32 [stays, features]."""
        columns: list[Any] = []
        for name, (mean, spread) in self.numbers.items():
            columns += [((stays[name] - mean) / spread).fillna(0), stays[name].isna()]
        for name, values in self.words.items():
            columns += [stays[name] == value for value in values]
        if not columns:
            return torch.zeros(len(stays), 0)
        arrays = [column.to_numpy(dtype="float32", copy=True) for column in columns]
        return torch.stack([torch.from_numpy(array) for array in arrays], 1)
