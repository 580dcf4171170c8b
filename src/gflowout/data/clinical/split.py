"""Splits of stays by hospital and by patient.

No patient is on both sides: of a patient with stays in hospitals of the training side and of the
test side, only the stays of the test side are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from gflowout.core import checks, random

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HospitalSplit:
    """Training stays, and test stays of other hospitals.

    Attributes:
        train: Training stays.
        test: Test stays.
        hospitals: Hospitals of the test side.
        removed: Number of training stays dropped because their patient is on the test side.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({"patient": list("abc"), "hospital": [7, 8, 9]})
        >>> split = leave_hospital_out(stays, 9)
        >>> split.test.patient.tolist(), split.removed
        (['c'], 0)
    """

    train: pd.DataFrame
    test: pd.DataFrame
    hospitals: tuple[int, ...]
    removed: int


def leave_hospital_out(
    stays: pd.DataFrame,
    test_hospital: int | float | str | Collection[int] = "largest",
    *,
    seed: int = 0,
) -> HospitalSplit:
    """Test on some hospitals, train on all others.

    Args:
        stays: Result of :func:`stay_table`.
        test_hospital: ``"largest"`` (most stays; the lowest id of equals), an id, several ids, or a
            fraction below 1: hospitals are drawn until they hold at least that part of all stays.
        seed: Seed of that draw.

    Raises:
        ValueError: If a hospital is not in the table, or a side would be empty.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({"patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9]})
        >>> split = leave_hospital_out(stays)  # tests on the largest
        >>> split.hospitals, len(split.train), len(split.test)
        ((7,), 3, 3)
    """
    _not_empty(stays)
    chosen: tuple[int, ...]
    if isinstance(test_hospital, str):
        checks.choice("test_hospital", test_hospital, ["largest"])
        sizes = stays.groupby("hospital").size()
        chosen = (int(sizes.index[int(sizes.to_numpy().argmax())]),)
    elif isinstance(test_hospital, float):
        chosen = _draw(stays, test_hospital, seed)
    elif isinstance(test_hospital, Collection):
        chosen = tuple(sorted({_hospital("test_hospital", one, stays) for one in test_hospital}))
    else:
        chosen = (_hospital("test_hospital", test_hospital, stays),)
    inside = stays.hospital.isin(chosen)
    return _sides(stays[~inside], stays[inside], chosen)


def between_hospitals(
    stays: pd.DataFrame, *, train_hospital: int | str, test_hospital: int | str
) -> HospitalSplit:
    """Train on one hospital, test on another.

    Args:
        stays: Result of :func:`stay_table`.
        train_hospital: Id of the hospital to train on; or ``"~4500"`` for the one whose number of
            stays is nearest (the lowest id of equals).
        test_hospital: The hospital to test on, in the same way; a number of stays looks among the
            others.

    Raises:
        ValueError: If they are the same, a hospital is not in the table or a side would be empty.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({"patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9]})
        >>> len(between_hospitals(stays, train_hospital=7, test_hospital=8).train)
        3
        >>> between_hospitals(stays, train_hospital="~4", test_hospital="~3").hospitals
        (8,)
    """
    _not_empty(stays)
    train = _sized("train_hospital", train_hospital, stays)
    others = stays[stays.hospital != train] if isinstance(test_hospital, str) else stays
    test = _sized("test_hospital", test_hospital, others)
    if train == test:
        expected = "another hospital than test_hospital"
        raise ValueError(f"train_hospital must be {expected}, got {train} for both")
    return _sides(stays[stays.hospital == train], stays[stays.hospital == test], (test,))


def hold_out_patients(
    stays: pd.DataFrame, valid_fraction: float = 0.3, *, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Hold out whole patients, the same fraction of those who died and of those who survived.

    Args:
        stays: Training stays.
        valid_fraction: Fraction of the patients to hold out, in [0, 1).
        seed: Seed of the draw. The result does not depend on the order of the rows.

    Returns:
        The stays to train on and those held out.

    Raises:
        ValueError: If no patient would be left to train on.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "died": [True, False, False, True, False, False],
        ... })
        >>> train, valid = hold_out_patients(stays, 0.5, seed=0)
        >>> len(train), int(train.died.sum()), len(valid), int(valid.died.sum())
        (3, 1, 3, 1)
    """
    _not_empty(stays)
    fraction = checks.number("valid_fraction", valid_fraction, low=0, high=1, open_high=True)
    generator = random.generator(seed, "patients")
    died = stays.groupby("patient").died.any()
    held_out: list[str] = []
    for dead in (False, True):
        names = sorted(died.index[died == dead])
        order = torch.randperm(len(names), generator=generator).tolist()
        held_out += [names[i] for i in order[: round(fraction * len(names))]]
    if len(held_out) == len(died):
        got = f"{fraction:g}, which sets all {len(died)} apart"
        raise ValueError(f"valid_fraction must leave patients to train on, got {got}")
    valid = stays.patient.isin(held_out)
    return stays[~valid], stays[valid]


def _draw(stays: pd.DataFrame, fraction: float, seed: int) -> tuple[int, ...]:
    checks.number("test_hospital", fraction, low=0, high=1, open_low=True, open_high=True)
    generator = random.generator(seed, "hospitals")
    sizes = stays.groupby("hospital").size()
    order = sizes.iloc[torch.randperm(len(sizes), generator=generator).numpy()]
    enough = int((order.cumsum() >= fraction * len(stays)).to_numpy().argmax())
    return tuple(sorted(int(hospital) for hospital in order.index[: enough + 1]))


def _not_empty(stays: pd.DataFrame) -> None:
    if not len(stays):
        raise ValueError("stays must hold at least one stay, got none")


def _hospital(name: str, value: Any, stays: pd.DataFrame) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be the id of a hospital, got {value!r}")
    if not (stays.hospital == int(value)).any():
        largest = ", ".join(map(str, stays.hospital.value_counts().index[:5]))
        expected = "a hospital with stays in the table"
        raise ValueError(f"{name} must be {expected}, got {value}; the largest are {largest}")
    return int(value)


def _sized(name: str, value: Any, stays: pd.DataFrame) -> int:
    """A hospital by its id, or by about how many stays it has: ``"~4500"``."""
    if not isinstance(value, str):
        return _hospital(name, value, stays)
    number = value.removeprefix("~")
    if number == value or not number.isdecimal():
        takes = "the id of a hospital, or a number of stays as in '~4500'"
        raise TypeError(f"{name} must be {takes}, got {value!r}")
    _not_empty(stays)
    sizes = stays.groupby("hospital").size()
    return int(sizes.index[int((sizes - int(number)).abs().to_numpy().argmin())])


def _sides(train: pd.DataFrame, test: pd.DataFrame, hospitals: tuple[int, ...]) -> HospitalSplit:
    kept = train[~train.patient.isin(set(test.patient))]
    if not len(kept) or not len(test):
        raise ValueError(
            f"test_hospital must leave stays on both sides, got {len(kept)} for training and "
            f"{len(test)} for the test with hospitals {', '.join(map(str, hospitals)) or 'none'}"
        )
    return HospitalSplit(kept, test, hospitals, len(train) - len(kept))
