"""Names of drugs as pharmacies write them, brought to the ingredient. Strings in, strings out.

Knows nothing of tables, stays or labels: the result for a name depends on that name alone, so
nothing can leak through it. Merging by code is in :mod:`gflowout.data.clinical.design`.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
_SPELLINGS = {
    "sod": "sodium",
    "cl": "chloride",
    "chl": "chloride",
    "phos": "phosphate",
    "phosphates": "phosphate",
    "sulf": "sulfate",
    "bicarb": "bicarbonate",
    "ringer's": "ringers",
    "multivitamins": "multivitamin",
    "mag": "magnesium",
    "dext": "dextrose",
    "glucose": "dextrose",
    "nacl": "sodium chloride",
    "ns": "sodium chloride",
    "nss": "sodium chloride",
    "saline": "sodium chloride",
    "kcl": "potassium chloride",
    "nahco3": "sodium bicarbonate",
    "lr": "lactated ringers",
    "apap": "acetaminophen",
    "acetamin": "acetaminophen",
    "hydrocodon": "hydrocodone",
    "sennosides": "senna",
    "prbc": "red blood cells",
    "rbc": "red blood cells",
}
# Whole names: brands and short forms that are frequent in intensive care.
_SYNONYMS = {
    "normal sodium chloride": "sodium chloride",
    "ringers": "lactated ringers",
    "bicarbonate": "sodium bicarbonate",
    "hco3": "sodium bicarbonate",
    "blood": "red blood cells",
    "miv": "iv fluid",
    "ivm": "iv fluid",
    "main": "iv fluid",
    "kvo": "iv fluid",
    "lipids": "fat emulsion",
    "il": "fat emulsion",
    "tpn": "parenteral nutrition",
    "tpa": "alteplase",
    "aspart insulin": "insulin aspart",
    "regular insulin": "insulin regular",
    "insulin-lispro": "insulin lispro",
    "activase": "alteplase",
    "adrenalin": "epinephrine",
    "advair": "fluticasone-salmeterol",
    "albumine": "albumin",
    "ambien": "zolpidem",
    "amicar": "aminocaproic acid",
    "ancef": "cefazolin",
    "angiomax": "bivalirudin",
    "apresoline": "hydralazine",
    "aspir": "aspirin",
    "ativan": "lorazepam",
    "atrovent": "ipratropium",
    "bayer": "aspirin",
    "benadryl": "diphenhydramine",
    "bumex": "bumetanide",
    "buminate": "albumin",
    "cardizem": "diltiazem",
    "catapres": "clonidine",
    "cephulac": "lactulose",
    "colace": "docusate",
    "compazine": "prochlorperazine",
    "cordarone": "amiodarone",
    "coreg": "carvedilol",
    "coumadin": "warfarin",
    "cozaar": "losartan",
    "decadron": "dexamethasone",
    "deltasone": "prednisone",
    "dilaudid": "hydromorphone",
    "diprivan": "propofol",
    "dulcolax": "bisacodyl",
    "duoneb": "albuterol-ipratropium",
    "ecotrin": "aspirin",
    "fat": "fat emulsion",
    "flagyl": "metronidazole",
    "flomax": "tamsulosin",
    "glargine-insulin": "insulin glargine",
    "glucagen": "glucagon",
    "glutose": "dextrose",
    "haldol": "haloperidol",
    "humalog": "insulin lispro",
    "humulin r": "insulin regular",
    "imdur": "isosorbide mononitrate",
    "insulin hum-reg": "insulin regular",
    "insulin humalog": "insulin lispro",
    "insulin lantus": "insulin glargine",
    "insulin reg": "insulin regular",
    "insulin-glargine": "insulin glargine",
    "insulin-regular": "insulin regular",
    "k-dur": "potassium chloride",
    "kayciel": "potassium chloride",
    "kayexalate": "sodium polystyrene sulfonate",
    "keppra": "levetiracetam",
    "klonopin": "clonazepam",
    "klor-con": "potassium chloride",
    "klor-con k-tab": "potassium chloride",
    "lanoxin": "digoxin",
    "lantus": "insulin glargine",
    "lasix": "furosemide",
    "levaquin": "levofloxacin",
    "levemir": "insulin detemir",
    "levophed": "norepinephrine",
    "lipitor": "atorvastatin",
    "lopressor": "metoprolol",
    "lovenox": "enoxaparin",
    "magox": "magnesium oxide",
    "medrol": "methylprednisolone",
    "merrem": "meropenem",
    "milk of magnesia": "magnesium hydroxide",
    "miralax": "polyethylene glycol",
    "motrin": "ibuprofen",
    "mvi": "multivitamin",
    "narcan": "naloxone",
    "neurontin": "gabapentin",
    "nexterone": "amiodarone",
    "nicoderm cq": "nicotine",
    "nimbex": "cisatracurium",
    "nitro-bid": "nitroglycerin",
    "nitrostat": "nitroglycerin",
    "norco": "acetaminophen-hydrocodone",
    "norvasc": "amlodipine",
    "novolog": "insulin aspart",
    "pepcid": "famotidine",
    "percocet": "acetaminophen-oxycodone",
    "phenergan": "promethazine",
    "plavix": "clopidogrel",
    "potassium sodium phosphate": "potassium-sodium phosphate",
    "precedex": "dexmedetomidine",
    "prinivil": "lisinopril",
    "protonix": "pantoprazole",
    "proventil": "albuterol",
    "normodyne trandate": "labetalol",
    "proventil ventolin": "albuterol",
    "pulmicort": "budesonide",
    "reglan": "metoclopramide",
    "restoril": "temazepam",
    "rocephin": "ceftriaxone",
    "roxicodone": "oxycodone",
    "senokot": "senna",
    "senokot-s": "docusate-senna",
    "seroquel": "quetiapine",
    "solu-medrol": "methylprednisolone",
    "solumedrol": "methylprednisolone",
    "sublimaze": "fentanyl",
    "synthroid": "levothyroxine",
    "toprol": "metoprolol",
    "toradol": "ketorolac",
    "trandate": "labetalol",
    "tylenol": "acetaminophen",
    "ultram": "tramadol",
    "valium": "diazepam",
    "vancocin": "vancomycin",
    "ventolin": "albuterol",
    "versed": "midazolam",
    "xanax": "alprazolam",
    "zestril": "lisinopril",
    "zocor": "simvastatin",
    "zofran": "ondansetron",
    "zosyn": "piperacillin-tazobactam",
}
_CONTAINER = re.compile(r"^[\d.,]+\s*(?:ml|g|gm|mg|each)\b[^:]*?(?::|\s-\s)\s*(?P<drug>.+)$")
_DEXTROSE = re.compile(r"^d\d+[a-z0-9/]*$")


def normalise(name: str) -> str:
    """Bring a drug's name as a hospital writes it to its ingredient, in lower case.

    Container, strength, form, route, salt, units and what stands in brackets go; the ingredients
    of a combination are put in alphabetical order; the brands most frequent in intensive care
    become the ingredient. Concentration goes, too: dextrose 5 % and 50 % are one, as they are in
    the HICL codes. A name of which nothing would be left stays as it is.

    Args:
        name: Name from any of the drug tables of eICU.

    Returns:
        The name of the ingredient, or an empty string for an empty name.

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
    found = " ".join(words)
    return _SYNONYMS.get(found, found)


def _no_brackets(text: str) -> str:
    return " ".join(re.sub(r"\([^)]*\)?", " ", text).split())
