"""Drugs of eICU: names normalised to the ingredient, and which drugs a stay got in its window.

The normalised name depends on the name alone, so it cannot leak information between stays.
:class:`gflowout.data.clinical.Vocabulary` merges names by code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data.clinical.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

HOME = "home: "
"""Prefix of the name of a drug that was taken before admission."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _aliases(text: str) -> dict[str, str]:
    """Alias to name, from a text of the form ``name: alias, alias; name: alias``."""
    groups = (group.split(": ") for group in " ".join(text.split()).split("; "))
    return {alias: name for name, aliases in groups for alias in aliases.split(", ")}


# From here on a name says how the drug is given, not what it is.
_FORMS = _words(
    """tab tabs tablet tablets tbec tbcr cap caps cap-tab capsule capsules inj injection injectable
    soln solution solr solp susp suspension liquid liqd liq syrup iv ivpb ivp ivf po oral sc subq sl
    subcutaneous ij ij/iv im neb nebu nebulizer inhalation inhale inh inhl inhaler aero aers syr
    syringe vial vial. bag bolus infusion infused drip premix flush lock ec er xl xr sr cr dr sa ir
    la odt hfa chew chewable supp suppository rect rectal pr re cream crea oint ointment gel pack
    packet powder powd pwdpkt pwpk udpwd ud emul emulsion lvp pb mbp sso crys pca pcea concentrated
    pf p.f. in w with for to - : std max tr mf plain mouthwash mouth/throat mwsh mm mt soft eye op
    ophth topical patch nasal spray dilution corrective consult protocol (range) prn ivpb. repackage
    rtu-pb rtu- diskus respule abboject 24hr cd sdv mdv i + top ex ptmd ptch range variable standard
    adv flushsyrg p.f laxative antacid flexpen external kit without"""
)
_UNITS = _words("ml mg mcg g gm gram grams meq unit units mmol mmole l each ea hr % cc kg amp")
# Words that come before a name and are no part of it.
_LEADING = _words("prmx volume buffered transfuse custom ndc premixed")
# Words inside a name that are no part of it.
_DROPPED = _words("human porcine rdna micronized adult children's pmx recombinant")
_SALTS = _words(
    """hcl hydrochloride hbr sodium sod so potassium calcium sulfate sulf tartrate succinate suc
    succ phosphate acetate citrate maleate besylate besilate mesylate bromide bisulfate gluconate
    lactate fumarate bitartrate edisylate nitrate monohydrate dihydrate disodium trihydrate pamoate
    dibasic disoproxil bicarbonate chloride hydrobromide tromethamine magnesium oxalate na
    methylsulfate"""
)
# With these in front, what looks like a salt is the drug.
_MINERALS = _words(
    """sodium potassium calcium magnesium zinc ferrous iron aluminum ammonium lithium cupric silver
    barium chromic selenious"""
)
_SPELLINGS = _aliases(
    """acetaminophen: acetamin, apap; bicarbonate: bicarb; chloride: chl, cl;
    dextrose: dext, glucose; hydrocodone: hydrocodon; lactated ringers: lr; magnesium: mag;
    multivitamin: multivitamins; phosphate: phos, phosphates; potassium chloride: kcl;
    red blood cells: prbc, rbc; ringers: ringer's; senna: sennosides; sodium: sod;
    sodium bicarbonate: nahco3; sodium chloride: nacl, ns, nss, saline; sulfate: sulf"""
)
# Whole names: brands and short forms that are frequent in intensive care.
_SYNONYMS = _aliases(
    """acetaminophen: tylenol; acetaminophen-hydrocodone: norco; acetaminophen-oxycodone: percocet;
    albumin: albumine, buminate; albuterol: proventil, proventil ventolin, ventolin;
    albuterol-ipratropium: duoneb; alprazolam: xanax; alteplase: activase, tpa;
    aminocaproic acid: amicar; amiodarone: cordarone, nexterone; amlodipine: norvasc;
    aspirin: aspir, bayer, ecotrin; atorvastatin: lipitor; bisacodyl: dulcolax;
    bivalirudin: angiomax; budesonide: pulmicort; bumetanide: bumex; carvedilol: coreg;
    cefazolin: ancef; ceftriaxone: rocephin; cisatracurium: nimbex; clonazepam: klonopin;
    clonidine: catapres; clopidogrel: plavix; dexamethasone: decadron; dexmedetomidine: precedex;
    dextrose: glutose; diazepam: valium; digoxin: lanoxin; diltiazem: cardizem;
    diphenhydramine: benadryl; docusate: colace; docusate-senna: senokot-s; enoxaparin: lovenox;
    epinephrine: adrenalin; famotidine: pepcid; fat emulsion: fat, il, lipids; fentanyl: sublimaze;
    fluticasone-salmeterol: advair; furosemide: lasix; gabapentin: neurontin; glucagon: glucagen;
    haloperidol: haldol; hydralazine: apresoline; hydromorphone: dilaudid; ibuprofen: motrin;
    insulin aspart: aspart insulin, novolog; insulin detemir: levemir;
    insulin glargine: glargine-insulin, insulin lantus, insulin-glargine, lantus;
    insulin lispro: humalog, insulin humalog, insulin-lispro;
    insulin regular: humulin r, insulin hum-reg, insulin reg, insulin-regular, regular insulin;
    ipratropium: atrovent; isosorbide mononitrate: imdur; iv fluid: ivm, kvo, main, miv;
    ketorolac: toradol; labetalol: normodyne trandate, trandate; lactated ringers: ringers;
    lactulose: cephulac; levetiracetam: keppra; levofloxacin: levaquin; levothyroxine: synthroid;
    lisinopril: prinivil, zestril; lorazepam: ativan; losartan: cozaar;
    magnesium hydroxide: milk of magnesia; magnesium oxide: magox; meropenem: merrem;
    methylprednisolone: medrol, solu-medrol, solumedrol; metoclopramide: reglan;
    metoprolol: lopressor, toprol; metronidazole: flagyl; midazolam: versed; multivitamin: mvi;
    naloxone: narcan; nicotine: nicoderm cq; nitroglycerin: nitro-bid, nitrostat;
    norepinephrine: levophed; ondansetron: zofran; oxycodone: roxicodone; pantoprazole: protonix;
    parenteral nutrition: tpn; piperacillin-tazobactam: zosyn; polyethylene glycol: miralax;
    potassium chloride: k-dur, kayciel, klor-con, klor-con k-tab;
    potassium-sodium phosphate: potassium sodium phosphate; prednisone: deltasone;
    prochlorperazine: compazine; promethazine: phenergan; propofol: diprivan; quetiapine: seroquel;
    red blood cells: blood; senna: senokot; simvastatin: zocor;
    sodium bicarbonate: bicarbonate, hco3; sodium chloride: normal sodium chloride;
    sodium polystyrene sulfonate: kayexalate; tamsulosin: flomax; temazepam: restoril;
    tramadol: ultram; vancomycin: vancocin; warfarin: coumadin; zolpidem: ambien"""
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
        >>> normalise("WARFARIN SODIUM 5 MG PO TABS")
        'warfarin'
        >>> normalise("Norepinephrine (mcg/min)")
        'norepinephrine'
        >>> normalise("Volume (mL) Magnesium  (ml/hr)")
        'magnesium'
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
        for reason, excluded in _EXCLUDED[table](matched, end).items():
            counts[f"{table} rows {reason}"] = int((counting & excluded).sum())
            counting &= ~excluded
        part, nameless = _drugs(pd, matched[counting], home=table == "admission")
        counts[f"{table} rows without name and code"] = nameless
        counts[f"{table} rows that count"] = int(counting.sum()) - nameless
        parts.append(part)
    columns = ["stay", "home", "name", "code"]
    drugs = pd.concat(parts, ignore_index=True).drop_duplicates()
    return drugs.sort_values(columns, ignore_index=True), counts


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
