"""The clinical pipeline against the real demo of eICU, by a second implementation and by hand."""

import csv
import gzip
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import clinical_files as files
import pytest
import torch
from clinical_files import ALL, drugs_of

import gflowout as gfo
from gflowout.data import clinical
from gflowout.data.batches import Batches

normalise = cache(clinical.normalise)


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
    text = (Path(__file__).parents[2] / "docs/guides/paper-data.md").read_text(encoding="utf-8")
    page, _, _ = text.partition("\n## Visual question answering\n")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    assert "32 deaths" in capsys.readouterr().out  # as the page says
    table = page.split("## What is built from what")[1].split("Each row is counted")[0]
    stated = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+)\**\s\|$", table, re.MULTILINE)]
    counted = clinical.summarise(demo).values()
    assert len(stated) == 13
    assert set(stated) <= set(counted)
