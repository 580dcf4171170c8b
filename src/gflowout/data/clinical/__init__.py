"""Death in intensive care from the drugs of the first 48 hours, across hospitals (eICU).

:func:`load` does everything; the steps can be used one by one. Needs pandas (the extra ``data``)
when it runs, not when it is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.text import aligned
from gflowout.data.clinical.design import BALANCES, ClinicalSet, Covariates, Vocabulary, balanced
from gflowout.data.clinical.drugs import exposures, normalise
from gflowout.data.clinical.split import (
    HospitalSplit,
    between_hospitals,
    hold_out_patients,
    leave_hospital_out,
)
from gflowout.data.clinical.tables import (
    DRUG_TABLES,
    Tables,
    find_table,
    load_tables,
    read_tables,
    stay_table,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ClinicalSet",
    "ClinicalSplit",
    "Covariates",
    "HospitalSplit",
    "Summary",
    "Tables",
    "Vocabulary",
    "balanced",
    "between_hospitals",
    "exposures",
    "hold_out_patients",
    "leave_hospital_out",
    "load",
    "load_tables",
    "normalise",
    "read_tables",
    "stay_table",
    "summarise",
    "summary",
]


@dataclass(frozen=True)
class Summary:
    """Counts by name; prints as lines.

    Attributes:
        counts: Name and count.

    Examples:
        >>> print(Summary({"stays": 2520, "hospitals": 186}))
        stays      2,520
        hospitals  186
    """

    counts: dict[str, int | str]

    def __getitem__(self, name: str) -> int | str:
        return self.counts[name]

    def __str__(self) -> str:
        rows = [
            (name, f"{count:,}" if isinstance(count, int) else count)
            for name, count in self.counts.items()
        ]
        return "\n".join(aligned(rows))


@dataclass(frozen=True)
class ClinicalSplit:
    """Training, validation and test stays.

    Attributes:
        train: Training set.
        valid: Validation set: other patients of the training hospitals.
        test: Test set: other patients in other hospitals.
        vocabulary: The drugs, learned from ``train`` alone.
        covariates: Mean and spread of covariates, learned from ``train`` alone.
        summary: Counts of stays, deaths and drugs, kept and left out.

    Examples:
        >>> split = load("eicu-demo", "data", test_hospital=0.3)  # doctest: +SKIP
        >>> split.train.x.shape, split.test.y.mean()  # doctest: +SKIP
    """

    train: ClinicalSet
    valid: ClinicalSet
    test: ClinicalSet
    vocabulary: Vocabulary = field(repr=False)
    covariates: Covariates = field(repr=False)
    summary: Summary = field(repr=False)

    def __str__(self) -> str:
        return f"train  {self.train}\nvalid  {self.valid}\ntest   {self.test}"


def load(
    name: str = "eicu-demo",
    data_dir: str | Path | None = None,
    *,
    test_hospital: int | float | str | Collection[int] = "largest",
    train_hospital: int | str | None = None,
    hours: float = 48,
    tables: Iterable[str] = ("medication", "infusion"),
    drug_key: str = "name",
    min_count: int = 5,
    label: str = "unit",
    min_hours: float = 0,
    require_drugs: bool = False,
    covariates: Iterable[str] = (),
    balance: str = "none",
    valid_fraction: float = 0.3,
    seed: int = 0,
) -> ClinicalSplit:
    """Death in intensive care from the drugs of the first hours, across hospitals.

    Args:
        name: ``"eicu-demo"`` or ``"eicu"``.
        data_dir: Directory of all data sets; ``None`` as in :func:`gflowout.data.store.root`.
        test_hospital: Hospital to test on: ``"largest"``, an id, several ids, or a fraction of all
            stays to draw hospitals for.
        train_hospital: The only hospital to train on, an id or a number of stays such as
            ``"~4500"``, with the same as ``test_hospital``: see :func:`between_hospitals`.
            ``None``: all that are not tested on.
        hours: Length of the window from admission to the unit.
        tables: Drug tables: ``"medication"`` (orders), ``"infusion"`` (running infusions),
            ``"admission"`` (drugs taken before admission, as features of their own).
        drug_key: ``"name"`` or ``"hicl"``, see :meth:`Vocabulary.fit`.
        min_count: Number of training stays that a drug must occur in.
        label: ``"unit"``: death during the stay in intensive care; ``"hospital"``: in the hospital.
        min_hours: Keep only stays at least this long.
        require_drugs: Drop stays without any drug in the window.
        covariates: Further features, out of ``"age"`` and ``"gender"``.
        balance: What to do about rare deaths in training, see :func:`balanced`.
        valid_fraction: Part of the training side's patients for validation.
        seed: Seed of all draws.

    Raises:
        MissingDataError: If the data are not there; the message says how to get them.
        DataError: If a file is damaged.
        ValueError: If an option is not one of those above, or leaves a side without stays.

    Examples:
        >>> split = load("eicu-demo", "data", test_hospital=0.3, seed=0)  # doctest: +SKIP
        >>> print(split)  # doctest: +SKIP
    """
    checks.choice("balance", balance, BALANCES)
    checks.boolean("require_drugs", require_drugs)
    checks.integer("min_count", min_count, low=1)
    read = load_tables(name, data_dir, tables)
    stays, counts = stay_table(read, label, min_hours)
    drugs, drug_counts = exposures(read, hours)
    if require_drugs:
        stays = _with_drugs(stays, drugs, hours, counts)
    if train_hospital is None:
        split = leave_hospital_out(stays, test_hospital, seed=seed)
    else:
        test: Any = test_hospital  # a fraction or several are refused
        split = between_hospitals(stays, train_hospital=train_hospital, test_hospital=test)
    train, valid = hold_out_patients(split.train, valid_fraction, seed=seed)
    if len(train) < min_count <= len(split.train):
        raise ValueError(
            f"valid_fraction must leave at least min_count={min_count} stays to train on, got "
            f"{valid_fraction:g}, which leaves {len(train)} of {len(split.train)}"
        )
    vocabulary = Vocabulary.fit(drugs, train.index, drug_key=drug_key, min_count=min_count)
    scales = Covariates.fit(train, covariates)
    parts = (train, valid, split.test)
    sets = [ClinicalSet.build(part, drugs, vocabulary, scales) for part in parts]
    summary = Summary({**counts, **drug_counts, **_counts(split, vocabulary, sets)})
    balanced_train = balanced(sets[0], balance, seed=seed)
    return ClinicalSplit(balanced_train, sets[1], sets[2], vocabulary, scales, summary)


def _with_drugs(
    stays: pd.DataFrame, drugs: pd.DataFrame, hours: float, counts: dict[str, int]
) -> pd.DataFrame:
    """Drop stays without any drug in the window, and count them."""
    treated = stays.index.isin(drugs.stay)
    counts["stays without any drug in the window"] = int((~treated).sum())
    if not treated.any():
        none = f"none of {len(stays)} has a drug in the first {hours:g} hours"
        raise ValueError(f"require_drugs=True leaves no stays: {none}")
    return stays[treated]


def _counts(
    split: HospitalSplit, vocabulary: Vocabulary, sets: list[ClinicalSet]
) -> dict[str, int | str]:
    counts: dict[str, int | str] = {
        "stays dropped from training, patient in test": split.removed,
        "test hospitals": len(split.hospitals),
        "drugs in the vocabulary": len(vocabulary),
    }
    for part, data in zip(("training", "validation", "test"), sets, strict=True):
        untreated = data.x[:, : len(vocabulary)].sum(1) == 0
        counts[f"{part} stays"] = len(data)
        counts[f"{part} deaths"] = int(data.y.sum())
        counts[f"{part} stays with no drug"] = int(untreated.sum())
        counts[f"{part} drugs not in the vocabulary"] = data.unknown
    return counts


def summary(tables: Tables, hours: float = 48) -> Summary:
    """Count what the tables hold.

    Args:
        tables: Result of :func:`read_tables`.
        hours: Length of the window.

    Examples:
        >>> print(summary(read_tables("data/eicu_demo")))  # doctest: +SKIP
    """
    stays, _ = stay_table(tables)
    drugs, counts = exposures(tables, hours)
    patient, given = tables.patient, drugs[~drugs.home]
    contents: dict[str, int | str] = {
        "stays": len(patient),
        "patients": patient.uniquepid.nunique(),
        "hospitals": patient.hospitalid.nunique(),
        "deaths in the unit": int(stays.died.sum()),
        "deaths in the hospital": int((patient.hospitaldischargestatus == "Expired").sum()),
        "stays without a known outcome": len(patient) - len(stays),
        f"stays of at least {hours:g} hours": int((stays.hours >= hours).sum()),
        "stays with a drug given in the window": given.stay.nunique(),
        "distinct names of drugs given": given["name"][given["name"] != ""].nunique(),
        "distinct HICL codes of drugs given": given["code"][given["code"] >= 0].nunique(),
    }
    return Summary({**contents, **counts})


def summarise(folder: str | Path) -> dict[str, int | str]:
    """Read the tables of a folder and count what they hold, for ``gflowout data check``.

    The table of drugs taken before admission may be missing; otherwise errors are those of
    :func:`read_tables`.

    Examples:
        >>> summarise("data/eicu_demo")["stays"]  # doctest: +SKIP
    """
    there = [name for name in DRUG_TABLES if name != "admission" or find_table(Path(folder), name)]
    return summary(read_tables(folder, there)).counts
