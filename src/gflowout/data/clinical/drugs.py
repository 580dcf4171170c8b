"""Drugs of eICU: names normalised to the ingredient, and which drugs a stay got in its window.

The normalised name depends on the name alone, and on the words of ``drugs.toml``, so it cannot leak
information between stays. :class:`gflowout.data.clinical.Vocabulary` merges names by code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.clinical.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

HOME = "home: "
"""Prefix of the name of a drug that was taken before admission."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FORMS, _UNITS, _LEADING, _DROPPED, _SALTS, _MINERALS = (
    frozenset(_TABLES[kind].split())
    for kind in ("forms", "units", "leading", "dropped", "salts", "minerals")
)
_SPELLINGS: dict[str, str]
_SYNONYMS: dict[str, str]
_SPELLINGS, _SYNONYMS = (
    {alias: name for name, aliases in _TABLES[kind].items() for alias in aliases}
    for kind in ("spellings", "synonyms")
)
_CONTAINER = re.compile(r"^[\d.,]+\s*(?:ml|g|gm|mg|each)\b[^:]*?(?::|\s-\s)\s*(?P<drug>.+)$")
_DEXTROSE = re.compile(r"^d\d+[a-z0-9/]*$")


def normalise(name: str) -> str:
    """Normalise a drug's name from any table of eICU to its ingredient, in lower case.

    Container, strength, concentration, form, route, salt, units and text in brackets are removed:
    dextrose 5 % and 50 % are the same drug, as in the HICL codes. The ingredients of a combination
    are sorted, and the brands most frequent in intensive care become their ingredient. A name of
    which nothing would be left stays as it is; an empty name stays empty.

    Examples:
        >>> normalise("5 ML VIAL : DILTIAZEM HCL 25 MG/5ML IV SOLN")
        'diltiazem'
        >>> normalise("IPRATROPIUM-ALBUTEROL 0.5-2.5 (3) MG/3ML IN SOLN")
        'albuterol-ipratropium'
    """
    plain = " ".join(name.lower().split())
    bare = _no_brackets(plain) or plain
    words = _name_words(_without_packing(plain))
    if bare.startswith("ivf") or (not words and bare.startswith("iv")):
        return "iv fluid"
    if not words:
        return _SYNONYMS.get(bare, bare)
    whole = " ".join(words)
    if whole in _SYNONYMS:
        return _SYNONYMS[whole]
    parts = [_ingredient(part) for part in re.split(r"\s*[-/&]\s*|\s+and\s+", whole) if part]
    if "water" in parts[1:]:
        parts.remove("water")
        whole = "-".join(parts)
    # Short parts are no ingredients: "klor-con", "omega-3".
    if len(parts) > 1 and all(len(part) > 4 for part in parts):
        return "-".join(sorted(set(parts)))
    return _ingredient(whole)


def _without_packing(plain: str) -> str:
    """Drop the container in front or behind, brackets and percentages."""
    container = _CONTAINER.match(plain)
    text = container["drug"] if container else plain.split(" :")[0]
    text = re.sub(r"^volume\s*(?:\(ml\))?[\s-]*", "", text)
    text = re.sub(r"\s*\d[\d.,]*\s*%\s*([-/])\s*(?=[a-z])", r"\1", _no_brackets(text))
    return re.sub(r"\d[\d.,]*\s*%", " ", text)


def _name_words(text: str) -> list[str]:
    """The words of the name itself: from the first that is one to the first that is not."""
    words: list[str] = []
    for token in re.split(r"[\s,;]+", text):
        word = token.strip("*<>;'\"").rstrip(".").removeprefix("-")
        if words and token in _FORMS:
            break
        if not word or word in _DROPPED:
            continue
        if word[0].isdigit() or word[0] == ".":
            if words:
                break
            word = re.sub(r"^[\d.,/]+", "", word)
        stops = word in _FORMS or word in _UNITS or word.startswith("w/")
        if words and stops:
            break
        if word and not stops and word not in _LEADING:
            words.extend(_SPELLINGS.get(word, word).split())
    return words


def _ingredient(text: str) -> str:
    """One ingredient without its salt."""
    words = " ".join(_SPELLINGS.get(word, word) for word in text.split()).split()
    if words and _DEXTROSE.match(words[0]):
        return "dextrose"
    while len(words) > 1 and words[0] not in _MINERALS and words[-1] in _SALTS:
        words.pop()
    name = " ".join(words)
    return _SYNONYMS.get(name, name)


def _no_brackets(text: str) -> str:
    return " ".join(re.sub(r"\([^)]*\)?", " ", text).split())


def exposures(tables: Tables, hours: float = 48) -> tuple[pd.DataFrame, dict[str, int]]:
    """The drugs of each stay in the window, and counts of what was left out.

    Time runs in minutes from admission to the unit. The window of a stay ends after ``hours`` or
    with the stay, whichever comes first; nothing that happened or was written then or later counts.

    Args:
        tables: Result of :func:`read_tables`; every drug table in it is used.
        hours: Length of the window.

    Returns:
        A frame with one row per stay and drug (columns ``stay``, ``home``, ``name``, ``code``;
        ``name`` is normalised, empty if there is none, ``code`` is the HICL number, -1 if there is
        none), sorted, and the number of rows left out for each reason.

    Examples:
        >>> from pathlib import Path
        >>> import pandas
        >>> from gflowout.data.clinical import Tables
        >>> patient = pandas.DataFrame({
        ...     "patientunitstayid": [1, 2], "unitdischargeoffset": [3000, 600],
        ... })
        >>> infusion = pandas.DataFrame({
        ...     "patientunitstayid": [1, 1], "infusionoffset": [60, 5000],
        ...     "drugname": ["Norepinephrine (mcg/min)", "Propofol ()"], "drugrate": ["4", "1"],
        ... }).astype({"drugname": "category"})
        >>> drugs, counts = exposures(Tables(Path(), patient, {"infusion": infusion}))
        >>> drugs["name"].tolist()  # propofol came after the first 48 hours
        ['norepinephrine']
    """
    pd = require("pandas", extra="data", purpose="the clinical pipeline")
    minutes = 60 * checks.number("hours", hours, low=0, open_low=True)
    ends = tables.patient.set_index("patientunitstayid").unitdischargeoffset.clip(upper=minutes)
    parts, counts = [], {}
    for table, rows in tables.drugs.items():
        matched = rows[rows.patientunitstayid.isin(ends.index)]
        end = matched.patientunitstayid.map(ends)
        counts[f"{table} rows"] = len(rows)
        counts[f"{table} rows of unknown stays"] = len(rows) - len(matched)
        counting = end.notna()
        for reason, excluded in _excluded(table, matched, end).items():
            counts[f"{table} rows {reason}"] = int((counting & excluded).sum())
            counting &= ~excluded
        part, nameless = _drugs(pd, matched[counting], home=table == "admission")
        counts[f"{table} rows without name and code"] = nameless
        counts[f"{table} rows that count"] = int(counting.sum()) - nameless
        parts.append(part)
    columns = ["stay", "home", "name", "code"]
    drugs = pd.concat(parts, ignore_index=True).drop_duplicates()
    return drugs.sort_values(columns, ignore_index=True), counts


def _excluded(table: str, rows: Any, end: Any) -> dict[str, Any]:
    """Rows that do not count, by reason. Offsets that are not recorded compare as false."""
    if table == "admission":  # only when a drug taken before admission was entered matters
        return {"after the window": ~(rows.drugenteredoffset < end) | (rows.drugoffset >= end)}
    if table == "infusion":
        rate = rows.drugrate.astype("str").str.strip().str.lower()
        return {
            "after the window": ~(rows.infusionoffset < end),
            "before admission": rows.infusionoffset < 0,
            "with rate zero": rate.str.fullmatch(r"0*\.?0*|off") & rows.drugrate.notna(),
        }
    # A stop of 0 stands for none: 0 is some hundred times as frequent as any minute near it.
    stop = rows.drugstopoffset.where(rows.drugstopoffset != 0)
    return {
        "cancelled": rows.drugordercancelled == "Yes",
        "after the window": ~(rows.drugstartoffset < end),
        "stopped before admission": stop < 0,
        "stopped before they started": stop < rows.drugstartoffset,
        "written after the window": rows.drugorderoffset >= end,
    }


def _drugs(pd: Any, rows: Any, *, home: bool) -> tuple[Any, int]:
    """Distinct triples of stay, name and code, and the number of rows without name and code."""
    plain = [*map(normalise, rows.drugname.cat.categories), ""]  # the last is for no name, -1
    code = rows.drughiclseqno if "drughiclseqno" in rows else pd.Series(-1, index=rows.index)
    # Numbers until duplicates are gone: strings for millions of rows take gigabytes.
    drugs = pd.DataFrame(
        {
            "stay": rows.patientunitstayid,
            "home": home,
            "name": rows.drugname.cat.codes.astype("int64"),
            "code": code.where(code > 0, -1).fillna(-1).astype("int64"),
        }
    )
    empty = [-1, *(number for number, name in enumerate(plain[:-1]) if not name)]
    nameless = drugs["name"].isin(empty) & (drugs["code"] < 0)
    drugs = drugs[~nameless].drop_duplicates()
    drugs["name"] = pd.Series([plain[n] for n in drugs["name"]], index=drugs.index, dtype="str")
    return drugs, int(nameless.sum())
