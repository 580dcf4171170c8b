"""From a folder of tables to training, validation and test sets, in one call, with the counts.

Ties the other modules together; decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gflowout.core import checks
from gflowout.data.clinical.design import ClinicalSet, Covariates, Vocabulary, stay_table
from gflowout.data.clinical.split import (
    BALANCES,
    balanced,
    between_hospitals,
    hold_out_patients,
    leave_hospital_out,
)
from gflowout.data.clinical.tables import DRUG_TABLES, Tables, has_table, load_tables, read_tables
from gflowout.data.clinical.drugs import exposures


@dataclass(frozen=True)
class Summary:
    """Counts with names; prints as lines.

    Attributes:
        counts: What was counted, and the count.

    Examples:
        >>> print(Summary({"stays": 2520, "hospitals": 186}))
        stays      2,520
        hospitals  186
    """

    counts: dict[str, int | str]

    def __getitem__(self, name: str) -> int | str:
        """One of the counts."""
        return self.counts[name]

    def __str__(self) -> str:
        width = max(map(len, self.counts), default=0)
        shown = {
            name: f"{count:,}" if isinstance(count, int) else count
            for name, count in self.counts.items()
        }
        return "\n".join(f"{name:<{width}}  {count}" for name, count in shown.items())


@dataclass(frozen=True)
class ClinicalSplit:
    """Stays of some hospitals to train on, and of others to test on.

    Attributes:
        train: Training set.
        valid: Validation set: other patients of the training hospitals.
        test: Test set: other patients in other hospitals.
        vocabulary: The drugs, learned from ``train`` alone.
        covariates: Mean and spread of covariates, learned from ``train`` alone.
        summary: What was counted on the way.

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
    train_hospital: int | None = None,
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
        train_hospital: The only hospital to train on; ``None``: all that are not tested on.
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

    Returns:
        The three sets, the vocabulary, and counts.

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
        has = stays.index.isin(drugs.stay)
        counts["stays without any drug in the window"] = int((~has).sum())
        if not has.any():
            raise ValueError(
                f"require_drugs=True leaves no stays: none of {len(stays)} has a drug in the first "
                f"{hours:g} hours"
            )
        stays = stays[has]
    if train_hospital is None:
        split = leave_hospital_out(stays, test_hospital, seed=seed)
    else:
        if isinstance(test_hospital, str | float | Collection):
            raise TypeError(
                "test_hospital must be the id of a hospital when train_hospital is one, got "
                f"{test_hospital!r}"
            )
        split = between_hospitals(stays, train_hospital=train_hospital, test_hospital=test_hospital)
    kept, apart = hold_out_patients(split.train, valid_fraction, seed=seed)
    if len(kept) < min_count <= len(split.train):
        raise ValueError(
            f"valid_fraction must leave at least min_count={min_count} stays to train on, got "
            f"{valid_fraction:g}, which leaves {len(kept)} of {len(split.train)}"
        )
    vocabulary = Vocabulary.fit(drugs, kept.index, drug_key=drug_key, min_count=min_count)
    scales = Covariates.fit(kept, covariates)
    train, valid, test = (
        ClinicalSet.build(part, drugs, vocabulary, scales) for part in (kept, apart, split.test)
    )
    summary: dict[str, int | str] = {
        **counts,
        **drug_counts,
        "stays dropped from training, patient in test": split.removed,
        "test hospitals": len(split.hospitals),
        "drugs in the vocabulary": len(vocabulary),
    }
    for part, data in (("training", train), ("validation", valid), ("test", test)):
        summary[f"{part} stays"] = len(data)
        summary[f"{part} deaths"] = int(data.y.sum())
        summary[f"{part} stays with no drug"] = int(
            (data.x[:, : len(vocabulary)].sum(1) == 0).sum()
        )
        summary[f"{part} drugs not in the vocabulary"] = data.unknown
    train = balanced(train, balance, seed=seed)
    return ClinicalSplit(train, valid, test, vocabulary, scales, Summary(summary))


def summary(tables: Tables, hours: float = 48) -> Summary:
    """Count what the tables hold.

    Args:
        tables: What :func:`~gflowout.data.clinical.tables.read_tables` gives.
        hours: Length of the window.

    Examples:
        >>> print(summary(read_tables("data/eicu_demo")))  # doctest: +SKIP
    """
    stays, _ = stay_table(tables)
    drugs, counts = exposures(tables, hours)
    patient, given = tables.patient, drugs[~drugs.home]
    found: dict[str, int | str] = {
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
    return Summary({**found, **counts})


def summarise(folder: str | Path) -> dict[str, int | str]:
    """Read the tables of a folder and count what they hold, for ``gflowout data check``.

    The table of drugs taken before admission may be missing: only ``tables=`` asks for it.

    Raises:
        MissingDataError: If another table is not there.
        DataError: If a file is damaged or not what its name says.

    Examples:
        >>> summarise("data/eicu_demo")["stays"]  # doctest: +SKIP
    """
    needed = [table for table in DRUG_TABLES if table != "admission" or has_table(folder, table)]
    return summary(read_tables(folder, needed)).counts
