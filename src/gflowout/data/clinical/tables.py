"""Reading and checking the tables of eICU, and the table of stays with their outcomes.

The demo and the full database have the same tables, under names in lower case or camelCase, as
``.csv.gz`` or ``.csv``. Only the columns that are used are read, names as categories, so that the
full medication table (7.3 million rows) takes a few hundred megabytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError, check_texts, reading

if TYPE_CHECKING:
    import pandas as pd

LABELS = {"unit": "unitdischargestatus", "hospital": "hospitaldischargestatus"}
DRUG_TABLES = ("medication", "infusion", "admission")

# Columns by kind. key: a whole number, never missing; number, text: may be missing; name: text with
# few distinct values, which are listed after it if they are all known.
_COLUMNS: dict[str, dict[str, str]] = {
    "patient": {
        **dict.fromkeys(("patientunitstayid", "hospitalid", "unitdischargeoffset"), "key"),
        **dict.fromkeys(("uniquepid", "age", "gender"), "text"),
        **dict.fromkeys(("unitdischargestatus", "hospitaldischargestatus"), "name Alive Expired"),
    },
    "medication": {
        "patientunitstayid": "key",
        **dict.fromkeys(("drugorderoffset", "drugstartoffset", "drugstopoffset"), "number"),
        "drugordercancelled": "name Yes No",
        "drugname": "name",
        "drughiclseqno": "number",
    },
    "infusion": {
        "patientunitstayid": "key",
        "infusionoffset": "number",
        **dict.fromkeys(("drugname", "drugrate"), "name"),
    },
    "admission": {
        "patientunitstayid": "key",
        **dict.fromkeys(("drugoffset", "drugenteredoffset", "drughiclseqno"), "number"),
        "drugname": "name",
    },
    "arrival": {
        "patientunitstayid": "key",
        **dict.fromkeys(("ethnicity", "unittype", "unitstaytype", "unitadmitsource"), "text"),
        **dict.fromkeys(("hospitaladmitsource", "apacheadmissiondx"), "text"),
        **dict.fromkeys(("admissionheight", "admissionweight"), "number"),
    },
}
_FILES = {
    "infusion": "infusionDrug",
    "admission": "admissionDrug",
    "arrival": "patient",
}  # else the table's own name
_AGAIN = "the file is damaged: get it again"


@dataclass(frozen=True)
class Tables:
    """The tables of eICU that are used, columns in lower case.

    Attributes:
        folder: Folder that they were read from.
        patient: One row per stay in intensive care.
        drugs: The drug tables by name, out of ``"medication"``, ``"infusion"``, ``"admission"``.

    Examples:
        >>> tables = read_tables("data/eicu_demo")  # doctest: +SKIP
        >>> tables.patient.groupby("hospitalid").size()  # doctest: +SKIP
    """

    folder: Path
    patient: pd.DataFrame
    drugs: dict[str, pd.DataFrame]


def load_tables(
    name: str = "eicu-demo",
    data_dir: str | Path | None = None,
    tables: Iterable[str] = ("medication", "infusion"),
) -> Tables:
    """Find a copy of eICU and read its tables; errors are those of :func:`read_tables`.

    Args:
        name: ``"eicu-demo"`` or ``"eicu"``.
        data_dir: Directory of all data sets; ``None`` as in :func:`gflowout.data.store.root`.
        tables: Drug tables to read.

    Examples:
        >>> tables = load_tables("eicu-demo", "data")  # doctest: +SKIP
    """
    checks.choice("name", name, ("eicu-demo", "eicu"))
    return read_tables(store.locate(name, data_dir), tables)


def read_tables(folder: str | Path, tables: Iterable[str] = ("medication", "infusion")) -> Tables:
    """Read the tables of eICU in a folder.

    Args:
        folder: Folder with ``patient.csv.gz`` and the drug tables, compressed or not.
        tables: Drug tables to read, out of ``"medication"``, ``"infusion"``, ``"admission"``.

    Raises:
        MissingDataError: If a file is not there.
        DataError: If a file is damaged, lacks a column, has a value of the wrong type or no rows,
            or repeats a stay.

    Examples:
        >>> read_tables("no-such-folder")
        Traceback (most recent call last):
            ...
        gflowout.data.errors.MissingDataError: no-such-folder: no such folder; name the one with the
        tables of eICU
    """
    folder = Path(folder)
    check_texts("tables", tables)
    names = dict.fromkeys(checks.choice("tables", name, DRUG_TABLES) for name in tables)
    if not names:
        raise ValueError("tables must name at least one drug table, got none")
    patient = _read(folder, "patient")
    path = find_table(folder, "patient")
    repeated = patient.patientunitstayid[patient.patientunitstayid.duplicated()]
    if len(repeated):
        rows = f"{len(repeated)} rows repeat one, first {repeated.iloc[0]}"
        raise DataError(f"{path}: patientunitstayid must be unique, but {rows}; {_AGAIN}")
    if patient.uniquepid.isna().any():
        row = int(patient.uniquepid.isna().to_numpy().argmax()) + 2
        raise DataError(f"{path}: uniquepid is empty in line {row}; {_AGAIN}")
    return Tables(folder, patient, {table: _read(folder, table) for table in names})


def stay_table(
    tables: Tables, label: str = "unit", min_hours: float = 0
) -> tuple[pd.DataFrame, dict[str, int]]:
    """One row per stay: patient, hospital, length, and whether the patient died.

    Args:
        tables: Result of :func:`read_tables`.
        label: ``"unit"``: died during the stay in intensive care; ``"hospital"``: died during the
            stay in the hospital.
        min_hours: Keep only stays at least this long. With the length of the window, every patient
            is alive and in the unit when the prediction is made.

    Returns:
        A frame indexed by stay, sorted, with columns ``patient``, ``hospital``, ``hours``,
        ``died`` (bool), ``age`` (90 for "> 89", NaN if missing), ``gender``; and counts of the
        stays that were left out.

    Raises:
        DataError: If no outcome is recorded.
        ValueError: If all stays are shorter than ``min_hours``.

    Examples:
        >>> import pandas
        >>> patient = pandas.DataFrame({
        ...     "patientunitstayid": [1, 2], "uniquepid": ["a", "b"], "hospitalid": [7, 8],
        ...     "unitdischargeoffset": [3000, 600], "unitdischargestatus": ["Alive", "Expired"],
        ...     "hospitaldischargestatus": ["Alive", "Expired"], "age": ["60", "> 89"],
        ...     "gender": ["Female", "Male"],
        ... })
        >>> stays, left_out = stay_table(Tables(Path(), patient, {}))
        >>> stays.died.tolist(), stays.age.tolist()
        ([False, True], [60.0, 90.0])
    """
    pd = require("pandas", extra="data", purpose="the clinical pipeline")
    status = tables.patient[LABELS[checks.choice("label", label, LABELS)]]
    min_hours = checks.number("min_hours", min_hours, low=0)
    age = tables.patient.age.str.strip().str.replace(r"^>\s*89$", "90", regex=True)
    age = age.where(age != "")
    years = pd.to_numeric(age, errors="coerce")
    if (odd := years.isna() & age.notna()).any():
        got = repr(age[odd].iloc[0])
        raise DataError(f"{tables.folder}: age must be a number, '> 89' or empty, got {got}")
    stays = pd.DataFrame(
        {
            "patient": tables.patient.uniquepid,
            "hospital": tables.patient.hospitalid,
            "hours": tables.patient.unitdischargeoffset / 60,
            "died": status == "Expired",
            "age": years.astype("float64"),
            "gender": tables.patient.gender,
        }
    ).set_index(tables.patient.patientunitstayid.rename("stay"))
    recorded, long = status.notna().to_numpy(), (stays.hours >= min_hours).to_numpy()
    counts = {
        "stays in the table": len(stays),
        "stays without a known outcome": int((~recorded).sum()),
    }
    if min_hours:
        counts[f"stays shorter than {min_hours:g} hours"] = int((recorded & ~long).sum())
    if not recorded.any():
        raise DataError(f"{tables.folder}: no stay has a known outcome; get the tables again")
    if not (recorded & long).any():
        longest = f"the longest stay has {stays.hours[recorded].max():.0f} hours"
        raise ValueError(f"min_hours must leave at least one stay, got {min_hours:g}: {longest}")
    return stays[recorded & long].sort_index(), counts


def read_arrivals(folder: str | Path) -> pd.DataFrame:
    """Read what the table of patients says of the admission, one row per stay.

    Args:
        folder: Folder with ``patient.csv.gz``.

    Returns:
        A frame indexed by stay, with unit, sources, diagnosis, ethnicity, height and weight.

    Examples:
        >>> read_arrivals("data/eicu_demo").unittype.value_counts()  # doctest: +SKIP
    """
    return _read(Path(folder), "arrival").set_index("patientunitstayid").rename_axis("stay")


def find_table(folder: Path, table: str) -> Path | None:
    """The file of a table in a folder, compressed or not, with a name in any case."""
    if not folder.is_dir():
        raise MissingDataError(f"{folder}: no such folder; name the one with the tables of eICU")
    paths = {path.name.lower(): path for path in sorted(folder.iterdir())}
    stem = _FILES.get(table, table).lower()
    return paths.get(f"{stem}.csv.gz") or paths.get(f"{stem}.csv")


def _read(folder: Path, table: str) -> pd.DataFrame:
    path, columns, name = find_table(folder, table), _COLUMNS[table], _FILES.get(table, table)
    if path is None:
        raise MissingDataError(
            f"{folder}: no table {name} here; looked for {name}.csv.gz and {name}.csv in any case. "
            "Put the file from PhysioNet there, or leave the table out"
        )
    header = _csv(path, nrows=0).columns
    spelled = {str(column).strip().lower(): column for column in header}
    missing = [column for column in columns if column not in spelled]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; the file has {', '.join(map(str, header))}. "
            f"It must be the table {name} of eICU as published"
        )
    # Minutes and codes are far below 2^24, so float32 is exact.
    types = {"key": "float64", "number": "float32", "text": "str", "name": "category"}
    used = {spelled[column]: column for column in columns}
    dtypes = {old: types[columns[new].split()[0]] for old, new in used.items()}
    try:
        loaded = _csv(path, usecols=list(used), dtype=dtypes)
    except DataError:
        raise
    except ValueError as error:
        raise _wrong_type(path, used, columns) or DataError(f"{path}: {error}") from error
    frame: pd.DataFrame = loaded.rename(columns=used)[list(columns)]
    if not len(frame):
        raise DataError(f"{path}: the table has no rows; {_AGAIN}")
    for column, kind in columns.items():
        frame[column] = _checked(path, frame[column], kind)
    return frame


def _csv(path: Path, **options: Any) -> Any:
    """Call ``read_csv``; a damaged file raises DataError, a wrong value ValueError."""
    pd = require("pandas", extra="data", purpose="reading eICU")
    wrong = (UnicodeDecodeError, pd.errors.EmptyDataError, pd.errors.ParserError)
    with (
        reading(path, "not a table of comma-separated values in UTF-8", wrong),
        reading(path, "cannot be unpacked", (EOFError, zlib.error, gzip.BadGzipFile)),
    ):
        return pd.read_csv(path, encoding="utf-8", **options)


def _wrong_type(path: Path, used: dict[Any, str], columns: dict[str, str]) -> DataError | None:
    """The error for the first value that is not a number."""
    pd = require("pandas", extra="data", purpose="reading eICU")
    for old, new in used.items():
        if columns[new] not in ("key", "number"):
            continue
        text = _csv(path, usecols=[old], dtype="str")[old]
        wrong = (pd.to_numeric(text, errors="coerce").isna() & text.notna()).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            return _wrong(path, f"{new} must be a number, got {text.iloc[row]!r} in line {row + 2}")
    return None


def _checked(path: Path, values: Any, kind: str) -> Any:
    """Check a column and convert it to the type of its kind."""
    if kind == "key":
        odd = (values.isna() | (values % 1 != 0)).to_numpy()
        if odd.any():
            row = int(odd.argmax())
            got = "nothing" if values.isna().iloc[row] else f"{values.iloc[row]:g}"
            raise _wrong(path, f"{values.name} must be a whole number, got {got} in line {row + 2}")
        return values.astype("int64")
    allowed = set(kind.split()[1:])
    others = [value for value in values.cat.categories if value not in allowed] if allowed else []
    if others:
        expected = f"one of {', '.join(sorted(allowed))} or empty"
        raise _wrong(path, f"{values.name} must be {expected}, got {others[0]!r}")
    return values


def _wrong(path: Path, problem: str) -> DataError:
    return DataError(f"{path}: {problem}; is it the published table?")
