"""Which drugs count as given in the first hours of a stay. Knows nothing of labels or splits.

Time runs in minutes from admission to the unit. For every stay the window ends after ``hours`` or
when the stay ends, whichever comes first; nothing that happened or was written at the end or later
counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.clinical.drugs import normalise
from gflowout.data.clinical.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

HOME = "home: "
"""What stands before the name of a drug that was taken before admission."""


def exposures(tables: Tables, hours: float = 48) -> tuple[pd.DataFrame, dict[str, int]]:
    """The drugs of each stay in the window, and what was left out on the way.

    Args:
        tables: What :func:`~gflowout.data.clinical.tables.read_tables` gives; every drug table in
            it is used.
        hours: Length of the window.

    Returns:
        A frame with one row per stay and drug (columns ``stay``, ``home``, ``name``, ``code``;
        ``name`` is normalised, empty if there is none, ``code`` is the HICL number, -1 if there is
        none), sorted, and counts of rows by why they do not count.

    Examples:
        >>> from pathlib import Path
        >>> import pandas
        >>> from gflowout.data.clinical import Tables
        >>> patient = pandas.DataFrame({
        ...     "patientunitstayid": [1, 2], "uniquepid": ["a", "b"], "hospitalid": [7, 8],
        ...     "unitdischargeoffset": [3000, 600], "unitdischargestatus": ["Alive", "Expired"],
        ...     "hospitaldischargestatus": ["Alive", "Expired"], "age": ["60", "> 89"],
        ...     "gender": ["Female", "Male"],
        ... })
        >>> infusion = pandas.DataFrame({
        ...     "patientunitstayid": [1, 1], "infusionoffset": [60, 5000],
        ...     "drugname": ["Norepinephrine (mcg/min)", "Propofol ()"], "drugrate": ["4", "1"],
        ...     "infusionrate": ["", ""], "drugamount": ["", ""],
        ... })
        >>> infusion = infusion.astype({"drugname": "category"})
        >>> drugs, counts = exposures(Tables(Path(), patient, {"infusion": infusion}))
        >>> drugs["name"].tolist()  # propofol came after the first 48 hours
        ['norepinephrine']
    """
    pd = require("pandas", extra="data", purpose="the clinical pipeline")
    minutes = 60 * checks.number("hours", hours, low=0, open_low=True)
    ends = tables.patient.set_index("patientunitstayid").unitdischargeoffset.clip(upper=minutes)
    parts, counts = [], {}
    for table, rows in tables.drugs.items():
        known = rows[rows.patientunitstayid.isin(ends.index)]
        end = known.patientunitstayid.map(ends)
        counts[f"{table} rows"] = len(rows)
        counts[f"{table} rows of unknown stays"] = len(rows) - len(known)
        counting = end.notna()
        for reason, excluded in _EXCLUDED[table](known, end).items():
            counts[f"{table} rows {reason}"] = int((counting & excluded).sum())
            counting &= ~excluded
        part, nameless = _drugs(pd, known[counting], home=table == "admission")
        counts[f"{table} rows without name and code"] = nameless
        counts[f"{table} rows that count"] = int(counting.sum()) - nameless
        parts.append(part)
    columns = ["stay", "home", "name", "code"]
    found = pd.concat(parts, ignore_index=True).drop_duplicates()
    return found.sort_values(columns, ignore_index=True), counts


def _medication(rows: Any, end: Any) -> dict[str, Any]:
    """Orders that do not count. Offsets that are not recorded compare as false."""
    start = rows.drugstartoffset
    # A stop of 0 stands for none: 0 is some hundred times as frequent as any minute near it.
    stop = rows.drugstopoffset.where(rows.drugstopoffset != 0)
    return {
        "cancelled": rows.drugordercancelled == "Yes",
        "after the window": ~(start < end),
        "stopped before admission": stop < 0,
        "stopped before they started": stop < start,
        "written after the window": rows.drugorderoffset >= end,
    }


def _infusion(rows: Any, end: Any) -> dict[str, Any]:
    """Entries of running infusions that do not count."""
    rate = rows.drugrate.astype("str").str.strip().str.lower()
    return {
        "after the window": ~(rows.infusionoffset < end),
        "before admission": rows.infusionoffset < 0,
        "with rate zero": rate.str.fullmatch(r"0*\.?0*|off") & rows.drugrate.notna(),
    }


def _admission(rows: Any, end: Any) -> dict[str, Any]:
    """Drugs taken before admission that do not count: only when they were entered matters."""
    return {"after the window": ~(rows.drugenteredoffset < end) | (rows.drugoffset >= end)}


_EXCLUDED = {"medication": _medication, "infusion": _infusion, "admission": _admission}


def _drugs(pd: Any, rows: Any, *, home: bool) -> tuple[Any, int]:
    """Stay, name and code, each once, and how many rows have neither name nor code."""
    plain = [*map(normalise, rows.drugname.cat.categories), ""]  # the last is for no name, -1
    code = rows.drughiclseqno if "drughiclseqno" in rows else pd.Series(-1, index=rows.index)
    # Numbers only until each pair is there once: strings for millions of rows take gigabytes.
    found = pd.DataFrame(
        {
            "stay": rows.patientunitstayid,
            "home": home,
            "name": rows.drugname.cat.codes.astype("int64"),
            "code": code.where(code > 0, -1).fillna(-1).astype("int64"),
        }
    )
    empty = [-1, *(number for number, name in enumerate(plain[:-1]) if not name)]
    nameless = found["name"].isin(empty) & (found["code"] < 0)
    found = found[~nameless].drop_duplicates()
    found["name"] = pd.Series([plain[n] for n in found["name"]], index=found.index, dtype="str")
    return found, int(nameless.sum())
