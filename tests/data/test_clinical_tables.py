"""Clinical tables of the published format: the window, damaged files, labels, names of drugs."""

import clinical_files as files
import pandas as pd
import pytest
from clinical_files import drugs_of, home, infusion, order, stay, write
from hypothesis import given, settings
from hypothesis import strategies as st

from gflowout.data import clinical
from gflowout.data.errors import DataError, MissingDataError

# The window


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ({"start": 0, "stop": 10}, True),
        ({"start": 2879, "stop": 9999}, True),
        ({"start": 2880, "stop": 9999}, False),
        ({"start": -500, "stop": 10}, True),
        ({"start": -500, "stop": -1}, False),
        ({"start": -500, "stop": 0}, True),  # no stop recorded
        ({"start": -500, "stop": ""}, True),
        ({"start": 100, "stop": 0}, True),
        ({"start": 100, "stop": 100}, True),  # given once
        ({"start": 100, "stop": 99}, False),  # withdrawn before it began
        ({"start": 100, "drugordercancelled": "Yes"}, False),
        ({"start": 100, "drugorderoffset": 2879}, True),  # entered late, still in the window
        ({"start": 100, "drugorderoffset": 2880}, False),
        ({"start": ""}, False),
    ],
)
def test_orders_at_the_borders_of_the_window(tmp_path, times, counts):
    row = order(1) | {
        {"start": "drugstartoffset", "stop": "drugstopoffset"}.get(key, key): value
        for key, value in times.items()
    }
    write(tmp_path, [stay(1)], [row])
    assert drugs_of(tmp_path) == ({"aspirin"} if counts else set())


@pytest.mark.parametrize(
    ("at", "rate", "counts"),
    [
        (0, "5", True),
        (-1, "5", False),
        (2879, "5", True),
        (2880, "5", False),
        (60, "0", False),
        (60, "0.00", False),
        (60, "OFF", False),
        (60, "", True),
        (60, "0.05", True),
        ("", "5", False),
    ],
)
def test_infusions_at_the_borders_of_the_window(tmp_path, at, rate, counts):
    write(tmp_path, [stay(1)], infusions=[infusion(1, at=at, rate=rate)])
    assert drugs_of(tmp_path) == ({"norepinephrine"} if counts else set())


@pytest.mark.parametrize(
    ("at", "entered", "counts"),
    [(-60, -5, True), (-60, 2879, True), (-60, 2880, False), (2880, 60, False)],
)
def test_drugs_from_home_count_when_they_were_entered(tmp_path, at, entered, counts):
    write(tmp_path, [stay(1)], admission=[home(1, at=at, entered=entered)])
    assert drugs_of(tmp_path) == ({"home: lisinopril"} if counts else set())
    assert drugs_of(tmp_path, tables=("medication",)) == set()


def test_nothing_counts_once_the_stay_is_over(tmp_path):
    write(
        tmp_path,
        [stay(1, end=600, died=True)],
        [order(1, start=599, stop=900), order(1, "MORPHINE 2 MG", start=600, stop=900)],
        [infusion(1, at=599), infusion(1, "Propofol", at=600)],
        [home(1, entered=599), home(1, "XANAX", entered=600)],
    )
    assert drugs_of(tmp_path) == {"aspirin", "norepinephrine", "home: lisinopril"}
    assert drugs_of(tmp_path, hours=9.99) == {"aspirin", "norepinephrine", "home: lisinopril"}
    assert drugs_of(tmp_path, hours=9) == set()


def test_rows_of_unknown_stays_are_counted_not_used(tmp_path):
    write(tmp_path, [stay(1)], [order(1), order(2), order(3)])
    rows, counts = clinical.exposures(clinical.read_tables(tmp_path))
    assert set(rows.stay) == {1}
    assert counts["medication rows of unknown stays"] == 2


# Files


@pytest.mark.parametrize("camel", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_any_spelling_of_the_files(tmp_path, camel, packed):
    write(tmp_path, [stay(1)], [order(1)], camel=camel, packed=packed, header=str.upper)
    assert drugs_of(tmp_path) == {"aspirin"}


@pytest.mark.parametrize("folder", ["eicu", "eicu-collaborative-research-database-2.0"])
def test_full_database_by_name(tmp_path, folder):
    write(tmp_path / folder, [stay(1)], [order(1)])
    found = clinical.load_tables("eicu", tmp_path)
    assert len(found.patient) == len(found.drugs["medication"]) == 1


def broken(tmp_path, table, change, *, packed=False):
    """Break one file and return what is said about it."""
    write(tmp_path, [stay(1), stay(2)], [order(1), order(2)], packed=packed)
    path = tmp_path / (files.FILES[table] + (".csv.gz" if packed else ".csv"))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as error:
        clinical.summarise(tmp_path)
    assert str(error.value).startswith(str(path))
    return str(error.value)


def test_misspelled_table(tmp_path):
    with pytest.raises(
        ValueError,
        match="tables must be one of 'medication', 'infusion', 'admission', got 'infusions'; "
        "did you mean 'infusion'",
    ):
        clinical.read_tables(tmp_path, ["medication", "infusions"])


def test_missing_folder_and_missing_files(tmp_path):
    with pytest.raises(MissingDataError, match="no such folder"):
        clinical.read_tables(tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match="no table patient"):
        clinical.read_tables(tmp_path)
    write(tmp_path, [stay(1)], [order(1)])
    (tmp_path / "infusionDrug.csv.gz").unlink()
    with pytest.raises(MissingDataError, match=r"infusionDrug\.csv\.gz and infusionDrug\.csv"):
        clinical.read_tables(tmp_path)
    assert clinical.read_tables(tmp_path, ["medication"]).drugs.keys() == {"medication"}
    with pytest.raises(MissingDataError, match="eicu"):
        clinical.load("eicu", tmp_path)


@pytest.mark.parametrize("table", files.FILES)
def test_truncated_or_wrongly_packed_files(tmp_path, table):
    said = broken(tmp_path, table, lambda content: content[: len(content) // 2], packed=True)
    assert "cannot be unpacked" in said
    assert "cannot be unpacked" in broken(tmp_path, table, lambda _: b"no gzip", packed=True)


def test_damage_inside_a_packed_file(tmp_path):
    def flip(content):
        middle = len(content) // 2
        return (
            content[:middle] + bytes(255 - b for b in content[middle : middle + 8]) + content[-8:]
        )

    assert "get the file again" in broken(tmp_path, "patient", flip, packed=True)


@pytest.mark.parametrize(
    ("table", "column"),
    [("patient", "uniquepid"), ("medication", "drugstartoffset"), ("infusion", "drugrate")],
)
def test_missing_columns_are_named(tmp_path, table, column):
    said = broken(tmp_path, table, lambda c: c.replace(column.encode(), b"other"))
    assert f"no column {column}" in said
    assert "other" in said


@pytest.mark.parametrize("table", files.FILES)
def test_empty_tables(tmp_path, table):
    assert "no rows" in broken(tmp_path, table, lambda c: c.split(b"\n")[0] + b"\n")
    assert "empty" in broken(tmp_path, table, lambda _: b"")


def test_files_that_are_no_tables(tmp_path):
    assert "UTF-8" in broken(tmp_path, "patient", lambda c: c + b"\xff\xfe\xff")
    assert "comma-separated" in broken(tmp_path, "patient", lambda c: c + b'1,"' + b",2" * 99)


@pytest.mark.parametrize(
    ("table", "column", "value", "says"),
    [
        ("medication", "drugstartoffset", "soon", "drugstartoffset must be a number, got 'soon'"),
        ("medication", "drughiclseqno", "A1", "drughiclseqno must be a number, got 'A1'"),
        ("medication", "drugordercancelled", "Maybe", "one of No, Yes or empty, got 'Maybe'"),
        ("infusion", "infusionoffset", "12:30", "infusionoffset must be a number, got '12:30'"),
        ("admission", "drugenteredoffset", "x", "drugenteredoffset must be a number, got 'x'"),
        ("patient", "patientunitstayid", "1.5", "must be a whole number, got 1.5 in line 2"),
        ("patient", "patientunitstayid", "", "must be a whole number, got nothing in line 2"),
        ("patient", "hospitalid", "inf", "must be a whole number"),
        ("patient", "unitdischargeoffset", "late", "must be a number, got 'late' in line 2"),
        ("patient", "unitdischargestatus", "Dead", "Alive, Expired or empty, got 'Dead'"),
        ("patient", "uniquepid", "", "uniquepid is empty in line 2"),
        ("patient", "patientunitstayid", "2", "1 rows repeat one, first 2"),
    ],
)
def test_wrong_values_are_shown_with_their_line(tmp_path, table, column, value, says):
    make = {"patient": stay, "medication": order, "infusion": infusion, "admission": home}[table]

    def change(_):
        return files.text(table, [make(1) | {column: value}, make(2)]).encode()

    assert says in broken(tmp_path, table, change)


def test_odd_ages(tmp_path):
    ages = ["> 89", ">89", "", "17"]
    write(tmp_path, [stay(n, age=age) for n, age in enumerate(ages, 1)])
    stays, _ = clinical.stay_table(clinical.read_tables(tmp_path))
    assert stays.age[[1, 2, 4]].tolist() == [90, 90, 17]
    assert pd.isna(stays.age[3])
    write(tmp_path, [stay(1, age="old")])
    with pytest.raises(DataError, match="age must be a number, '> 89' or empty, got 'old'"):
        clinical.stay_table(clinical.read_tables(tmp_path))


def test_the_table_of_home_drugs_may_be_missing(tmp_path):
    write(tmp_path, [stay(1), stay(2)], [order(1), order(2)], packed=True)
    whole = clinical.summarise(tmp_path)
    (tmp_path / (files.FILES["admission"] + ".csv.gz")).unlink()
    without = clinical.summarise(tmp_path)
    assert without == {name: whole[name] for name in without}
    assert "stays" in without
    (tmp_path / (files.FILES["infusion"] + ".csv.gz")).unlink()
    with pytest.raises(MissingDataError, match="no table infusionDrug here"):
        clinical.summarise(tmp_path)


# Labels, vocabulary, covariates


def test_labels_and_stays_that_are_left_out(tmp_path):
    write(
        tmp_path,
        [
            stay(3, died=True, end=2880),
            stay(2, hospitaldischargestatus="Expired", end=2879),
            stay(1, unitdischargestatus=""),
        ],
    )
    tables = clinical.read_tables(tmp_path)
    unit, counts = clinical.stay_table(tables)
    assert unit.died.to_dict() == {2: False, 3: True}
    assert counts["stays without a known outcome"] == 1
    hospital, _ = clinical.stay_table(tables, label="hospital")
    assert hospital.died.to_dict() == {1: False, 2: True, 3: True}
    long, counts = clinical.stay_table(tables, min_hours=48)
    assert long.index.tolist() == [3]
    assert counts["stays shorter than 48 hours"] == 1


def drug_rows(*rows):
    columns = ["stay", "home", "name", "code"]
    return pd.DataFrame([(s, False, n, c) for s, n, c in rows], columns=columns)


def test_code_only_and_name_only_rows_are_translated_by_training_rows():
    rows = drug_rows(
        (1, "aspirin", 7), (2, "aspirin", 7), (3, "ecotrin", 7), (4, "", 7), (5, "aspirin", -1),
        (1, "morphine", 8), (2, "warfarin", 8), (4, "", 8), (9, "heparin", 8), (9, "heparin", 7),
    )  # fmt: skip
    by_name = clinical.Vocabulary.fit(rows, [1, 2, 3, 4, 5], min_count=1)
    # Half the rows of code 8 are no majority, and stay 9 is not in training.
    assert by_name.keys == ("aspirin", "ecotrin", "hicl 8", "morphine", "warfarin")
    x, unknown = by_name.encode(rows, [4, 9, 6])
    assert x.tolist() == [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert unknown == 1
    by_code = clinical.Vocabulary.fit(rows, [1, 2, 3, 4, 5], drug_key="hicl", min_count=1)
    assert by_code.keys == ("hicl 7", "hicl 8")
    assert by_code.features == ("hicl 7 (aspirin)", "hicl 8")
    x, unknown = by_code.encode(rows, [5, 9])
    assert x.tolist() == [[1, 0], [1, 1]]
    assert unknown == 0
    with pytest.raises(ValueError, match="min_count must leave at least one drug, got 6"):
        clinical.Vocabulary.fit(rows, [1, 2, 3, 4, 5], min_count=6)


def test_min_count_counts_training_stays_not_rows():
    rows = drug_rows((1, "a", 1), (1, "a", 2), (1, "a", -1), (2, "b", -1), (3, "b", -1))
    assert clinical.Vocabulary.fit(rows, [1, 2, 3], min_count=2).keys == ("b",)


def test_covariates_are_scaled_by_training_stays(tmp_path):
    write(
        tmp_path,
        [
            stay(1, age="40", gender="Male"),
            stay(2, age="60"),
            stay(3, age="", gender="Unknown"),
            stay(4, age="> 89", gender=""),
        ],
    )
    stays, _ = clinical.stay_table(clinical.read_tables(tmp_path))
    scales = clinical.Covariates.fit(stays.loc[[1, 2, 3]])
    assert scales.features == ("age", "age missing", "female", "gender missing")
    expected = [[-1, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [4, 0, 0, 1]]
    assert scales.encode(stays).tolist() == expected


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("5 ML VIAL : DILTIAZEM HCL 25 MG/5ML IV SOLN", "diltiazem"),
        ("1 ML CRTRDG-NDL : MORPHINE SULFATE (PF) 2 MG/ML IV SOLN", "morphine"),
        ("100 ML BAG CUSTOM NDC : INSULIN INFUSION", "insulin"),
        ("SODIUM CHLORIDE 0.9 % IV : 1000 ML", "sodium chloride"),
        ("0.9%NaCl 1,000 mL", "sodium chloride"),
        ("3% Sodium Chloride IVF Infused (ml/hr)", "sodium chloride"),
        (".9NS (ml/hr)", "sodium chloride"),
        ("POTASSIUM CHLORIDE CRYS ER 20 MEQ PO TBCR", "potassium chloride"),
        ("POTASSIUM CL IN WATER 20MEQ/50", "potassium chloride"),
        ("MAGNESIUM SULFATE 2 GM/50 ML IVPB", "magnesium sulfate"),
        ("DEXT 5%-NACL 0.45% 1000 ML LVP", "dextrose-sodium chloride"),
        ("D50", "dextrose"),
        ("Dilaudid PCA -Infusion (ml/hr)", "hydromorphone"),
        ("Volume (ml) Heparin-heparin 25,000 units in dextrose 500 mL infusion (ml/hr)", "heparin"),
        ("Propofol (Diprivan) 1000 mg  100 ml  Premix (mcg/kg/min)", "propofol"),
        ("PRMX NOREPInephrine 4 mg/250 mL NS Drip", "norepinephrine"),
        ("<<norepinephrine 4 mg/4 mL Inj", "norepinephrine"),
        ("PIPERACILLIN SOD-TAZOBACTAM SO 3-0.375 G IV SOLR", "piperacillin-tazobactam"),
        ("ZOSYN 3.375 GRAM in NS 100 mL IVPB", "piperacillin-tazobactam"),
        ("ALBUTEROL/IPRATROPIUM NEB 3ML", "albuterol-ipratropium"),
        ("WARFARIN SODIUM 5 MG PO TABS", "warfarin"),
        ("Norepinephrine (mcg/min)", "norepinephrine"),
        ("Volume (mL) Magnesium  (ml/hr)", "magnesium"),
        ("ASPART insulin", "insulin aspart"),
        ("WARFARIN - PHYSICIAN MONITORED", "warfarin"),
        ("metoprolol tartrate (LOPRESSOR) inj 5 mg", "metoprolol"),
        ("Tylenol", "acetaminophen"),
        ("IVF (ml/hr)", "iv fluid"),
        ("(ml/hr)", "(ml/hr)"),
        ("   ", ""),
    ],
)
def test_names_from_the_wards(name, expected):
    assert clinical.normalise(name) == expected


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_any_text_is_a_name(name):
    found = clinical.normalise(name)
    assert (found == "") == (not name.split())
    assert clinical.normalise(name.upper()) == clinical.normalise(name.upper().lower())
