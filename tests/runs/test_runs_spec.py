import hashlib
import json
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gflowout.runs import Run, grid
from gflowout.runs.spec import canonical, pack, plain, unpack

NAMES = st.text(min_size=1, max_size=80).filter(lambda name: re.search("[a-zA-Z0-9]", name))
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def trees(leaves):
    return st.recursive(
        leaves,
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below),
        max_leaves=8,
    )


def test_id_is_readable_and_hashes_everything():
    run = Run("Robustness", "id-gflowout", "mnist", 3, {"b": 1, "a": [1, 2]})
    text = (
        '{"data":"mnist","method":"id-gflowout","options":{"a":[1,2],"b":1},"seed":3,'
        '"study":"Robustness"}'
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    assert run.id == f"robustness-mnist-id-gflowout-s3-{digest}"


@pytest.mark.parametrize(
    "other",
    [
        Run("t", "m", "d", 0, {"a": 1}),
        Run("s", "n", "d", 0, {"a": 1}),
        Run("s", "m", "e", 0, {"a": 1}),
        Run("s", "m", "d", 1, {"a": 1}),
        Run("s", "m", "d", 0, {"a": 1.0}),
        Run("s", "m", "d", 0, {"a": True}),
        Run("S", "m", "d", 0, {"a": 1}),
        Run("s", "m", "d", 0),
    ],
)
def test_any_difference_makes_another_run(other):
    run = Run("s", "m", "d", 0, {"a": 1})
    assert run != other
    assert run.id != other.id


@given(NAMES, NAMES, NAMES, st.integers(0, 2**63))
def test_ids_are_file_names_anywhere(study, method, data, seed):
    name = Run(study, method, data, seed).id
    assert re.fullmatch("[a-z0-9][a-z0-9-]*", name)
    assert len(name) < 200


def test_order_and_kind_of_containers_do_not_matter():
    one = Run("s", "m", "d", 0, {"a": (1, 2), "b": {"x": 1, "y": np.float64(0.5)}})
    two = Run("s", "m", "d", np.int64(0), {"b": {"y": 0.5, "x": 1}, "a": [1, 2]})
    assert one == two
    assert hash(one) == hash(two)
    assert one.id == two.id


@given(trees(LEAVES | st.floats(allow_nan=False, allow_infinity=False)))
def test_runs_survive_json_and_pickle(options):
    run = Run("s", "m", "d", 1, {"options": options})
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))).id == run.id
    assert pickle.loads(pickle.dumps(run)) == run


def test_options_cannot_change():
    given = {"sizes": [1, 2]}
    run = Run("s", "m", "d", 0, given)
    before = run.id
    given["sizes"].append(3)
    assert run.options["sizes"] == (1, 2)
    with pytest.raises(TypeError):
        run.options["sizes"] = (3,)
    with pytest.raises(AttributeError):
        run.seed = 1
    assert run.id == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("s", "m", "d", -1), ValueError, "seed must be an integer >= 0, got -1"),
        (("s", "m", "d", "0"), TypeError, "seed must be an integer"),
        (("", "m", "d", 0), ValueError, "study must have a letter or a digit, got ''"),
        (("s", 3, "d", 0), TypeError, "method must be a string, got 3"),
        (("s", "m", "d", 0, [1]), TypeError, "options must be a dict"),
        (("s", "m", "d", 0, {1: 2}), TypeError, "options must have strings for keys, got 1"),
        (("s", "m", "d", 0, {"a": [{"b": {1}}]}), TypeError, r"options.a\[0\].b must be a number"),
        (("s", "m", "d", 0, {"a": float("nan")}), ValueError, "finite, got nan at /a"),
    ],
)
def test_errors_at_the_door(arguments, error, message):
    with pytest.raises(error, match=message):
        Run(*arguments)


def test_grid_is_the_product():
    runs = grid("s", methods=["a", "b"], data=["x", "y"], seeds=[0, 1], options={"r": [1, 2, 3]})
    found = {(run.method, run.data, run.seed, run.options["r"]) for run in runs}
    assert found == {(m, d, s, r) for m in "ab" for d in "xy" for s in (0, 1) for r in (1, 2, 3)}
    assert len(runs) == len(found) == len({run.id for run in runs})
    assert [run.seed for run in runs] == [0] * 12 + [1] * 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": []}, "methods must not be empty"),
        ({"seeds": 3}, "seeds must be a list, got 3"),
        ({"options": {"rate": 0.5}}, "options.rate must be a list, got 0.5"),
        ({"options": [1]}, "options must be a dict of lists"),
    ],
)
def test_grid_errors(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        grid(**{"study": "s", "methods": ["m"], "data": ["d"], "seeds": [0], **change})


def test_plain_takes_numbers_of_others():
    given = {"a": np.float32(0.5), "b": torch.tensor(3), "c": np.int8(1), "d": Fraction(1, 4)}
    found = plain("metrics", given)
    assert found == {"a": 0.5, "b": 3, "c": 1, "d": 0.25}
    assert [type(value) for value in found.values()] == [float, int, int, float]
    with pytest.raises(TypeError, match=r"metrics.a must be .* of type Tensor"):
        plain("metrics", {"a": torch.zeros(2)})


@given(trees(LEAVES | FLOATS))
def test_nan_and_infinities_survive_json(tree):
    tree = {"": tree}
    packed, found = pack(tree)
    text = json.dumps([packed, found], allow_nan=False)
    assert str(unpack(*json.loads(text))) == str(tree)  # as text, since NaN differs from itself


def test_values_as_json():
    assert plain("options", {"sizes": (300, 100), "rate": 0.5}) == {
        "sizes": [300, 100],
        "rate": 0.5,
    }
    with pytest.raises(TypeError, match=r"options.rate must be .* these, got \{1, 2\} of type set"):
        plain("options", {"rate": {1, 2}})
    assert canonical({"b": 1, "a": [0.5, None]}) == '{"a":[0.5,null],"b":1}'
    assert unpack(*pack({"nll": [1.0, float("-inf")]})) == {"nll": [1.0, float("-inf")]}
