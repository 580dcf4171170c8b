"""What is known at admission: columns that are learned from training stays alone."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from gflowout.data.clinical.arrivals import Arrivals, read_arrivals


def frame(**columns: list) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_columns_are_those_of_training_stays() -> None:
    train = frame(
        age=[50.0, 70.0, math.nan], unittype=["MICU", "MICU", "SICU"], gender=["Male"] * 3
    )
    arrivals = Arrivals.fit(train, min_count=2)
    assert arrivals.features == ("age", "age missing", "gender: Male", "unittype: MICU")
    other = frame(age=[80.0, math.nan], unittype=["SICU", None], gender=["Female", "Male"])
    expected = torch.tensor([[2.0, 0, 0, 0], [0.0, 1, 1, 0]])
    assert torch.equal(arrivals.encode(other), expected)


def test_nothing_known_is_no_column() -> None:
    assert Arrivals.fit(frame(other=[1, 2])).encode(frame(other=[1, 2])).shape == (2, 0)
    constant = Arrivals.fit(frame(age=[60.0, 60.0])).encode(frame(age=[61.0]))
    assert constant.tolist() == [[1.0, 0.0]]
    unknown = Arrivals.fit(frame(age=[math.nan])).encode(frame(age=[math.nan]))
    assert unknown.tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="min_count must be an integer >= 1, got 0"):
        Arrivals.fit(frame(age=[1.0]), min_count=0)


def test_the_demo(real_data: Callable[[str], Path]) -> None:
    arrivals = read_arrivals(real_data("eicu-demo"))
    assert len(arrivals) == 2520
    assert arrivals.index.is_unique
    assert "Med-Surg ICU" in set(arrivals.unittype)
    learned = Arrivals.fit(arrivals)
    assert learned.encode(arrivals).isfinite().all()
    assert any(name.startswith("apacheadmissiondx: Sepsis") for name in learned.features)
