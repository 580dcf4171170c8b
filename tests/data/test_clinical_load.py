"""Clinical data in one call: who is on which side, that nothing leaks between them, and options."""

from collections import Counter
from itertools import combinations

import pandas as pd
import pytest
import torch
from clinical_files import ALL, home, infusion, order, stay, write
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gflowout.data import clinical
from gflowout.data.errors import DataError

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
    with pytest.raises(TypeError, match="the id of a hospital, or a number of stays as in"):
        clinical.between_hospitals(stays, train_hospital="largest", test_hospital=1)


def test_hospitals_by_about_how_many_stays_they_have():
    numbers = [1] * 5 + [2] * 4 + [3] * 2 + [4] * 2
    stays = pd.DataFrame({"patient": range(len(numbers)), "hospital": numbers})
    for train, test, wanted in (("~9", "~9", (1, 2)), ("~2", "~2", (3, 4)), (2, "~4", (2, 1))):
        split = clinical.between_hospitals(stays, train_hospital=train, test_hospital=test)
        assert (*set(split.train.hospital), *split.hospitals) == wanted


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
