"""The clinical pipeline: against the real demo of eICU, by a second implementation and by hand,
and on small tables of the published format for every boundary, corruption and leak."""

import csv
import gzip
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path

import clinical_files as files
import pandas as pd
import pytest
import torch
from clinical_files import home, infusion, order, stay, write
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gflowout as gfo
from gflowout.data import clinical
from gflowout.data.batches import Batches
from gflowout.data.errors import DataError, MissingDataError

ALL = ("medication", "infusion", "admission")
normalise = cache(clinical.normalise)


def drugs_of(folder, number=1, tables=ALL, **options):
    """Names or codes of the drugs that count for one stay."""
    rows, _ = clinical.exposures(clinical.read_tables(folder, tables), **options)
    rows = rows[rows.stay == number]
    return {
        ("home: " if row.home else "") + (row.name or str(row.code))
        for row in rows.rename_axis(index=None).itertuples(index=False, name="Row")
    }


# The real demo


@pytest.fixture(scope="module")
def demo(real_data):
    return real_data("eicu-demo")


@pytest.fixture(scope="module")
def raw(demo):
    """All tables with nothing but the standard library."""
    tables = {}
    for table in files.FILES:
        with gzip.open(demo / f"{files.FILES[table].lower()}.csv.gz", "rt") as stream:
            tables[table] = list(csv.DictReader(stream))
    return tables


@pytest.fixture(scope="module")
def tables(demo):
    return clinical.read_tables(demo, ALL)


@pytest.fixture(scope="module")
def by_hand(raw):
    """Stays and their drugs in 48 hours, row by row: a second implementation of the rules."""
    end = {r["patientunitstayid"]: min(2880, int(r["unitdischargeoffset"])) for r in raw["patient"]}
    found = defaultdict(set)
    for row in raw["medication"]:
        last = end[row["patientunitstayid"]]
        start, stop = int(row["drugstartoffset"]), int(row["drugstopoffset"])
        if row["drugordercancelled"] == "Yes" or start >= last:
            continue
        if int(row["drugorderoffset"]) >= last:
            continue
        if stop != 0 and (stop < 0 or stop < start):
            continue
        name, code = normalise(row["drugname"]), int(float(row["drughiclseqno"] or -1))
        if name or code >= 0:
            found[int(row["patientunitstayid"])].add((False, name, code))
    for row in raw["infusion"]:
        inside = 0 <= int(row["infusionoffset"]) < end[row["patientunitstayid"]]
        try:
            running = float(row["drugrate"]) != 0
        except ValueError:
            running = True
        if inside and running:
            name = normalise(row["drugname"])
            found[int(row["patientunitstayid"])].add((False, name, -1))
    for row in raw["admission"]:
        if (
            max(int(row["drugenteredoffset"]), int(row["drugoffset"]))
            < end[row["patientunitstayid"]]
        ):
            key = (True, normalise(row["drugname"]), int(row["drughiclseqno"]))
            found[int(row["patientunitstayid"])].add(key)
    return found


def test_summary_of_the_demo_is_what_the_files_hold(demo, raw, by_hand):
    found = clinical.summarise(demo)
    patient = raw["patient"]
    assert found["stays"] == len(patient) == 2520
    assert found["patients"] == len({row["uniquepid"] for row in patient})
    assert found["hospitals"] == len({row["hospitalid"] for row in patient}) == 186
    units = Counter(row["unitdischargestatus"] for row in patient)
    assert found["deaths in the unit"] == units["Expired"] == 126
    assert found["stays without a known outcome"] == units[""] == 2
    hospitals = Counter(row["hospitaldischargestatus"] for row in patient)
    assert found["deaths in the hospital"] == hospitals["Expired"]
    cancelled = sum(row["drugordercancelled"] == "Yes" for row in raw["medication"])
    assert found["medication rows cancelled"] == cancelled
    given = {number: [d for d in drugs if not d[0]] for number, drugs in by_hand.items()}
    assert found["stays with a drug given in the window"] == sum(map(bool, given.values()))
    names = {name for drugs in given.values() for _, name, _ in drugs if name}
    assert found["distinct names of drugs given"] == len(names)
    for table in ALL:
        assert found[f"{table} rows"] == len(raw[table])
        reasons = {k: v for k, v in found.items() if k.startswith(f"{table} rows ")}
        assert sum(reasons.values()) == len(raw[table])  # each row counts or has one reason


def test_drugs_of_every_stay_of_the_demo_by_a_second_implementation(tables, by_hand):
    rows, _ = clinical.exposures(tables)
    found = set(rows.itertuples(index=False, name=None))
    assert found == {(stay, *drug) for stay, drugs in by_hand.items() for drug in drugs}
    assert len(found) == len(rows)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        # Moved on after 2,250 minutes; a second bolus of diltiazem stopped before admission; one
        # order has neither name nor code, one has a code only.
        (
            141765,
            "warfarin diltiazem aspirin lisinopril pantoprazole tramadol atorvastatin "
            "sodium_chloride 37316",
        ),
        # Died after 698 minutes.
        (
            733083,
            "morphine chlorhexidine albumin phenylephrine lorazepam metronidazole vancomycin "
            "norepinephrine",
        ),
        # Albumin is dated 2,874 but was written at 3,137; lorazepam starts at 3,138.
        (
            827085,
            "midazolam norepinephrine chlorhexidine furosemide 34344 fentanyl dextrose amiodarone "
            "dopamine",
        ),
    ],
)
def test_stays_of_the_demo_read_by_eye(demo, number, expected):
    wanted = {name.replace("_", " ") for name in expected.split()}
    assert drugs_of(demo, number, ("medication", "infusion")) == wanted


def test_names_of_the_demo_merge_as_its_codes_do(raw):
    """Codes are an independent judge: most rows of a code must get one name."""
    rows = [r for r in raw["medication"] if r["drugname"] and r["drughiclseqno"]]
    before, after = defaultdict(Counter), defaultdict(Counter)
    for row in rows:
        before[row["drughiclseqno"]][row["drugname"].lower()] += 1
        after[row["drughiclseqno"]][normalise(row["drugname"])] += 1

    def modal(names):
        return sum(max(counts.values()) for counts in names.values()) / len(rows)

    assert modal(before) < 0.35
    assert modal(after) > 0.98
    kinds = {normalise(row["drugname"]) for row in raw["medication"] if row["drugname"]}
    assert 150 < len(kinds) < 200  # of 1,401 spellings


def test_matrix_of_the_demo_by_hand(demo, raw, by_hand):
    split = clinical.load("eicu-demo", demo, test_hospital=0.3, min_count=5)
    patient = {int(row["patientunitstayid"]): row for row in raw["patient"]}
    train = split.train.stays.tolist()
    # Names of orders with a code only: what more than half of the training stays call the code.
    calls = defaultdict(Counter)
    given = {s: {d[1:] for d in by_hand[s] if not d[0]} for s in patient}
    for number in train:
        for name, code in given[number]:
            if name and code >= 0:
                calls[code][name] += 1
    named = {
        code: name
        for code, names in calls.items()
        for name, count in names.items()
        if 2 * count > sum(names.values())
    }
    sets = {s: {n or named.get(c) or f"hicl {c}" for n, c in drugs} for s, drugs in given.items()}
    counts = Counter(name for number in train for name in sets[number])
    features = sorted(name for name, count in counts.items() if count >= 5)
    assert list(split.vocabulary.keys) == features
    for part in (split.train, split.valid, split.test):
        for number, x, y, who, where in zip(
            part.stays.tolist(), part.x, part.y, part.patients, part.hospitals, strict=True
        ):
            row = patient[number]
            assert {features[j] for j in x.nonzero()[:, 0]} == sets[number] & set(features)
            assert bool(y) == (row["unitdischargestatus"] == "Expired")
            assert (who, int(where)) == (row["uniquepid"], int(row["hospitalid"]))
        unknown = sum(len(sets[number] - set(features)) for number in part.stays.tolist())
        assert part.unknown == unknown
    everyone = sorted(s for p in (split.train, split.valid, split.test) for s in p.stays.tolist())
    known = sorted(s for s, row in patient.items() if row["unitdischargestatus"])
    assert len(everyone) + split.summary["stays dropped from training, patient in test"] == len(
        known
    )


def test_demo_trains_a_wrapped_mlp(demo):
    split = clinical.load("eicu-demo", demo, test_hospital=0.3, balance="weights")
    train = split.train
    batches = Batches(train.x, train.y, batch_size=64, shuffle=True, seed=0, weights=train.weights)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = torch.nn.Sequential(
            torch.nn.Linear(len(train.features), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        model = gfo.wrap(backbone, sites=["1"], likelihood=gfo.Binary(), example=(train.x[:2],))
        optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
        losses, drawn = [], []
        for _ in range(2):
            for x, y in batches:
                found = model(x, y=y)
                optimizer.zero_grad()
                found.total.backward()
                optimizer.step()
                losses.append(found.nll.item())
                drawn.append(y)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert 0.45 < torch.cat(drawn).mean() < 0.55  # of 5 % deaths in the set
    risk = model.predict(split.test.x).mean
    died = split.test.y == 1
    assert risk[died].mean() > risk[~died].mean()


def test_code_of_the_page_runs(demo, monkeypatch, capsys):
    monkeypatch.setenv("GFLOWOUT_DATA", str(demo.parent))
    page = (Path(__file__).parents[1] / "docs" / "clinical.md").read_text(encoding="utf-8")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    assert "32 deaths" in capsys.readouterr().out  # as the page says
    table = page.split("## What is built from what")[1].split("Each row is counted")[0]
    stated = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+)\**\s\|$", table, re.MULTILINE)]
    counted = clinical.summarise(demo).values()
    assert len(stated) == 13
    assert set(stated) <= set(counted)


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

    assert "get it again" in broken(tmp_path, "patient", flip, packed=True)


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


# Splits


def frame_of(rows):
    columns = ["patient", "hospital", "died"]
    return pd.DataFrame(rows, columns=columns).rename_axis("stay")


STAYS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 4), st.booleans()),
    min_size=2,
    max_size=40,
).map(frame_of)


@given(stays=STAYS, hospital=st.sampled_from(["largest", 1, [1, 2], 0.4]), seed=st.integers(0, 9))
@settings(max_examples=50)
def test_no_patient_is_on_two_sides(stays, hospital, seed):
    try:
        split = clinical.leave_hospital_out(stays, hospital, seed=seed)
    except ValueError:
        assume(False)  # a hospital that is not there, or a side without stays
    train, valid = clinical.hold_out_patients(split.train, 0.3, seed=seed)
    sides = [set(side.patient) for side in (train, valid, split.test)]
    for one, other in combinations(sides, 2):
        assert not one & other
    assert set(split.test.hospital) == set(split.hospitals)
    assert not set(split.train.hospital) & set(split.hospitals)
    assert len(train) + len(valid) + len(split.test) + split.removed == len(stays)
    assert len(split.test) == stays.hospital.isin(split.hospitals).sum()
    shuffled = clinical.hold_out_patients(split.train.iloc[::-1], 0.3, seed=seed)[1]
    assert set(shuffled.index) == set(valid.index)


def test_which_hospital_is_left_out():
    stays = frame_of([("a", 3, False), ("b", 2, True), ("c", 2, True), ("d", 3, False)])
    assert clinical.leave_hospital_out(stays).hospitals == (2,)  # the lower id of equals
    assert clinical.leave_hospital_out(stays, 3).train.index.tolist() == [1, 2]
    drawn = clinical.leave_hospital_out(stays, 0.4, seed=1).hospitals
    assert len(drawn) == 1
    with pytest.raises(ValueError, match="with stays in the table, got 5; the largest are"):
        clinical.leave_hospital_out(stays, 5)
    with pytest.raises(TypeError, match="id of a hospital, got True"):
        clinical.leave_hospital_out(stays, True)
    with pytest.raises(ValueError, match="'largest'"):
        clinical.leave_hospital_out(stays, "smallest")
    with pytest.raises(ValueError, match="both sides, got 0 for training and 4 for the test"):
        clinical.leave_hospital_out(stays, [2, 3])


def test_from_one_hospital_to_another():
    stays = frame_of([("a", 1, False), ("b", 1, True), ("b", 2, True), ("c", 3, True)])
    split = clinical.between_hospitals(stays, train_hospital=1, test_hospital=2)
    assert (split.train.index.tolist(), split.test.index.tolist()) == ([0], [2])
    assert split.removed == 1
    with pytest.raises(ValueError, match="another hospital than test_hospital, got 1 for both"):
        clinical.between_hospitals(stays, train_hospital=1, test_hospital=1)
    with pytest.raises(ValueError, match=r"train_hospital must be a hospital .*, got 7"):
        clinical.between_hospitals(stays, train_hospital=7, test_hospital=1)


def test_validation_has_its_part_of_the_deaths():
    stays = frame_of([(f"p{n}", 1, n < 20) for n in range(100)])
    kept, apart = clinical.hold_out_patients(stays, 0.3, seed=5)
    assert (len(kept), kept.died.sum(), len(apart), apart.died.sum()) == (70, 14, 30, 6)
    other = clinical.hold_out_patients(stays, 0.3, seed=6)[1]
    assert set(other.index) != set(apart.index)
    assert len(clinical.hold_out_patients(stays, 0.0)[1]) == 0
    with pytest.raises(ValueError, match=r"valid_fraction must leave .* got 0.999, .* all 100"):
        clinical.hold_out_patients(stays, 0.999)
    with pytest.raises(ValueError, match="stays must hold at least one stay"):
        clinical.hold_out_patients(stays[:0])


def test_hospitals_and_patients_are_drawn_from_streams_of_their_own():
    """One stream for both would draw the patients by the order of the hospitals."""
    stays = frame_of([(f"p{n:02}", n, False) for n in range(40)])
    same = 0
    for seed in range(20):
        split = clinical.leave_hospital_out(stays, 0.25, seed=seed)
        _, apart = clinical.hold_out_patients(stays, 0.25, seed=seed)
        assert len(split.test) == len(apart) == 10
        same += len(set(split.test.patient) & set(apart.patient))
    assert 30 < same < 70  # 50 by chance, 200 from one stream


@given(
    y=st.lists(st.booleans(), min_size=2, max_size=30).filter(lambda y: 0 < sum(y) < len(y)),
    seed=st.integers(0, 5),
)
def test_balanced_classes(y, seed):
    n = len(y)
    data = clinical.ClinicalSet(
        x=torch.arange(float(n))[:, None],
        y=torch.tensor(y, dtype=torch.float32),
        features=("row",),
        stays=torch.arange(n),
        patients=tuple(map(str, range(n))),
        hospitals=torch.ones(n, dtype=torch.int64),
    )
    assert clinical.balanced(data) is data
    weighted = clinical.balanced(data, "weights")
    assert weighted.weights[data.y == 1].sum().item() == pytest.approx(n / 2, rel=1e-5)
    assert weighted.weights[data.y == 0].sum().item() == pytest.approx(n / 2, rel=1e-5)
    more = clinical.balanced(data, "oversample", seed=seed)
    assert more.y.mean() == 0.5
    assert set(more.stays.tolist()) == set(range(n))
    times = Counter(more.stays.tolist())
    for label in (False, True):
        of_class = [times[i] for i in range(n) if y[i] is label]
        assert max(of_class) - min(of_class) <= 1
    assert torch.equal(more.x[:, 0].long(), more.stays)
    assert [int(p) for p in more.patients] == more.stays.tolist()


def test_balance_needs_both_classes():
    y = torch.zeros(3)
    data = clinical.ClinicalSet(y[:, None], y, ("a",), y.long(), ("p",) * 3, y.long())
    with pytest.raises(ValueError, match="needs deaths and survivals in training, got 0 and 3"):
        clinical.balanced(data, "weights")


# Nothing leaks


NAMES = ["ASPIRIN 81 MG", "HEPARIN", "MORPHINE 2 MG/ML IJ SOLN", "PROPOFOL", ""]
PATIENTS = [
    stay(n, patient=f"p{n % 17}", hospital=1 + n % 3, died=n % 4 == 0, end=1000 * (1 + n % 5))
    for n in range(1, 31)
]
ORDERS = [
    order(n, NAMES[n % 5], start=100 * (n % 7), drughiclseqno=10 + n % 5 if n % 2 else "")
    for n in range(1, 31)
]
LATER = st.lists(
    st.builds(
        lambda n, name, late, code: order(
            n, name, start=min(2880, 1000 * (1 + n % 5)) + late, stop=99999, drughiclseqno=code
        ),
        st.integers(1, 30),
        st.sampled_from([*NAMES, "NEW DRUG"]),
        st.integers(0, 5000),
        st.integers(10, 16),
    ),
    max_size=6,
)


def load_small(folder, **options):
    options = {"test_hospital": 2, "min_count": 1, "tables": ["medication"]} | options
    return clinical.load("eicu", folder, **options)


def same(left, right):
    return (
        torch.equal(left.x, right.x)
        and torch.equal(left.y, right.y)
        and torch.equal(left.stays, right.stays)
        and left.features == right.features
        and left.unknown == right.unknown
    )


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unchanged")
    write(folder / "eicu", PATIENTS, ORDERS)
    return {k: load_small(folder, drug_key=k, covariates=["age"]) for k in ("name", "hicl")}


@given(later=LATER, key=st.sampled_from(["name", "hicl"]))
@settings(max_examples=15)
def test_rows_after_the_window_change_nothing(tmp_path_factory, unchanged, later, key):
    folder, before = tmp_path_factory.mktemp("later"), unchanged[key]
    write(folder / "eicu", PATIENTS, ORDERS + later)
    after = load_small(folder, drug_key=key, covariates=["age"])
    assert before.vocabulary == after.vocabulary
    for part in ("train", "valid", "test"):
        assert same(getattr(before, part), getattr(after, part))


@given(
    extra=st.lists(
        st.builds(
            lambda n, name, code: order(n, name, drughiclseqno=code),
            st.sampled_from([n for n in range(1, 31) if 1 + n % 3 == 2]),
            st.sampled_from([*NAMES, "NEW DRUG"]),
            st.integers(10, 16),
        ),
        max_size=6,
    ),
    key=st.sampled_from(["name", "hicl"]),
)
@settings(max_examples=15)
def test_test_rows_change_nothing_in_training(tmp_path_factory, unchanged, extra, key):
    folder, before = tmp_path_factory.mktemp("test"), unchanged[key]
    changed = [
        row | {"unitdischargestatus": "Alive", "age": "20"} if row["hospitalid"] == 2 else row
        for row in PATIENTS
    ]
    write(folder / "eicu", changed, ORDERS + extra)
    after = load_small(folder, drug_key=key, covariates=["age"])
    assert before.vocabulary == after.vocabulary
    assert before.covariates == after.covariates
    assert same(before.train, after.train)
    assert same(before.valid, after.valid)


def test_validation_rows_change_nothing_in_the_vocabulary(tmp_path):
    write(tmp_path / "eicu", PATIENTS, ORDERS)
    before = load_small(tmp_path)
    assert len(before.valid)
    extra = [order(number, "NEW DRUG") for number in before.valid.stays.tolist()]
    write(tmp_path / "eicu", PATIENTS, ORDERS + extra)
    after = load_small(tmp_path)
    assert after.vocabulary == before.vocabulary
    assert torch.equal(after.valid.x, before.valid.x)
    assert after.valid.unknown == before.valid.unknown + len(extra)


def test_validation_rows_change_nothing_in_the_scaling(tmp_path):
    write(tmp_path / "eicu", PATIENTS, ORDERS)
    before = load_small(tmp_path, covariates=["age"])
    held = set(before.valid.patients)
    assert held
    absurd = [row | {"age": "9999"} if row["uniquepid"] in held else row for row in PATIENTS]
    write(tmp_path / "eicu", absurd, ORDERS)
    after = load_small(tmp_path, covariates=["age"])
    assert after.valid.stays.tolist() == before.valid.stays.tolist()
    assert after.covariates == before.covariates
    assert same(after.train, before.train)
    ages = after.valid.x[:, after.valid.features.index("age")]
    assert (ages > 1000).all()  # every age of training is 60, so the spread is taken as one


# One call


def test_options_that_leave_nothing_are_named(tmp_path):
    write(tmp_path / "eicu", PATIENTS, ORDERS)
    with pytest.raises(ValueError, match=r"^min_hours must leave .* got 10000: .* 83 hours"):
        load_small(tmp_path, min_hours=10000)
    with pytest.raises(ValueError, match=r"^valid_fraction must leave patients"):
        load_small(tmp_path, valid_fraction=0.999)
    with pytest.raises(ValueError, match=r"^valid_fraction must leave at least min_count=6 stays"):
        load_small(tmp_path, valid_fraction=0.8, min_count=6)
    with pytest.raises(ValueError, match=r"^min_count must leave at least one drug, got 99"):
        load_small(tmp_path, min_count=99)
    with pytest.raises(ValueError, match=r"^require_drugs=True leaves no stays: none of 30"):
        load_small(tmp_path, require_drugs=True, tables=["infusion"])
    for wrong, says in (
        (9, "must be a hospital with stays in the table, got 9"),
        ([2, 9], "must be a hospital with stays in the table, got 9"),
        ([1, 2, 3], "must leave stays on both sides"),
        ([], "must leave stays on both sides"),
        (1.5, r"must be a number in \(0, 1\), got 1.5"),
        ("smallest", "must be one of 'largest'"),
    ):
        with pytest.raises(ValueError, match=f"^test_hospital {says}"):
            load_small(tmp_path, test_hospital=wrong)
    with pytest.raises(ValueError, match=r"^train_hospital must be another hospital"):
        load_small(tmp_path, train_hospital=2)
    unknown = [row | {"unitdischargestatus": ""} for row in PATIENTS]
    write(tmp_path / "eicu", unknown, ORDERS)
    with pytest.raises(DataError, match="no stay has a known outcome"):
        load_small(tmp_path)


def test_load_between_two_hospitals_and_its_options(tmp_path):
    write(tmp_path / "eicu", PATIENTS, ORDERS, [infusion(3)], [home(3)])
    split = load_small(tmp_path, train_hospital=1, tables=ALL, valid_fraction=0, balance="weights")
    assert set(split.train.hospitals.tolist()) == {1}
    assert set(split.test.hospitals.tolist()) == {2}
    assert len(split.valid) == 0
    assert {"norepinephrine", "home: lisinopril"} <= set(split.train.features)
    assert split.train.weights is not None
    assert split.test.weights is None
    assert split.summary["training stays"] == len(split.train)
    assert "training deaths" in str(split.summary)
    drugless = load_small(tmp_path, require_drugs=True)
    assert bool((drugless.train.x.sum(1) > 0).all())
    for wrong in ("largest", 0.3, [2]):
        with pytest.raises(TypeError, match="test_hospital must be the id of a hospital"):
            load_small(tmp_path, train_hospital=1, test_hospital=wrong)


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("hours", 0, ValueError),
        ("drug_key", "code", ValueError),
        ("min_count", 0, ValueError),
        ("label", "icu", ValueError),
        ("min_hours", -1, ValueError),
        ("balance", "smote", ValueError),
        ("valid_fraction", 1.0, ValueError),
        ("seed", -1, ValueError),
        ("tables", "medication", TypeError),
        ("tables", [], ValueError),
        ("covariates", ["weight"], ValueError),
        ("covariates", "age", TypeError),
        ("require_drugs", 1, TypeError),
    ],
)
def test_wrong_options_are_named(tmp_path, option, value, kind):
    write(tmp_path / "eicu", PATIENTS, ORDERS)
    with pytest.raises(kind, match=option):
        load_small(tmp_path, **{option: value})


def test_frame_for_scikit_learn(tmp_path):
    write(tmp_path / "eicu", PATIENTS, ORDERS)
    split = load_small(tmp_path)
    frame = split.train.frame()
    assert frame.index.tolist() == split.train.stays.tolist()
    assert frame.columns.tolist() == [*split.train.features, "died", "patient", "hospital"]
    assert torch.equal(torch.tensor(frame[list(split.train.features)].to_numpy()), split.train.x)
    assert frame.died.tolist() == split.train.y.tolist()
    assert tuple(frame.patient) == split.train.patients


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
