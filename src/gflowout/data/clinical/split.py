"""Splits of stays by hospital and by patient, and balance of the classes. Never looks at drugs.

No patient is ever on both sides: of a patient who was in a hospital of the training side and in
one of the test side, only the stays of the test side are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.data.clinical.design import ClinicalSet

if TYPE_CHECKING:
    import pandas as pd

BALANCES = ("none", "weights", "oversample")


@dataclass(frozen=True)
class HospitalSplit:
    """Stays for training and stays of other hospitals for the test.

    Attributes:
        train: Training stays.
        test: Test stays.
        hospitals: Hospitals of the test side.
        removed: Training stays that were dropped as their patient is on the test side.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9],
        ...     "died": [True, False, False, True, False, False], "age": [60.0, 70, 80, 60, 70, 80],
        ...     "gender": "Female",
        ... })
        >>> split = leave_hospital_out(stays, 9)
        >>> split.test.patient.tolist(), split.removed
        (['f'], 0)
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
    """Train on all hospitals but some, test on those.

    Args:
        stays: What :func:`~gflowout.data.clinical.design.stay_table` gives.
        test_hospital: ``"largest"`` (most stays; the lowest id of equals), an id, several ids, or a
            fraction below 1: hospitals are drawn until they hold at least that part of all stays.
        seed: Seed of that draw.

    Raises:
        ValueError: If a hospital is not in the table, or a side would be empty.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9],
        ...     "died": [True, False, False, True, False, False], "age": [60.0, 70, 80, 60, 70, 80],
        ...     "gender": "Female",
        ... })
        >>> split = leave_hospital_out(stays)  # the largest is for the test
        >>> split.hospitals, len(split.train), len(split.test)
        ((7,), 3, 3)
    """
    _some(stays)
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
    stays: pd.DataFrame, *, train_hospital: int, test_hospital: int
) -> HospitalSplit:
    """Train on one hospital, test on another.

    Args:
        stays: What :func:`~gflowout.data.clinical.design.stay_table` gives.
        train_hospital: Id of the hospital to train on.
        test_hospital: Id of the hospital to test on.

    Raises:
        ValueError: If they are the same, a hospital is not in the table or a side would be empty.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9],
        ...     "died": [True, False, False, True, False, False], "age": [60.0, 70, 80, 60, 70, 80],
        ...     "gender": "Female",
        ... })
        >>> len(between_hospitals(stays, train_hospital=7, test_hospital=8).train)
        3
    """
    _some(stays)
    train = _hospital("train_hospital", train_hospital, stays)
    test = _hospital("test_hospital", test_hospital, stays)
    if train == test:
        raise ValueError(
            f"train_hospital must be another hospital than test_hospital, got {train} for both"
        )
    return _sides(stays[stays.hospital == train], stays[stays.hospital == test], (test,))


def hold_out_patients(
    stays: pd.DataFrame, valid_fraction: float = 0.3, *, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Set whole patients apart, the same part of those who died as of those who did not.

    Args:
        stays: Training stays.
        valid_fraction: Part of the patients to set apart, in [0, 1).
        seed: Seed of the draw. The result does not depend on the order of the rows.

    Returns:
        The stays that are kept and those that are set apart.

    Raises:
        ValueError: If no patient would be kept.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9],
        ...     "died": [True, False, False, True, False, False], "age": [60.0, 70, 80, 60, 70, 80],
        ...     "gender": "Female",
        ... })
        >>> kept, apart = hold_out_patients(stays, 0.5, seed=0)
        >>> len(kept), int(kept.died.sum()), len(apart), int(apart.died.sum())
        (3, 1, 3, 1)
    """
    _some(stays)
    fraction = checks.number("valid_fraction", valid_fraction, low=0, high=1, open_high=True)
    generator = random.generator(seed, "patients")
    died = stays.groupby("patient").died.any()
    apart: list[str] = []
    for dead in (False, True):
        names = sorted(died.index[died == dead])
        order = torch.randperm(len(names), generator=generator).tolist()
        apart += [names[i] for i in order[: round(fraction * len(names))]]
    if len(apart) == len(died):
        raise ValueError(
            f"valid_fraction must leave patients to train on, got {fraction:g}, which sets all "
            f"{len(died)} apart"
        )
    outside = stays.patient.isin(apart)
    return stays[~outside], stays[outside]


def balanced(data: ClinicalSet, balance: str = "none", *, seed: int = 0) -> ClinicalSet:
    """Make up for rare deaths in a training set.

    Args:
        data: The training set.
        balance: ``"none"``: as it is. ``"weights"``: the same rows, each with the weight N / (2 n)
            of its class of n rows, so that drawing rows by weight brings both classes equally
            often; the weights have mean one, so they serve as weights of a loss, too.
            ``"oversample"``: rows of the rarer class repeated, each as often as the others up to
            one, until both classes are equally frequent.
        seed: Seed of the choice which rows are repeated once more.

    Raises:
        ValueError: If one of the classes has no row.

    Examples:
        >>> data = ClinicalSet(
        ...     x=torch.zeros(4, 1), y=torch.tensor([1.0, 0, 0, 0]), features=("aspirin",),
        ...     stays=torch.arange(4), patients=tuple("abcd"), hospitals=torch.zeros(4),
        ... )
        >>> balanced(data, "weights").weights
        tensor([2.0000, 0.6667, 0.6667, 0.6667])
        >>> len(balanced(data, "oversample"))
        6
    """
    if checks.choice("balance", balance, BALANCES) == "none":
        return data
    deaths, survivals = (data.y == 1).nonzero()[:, 0], (data.y == 0).nonzero()[:, 0]
    if not len(deaths) or not len(survivals):
        raise ValueError(
            f"balance={balance!r} needs deaths and survivals in training, got {len(deaths)} and "
            f"{len(survivals)}"
        )
    if balance == "weights":
        weights = torch.empty(len(data))
        for rows in (deaths, survivals):
            weights[rows] = len(data) / (2 * len(rows))
        return replace(data, weights=weights)
    few, many = sorted((deaths, survivals), key=len)
    generator = random.generator(seed, "oversample")
    return data.take(torch.cat([many, _repeat(few, len(many), generator)]).sort().values)


def _repeat(rows: Tensor, size: int, generator: torch.Generator) -> Tensor:
    whole, rest = divmod(size, len(rows))
    extra = torch.randperm(len(rows), generator=generator)[:rest]
    return torch.cat([rows.repeat(whole), rows[extra]])


def _draw(stays: pd.DataFrame, fraction: float, seed: int) -> tuple[int, ...]:
    fraction = checks.number(
        "test_hospital", fraction, low=0, high=1, open_low=True, open_high=True
    )
    generator = random.generator(seed, "hospitals")
    sizes = stays.groupby("hospital").size()
    order = sizes.iloc[torch.randperm(len(sizes), generator=generator).numpy()]
    enough = int((order.cumsum() >= fraction * len(stays)).to_numpy().argmax())
    return tuple(sorted(int(one) for one in order.index[: enough + 1]))


def _some(stays: pd.DataFrame) -> None:
    if not len(stays):
        raise ValueError("stays must hold at least one stay, got none")


def _hospital(name: str, value: Any, stays: pd.DataFrame) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be the id of a hospital, got {value!r}")
    if not (stays.hospital == int(value)).any():
        largest = stays.hospital.value_counts().index[:5].tolist()
        raise ValueError(
            f"{name} must be a hospital with stays in the table, got {int(value)}; the largest are "
            f"{', '.join(str(one) for one in largest)}"
        )
    return int(value)


def _sides(train: pd.DataFrame, test: pd.DataFrame, hospitals: tuple[int, ...]) -> HospitalSplit:
    kept = train[~train.patient.isin(set(test.patient))]
    if not len(kept) or not len(test):
        raise ValueError(
            f"test_hospital must leave stays on both sides, got {len(kept)} for training and "
            f"{len(test)} for the test with hospitals {', '.join(map(str, hospitals)) or 'none'}"
        )
    return HospitalSplit(kept, test, hospitals, len(train) - len(kept))
